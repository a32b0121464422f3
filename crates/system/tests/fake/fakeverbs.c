/*
 * A libibverbs without hardware, for tests: it has the devices that a file describes, and its calls fail, hang or crash
 * where the file says so. Messages move between queue pairs of one process.
 *
 * The file is the one that the environment variable FAKE_VERBS names; without it, the one that lies beside this library
 * and has its name with `.conf` behind; without that, there are no devices. It is read once, when the library is first
 * called. A mistake in it ends the process with a message.
 *
 * Lines are `key=value`, blank, or comments that begin with `#`. Keys apply in their order.
 *
 *   log=PATH                 before the first device: a line for each call goes there (not for posts and polls)
 *   on.CALL=...              before the first device: rules for get_device_list
 *   device=NAME              begins a device; what follows belongs to it
 *   like=KIND                all of its values are those of a roce, infiniband, iwarp or thunderbolt device; what
 *                            follows changes them
 *   transport=WORD           ib, iwarp, usnic, unspecified, unknown, thunderbolt (100), or a number
 *   node_type=WORD           ca, switch, router, rnic, unspecified, unknown, or a number
 *   guid=N vendor=N part=N firmware=TEXT
 *   max_qp=N max_qp_wr=N max_sge=N max_cq=N max_cqe=N max_mr=N max_mr_size=N max_pd=N max_rd_atom=N
 *                            what query_device tells; the library holds to them
 *   busy_pd=ERRNO busy_mr=ERRNO busy_cq=ERRNO busy_qp=ERRNO
 *                            what is told when so many live (12 unless said otherwise)
 *   max_inline=N             bytes that a request may carry inline (not told by query_device)
 *   granted_wr=N             queues get this depth at most, whatever was asked for
 *   atomics=WORD             none, hca, glob
 *   boundary=N               registrations that cross a multiple of N are refused with 22
 *   dmabuf=WORD              yes, or no: reg_dmabuf_mr is refused with 95
 *   channel_fd=N             the descriptor that channels show, in the place of their own
 *   port=N                   begins the port, or goes back to it; every device has port 1, and another begins as a copy
 *                            of the first. The keys below belong to the port that was begun last.
 *   state=WORD [after N]     nop, down, init, armed, active, defer; down until the port was queried N times
 *   link_layer=WORD          unspecified, infiniband, ethernet, thunderbolt (100), or a number
 *   mtu=BYTES max_mtu=BYTES speed=N width=N phys_state=N lid=N sm_lid=N max_msg=BYTES
 *                            speed and width as the verbs have them: speed 16 = 14 Gb/s, 32 = 25, 64 = 50, 128 = 100 a
 *                            lane; width 1 = 1 lane, 2 = 4, 4 = 8, 8 = 12, 16 = 2
 *   gid_table=N              how many entries the table has (it grows with `gid`)
 *   no_gids=1                forgets the GIDs so far (those of `like`)
 *   gid=INDEX ADDRESS [ib | roce1 | roce2] [ifindex N] [after N] [until N] [ms N]
 *                            an entry, written like an IPv6 address; it is there only after the table was read N times,
 *                            until it was read N times, or N milliseconds after the library was first called. A read
 *                            is query_gid_table (for all ports), or query_gid or query_gid_ex of index 0.
 *
 *   on.CALL=fail ERRNO [conditions]     CALL is the name without `ibv_`; data-path calls are post_send, post_recv,
 *                                       poll_cq, req_notify_cq; query_gid_ex counts as query_gid. Calls that give a
 *                                       pointer return NULL and set errno; query_gid and get_cq_event return -1 and set
 *                                       it; query_gid_table returns it negative; all others return the number, with its
 *                                       sign: `fail -12` is a post that returns -12.
 *   on.CALL=hang | crash | abort        never returns; SIGSEGV; SIGABRT
 *   on.CALL=sleep MS                    goes on after a while
 *   on.CALL=gone                        fails with 5, and all contexts of the device get IBV_EVENT_DEVICE_FATAL
 *   Conditions, all of which must hold:
 *     after N      only after N calls to which all else applies
 *     times N      N times, then never again
 *     live N       N objects of this kind live on the device
 *     type T       of the queue pair: rc, uc, ud
 *     state S      to which modify_qp moves: reset, init, rtr, rts, sqd, err
 *     port N       that query_port, query_gid or query_pkey asks for
 *     access BITS  the registration asks for one of these rights (1 = LOCAL_WRITE)
 *     access_is N  the registration asks for exactly these rights
 *     len N        the registration is longer than N bytes
 *
 * The first rule of a device that applies to a call is the one that counts. Devices, named as kernels name them, have
 * uverbs0, uverbs1 ... in their order.
 *
 * What it holds to of its own: limits; which attributes a change of state needs and takes; a GID that is there, on
 * ports that are not InfiniBand's; objects that others still need (16). Thunderbolt devices hold SENDs until they are
 * met, refuse all but SEND and RECV, and compare frames; RC holds SENDs for as often as rnr_retry says (10 ms each);
 * other UC loses them. Whoever posts, changes states or polls moves all messages on: there is no thread.
 *
 * Compiled with -DWITHOUT_IBV_QUERY_GID, the library lacks ibv_query_gid; so for each other name.
 */
