/* Asks an agent for processes in memory: desk SOCKET MODE PROGRAM [ARGUMENT...]
 *
 * MODE is any of: "run" (shows the output, exits with the code, or 128 and the signal), "input" (the same, with standard input),
 * "cancel" (once there is output), "leave" (ends at once when it runs), "bad" (a record that breaks the rules), "stale" (another
 * generation), "far" (a node that is not there), "gateway". Prints the error's number, if there is one, on standard error. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "fulmen_abi.h"

#define RECORDS 4096
#define RING 4096
#define LEN (3 * RING + 4 * RECORDS)

static void check(int good, const char *what) {
    if (!good) {
        perror(what);
        exit(99);
    }
}

static fulmen_rdma_buffer buffer(const fulmen_share_answer *share, uint64_t offset, uint32_t rights) {
    fulmen_rdma_buffer b = {.magic = FULMEN_BUFFER_MAGIC,
                            .version = FULMEN_ABI_VERSION,
                            .generation = share->generation,
                            .node = share->node,
                            .slot = share->slot,
                            .tag = share->tag,
                            .region_len = LEN,
                            .offset = offset,
                            .len = RING,
                            .rights = rights};
    return b;
}

/* Writes what has come into a ring, and gives it free. */
static void drain(const char *ring, uint64_t *written, uint64_t *read_count, int to) {
    uint64_t end = __atomic_load_n(written, __ATOMIC_ACQUIRE), at = *read_count;
    for (; at < end; at++) check(write(to, &ring[at % RING], 1) == 1, "write");
    __atomic_store_n(read_count, at, __ATOMIC_RELEASE);
}

int main(int argc, char **argv) {
    if (argc < 4) return 98;
    const char *mode = argv[2];
    signal(SIGPIPE, SIG_IGN);
    int fd = memfd_create("desk", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    check(fd >= 0 && ftruncate(fd, LEN) == 0, "memfd");
    check(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0, "seals");
    char *memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(memory != MAP_FAILED, "mmap");

    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    strncpy(name.sun_path, argv[1], sizeof name.sun_path - 1);
    check(connect(s, (struct sockaddr *)&name, sizeof name) == 0, "connect");
    fulmen_share_request hello = {.magic = FULMEN_SHARE_MAGIC,
                                  .version = FULMEN_ABI_VERSION,
                                  .region_len = LEN,
                                  .requests_offset = 3 * RING,
                                  .request_count = 4};
    struct iovec bytes = {&hello, sizeof hello};
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &fd, sizeof(int));
    check(sendmsg(s, &message, 0) == sizeof hello, "sendmsg");
    fulmen_share_answer share;
    check(recv(s, &share, sizeof share, MSG_WAITALL) == sizeof share && share.error == 0, "answer");

    fulmen_spawn_request *record = (fulmen_spawn_request *)(memory + 3 * RING + 2 * RECORDS);
    record->magic = FULMEN_SPAWN_MAGIC;
    record->version = FULMEN_ABI_VERSION;
    record->id = 1;
    record->generation = share.generation + (strcmp(mode, "stale") == 0);
    record->source_node = share.node;
    record->target_node = FULMEN_NODE_ANY;
    if (strcmp(mode, "gateway") == 0) record->target_node = FULMEN_NODE_GATEWAY;
    if (strcmp(mode, "far") == 0) record->target_node = 77;
    record->grace_ms = 1000;
    record->stdout_buffer = buffer(&share, 0, FULMEN_RIGHT_WRITE);
    record->stderr_buffer = buffer(&share, RING, FULMEN_RIGHT_WRITE);
    if (strcmp(mode, "stale") == 0) record->stdout_buffer.generation = record->stderr_buffer.generation = record->generation;
    if (strcmp(mode, "bad") == 0) record->stderr_buffer.offset = 100;
    int input = strcmp(mode, "input") == 0;
    if (input) {
        record->flags = FULMEN_SPAWN_STDIN;
        record->stdin_buffer = buffer(&share, 2 * RING, FULMEN_RIGHT_READ);
    }
    for (int i = 3; i < argc; i++) {
        size_t len = strlen(argv[i]) + 1;
        check(record->text_len + len < FULMEN_SPAWN_TEXT_ROOM, "text");
        memcpy(record->text + record->text_len, argv[i], len);
        record->text_len += (uint32_t)len;
        record->arg_count++;
    }
    __atomic_store_n(&record->state, FULMEN_SPAWN_STATE_WRITTEN, __ATOMIC_RELEASE);
    check(write(s, "", 1) == 1, "ring");

    char *rings = memory, rung[64];
    for (;;) {
        uint64_t state = __atomic_load_n(&record->state, __ATOMIC_ACQUIRE);
        drain(rings, &record->stdout_written, &record->stdout_read, 1);
        drain(rings + RING, &record->stderr_written, &record->stderr_read, 2);
        if (state == FULMEN_SPAWN_STATE_DONE) break;
        if (state == FULMEN_SPAWN_STATE_RUNNING) {
            if (strcmp(mode, "leave") == 0 && record->stdout_read > 0) return 0;
            if (strcmp(mode, "cancel") == 0 && record->stdout_read > 0) __atomic_store_n(&record->cancel, 1, __ATOMIC_RELEASE);
            while (input) {
                uint64_t used = record->stdin_written - __atomic_load_n(&record->stdin_read, __ATOMIC_ACQUIRE);
                char byte;
                if (used == RING) break;
                if (read(0, &byte, 1) != 1) {
                    __atomic_store_n(&record->stdin_closed, 1, __ATOMIC_RELEASE);
                    input = 0;
                } else {
                    rings[2 * RING + record->stdin_written % RING] = byte;
                    __atomic_store_n(&record->stdin_written, record->stdin_written + 1, __ATOMIC_RELEASE);
                }
            }
        }
        check(write(s, "", 1) == 1, "ring");
        ssize_t took = read(s, rung, sizeof rung);
        if (took <= 0) {
            fprintf(stderr, "the agent went away\n");
            return 97;
        }
    }
    if (record->error) fprintf(stderr, "error %u (%d)\n", record->error, record->os_error);
    if (record->exit_kind == 0) return 96;
    return record->exit_kind == FULMEN_EXIT_CODE ? record->exit_code : 128 + (int)record->signal;
}
