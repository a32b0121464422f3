/* A program in C that asks for a process, and one that reads what was asked: with the header alone. */
#include <fulmen_abi.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int ask(void)
{
    static const char text[] = "echo\0from C\0LANG=C\0/";
    static fulmen_spawn_request request;

    request.magic = FULMEN_SPAWN_MAGIC;
    request.version = FULMEN_ABI_VERSION;
    request.id = 41;
    request.source_node = 3;
    request.target_node = FULMEN_NODE_ANY;
    request.generation = 77;
    request.flags = FULMEN_SPAWN_DETACH | FULMEN_SPAWN_KEEP_OUTPUT;
    request.arg_count = 2;
    request.env_count = 1;
    request.cwd_count = 1;
    request.text_len = sizeof text;
    memcpy(request.text, text, sizeof text);
    request.stdout_buffer.magic = FULMEN_BUFFER_MAGIC;
    request.stdout_buffer.version = FULMEN_ABI_VERSION;
    request.stdout_buffer.generation = 77;
    request.stdout_buffer.node = 3;
    request.stdout_buffer.slot = 12;
    request.stdout_buffer.tag = UINT64_C(0x0123456789abcdef);
    request.stdout_buffer.region_len = 8192;
    request.stdout_buffer.offset = 64;
    request.stdout_buffer.len = 4096;
    request.stdout_buffer.rights = FULMEN_RIGHT_WRITE;
    __atomic_store_n(&request.state, FULMEN_SPAWN_STATE_WRITTEN, __ATOMIC_RELEASE);
    return fwrite(&request, sizeof request, 1, stdout) == 1 ? 0 : 1;
}

static int tell(void)
{
    static fulmen_spawn_request request;
    uint32_t at;

    if (fread(&request, sizeof request, 1, stdin) != 1 || request.magic != FULMEN_SPAWN_MAGIC
        || request.version != FULMEN_ABI_VERSION || request.text_len > FULMEN_SPAWN_TEXT_ROOM)
        return 1;
    printf("id %" PRIu64 "\nnode %" PRIu32 "\n", request.id, request.source_node);
    printf("%s\n", request.target_node == FULMEN_NODE_GATEWAY ? "gateway" : "elsewhere");
    printf("generation %" PRIu64 "\n", request.generation);
    printf("lease %" PRIu64 " %" PRIu64 "\n", request.lease_id, request.lease_deadline_ns);
    if (request.flags & FULMEN_SPAWN_STDIN)
        printf("stdin %" PRIu32 " %" PRIu64 " %" PRIu64 "\n", request.stdin_buffer.rights, request.stdin_buffer.offset,
               request.stdin_buffer.len);
    printf("strings %" PRIu32 "\n", request.arg_count + request.env_count + request.cwd_count);
    for (at = 0; at < request.text_len; at++)
        putchar(request.text[at] ? request.text[at] : '\n');
    return 0;
}

int main(int argc, char **argv)
{
    return argc > 1 && strcmp(argv[1], "ask") == 0 ? ask() : tell();
}
