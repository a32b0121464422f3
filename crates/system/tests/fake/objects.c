/* Protection domains, registrations, completion queues and queue pairs. */
#define _GNU_SOURCE
#include "fakeverbs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#undef ibv_reg_mr

static uint32_t next_number(uint32_t step)
{
	static uint32_t last = 16;
	return __atomic_add_fetch(&last, step, __ATOMIC_RELAXED);
}

/* One more object of a kind, if the device has another. */
static bool admit(struct device *device, enum kind kind, int limit)
{
	pthread_mutex_lock(&lock);
	bool admitted = device->live[kind] < limit;
	device->live[kind] += admitted;
	pthread_mutex_unlock(&lock);
	if (!admitted)
		errno = device->busy[kind];
	return admitted;
}

static void dismiss(struct device *device, enum kind kind)
{
	pthread_mutex_lock(&lock);
	device->live[kind]--;
	pthread_mutex_unlock(&lock);
}

/* Protection domains and registrations. */

EXPORT(IBV_ALLOC_PD) struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct device *device = device_of(context);
	if (null_fault(device, CALL_ALLOC_PD, plain(KIND_PD)) || !admit(device, KIND_PD, device->attr.max_pd))
		return NULL;
	struct ibv_pd *pd = calloc(1, sizeof(*pd));
	pd->context = context;
	pd->handle = next_number(1);
	note(device, "alloc_pd");
	return pd;
}

EXPORT(IBV_DEALLOC_PD) int ibv_dealloc_pd(struct ibv_pd *pd)
{
	struct device *device = device_of(pd->context);
	bool used = false;
	long value;
	if (fault(device, CALL_DEALLOC_PD, NULL, &value))
		return (int)value;
	pthread_mutex_lock(&lock);
	for (struct mr *mr = mrs; mr; mr = mr->next)
		used |= mr->base.pd == pd;
	for (struct qp *qp = qps; qp; qp = qp->next)
		used |= qp->base.pd == pd;
	pthread_mutex_unlock(&lock);
	note(device, "dealloc_pd%s", used ? " while in use" : "");
	if (used)
		return EBUSY;
	dismiss(device, KIND_PD);
	free(pd);
	return 0;
}

static struct ibv_mr *make_mr(struct ibv_pd *pd, void *addr, size_t length, int access, void *mapped)
{
	struct device *device = device_of(pd->context);
	uint64_t first = (uintptr_t)addr, remote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	if (!length || length > device->attr.max_mr_size || ((uint64_t)access & remote && !(access & IBV_ACCESS_LOCAL_WRITE)) ||
	    (device->boundary && first / device->boundary != (first + length - 1) / device->boundary)) {
		errno = EINVAL;
		return NULL;
	}
	if (!admit(device, KIND_MR, device->attr.max_mr))
		return NULL;
	struct mr *mr = calloc(1, sizeof(*mr));
	uint32_t key = next_number(256);
	mr->base = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = addr, .length = length, .handle = key,
				    .lkey = key, .rkey = key + 1 };
	mr->access = access;
	mr->mapped = mapped;
	pthread_mutex_lock(&lock);
	mr->next = mrs;
	mrs = mr;
	pthread_mutex_unlock(&lock);
	return &mr->base;
}

static struct ibv_mr *register_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct device *device = device_of(pd->context);
	struct about about = { .state = -1, .access = access, .len = length, .kind = KIND_MR };
	struct ibv_mr *mr = NULL;
	if (!null_fault(device, CALL_REG_MR, about))
		mr = make_mr(pd, addr, length, access, NULL);
	note(device, "reg_mr len=%zu access=%d %s", length, access, mr ? "ok" : "refused");
	return mr;
}

EXPORT(IBV_REG_MR) struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return register_mr(pd, addr, length, access);
}

EXPORT(IBV_REG_MR_IOVA2)
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	if (iova != (uintptr_t)addr) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return register_mr(pd, addr, length, (int)access);
}

