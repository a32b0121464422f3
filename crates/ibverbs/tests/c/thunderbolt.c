/* The rules of RDMA over Thunderbolt, one for each name: thunderbolt RULE. What the device does is checked here; what
 * lint says, by who runs this. Sources: [T] is Apple's technote TN3205, [U] are reports of users, [J] is MLX's JACCL. */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SAME(left, right)                                                                                           \
	do {                                                                                                        \
		long long l_ = (long long)(left), r_ = (long long)(right);                                          \
		if (l_ != r_) {                                                                                     \
			fprintf(stderr, "%s:%d: %s is %lld and not %lld (errno %d)\n", __FILE__, __LINE__, #left, l_, \
				r_, errno);                                                                         \
			exit(1);                                                                                    \
		}                                                                                                   \
	} while (0)
#define CHECK(condition) SAME(!!(condition), 1)

/* Error numbers of Darwin. */
enum { D_ENOMEM = 12, D_EBUSY = 16, D_EINVAL = 22, D_ETIMEDOUT = 60, D_ENODATA = 96, D_EOPNOTSUPP = 102 };
enum { FRAME = 4096, BYTES = 32 << 20, MAX_MESSAGE = 16773120, RIGHTS = IBV_ACCESS_LOCAL_WRITE };
#define GIB4 (1ULL << 32)

/* Lint refuses what it only tells otherwise. */
static int fails;

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *bytes;
};

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static struct ibv_context *open_device(int index)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list);
	SAME(count, 3);
	struct ibv_context *context = ibv_open_device(list[index]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

static struct ibv_qp_init_attr wish(const struct end *end)
{
	struct ibv_qp_init_attr init = {
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.cap = { .max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_UC,
	};
	return init;
}

static void *pages(size_t len)
{
	void *bytes = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(bytes != MAP_FAILED);
	return bytes;
}

/* A device with memory and a queue pair in INIT. */
static struct end make(int device, uint32_t depth)
{
	struct end end = { .context = open_device(device) };
	end.pd = ibv_alloc_pd(end.context);
	CHECK(end.pd);
	end.cq = ibv_create_cq(end.context, 64, NULL, NULL, 0);
	CHECK(end.cq);
	/* A boundary of 4 GiB in the middle is what one test is about, and not these. */
	do
		end.bytes = pages(BYTES);
	while ((uintptr_t)end.bytes / GIB4 != ((uintptr_t)end.bytes + BYTES - 1) / GIB4);
	end.mr = ibv_reg_mr(end.pd, end.bytes, BYTES, RIGHTS);
	CHECK(end.mr);
	struct ibv_qp_init_attr init = wish(&end);
	init.cap.max_send_wr = init.cap.max_recv_wr = depth;
	end.qp = ibv_create_qp(end.pd, &init);
	CHECK(end.qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	SAME(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	return end;
}

static union ibv_gid gid_of(const struct end *end, int index)
{
	union ibv_gid gid;
	SAME(ibv_query_gid(end->context, 1, index, &gid), 0);
	return gid;
}

static int to_rtr(struct end *end, uint32_t number, union ibv_gid gid, int own_index)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = number,
		.rq_psn = 7,
		.ah_attr = { .port_num = 1, .is_global = 1 },
	};
	attr.ah_attr.grh.hop_limit = 1;
	attr.ah_attr.grh.dgid = gid;
	attr.ah_attr.grh.sgid_index = (uint8_t)own_index;
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	return ibv_modify_qp(end->qp, &attr, mask);
}

static void to_rts(struct end *end)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .sq_psn = 7 };
	SAME(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
}

static void join(struct end *one, struct end *other)
{
	SAME(to_rtr(one, other->qp->qp_num, gid_of(other, 1), 1), 0);
	SAME(to_rtr(other, one->qp->qp_num, gid_of(one, 1), 1), 0);
	to_rts(one);
	to_rts(other);
}

static void make_two(struct end *one, struct end *other, uint32_t depth)
{
	*one = make(0, depth);
	*other = make(1, depth);
	join(one, other);
}

static int post_op(struct end *end, enum ibv_wr_opcode opcode, unsigned int flags, size_t at, uint32_t len, int sges)
{
	struct ibv_sge sge[2] = { { (uintptr_t)end->bytes + at, len, end->mr->lkey }, { (uintptr_t)end->bytes, 8, end->mr->lkey } };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = sge, .num_sge = sges, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED | flags };
	struct ibv_send_wr *bad = NULL;
	errno = 0;
	int result = ibv_post_send(end->qp, &wr, &bad);
	/* Posts return negative numbers [U]. */
	SAME(result ? -errno : 0, result);
	SAME(bad == (result ? &wr : NULL), 1);
	return result;
}

