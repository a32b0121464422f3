/* Threads that wait for events can be cancelled, and what they wait for can be closed under them. */
#include "common.h"
#include <rdma/rdma_cma.h>
#include <sys/syscall.h>

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct rdma_event_channel *manager;
static volatile int waiter, cleaned;

static void clean(void *nothing)
{
	(void)nothing;
	cleaned++;
}

static void begin(void)
{
	waiter = (int)syscall(SYS_gettid);
}

static void *wait_for_completions(void *answer)
{
	struct ibv_cq *cq;
	void *own;
	pthread_cleanup_push(clean, NULL);
	begin();
	*(int *)answer = ibv_get_cq_event(channel, &cq, &own);
	pthread_cleanup_pop(0);
	return NULL;
}

static void *wait_for_events(void *answer)
{
	struct ibv_async_event event;
	pthread_cleanup_push(clean, NULL);
	begin();
	*(int *)answer = ibv_get_async_event(context, &event);
	pthread_cleanup_pop(0);
	return NULL;
}

static void *wait_for_connections(void *answer)
{
	struct rdma_cm_event *event;
	pthread_cleanup_push(clean, NULL);
	begin();
	*(int *)answer = rdma_get_cm_event(manager, &event);
	pthread_cleanup_pop(0);
	return NULL;
}

/* A thread that waits in a call, as the kernel says. */
static pthread_t start(void *(*function)(void *), int *answer)
{
	pthread_t thread;
	waiter = 0;
	SAME(pthread_create(&thread, NULL, function, answer), 0);
	double until = now() + PATIENCE;
	for (char state = 0; state != 'S'; usleep(1000)) {
		char path[64], text[256] = "";
		CHECK(now() < until);
		if (!waiter)
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%d/stat", waiter);
		int fd = open(path, O_RDONLY);
		CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
		close(fd);
		state = strrchr(text, ')')[2];
	}
	return thread;
}

static void end(pthread_t thread, int *answer)
{
	int before = cleaned;
	void *result;
	SAME(pthread_cancel(thread), 0);
	SAME(pthread_join(thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED);
	SAME(cleaned, before + 1);
	SAME(*answer, 7);
}

static void cancel(void *(*function)(void *))
{
	int answer = 7;
	end(start(function, &answer), &answer);
}

int main(void)
{
	context = open_device();
	channel = ibv_create_comp_channel(context);
	manager = rdma_create_event_channel();
	CHECK(channel && manager);

	cancel(wait_for_completions);
	cancel(wait_for_events);
	cancel(wait_for_connections);

	/* What they waited for is whole. */
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, channel, 0);
	CHECK(cq);
	SAME(ibv_destroy_cq(cq), 0);
	SAME(ibv_destroy_comp_channel(channel), 0);

	/* As in a driver's file that is closed, they wait on: programs that end leave such threads behind. */
	int connected = 7, told = 7;
	pthread_t connections = start(wait_for_connections, &connected);
	rdma_destroy_event_channel(manager);
	pthread_t events = start(wait_for_events, &told);
	SAME(ibv_close_device(context), 0);
	usleep(100000);
	end(connections, &connected);
	end(events, &told);
	return 0;
}
