/* A process that dies, at each stage of a connection, and what the other is told. */
#include "cm.h"

#include <signal.h>
#include <sys/un.h>

static struct rdma_conn_param as_many = { .responder_resources = RDMA_MAX_RESP_RES, .initiator_depth = RDMA_MAX_INIT_DEPTH };

/* Runs a process until it says that it is where it should be. */
static pid_t start(void (*body)(int socket), int *socket)
{
	int sockets[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		close(sockets[0]);
		body(sockets[1]);
		for (;;)
			pause();
	}
	close(sockets[1]);
	*socket = sockets[0];
	return child;
}

static void end(pid_t child, int socket)
{
	int status;
	CHECK(kill(child, SIGKILL) == 0);
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
	close(socket);
}

static uint16_t hear_port(int socket)
{
	uint16_t port;
	CHECK(recv(socket, &port, sizeof port, MSG_WAITALL) == sizeof port);
	return port;
}

static void tell_port(int socket, struct rdma_cm_id *listener)
{
	uint16_t port = ntohs(rdma_get_src_port(listener));
	CHECK(write(socket, &port, sizeof port) == sizeof port);
}

/* A client that asks. */
static void asks(int socket)
{
	struct rdma_cm_id *id = routed(RDMA_PS_TCP, hear_port(socket));
	give_qp(id, IBV_QPT_RC);
	SAME(rdma_connect(id, &as_many), 0);
}

/* A client that connects. */
static void connects(int socket)
{
	struct rdma_cm_id *id = routed(RDMA_PS_TCP, hear_port(socket));
	give_qp(id, IBV_QPT_RC);
	SAME(rdma_connect(id, &as_many), 0);
	expect(id->channel, RDMA_CM_EVENT_ESTABLISHED, 0);
}

/* A server that listens, and learns of a request. */
static void listens(int socket)
{
	struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 0);
	tell_port(socket, listener);
	next_event(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(write(socket, "", 1) == 1);
}

static void asked_and_gone(void)
{
	int socket;
	pid_t child = start(asks, &socket);
	struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 0);
	tell_port(socket, listener);
	struct rdma_cm_event *event = next_event(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	SAME(rdma_ack_cm_event(event), 0);
	end(child, socket);
	event = next_event(listener->channel, RDMA_CM_EVENT_REJECTED);
	/* 4: no answer. */
	CHECK(event->id == id && event->status == 4);
	SAME(rdma_ack_cm_event(event), 0);
	give_qp(id, IBV_QPT_RC);
	SAME(rdma_accept(id, &as_many), -1);
	rdma_destroy_qp(id);
	SAME(rdma_destroy_id(id), 0);
	end_id(listener);
}

static void connected_and_gone(void)
{
	int socket;
	pid_t child = start(connects, &socket);
	struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 0);
	tell_port(socket, listener);
	struct rdma_cm_event *event = next_event(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	SAME(rdma_ack_cm_event(event), 0);
	give_qp(id, IBV_QPT_RC);
	SAME(rdma_accept(id, &as_many), 0);
	expect(listener->channel, RDMA_CM_EVENT_ESTABLISHED, 0);
	CHECK(is_quiet(listener->channel));
	end(child, socket);
	expect(listener->channel, RDMA_CM_EVENT_DISCONNECTED, 0);
	rdma_destroy_qp(id);
	SAME(rdma_destroy_id(id), 0);
	end_id(listener);
}

static void was_asked_and_gone(void)
{
	int socket;
	char byte;
	pid_t child = start(listens, &socket);
	struct rdma_cm_id *id = routed(RDMA_PS_TCP, hear_port(socket));
	give_qp(id, IBV_QPT_RC);
	SAME(rdma_connect(id, &as_many), 0);
	CHECK(recv(socket, &byte, 1, 0) == 1);
	end(child, socket);
	expect(id->channel, RDMA_CM_EVENT_REJECTED, 28);
	end_id(id);
}

static int socket_of_kind(void)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	CHECK(fd >= 0);
	return fd;
}

/* Nobody but the kernel can take a name away from another user; one that took ours first is no peer. */
static void usurps(int socket)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	uid_t user = geteuid();
	CHECK(setresuid(65534, 65534, 65534) == 0);
	int fd = socket_of_kind();
	uint16_t port = 20000;
	for (;; port++) {
		int len = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "fulmen-cm-%u-0106-%u", user, port);
		if (bind(fd, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len)) == 0)
			break;
		CHECK(errno == EADDRINUSE && port < 21000);
	}
	CHECK(listen(fd, 8) == 0);
	CHECK(write(socket, &port, sizeof port) == sizeof port);
}

static void another_user(void)
{
	if (geteuid() != 0) {
		puts("SKIPPED: another user's port: only root can become another user (run the tests as root)");
		return;
	}
	int socket;
	pid_t child = start(usurps, &socket);
	struct rdma_cm_id *id = routed(RDMA_PS_TCP, hear_port(socket));
	give_qp(id, IBV_QPT_RC);
	SAME(rdma_connect(id, &as_many), 0);
	expect(id->channel, RDMA_CM_EVENT_REJECTED, 8);
	end_id(id);
	end(child, socket);
}

/* Each in a process of its own, whose children are made before it has a device. */
static void isolated(void (*body)(void))
{
	fflush(stdout);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		body();
		exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
	isolated(asked_and_gone);
	isolated(connected_and_gone);
	isolated(was_asked_and_gone);
	isolated(another_user);
	return 0;
}
