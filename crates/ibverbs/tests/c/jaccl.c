/* The calls of MLX's JACCL in its order, over a mesh or a ring: what it opens, makes, registers and exchanges, how it posts
 * full frames with two buffers in flight, and that it never looks at a completion's status. Own code; the calls are facts.
 *
 * Environment, as JACCL's: MLX_RANK, MLX_IBV_DEVICES (a file with an N x N array of device names or null),
 * MLX_JACCL_COORDINATOR (ip:port of rank 0), MLX_JACCL_RING. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SEND = 1, RECV = 2, DEPTH = 32, SIZES = 8, BUFFERS = 2, FRAME = 4096, MOST = 8 };

static int rank, size, is_ring;

static void fail(const char *what)
{
	fprintf(stderr, "[jaccl %d] %s (errno %d)\n", rank, what, errno);
	exit(1);
}

/* --- the side channel: rank 0 gathers and tells all ------------------------------------------------------------------- */

static int sockets[MOST];

static void all_bytes(int socket, char *bytes, size_t len, int out)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = out ? send(socket, bytes + done, len - done, 0) : recv(socket, bytes + done, len - done, 0);
		if (n <= 0)
			fail("the side channel broke");
		done += (size_t)n;
	}
}

static void gather(const void *own, void *all, size_t len)
{
	char *bytes = all;
	if (rank == 0) {
		memcpy(bytes, own, len);
		for (int i = 1; i < size; i++)
			all_bytes(sockets[i], bytes + i * len, len, 0);
		for (int i = 1; i < size; i++)
			all_bytes(sockets[i], bytes, size * len, 1);
	} else {
		all_bytes(sockets[0], (char *)own, len, 1);
		all_bytes(sockets[0], bytes, size * len, 0);
	}
}

/* Twice, as JACCL does. */
static void barrier(void)
{
	int zero = 0, all[MOST];
	gather(&zero, all, sizeof zero);
	gather(&zero, all, sizeof zero);
}

static void meet(const char *coordinator)
{
	char host[64];
	int port = 0, yes = 1;
	if (sscanf(coordinator, "%63[^:]:%d", host, &port) != 2)
		fail("MLX_JACCL_COORDINATOR is no ip:port");
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	inet_pton(AF_INET, host, &address.sin_addr);
	if (rank == 0) {
		int listener = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
		if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, MOST))
			fail("cannot listen");
		for (int i = 1; i < size; i++) {
			int peer, other = accept(listener, NULL, NULL);
			all_bytes(other, (char *)&peer, sizeof peer, 0);
			sockets[peer] = other;
		}
		close(listener);
		return;
	}
	for (int attempt = 0;; attempt++) {
		sockets[0] = socket(AF_INET, SOCK_STREAM, 0);
		if (!connect(sockets[0], (struct sockaddr *)&address, sizeof address))
			break;
		close(sockets[0]);
		if (attempt == 600)
			fail("nobody coordinates");
		usleep(50000);
	}
	all_bytes(sockets[0], (char *)&rank, sizeof rank, 1);
}

/* --- connections ------------------------------------------------------------------------------------------------------- */

struct destination {
	int lid, number, psn;
	union ibv_gid gid;
};

struct connection {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct destination own;
};

static void open_connection(struct connection *c, const char *name)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	for (int i = 0; i < count && !c->context; i++)
		if (!strcmp(name, ibv_get_device_name(list[i])))
			c->context = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	if (!c->context)
		fail("could not open the device");
}

static void make(struct connection *c)
{
	c->pd = ibv_alloc_pd(c->context);
	c->cq = c->pd ? ibv_create_cq(c->context, 2 * DEPTH, NULL, NULL, 0) : NULL;
	if (!c->cq)
		fail("no domain or completion queue");
	struct ibv_qp_init_attr init = {
		.qp_context = c->context,
		.send_cq = c->cq,
		.recv_cq = c->cq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_UC,
	};
	c->qp = ibv_create_qp(c->pd, &init);
	if (!c->qp)
		fail("couldn't create queue pair");
}

