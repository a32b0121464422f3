/* What is refused, and how a program is told. */
#include "cm.h"

#include <rdma/rsocket.h>
#include <sys/un.h>

/* The call fails with this error. */
#define FAILS(call, error)                                                                                          \
	do {                                                                                                        \
		errno = 0;                                                                                          \
		SAME(call, -1);                                                                                     \
		SAME(errno, error);                                                                                 \
	} while (0)

static struct rdma_conn_param as_many = { .responder_resources = RDMA_MAX_RESP_RES, .initiator_depth = RDMA_MAX_INIT_DEPTH };

/* A port on which nobody listens, while the identifier holds it. */
static struct rdma_cm_id *bound(uint16_t *port)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	struct sockaddr_in any = loopback(0);
	SAME(rdma_bind_addr(id, (struct sockaddr *)&any), 0);
	*port = ntohs(rdma_get_src_port(id));
	return id;
}

static void addresses(void)
{
	uint16_t port;
	struct rdma_cm_id *first = bound(&port), *second = new_id(RDMA_PS_TCP), *shared = new_id(RDMA_PS_TCP);
	struct sockaddr_in same = loopback(port), far = loopback(port);
	FAILS(rdma_bind_addr(second, (struct sockaddr *)&same), EADDRINUSE);
	FAILS(rdma_bind_addr(first, (struct sockaddr *)&same), EINVAL);
	/* 192.0.2.0/24 is for documentation. */
	far.sin_addr.s_addr = htonl(0xc0000201);
	FAILS(rdma_bind_addr(second, (struct sockaddr *)&far), EADDRNOTAVAIL);
	SAME(rdma_resolve_addr(second, NULL, (struct sockaddr *)&far, 2000), 0);
	expect(second->channel, RDMA_CM_EVENT_ADDR_ERROR, -ENETUNREACH);
	FAILS(rdma_resolve_route(second, 2000), EINVAL);
	FAILS(rdma_connect(second, &as_many), EINVAL);
	/* A port may be shared until one listens. */
	int yes = 1;
	SAME(rdma_set_option(shared, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes), 0);
	SAME(rdma_bind_addr(shared, (struct sockaddr *)&same), 0);
	SAME(rdma_listen(first, 1), 0);
	FAILS(rdma_listen(shared, 1), EADDRINUSE);
	struct sockaddr_un other = { .sun_family = AF_UNIX };
	FAILS(rdma_resolve_addr(second, NULL, (struct sockaddr *)&other, 2000), EAFNOSUPPORT);
	struct rdma_cm_id *id;
	FAILS(rdma_create_id(first->channel, &id, NULL, RDMA_PS_IB), EPROTONOSUPPORT);
	end_id(first);
	end_id(shared);
	end_id(second);
}

static void nobody_listens(void)
{
	uint16_t port;
	struct rdma_cm_id *holder = bound(&port), *id = routed(RDMA_PS_TCP, port);
	give_qp(id, IBV_QPT_RC);
	SAME(rdma_connect(id, &as_many), 0);
	/* 8: no such service. */
	expect(id->channel, RDMA_CM_EVENT_REJECTED, 8);
	SAME(id->qp->state, IBV_QPS_ERR);
	end_id(id);
	id = routed(RDMA_PS_UDP, port);
	give_qp(id, IBV_QPT_UD);
	SAME(rdma_connect(id, &as_many), 0);
	/* 1: no such service. */
	expect(id->channel, RDMA_CM_EVENT_UNREACHABLE, 1);
	end_id(id);
	end_id(holder);

	/* The same for a call that waits. */
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found;
	char service[8];
	snprintf(service, sizeof service, "%u", port);
	SAME(rdma_getaddrinfo("127.0.0.1", service, &hints, &found), 0);
	SAME(found->ai_qp_type, IBV_QPT_RC);
	SAME(found->ai_dst_len, sizeof(struct sockaddr_in));
	struct ibv_qp_init_attr init = { .cap = { 1, 1, 1, 1, 0 } };
	SAME(rdma_create_ep(&id, found, NULL, &init), 0);
	CHECK(id->qp && id->qp->state == IBV_QPS_INIT);
	FAILS(rdma_connect(id, NULL), ECONNREFUSED);
	SAME(id->event->event, RDMA_CM_EVENT_REJECTED);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(found);
}

