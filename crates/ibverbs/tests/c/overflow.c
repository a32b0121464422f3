/* A completion queue that is too small: polling fails, and an event tells of it. */
#include "common.h"

static void body(struct side *side)
{
	open_side(side);
	SAME(ibv_destroy_cq(side->cq), 0);
	side->cq = ibv_create_cq(side->context, 1, side, NULL, 0);
	CHECK(side->cq);
	int room = side->cq->cqe;
	CHECK(room < DEPTH);
	make_qp(side, IBV_QPT_UC);
	to_init(side->qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	for (int at = 0; at <= room; at++)
		post_recv(side, (uint64_t)at, 0, 1);
	/* Each RECV is flushed into the queue. */
	SAME(ibv_modify_qp(side->qp, &attr, IBV_QP_STATE), 0);
	struct ibv_wc wc;
	double until = now() + PATIENCE;
	int count;
	while ((count = ibv_poll_cq(side->cq, 1, &wc)) >= 0)
		CHECK(now() < until);
	SAME(count, -1);
	struct ibv_async_event event;
	SAME(ibv_get_async_event(side->context, &event), 0);
	SAME(event.event_type, IBV_EVENT_CQ_ERR);
	CHECK(event.element.cq == side->cq);
	ibv_ack_async_event(&event);
	close_side(side);
}

int main(void)
{
	return run(body);
}
