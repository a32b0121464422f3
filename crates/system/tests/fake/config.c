/* Reads the configuration: its grammar is at the top of fakeverbs.c. */
#define _GNU_SOURCE
#include "fakeverbs.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

const char *const call_names[CALLS] = {
	"get_device_list", "open_device", "close_device", "query_device", "query_port", "query_gid", "query_gid_table",
	"query_pkey", "alloc_pd", "dealloc_pd", "reg_mr", "reg_dmabuf_mr", "dereg_mr", "create_comp_channel",
	"destroy_comp_channel", "create_cq", "destroy_cq", "req_notify_cq", "get_cq_event", "create_qp", "modify_qp",
	"query_qp", "destroy_qp", "post_send", "post_recv", "poll_cq",
};

struct word {
	const char *name;
	long value;
};

/* What each likeness stands for, in the grammar itself. */
static const struct {
	const char *name, *text;
} likenesses[] = {
	{ "roce",
	  "transport=ib\nnode_type=ca\nvendor=0x02c9\npart=4119\nfirmware=16.35.1\nmax_qp=1024\nmax_qp_wr=16384\n"
	  "max_sge=16\nmax_inline=256\nmax_cq=4096\nmax_cqe=1048576\nmax_mr=32768\nmax_pd=1024\nmax_rd_atom=16\n"
	  "atomics=hca\nlink_layer=ethernet\nmtu=1024\nmax_mtu=4096\nspeed=64\nwidth=2\nmax_msg=1073741824\n"
	  "gid=0 fe80::5054:ff:fe00:1 roce2 ifindex 1\ngid=1 ::ffff:192.0.2.1 roce2 ifindex 1\n" },
	{ "infiniband",
	  "transport=ib\nnode_type=ca\nvendor=0x02c9\npart=4123\nfirmware=20.35.1\nmax_qp=1024\nmax_qp_wr=16384\n"
	  "max_sge=16\nmax_inline=256\nmax_cq=4096\nmax_cqe=1048576\nmax_mr=32768\nmax_pd=1024\nmax_rd_atom=16\n"
	  "atomics=hca\nlink_layer=infiniband\nlid=7\nsm_lid=1\nmtu=4096\nmax_mtu=4096\nspeed=128\nwidth=2\n"
	  "max_msg=1073741824\ngid=0 fe80::5054:ff:fe00:1 ib\n" },
	{ "iwarp",
	  "transport=iwarp\nnode_type=rnic\nvendor=0x626d74\npart=0\nfirmware=0.0.0\nmax_qp=1024\nmax_qp_wr=16384\n"
	  "max_sge=6\nmax_inline=256\nmax_cq=4096\nmax_cqe=1048576\nmax_mr=32768\nmax_pd=1024\nmax_rd_atom=16\n"
	  "atomics=none\nlink_layer=ethernet\nmtu=1024\nmax_mtu=4096\nspeed=4\nwidth=2\nmax_msg=1073741824\n"
	  "gid=0 5054:ff:fe00:100:: roce2\non.create_qp=fail 95 type uc\n" },
	{ "thunderbolt",
	  "transport=thunderbolt\nnode_type=ca\nvendor=0x05ac\npart=1\nfirmware=1.0\nmax_qp=10\nmax_qp_wr=4095\n"
	  "max_sge=1\nmax_inline=0\nmax_cq=20\nmax_cqe=4095\nmax_mr=100\nmax_pd=20\nmax_rd_atom=0\natomics=none\n"
	  "busy_qp=16\nbusy_pd=96\ndmabuf=no\n"
	  "boundary=4294967296\nlink_layer=thunderbolt\nmtu=4096\nmax_mtu=4096\nspeed=4\nwidth=4\nmax_msg=16773120\n"
	  "gid=0 fe80::5054:ff:fe00:1\ngid=1 ::ffff:192.0.2.1\non.create_qp=fail 102 type rc\n" },
};

static struct config state;
static struct timespec start;
static int line_number;

static void __attribute__((noreturn, format(printf, 1, 2))) wrong(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fprintf(stderr, "fakeverbs: line %d of the configuration: ", line_number);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	abort();
}

static bool lookup(const struct word *words, const char *text, long *value)
{
	for (; words->name; words++)
		if (!strcmp(words->name, text)) {
			*value = words->value;
			return true;
		}
	return false;
}

