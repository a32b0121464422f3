/* Rules that let calls fail, hang or crash, and the log of calls. */
#include "fakeverbs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool applies(const struct rule *rule, enum call call, const struct about *about, const struct device *device)
{
	return rule->call == call && (!rule->type || rule->type == about->type) &&
	       (rule->state < 0 || rule->state == about->state) && (!rule->port || rule->port == about->port) &&
	       (!rule->access || (about->access >= 0 && (about->access & rule->access))) &&
	       (rule->access_is < 0 || about->access == rule->access_is) && (!rule->len || about->len > rule->len) &&
	       (rule->live < 0 || device->live[about->kind] >= rule->live);
}

/* Whether a call is to fail, and with what. It does not return if the call is to hang or crash. */
bool fault(struct device *device, enum call call, const struct about *about, long *value)
{
	static const struct about nothing = { .state = -1, .access = -1 };
	struct rule *found = NULL;
	struct rule copy;
	if (!about)
		about = &nothing;
	pthread_mutex_lock(&lock);
	for (int at = 0; at < device->rule_count && !found; at++) {
		struct rule *rule = &device->rules[at];
		if (!applies(rule, call, about, device) || rule->seen++ < rule->after)
			continue;
		if (rule->times < 0 || rule->done++ < rule->times)
			found = rule;
	}
	if (found)
		copy = *found;
	pthread_mutex_unlock(&lock);
	if (!found)
		return false;
	note(device, "%s rule", call_names[call]);
	struct timespec pause_for = { .tv_sec = copy.value / 1000, .tv_nsec = copy.value % 1000 * 1000000 };
	switch (copy.action) {
	case ACT_GONE:
		pthread_mutex_lock(&lock);
		for (struct context *context = contexts; context; context = context->next) {
			struct ibv_async_event event = { .event_type = IBV_EVENT_DEVICE_FATAL };
			if (context->extended.context.device == &device->base &&
			    write(context->writer, &event, sizeof(event)) != sizeof(event))
				abort();
		}
		pthread_mutex_unlock(&lock);
		*value = EIO;
		return true;
	case ACT_FAIL:
		*value = copy.value;
		return true;
	case ACT_SLEEP:
		nanosleep(&pause_for, NULL);
		return false;
	case ACT_HANG:
		for (;;)
			pause();
	case ACT_CRASH:
	case ACT_ABORT:
		/* It is meant, so nobody wants a core file. */
		setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
		signal(SIGSEGV, SIG_DFL);
		raise(copy.action == ACT_CRASH ? SIGSEGV : SIGABRT);
		abort();
	}
	return false;
}

/* A line in the log, if there is one. */
void note(const struct device *device, const char *format, ...)
{
	char line[512];
	va_list arguments;
	if (!config()->log[0])
		return;
	int length = snprintf(line, sizeof(line), "%s ", device->base.name[0] ? device->base.name : "-");
	va_start(arguments, format);
	length += vsnprintf(line + length, sizeof(line) - (size_t)length - 1, format, arguments);
	va_end(arguments);
	line[length++] = '\n';
	int fd = open(config()->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, line, (size_t)length) != length)
		perror("fakeverbs: the log");
	if (fd >= 0)
		close(fd);
}
