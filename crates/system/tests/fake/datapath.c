/* Moves messages between queue pairs of this process. The public functions take the lock; the others are called under it. */
#include "fakeverbs.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

struct qp *qps;
struct mr *mrs;

static bool thunderbolt(const struct qp *qp)
{
	return (int)qp->base.context->device->transport_type == THUNDERBOLT;
}

static void tell(struct cq *cq)
{
	struct ibv_cq *base = &cq->base;
	cq->armed = cq->solicited = false;
	if (base->channel) {
		if (write(((struct channel *)base->channel)->writer, &base, sizeof(base)) != sizeof(base))
			abort();
	}
}

static void complete(struct ibv_cq *base, struct ibv_wc wc, bool solicited)
{
	struct cq *cq = (struct cq *)base;
	if (cq->filled == base->cqe) {
		struct ibv_async_event event = { .element.cq = base, .event_type = IBV_EVENT_CQ_ERR };
		if (!cq->overrun && write(whole(base->context)->writer, &event, sizeof(event)) != sizeof(event))
			abort();
		cq->overrun = true;
		return;
	}
	cq->ring[(cq->head + cq->filled++) % base->cqe] = wc;
	if (cq->armed || (cq->solicited && (solicited || wc.status != IBV_WC_SUCCESS)))
		tell(cq);
}

static enum ibv_wc_opcode sent_as(int opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	default:
		return IBV_WC_SEND;
	}
}

static struct request *first(struct queue *queue)
{
	return queue->filled ? &queue->ring[queue->head] : NULL;
}

static void drop_first(struct queue *queue)
{
	free(queue->ring[queue->head].carried);
	queue->ring[queue->head].carried = NULL;
	queue->head = (queue->head + 1) % queue->size;
	queue->filled--;
}

void empty(struct queue *queue)
{
	while (queue->filled)
		drop_first(queue);
}

/* A send ends. Whatever ends badly is told, and only then is the opcode of a completion not to be trusted. */
static void sent(struct qp *qp, enum ibv_wc_status status, uint32_t bytes)
{
	struct request *request = first(&qp->send);
	if (status != IBV_WC_SUCCESS || qp->sig_all || request->flags & IBV_SEND_SIGNALED)
		complete(qp->base.send_cq,
			 (struct ibv_wc){ .wr_id = request->wr_id, .status = status, .opcode = sent_as(request->opcode),
					  .byte_len = bytes, .qp_num = qp->base.qp_num }, false);
	drop_first(&qp->send);
}

/* The queue pair is in state ERR: all that was posted is given back. */
void flush(struct qp *qp)
{
	qp->base.state = qp->attr.qp_state = IBV_QPS_ERR;
	while (first(&qp->send))
		sent(qp, IBV_WC_WR_FLUSH_ERR, 0);
	while (first(&qp->recv)) {
		complete(qp->base.recv_cq,
			 (struct ibv_wc){ .wr_id = first(&qp->recv)->wr_id, .status = IBV_WC_WR_FLUSH_ERR,
					  .opcode = IBV_WC_RECV, .qp_num = qp->base.qp_num }, false);
		drop_first(&qp->recv);
	}
}

/* Whether bytes lie within those of a registration, wherever their ends would wrap to. */
static bool covers(const struct mr *mr, uint64_t first, uint64_t length)
{
	uint64_t base = (uintptr_t)mr->base.addr;
	return first >= base && length <= mr->base.length && first - base <= mr->base.length - length;
}

/* The bytes that a piece names, or NULL if its key does not cover them. */
static uint8_t *local(const struct qp *qp, const struct ibv_sge *sge, int need)
{
	for (struct mr *mr = mrs; mr; mr = mr->next)
		if (mr->base.lkey == sge->lkey && mr->base.pd == qp->base.pd && (mr->access & need) == need &&
		    covers(mr, sge->addr, sge->length))
			return (uint8_t *)(uintptr_t)sge->addr;
	return sge->length ? NULL : (uint8_t *)(uintptr_t)8;
}

static uint8_t *distant(const struct qp *peer, const struct request *request, uint64_t length, int need)
{
	static uint8_t nothing;
	if (!length)
		return &nothing;
	if (!(peer->attr.qp_access_flags & (unsigned int)need))
		return NULL;
	for (struct mr *mr = mrs; mr; mr = mr->next)
		if (mr->base.rkey == request->rkey && mr->base.pd == peer->base.pd && mr->access & need &&
		    covers(mr, request->remote, length))
			return (uint8_t *)(uintptr_t)request->remote;
	return NULL;
}

