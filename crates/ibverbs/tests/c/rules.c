/* What the calls refuse, and with which numbers. One process. */
#include "common.h"

static struct side side;

static void queue_pairs(void)
{
	struct ibv_qp_init_attr init = qp_attributes(&side, IBV_QPT_RC);
	struct ibv_device_attr device;
	SAME(ibv_query_device(side.context, &device), 0);
	init.cap.max_send_wr = (uint32_t)device.max_qp_wr + 1;
	CHECK(!ibv_create_qp(side.pd, &init));
	SAME(errno, EINVAL);
	init = qp_attributes(&side, IBV_QPT_XRC_SEND);
	CHECK(!ibv_create_qp(side.pd, &init));
	SAME(errno, EOPNOTSUPP);
	struct ibv_qp_init_attr_ex more = {
		.send_cq = side.cq, .recv_cq = side.cq, .pd = side.pd, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.create_flags = IBV_QP_CREATE_SCATTER_FCS,
	};
	CHECK(!ibv_create_qp_ex(side.context, &more));
	SAME(errno, EOPNOTSUPP);
	more.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	more.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO;
	CHECK(!ibv_create_qp_ex(side.context, &more));
	SAME(errno, EOPNOTSUPP);
	more.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ;
	more.qp_type = IBV_QPT_UC;
	CHECK(!ibv_create_qp_ex(side.context, &more));
	SAME(errno, EOPNOTSUPP);
	more.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
	CHECK(!ibv_create_qp_ex(side.context, &more));
	SAME(errno, EOPNOTSUPP);
	CHECK(!ibv_qp_to_qp_ex(side.qp));
}

static void states(void)
{
	struct ibv_qp *qp = side.qp;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 }, told;
	struct ibv_qp_init_attr init;
	int masks = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	SAME(ibv_modify_qp(qp, &attr, masks), EINVAL);
	attr.port_num = 9;
	SAME(ibv_modify_qp(qp, &attr, masks | IBV_QP_ACCESS_FLAGS), EINVAL);
	attr.port_num = 1;
	attr.pkey_index = 3;
	SAME(ibv_modify_qp(qp, &attr, masks | IBV_QP_ACCESS_FLAGS), EINVAL);
	attr.pkey_index = 0;
	SAME(ibv_modify_qp(qp, &attr, masks | IBV_QP_ACCESS_FLAGS | IBV_QP_QKEY), EINVAL);
	SAME(ibv_modify_qp(qp, &attr, masks | IBV_QP_ACCESS_FLAGS | IBV_QP_CUR_STATE), EINVAL);
	attr.qp_state = IBV_QPS_RTS;
	SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), EINVAL);
	attr.qp_state = IBV_QPS_SQE;
	SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	/* A change that was refused changed nothing. */
	SAME(ibv_query_qp(qp, &told, IBV_QP_STATE | IBV_QP_PORT, &init), 0);
	SAME(told.qp_state, IBV_QPS_RESET);
	SAME(told.port_num, 0);

	to_init(qp);
	struct address own = own_address(&side, qp);
	to_work(qp, &own, 1); /* to itself */
	SAME(ibv_query_qp(qp, &told, ~0, &init), 0);
	SAME(told.qp_state, IBV_QPS_RTS);
	SAME(told.path_mtu, IBV_MTU_1024);
	SAME(told.dest_qp_num, qp->qp_num);
	SAME(told.rq_psn, 7);
	SAME(told.sq_psn, 7);
	SAME(told.min_rnr_timer, 12);
	SAME(told.timeout, 14);
	SAME(told.retry_cnt, 7);
	SAME(told.max_rd_atomic, 4);
	SAME(told.max_dest_rd_atomic, 4);
	SAME(told.port_num, 1);
	SAME(told.ah_attr.is_global, 1);
	SAME(told.qp_access_flags, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	SAME(told.cap.max_send_sge, init.cap.max_send_sge);
	CHECK(init.send_cq == side.cq && init.qp_context == &side && init.qp_type == IBV_QPT_RC);
	attr.qp_access_flags = 0;
	SAME(ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS), EOPNOTSUPP);
	/* SQD and back. */
	attr.qp_state = IBV_QPS_SQD;
	SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	SAME(qp->state, IBV_QPS_SQD);
	attr.timeout = 12;
	SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT), 0);
	attr.qp_state = IBV_QPS_RTS;
	SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	SAME(ibv_query_qp(qp, &told, ~0, &init), 0);
	SAME(told.timeout, 12);
	SAME(told.qp_state, IBV_QPS_RTS);
}