static void to_init(struct connection *c)
{
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = (unsigned)rights };
	if (ibv_modify_qp(c->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("INIT failed");
}

/* The first GID that holds an IPv4 address. */
static void ask(struct connection *c)
{
	struct ibv_port_attr port;
	int found = 0;
	ibv_query_port(c->context, 1, &port);
	for (int i = 0; i < port.gid_tbl_len && !found; i++) {
		static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
		found = !ibv_query_gid(c->context, 1, i, &c->own.gid) && !memcmp(c->own.gid.raw, mapped, sizeof mapped);
	}
	if (!found)
		fail("no IPv4-mapped GID for this device");
	c->own.lid = port.lid;
	c->own.number = (int)c->qp->qp_num;
	c->own.psn = 7;
}

/* The index of the own GID is 1, whatever was found. */
static void to_work(struct connection *c, const struct destination *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.rq_psn = (uint32_t)peer->psn,
		.dest_qp_num = (uint32_t)peer->number,
		.ah_attr = { .dlid = (uint16_t)peer->lid, .port_num = 1 },
	};
	if (peer->gid.global.interface_id) {
		attr.ah_attr.is_global = 1;
		attr.ah_attr.grh.hop_limit = 1;
		attr.ah_attr.grh.dgid = peer->gid;
		attr.ah_attr.grh.sgid_index = 1;
	}
	if (ibv_modify_qp(c->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN))
		fail("RTR failed");
	struct ibv_qp_attr send = { .qp_state = IBV_QPS_RTS, .sq_psn = (uint32_t)c->own.psn };
	if (ibv_modify_qp(c->qp, &send, IBV_QP_STATE | IBV_QP_SQ_PSN))
		fail("RTS failed");
}

/* --- buffers: memory of posix_memalign, registered once for each domain that uses it ----------------------------------- */

struct buffer {
	char *data;
	uint32_t len;
	struct ibv_mr *mrs[MOST];
};

static int registrations;

static void allocate(struct buffer *b, int k)
{
	b->len = FRAME << k;
	/* JACCL takes memory where it comes, and so one run in thousands registers a buffer with a boundary of 4 GiB in it and
	 * sums wrongly, as on the hardware. That is not what is asked here: such memory is left where it lies. */
	do
		if (posix_memalign((void **)&b->data, (size_t)sysconf(_SC_PAGESIZE), b->len))
			fail("no memory");
	while (((uintptr_t)b->data ^ ((uintptr_t)b->data + b->len - 1)) >> 32);
}

static void enrol(struct buffer *b, int slot, struct connection *c)
{
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	b->mrs[slot] = ibv_reg_mr(c->pd, b->data, b->len, rights);
	if (!b->mrs[slot])
		fail("register memory region failed");
	registrations++;
}

static void forget(struct buffer *b)
{
	for (int i = 0; i < MOST; i++)
		if (b->mrs[i])
			ibv_dereg_mr(b->mrs[i]);
	free(b->data);
}

static void post(struct connection *c, struct buffer *b, int slot, int work, int buff, int who)
{
	struct ibv_sge sge = { (uintptr_t)b->data, b->len, b->mrs[slot]->lkey };
	uint64_t id = (uint64_t)(work << 16 | buff << 8 | who);
	int status;
	if (work == SEND) {
		struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
		status = ibv_post_send(c->qp, &wr, &bad);
	} else {
		struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
		status = ibv_post_recv(c->qp, &wr, &bad);
	}
	if (status) {
		fprintf(stderr, "[jaccl %d] posting failed with error code %d\n", rank, status);
		exit(1);
	}
}

/* The largest buffer that the message fills. */
static int class_of(int64_t bytes)
{
	int k = SIZES - 1;
	while (k > 0 && bytes < (int64_t)FRAME << k)
		k--;
	return k;
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static void patience(double *since, int progressed)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	double now = (double)time.tv_sec;
	if (progressed || *since == 0)
		*since = now;
	if (now - *since > 120)
		fail("no progress for two minutes");
}

/* The buffers of a ring, by direction: 0 goes right and comes from the left, 1 the other way. */
static struct buffer ring_send[SIZES][BUFFERS][2], ring_recv[SIZES][BUFFERS][2];

