/* SEND, immediate data, gathering, inline bytes, WRITE, READ and atomics, over RC and UC. */
#include "common.h"

static struct address peer;

static void sends(struct side *side)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge[3];
	if (!side->first) {
		for (int at = 0; at < 6; at++)
			post_recv(side, at, (size_t)at << 16, 1 << 16);
		meet(side);
		struct ibv_wc wc = done(side, 0, IBV_WC_RECV);
		SAME(wc.byte_len, 5);
		SAME(wc.wc_flags & IBV_WC_WITH_IMM, 0);
		CHECK(!memcmp(side->buffer, "hello", 5));
		wc = done(side, 1, IBV_WC_RECV);
		CHECK(wc.wc_flags & IBV_WC_WITH_IMM);
		SAME(ntohl(wc.imm_data), 0x01020304);
		SAME(wc.byte_len, 0);
		/* Gathered from three elements, one of them empty and of no registration. */
		wc = done(side, 2, IBV_WC_RECV);
		SAME(wc.byte_len, 10);
		CHECK(!memcmp(side->buffer + (2 << 16), "helloworld", 10));
		/* Inline, from memory that is not registered and changed at once. */
		wc = done(side, 3, IBV_WC_RECV);
		SAME(wc.byte_len, 64);
		for (int at = 0; at < 64; at++)
			SAME(side->buffer[(3 << 16) + at], 'i');
		/* One list of two requests. */
		SAME(done(side, 4, IBV_WC_RECV).byte_len, 1);
		SAME(done(side, 5, IBV_WC_RECV).byte_len, 60000);
		for (int at = 0; at < 60000; at++)
			SAME((unsigned char)side->buffer[(5 << 16) + at], at % 251);
		meet(side);
		return;
	}
	meet(side);
	memcpy(side->buffer, "hello", 5);
	memcpy(side->buffer + 500, "world", 5);
	post(side, send_wr(side, &wr, sge, 10, IBV_WR_SEND, 0, 5));
	done(side, 10, IBV_WC_SEND);
	send_wr(side, &wr, sge, 11, IBV_WR_SEND_WITH_IMM, 0, 0)->imm_data = htonl(0x01020304);
	wr.num_sge = 0;
	wr.send_flags |= IBV_SEND_SOLICITED | IBV_SEND_FENCE;
	post(side, &wr);
	done(side, 11, IBV_WC_SEND);
	send_wr(side, &wr, sge, 12, IBV_WR_SEND, 0, 5)->num_sge = 3;
	sge[1] = (struct ibv_sge){ 0, 0, 12345 };
	sge[2] = (struct ibv_sge){ (uintptr_t)side->buffer + 500, 5, side->mr->lkey };
	post(side, &wr);
	done(side, 12, IBV_WC_SEND);
	char inlined[64];
	memset(inlined, 'i', sizeof inlined);
	sge[0] = (struct ibv_sge){ (uintptr_t)inlined, 40, 0 };
	sge[1] = (struct ibv_sge){ (uintptr_t)inlined + 40, 24, 0 };
	wr = (struct ibv_send_wr){ .wr_id = 13, .sg_list = sge, .num_sge = 2, .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE };
	post(side, &wr);
	memset(inlined, 'x', sizeof inlined);
	done(side, 13, IBV_WC_SEND);
	for (int at = 0; at < 60000; at++)
		side->buffer[at] = (char)(at % 251);
	struct ibv_send_wr second;
	send_wr(side, &second, sge + 1, 15, IBV_WR_SEND, 0, 60000);
	send_wr(side, &wr, sge, 14, IBV_WR_SEND, 0, 1)->next = &second;
	/* Of unsignalled requests nothing is told. */
	wr.send_flags = 0;
	post(side, &wr);
	done(side, 15, IBV_WC_SEND);
	meet(side);
}

static void writes(struct side *side)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	memset(side->buffer, side->first ? 'f' : 's', BUFFER);
	if (!side->first) {
		post_recv(side, 20, 0, 1);
		meet(side);
		struct ibv_wc wc = done(side, 20, IBV_WC_RECV_RDMA_WITH_IMM);
		SAME(wc.byte_len, 100000);
		SAME(ntohl(wc.imm_data), 77);
		for (int at = 0; at < 200000; at++)
			SAME(side->buffer[1000 + at], 'f');
		meet(side);
		return;
	}
	meet(side);
	send_wr(side, &wr, &sge, 21, IBV_WR_RDMA_WRITE, 0, 100000);
	wr.wr.rdma.remote_addr = peer.buffer + 1000;
	wr.wr.rdma.rkey = peer.rkey;
	post(side, &wr);
	done(side, 21, IBV_WC_RDMA_WRITE);
	wr.wr_id = 22;
	wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr.imm_data = htonl(77);
	wr.wr.rdma.remote_addr += 100000;
	post(side, &wr);
	done(side, 22, IBV_WC_RDMA_WRITE);
	meet(side);
}

static void reads(struct side *side)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	uint64_t *word = (uint64_t *)(side->buffer + 4096);
	memset(side->buffer, side->first ? 'f' : 's', BUFFER);
	*word = 40;
	meet(side);
	if (side->first) {
		send_wr(side, &wr, &sge, 30, IBV_WR_RDMA_READ, 500000, 100000);
		wr.wr.rdma.remote_addr = peer.buffer + 8192;
		wr.wr.rdma.rkey = peer.rkey;
		post(side, &wr);
		SAME(done(side, 30, IBV_WC_RDMA_READ).byte_len, 100000);
		for (int at = 0; at < 100000; at++)
			SAME(side->buffer[500000 + at], 's');
		send_wr(side, &wr, &sge, 31, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8);
		wr.wr.atomic.remote_addr = peer.buffer + 4096;
		wr.wr.atomic.compare_add = 2;
		wr.wr.atomic.rkey = peer.rkey;
		post(side, &wr);
		done(side, 31, IBV_WC_FETCH_ADD);
		SAME(*(uint64_t *)side->buffer, 40);
		wr.wr_id = 32;
		wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
		wr.wr.atomic.compare_add = 42;
		wr.wr.atomic.swap = 1000;
		post(side, &wr);
		done(side, 32, IBV_WC_COMP_SWAP);
		SAME(*(uint64_t *)side->buffer, 42);
	}
	meet(side);
	if (!side->first)
		SAME(*word, 1000);
	meet(side);
}

static void rc(struct side *side)
{
	open_side(side);
	make_qp(side, IBV_QPT_RC);
	to_init(side->qp);
	peer = exchange(side, side->qp);
	to_work(side->qp, &peer, 0);
	meet(side);
	sends(side);
	writes(side);
	reads(side);
	close_side(side);
}

static void uc(struct side *side)
{
	open_side(side);
	make_qp(side, IBV_QPT_UC);
	to_init(side->qp);
	peer = exchange(side, side->qp);
	to_work(side->qp, &peer, 1);
	meet(side);
	sends(side);
	writes(side);
	close_side(side);
}

int main(void)
{
	return run(rc) || run(uc);
}
