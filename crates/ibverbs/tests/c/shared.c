/* Shared receive queues: two queue pairs take from one, and a limit is told. */
#include "common.h"

static void body(struct side *side)
{
	open_side(side);
	struct ibv_qp *qps[2];
	if (!side->first) {
		struct ibv_srq_init_attr init = { .srq_context = side, .attr = { .max_wr = 16, .max_sge = 2 } };
		side->srq = ibv_create_srq(side->pd, &init);
		CHECK(side->srq);
		CHECK(init.attr.max_wr >= 16 && init.attr.max_sge >= 2);
		CHECK(side->srq->srq_context == side);
	}
	struct address peers[2];
	for (int at = 0; at < 2; at++) {
		make_qp(side, IBV_QPT_RC);
		qps[at] = side->qp;
		CHECK(qps[at]->srq == side->srq);
		to_init(qps[at]);
		peers[at] = exchange(side, qps[at]);
		to_work(qps[at], &peers[at], 1);
	}
	meet(side);
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	if (side->first) {
		meet(side);
		for (int at = 0; at < 6; at++) {
			side->qp = qps[at % 2];
			side->buffer[0] = (char)('a' + at);
			post(side, send_wr(side, &wr, &sge, (uint64_t)at, IBV_WR_SEND, 0, 1));
			done(side, (uint64_t)at, IBV_WC_SEND);
		}
		meet(side);
	} else {
		struct ibv_recv_wr recv = { .wr_id = 1 }, *bad = NULL;
		/* A queue pair with a shared receive queue has none of its own. */
		CHECK(ibv_post_recv(qps[0], &recv, &bad) > 0);
		CHECK(bad == &recv);
		SAME(ibv_destroy_srq(side->srq), EBUSY);
		for (int at = 0; at < 8; at++)
			post_recv(side, (uint64_t)at, (size_t)at, 1);
		struct ibv_srq_attr attr = { .srq_limit = 4 };
		SAME(ibv_modify_srq(side->srq, &attr, IBV_SRQ_LIMIT), 0);
		SAME(ibv_query_srq(side->srq, &attr), 0);
		SAME(attr.srq_limit, 4);
		CHECK(attr.max_wr >= 16);
		attr.srq_limit = attr.max_wr + 1;
		SAME(ibv_modify_srq(side->srq, &attr, IBV_SRQ_LIMIT), EINVAL);
		attr.max_wr *= 2;
		SAME(ibv_modify_srq(side->srq, &attr, IBV_SRQ_MAX_WR), EOPNOTSUPP);
		meet(side);
		for (int at = 0; at < 6; at++) {
			struct ibv_wc wc = next(side->cq);
			SAME(wc.status, IBV_WC_SUCCESS);
			SAME(wc.wr_id, at);
			SAME(wc.qp_num, qps[at % 2]->qp_num);
			SAME(side->buffer[at], 'a' + at);
		}
		/* Told once, when fewer than four were left. */
		struct ibv_async_event event;
		SAME(ibv_get_async_event(side->context, &event), 0);
		SAME(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
		CHECK(event.element.srq == side->srq);
		ibv_ack_async_event(&event);
		SAME(ibv_query_srq(side->srq, &attr), 0);
		SAME(attr.srq_limit, 0);
		meet(side);
	}
	SAME(ibv_destroy_qp(qps[0]), 0);
	side->qp = qps[1];
	close_side(side);
}

int main(void)
{
	return run(body);
}