static int post_send(struct end *end, size_t at, uint32_t len)
{
	return post_op(end, IBV_WR_SEND, 0, at, len, 1);
}

static int post_recv(struct end *end, size_t at, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)end->bytes + at, len, end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
	return ibv_post_recv(end->qp, &wr, &bad);
}

static enum ibv_wc_status next(struct end *end)
{
	struct ibv_wc wc;
	double until = now() + 60;
	int count;
	while ((count = ibv_poll_cq(end->cq, 1, &wc)) == 0)
		CHECK(now() < until);
	SAME(count, 1);
	return wc.status;
}

static void nothing_completes(struct end *end)
{
	struct ibv_wc wc;
	for (int i = 0; i < 20000; i++)
		SAME(ibv_poll_cq(end->cq, 1, &wc), 0);
}

static void no_qp(const struct end *end, struct ibv_qp_init_attr init, int number)
{
	errno = 0;
	CHECK(!ibv_create_qp(end->pd, &init));
	SAME(errno, number);
}

/* [U]: RC is refused with 102. */
static void uc_only(void)
{
	struct end end = make(0, 32);
	struct ibv_qp_init_attr init = wish(&end);
	enum ibv_qp_type others[] = { IBV_QPT_RC, IBV_QPT_UD, IBV_QPT_RAW_PACKET };
	for (int i = 0; i < 3; i++) {
		init.qp_type = others[i];
		no_qp(&end, init, D_EOPNOTSUPP);
	}
	struct ibv_ah_attr attr = { .port_num = 1, .is_global = 1 };
	CHECK(!ibv_create_ah(end.pd, &attr));
	SAME(errno, D_EOPNOTSUPP);
}

static void own_receive_queue(void)
{
	struct end end = make(0, 32);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	CHECK(!ibv_create_srq(end.pd, &init));
	SAME(errno, D_EOPNOTSUPP);
}

/* [T]: no RDMA operations, no atomics. */
static void send_recv_only(void)
{
	struct end one, other;
	make_two(&one, &other, 32);
	SAME(post_op(&one, IBV_WR_RDMA_WRITE, 0, 0, 8, 1), -D_EINVAL);
	SAME(post_op(&one, IBV_WR_RDMA_READ, 0, 0, 8, 1), -D_EINVAL);
	SAME(post_op(&one, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 0, 8, 1), -D_EINVAL);
	SAME(post_op(&one, IBV_WR_ATOMIC_CMP_AND_SWP, 0, 0, 8, 1), -D_EINVAL);
}

/* [T]. */
static void no_immediate(void)
{
	struct end one, other;
	make_two(&one, &other, 32);
	SAME(post_op(&one, IBV_WR_SEND_WITH_IMM, 0, 0, 8, 1), -D_EINVAL);
}

/* [T], [J]. */
static void one_sge(void)
{
	struct end one, other;
	make_two(&one, &other, 32);
	struct ibv_qp_init_attr init = wish(&one);
	init.cap.max_send_sge = 2;
	no_qp(&one, init, D_EINVAL);
	SAME(post_op(&one, IBV_WR_SEND, 0, 0, 8, 2), -D_EINVAL);
	struct ibv_device_attr device;
	SAME(ibv_query_device(one.context, &device), 0);
	SAME(device.max_sge, 1);
}

/* [T], [J]. */
static void no_inline(void)
{
	struct end one, other;
	make_two(&one, &other, 32);
	struct ibv_qp_init_attr init = wish(&one);
	init.cap.max_inline_data = 1;
	no_qp(&one, init, D_EINVAL);
	SAME(post_op(&one, IBV_WR_SEND, IBV_SEND_INLINE, 0, 8, 1), -D_EINVAL);
}