#define _GNU_SOURCE
#include "fakeverbs.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#undef ibv_get_device_list
#undef ibv_query_port

struct device *device_of(struct ibv_context *context)
{
	return (struct device *)context->device;
}

struct context *contexts;

struct context *whole(struct ibv_context *context)
{
	return (struct context *)(void *)((char *)context - offsetof(struct context, extended.context));
}

static bool readable(int fd)
{
	struct pollfd look = { .fd = fd, .events = POLLIN };
	return poll(&look, 1, 0) == 1;
}

/* Reads an event from a pipe as its descriptor says: it waits, or there is none. Returns with the lock held if true. */
bool take_event(int reader, void *event, size_t size)
{
	for (;;) {
		struct pollfd look = { .fd = reader, .events = POLLIN };
		if (!(fcntl(reader, F_GETFL) & O_NONBLOCK))
			poll(&look, 1, -1);
		pthread_mutex_lock(&lock);
		if (readable(reader) && read(reader, event, size) == (ssize_t)size)
			return true;
		pthread_mutex_unlock(&lock);
		if (fcntl(reader, F_GETFL) & O_NONBLOCK) {
			errno = EAGAIN;
			return false;
		}
	}
}

/* Takes what begins with the address of what is destroyed out of a pipe of events. The lock is held. */
void forget_events(int reader, int writer, size_t size, const void *about)
{
	char events[1 << 15], *end = events;
	while (readable(reader) && end + size <= events + sizeof(events) && read(reader, end, size) == (ssize_t)size)
		if (memcmp(end, &about, sizeof(about)))
			end += size;
	for (char *event = events; event < end; event += size)
		if (write(writer, event, size) != (ssize_t)size)
			abort();
}

/* A rule lets a call fail that returns a pointer: errno is set. */
bool null_fault(struct device *device, enum call call, struct about about)
{
	long value;
	if (!fault(device, call, &about, &value))
		return false;
	errno = (int)value;
	return true;
}

struct about plain(enum kind kind)
{
	return (struct about){ .state = -1, .access = -1, .kind = kind };
}

/* Devices. */

EXPORT(IBV_GET_DEVICE_LIST) struct ibv_device **ibv_get_device_list(int *count)
{
	struct config *all = config();
	if (null_fault(&all->library, CALL_GET_DEVICE_LIST, plain(KIND_PD)))
		return NULL;
	struct ibv_device **list = calloc((size_t)all->device_count + 1, sizeof(*list));
	for (int at = 0; list && at < all->device_count; at++)
		list[at] = &all->devices[at].base;
	if (count)
		*count = all->device_count;
	note(&all->library, "get_device_list %d", all->device_count);
	return list;
}

EXPORT(IBV_FREE_DEVICE_LIST) void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

EXPORT(IBV_GET_DEVICE_NAME) const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

EXPORT(IBV_GET_DEVICE_GUID) __be64 ibv_get_device_guid(struct ibv_device *device)
{
	return ((struct device *)device)->guid;
}

EXPORT(IBV_GET_DEVICE_INDEX) int ibv_get_device_index(struct ibv_device *device)
{
	return (int)((struct device *)device - config()->devices);
}

EXPORT(IBV_NODE_TYPE_STR) const char *ibv_node_type_str(enum ibv_node_type type)
{
	return type == IBV_NODE_CA ? "InfiniBand channel adapter" : type == IBV_NODE_RNIC ? "iWARP NIC" : "unknown";
}

EXPORT(IBV_PORT_STATE_STR) const char *ibv_port_state_str(enum ibv_port_state state)
{
	return state == IBV_PORT_ACTIVE ? "active" : state == IBV_PORT_DOWN ? "down" : "another state";
}

