/* Completion channels: a descriptor to poll, events to get and to acknowledge, solicited ones. */
#include "common.h"

static struct address peer;

static int readable(struct side *side, int milliseconds)
{
	struct pollfd fd = { .fd = side->channel->fd, .events = POLLIN };
	int count = poll(&fd, 1, milliseconds);
	CHECK(count >= 0);
	return count;
}

static void take_event(struct side *side)
{
	struct ibv_cq *cq = NULL;
	void *context = NULL;
	SAME(ibv_get_cq_event(side->channel, &cq, &context), 0);
	CHECK(cq == side->cq && context == side);
	ibv_ack_cq_events(cq, 1);
}

static void send_one(struct side *side, uint64_t wr_id, unsigned flags)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	send_wr(side, &wr, &sge, wr_id, IBV_WR_SEND, 0, 8)->send_flags |= flags;
	post(side, &wr);
	done(side, wr_id, IBV_WC_SEND);
}

static void *acknowledge(void *of)
{
	struct side *side = of;
	usleep(200 * 1000);
	side->first = 7;
	ibv_ack_cq_events(side->cq, 1);
	return NULL;
}

/* Nobody polls: the device itself sees what comes. */
static void receiver(struct side *side)
{
	struct ibv_cq *cq;
	void *context;
	for (int at = 0; at < 8; at++)
		post_recv(side, (uint64_t)at, 0, 8);
	int flags = fcntl(side->channel->fd, F_GETFL);
	CHECK(flags >= 0 && fcntl(side->channel->fd, F_SETFL, flags | O_NONBLOCK) == 0);
	SAME(ibv_get_cq_event(side->channel, &cq, &context), -1);
	SAME(errno, EAGAIN);
	CHECK(fcntl(side->channel->fd, F_SETFL, flags) == 0);

	/* An event for the next completion, and none for the one after it. */
	SAME(ibv_req_notify_cq(side->cq, 0), 0);
	SAME(readable(side, 0), 0);
	meet(side);
	SAME(readable(side, PATIENCE * 1000), 1);
	take_event(side);
	SAME(readable(side, 0), 0);
	done(side, 0, IBV_WC_RECV);
	meet(side);
	done(side, 1, IBV_WC_RECV);
	SAME(readable(side, 0), 0);

	/* Asking for solicited ones does not weaken what was asked for before. */
	SAME(ibv_req_notify_cq(side->cq, 0), 0);
	SAME(ibv_req_notify_cq(side->cq, 1), 0);
	meet(side);
	take_event(side);
	done(side, 2, IBV_WC_RECV);

	/* Of solicited ones alone. */
	SAME(ibv_req_notify_cq(side->cq, 1), 0);
	meet(side);
	take_event(side);
	done(side, 3, IBV_WC_RECV);
	done(side, 4, IBV_WC_RECV);

	/* An event that was got and not acknowledged holds the end of the queue up; one that was not got is gone with it. */
	SAME(ibv_req_notify_cq(side->cq, 0), 0);
	meet(side);
	SAME(ibv_get_cq_event(side->channel, &cq, &context), 0);
	done(side, 5, IBV_WC_RECV);
	SAME(ibv_req_notify_cq(side->cq, 0), 0);
	meet(side);
	SAME(readable(side, PATIENCE * 1000), 1);
	SAME(ibv_destroy_qp(side->qp), 0);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, acknowledge, side) == 0);
	SAME(ibv_destroy_cq(side->cq), 0);
	SAME(side->first, 7);
	pthread_join(thread, NULL);
	SAME(readable(side, 0), 0);
	SAME(ibv_destroy_comp_channel(side->channel), 0);
}

static void sender(struct side *side)
{
	meet(side);
	send_one(side, 0, 0);
	meet(side);
	send_one(side, 1, 0);
	meet(side);
	send_one(side, 2, 0);
	meet(side);
	send_one(side, 3, 0);
	send_one(side, 4, IBV_SEND_SOLICITED);
	meet(side);
	send_one(side, 5, 0);
	meet(side);
	send_one(side, 6, 0);
	char byte;
	CHECK(recv(side->socket, &byte, 1, 0) == 0);
	close_side(side);
}

static void body(struct side *side)
{
	open_side(side);
	make_qp(side, IBV_QPT_RC);
	to_init(side->qp);
	peer = exchange(side, side->qp);
	to_work(side->qp, &peer, 1);
	if (side->first)
		sender(side);
	else
		receiver(side);
}

int main(void)
{
	return run(body);
}