/* [T]: 16,773,120 bytes, which are 4095 frames. */
static void max_message(void)
{
	struct end one, other;
	make_two(&one, &other, 4095);
	SAME(post_send(&one, 0, MAX_MESSAGE + 1), -D_EINVAL);
	memset(one.bytes, 0x5a, MAX_MESSAGE);
	SAME(post_recv(&other, 0, MAX_MESSAGE), 0);
	SAME(post_send(&one, 0, MAX_MESSAGE), 0);
	SAME(next(&other), IBV_WC_SUCCESS);
	SAME(next(&one), IBV_WC_SUCCESS);
	CHECK(!memcmp(one.bytes, other.bytes, MAX_MESSAGE));
	SAME(other.bytes[MAX_MESSAGE], 0);
}

/* [T]: at most 4095 requests. */
static void queue_depth_cap(void)
{
	struct end end = make(0, 4095);
	struct ibv_qp_init_attr init = wish(&end);
	init.cap.max_send_wr = 4096;
	no_qp(&end, init, D_EINVAL);
}

/* [T]: depth counts frames, and is to be queried; [U]: posts fail with -12 before as many were posted as were asked for. */
static void frame_depth(void)
{
	struct end one, other;
	make_two(&one, &other, 32);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	SAME(ibv_query_qp(one.qp, &attr, IBV_QP_CAP, &init), 0);
	uint32_t frames = attr.cap.max_send_wr, posted = 0;
	SAME(frames, 512);
	/* As many as JACCL has in flight: two of 128 frames. */
	while (post_send(&one, 0, 128 * FRAME) == 0)
		posted++;
	SAME(posted, frames / 128);
	CHECK(posted < 32);
	SAME(post_send(&one, 0, 1), -D_ENOMEM);
	/* What completes makes room. */
	SAME(post_recv(&other, 0, 128 * FRAME), 0);
	SAME(next(&one), IBV_WC_SUCCESS);
	SAME(post_send(&one, 0, 127 * FRAME + 1), 0);
	SAME(post_send(&one, 0, 1), -D_ENOMEM);
}

/* [T]: equally many frames; [U]: LOC_LEN_ERR. */
static void equal_frames(void)
{
	struct end one, other;
	make_two(&one, &other, 32);
	SAME(post_recv(&other, 0, 2 * FRAME), 0);
	SAME(post_send(&one, 0, FRAME + 1), 0);
	SAME(next(&other), IBV_WC_SUCCESS);
	SAME(next(&one), IBV_WC_SUCCESS);
	SAME(post_recv(&other, 0, 2 * FRAME), 0);
	SAME(post_send(&one, 0, FRAME), 0);
	SAME(next(&other), IBV_WC_LOC_LEN_ERR);
	SAME(next(&one), IBV_WC_SUCCESS);
}

/* [T], [U]: ten, then NULL and EBUSY. */
static void qp_limit(void)
{
	struct end end = make(0, 32);
	for (int i = 1; i < 10; i++) {
		struct ibv_qp_init_attr init = wish(&end);
		CHECK(ibv_create_qp(end.pd, &init));
	}
	no_qp(&end, wish(&end), D_EBUSY);
	/* Other devices have their own. */
	make(1, 32);
}

/* [U]: a hundred, then NULL. */
static void mr_limit(void)
{
	struct end end = make(0, 32);
	for (int i = 1; i < 100; i++)
		CHECK(ibv_reg_mr(end.pd, end.bytes, FRAME, RIGHTS));
	CHECK(!ibv_reg_mr(end.pd, end.bytes, FRAME, RIGHTS));
	SAME(errno, D_ENOMEM);
	SAME(ibv_dereg_mr(end.mr), 0);
	CHECK(ibv_reg_mr(end.pd, end.bytes, FRAME, RIGHTS));
}

/* [U]: RTR fails with 96 once the protection domains are used up. */
static void pd_limit(void)
{
	struct end one = make(0, 32), other = make(1, 32);
	struct ibv_pd *pds[20];
	for (int i = 0; i < 20; i++) {
		pds[i] = ibv_alloc_pd(one.context);
		CHECK(pds[i]);
	}
	SAME(to_rtr(&one, other.qp->qp_num, gid_of(&other, 1), 1), D_ENODATA);
	SAME(ibv_dealloc_pd(pds[0]), 0);
	join(&one, &other);
}

/* [U]: refused for some; here under --strict. */
static void page_aligned(void)
{
	struct end end = make(0, 32);
	struct ibv_mr *mr = ibv_reg_mr(end.pd, end.bytes + 64, FRAME, RIGHTS);
	SAME(mr != NULL, !fails && !getenv("FULMEN_VERBS_STRICT"));
	CHECK(mr || errno == D_EINVAL);
}