EXPORT(IBV_WC_STATUS_STR) const char *ibv_wc_status_str(enum ibv_wc_status status)
{
	return status == IBV_WC_SUCCESS ? "success" : "an error";
}

EXPORT(IBV_FORK_INIT) int ibv_fork_init(void)
{
	return 0;
}

/* The exported call writes what was there when it was made, and no more. */
static int fill_port(struct ibv_context *context, uint8_t number, void *into, size_t length)
{
	struct device *device = device_of(context);
	struct about about = { .state = -1, .access = -1, .port = number };
	long value;
	if (fault(device, CALL_QUERY_PORT, &about, &value))
		return (int)value;
	if (number < 1 || number > device->port_count)
		return EINVAL;
	struct port *port = &device->ports[number - 1];
	pthread_mutex_lock(&lock);
	struct ibv_port_attr attr = port->attr;
	attr.state = port->queries++ < port->after ? IBV_PORT_DOWN : port->state;
	if (attr.state != IBV_PORT_ACTIVE && attr.phys_state == 5)
		attr.phys_state = 3;
	pthread_mutex_unlock(&lock);
	memcpy(into, &attr, length < sizeof(attr) ? length : sizeof(attr));
	note(device, "query_port %d state=%d", number, (int)attr.state);
	return 0;
}

static int query_port_whole(struct ibv_context *context, uint8_t number, struct ibv_port_attr *attr, size_t length)
{
	return fill_port(context, number, attr, length);
}

EXPORT(IBV_QUERY_PORT)
int ibv_query_port(struct ibv_context *context, uint8_t number, struct _compat_ibv_port_attr *attr)
{
	return fill_port(context, number, attr, offsetof(struct ibv_port_attr, port_cap_flags2));
}

EXPORT(IBV_OPEN_DEVICE) struct ibv_context *ibv_open_device(struct ibv_device *base)
{
	struct device *device = (struct device *)base;
	if (null_fault(device, CALL_OPEN_DEVICE, plain(KIND_PD)))
		return NULL;
	int events[2];
	if (pipe2(events, O_CLOEXEC))
		return NULL;
	struct context *all = calloc(1, sizeof(*all));
	struct verbs_context *extended = &all->extended;
	struct ibv_context *context = &extended->context;
	extended->sz = sizeof(*extended);
	extended->query_port = query_port_whole;
	context->device = base;
	context->ops.poll_cq = poll_cq;
	context->ops.req_notify_cq = req_notify_cq;
	context->ops.post_send = post_send;
	context->ops.post_recv = post_recv;
	context->cmd_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	context->async_fd = events[0];
	all->writer = events[1];
	context->num_comp_vectors = 1;
	pthread_mutex_init(&context->mutex, NULL);
	context->abi_compat = __VERBS_ABI_IS_EXTENDED;
	pthread_mutex_lock(&lock);
	all->next = contexts;
	contexts = all;
	pthread_mutex_unlock(&lock);
	note(device, "open_device");
	return context;
}

EXPORT(IBV_CLOSE_DEVICE) int ibv_close_device(struct ibv_context *context)
{
	struct device *device = device_of(context);
	long value;
	if (fault(device, CALL_CLOSE_DEVICE, NULL, &value))
		return (int)value;
	struct context *all = whole(context);
	pthread_mutex_lock(&lock);
	for (struct context **at = &contexts; *at; at = &(*at)->next)
		if (*at == all) {
			*at = all->next;
			break;
		}
	pthread_mutex_unlock(&lock);
	close(context->cmd_fd);
	close(context->async_fd);
	close(all->writer);
	free(all);
	note(device, "close_device");
	return 0;
}

EXPORT(IBV_GET_ASYNC_EVENT) int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	if (!take_event(context->async_fd, event, sizeof(*event)))
		return -1;
	if (event->event_type == IBV_EVENT_CQ_ERR)
		((struct cq *)event->element.cq)->failed++;
	pthread_mutex_unlock(&lock);
	return 0;
}

EXPORT(IBV_ACK_ASYNC_EVENT) void ibv_ack_async_event(struct ibv_async_event *event)
{
	if (event->event_type != IBV_EVENT_CQ_ERR)
		return;
	struct ibv_cq *cq = event->element.cq;
	pthread_mutex_lock(&cq->mutex);
	cq->async_events_completed++;
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

EXPORT(IBV_QUERY_DEVICE) int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	struct device *device = device_of(context);
	long value;
	if (fault(device, CALL_QUERY_DEVICE, NULL, &value))
		return (int)value;
	*attr = device->attr;
	attr->node_guid = attr->sys_image_guid = device->guid;
	note(device, "query_device");
	return 0;
}

