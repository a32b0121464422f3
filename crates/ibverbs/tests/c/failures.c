/* Wrong keys, flushed requests and the state that queries tell. */
#include "common.h"

static struct address peer;

static enum ibv_qp_state state(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	SAME(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
	SAME(attr.qp_state, attr.cur_qp_state);
	SAME(qp->state, attr.qp_state);
	return attr.qp_state;
}

static void connect_anew(struct side *side)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	SAME(ibv_modify_qp(side->qp, &attr, IBV_QP_STATE), 0);
	struct ibv_wc wc;
	while (ibv_poll_cq(side->cq, 1, &wc) > 0)
		SAME(wc.status, IBV_WC_WR_FLUSH_ERR);
	to_init(side->qp);
	peer = exchange(side, side->qp);
	to_work(side->qp, &peer, 1);
	meet(side);
}

static void failed(struct side *side, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = next(side->cq);
	SAME(wc.wr_id, wr_id);
	SAME(wc.status, status);
	SAME(wc.qp_num, side->qp->qp_num);
	SAME(state(side->qp), IBV_QPS_ERR);
}

static void body(struct side *side)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	open_side(side);
	make_qp(side, IBV_QPT_RC);
	SAME(state(side->qp), IBV_QPS_RESET);
	/* Nothing can be posted in RESET, and no SEND before RTS. */
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv = NULL;
	SAME(ibv_post_recv(side->qp, &recv, &bad_recv), EINVAL);
	CHECK(bad_recv == &recv);
	SAME(ibv_post_send(side->qp, send_wr(side, &wr, &sge, 1, IBV_WR_SEND, 0, 8), &bad), EINVAL);
	CHECK(bad == &wr);
	connect_anew(side);
	SAME(state(side->qp), IBV_QPS_RTS);

	/* A local key of nobody, and one whose memory the bytes leave. */
	for (int round = 0; round < 2; round++) {
		if (side->first) {
			send_wr(side, &wr, &sge, 2, IBV_WR_SEND, 0, 8);
			if (round == 0)
				sge.lkey ^= 0x5a5a00;
			else
				sge.addr += BUFFER - 7;
			post(side, &wr);
			failed(side, 2, IBV_WC_LOC_PROT_ERR);
			/* What comes later is flushed. */
			post(side, send_wr(side, &wr, &sge, 3, IBV_WR_SEND, 0, 8));
			failed(side, 3, IBV_WC_WR_FLUSH_ERR);
		}
		meet(side);
		connect_anew(side);
	}

	/* A remote key of nobody. */
	if (side->first) {
		send_wr(side, &wr, &sge, 4, IBV_WR_RDMA_WRITE, 0, 8);
		wr.wr.rdma.remote_addr = peer.buffer;
		wr.wr.rdma.rkey = peer.rkey ^ 0x5a5a00;
		post(side, &wr);
		failed(side, 4, IBV_WC_REM_ACCESS_ERR);
	}
	meet(side);
	connect_anew(side);

	/* ERR flushes the RECVs that wait, in order. */
	post_recv(side, 5, 0, 8);
	post_recv(side, 6, 8, 8);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	SAME(ibv_modify_qp(side->qp, &attr, IBV_QP_STATE), 0);
	failed(side, 5, IBV_WC_WR_FLUSH_ERR);
	failed(side, 6, IBV_WC_WR_FLUSH_ERR);
	meet(side);
	connect_anew(side);

	/* A message that is longer than its RECV. */
	if (!side->first)
		post_recv(side, 7, 0, 7);
	meet(side);
	if (side->first) {
		post(side, send_wr(side, &wr, &sge, 8, IBV_WR_SEND, 0, 8));
		failed(side, 8, IBV_WC_REM_INV_REQ_ERR);
	} else {
		failed(side, 7, IBV_WC_LOC_LEN_ERR);
	}
	meet(side);
	close_side(side);
}

int main(void)
{
	return run(body);
}