static void posts(void)
{
	struct ibv_send_wr wr[3], *bad = NULL;
	struct ibv_sge sge[3];
	/* The first request of a list that is refused is told; those before it are posted. */
	for (int at = 0; at < 3; at++) {
		send_wr(&side, &wr[at], &sge[at], (uint64_t)at, IBV_WR_SEND, 0, 8);
		wr[at].next = at < 2 ? &wr[at + 1] : NULL;
	}
	wr[1].opcode = IBV_WR_LOCAL_INV;
	SAME(ibv_post_send(side.qp, wr, &bad), EOPNOTSUPP);
	CHECK(bad == &wr[1]);
	wr[0].next = NULL;
	wr[0].num_sge = 5;
	SAME(ibv_post_send(side.qp, wr, &bad), EINVAL);
	wr[0].num_sge = -1;
	SAME(ibv_post_send(side.qp, wr, &bad), EINVAL);
	wr[0].num_sge = 1;
	wr[0].send_flags = IBV_SEND_INLINE;
	sge[0].length = 1 << 16;
	SAME(ibv_post_send(side.qp, wr, &bad), EINVAL);
	CHECK(bad == wr);
	sge[0].length = 8;
	wr[0].send_flags = IBV_SEND_IP_CSUM;
	SAME(ibv_post_send(side.qp, wr, &bad), EINVAL);
	wr[0].send_flags = 0;
	wr[0].opcode = 99;
	SAME(ibv_post_send(side.qp, wr, &bad), EINVAL);
	for (int opcode = IBV_WR_LOCAL_INV; opcode <= IBV_WR_TSO; opcode++) {
		wr[0].opcode = (enum ibv_wr_opcode)opcode;
		SAME(ibv_post_send(side.qp, wr, &bad), EOPNOTSUPP);
	}
	/* Atomics bring eight bytes. */
	wr[0].opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	sge[0].length = 4;
	SAME(ibv_post_send(side.qp, wr, &bad), EINVAL);

	/* Queues hold as many as they were made for; what waits goes with the queue pair. */
	struct side other = side;
	make_qp(&other, IBV_QPT_UC);
	to_init(other.qp);
	struct ibv_recv_wr recv = { .wr_id = 5 }, *bad_recv = NULL;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	SAME(ibv_query_qp(other.qp, &attr, IBV_QP_CAP, &init), 0);
	for (uint32_t posted = 0; posted < init.cap.max_recv_wr; posted++)
		SAME(ibv_post_recv(other.qp, &recv, &bad_recv), 0);
	SAME(ibv_post_recv(other.qp, &recv, &bad_recv), ENOMEM);
	CHECK(bad_recv == &recv);
	SAME(ibv_destroy_qp(other.qp), 0);
}

static void owners(void)
{
	SAME(ibv_destroy_cq(side.cq), EBUSY);
	SAME(ibv_destroy_comp_channel(side.channel), EBUSY);
	SAME(ibv_dealloc_pd(side.pd), EBUSY);
}

static void completion_queues(void)
{
	struct ibv_device_attr device;
	SAME(ibv_query_device(side.context, &device), 0);
	CHECK(!ibv_create_cq(side.context, 0, NULL, NULL, 0));
	SAME(errno, EINVAL);
	CHECK(!ibv_create_cq(side.context, device.max_cqe + 1, NULL, NULL, 0));
	SAME(errno, EINVAL);
	CHECK(!ibv_create_cq(side.context, 1, NULL, NULL, side.context->num_comp_vectors));
	SAME(errno, EINVAL);
	struct ibv_cq *cq = ibv_create_cq(side.context, 4, NULL, NULL, 0);
	CHECK(cq);
	SAME(ibv_resize_cq(cq, 400), 0);
	CHECK(cq->cqe >= 400);
	SAME(ibv_resize_cq(cq, 0), EINVAL);
	/* Without a channel there is nobody to tell. */
	SAME(ibv_req_notify_cq(cq, 0), 0);
	struct ibv_wc wc[4];
	SAME(ibv_poll_cq(cq, 0, wc), 0);
	SAME(ibv_poll_cq(cq, 4, wc), 0);
	struct ibv_modify_cq_attr moderate = { .attr_mask = IBV_CQ_ATTR_MODERATE };
	SAME(ibv_modify_cq(cq, &moderate), EOPNOTSUPP);
	SAME(ibv_destroy_cq(cq), 0);
	struct ibv_cq_init_attr_ex init = { .cqe = 4, .wc_flags = IBV_WC_EX_WITH_CVLAN };
	CHECK(!ibv_create_cq_ex(side.context, &init));
	SAME(errno, EOPNOTSUPP);
	init.wc_flags = 0;
	init.comp_mask = 1 << 9;
	CHECK(!ibv_create_cq_ex(side.context, &init));
	SAME(errno, EINVAL);
}

static void windows(void)
{
	CHECK(!ibv_alloc_mw(side.pd, IBV_MW_TYPE_1));
	SAME(errno, EOPNOTSUPP);
}

int main(void)
{
	open_side(&side);
	make_qp(&side, IBV_QPT_RC);
	queue_pairs();
	states();
	posts();
	owners();
	completion_queues();
	windows();
	close_side(&side);
	return 0;
}