static long number(const char *text)
{
	char *end;
	errno = 0;
	long long value = text ? strtoll(text, &end, 0) : 0;
	if (!text || end == text || *end || errno)
		wrong("%s is no number", text ? text : "nothing");
	return (long)value;
}

/* A word of the list, or a number. */
static long one_of(const struct word *words, const char *text)
{
	long value;
	return text && lookup(words, text, &value) ? value : number(text);
}

static const struct word transports[] = { { "ib", IBV_TRANSPORT_IB }, { "iwarp", IBV_TRANSPORT_IWARP },
	{ "usnic", IBV_TRANSPORT_USNIC }, { "unspecified", IBV_TRANSPORT_UNSPECIFIED }, { "unknown", IBV_TRANSPORT_UNKNOWN },
	{ "thunderbolt", THUNDERBOLT }, { 0 } };
static const struct word node_types[] = { { "ca", IBV_NODE_CA }, { "switch", IBV_NODE_SWITCH },
	{ "router", IBV_NODE_ROUTER }, { "rnic", IBV_NODE_RNIC }, { "unspecified", IBV_NODE_UNSPECIFIED },
	{ "unknown", IBV_NODE_UNKNOWN }, { 0 } };
static const struct word link_layers[] = { { "unspecified", IBV_LINK_LAYER_UNSPECIFIED },
	{ "infiniband", IBV_LINK_LAYER_INFINIBAND }, { "ethernet", IBV_LINK_LAYER_ETHERNET },
	{ "thunderbolt", THUNDERBOLT }, { 0 } };
static const struct word states[] = { { "nop", IBV_PORT_NOP }, { "down", IBV_PORT_DOWN }, { "init", IBV_PORT_INIT },
	{ "armed", IBV_PORT_ARMED }, { "active", IBV_PORT_ACTIVE }, { "defer", IBV_PORT_ACTIVE_DEFER }, { 0 } };
static const struct word mtus[] = { { "256", IBV_MTU_256 }, { "512", IBV_MTU_512 }, { "1024", IBV_MTU_1024 },
	{ "2048", IBV_MTU_2048 }, { "4096", IBV_MTU_4096 }, { 0 } };
static const struct word atomics[] = { { "none", IBV_ATOMIC_NONE }, { "hca", IBV_ATOMIC_HCA }, { "glob", IBV_ATOMIC_GLOB },
	{ 0 } };
static const struct word qp_types[] = { { "rc", IBV_QPT_RC }, { "uc", IBV_QPT_UC }, { "ud", IBV_QPT_UD }, { 0 } };
static const struct word qp_states[] = { { "reset", IBV_QPS_RESET }, { "init", IBV_QPS_INIT }, { "rtr", IBV_QPS_RTR },
	{ "rts", IBV_QPS_RTS }, { "sqd", IBV_QPS_SQD }, { "err", IBV_QPS_ERR }, { 0 } };
static const struct word answers[] = { { "no", 0 }, { "yes", 1 }, { 0 } };

static struct port *add_port(struct device *device, long index)
{
	if (index != device->port_count + 1 || index > PORTS)
		wrong("port %ld: ports are numbered from 1, in order, up to %d", index, PORTS);
	struct port *port = &device->ports[device->port_count++];
	/* Another port is like the first, as far as that was told. */
	if (device->port_count > 1)
		*port = device->ports[0];
	else
		*port = (struct port){ .state = IBV_PORT_ACTIVE,
			.attr = { .max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_4096, .max_msg_sz = 1 << 30, .pkey_tbl_len = 1,
				  .active_width = 2, .active_speed = 16, .phys_state = 5, .link_layer = IBV_LINK_LAYER_ETHERNET,
				  .gid_tbl_len = 8 } };
	device->attr.phys_port_cnt = (uint8_t)device->port_count;
	return port;
}