static void make_ring_buffers(struct connection *left, struct connection *right)
{
	for (int k = 0; k < SIZES; k++)
		for (int b = 0; b < BUFFERS; b++)
			for (int d = 0; d < 2; d++) {
				allocate(&ring_send[k][b][d], k);
				allocate(&ring_recv[k][b][d], k);
			}
	for (int k = 0; k < SIZES; k++)
		for (int b = 0; b < BUFFERS; b++)
			for (int d = 0; d < 2; d++) {
				enrol(&ring_send[k][b][d], 0, d ? left : right);
				enrol(&ring_recv[k][b][d], 0, d ? right : left);
			}
}

/* --- mesh -------------------------------------------------------------------------------------------------------------- */

/* By peer; the own one is empty. Buffer [k][i][own rank] is sent to all, the others are received into. */
static struct connection mesh[MOST];
static struct buffer mesh_buffers[SIZES][BUFFERS][MOST];

static int poll_mesh(int most, struct ibv_wc *wc)
{
	int done = 0;
	for (int i = 0; i < size && done < most; i++)
		if (i != rank)
			done += ibv_poll_cq(mesh[i].cq, most - done, wc + done);
	return done;
}

static void mesh_recv(int k, int buff, int from)
{
	post(&mesh[from], &mesh_buffers[k][buff][from], from, RECV, buff, from);
}

static void mesh_all(int k, int buff, int work)
{
	for (int i = 0; i < size; i++) {
		if (i == rank)
			continue;
		if (work == RECV)
			mesh_recv(k, buff, i);
		else
			post(&mesh[i], &mesh_buffers[k][buff][rank], i, SEND, buff, i);
	}
}

/* Each rank's elements, summed in place as they arrive, but not before the own ones were copied out to be sent. */
static void mesh_sum(const float *in, float *out, int64_t count)
{
	int k = class_of(count * (int64_t)sizeof *in), peers = size - 1, in_flight = 0, buff = 0, sent[BUFFERS] = { 0 };
	int64_t n = ((int64_t)FRAME << k) / (int64_t)sizeof *in, offset = 0, came[MOST] = { 0 }, taken[MOST] = { 0 };
	double since = 0;
	memcpy(out, in, (size_t)count * sizeof *in);
	for (; offset < count && buff < BUFFERS; buff++, offset += n) {
		mesh_all(k, buff, RECV);
		memcpy(mesh_buffers[k][buff][rank].data, out + offset, (size_t)least(n, count - offset) * sizeof *in);
		mesh_all(k, buff, SEND);
		in_flight += 2 * peers;
	}
	while (in_flight > 0) {
		struct ibv_wc wc[2 * BUFFERS * MOST];
		int found = poll_mesh(2 * BUFFERS * MOST, wc);
		patience(&since, found);
		for (int i = 0; i < found; i++) {
			int work = (int)(wc[i].wr_id >> 16), b = (int)(wc[i].wr_id >> 8 & 0xff), who = (int)(wc[i].wr_id & 0xff);
			in_flight--;
			if (work == RECV) {
				came[who]++;
			} else if (offset < count && ++sent[b] == peers) {
				memcpy(mesh_buffers[k][b][rank].data, out + offset, (size_t)least(n, count - offset) * sizeof *in);
				mesh_all(k, b, SEND);
				sent[b] = 0;
				in_flight += peers;
				offset += n;
			}
		}
		for (int who = 0; who < size; who++)
			for (; taken[who] < came[who] && taken[who] * n < offset; taken[who]++) {
				int b = (int)(taken[who] % BUFFERS);
				const float *from = (const float *)(const void *)mesh_buffers[k][b][who].data;
				float *to = out + taken[who] * n;
				for (int64_t i = 0; i < least(n, count - taken[who] * n); i++)
					to[i] += from[i];
				if ((taken[who] + BUFFERS) * n < count) {
					mesh_recv(k, b, who);
					in_flight++;
				}
			}
	}
}

