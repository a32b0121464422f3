/* Posting and polling by calls: ibv_wr_* and ibv_start_poll. */
#include "common.h"

static struct address peer;
static struct ibv_cq_ex *cq;
static struct ibv_qp_ex *qp;

static void open_extended(struct side *side)
{
	open_side(side);
	struct ibv_cq_init_attr_ex cq_init = {
		.cqe = DEPTH,
		.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
	};
	cq = ibv_create_cq_ex(side->context, &cq_init);
	CHECK(cq);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = ibv_cq_ex_to_cq(cq),
		.recv_cq = ibv_cq_ex_to_cq(cq),
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 0,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = side->pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
				  IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
				  IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
	};
	side->qp = ibv_create_qp_ex(side->context, &init);
	CHECK(side->qp);
	qp = ibv_qp_to_qp_ex(side->qp);
	CHECK(qp);
	to_init(side->qp);
	peer = exchange(side, side->qp);
	to_work(side->qp, &peer, 1);
}

/* Waits for a completion and leaves the queue in the hands of this thread. */
static void start(void)
{
	struct ibv_poll_cq_attr attr = { 0 };
	double until = now() + PATIENCE;
	int error;
	while ((error = ibv_start_poll(cq, &attr)) == ENOENT)
		CHECK(now() < until);
	SAME(error, 0);
	SAME(cq->status, IBV_WC_SUCCESS);
}

static void one(uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	start();
	SAME(cq->wr_id, wr_id);
	SAME(ibv_wc_read_opcode(cq), opcode);
	ibv_end_poll(cq);
}

static uint64_t raw_clock(struct side *side)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	SAME(ibv_query_rt_values_ex(side->context, &values), 0);
	return (uint64_t)values.raw_clock.tv_sec * 1000000000 + (uint64_t)values.raw_clock.tv_nsec;
}

static void receiver(struct side *side)
{
	for (int at = 0; at < 4; at++)
		post_recv(side, (uint64_t)at, (size_t)at * 4096, 4096);
	uint64_t *word = (uint64_t *)(side->buffer + 32768);
	*word = 5;
	meet(side);
	meet(side);
	/* Two messages in one round. */
	uint64_t before = raw_clock(side);
	time_t seconds = time(NULL);
	start();
	SAME(cq->wr_id, 0);
	SAME(ibv_wc_read_opcode(cq), IBV_WC_RECV);
	SAME(ibv_wc_read_byte_len(cq), 10);
	SAME(ibv_wc_read_qp_num(cq), side->qp->qp_num);
	SAME(ibv_wc_read_wc_flags(cq), 0);
	SAME(ibv_wc_read_vendor_err(cq), 0);
	/* Its time lies between two looks at the same clock. */
	uint64_t stamp = ibv_wc_read_completion_ts(cq);
	CHECK(stamp >= before && stamp <= raw_clock(side));
	CHECK(ibv_wc_read_completion_wallclock_ns(cq) / 1000000000 + 1 >= (uint64_t)seconds);
	SAME(ibv_next_poll(cq), 0);
	CHECK(ibv_wc_read_completion_ts(cq) >= stamp);
	SAME(cq->wr_id, 1);
	SAME(ibv_wc_read_wc_flags(cq), IBV_WC_WITH_IMM);
	SAME(ntohl(ibv_wc_read_imm_data(cq)), 99);
	ibv_end_poll(cq);
	CHECK(!memcmp(side->buffer, "helloworld", 10));
	CHECK(!memcmp(side->buffer + 4096, "inlined by two", 14));
	start();
	SAME(cq->wr_id, 2);
	SAME(ibv_wc_read_opcode(cq), IBV_WC_RECV_RDMA_WITH_IMM);
	SAME(ntohl(ibv_wc_read_imm_data(cq)), 100);
	ibv_end_poll(cq);
	CHECK(!memcmp(side->buffer + 16384, "hello", 5));
	/* Polling as ever works, too. */
	struct ibv_wc wc = next(ibv_cq_ex_to_cq(cq));
	SAME(wc.wr_id, 3);
	SAME(wc.byte_len, 1);
	meet(side);
	SAME(*word, 9);
}

