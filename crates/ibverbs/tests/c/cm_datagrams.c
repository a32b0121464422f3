/* Finding a queue pair that takes datagrams, and sending it one. */
#include "cm.h"

enum { LEN = 512, GRH = 40 };

static void server(struct side *side)
{
	struct rdma_cm_id *listener = listening(RDMA_PS_UDP, 4);
	uint16_t port = ntohs(rdma_get_src_port(listener));
	tell(side, &port, sizeof port);
	struct rdma_cm_event *event = next_event(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	SAME(event->param.ud.private_data_len, 180);
	CHECK(is_filled(event->param.ud.private_data, 180, 180, 1));
	SAME(rdma_ack_cm_event(event), 0);
	give_qp(id, IBV_QPT_UD);
	char *buffer = calloc(1, GRH + LEN);
	struct ibv_mr *mr = rdma_reg_msgs(id, buffer, GRH + LEN);
	CHECK(mr);
	SAME(rdma_post_recv(id, NULL, buffer, GRH + LEN, mr), 0);
	uint8_t words[136];
	fill(words, sizeof words, 2);
	struct rdma_conn_param param = { .private_data = words, .private_data_len = sizeof words, .qp_num = id->qp->qp_num };
	SAME(rdma_accept(id, &param), 0);
	completed(id->recv_cq, IBV_WC_RECV);
	CHECK(is_filled(buffer + GRH, LEN, LEN, 3));
	/* The next one is refused. */
	event = next_event(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *refused = event->id;
	SAME(rdma_ack_cm_event(event), 0);
	SAME(rdma_reject(refused, words, 8), 0);
	SAME(rdma_destroy_id(refused), 0);
	meet(side);
	CHECK(is_quiet(listener->channel));
	SAME(rdma_dereg_mr(mr), 0);
	rdma_destroy_qp(id);
	SAME(rdma_destroy_id(id), 0);
	end_id(listener);
	free(buffer);
}

static void client(struct side *side)
{
	uint16_t port;
	hear(side, &port, sizeof port);
	struct rdma_cm_id *id = routed(RDMA_PS_UDP, port);
	give_qp(id, IBV_QPT_UD);
	uint8_t words[181];
	fill(words, sizeof words, 1);
	struct rdma_conn_param param = { .private_data = words, .private_data_len = sizeof words, .qp_num = id->qp->qp_num };
	SAME(rdma_connect(id, &param), -1);
	SAME(errno, EINVAL);
	param.private_data_len = 180;
	SAME(rdma_connect(id, &param), 0);
	struct rdma_cm_event *event = next_event(id->channel, RDMA_CM_EVENT_ESTABLISHED);
	SAME(event->param.ud.private_data_len, 136);
	CHECK(is_filled(event->param.ud.private_data, 136, 136, 2));
	SAME(event->param.ud.qkey, RDMA_UDP_QKEY);
	struct ibv_ah *ah = ibv_create_ah(id->pd, &event->param.ud.ah_attr);
	CHECK(ah);
	uint32_t qp_num = event->param.ud.qp_num;
	SAME(rdma_ack_cm_event(event), 0);
	uint8_t *message = calloc(1, LEN);
	struct ibv_mr *mr = rdma_reg_msgs(id, message, LEN);
	fill(message, LEN, 3);
	SAME(rdma_post_ud_send(id, NULL, message, LEN, mr, 0, ah, qp_num), 0);
	completed(id->send_cq, IBV_WC_SEND);

	struct rdma_cm_id *refused = routed(RDMA_PS_UDP, port);
	give_qp(refused, IBV_QPT_UD);
	SAME(rdma_connect(refused, &param), 0);
	/* 2: refused by the program. */
	event = next_event(refused->channel, RDMA_CM_EVENT_UNREACHABLE);
	SAME(event->status, 2);
	CHECK(is_filled(event->param.ud.private_data, 8, 136, 2));
	SAME(rdma_ack_cm_event(event), 0);
	end_id(refused);
	meet(side);
	SAME(ibv_destroy_ah(ah), 0);
	SAME(rdma_dereg_mr(mr), 0);
	end_id(id);
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