static struct device *add_device(const char *name)
{
	if (state.device_count == DEVICES)
		wrong("more than %d devices", DEVICES);
	int index = state.device_count++;
	struct device *device = &state.devices[index];
	device->base.node_type = IBV_NODE_CA;
	snprintf(device->base.name, sizeof(device->base.name), "%s", name);
	snprintf(device->base.dev_name, sizeof(device->base.dev_name), "uverbs%d", index);
	snprintf(device->base.dev_path, sizeof(device->base.dev_path), "/sys/class/infiniband_verbs/uverbs%d", index);
	snprintf(device->base.ibdev_path, sizeof(device->base.ibdev_path), "/sys/class/infiniband/%s", name);
	device->guid = htobe64(0x5254000000000001 + (uint64_t)index);
	device->attr = (struct ibv_device_attr){ .fw_ver = "1.0", .max_mr_size = UINT64_MAX, .page_size_cap = 0xfffff000,
		.max_qp = 64, .max_qp_wr = 4096, .max_sge = 4, .max_sge_rd = 4, .max_cq = 64, .max_cqe = 65536, .max_mr = 1024,
		.max_pd = 64, .max_qp_rd_atom = 16, .max_qp_init_rd_atom = 16, .max_pkeys = 1, .local_ca_ack_delay = 15 };
	device->dmabuf = true;
	for (int kind = 0; kind < KINDS; kind++)
		device->busy[kind] = ENOMEM;
	add_port(device, 1);
	return device;
}

static void parse_gid(struct port *port, char *text)
{
	char *rest, *word = strtok_r(text, " \t", &rest);
	int index = (int)number(word);
	struct gid *gid = NULL;
	for (int at = 0; at < port->gid_count; at++)
		if (port->gids[at].index == index)
			gid = &port->gids[at];
	if (!gid) {
		if (port->gid_count == GIDS || index < 0 || index > 255)
			wrong("a port has up to %d GIDs, of index 0 to 255", GIDS);
		gid = &port->gids[port->gid_count++];
	}
	*gid = (struct gid){ .index = index, .type = IBV_GID_TYPE_IB };
	word = strtok_r(NULL, " \t", &rest);
	if (!word || inet_pton(AF_INET6, word, gid->raw.raw) != 1)
		wrong("%s is no GID (write it like an IPv6 address)", word ? word : "nothing");
	while ((word = strtok_r(NULL, " \t", &rest))) {
		if (!strcmp(word, "ib"))
			gid->type = IBV_GID_TYPE_IB;
		else if (!strcmp(word, "roce1"))
			gid->type = IBV_GID_TYPE_ROCE_V1;
		else if (!strcmp(word, "roce2"))
			gid->type = IBV_GID_TYPE_ROCE_V2;
		else if (!strcmp(word, "ifindex"))
			gid->ifindex = (int)number(strtok_r(NULL, " \t", &rest));
		else if (!strcmp(word, "after"))
			gid->after = number(strtok_r(NULL, " \t", &rest));
		else if (!strcmp(word, "until"))
			gid->until = number(strtok_r(NULL, " \t", &rest));
		else if (!strcmp(word, "ms"))
			gid->ms = number(strtok_r(NULL, " \t", &rest));
		else
			wrong("%s says nothing about a GID", word);
	}
	if (index >= port->attr.gid_tbl_len)
		port->attr.gid_tbl_len = index + 1;
}

static void parse_rule(struct device *device, const char *name, char *text)
{
	static const struct word actions[] = { { "fail", ACT_FAIL }, { "hang", ACT_HANG }, { "crash", ACT_CRASH },
		{ "abort", ACT_ABORT }, { "sleep", ACT_SLEEP }, { "gone", ACT_GONE }, { 0 } };
	struct rule rule = { .call = CALLS, .times = -1, .live = -1, .state = -1, .access_is = -1 };
	char *rest, *word;
	long action;
	for (int call = 0; call < CALLS; call++)
		if (!strcmp(call_names[call], name))
			rule.call = (enum call)call;
	if (rule.call == CALLS)
		wrong("there is no call %s", name);
	if (device->rule_count == RULES)
		wrong("more than %d rules", RULES);
	word = strtok_r(text, " \t", &rest);
	if (!word || !lookup(actions, word, &action))
		wrong("%s is no action", word ? word : "nothing");
	rule.action = (enum action)action;
	if (rule.action == ACT_FAIL || rule.action == ACT_SLEEP)
		rule.value = number(strtok_r(NULL, " \t", &rest));
	while ((word = strtok_r(NULL, " \t", &rest))) {
		char *value = strtok_r(NULL, " \t", &rest);
		if (!strcmp(word, "after"))
			rule.after = number(value);
		else if (!strcmp(word, "times"))
			rule.times = number(value);
		else if (!strcmp(word, "live"))
			rule.live = number(value);
		else if (!strcmp(word, "type"))
			rule.type = (int)one_of(qp_types, value);
		else if (!strcmp(word, "state"))
			rule.state = (int)one_of(qp_states, value);
		else if (!strcmp(word, "port"))
			rule.port = (int)number(value);
		else if (!strcmp(word, "access"))
			rule.access = number(value);
		else if (!strcmp(word, "access_is"))
			rule.access_is = number(value);
		else if (!strcmp(word, "len"))
			rule.len = (uint64_t)number(value);
		else
			wrong("%s is no condition", word);
	}
	device->rules[device->rule_count++] = rule;
}