static void sender(struct side *side)
{
	meet(side);
	uint64_t start_of_buffer = (uintptr_t)side->buffer;
	uint32_t lkey = side->mr->lkey;
	memcpy(side->buffer, "helloworld", 10);

	/* What is discarded does not go out. */
	ibv_wr_start(qp);
	qp->wr_id = 1;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, lkey, start_of_buffer, 1);
	ibv_wr_abort(qp);

	/* One error in a batch, and none of it goes out. */
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, lkey, start_of_buffer, 1);
	ibv_wr_local_inv(qp, 1);
	SAME(ibv_wr_complete(qp), EOPNOTSUPP);
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	struct ibv_sge many[5] = { { 0 } };
	ibv_wr_set_sge_list(qp, 5, many);
	SAME(ibv_wr_complete(qp), EINVAL);
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, side->buffer, 1 << 16);
	SAME(ibv_wr_complete(qp), EINVAL);
	ibv_wr_start(qp);
	SAME(ibv_wr_complete(qp), 0);

	/* Four requests in one. */
	struct ibv_sge list[2] = { { start_of_buffer, 5, lkey }, { start_of_buffer + 5, 5, lkey } };
	char first[] = "inlined ", second[] = "by two";
	struct ibv_data_buf runs[2] = { { first, 8 }, { second, 6 } };
	ibv_wr_start(qp);
	qp->wr_id = 10;
	qp->wr_flags = 0;
	ibv_wr_send(qp);
	ibv_wr_set_sge_list(qp, 2, list);
	qp->wr_id = 11;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_imm(qp, htonl(99));
	ibv_wr_set_inline_data_list(qp, 2, runs);
	memset(first, 'x', sizeof first);
	qp->wr_id = 12;
	ibv_wr_rdma_write(qp, peer.rkey, peer.buffer + 16384);
	ibv_wr_set_inline_data(qp, side->buffer, 2);
	qp->wr_id = 13;
	ibv_wr_rdma_write_imm(qp, peer.rkey, peer.buffer + 16386, htonl(100));
	ibv_wr_set_sge(qp, lkey, start_of_buffer + 2, 3);
	SAME(ibv_wr_complete(qp), 0);
	one(11, IBV_WC_SEND);
	one(12, IBV_WC_RDMA_WRITE);
	start();
	SAME(cq->wr_id, 13);
	SAME(ibv_wc_read_opcode(cq), IBV_WC_RDMA_WRITE);
	/* There is no more. */
	SAME(ibv_next_poll(cq), ENOENT);
	ibv_end_poll(cq);
	meet(side);

	uint64_t *old = (uint64_t *)(side->buffer + 4096);
	ibv_wr_start(qp);
	qp->wr_id = 14;
	ibv_wr_rdma_read(qp, peer.rkey, peer.buffer + 16384);
	ibv_wr_set_sge(qp, lkey, start_of_buffer + 8192, 5);
	qp->wr_id = 15;
	ibv_wr_atomic_fetch_add(qp, peer.rkey, peer.buffer + 32768, 2);
	ibv_wr_set_sge(qp, lkey, (uintptr_t)&old[0], 8);
	qp->wr_id = 16;
	ibv_wr_atomic_cmp_swp(qp, peer.rkey, peer.buffer + 32768, 7, 9);
	ibv_wr_set_sge(qp, lkey, (uintptr_t)&old[1], 8);
	SAME(ibv_wr_complete(qp), 0);
	one(14, IBV_WC_RDMA_READ);
	one(15, IBV_WC_FETCH_ADD);
	one(16, IBV_WC_COMP_SWAP);
	CHECK(!memcmp(side->buffer + 8192, "hello", 5));
	SAME(old[0], 5);
	SAME(old[1], 7);

	/* Both styles on one queue pair. */
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	post(side, send_wr(side, &wr, &sge, 17, IBV_WR_SEND, 0, 1));
	one(17, IBV_WC_SEND);
	meet(side);
}

static void body(struct side *side)
{
	open_extended(side);
	if (side->first)
		sender(side);
	else
		receiver(side);
	meet(side);
	SAME(ibv_destroy_qp(side->qp), 0);
	SAME(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	make_qp(side, IBV_QPT_RC);
	close_side(side);
}

int main(void)
{
	return run(body);
}
