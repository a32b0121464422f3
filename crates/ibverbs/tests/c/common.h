/* What the test programs share: two processes, each with a device of its own, that tell each other where they are. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Ends the process and says where, unless the condition holds. */
#define CHECK(condition)                                                                                            \
	do {                                                                                                        \
		if (!(condition)) {                                                                                 \
			fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);     \
			exit(1);                                                                                    \
		}                                                                                                   \
	} while (0)

/* A comparison that tells both numbers. */
#define SAME(left, right)                                                                                           \
	do {                                                                                                        \
		long long l_ = (long long)(left), r_ = (long long)(right);                                          \
		if (l_ != r_) {                                                                                     \
			fprintf(stderr, "%s:%d: %s is %lld and not %lld\n", __FILE__, __LINE__, #left, l_, r_);       \
			exit(1);                                                                                    \
		}                                                                                                   \
	} while (0)

enum { BUFFER = 1 << 20, DEPTH = 64, QKEY = 0x11111111 };

/* One side: a device and a queue pair. */
struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *buffer;
	int socket; /* to the other process */
	int first;  /* 1 in one process, 0 in the other */
};

/* What the other side has to know. */
struct address {
	uint32_t qpn, rkey;
	uint64_t buffer;
	uint16_t lid;
	union ibv_gid gid;
};

static inline struct ibv_context *open_device(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count > 0);
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

/* A device with memory and a completion queue, which tells a channel. */
static inline void open_side(struct side *side)
{
	side->context = open_device();
	side->pd = ibv_alloc_pd(side->context);
	CHECK(side->pd);
	side->buffer = malloc(BUFFER);
	CHECK(side->buffer);
	memset(side->buffer, 0, BUFFER);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	side->mr = ibv_reg_mr(side->pd, side->buffer, BUFFER, access);
	CHECK(side->mr);
	side->channel = ibv_create_comp_channel(side->context);
	CHECK(side->channel);
	side->cq = ibv_create_cq(side->context, 2 * DEPTH, side, side->channel, 0);
	CHECK(side->cq);
	CHECK(side->cq->cqe >= 2 * DEPTH);
}

static inline struct ibv_qp_init_attr qp_attributes(struct side *side, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.qp_context = side,
		.send_cq = side->cq,
		.recv_cq = side->cq,
		.srq = side->srq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64 },
		.qp_type = type,
	};
	return init;
}

static inline void make_qp(struct side *side, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = qp_attributes(side, type);
	side->qp = ibv_create_qp(side->pd, &init);
	CHECK(side->qp);
	CHECK(init.cap.max_send_wr >= DEPTH && init.cap.max_inline_data >= 64);
}

static inline void to_init(struct ibv_qp *qp)
{
	int ud = qp->qp_type == IBV_QPT_UD;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qkey = QKEY,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	SAME(ibv_modify_qp(qp, &attr, mask), 0);
	SAME(qp->state, IBV_QPS_INIT);
}

static inline void to_work(struct ibv_qp *qp, const struct address *peer, int by_gid)
{
	int rc = qp->qp_type == IBV_QPT_RC, ud = qp->qp_type == IBV_QPT_UD;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qpn,
		.rq_psn = 7,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr = { .dlid = peer->lid, .port_num = 1, .is_global = by_gid },
	};
	attr.ah_attr.grh.dgid = peer->gid;
	attr.ah_attr.grh.hop_limit = 1;
	int mask = IBV_QP_STATE;
	if (!ud)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (rc)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	SAME(ibv_modify_qp(qp, &attr, mask), 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 7;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (rc)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	SAME(ibv_modify_qp(qp, &attr, mask), 0);
	SAME(qp->state, IBV_QPS_RTS);
}

static inline struct address own_address(struct side *side, struct ibv_qp *qp)
{
	struct ibv_port_attr port;
	SAME(ibv_query_port(side->context, 1, &port), 0);
	struct address own = { .qpn = qp->qp_num, .rkey = side->mr->rkey, .buffer = (uintptr_t)side->buffer, .lid = port.lid };
	SAME(ibv_query_gid(side->context, 1, 0, &own.gid), 0);
	return own;
}

static inline void tell(struct side *side, const void *bytes, size_t len)
{
	CHECK(write(side->socket, bytes, len) == (ssize_t)len);
}

static inline void hear(struct side *side, void *bytes, size_t len)
{
	CHECK(recv(side->socket, bytes, len, MSG_WAITALL) == (ssize_t)len);
}

static inline struct address exchange(struct side *side, struct ibv_qp *qp)
{
	struct address own = own_address(side, qp), peer;
	tell(side, &own, sizeof own);
	hear(side, &peer, sizeof peer);
	return peer;
}

/* Both sides are here. */
static inline void meet(struct side *side)
{
	char byte = 1;
	tell(side, &byte, 1);
	hear(side, &byte, 1);
}

static inline void post_recv(struct side *side, uint64_t wr_id, size_t at, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)side->buffer + at, len, side->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	SAME(side->srq ? ibv_post_srq_recv(side->srq, &wr, &bad) : ibv_post_recv(side->qp, &wr, &bad), 0);
}

static inline struct ibv_send_wr *send_wr(struct side *side, struct ibv_send_wr *wr, struct ibv_sge *sge, uint64_t wr_id,
					  enum ibv_wr_opcode opcode, size_t at, uint32_t len)
{
	*sge = (struct ibv_sge){ (uintptr_t)side->buffer + at, len, side->mr->lkey };
	*wr = (struct ibv_send_wr){ .wr_id = wr_id, .sg_list = sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED };
	return wr;
}

static inline void post(struct side *side, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;
	SAME(ibv_post_send(side->qp, wr, &bad), 0);
}

static inline double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

enum { PATIENCE = 60 };

/* The next completion. */
static inline struct ibv_wc next(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	double until = now() + PATIENCE;
	for (;;) {
		int count = ibv_poll_cq(cq, 1, &wc);
		CHECK(count >= 0);
		if (count)
			return wc;
		CHECK(now() < until);
	}
}

/* The next completion, which is a success. */
static inline struct ibv_wc done(struct side *side, uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = next(side->cq);
	SAME(wc.status, IBV_WC_SUCCESS);
	SAME(wc.wr_id, wr_id);
	SAME(wc.opcode, opcode);
	SAME(wc.qp_num, side->qp->qp_num);
	return wc;
}

static inline void close_side(struct side *side)
{
	SAME(ibv_destroy_qp(side->qp), 0);
	if (side->srq)
		SAME(ibv_destroy_srq(side->srq), 0);
	SAME(ibv_destroy_cq(side->cq), 0);
	SAME(ibv_destroy_comp_channel(side->channel), 0);
	SAME(ibv_dereg_mr(side->mr), 0);
	SAME(ibv_dealloc_pd(side->pd), 0);
	SAME(ibv_close_device(side->context), 0);
	free(side->buffer);
}

/* Runs both sides in a process each; both have to end well. */
static inline int run(void (*body)(struct side *))
{
	int sockets[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	struct side side = { .socket = sockets[child == 0], .first = child != 0 };
	close(sockets[child != 0]);
	body(&side);
	if (child == 0)
		exit(0);
	close(side.socket);
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return 0;
}