EXPORT(IBV_REG_DMABUF_MR)
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	struct device *device = device_of(pd->context);
	struct about about = { .state = -1, .access = access, .len = length, .kind = KIND_MR };
	struct ibv_mr *mr = NULL;
	(void)iova;
	if (!null_fault(device, CALL_REG_DMABUF_MR, about)) {
		if (!device->dmabuf)
			errno = EOPNOTSUPP;
		else {
			void *mapped = mmap(NULL, offset + length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
			if (mapped != MAP_FAILED && !(mr = make_mr(pd, (char *)mapped + offset, length, access, mapped))) {
				int kept = errno;
				munmap(mapped, offset + length);
				errno = kept;
			}
		}
	}
	note(device, "reg_dmabuf_mr len=%zu access=%d %s", length, access, mr ? "ok" : "refused");
	return mr;
}

EXPORT(IBV_DEREG_MR) int ibv_dereg_mr(struct ibv_mr *base)
{
	struct device *device = device_of(base->context);
	struct mr *mr = (struct mr *)base;
	long value;
	if (fault(device, CALL_DEREG_MR, NULL, &value))
		return (int)value;
	pthread_mutex_lock(&lock);
	for (struct mr **at = &mrs; *at; at = &(*at)->next)
		if (*at == mr) {
			*at = mr->next;
			break;
		}
	pthread_mutex_unlock(&lock);
	if (mr->mapped)
		munmap(mr->mapped, (size_t)((char *)base->addr - (char *)mr->mapped) + base->length);
	note(device, "dereg_mr len=%zu", base->length);
	dismiss(device, KIND_MR);
	free(mr);
	return 0;
}

/* Completion queues and their channels: a pipe through which the addresses of queues go. */

EXPORT(IBV_CREATE_COMP_CHANNEL) struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct device *device = device_of(context);
	int ends[2];
	if (null_fault(device, CALL_CREATE_COMP_CHANNEL, plain(KIND_CHANNEL)) || pipe2(ends, O_CLOEXEC))
		return NULL;
	struct channel *channel = calloc(1, sizeof(*channel));
	channel->base.context = context;
	channel->reader = ends[0];
	channel->base.fd = device->shows_fd ? device->shown_fd : ends[0];
	channel->writer = ends[1];
	note(device, "create_comp_channel");
	return &channel->base;
}

EXPORT(IBV_DESTROY_COMP_CHANNEL) int ibv_destroy_comp_channel(struct ibv_comp_channel *base)
{
	struct channel *channel = (struct channel *)base;
	long value;
	if (fault(device_of(base->context), CALL_DESTROY_COMP_CHANNEL, NULL, &value))
		return (int)value;
	note(device_of(base->context), "destroy_comp_channel%s", base->refcnt ? " while in use" : "");
	if (base->refcnt)
		return EBUSY;
	close(channel->reader);
	close(channel->writer);
	free(channel);
	return 0;
}

EXPORT(IBV_CREATE_CQ)
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
			     int vector)
{
	struct device *device = device_of(context);
	if (null_fault(device, CALL_CREATE_CQ, plain(KIND_CQ)))
		return NULL;
	if (cqe < 1 || cqe > device->attr.max_cqe || vector < 0 || vector >= context->num_comp_vectors) {
		errno = EINVAL;
		return NULL;
	}
	if (!admit(device, KIND_CQ, device->attr.max_cq))
		return NULL;
	struct cq *cq = calloc(1, sizeof(*cq));
	cq->base.context = context;
	cq->base.channel = channel;
	cq->base.cq_context = cq_context;
	cq->base.handle = next_number(1);
	cq->base.cqe = cqe;
	cq->ring = calloc((size_t)cqe, sizeof(*cq->ring));
	pthread_mutex_init(&cq->base.mutex, NULL);
	pthread_cond_init(&cq->base.cond, NULL);
	if (channel)
		__atomic_add_fetch(&channel->refcnt, 1, __ATOMIC_SEQ_CST);
	note(device, "create_cq entries=%d", cqe);
	return &cq->base;
}