static void mesh_gather(const char *in, char *out, int64_t bytes)
{
	int k = class_of(bytes), peers = size - 1, in_flight = 0, buff = 0, sent[BUFFERS] = { 0 };
	int64_t n = (int64_t)FRAME << k, offset = 0, written[MOST] = { 0 };
	double since = 0;
	memcpy(out + rank * bytes, in, (size_t)bytes);
	for (; offset < bytes && buff < BUFFERS; buff++, offset += n) {
		mesh_all(k, buff, RECV);
		memcpy(mesh_buffers[k][buff][rank].data, in + offset, (size_t)least(n, bytes - offset));
		mesh_all(k, buff, SEND);
		in_flight += 2 * peers;
	}
	while (in_flight > 0) {
		struct ibv_wc wc[2 * BUFFERS * MOST];
		int found = poll_mesh(2 * BUFFERS * MOST, wc);
		patience(&since, found);
		for (int i = 0; i < found; i++) {
			int work = (int)(wc[i].wr_id >> 16), b = (int)(wc[i].wr_id >> 8 & 0xff), who = (int)(wc[i].wr_id & 0xff);
			in_flight--;
			if (work == RECV) {
				int64_t at = written[who];
				memcpy(out + who * bytes + at, mesh_buffers[k][b][who].data, (size_t)least(n, bytes - at));
				written[who] += n;
				if (written[who] + n * (BUFFERS - 1) < bytes) {
					mesh_recv(k, b, who);
					in_flight++;
				}
			} else if (offset < bytes && ++sent[b] == peers) {
				memcpy(mesh_buffers[k][b][rank].data, in + offset, (size_t)least(n, bytes - offset));
				mesh_all(k, b, SEND);
				sent[b] = 0;
				in_flight += peers;
				offset += n;
			}
		}
	}
}

static void start_mesh(char names[MOST][MOST][32])
{
	for (int i = 0; i < size; i++)
		if (i != rank)
			open_connection(&mesh[i], names[rank][i]);
	for (int i = 0; i < size; i++)
		if (i != rank)
			make(&mesh[i]);
	for (int k = 0; k < SIZES; k++)
		for (int b = 0; b < BUFFERS; b++)
			for (int i = 0; i < size; i++)
				allocate(&mesh_buffers[k][b][i], k);
	for (int k = 0; k < SIZES; k++)
		for (int b = 0; b < BUFFERS; b++)
			for (int i = 0; i < size; i++)
				for (int j = 0; j < size; j++)
					if (j != rank && (i == rank || i == j))
						enrol(&mesh_buffers[k][b][i], j, &mesh[j]);
	/* A mesh keeps the buffers of a ring beside, for long sums. */
	make_ring_buffers(&mesh[(rank + size - 1) % size], &mesh[(rank + 1) % size]);
	struct destination own[MOST] = { 0 }, all[MOST][MOST];
	for (int i = 0; i < size; i++)
		if (i != rank)
			to_init(&mesh[i]);
	for (int i = 0; i < size; i++) {
		if (i != rank)
			ask(&mesh[i]);
		own[i] = mesh[i].own;
	}
	gather(own, all, sizeof own);
	for (int i = 0; i < size; i++)
		if (i != rank)
			to_work(&mesh[i], &all[i][rank]);
}

/* --- ring: one wire to the left and one to the right -------------------------------------------------------------------- */

static struct connection left, right;

/* One direction of one step: sends `out` and receives as many bytes into `in`, adding them as floats if `adds`. */
struct lane {
	const char *out;
	char *in;
	int64_t bytes, sent, received;
};

static void lane_send(struct lane *lane, int k, int buff, int direction)
{
	int64_t n = (int64_t)FRAME << k, len = least(n, lane->bytes - lane->sent * n);
	struct buffer *b = &ring_send[k][buff][direction];
	memcpy(b->data, lane->out + lane->sent * n, (size_t)len);
	post(direction ? &left : &right, b, 0, SEND, buff, direction);
	lane->sent++;
}

static void lane_recv(int k, int buff, int direction)
{
	post(direction ? &right : &left, &ring_recv[k][buff][direction], 0, RECV, buff, direction);
}