static void parse_text(char *text, struct device **device, struct port **port, bool counted);

/* A likeness is the configuration that it stands for, read at this place. */
static void be_like(const char *name, struct device *device, struct port *port)
{
	for (size_t at = 0; at < sizeof(likenesses) / sizeof(*likenesses); at++)
		if (!strcmp(likenesses[at].name, name)) {
			char *text = strdup(likenesses[at].text);
			parse_text(text, &device, &port, false);
			free(text);
			return;
		}
	wrong("nothing is like %s", name);
}

static bool parse_port(struct port *port, const char *key, char *value)
{
	struct ibv_port_attr *attr = &port->attr;
	char *rest, *word;
	if (!strcmp(key, "state")) {
		word = strtok_r(value, " \t", &rest);
		port->state = (enum ibv_port_state)one_of(states, word);
		word = strtok_r(NULL, " \t", &rest);
		if (word && strcmp(word, "after"))
			wrong("%s is no condition of a state", word);
		port->after = word ? number(strtok_r(NULL, " \t", &rest)) : 0;
	} else if (!strcmp(key, "link_layer"))
		attr->link_layer = (uint8_t)one_of(link_layers, value);
	else if (!strcmp(key, "mtu"))
		attr->active_mtu = (enum ibv_mtu)one_of(mtus, value);
	else if (!strcmp(key, "max_mtu"))
		attr->max_mtu = (enum ibv_mtu)one_of(mtus, value);
	else if (!strcmp(key, "speed"))
		attr->active_speed = (uint8_t)number(value);
	else if (!strcmp(key, "width"))
		attr->active_width = (uint8_t)number(value);
	else if (!strcmp(key, "lid"))
		attr->lid = (uint16_t)number(value);
	else if (!strcmp(key, "sm_lid"))
		attr->sm_lid = (uint16_t)number(value);
	else if (!strcmp(key, "max_msg"))
		attr->max_msg_sz = (uint32_t)number(value);
	else if (!strcmp(key, "phys_state"))
		attr->phys_state = (uint8_t)number(value);
	else if (!strcmp(key, "gid_table"))
		attr->gid_tbl_len = (int)number(value);
	else if (!strcmp(key, "gid"))
		parse_gid(port, value);
	else if (!strcmp(key, "no_gids") && number(value) == 1)
		port->gid_count = 0;
	else
		return false;
	return true;
}