/* Two pieces of memory exactly 4 GiB apart, of which the higher one has a boundary in its middle. */
static void around_a_boundary(char **low, char **high, size_t half)
{
	for (uintptr_t boundary = 64 * GIB4; boundary < 4096 * GIB4; boundary += GIB4) {
		int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
		void *wanted[2] = { (void *)(boundary - GIB4), (void *)(boundary - half) };
		size_t lens[2] = { half, 2 * half };
		void *got[2];
		for (int i = 0; i < 2; i++)
			got[i] = mmap(wanted[i], lens[i], PROT_READ | PROT_WRITE, flags, -1, 0);
		if (got[0] == wanted[0] && got[1] == wanted[1]) {
			*low = got[0];
			*high = got[1];
			return;
		}
		for (int i = 0; i < 2; i++)
			if (got[i] != MAP_FAILED)
				munmap(got[i], lens[i]);
	}
	CHECK(!"there is memory around a multiple of 4 GiB");
}

static int all(const char *bytes, size_t len, char value)
{
	for (size_t i = 0; i < len; i++)
		if (bytes[i] != value)
			return 0;
	return 1;
}

/* [U]: the driver keeps 32 bits of an address: data lands exactly 4 GiB low. */
static void four_gib(void)
{
	enum { HALF = 16 * FRAME };
	struct end one, other;
	make_two(&one, &other, 32);
	char *low, *high;
	around_a_boundary(&low, &high, HALF);
	struct ibv_mr *crossing = ibv_reg_mr(other.pd, high, 2 * HALF, RIGHTS);
	if (fails || (getenv("FULMEN_VERBS_ALIASING") && !strcmp(getenv("FULMEN_VERBS_ALIASING"), "refuse"))) {
		CHECK(!crossing);
		SAME(errno, D_EINVAL);
		/* In pieces it can be done. */
		CHECK(ibv_reg_mr(other.pd, high, HALF, RIGHTS));
		CHECK(ibv_reg_mr(other.pd, high + HALF, HALF, RIGHTS));
		return;
	}
	CHECK(crossing);
	other.bytes = high;
	other.mr = crossing;
	memset(high, 1, 2 * HALF);
	memset(low, 2, HALF);
	memset(one.bytes, 3, 2 * FRAME);
	/* The wrong address is nobody's registration: the bytes behind the boundary are lost, and nothing else is touched. */
	SAME(post_recv(&other, HALF - FRAME, 2 * FRAME), 0);
	SAME(post_send(&one, 0, 2 * FRAME), 0);
	SAME(next(&other), IBV_WC_SUCCESS);
	SAME(next(&one), IBV_WC_SUCCESS);
	CHECK(all(high, HALF - FRAME, 1) && all(high + HALF - FRAME, FRAME, 3) && all(high + HALF, HALF, 1));
	CHECK(all(low, HALF, 2));
	/* Now it is a registration's: a RECV writes there, with success. */
	CHECK(ibv_reg_mr(other.pd, low, HALF, RIGHTS));
	SAME(post_recv(&other, HALF - FRAME, 2 * FRAME), 0);
	SAME(post_send(&one, 0, 2 * FRAME), 0);
	SAME(next(&other), IBV_WC_SUCCESS);
	SAME(next(&one), IBV_WC_SUCCESS);
	CHECK(all(high + HALF, HALF, 1));
	CHECK(all(low, FRAME, 3) && all(low + FRAME, HALF - FRAME, 2));
	/* And a SEND reads there. */
	SAME(post_recv(&one, 4 * FRAME, 2 * FRAME), 0);
	SAME(post_send(&other, HALF + FRAME, 2 * FRAME), 0);
	SAME(next(&one), IBV_WC_SUCCESS);
	SAME(next(&other), IBV_WC_SUCCESS);
	CHECK(all(one.bytes + 4 * FRAME, 2 * FRAME, 2));
}

/* [T]: LOCAL_WRITE; [J]: with REMOTE_READ and REMOTE_WRITE. */
static void access_flags(void)
{
	struct end end = make(0, 32);
	CHECK(ibv_reg_mr(end.pd, end.bytes, FRAME, RIGHTS | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE));
	CHECK(!ibv_reg_mr(end.pd, end.bytes, FRAME, 0));
	SAME(errno, D_EINVAL);
	CHECK(!ibv_reg_mr(end.pd, end.bytes, FRAME, RIGHTS | IBV_ACCESS_REMOTE_ATOMIC));
	SAME(errno, D_EINVAL);
}