static void ring_step(struct lane lanes[2], int k, int adds)
{
	int64_t n = (int64_t)FRAME << k, steps[2];
	int in_flight = 0;
	double since = 0;
	for (int d = 0; d < 2; d++)
		steps[d] = (lanes[d].bytes + n - 1) / n;
	for (int buff = 0; buff < BUFFERS; buff++) {
		for (int d = 0; d < 2; d++)
			if (buff < steps[d])
				lane_recv(k, buff, d), in_flight++;
		for (int d = 0; d < 2; d++)
			if (buff < steps[d])
				lane_send(&lanes[d], k, buff, d), in_flight++;
	}
	while (in_flight > 0) {
		struct ibv_wc wc[4 * BUFFERS];
		int found = ibv_poll_cq(left.cq, 4 * BUFFERS, wc);
		found += ibv_poll_cq(right.cq, 4 * BUFFERS - found, wc + found);
		patience(&since, found);
		for (int i = 0; i < found; i++) {
			int work = (int)(wc[i].wr_id >> 16), b = (int)(wc[i].wr_id >> 8 & 0xff), d = (int)(wc[i].wr_id & 0xff);
			struct lane *lane = &lanes[d];
			in_flight--;
			if (work == SEND) {
				if (lane->sent < steps[d])
					lane_send(lane, k, b, d), in_flight++;
				continue;
			}
			int64_t at = lane->received++ * n, len = least(n, lane->bytes - at);
			const char *from = ring_recv[k][b][d].data;
			if (adds)
				for (int64_t j = 0; j < len / (int64_t)sizeof(float); j++)
					((float *)(void *)(lane->in + at))[j] += ((const float *)(const void *)from)[j];
			else
				memcpy(lane->in + at, from, (size_t)len);
			if (lane->received + BUFFERS - 1 < steps[d])
				lane_recv(k, b, d), in_flight++;
		}
	}
}

/* A pass around the ring over chunks of `bytes` each: the first half of each goes right, the second left. */
static void ring_pass(char *data, int64_t bytes, int adds, int first[2])
{
	int64_t half = bytes / 2 / 8 * 8;
	int k = class_of(half);
	for (int step = 0; step < size - 1; step++) {
		struct lane lanes[2] = { 0 };
		for (int d = 0; d < 2; d++) {
			int turn = d ? step : -step;
			int out = (first[d] + turn + 2 * size) % size, in = (out + (d ? 1 : size - 1)) % size;
			int64_t start = d ? half : 0;
			lanes[d].out = data + out * bytes + start;
			lanes[d].in = data + in * bytes + start;
			lanes[d].bytes = d ? bytes - half : half;
		}
		ring_step(lanes, k, adds);
	}
}

static void ring_sum(const float *in, float *out, int64_t count)
{
	int64_t chunk = (count + size - 1) / size, bytes = (chunk + chunk % 2) * (int64_t)sizeof *in;
	char *data = calloc((size_t)size, (size_t)bytes);
	memcpy(data, in, (size_t)count * sizeof *in);
	int scatter[2] = { rank, rank }, collect[2] = { rank + 1, rank - 1 };
	ring_pass(data, bytes, 1, scatter);
	ring_pass(data, bytes, 0, collect);
	memcpy(out, data, (size_t)count * sizeof *in);
	free(data);
}

static void ring_gather(const char *in, char *out, int64_t bytes)
{
	int first[2] = { rank, rank };
	memcpy(out + rank * bytes, in, (size_t)bytes);
	ring_pass(out, bytes, 0, first);
}

static void start_ring(char names[MOST][MOST][32])
{
	int before = (rank + size - 1) % size, after = (rank + 1) % size;
	open_connection(&left, names[rank][before]);
	open_connection(&right, names[rank][after]);
	make(&left);
	make(&right);
	make_ring_buffers(&left, &right);
	to_init(&left);
	to_init(&right);
	ask(&left);
	ask(&right);
	struct destination lefts[MOST], rights[MOST];
	gather(&left.own, lefts, sizeof left.own);
	gather(&right.own, rights, sizeof right.own);
	to_work(&left, &rights[before]);
	to_work(&right, &lefts[after]);
}

/* --- the program ------------------------------------------------------------------------------------------------------- */

/* An N x N array of names and nulls. */
static void read_devices(const char *path, char names[MOST][MOST][32])
{
	FILE *file = fopen(path, "r");
	char text[4096] = { 0 };
	if (!file || fread(text, 1, sizeof text - 1, file) == 0)
		fail("cannot read MLX_IBV_DEVICES");
	fclose(file);
	int row = -1, column = 0, depth = 0;
	for (char *at = text; *at; at++) {
		if (*at == '[') {
			if (++depth == 2)
				row++, column = 0;
		} else if (*at == ']') {
			depth--;
		} else if (*at == '"') {
			char *end = strchr(at + 1, '"');
			snprintf(names[row][column++], 32, "%.*s", (int)(end - at - 1), at + 1);
			at = end;
		} else if (!strncmp(at, "null", 4)) {
			column++;
			at += 3;
		}
	}
	size = row + 1;
}