static uint64_t length_of(const struct request *request)
{
	uint64_t length = request->carried_len;
	for (int at = 0; at < request->pieces; at++)
		length += request->sge[at].length;
	return length;
}

/* Copies between the pieces of a request and bytes in one place. */
static bool gather(const struct qp *qp, const struct request *request, uint8_t *to)
{
	if (request->carried) {
		memcpy(to, request->carried, request->carried_len);
		return true;
	}
	for (int at = 0; at < request->pieces; at++) {
		const uint8_t *from = local(qp, &request->sge[at], 0);
		if (!from)
			return false;
		memmove(to, from, request->sge[at].length);
		to += request->sge[at].length;
	}
	return true;
}

static bool scatter(const struct qp *qp, const struct request *request, const uint8_t *from, uint64_t length)
{
	for (int at = 0; at < request->pieces && length; at++) {
		uint64_t part = request->sge[at].length < length ? request->sge[at].length : length;
		uint8_t *to = local(qp, &request->sge[at], IBV_ACCESS_LOCAL_WRITE);
		if (!to)
			return false;
		memmove(to, from, part);
		from += part;
		length -= part;
	}
	return true;
}

/* A request ends with an error, and with it the queue pair; on UC, nobody hears of errors at the other end. */
static void broke(struct qp *qp, struct qp *peer, enum ibv_wc_status status, bool at_peer)
{
	bool reliable = qp->base.qp_type == IBV_QPT_RC;
	if (!at_peer || reliable) {
		sent(qp, status, 0);
		flush(qp);
	} else
		sent(qp, IBV_WC_SUCCESS, 0);
	if (at_peer && peer && reliable)
		flush(peer);
}

static uint64_t frames(uint64_t length)
{
	return length ? (length + 4095) / 4096 : 1;
}

/* Gives a message to the peer's first receive. */
static void receive(struct qp *qp, struct qp *peer, const uint8_t *bytes, uint64_t length, bool written)
{
	struct request *request = first(&qp->send), *target = first(&peer->recv);
	bool immediate = written || request->opcode == IBV_WR_SEND_WITH_IMM;
	struct ibv_wc wc = { .wr_id = target->wr_id, .byte_len = (uint32_t)length, .imm_data = request->imm,
			     .opcode = written ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV, .qp_num = peer->base.qp_num,
			     .src_qp = qp->base.qp_num, .wc_flags = immediate ? IBV_WC_WITH_IMM : 0 };
	if (!written && (length > length_of(target) || (thunderbolt(qp) && frames(length) != frames(length_of(target)))))
		wc.status = IBV_WC_LOC_LEN_ERR;
	else if (!written && !scatter(peer, target, bytes, length))
		wc.status = IBV_WC_LOC_PROT_ERR;
	drop_first(&peer->recv);
	complete(peer->base.recv_cq, wc, request->flags & IBV_SEND_SOLICITED);
	if (wc.status == IBV_WC_SUCCESS) {
		sent(qp, IBV_WC_SUCCESS, (uint32_t)length);
		return;
	}
	broke(qp, peer, wc.status == IBV_WC_LOC_LEN_ERR ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR, true);
	flush(peer);
}

/* Whether a request that cannot go on has waited for so many milliseconds. */
static bool waited(struct request *request, long limit)
{
	long now = milliseconds();
	if (!request->since)
		request->since = now + 1;
	return now + 1 - request->since >= limit;
}

