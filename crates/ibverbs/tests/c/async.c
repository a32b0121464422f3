/* Asynchronous events: a pollable descriptor, what an event is about, and objects that wait until it is acknowledged. */
#include "common.h"

static struct ibv_async_event event;
static double acknowledged;

static void *acknowledge(void *nothing)
{
	(void)nothing;
	usleep(100000);
	acknowledged = now();
	ibv_ack_async_event(&event);
	return NULL;
}

/* To RTR alone: what arrives there is told. */
static void to_receive(struct ibv_qp *qp, const struct address *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qpn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .dlid = peer->lid, .port_num = 1 },
	};
	SAME(ibv_modify_qp(qp, &attr,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
	     0);
}

static void body(struct side *side)
{
	open_side(side);
	make_qp(side, IBV_QPT_RC);
	to_init(side->qp);
	struct address peer = exchange(side, side->qp);
	if (!side->first) {
		meet(side);
		to_work(side->qp, &peer, 0);
		struct ibv_send_wr wr;
		struct ibv_sge sge;
		post(side, send_wr(side, &wr, &sge, 1, IBV_WR_SEND, 0, 100));
		done(side, 1, IBV_WC_SEND);
		meet(side);
		close_side(side);
		return;
	}
	post_recv(side, 2, 0, 100);
	to_receive(side->qp, &peer);
	/* Nothing yet. */
	struct pollfd fd = { .fd = side->context->async_fd, .events = POLLIN };
	SAME(poll(&fd, 1, 0), 0);
	meet(side);
	done(side, 2, IBV_WC_RECV);
	SAME(poll(&fd, 1, PATIENCE * 1000), 1);
	SAME(ibv_get_async_event(side->context, &event), 0);
	SAME(event.event_type, IBV_EVENT_COMM_EST);
	CHECK(event.element.qp == side->qp);
	SAME(poll(&fd, 1, 0), 0);
	meet(side);
	/* The queue pair is there until the event is acknowledged. */
	pthread_t thread;
	SAME(pthread_create(&thread, NULL, acknowledge, NULL), 0);
	SAME(ibv_destroy_qp(side->qp), 0);
	CHECK(acknowledged != 0);
	SAME(pthread_join(thread, NULL), 0);
	make_qp(side, IBV_QPT_RC);
	close_side(side);
}

int main(void)
{
	return run(body);
}