EXPORT(IBV_DESTROY_CQ) int ibv_destroy_cq(struct ibv_cq *base)
{
	struct cq *cq = (struct cq *)base;
	struct device *device = device_of(base->context);
	bool used = false;
	long value;
	if (fault(device, CALL_DESTROY_CQ, NULL, &value))
		return (int)value;
	pthread_mutex_lock(&lock);
	for (struct qp *qp = qps; qp; qp = qp->next)
		used |= qp->base.send_cq == base || qp->base.recv_cq == base;
	if (!used) {
		forget_events(base->context->async_fd, whole(base->context)->writer, sizeof(struct ibv_async_event), base);
		if (base->channel)
			forget_events(base->channel->fd, ((struct channel *)base->channel)->writer, sizeof(base), base);
	}
	pthread_mutex_unlock(&lock);
	note(device, "destroy_cq%s", used ? " while in use" : "");
	if (used)
		return EBUSY;
	/* What was handed out may still be looked at. */
	pthread_mutex_lock(&base->mutex);
	while (base->comp_events_completed != cq->told || base->async_events_completed != cq->failed)
		pthread_cond_wait(&base->cond, &base->mutex);
	pthread_mutex_unlock(&base->mutex);
	if (base->channel)
		__atomic_sub_fetch(&base->channel->refcnt, 1, __ATOMIC_SEQ_CST);
	dismiss(device, KIND_CQ);
	free(cq->ring);
	free(cq);
	return 0;
}

EXPORT(IBV_GET_CQ_EVENT) int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	if (null_fault(device_of(channel->context), CALL_GET_CQ_EVENT, plain(KIND_CQ)) ||
	    !take_event(channel->fd, cq, sizeof(*cq)))
		return -1;
	((struct cq *)*cq)->told++;
	*cq_context = (*cq)->cq_context;
	pthread_mutex_unlock(&lock);
	return 0;
}

EXPORT(IBV_ACK_CQ_EVENTS) void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int events)
{
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += events;
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

/* Queue pairs. */

static bool fits(const struct device *device, const struct ibv_qp_cap *cap)
{
	return cap->max_send_wr <= (uint32_t)device->attr.max_qp_wr && cap->max_recv_wr <= (uint32_t)device->attr.max_qp_wr &&
	       cap->max_send_sge <= (uint32_t)device->attr.max_sge && cap->max_recv_sge <= (uint32_t)device->attr.max_sge &&
	       cap->max_inline_data <= (uint32_t)device->max_inline;
}

static struct queue make_queue(uint32_t *depth, int granted)
{
	if (granted && *depth > (uint32_t)granted)
		*depth = (uint32_t)granted;
	int size = *depth ? (int)*depth : 1;
	return (struct queue){ .ring = calloc((size_t)size, sizeof(struct request)), .size = size };
}

EXPORT(IBV_CREATE_QP) struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	struct device *device = device_of(pd->context);
	struct about about = { .state = -1, .access = -1, .type = (int)init->qp_type, .kind = KIND_QP };
	if (null_fault(device, CALL_CREATE_QP, about)) {
		note(device, "create_qp type=%d refused", (int)init->qp_type);
		return NULL;
	}
	if (!fits(device, &init->cap) || !init->send_cq || !init->recv_cq) {
		errno = EINVAL;
		return NULL;
	}
	if (!admit(device, KIND_QP, device->attr.max_qp))
		return NULL;
	struct qp *qp = calloc(1, sizeof(*qp));
	qp->base.context = pd->context;
	qp->base.qp_context = init->qp_context;
	qp->base.pd = pd;
	qp->base.send_cq = init->send_cq;
	qp->base.recv_cq = init->recv_cq;
	qp->base.handle = qp->base.qp_num = next_number(1);
	qp->base.qp_type = init->qp_type;
	pthread_mutex_init(&qp->base.mutex, NULL);
	pthread_cond_init(&qp->base.cond, NULL);
	qp->cap = init->cap;
	qp->send = make_queue(&qp->cap.max_send_wr, device->granted_wr);
	qp->recv = make_queue(&qp->cap.max_recv_wr, device->granted_wr);
	init->cap = qp->cap;
	qp->sig_all = init->sq_sig_all;
	pthread_mutex_lock(&lock);
	qp->next = qps;
	qps = qp;
	pthread_mutex_unlock(&lock);
	note(device, "create_qp type=%d qp=%u", (int)init->qp_type, qp->base.qp_num);
	return &qp->base;
}