/* Carries out the first send of a queue pair, if it can be; returns whether it has ended. */
static bool step(struct qp *qp)
{
	struct request *request = first(&qp->send);
	struct qp *peer = qps;
	bool reliable = qp->base.qp_type == IBV_QPT_RC, held = reliable || thunderbolt(qp);
	if (!request || !(qp->base.state == IBV_QPS_RTS || (qp->base.state == IBV_QPS_SQD && !request->late)))
		return false;
	while (peer && peer->base.qp_num != qp->attr.dest_qp_num)
		peer = peer->next;
	uint64_t length = length_of(request);
	uint8_t *bytes = malloc(length + 8), *target;
	bool ended = true, received = false, written = false;
	bool reads = request->opcode == IBV_WR_RDMA_READ || request->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
		     request->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
	if (!reads && !gather(qp, request, bytes))
		broke(qp, peer, IBV_WC_LOC_PROT_ERR, false);
	else if (!peer || peer->base.state == IBV_QPS_ERR || peer->base.state == IBV_QPS_RESET) {
		if (reliable)
			broke(qp, NULL, IBV_WC_RETRY_EXC_ERR, false);
		else if (thunderbolt(qp))
			ended = false;
		else
			sent(qp, IBV_WC_SUCCESS, (uint32_t)length);
	} else if (peer->base.state == IBV_QPS_INIT) {
		/* It does not answer: the request is sent again, as often as was said, or for ever. */
		long limit = ((4096L << qp->attr.timeout) / 1000000 + 1) * (qp->attr.retry_cnt + 1);
		ended = reliable && qp->attr.timeout && waited(request, limit);
		if (ended)
			broke(qp, NULL, IBV_WC_RETRY_EXC_ERR, false);
	} else
		switch (request->opcode) {
		case IBV_WR_RDMA_WRITE_WITH_IMM:
			written = true;
			if (!first(&peer->recv)) {
				received = true;
				break;
			}
			/* fall through */
		case IBV_WR_RDMA_WRITE:
			target = distant(peer, request, length, IBV_ACCESS_REMOTE_WRITE);
			if (!target)
				broke(qp, peer, IBV_WC_REM_ACCESS_ERR, true);
			else {
				memmove(target, bytes, length);
				if (written)
					received = true;
				else
					sent(qp, IBV_WC_SUCCESS, (uint32_t)length);
			}
			break;
		case IBV_WR_RDMA_READ:
			target = distant(peer, request, length, IBV_ACCESS_REMOTE_READ);
			if (!target)
				broke(qp, peer, IBV_WC_REM_ACCESS_ERR, true);
			else if (!scatter(qp, request, target, length))
				broke(qp, peer, IBV_WC_LOC_PROT_ERR, false);
			else
				sent(qp, IBV_WC_SUCCESS, (uint32_t)length);
			break;
		case IBV_WR_ATOMIC_CMP_AND_SWP:
		case IBV_WR_ATOMIC_FETCH_AND_ADD:
			target = distant(peer, request, 8, IBV_ACCESS_REMOTE_ATOMIC);
			if (request->remote % 8)
				broke(qp, peer, IBV_WC_REM_INV_REQ_ERR, true);
			else if (!target)
				broke(qp, peer, IBV_WC_REM_ACCESS_ERR, true);
			else {
				uint64_t *word = (uint64_t *)(void *)target, old = request->compare_add;
				if (request->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
					old = __atomic_fetch_add(word, request->compare_add, __ATOMIC_SEQ_CST);
				else
					__atomic_compare_exchange_n(word, &old, request->swap, false, __ATOMIC_SEQ_CST,
								    __ATOMIC_SEQ_CST);
				if (scatter(qp, request, (uint8_t *)&old, 8))
					sent(qp, IBV_WC_SUCCESS, 8);
				else
					broke(qp, peer, IBV_WC_LOC_PROT_ERR, false);
			}
			break;
		default:
			received = true;
		}
	if (received && first(&peer->recv))
		receive(qp, peer, bytes, length, written);
	else if (received && reliable && qp->attr.rnr_retry < 7 && waited(request, 10L * qp->attr.rnr_retry))
		broke(qp, peer, IBV_WC_RNR_RETRY_EXC_ERR, false);
	else if (received && held)
		ended = false;
	else if (received)
		/* UC loses what nobody waits for. */
		sent(qp, IBV_WC_SUCCESS, (uint32_t)length);
	free(bytes);
	return ended;
}

void run_all(void)
{
	bool moved = true;
	while (moved) {
		moved = false;
		for (struct qp *qp = qps; qp; qp = qp->next)
			while (step(qp))
				moved = true;
	}
}

static bool keep(struct queue *queue, struct request request)
{
	if (queue->filled == queue->size)
		return false;
	queue->ring[(queue->head + queue->filled++) % queue->size] = request;
	return true;
}

static int take_send(struct qp *qp, const struct ibv_send_wr *wr)
{
	struct request request = { .wr_id = wr->wr_id, .imm = wr->imm_data, .opcode = (int)wr->opcode,
				   .flags = (int)wr->send_flags, .pieces = wr->num_sge };
	uint64_t length = 0;
	if (qp->base.state != IBV_QPS_RTS && qp->base.state != IBV_QPS_SQD && qp->base.state != IBV_QPS_ERR)
		return EINVAL;
	request.late = qp->base.state == IBV_QPS_SQD;
	if (wr->num_sge < 0 || wr->num_sge > (int)qp->cap.max_send_sge || wr->num_sge > PIECES)
		return EINVAL;
	for (int at = 0; at < wr->num_sge; at++) {
		request.sge[at] = wr->sg_list[at];
		length += wr->sg_list[at].length;
	}
	switch (wr->opcode) {
	case IBV_WR_RDMA_READ:
		if (qp->base.qp_type != IBV_QPT_RC)
			return EINVAL;
		/* fall through */
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		if (thunderbolt(qp))
			return EINVAL;
		request.remote = wr->wr.rdma.remote_addr;
		request.rkey = wr->wr.rdma.rkey;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		if (qp->base.qp_type != IBV_QPT_RC || length != 8)
			return EINVAL;
		request.remote = wr->wr.atomic.remote_addr;
		request.rkey = wr->wr.atomic.rkey;
		request.compare_add = wr->wr.atomic.compare_add;
		request.swap = wr->wr.atomic.swap;
		break;
	case IBV_WR_SEND_WITH_IMM:
		if (thunderbolt(qp))
			return EINVAL;
		/* fall through */
	case IBV_WR_SEND:
		break;
	default:
		return EINVAL;
	}
	if (wr->send_flags & IBV_SEND_INLINE) {
		if (length > qp->cap.max_inline_data)
			return EINVAL;
		request.carried = malloc(length + 1);
		for (int at = 0; at < wr->num_sge; at++) {
			memcpy(request.carried + request.carried_len, (void *)(uintptr_t)wr->sg_list[at].addr,
			       wr->sg_list[at].length);
			request.carried_len += wr->sg_list[at].length;
		}
		request.pieces = 0;
	}
	if (keep(&qp->send, request))
		return 0;
	free(request.carried);
	return ENOMEM;
}

/* Data-path calls fail with what a rule says, sign and all. */
static bool refused(struct qp *qp, enum call call, int *value)
{
	struct about about = { .type = (int)qp->base.qp_type, .state = -1, .access = -1, .kind = KIND_QP };
	long found;
	if (!fault(device_of(qp->base.context), call, &about, &found))
		return false;
	*value = (int)found;
	return true;
}

int post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct qp *qp = (struct qp *)base;
	int result = 0;
	for (; wr; wr = wr->next) {
		if (!refused(qp, CALL_POST_SEND, &result)) {
			pthread_mutex_lock(&lock);
			result = take_send(qp, wr);
			if (!result && base->state == IBV_QPS_ERR)
				flush(qp);
			run_all();
			pthread_mutex_unlock(&lock);
		}
		if (result) {
			*bad = wr;
			return result;
		}
	}
	return 0;
}