EXPORT(IBV_QUERY_PKEY) int ibv_query_pkey(struct ibv_context *context, uint8_t number, int index, __be16 *key)
{
	struct about about = { .state = -1, .access = -1, .port = number };
	if (null_fault(device_of(context), CALL_QUERY_PKEY, about))
		return -1;
	*key = index ? 0 : htobe16(0xffff);
	return 0;
}

/* GIDs. */

static bool present(const struct port *port, const struct gid *gid)
{
	return (!gid->after || port->reads > gid->after) && (!gid->until || port->reads <= gid->until) && milliseconds() >= gid->ms;
}

const struct gid *gid_at(const struct port *port, int index)
{
	for (int at = 0; at < port->gid_count; at++)
		if (port->gids[at].index == index && present(port, &port->gids[at]))
			return &port->gids[at];
	return NULL;
}

/* An entry that is there but empty is zero; beyond the table there is nothing. */
static int read_gid(struct ibv_context *context, uint32_t number, uint32_t index, struct ibv_gid_entry *entry)
{
	struct device *device = device_of(context);
	struct about about = { .state = -1, .access = -1, .port = (int)number };
	long value;
	if (fault(device, CALL_QUERY_GID, &about, &value))
		return (int)value;
	if (number < 1 || number > (uint32_t)device->port_count)
		return EINVAL;
	struct port *port = &device->ports[number - 1];
	if (index >= (uint32_t)port->attr.gid_tbl_len)
		return EINVAL;
	pthread_mutex_lock(&lock);
	port->reads += index == 0;
	const struct gid *gid = gid_at(port, (int)index);
	*entry = (struct ibv_gid_entry){ .gid_index = index, .port_num = number };
	if (gid) {
		entry->gid = gid->raw;
		entry->gid_type = (uint32_t)gid->type;
		entry->ndev_ifindex = (uint32_t)gid->ifindex;
	}
	pthread_mutex_unlock(&lock);
	return 0;
}

EXPORT(IBV_QUERY_GID) int ibv_query_gid(struct ibv_context *context, uint8_t number, int index, union ibv_gid *gid)
{
	struct ibv_gid_entry entry;
	int result = read_gid(context, number, (uint32_t)index, &entry);
	if (result) {
		errno = result;
		return -1;
	}
	*gid = entry.gid;
	return 0;
}

EXPORT(_IBV_QUERY_GID_EX)
int _ibv_query_gid_ex(struct ibv_context *context, uint32_t number, uint32_t index, struct ibv_gid_entry *entry,
		      uint32_t flags, size_t size)
{
	if (flags || size < sizeof(*entry))
		return EINVAL;
	int result = read_gid(context, number, index, entry);
	static const union ibv_gid zero;
	return result ? result : memcmp(&entry->gid, &zero, sizeof(zero)) ? 0 : ENODATA;
}

EXPORT(_IBV_QUERY_GID_TABLE)
ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max_entries,
			     uint32_t flags, size_t size)
{
	struct device *device = device_of(context);
	size_t count = 0;
	long value;
	if (fault(device, CALL_QUERY_GID_TABLE, NULL, &value))
		return -value;
	if (flags || size < sizeof(*entries))
		return -EINVAL;
	pthread_mutex_lock(&lock);
	for (int number = 1; number <= device->port_count; number++) {
		struct port *port = &device->ports[number - 1];
		port->reads++;
		for (int index = 0; index < port->attr.gid_tbl_len && count < max_entries; index++) {
			const struct gid *gid = gid_at(port, index);
			/* The kernel leaves out empty entries. */
			if (gid && (gid->raw.global.subnet_prefix || gid->raw.global.interface_id))
				*(struct ibv_gid_entry *)(void *)((char *)entries + count++ * size) = (struct ibv_gid_entry){
					.gid = gid->raw, .gid_index = (uint32_t)index, .port_num = (uint32_t)number,
					.gid_type = (uint32_t)gid->type, .ndev_ifindex = (uint32_t)gid->ifindex };
		}
	}
	pthread_mutex_unlock(&lock);
	note(device, "query_gid_table %zu", count);
	return (ssize_t)count;
}