/* [T], [U]: the table, and the errors of RTR: 22 without a usable GID, 60 for a wrong one. */
static void gid_index(void)
{
	struct end one = make(0, 32), other = make(1, 32);
	struct ibv_port_attr port;
	SAME(ibv_query_port(one.context, 1, &port), 0);
	SAME(port.gid_tbl_len, 2);
	union ibv_gid first = gid_of(&other, 0), second = gid_of(&other, 1), zero = { 0 };
	CHECK(first.raw[0] == 0xfe && first.raw[1] == 0x80 && first.raw[11] == 0xff && first.raw[12] == 0xfe);
	CHECK(!memcmp(second.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12));
	uint32_t number = other.qp->qp_num;
	SAME(to_rtr(&one, number, zero, 1), D_EINVAL);
	SAME(to_rtr(&one, number, second, 2), D_EINVAL);
	union ibv_gid nobody = second;
	nobody.raw[14] = 0xbf;
	SAME(to_rtr(&one, number, nobody, 1), D_ETIMEDOUT);
	nobody.raw[0] = 0x20;
	SAME(to_rtr(&one, number, nobody, 1), D_ETIMEDOUT);
	/* The first side told the GID of index 1, and goes by 0. */
	SAME(to_rtr(&one, number, second, 0), 0);
	SAME(to_rtr(&other, one.qp->qp_num, gid_of(&one, 1), 1), D_ETIMEDOUT);
	SAME(to_rtr(&other, one.qp->qp_num, gid_of(&one, 0), 1), 0);
}

/* [U]: 16 over what is left of an earlier connection. */
static void stale_peer(void)
{
	struct end one, other, late = make(2, 32);
	make_two(&one, &other, 32);
	SAME(to_rtr(&late, other.qp->qp_num, gid_of(&other, 1), 1), D_EBUSY);
}

/* [T]: nobody acknowledges. */
static void completion_is_not_delivery(void)
{
	struct end one, other;
	make_two(&one, &other, 32);
	/* Whoever was answered may go. */
	SAME(post_recv(&other, 0, 8), 0);
	SAME(post_send(&one, 0, 8), 0);
	SAME(next(&one), IBV_WC_SUCCESS);
	SAME(next(&other), IBV_WC_SUCCESS);
	SAME(post_recv(&one, 0, 8), 0);
	SAME(post_send(&other, 0, 8), 0);
	SAME(next(&other), IBV_WC_SUCCESS);
	SAME(next(&one), IBV_WC_SUCCESS);
	SAME(ibv_destroy_qp(one.qp), 0);
	/* The other side was not. */
	SAME(ibv_destroy_qp(other.qp), fails ? D_EBUSY : 0);
}

/* [U]: destroy from RTS. */
static void destroy_before_err(void)
{
	struct end one, other;
	make_two(&one, &other, 32);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	SAME(ibv_modify_qp(one.qp, &attr, IBV_QP_STATE), fails ? D_EINVAL : 0);
	SAME(ibv_destroy_qp(one.qp), 0);
	SAME(ibv_destroy_qp(other.qp), 0);
}

/* [U]: a dead peer gives no completion at all. */
static void poll_forever(void)
{
	int down[2], up[2];
	CHECK(!pipe(down) && !pipe(up));
	pid_t child = fork();
	CHECK(child >= 0);
	struct end end = make(0, 32);
	struct {
		uint32_t number;
		union ibv_gid gid;
	} own = { end.qp->qp_num, gid_of(&end, 1) }, peer;
	CHECK(write(child ? down[1] : up[1], &own, sizeof own) == sizeof own);
	CHECK(read(child ? up[0] : down[0], &peer, sizeof peer) == sizeof peer);
	SAME(to_rtr(&end, peer.number, peer.gid, 1), 0);
	to_rts(&end);
	char ready = 1;
	if (!child) {
		CHECK(write(up[1], &ready, 1) == 1);
		for (;;)
			pause();
	}
	CHECK(read(up[0], &ready, 1) == 1);
	SAME(kill(child, SIGKILL), 0);
	SAME(waitpid(child, NULL, 0), child);
	SAME(post_recv(&end, 0, 8), 0);
	SAME(post_send(&end, 0, 8), 0);
	struct ibv_wc wc;
	int count = 0;
	for (double until = now() + (fails ? 60 : 12); now() < until && !count; usleep(100))
		count = ibv_poll_cq(end.cq, 1, &wc);
	SAME(count, fails ? -1 : 0);
}

