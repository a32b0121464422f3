/* What the test programs of the connection manager share. */
#include "common.h"

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

static inline struct sockaddr_in loopback(uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

/* The next event of a channel, for which it waits as programs do: on the descriptor. */
static inline struct rdma_cm_event *next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct pollfd waits = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	CHECK(poll(&waits, 1, PATIENCE * 1000) == 1);
	SAME(rdma_get_cm_event(channel, &event), 0);
	if (event->event != type) {
		fprintf(stderr, "%s (%d) and not %s\n", rdma_event_str(event->event), event->status, rdma_event_str(type));
		exit(1);
	}
	return event;
}

/* The same, for events of which nothing but their coming matters. */
static inline void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type, int status)
{
	struct rdma_cm_event *event = next_event(channel, type);
	SAME(event->status, status);
	SAME(rdma_ack_cm_event(event), 0);
}

static inline int is_quiet(struct rdma_event_channel *channel)
{
	struct pollfd waits = { .fd = channel->fd, .events = POLLIN };
	return poll(&waits, 1, 0) == 0;
}

/* An identifier on a channel of its own. */
static inline struct rdma_cm_id *new_id(enum rdma_port_space space)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	CHECK(channel);
	SAME(rdma_create_id(channel, &id, channel, space), 0);
	CHECK(id->channel == channel && id->context == channel && id->ps == space && !id->verbs);
	return id;
}

static inline void end_id(struct rdma_cm_id *id)
{
	struct rdma_event_channel *channel = id->channel;
	if (id->qp)
		rdma_destroy_qp(id);
	SAME(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
}

/* One that listens on some port. */
static inline struct rdma_cm_id *listening(enum rdma_port_space space, int backlog)
{
	struct rdma_cm_id *id = new_id(space);
	struct sockaddr_in any = loopback(0);
	SAME(rdma_bind_addr(id, (struct sockaddr *)&any), 0);
	CHECK(rdma_get_src_port(id) != 0 && id->verbs);
	SAME(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_port, rdma_get_src_port(id));
	SAME(rdma_listen(id, backlog), 0);
	return id;
}

/* One that knows the way to a port. */
static inline struct rdma_cm_id *routed(enum rdma_port_space space, uint16_t port)
{
	struct rdma_cm_id *id = new_id(space);
	struct sockaddr_in to = loopback(port);
	SAME(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000), 0);
	expect(id->channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(id->verbs && id->port_num == 1);
	SAME(rdma_get_dst_port(id), htons(port));
	SAME(rdma_resolve_route(id, 2000), 0);
	expect(id->channel, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	CHECK(id->route.num_paths == 1 && id->route.path_rec);
	return id;
}

static inline void give_qp(struct rdma_cm_id *id, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = type,
		.sq_sig_all = 1,
	};
	SAME(rdma_create_qp(id, NULL, &init), 0);
	CHECK(id->qp && id->pd && id->send_cq && id->recv_cq && id->send_cq_channel && id->recv_cq_channel);
	SAME(id->qp->state, type == IBV_QPT_UD ? IBV_QPS_RTS : IBV_QPS_INIT);
}

static inline void fill(uint8_t *bytes, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = (uint8_t)(seed + 31 * i);
}

/* Whether these are the bytes, and zeros up to the end. */
static inline int is_filled(const void *data, size_t len, size_t whole, unsigned seed)
{
	const uint8_t *bytes = data;
	for (size_t i = 0; i < whole; i++)
		if (bytes[i] != (i < len ? (uint8_t)(seed + 31 * i) : 0))
			return 0;
	return 1;
}

/* The next completion of one of the identifier's queues, which is a success. */
static inline void completed(struct ibv_cq *cq, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = next(cq);
	SAME(wc.status, IBV_WC_SUCCESS);
	SAME(wc.opcode, opcode);
}