static bool parse_device(struct device *device, const char *key, char *value)
{
	struct ibv_device_attr *attr = &device->attr;
	if (!strcmp(key, "transport"))
		device->base.transport_type = (enum ibv_transport_type)one_of(transports, value);
	else if (!strcmp(key, "node_type"))
		device->base.node_type = (enum ibv_node_type)one_of(node_types, value);
	else if (!strcmp(key, "guid"))
		device->guid = htobe64(strtoull(value, NULL, 0));
	else if (!strcmp(key, "firmware"))
		snprintf(attr->fw_ver, sizeof(attr->fw_ver), "%s", value);
	else if (!strcmp(key, "vendor"))
		attr->vendor_id = (uint32_t)number(value);
	else if (!strcmp(key, "part"))
		attr->vendor_part_id = (uint32_t)number(value);
	else if (!strcmp(key, "max_mr_size"))
		attr->max_mr_size = strtoull(value, NULL, 0);
	else if (!strcmp(key, "max_qp"))
		attr->max_qp = (int)number(value);
	else if (!strcmp(key, "max_qp_wr"))
		attr->max_qp_wr = (int)number(value);
	else if (!strcmp(key, "max_sge"))
		attr->max_sge = attr->max_sge_rd = (int)number(value);
	else if (!strcmp(key, "max_cq"))
		attr->max_cq = (int)number(value);
	else if (!strcmp(key, "max_cqe"))
		attr->max_cqe = (int)number(value);
	else if (!strcmp(key, "max_mr"))
		attr->max_mr = (int)number(value);
	else if (!strcmp(key, "max_pd"))
		attr->max_pd = (int)number(value);
	else if (!strcmp(key, "max_rd_atom"))
		attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = (int)number(value);
	else if (!strcmp(key, "atomics"))
		attr->atomic_cap = (enum ibv_atomic_cap)one_of(atomics, value);
	else if (!strcmp(key, "max_inline"))
		device->max_inline = (int)number(value);
	else if (!strcmp(key, "granted_wr"))
		device->granted_wr = (int)number(value);
	else if (!strcmp(key, "boundary"))
		device->boundary = (uint64_t)number(value);
	else if (!strcmp(key, "dmabuf"))
		device->dmabuf = one_of(answers, value);
	else if (!strcmp(key, "channel_fd")) {
		device->shows_fd = true;
		device->shown_fd = (int)number(value);
	} else if (!strcmp(key, "busy_pd"))
		device->busy[KIND_PD] = (int)number(value);
	else if (!strcmp(key, "busy_mr"))
		device->busy[KIND_MR] = (int)number(value);
	else if (!strcmp(key, "busy_cq"))
		device->busy[KIND_CQ] = (int)number(value);
	else if (!strcmp(key, "busy_qp"))
		device->busy[KIND_QP] = (int)number(value);
	else
		return false;
	return true;
}

static void parse_line(char *line, struct device **device, struct port **port)
{
	char *key = line + strspn(line, " \t"), *value = strchr(key, '=');
	size_t length = strlen(key);
	if (!length || *key == '#')
		return;
	while (length && strchr(" \t\r", key[length - 1]))
		key[--length] = 0;
	if (!value)
		wrong("%s has no =", key);
	*value++ = 0;
	if (!strcmp(key, "device")) {
		*device = add_device(value);
		*port = &(*device)->ports[0];
	} else if (!strncmp(key, "on.", 3))
		parse_rule(*device ? *device : &state.library, key + 3, value);
	else if (!*device && !strcmp(key, "log"))
		snprintf(state.log, sizeof(state.log), "%s", value);
	else if (!*device)
		wrong("%s belongs to a device, and none was begun", key);
	else if (!strcmp(key, "port")) {
		long index = number(value);
		*port = index >= 1 && index <= (*device)->port_count ? &(*device)->ports[index - 1] : add_port(*device, index);
	} else if (!strcmp(key, "like"))
		be_like(value, *device, *port);
	else if (!parse_port(*port, key, value) && !parse_device(*device, key, value))
		wrong("there is no key %s", key);
}

static void parse_text(char *text, struct device **device, struct port **port, bool counted)
{
	for (char *line; (line = strsep(&text, "\n"));) {
		line_number += counted;
		parse_line(line, device, port);
	}
}

/* The file that FAKE_VERBS names; without it, the one beside this library with `.conf` after its name. */
static FILE *open_config(void)
{
	const char *named = getenv("FAKE_VERBS");
	char path[4096];
	Dl_info self;
	if (named) {
		FILE *file = fopen(named, "re");
		if (!file)
			wrong("%s, which FAKE_VERBS names, cannot be read", named);
		return file;
	}
	if (!dladdr((void *)config, &self) || !self.dli_fname)
		return NULL;
	snprintf(path, sizeof(path), "%s.conf", self.dli_fname);
	return fopen(path, "re");
}

static void load(void)
{
	static char text[1 << 16];
	struct device *device = NULL;
	struct port *port = NULL;
	clock_gettime(CLOCK_MONOTONIC, &start);
	FILE *file = open_config();
	if (!file)
		return;
	size_t length = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[length] = 0;
	parse_text(text, &device, &port, true);
}

struct config *config(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, load);
	return &state;
}

long milliseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000;
}