/* [T]: flow control holds a SEND until its RECV is posted. */
static void flow_control(void)
{
	struct end one, other;
	make_two(&one, &other, 32);
	SAME(post_send(&one, 0, 2 * FRAME), 0);
	nothing_completes(&one);
	SAME(post_recv(&other, 0, 2 * FRAME), 0);
	SAME(next(&one), IBV_WC_SUCCESS);
	SAME(next(&other), IBV_WC_SUCCESS);
}

/* [T], [U]: what devices and ports say of themselves. */
static void query(void)
{
	struct ibv_context *context = open_device(0);
	int strict = getenv("FULMEN_VERBS_STRICT") != NULL;
	CHECK(!strncmp(ibv_get_device_name(context->device), "rdma_en", 7));
	struct ibv_device_attr device;
	SAME(ibv_query_device(context, &device), 0);
	SAME(device.max_qp, strict ? 3 : 10);
	SAME(device.max_cq, strict ? 6 : 20);
	SAME(device.max_pd, strict ? 6 : 20);
	SAME(device.max_mr, 100);
	SAME(device.max_sge, 1);
	SAME(device.max_qp_wr, 4095);
	SAME(device.max_qp_rd_atom, 0);
	SAME(device.atomic_cap, IBV_ATOMIC_NONE);
	SAME(device.max_srq, 0);
	SAME(device.max_ah, 0);
	SAME(device.phys_port_cnt, 1);
	struct ibv_port_attr port;
	SAME(ibv_query_port(context, 1, &port), 0);
	SAME(port.link_layer, 100);
	SAME(port.active_mtu, IBV_MTU_4096);
	SAME(port.max_msg_sz, MAX_MESSAGE);
	SAME(port.lid, 0);
	SAME(context->device->transport_type, 100);
}

/* [U]: one host has 3, 6 and 6; the system grants less than what was asked for [T]. */
static void strict(void)
{
	struct end end = make(0, 4095);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	SAME(ibv_query_qp(end.qp, &attr, IBV_QP_CAP, &init), 0);
	SAME(attr.cap.max_send_wr, 1024);
	for (int i = 1; i < 3; i++) {
		init = wish(&end);
		CHECK(ibv_create_qp(end.pd, &init));
	}
	no_qp(&end, wish(&end), D_EBUSY);
	for (int i = 1; i < 6; i++)
		CHECK(ibv_create_cq(end.context, 1, NULL, NULL, 0));
	CHECK(!ibv_create_cq(end.context, 1, NULL, NULL, 0));
	SAME(errno, D_ENOMEM);
	struct end other = make(1, 32);
	for (int i = 1; i < 7; i++)
		CHECK(ibv_alloc_pd(end.context));
	SAME(to_rtr(&end, other.qp->qp_num, gid_of(&other, 1), 1), D_ENODATA);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} rules[] = {
		{ "uc-only", uc_only },
		{ "own-receive-queue", own_receive_queue },
		{ "send-recv-only", send_recv_only },
		{ "no-immediate", no_immediate },
		{ "one-sge", one_sge },
		{ "no-inline", no_inline },
		{ "max-message", max_message },
		{ "queue-depth-cap", queue_depth_cap },
		{ "frame-depth", frame_depth },
		{ "equal-frames", equal_frames },
		{ "qp-limit", qp_limit },
		{ "mr-limit", mr_limit },
		{ "pd-limit", pd_limit },
		{ "page-aligned", page_aligned },
		{ "four-gib", four_gib },
		{ "access-flags", access_flags },
		{ "gid-index", gid_index },
		{ "stale-peer", stale_peer },
		{ "completion-is-not-delivery", completion_is_not_delivery },
		{ "destroy-before-err", destroy_before_err },
		{ "poll-forever", poll_forever },
		{ "flow-control", flow_control },
		{ "query", query },
		{ "strict", strict },
	};
	const char *lint = getenv("FULMEN_LINT");
	fails = lint && !strcmp(lint, "fail");
	for (size_t i = 0; argc == 2 && i < sizeof rules / sizeof *rules; i++) {
		if (!strcmp(rules[i].name, argv[1])) {
			rules[i].run();
			return 0;
		}
	}
	fprintf(stderr, "usage: thunderbolt RULE\n");
	return 2;
}