static void a_program_says_no(void)
{
	struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 1), *id, *more;
	uint16_t port = ntohs(rdma_get_src_port(listener));
	uint8_t words[200];
	fill(words, sizeof words, 9);
	id = routed(RDMA_PS_TCP, port);
	give_qp(id, IBV_QPT_RC);
	struct rdma_conn_param param = as_many;
	param.private_data = words;
	param.private_data_len = 57;
	FAILS(rdma_connect(id, &param), EINVAL);
	param.private_data_len = 56;
	SAME(rdma_connect(id, &param), 0);
	struct pollfd waits = { .fd = listener->channel->fd, .events = POLLIN };
	CHECK(poll(&waits, 1, PATIENCE * 1000) == 1);
	/* One waits, and no more may. */
	more = routed(RDMA_PS_TCP, port);
	give_qp(more, IBV_QPT_RC);
	SAME(rdma_connect(more, &as_many), 0);
	expect(more->channel, RDMA_CM_EVENT_REJECTED, 28);
	end_id(more);

	struct rdma_cm_event *event = next_event(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *asked = event->id;
	SAME(rdma_ack_cm_event(event), 0);
	FAILS(rdma_reject(asked, words, 149), EINVAL);
	SAME(rdma_reject(asked, words, 148), 0);
	event = next_event(id->channel, RDMA_CM_EVENT_REJECTED);
	/* 28: by the program. */
	SAME(event->status, 28);
	SAME(event->param.conn.private_data_len, 148);
	CHECK(is_filled(event->param.conn.private_data, 148, 148, 9));
	SAME(rdma_ack_cm_event(event), 0);
	SAME(rdma_destroy_id(asked), 0);
	end_id(id);

	/* To destroy the request is to say no. */
	id = routed(RDMA_PS_TCP, port);
	give_qp(id, IBV_QPT_RC);
	SAME(rdma_connect(id, &as_many), 0);
	event = next_event(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	SAME(rdma_ack_cm_event(event), 0);
	SAME(rdma_destroy_id(asked), 0);
	expect(id->channel, RDMA_CM_EVENT_REJECTED, 28);
	end_id(id);

	/* So it is to destroy who listens. */
	id = routed(RDMA_PS_TCP, port);
	give_qp(id, IBV_QPT_RC);
	SAME(rdma_connect(id, &as_many), 0);
	CHECK(poll(&waits, 1, PATIENCE * 1000) == 1);
	end_id(listener);
	expect(id->channel, RDMA_CM_EVENT_REJECTED, 28);
	end_id(id);
}

/* Whoever connects and talks nonsense disturbs nobody. */
static void nonsense(void)
{
	struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 0);
	uint16_t port = ntohs(rdma_get_src_port(listener));
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	int len = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "fulmen-cm-%u-0106-%u", geteuid(), port);
	for (unsigned kind = 0; kind < 4; kind++) {
		int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
		CHECK(connect(fd, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len)) == 0);
		uint8_t packet[600];
		fill(packet, sizeof packet, kind);
		/* Another version of the protocol, among others. */
		if (kind == 1)
			memcpy(packet, "FCMA\2\1", 6);
		if (kind < 3)
			CHECK(send(fd, packet, kind == 2 ? 600 : 296, 0) > 0);
		if (kind == 3)
			shutdown(fd, SHUT_WR);
		uint8_t byte;
		CHECK(recv(fd, &byte, 1, 0) <= 0);
		close(fd);
	}
	CHECK(is_quiet(listener->channel));
	struct rdma_cm_id *id = routed(RDMA_PS_TCP, port);
	give_qp(id, IBV_QPT_RC);
	SAME(rdma_connect(id, &as_many), 0);
	struct rdma_cm_event *event = next_event(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *asked = event->id;
	SAME(rdma_ack_cm_event(event), 0);
	give_qp(asked, IBV_QPT_RC);
	SAME(rdma_accept(asked, NULL), 0);
	expect(id->channel, RDMA_CM_EVENT_ESTABLISHED, 0);
	expect(listener->channel, RDMA_CM_EVENT_ESTABLISHED, 0);
	/* Destroying one end without a word ends the connection. */
	end_id(id);
	expect(listener->channel, RDMA_CM_EVENT_DISCONNECTED, 0);
	rdma_destroy_qp(asked);
	SAME(rdma_destroy_id(asked), 0);
	end_id(listener);
}

static void what_there_is_not(void)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_UDP);
	struct sockaddr_in group = loopback(1);
	FAILS(rdma_join_multicast(id, (struct sockaddr *)&group, NULL), EOPNOTSUPP);
	struct rdma_cm_join_mc_attr_ex join = { .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS, .addr = (struct sockaddr *)&group };
	FAILS(rdma_join_multicast_ex(id, &join, NULL), EOPNOTSUPP);
	FAILS(rdma_leave_multicast(id, (struct sockaddr *)&group), EADDRNOTAVAIL);
	FAILS(rsocket(AF_INET, SOCK_STREAM, 0), EOPNOTSUPP);
	FAILS(rsend(id->channel->fd, &group, 1, 0), EBADF);
	struct pollfd waits = { .fd = id->channel->fd, .events = POLLIN };
	SAME(rpoll(&waits, 1, 0), 0);
	uint8_t service = 4, wrong[3] = { 0 };
	SAME(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &service, 1), 0);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, wrong, 3), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, wrong, 3), ENOSYS);
	/* A channel that does not wait says so. */
	CHECK(fcntl(id->channel->fd, F_SETFL, O_NONBLOCK) == 0);
	struct rdma_cm_event *event;
	FAILS(rdma_get_cm_event(id->channel, &event), EAGAIN);
	/* An identifier is gone once it is destroyed. */
	struct rdma_event_channel *channel = id->channel;
	SAME(rdma_destroy_id(id), 0);
	FAILS(rdma_listen(id, 1), EINVAL);
	FAILS(rdma_destroy_id(id), EINVAL);
	rdma_destroy_event_channel(channel);
	int count = 0;
	struct ibv_context **devices = rdma_get_devices(&count);
	CHECK(devices && count >= 1 && devices[count - 1] && !devices[count]);
	rdma_free_devices(devices);
}

int main(void)
{
	addresses();
	nobody_listens();
	a_program_says_no();
	nonsense();
	what_there_is_not();
	return 0;
}