int post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct qp *qp = (struct qp *)base;
	int result = 0;
	for (; wr; wr = wr->next) {
		if (!refused(qp, CALL_POST_RECV, &result)) {
			struct request request = { .wr_id = wr->wr_id, .pieces = wr->num_sge };
			pthread_mutex_lock(&lock);
			if (base->state == IBV_QPS_RESET || wr->num_sge < 0 || wr->num_sge > (int)qp->cap.max_recv_sge ||
			    wr->num_sge > PIECES)
				result = EINVAL;
			else {
				memcpy(request.sge, wr->sg_list, (size_t)wr->num_sge * sizeof(*wr->sg_list));
				result = keep(&qp->recv, request) ? 0 : ENOMEM;
			}
			if (!result && base->state == IBV_QPS_ERR)
				flush(qp);
			run_all();
			pthread_mutex_unlock(&lock);
		}
		if (result) {
			*bad = wr;
			return result;
		}
	}
	return 0;
}

int poll_cq(struct ibv_cq *base, int entries, struct ibv_wc *wc)
{
	struct cq *cq = (struct cq *)base;
	long found;
	int taken = 0;
	if (fault(device_of(base->context), CALL_POLL_CQ, NULL, &found))
		return (int)found;
	pthread_mutex_lock(&lock);
	/* There is no thread that would notice that the time of a request is over. */
	if (!cq->filled)
		run_all();
	while (taken < entries && cq->filled) {
		wc[taken++] = cq->ring[cq->head];
		cq->head = (cq->head + 1) % base->cqe;
		cq->filled--;
	}
	pthread_mutex_unlock(&lock);
	return taken;
}

int req_notify_cq(struct ibv_cq *base, int solicited_only)
{
	struct cq *cq = (struct cq *)base;
	long found;
	if (fault(device_of(base->context), CALL_REQ_NOTIFY_CQ, NULL, &found))
		return (int)found;
	pthread_mutex_lock(&lock);
	if (solicited_only)
		cq->solicited = true;
	else
		cq->armed = true;
	pthread_mutex_unlock(&lock);
	return 0;
}
