/* A connection from its first call to its last, between two processes: what each end is told of the other. */
#include "cm.h"

enum { LEN = 4096 };

static void server(struct side *side)
{
	struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 0);
	uint16_t port = ntohs(rdma_get_src_port(listener));
	tell(side, &port, sizeof port);

	struct rdma_cm_event *event = next_event(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	CHECK(event->listen_id == listener && id != listener && id->channel == listener->channel);
	CHECK(id->context == listener->context && id->verbs && !id->qp);
	SAME(event->param.conn.private_data_len, 56);
	CHECK(is_filled(event->param.conn.private_data, 40, 56, 1));
	/* What one end grants the other may use. */
	SAME(event->param.conn.responder_resources, 3);
	SAME(event->param.conn.initiator_depth, 2);
	SAME(event->param.conn.retry_count, 6);
	SAME(event->param.conn.rnr_retry_count, 5);
	CHECK(event->param.conn.qp_num != 0);
	SAME(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_port, htons(port));
	CHECK(((struct sockaddr_in *)rdma_get_peer_addr(id))->sin_port != 0);
	/* An event that was not given back keeps the identifier; this one is the listener's. */
	SAME(rdma_ack_cm_event(event), 0);

	give_qp(id, IBV_QPT_RC);
	char *buffer = calloc(1, LEN);
	struct ibv_mr *mr = rdma_reg_msgs(id, buffer, LEN);
	CHECK(mr);
	SAME(rdma_post_recv(id, NULL, buffer, LEN, mr), 0);
	uint8_t words[196];
	fill(words, sizeof words, 2);
	struct rdma_conn_param param = {
		.private_data = words,
		.private_data_len = sizeof words,
		.responder_resources = 3,
		.initiator_depth = 2,
		.rnr_retry_count = 4,
	};
	SAME(rdma_accept(id, &param), 0);
	SAME(id->qp->state, IBV_QPS_RTS);
	event = next_event(listener->channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == id && !event->listen_id && event->status == 0);
	SAME(rdma_ack_cm_event(event), 0);

	completed(id->recv_cq, IBV_WC_RECV);
	CHECK(is_filled(buffer, LEN, LEN, 3));
	SAME(rdma_post_send(id, NULL, buffer, LEN, mr, 0), 0);
	completed(id->send_cq, IBV_WC_SEND);

	expect(listener->channel, RDMA_CM_EVENT_DISCONNECTED, 0);
	SAME(rdma_disconnect(id), 0);
	SAME(id->qp->state, IBV_QPS_ERR);
	expect(listener->channel, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
	CHECK(is_quiet(listener->channel));
	SAME(rdma_dereg_mr(mr), 0);
	rdma_destroy_qp(id);
	CHECK(!id->qp && !id->send_cq && !id->recv_cq_channel);
	SAME(rdma_destroy_id(id), 0);
	end_id(listener);
	free(buffer);
}

static void client(struct side *side)
{
	uint16_t port;
	hear(side, &port, sizeof port);
	struct rdma_cm_id *id = routed(RDMA_PS_TCP, port);
	give_qp(id, IBV_QPT_RC);
	char *buffer = calloc(1, LEN);
	struct ibv_mr *mr = rdma_reg_msgs(id, buffer, LEN);
	CHECK(mr);
	SAME(rdma_post_recv(id, NULL, buffer, LEN, mr), 0);
	uint8_t words[40];
	fill(words, sizeof words, 1);
	struct rdma_conn_param param = {
		.private_data = words,
		.private_data_len = sizeof words,
		.responder_resources = 2,
		.initiator_depth = 3,
		.retry_count = 6,
		.rnr_retry_count = 5,
	};
	SAME(rdma_connect(id, &param), 0);
	errno = 0;
	SAME(rdma_connect(id, &param), -1);
	SAME(errno, EINVAL);
	struct rdma_cm_event *event = next_event(id->channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == id && event->status == 0);
	SAME(event->param.conn.private_data_len, 196);
	CHECK(is_filled(event->param.conn.private_data, 196, 196, 2));
	SAME(event->param.conn.responder_resources, 2);
	SAME(event->param.conn.initiator_depth, 3);
	SAME(event->param.conn.rnr_retry_count, 4);
	SAME(rdma_ack_cm_event(event), 0);
	SAME(id->qp->state, IBV_QPS_RTS);

	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	SAME(ibv_query_qp(id->qp, &attr, IBV_QP_STATE, &init), 0);
	SAME(attr.max_rd_atomic, 3);
	SAME(attr.max_dest_rd_atomic, 2);
	SAME(attr.retry_cnt, 6);

	uint8_t *message = calloc(1, LEN);
	struct ibv_mr *sent = rdma_reg_msgs(id, message, LEN);
	fill(message, LEN, 3);
	SAME(rdma_post_send(id, NULL, message, LEN, sent, 0), 0);
	completed(id->send_cq, IBV_WC_SEND);
	completed(id->recv_cq, IBV_WC_RECV);
	CHECK(is_filled(buffer, LEN, LEN, 3));

	SAME(rdma_disconnect(id), 0);
	SAME(id->qp->state, IBV_QPS_ERR);
	expect(id->channel, RDMA_CM_EVENT_DISCONNECTED, 0);
	/* Once more is no error. */
	SAME(rdma_disconnect(id), 0);
	expect(id->channel, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
	CHECK(is_quiet(id->channel));
	SAME(rdma_dereg_mr(mr), 0);
	SAME(rdma_dereg_mr(sent), 0);
	end_id(id);
	free(buffer);
	free(message);
}

static void both(struct side *side)
{
	if (side->first)
		server(side);
	else
		client(side);
}

int main(void)
{
	return run(both);
}