/* The attributes that a change of state needs and those that it may have besides, as the kernel sees it. */
static bool attributes_fit(int from, int to, bool reliable, int mask)
{
	int needed = IBV_QP_STATE, allowed = IBV_QP_CUR_STATE;
	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
		return !(mask & ~(needed | allowed));
	if (to == IBV_QPS_INIT && (from == IBV_QPS_RESET || from == IBV_QPS_INIT)) {
		if (from == IBV_QPS_RESET)
			needed |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
		else
			allowed |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	} else if (from == IBV_QPS_INIT && to == IBV_QPS_RTR) {
		needed |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
		allowed |= IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX;
		if (reliable)
			needed |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	} else if ((from == IBV_QPS_RTS || from == IBV_QPS_SQD) && to == IBV_QPS_SQD) {
		allowed |= IBV_QP_EN_SQD_ASYNC_NOTIFY;
	} else if ((from == IBV_QPS_RTR || from == IBV_QPS_RTS || from == IBV_QPS_SQD) && to == IBV_QPS_RTS) {
		allowed |= IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
		if (from == IBV_QPS_RTR)
			needed |= IBV_QP_SQ_PSN;
		if (reliable)
			allowed |= IBV_QP_MIN_RNR_TIMER;
		if (reliable && from == IBV_QPS_RTR)
			needed |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	} else
		return false;
	return (mask & needed) == needed && !(mask & ~(needed | allowed));
}

/* Whether the path of a queue pair begins at an address that the port has. */
static bool path_begins(struct device *device, const struct qp *qp, const struct ibv_qp_attr *attr)
{
	struct port *port = &device->ports[qp->attr.port_num - 1];
	static const union ibv_gid zero;
	if (attr->path_mtu < IBV_MTU_256 || attr->path_mtu > port->attr.max_mtu)
		return false;
	if (port->attr.link_layer == IBV_LINK_LAYER_INFINIBAND && !attr->ah_attr.is_global)
		return attr->ah_attr.dlid != 0;
	const struct gid *gid = gid_at(port, attr->ah_attr.grh.sgid_index);
	return attr->ah_attr.is_global && gid && memcmp(&gid->raw, &zero, sizeof(zero)) &&
	       memcmp(&attr->ah_attr.grh.dgid, &zero, sizeof(zero));
}

