/* UD: address handles, routing headers, answers to whoever sent, keys. */
#include "common.h"

enum { GRH = 40 };

static void send_to(struct side *side, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, uint64_t wr_id, const char *text)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	strcpy(side->buffer, text);
	send_wr(side, &wr, &sge, wr_id, IBV_WR_SEND_WITH_IMM, 0, (uint32_t)strlen(text));
	wr.imm_data = htonl(4711);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = qkey;
	post(side, &wr);
	done(side, wr_id, IBV_WC_SEND);
}

static void by(struct side *side, int by_gid)
{
	char *place = side->buffer + 4096;
	post_recv(side, 1, 4096, GRH + 100);
	struct address peer = exchange(side, side->qp);
	struct ibv_ah_attr attr = { .dlid = peer.lid, .port_num = 1, .is_global = (uint8_t)by_gid };
	attr.grh.dgid = peer.gid;
	attr.grh.hop_limit = 1;
	if (side->first) {
		struct ibv_ah *ah = ibv_create_ah(side->pd, &attr);
		CHECK(ah);
		SAME(ibv_dealloc_pd(side->pd), EBUSY);
		/* Another key's message is nobody's. */
		send_to(side, ah, peer.qpn, QKEY + 1, 2, "wrong key");
		/* The highest bit says: this queue pair's own key. */
		send_to(side, ah, peer.qpn, 1u << 31, 3, "question");
		SAME(ibv_destroy_ah(ah), 0);
		struct ibv_wc wc = done(side, 1, IBV_WC_RECV);
		SAME(wc.src_qp, peer.qpn);
		CHECK(!memcmp(place + GRH, "answer", 6));
	} else {
		struct ibv_wc wc = done(side, 1, IBV_WC_RECV);
		SAME(wc.byte_len, GRH + 8);
		SAME(wc.src_qp, peer.qpn);
		SAME(wc.slid, peer.lid);
		SAME(ntohl(wc.imm_data), 4711);
		SAME(wc.wc_flags, IBV_WC_WITH_IMM | (by_gid ? IBV_WC_GRH : 0));
		CHECK(!memcmp(place + GRH, "question", 8));
		struct ibv_grh *grh = (struct ibv_grh *)place;
		if (by_gid)
			CHECK(!memcmp(&grh->sgid, &peer.gid, 16));
		struct ibv_ah_attr back;
		SAME(ibv_init_ah_from_wc(side->context, 1, &wc, grh, &back), 0);
		SAME(back.is_global, by_gid);
		SAME(back.dlid, peer.lid);
		struct ibv_ah *ah = ibv_create_ah_from_wc(side->pd, &wc, grh, 1);
		CHECK(ah);
		send_to(side, ah, wc.src_qp, QKEY, 4, "answer");
		SAME(ibv_destroy_ah(ah), 0);
	}
	meet(side);
}

static void body(struct side *side)
{
	open_side(side);
	make_qp(side, IBV_QPT_UD);
	to_init(side->qp);
	struct address own = own_address(side, side->qp);
	to_work(side->qp, &own, 1);
	struct ibv_ah_attr nowhere = { .dlid = own.lid, .port_num = 9 };
	CHECK(!ibv_create_ah(side->pd, &nowhere));
	SAME(errno, EINVAL);
	/* A message without an address, and one for what UD has not. */
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	SAME(ibv_post_send(side->qp, send_wr(side, &wr, &sge, 1, IBV_WR_SEND, 0, 1), &bad), EINVAL);
	CHECK(ibv_post_send(side->qp, send_wr(side, &wr, &sge, 1, IBV_WR_RDMA_WRITE, 0, 1), &bad) > 0);
	by(side, 1);
	by(side, 0);
	close_side(side);
}

int main(void)
{
	return run(body);
}
