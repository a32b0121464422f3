/* What the parts of the fake library share: see fakeverbs.c for what it is and how it is configured. */
#ifndef FAKEVERBS_H
#define FAKEVERBS_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

#define DEVICES 8
#define PORTS 4
#define GIDS 64
#define RULES 64
#define PIECES 32

/* Transport and link layer of Apple's devices. */
#define THUNDERBOLT 100

enum call {
	CALL_GET_DEVICE_LIST, CALL_OPEN_DEVICE, CALL_CLOSE_DEVICE, CALL_QUERY_DEVICE, CALL_QUERY_PORT, CALL_QUERY_GID,
	CALL_QUERY_GID_TABLE, CALL_QUERY_PKEY, CALL_ALLOC_PD, CALL_DEALLOC_PD, CALL_REG_MR, CALL_REG_DMABUF_MR,
	CALL_DEREG_MR, CALL_CREATE_COMP_CHANNEL, CALL_DESTROY_COMP_CHANNEL, CALL_CREATE_CQ, CALL_DESTROY_CQ,
	CALL_REQ_NOTIFY_CQ, CALL_GET_CQ_EVENT, CALL_CREATE_QP, CALL_MODIFY_QP, CALL_QUERY_QP, CALL_DESTROY_QP,
	CALL_POST_SEND, CALL_POST_RECV, CALL_POLL_CQ, CALLS
};

/* What is made and given back; devices have limits on how many of each live. */
enum kind { KIND_PD, KIND_MR, KIND_CQ, KIND_QP, KIND_CHANNEL, KINDS };

enum action { ACT_FAIL, ACT_HANG, ACT_CRASH, ACT_ABORT, ACT_SLEEP, ACT_GONE };

/* What a call is about, for the conditions of rules. */
struct about {
	int type;      /* of a queue pair, or 0 */
	int state;     /* to which a queue pair goes, or -1 */
	int port;      /* or 0 */
	int access;    /* of a registration, or -1 */
	uint64_t len;  /* of a registration */
	enum kind kind;
};

struct rule {
	enum call call;
	enum action action;
	long value;
	long after, times, live;
	int type, state, port;
	long access, access_is;
	uint64_t len;
	long seen, done;
};

struct gid {
	int index;
	union ibv_gid raw;
	int type, ifindex;
	long after, until, ms;
};

struct port {
	struct ibv_port_attr attr;
	enum ibv_port_state state;
	long after, queries, reads;
	struct gid gids[GIDS];
	int gid_count;
};

struct device {
	struct ibv_device base;
	__be64 guid;
	struct ibv_device_attr attr;
	int max_inline, granted_wr;
	bool dmabuf, shows_fd;
	int shown_fd;
	uint64_t boundary;
	int busy[KINDS];
	struct port ports[PORTS];
	int port_count;
	struct rule rules[RULES];
	int rule_count;
	long live[KINDS];
};

struct config {
	struct device devices[DEVICES];
	int device_count;
	/* Rules before the first device. */
	struct device library;
	char log[256];
};

/* Whether a name is defined as 1 decides which argument is the second. */
#define SECOND(first, second, ...) second
#define SHIFT_1 0, __attribute__((visibility("hidden")))
#define CHOOSE(arguments) SECOND(arguments, __attribute__((visibility("default"))), 0)
#define PASTE(value) CHOOSE(SHIFT_##value)
#define EXPAND(value) PASTE(value)
#define EXPORT(name) EXPAND(WITHOUT_##name)

/* config.c */
extern const char *const call_names[CALLS];
struct config *config(void);
long milliseconds(void);

/* faults.c */
extern pthread_mutex_t lock;
bool fault(struct device *device, enum call call, const struct about *about, long *value);
void note(const struct device *device, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* fakeverbs.c */
struct device *device_of(struct ibv_context *context);
struct context *whole(struct ibv_context *context);
bool take_event(int reader, void *event, size_t size);
void forget_events(int reader, int writer, size_t size, const void *about);
bool null_fault(struct device *device, enum call call, struct about about);
struct about plain(enum kind kind);
const struct gid *gid_at(const struct port *port, int index);

/* datapath.c: flush, empty and run_all are called with the lock held; the others take it. */
struct cq {
	struct ibv_cq base;
	struct ibv_wc *ring;
	int head, filled;
	bool overrun, armed, solicited;
	/* Events that were handed out: destroying waits until they were acknowledged. */
	unsigned int told, failed;
};

/* A context has a pipe through which its asynchronous events go. */
struct context {
	int writer;
	struct context *next;
	struct verbs_context extended;
};

extern struct context *contexts;

/* A channel is a pipe through which the addresses of queues go. */
struct channel {
	struct ibv_comp_channel base;
	int reader, writer;
};

struct mr {
	struct ibv_mr base;
	int access;
	void *mapped;
	struct mr *next;
};

struct request {
	uint64_t wr_id, remote, compare_add, swap;
	uint32_t rkey, imm;
	int opcode, flags, pieces;
	struct ibv_sge sge[PIECES];
	uint8_t *carried;
	uint32_t carried_len;
	/* When it first could not go on, in milliseconds; 0 before. */
	long since;
	/* Posted in state SQD: it waits for RTS. */
	bool late;
};

struct queue {
	struct request *ring;
	int head, filled, size;
};

struct qp {
	struct ibv_qp base;
	struct ibv_qp_attr attr;
	struct ibv_qp_cap cap;
	int sig_all;
	struct queue send, recv;
	struct qp *next;
};

extern struct qp *qps;
extern struct mr *mrs;
int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int poll_cq(struct ibv_cq *cq, int entries, struct ibv_wc *wc);
int req_notify_cq(struct ibv_cq *cq, int solicited_only);
void flush(struct qp *qp);
void empty(struct queue *queue);
void run_all(void);

#endif