static int change(struct device *device, struct qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	int to = mask & IBV_QP_STATE ? (int)attr->qp_state : (int)qp->base.state;
	if (!attributes_fit((int)qp->base.state, to, qp->base.qp_type == IBV_QPT_RC, mask | IBV_QP_STATE))
		return EINVAL;
	if (mask & IBV_QP_PORT) {
		if (attr->port_num < 1 || attr->port_num > device->port_count)
			return EINVAL;
		qp->attr.port_num = attr->port_num;
	}
	if (mask & IBV_QP_ACCESS_FLAGS)
		qp->attr.qp_access_flags = attr->qp_access_flags;
	if (to == IBV_QPS_RTR && qp->base.state == IBV_QPS_INIT) {
		if (!path_begins(device, qp, attr))
			return EINVAL;
		qp->attr.ah_attr = attr->ah_attr;
		qp->attr.path_mtu = attr->path_mtu;
		qp->attr.dest_qp_num = attr->dest_qp_num;
		qp->attr.rq_psn = attr->rq_psn;
		qp->attr.max_dest_rd_atomic = attr->max_dest_rd_atomic;
	}
	if (mask & IBV_QP_SQ_PSN) {
		qp->attr.sq_psn = attr->sq_psn;
		qp->attr.rnr_retry = attr->rnr_retry;
		qp->attr.retry_cnt = attr->retry_cnt;
		qp->attr.timeout = attr->timeout;
		qp->attr.max_rd_atomic = attr->max_rd_atomic;
	}
	if (to == IBV_QPS_ERR)
		flush(qp);
	if (to == IBV_QPS_RESET) {
		empty(&qp->send);
		empty(&qp->recv);
	}
	if (to == IBV_QPS_RTS)
		for (int at = 0; at < qp->send.filled; at++)
			qp->send.ring[(qp->send.head + at) % qp->send.size].late = false;
	qp->base.state = qp->attr.qp_state = (enum ibv_qp_state)to;
	run_all();
	return 0;
}

EXPORT(IBV_MODIFY_QP) int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
	struct device *device = device_of(base->context);
	struct about about = { .state = mask & IBV_QP_STATE ? (int)attr->qp_state : -1, .access = -1,
			       .type = (int)base->qp_type, .kind = KIND_QP };
	long value;
	int result;
	if (fault(device, CALL_MODIFY_QP, &about, &value))
		result = (int)value;
	else {
		pthread_mutex_lock(&lock);
		result = change(device, (struct qp *)base, attr, mask);
		pthread_mutex_unlock(&lock);
	}
	if (attr->qp_state == IBV_QPS_RTR)
		note(device, "modify_qp qp=%u state=rtr dest=%u sgid_index=%u mtu=%d dlid=%u result=%d", base->qp_num,
		     attr->dest_qp_num, attr->ah_attr.grh.sgid_index, 128 << attr->path_mtu, attr->ah_attr.dlid, result);
	else if (attr->qp_state == IBV_QPS_INIT)
		note(device, "modify_qp qp=%u state=init access=%u result=%d", base->qp_num, attr->qp_access_flags, result);
	else
		note(device, "modify_qp qp=%u state=%d result=%d", base->qp_num, (int)attr->qp_state, result);
	if (result)
		errno = abs(result);
	return result;
}

EXPORT(IBV_QUERY_QP)
int ibv_query_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct qp *qp = (struct qp *)base;
	long value;
	(void)mask;
	if (fault(device_of(base->context), CALL_QUERY_QP, NULL, &value))
		return (int)value;
	pthread_mutex_lock(&lock);
	*attr = qp->attr;
	attr->qp_state = attr->cur_qp_state = base->state;
	attr->cap = qp->cap;
	*init = (struct ibv_qp_init_attr){ .qp_context = base->qp_context, .send_cq = base->send_cq,
					   .recv_cq = base->recv_cq, .cap = qp->cap, .qp_type = base->qp_type,
					   .sq_sig_all = qp->sig_all };
	pthread_mutex_unlock(&lock);
	return 0;
}

EXPORT(IBV_DESTROY_QP) int ibv_destroy_qp(struct ibv_qp *base)
{
	struct qp *qp = (struct qp *)base;
	struct device *device = device_of(base->context);
	long value;
	if (fault(device, CALL_DESTROY_QP, NULL, &value))
		return (int)value;
	pthread_mutex_lock(&lock);
	for (struct qp **at = &qps; *at; at = &(*at)->next)
		if (*at == qp) {
			*at = qp->next;
			break;
		}
	empty(&qp->send);
	empty(&qp->recv);
	/* Those that wait for this one wait for nobody now. */
	run_all();
	pthread_mutex_unlock(&lock);
	note(device, "destroy_qp qp=%u", base->qp_num);
	dismiss(device, KIND_QP);
	free(qp->send.ring);
	free(qp->recv.ring);
	free(qp);
	return 0;
}