static uint32_t mixed(uint32_t a)
{
	a ^= a >> 16;
	a *= 0x45d9f3b;
	return a ^ a >> 16;
}

static void check_sum(int64_t count)
{
	float *in = malloc((size_t)count * sizeof *in), *out = malloc((size_t)count * sizeof *out);
	for (int64_t i = 0; i < count; i++)
		in[i] = (float)(mixed((uint32_t)i) % 1000 + (uint32_t)rank);
	if (is_ring)
		ring_sum(in, out, count);
	else
		mesh_sum(in, out, count);
	for (int64_t i = 0; i < count; i++) {
		/* Whole numbers that floats hold. */
		float expected = (float)(size * (mixed((uint32_t)i) % 1000) + (uint32_t)(size * (size - 1) / 2));
		if (out[i] != expected) {
			fprintf(stderr, "[jaccl %d] all_sum of %lld: element %lld is %f and not %f\n", rank, (long long)count, (long long)i, out[i], expected);
			exit(1);
		}
	}
	free(in);
	free(out);
}

static void check_gather(int64_t bytes)
{
	char *in = malloc((size_t)bytes), *out = calloc((size_t)size, (size_t)bytes);
	for (int64_t i = 0; i < bytes; i++)
		in[i] = (char)mixed((uint32_t)(i * MOST + rank));
	if (is_ring)
		ring_gather(in, out, bytes);
	else
		mesh_gather(in, out, bytes);
	for (int who = 0; who < size; who++)
		for (int64_t i = 0; i < bytes; i++)
			if (out[who * bytes + i] != (char)mixed((uint32_t)(i * MOST + who))) {
				fprintf(stderr, "[jaccl %d] all_gather of %lld: byte %lld of rank %d is wrong\n", rank, (long long)bytes, (long long)i, who);
				exit(1);
			}
	free(in);
	free(out);
}

static void close_connection(struct connection *c)
{
	if (!c->context)
		return;
	ibv_destroy_qp(c->qp);
	ibv_destroy_cq(c->cq);
	ibv_dealloc_pd(c->pd);
	ibv_close_device(c->context);
}

int main(void)
{
	static char names[MOST][MOST][32];
	const char *own = getenv("MLX_RANK"), *devices = getenv("MLX_IBV_DEVICES"), *where = getenv("MLX_JACCL_COORDINATOR");
	if (!own || !devices || !where)
		fail("MLX_RANK, MLX_IBV_DEVICES and MLX_JACCL_COORDINATOR are needed");
	rank = atoi(own);
	is_ring = getenv("MLX_JACCL_RING") != NULL;
	read_devices(devices, names);
	meet(where);
	if (is_ring)
		start_ring(names);
	else
		start_mesh(names);
	barrier();
	static const int64_t sizes[] = { 1, 1000, 1024, 1025, 4096, 100000, 262144, 1000003 };
	for (int round = 0; round < 3; round++)
		for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
			check_sum(sizes[i]);
			check_gather(sizes[i]);
		}
	/* A barrier of JACCL is a sum. */
	check_sum(1);
	printf("rank %d of %d: %s: all_sum and all_gather are right, with %d registrations\n", rank, size, is_ring ? "ring" : "mesh", registrations);
	/* Registrations go first, and nobody says goodbye: as JACCL's destructors do it. The sockets are the exception, so
	 * that a test can tell a lost message from a peer that is done. */
	barrier();
	for (int k = 0; k < SIZES; k++)
		for (int b = 0; b < BUFFERS; b++) {
			for (int i = 0; i < MOST; i++)
				forget(&mesh_buffers[k][b][i]);
			for (int d = 0; d < 2; d++) {
				forget(&ring_send[k][b][d]);
				forget(&ring_recv[k][b][d]);
			}
		}
	for (int i = 0; i < MOST; i++)
		close_connection(&mesh[i]);
	close_connection(&left);
	close_connection(&right);
	return 0;
}
