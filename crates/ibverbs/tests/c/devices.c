/* Devices, ports, tables and asynchronous events, and the numbers of their errors. */
#include "common.h"

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0] && !list[1]);
	struct ibv_device *device = list[0];
	SAME(strcmp(ibv_get_device_name(device), "fulmen_0"), 0);
	SAME(ibv_get_device_index(device), 0);
	CHECK(ibv_get_device_guid(device) != 0);
	SAME(device->node_type, IBV_NODE_CA);
	SAME(device->transport_type, IBV_TRANSPORT_IB);
	struct ibv_context *context = ibv_open_device(device), *second = ibv_open_device(device);
	CHECK(context && second && context != second);
	/* Devices that are open outlive the list. */
	ibv_free_device_list(list);
	CHECK(context->device == device && context->async_fd >= 0 && context->num_comp_vectors >= 1);
	errno = 0;
	CHECK(ibv_open_device(NULL) == NULL);
	SAME(errno, ENODEV);

	struct ibv_device_attr attr;
	memset(&attr, 0xff, sizeof attr);
	SAME(ibv_query_device(context, &attr), 0);
	CHECK(attr.max_qp > 100 && attr.max_mr > 1000 && attr.phys_port_cnt == 1);
	CHECK(attr.node_guid == ibv_get_device_guid(device));
	struct ibv_device_attr_ex extended;
	memset(&extended, 0xff, sizeof extended);
	SAME(ibv_query_device_ex(context, NULL, &extended), 0);
	SAME(extended.orig_attr.max_qp, attr.max_qp);
	SAME(extended.phys_port_cnt_ex, 1);
	SAME(extended.max_dm_size, 0);
	struct ibv_query_device_ex_input input = { .comp_mask = 1 };
	SAME(ibv_query_device_ex(context, &input, &extended), EINVAL);
	/* A program of another release has another length. */
	struct verbs_context *calls = verbs_get_ctx(context);
	CHECK(calls);
	char room[sizeof extended + 64];
	memset(room, 0x55, sizeof room);
	SAME(calls->query_device_ex(context, NULL, (void *)room, sizeof extended + 32), 0);
	CHECK(room[sizeof extended + 31] == 0 && room[sizeof extended + 32] == 0x55);
	memset(room, 0x55, sizeof room);
	SAME(calls->query_device_ex(context, NULL, (void *)room, sizeof attr), 0);
	CHECK(room[sizeof attr] == 0x55 && memcmp(room, &attr, sizeof attr) == 0);
	SAME(calls->query_device_ex(context, NULL, (void *)room, 8), EINVAL);

	struct ibv_port_attr port;
	memset(&port, 0xff, sizeof port);
	SAME(ibv_query_port(context, 1, &port), 0);
	CHECK(port.state == IBV_PORT_ACTIVE && port.active_mtu == IBV_MTU_4096 && port.lid != 0);
	SAME(port.link_layer, IBV_LINK_LAYER_INFINIBAND);
	SAME(port.port_cap_flags2, 0);
	/* The exported call writes the first version's 48 bytes alone. */
	memset(room, 0x55, sizeof room);
	SAME((ibv_query_port)(context, 1, (void *)room), 0);
	CHECK(memcmp(room, &port, 48) == 0 && room[48] == 0x55);
	SAME(ibv_query_port(context, 0, &port), EINVAL);
	SAME(ibv_query_port(context, 2, &port), EINVAL);

	union ibv_gid gid, zero = { .raw = { 0 } };
	SAME(ibv_query_gid(context, 1, 0, &gid), 0);
	CHECK(memcmp(&gid, &zero, sizeof gid) != 0);
	SAME(ibv_query_gid(context, 1, port.gid_tbl_len, &gid), -1);
	SAME(ibv_query_gid(context, 1, -1, &gid), -1);
	SAME(ibv_query_gid(context, 2, 0, &gid), -1);
	struct ibv_gid_entry entry, entries[4];
	SAME(ibv_query_gid_ex(context, 1, 0, &entry, 0), 0);
	CHECK(memcmp(&entry.gid, &gid, sizeof gid) == 0 && entry.port_num == 1 && entry.gid_type == IBV_GID_TYPE_IB);
	SAME(ibv_query_gid_ex(context, 1, 0, &entry, 1), EOPNOTSUPP);
	SAME(ibv_query_gid_ex(context, 1, 1000, &entry, 0), EINVAL);
	SAME(ibv_query_gid_table(context, entries, 4, 0), port.gid_tbl_len);
	CHECK(memcmp(&entries[0].gid, &gid, sizeof gid) == 0);
	SAME(ibv_query_gid_table(context, entries, 0, 0), -EINVAL);

	__be16 pkey;
	SAME(ibv_query_pkey(context, 1, 0, &pkey), 0);
	SAME(pkey, 0xffff);
	SAME(ibv_query_pkey(context, 1, 1, &pkey), -1);
	SAME(ibv_get_pkey_index(context, 1, htons(0xffff)), 0);
	SAME(ibv_get_pkey_index(context, 1, htons(0x8001)), -1);

	/* No event: the program that asked not to wait is not made to. */
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	SAME(poll(&fd, 1, 0), 0);
	SAME(fcntl(context->async_fd, F_SETFL, O_NONBLOCK), 0);
	struct ibv_async_event event;
	SAME(ibv_get_async_event(context, &event), -1);
	SAME(errno, EAGAIN);

	/* Forks need nothing. */
	SAME(ibv_fork_init(), 0);
	SAME(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
	pid_t child = fork();
	if (child == 0) {
		/* A child has devices of its own. */
		struct ibv_context *own = open_device();
		struct ibv_port_attr other;
		SAME(ibv_query_port(own, 1, &other), 0);
		CHECK(other.lid != port.lid);
		SAME(ibv_close_device(own), 0);
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);

	/* Both contexts are one device. */
	struct ibv_port_attr same;
	SAME(ibv_query_port(second, 1, &same), 0);
	SAME(same.lid, port.lid);
	SAME(ibv_close_device(second), 0);
	SAME(ibv_close_device(context), 0);
	return 0;
}
