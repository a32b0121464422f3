/*
 * Fixed layouts that programs, GPUs and other languages share with Fulmen through registered memory.
 *
 * Generated from the definitions of the crate fulmen-abi (FULMEN_BLESS=1 cargo test -p fulmen-abi): change those.
 *
 * Words are little endian. Memory of zeros is a free record; what has no meaning is zero, or the record is refused. Store
 * a state with release after all that it speaks of, and load it with acquire before you read that: __atomic_store_n and
 * __atomic_load_n of GCC and Clang, atomic_ref of C++20, cuda::atomic_ref with thread_scope_system on a GPU. Where a
 * state is changed by compare-and-swap, nothing else will do. Copy a record before you check and believe it.
 */
#ifndef FULMEN_ABI_H
#define FULMEN_ABI_H

#include <stddef.h>
#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Fulmen's layouts are little endian"
#endif

#ifdef __cplusplus
#define FULMEN_ASSERT(condition, message) static_assert(condition, message)
#define FULMEN_ALIGNAS(bytes) alignas(bytes)
#define FULMEN_ALIGNOF(type) alignof(type)
#else
#define FULMEN_ASSERT(condition, message) _Static_assert(condition, message)
#define FULMEN_ALIGNAS(bytes) _Alignas(bytes)
#define FULMEN_ALIGNOF(type) _Alignof(type)
#endif

/* What all records have in common. */
/* The version of all layouts: the second word of each record. */
#define FULMEN_ABI_VERSION UINT32_C(1)
/* The highest number that a node can have. */
#define FULMEN_NODE_MAX UINT32_C(0xffffffef)
/* Instead of a node's number in `target_node`: the nearest gateway, a node that reaches what others cannot. */
#define FULMEN_NODE_GATEWAY UINT32_C(0xfffffffe)
/* Instead of a node's number in `target_node`: any node. */
#define FULMEN_NODE_ANY UINT32_C(0xffffffff)

/* Why a request failed, as whoever serves it writes it; 0 if nothing did. `os_error` beside it is the system's own
 * number (errno) if it has one, else 0: other systems number errors in other ways, so it is for people. */
/* The record was refused: it breaks a rule of its layout. */
#define FULMEN_ERROR_INVALID_REQUEST UINT32_C(1)
/* It is right, and this node does not do it. */
#define FULMEN_ERROR_UNSUPPORTED UINT32_C(2)
/* The node's rules, or the system's, do not allow it. */
#define FULMEN_ERROR_PERMISSION_DENIED UINT32_C(3)
/* The node that it is for is not there. */
#define FULMEN_ERROR_NO_SUCH_NODE UINT32_C(4)
/* It is of a generation that is over. */
#define FULMEN_ERROR_STALE_GENERATION UINT32_C(5)
/* The requester went away, or did not renew its lease. */
#define FULMEN_ERROR_LEASE_EXPIRED UINT32_C(6)
/* The requester cancelled it. */
#define FULMEN_ERROR_CANCELLED UINT32_C(7)
/* Its time was over. */
#define FULMEN_ERROR_TIMED_OUT UINT32_C(8)
/* There is no such program, directory, kernel or host name. */
#define FULMEN_ERROR_NOT_FOUND UINT32_C(9)
/* Memory, processes, sockets or other means are used up. */
#define FULMEN_ERROR_RESOURCE_EXHAUSTED UINT32_C(10)
/* Memory that the request refers to cannot be read or written. */
#define FULMEN_ERROR_BUFFER_UNREACHABLE UINT32_C(11)
/* The node that served it was lost; it may have been done or not. */
#define FULMEN_ERROR_NODE_LOST UINT32_C(12)
/* As many workers as may have tried it, and none ended it. */
#define FULMEN_ERROR_TOO_MANY_ATTEMPTS UINT32_C(13)
/* What served it ended. */
#define FULMEN_ERROR_SHUTDOWN UINT32_C(14)
/* The handle is of nothing that is open, or of something that cannot do this. */
#define FULMEN_ERROR_BAD_HANDLE UINT32_C(15)
/* The address is in use, or is none of this node's. */
#define FULMEN_ERROR_ADDRESS_UNAVAILABLE UINT32_C(16)
/* Nobody listens there. */
#define FULMEN_ERROR_CONNECTION_REFUSED UINT32_C(17)
/* The other end broke the connection. */
#define FULMEN_ERROR_CONNECTION_RESET UINT32_C(18)
/* No way leads to that host. */
#define FULMEN_ERROR_UNREACHABLE UINT32_C(19)
/* The datagram was longer than the buffer; the rest of it is lost. */
#define FULMEN_ERROR_TRUNCATED UINT32_C(20)
/* Anything else; `os_error` may say more. */
#define FULMEN_ERROR_FAILED UINT32_C(21)

/* For `fulmen_rdma_buffer`. */
/* Its magic number: FBUF. */
#define FULMEN_BUFFER_MAGIC UINT32_C(0x46554246)

/* What others may do to shared memory. */
/* Get it. */
#define FULMEN_RIGHT_READ UINT32_C(1)
/* Put into it. */
#define FULMEN_RIGHT_WRITE UINT32_C(2)
/* Use its 64-bit words by atomics, and as counters of puts. */
#define FULMEN_RIGHT_ATOMIC UINT32_C(4)

/* For `fulmen_work_item`. */
/* Its magic number: FWRK. */
#define FULMEN_WORK_MAGIC UINT32_C(0x4b525746)
/* Bytes of arguments that fit into the record. */
#define FULMEN_WORK_ARGUMENTS_ROOM UINT32_C(192)
/* In `state`: the bits of the `FULMEN_WORK_STATE_`. */
#define FULMEN_WORK_STATE_MASK UINT32_C(255)
/* In `state`, the error stands so many bits above the state: 24 bits, 0 unless the state is DONE. */
#define FULMEN_WORK_ERROR_SHIFT UINT32_C(8)
/* In `state` and `lease_id`, the number of claims stands so many bits above the rest: 32 bits. */
#define FULMEN_WORK_CLAIMS_SHIFT UINT32_C(32)

/* What does the work: `kind` in `fulmen_work_item`. */
/* A kernel of a GPU. */
#define FULMEN_WORK_KERNEL UINT32_C(1)
/* A function of a program. */
#define FULMEN_WORK_FUNCTION UINT32_C(2)

/* Where work stands: the lowest 8 bits of `state` in `fulmen_work_item`. With it go the error and the number of
 * claims, which counts all claims of the record, those of earlier uses too, and never goes back. All changes are
 * by compare-and-swap of the whole word: a worker whose claim was taken back cannot end what another one works on. */
/* Nothing is asked; the record is the requester's to write. */
#define FULMEN_WORK_STATE_FREE UINT64_C(0)
/* It is to be done. Set by the requester (from FREE), after everything else of the record; by the worker that
 * gives it back, and by anybody who sees that its lease is over (from CLAIMED, with the same number of
 * claims). The requester may take it back to FREE. */
#define FULMEN_WORK_STATE_WRITTEN UINT64_C(1)
/* A worker does it. Set by that worker (from WRITTEN), with the next number of claims; then it writes its
 * lease. */
#define FULMEN_WORK_STATE_CLAIMED UINT64_C(2)
/* It is over. Set by the worker (from CLAIMED, with its own number of claims), after the result has landed;
 * also by a worker that finds the request wrong, or claimed as often as it may be (from WRITTEN), with the
 * error. Whoever set it then adds to the counter. The requester takes it to FREE. */
#define FULMEN_WORK_STATE_DONE UINT64_C(3)

/* For `fulmen_spawn_request`. */
/* Its magic number: FSPN. */
#define FULMEN_SPAWN_MAGIC UINT32_C(0x4e505346)
/* Bytes of text that fit into the record. */
#define FULMEN_SPAWN_TEXT_ROOM UINT32_C(3520)
/* Bytes of text at most where it lies in a buffer: 1 MiB. */
#define FULMEN_SPAWN_TEXT_MAX UINT32_C(1048576)

/* How a process is run: bits of `flags` in `fulmen_spawn_request`. */
/* It goes on when its requester's lease has ended, and when nobody reads its output. */
#define FULMEN_SPAWN_DETACH UINT32_C(1)
/* All that it writes is also kept in files on its node. */
#define FULMEN_SPAWN_KEEP_OUTPUT UINT32_C(2)
/* It gets a standard input, from the ring `stdin_buffer`; else that is empty. */
#define FULMEN_SPAWN_STDIN UINT32_C(4)

/* Where a spawn request stands: `state` in `fulmen_spawn_request`. */
/* Nothing is asked; the record is the requester's to write. */
#define FULMEN_SPAWN_STATE_FREE UINT64_C(0)
/* It is asked. Set by the requester (from FREE), after everything else of the record. */
#define FULMEN_SPAWN_STATE_WRITTEN UINT64_C(1)
/* An agent has taken it, by compare-and-swap (from WRITTEN). Until then the requester may take it back to
 * FREE, by compare-and-swap, too. */
#define FULMEN_SPAWN_STATE_ACCEPTED UINT64_C(2)
/* The process runs. Set by the agent (from ACCEPTED), after `process_id`, `pid` and `serving_node`. */
#define FULMEN_SPAWN_STATE_RUNNING UINT64_C(3)
/* It is over, or could not be started. Set by the agent (from RUNNING or ACCEPTED), after all output and all
 * else that is the agent's; it writes nothing any more. The requester takes it to FREE when it has read all
 * that it wants. */
#define FULMEN_SPAWN_STATE_DONE UINT64_C(4)

/* How a process ended: `exit_kind` in `fulmen_spawn_request`; 0 if it never ran. */
/* By itself, with `exit_code`. */
#define FULMEN_EXIT_CODE UINT32_C(1)
/* By the signal `signal`. */
#define FULMEN_EXIT_SIGNAL UINT32_C(2)

/* For `fulmen_network_request`. */
/* Its magic number: FNET. */
#define FULMEN_NETWORK_MAGIC UINT32_C(0x54454e46)
/* Bytes that there are for a host's name. */
#define FULMEN_NETWORK_HOST_ROOM UINT32_C(256)
/* Bytes that a host's name can have. */
#define FULMEN_NETWORK_HOST_MAX UINT32_C(253)

/* What is to be done: `operation` in `fulmen_network_request`. What else of the request counts is named for each;
 * the rest of `handle` to `host_len` and `data_buffer` is 0. */
/* Opens a socket that speaks with one other end. Takes `protocol`, address or host, and `port`; gives a handle
 * and the other end's address. */
#define FULMEN_NETWORK_CONNECT UINT32_C(1)
/* Opens a socket at an address of the gateway's. Takes `protocol`, address, `port` (0: any) and for TCP
 * `backlog`; gives a handle and the address with its port. For UDP, it sends and receives by itself. */
#define FULMEN_NETWORK_LISTEN UINT32_C(2)
/* Waits for a connection to a listening TCP socket. Takes `handle`; gives a handle and the other end's
 * address. */
#define FULMEN_NETWORK_ACCEPT UINT32_C(3)
/* Sends what is in the buffer. Takes `handle`, `data_buffer` and, where UDP is not connected, address and
 * `port`; gives how many bytes the system took. */
#define FULMEN_NETWORK_SEND UINT32_C(4)
/* Waits for bytes, or for a datagram. Takes `handle` and `data_buffer`; gives how many bytes came (over TCP,
 * 0: no more will) and, for a datagram, the sender's address. */
#define FULMEN_NETWORK_RECEIVE UINT32_C(5)
/* Sends no more over a TCP connection, and may still receive. Takes `handle`. */
#define FULMEN_NETWORK_SHUTDOWN UINT32_C(6)
/* Closes the socket. Takes `handle`. */
#define FULMEN_NETWORK_CLOSE UINT32_C(7)

/* What a socket speaks: `protocol` in `fulmen_network_request`. */
/* A stream of bytes. */
#define FULMEN_PROTOCOL_TCP UINT32_C(1)
/* Datagrams. */
#define FULMEN_PROTOCOL_UDP UINT32_C(2)

/* What kind of address there is: `family` in `fulmen_network_request`; 0: none. */
/* The name in `host`, which the gateway resolves; `address` is zero. */
#define FULMEN_FAMILY_NAME UINT32_C(1)
/* The first 4 bytes of `address`, as they are written; the others are zero. */
#define FULMEN_FAMILY_IPV4 UINT32_C(4)
/* The 16 bytes of `address`, as they are written. */
#define FULMEN_FAMILY_IPV6 UINT32_C(6)

/* Where an operation stands: `state` in `fulmen_network_request`. */
/* Nothing is asked; the record is the requester's to write. */
#define FULMEN_NETWORK_STATE_FREE UINT64_C(0)
/* It is asked. Set by the requester (from FREE), after everything else of the record. */
#define FULMEN_NETWORK_STATE_WRITTEN UINT64_C(1)
/* A gateway has taken it, by compare-and-swap (from WRITTEN). Until then the requester may take it back to
 * FREE, by compare-and-swap, too. */
#define FULMEN_NETWORK_STATE_ACCEPTED UINT64_C(2)
/* It is over, well or not. Set by the gateway (from ACCEPTED), after its words and after received bytes have
 * landed; it writes nothing any more. The requester takes it to FREE. */
#define FULMEN_NETWORK_STATE_DONE UINT64_C(3)

/* For `fulmen_share_request` and `fulmen_share_answer`. */
/* The magic number of a request: FSHR. */
#define FULMEN_SHARE_MAGIC UINT32_C(0x52485346)
/* Records of a share at most. */
#define FULMEN_SHARE_RECORDS_MAX UINT32_C(1024)

/* Names a part of memory that a node shares. Whoever has it can do what its rights say until the share ends: it
 * goes to those who are to work on the memory, and to nobody else. All zero is no buffer. It is written with the
 * record that it is part of, by the same side.
 *
 * It has what a remote key of one-sided operations has, but for the keys of the owner's devices: what devices do
 * by themselves, they do with the whole key. */
typedef struct fulmen_rdma_buffer {
    /* `FULMEN_BUFFER_MAGIC`. */
    FULMEN_ALIGNAS(8) uint32_t magic;
    /* `FULMEN_ABI_VERSION`. */
    uint32_t version;
    /* Of the owner's world. The same as that of the record it is part of. */
    uint64_t generation;
    /* The owner: its number, also called its rank. */
    uint32_t node;
    /* The line of the owner's exports. */
    uint32_t slot;
    /* What stands there: a secret, which cannot be guessed. */
    uint64_t tag;
    /* Bytes that the share has in all. */
    uint64_t region_len;
    /* Where this part begins: bytes from the beginning of the share. */
    uint64_t offset;
    /* Bytes of this part; at least 1. */
    uint64_t len;
    /* Bits of `FULMEN_RIGHT_`; at least one. */
    uint32_t rights;
    /* Zero. */
    uint32_t reserved;
} fulmen_rdma_buffer;
FULMEN_ASSERT(sizeof(fulmen_rdma_buffer) == 64, "size of fulmen_rdma_buffer");
FULMEN_ASSERT(FULMEN_ALIGNOF(fulmen_rdma_buffer) == 8, "alignment of fulmen_rdma_buffer");
FULMEN_ASSERT(offsetof(fulmen_rdma_buffer, magic) == 0, "fulmen_rdma_buffer.magic");
FULMEN_ASSERT(offsetof(fulmen_rdma_buffer, version) == 4, "fulmen_rdma_buffer.version");
FULMEN_ASSERT(offsetof(fulmen_rdma_buffer, generation) == 8, "fulmen_rdma_buffer.generation");
FULMEN_ASSERT(offsetof(fulmen_rdma_buffer, node) == 16, "fulmen_rdma_buffer.node");
FULMEN_ASSERT(offsetof(fulmen_rdma_buffer, slot) == 20, "fulmen_rdma_buffer.slot");
FULMEN_ASSERT(offsetof(fulmen_rdma_buffer, tag) == 24, "fulmen_rdma_buffer.tag");
FULMEN_ASSERT(offsetof(fulmen_rdma_buffer, region_len) == 32, "fulmen_rdma_buffer.region_len");
FULMEN_ASSERT(offsetof(fulmen_rdma_buffer, offset) == 40, "fulmen_rdma_buffer.offset");
FULMEN_ASSERT(offsetof(fulmen_rdma_buffer, len) == 48, "fulmen_rdma_buffer.len");
FULMEN_ASSERT(offsetof(fulmen_rdma_buffer, rights) == 56, "fulmen_rdma_buffer.rights");
FULMEN_ASSERT(offsetof(fulmen_rdma_buffer, reserved) == 60, "fulmen_rdma_buffer.reserved");

/* Asks for one run of a kernel or function, by whichever worker claims it.
 *
 * The requester writes the record while it is FREE: bytes 0 to 447, and the state last. After that it writes
 * nothing but the state. The worker writes the state and its lease.
 *
 * A claim is good until `lease_deadline_ns`, which its worker moves on. The lease counts only if its number of
 * claims is that of the state; until it does, who waits for its end waits as long as a lease of its own would
 * last. A worker that was slow may still run beside the next one: what they write to the result must be the same,
 * or go to places of their own. How long a result is, its kernel says. */
typedef struct fulmen_work_item {
    /* `FULMEN_WORK_MAGIC`. */
    FULMEN_ALIGNAS(8) uint32_t magic;
    /* `FULMEN_ABI_VERSION`. */
    uint32_t version;
    /* The requester's number for it; another one each time that a record is used. */
    uint64_t id;
    /* The requester's node, at most `FULMEN_NODE_MAX`. */
    uint32_t source_node;
    /* Who may claim it: a node, `FULMEN_NODE_GATEWAY` or `FULMEN_NODE_ANY`. */
    uint32_t target_node;
    /* Of the requester's world. */
    uint64_t generation;
    /* A `FULMEN_WORK_KERNEL` or `FULMEN_WORK_FUNCTION`. */
    uint32_t kind;
    /* Bytes of `arguments`; 0 with an `arguments_buffer`. */
    uint32_t arguments_len;
    /* Which kernel or function: the number under which it was registered. */
    uint64_t kernel;
    /* How often it may be claimed; 0: no limit. */
    uint32_t max_attempts;
    /* Claims of the record's earlier uses: the number that its state had when this was written. 0 in new memory. A
     * record with the highest number is neither claimed nor used any more. */
    uint32_t claims_before;
    /* What is added to the counter at the end; 0 without one. */
    uint64_t counter_add;
    /* The arguments, unless `arguments_buffer` has them. What follows them means nothing. */
    uint8_t arguments[192];
    /* Where the arguments are, if they are not in `arguments`, with `FULMEN_RIGHT_READ`. */
    fulmen_rdma_buffer arguments_buffer;
    /* Where the result goes, with `FULMEN_RIGHT_WRITE`; or none. */
    fulmen_rdma_buffer result_buffer;
    /* A 64-bit word at a multiple of 8, with `FULMEN_RIGHT_ATOMIC`: `counter_add` is added to it at the end; or
     * none. If the worker is lost between the two, nothing is added: the state is what counts. */
    fulmen_rdma_buffer counter_buffer;
    /* A `FULMEN_WORK_STATE_`, each of which says who sets it; a `FULMEN_ERROR_` or 0, shifted by
     * `FULMEN_WORK_ERROR_SHIFT`; the number of claims, shifted by `FULMEN_WORK_CLAIMS_SHIFT`. */
    uint64_t state;
    /* The worker's node, and the number of claims, shifted by `FULMEN_WORK_CLAIMS_SHIFT`. Stored after the
     * deadline. */
    uint64_t lease_id;
    /* When the claim ends: nanoseconds since 1970. The worker moves it on. */
    uint64_t lease_deadline_ns;
    /* Zero. */
    uint64_t reserved[5];
} fulmen_work_item;
FULMEN_ASSERT(sizeof(fulmen_work_item) == 512, "size of fulmen_work_item");
FULMEN_ASSERT(FULMEN_ALIGNOF(fulmen_work_item) == 8, "alignment of fulmen_work_item");
FULMEN_ASSERT(offsetof(fulmen_work_item, magic) == 0, "fulmen_work_item.magic");
FULMEN_ASSERT(offsetof(fulmen_work_item, version) == 4, "fulmen_work_item.version");
FULMEN_ASSERT(offsetof(fulmen_work_item, id) == 8, "fulmen_work_item.id");
FULMEN_ASSERT(offsetof(fulmen_work_item, source_node) == 16, "fulmen_work_item.source_node");
FULMEN_ASSERT(offsetof(fulmen_work_item, target_node) == 20, "fulmen_work_item.target_node");
FULMEN_ASSERT(offsetof(fulmen_work_item, generation) == 24, "fulmen_work_item.generation");
FULMEN_ASSERT(offsetof(fulmen_work_item, kind) == 32, "fulmen_work_item.kind");
FULMEN_ASSERT(offsetof(fulmen_work_item, arguments_len) == 36, "fulmen_work_item.arguments_len");
FULMEN_ASSERT(offsetof(fulmen_work_item, kernel) == 40, "fulmen_work_item.kernel");
FULMEN_ASSERT(offsetof(fulmen_work_item, max_attempts) == 48, "fulmen_work_item.max_attempts");
FULMEN_ASSERT(offsetof(fulmen_work_item, claims_before) == 52, "fulmen_work_item.claims_before");
FULMEN_ASSERT(offsetof(fulmen_work_item, counter_add) == 56, "fulmen_work_item.counter_add");
FULMEN_ASSERT(offsetof(fulmen_work_item, arguments) == 64, "fulmen_work_item.arguments");
FULMEN_ASSERT(offsetof(fulmen_work_item, arguments_buffer) == 256, "fulmen_work_item.arguments_buffer");
FULMEN_ASSERT(offsetof(fulmen_work_item, result_buffer) == 320, "fulmen_work_item.result_buffer");
FULMEN_ASSERT(offsetof(fulmen_work_item, counter_buffer) == 384, "fulmen_work_item.counter_buffer");
FULMEN_ASSERT(offsetof(fulmen_work_item, state) == 448, "fulmen_work_item.state");
FULMEN_ASSERT(offsetof(fulmen_work_item, lease_id) == 456, "fulmen_work_item.lease_id");
FULMEN_ASSERT(offsetof(fulmen_work_item, lease_deadline_ns) == 464, "fulmen_work_item.lease_deadline_ns");
FULMEN_ASSERT(offsetof(fulmen_work_item, reserved) == 472, "fulmen_work_item.reserved");

/* Asks for a process on a node.
 *
 * The requester writes the record while it is FREE: bytes 0 to 447 and `text`, zero in the words of the agent, and
 * the state last. After that it writes only the words from `lease_deadline_ns` to `cancel`, one by one, and the
 * agent only those from `state` to `stderr_written`. A record whose agent was lost is not used again before its
 * memory is shared anew: the agent may write late.
 *
 * The text is strings with a NUL behind each, one after the other: the arguments (the program first, a path or a
 * name that is looked for in PATH), then variables as NAME=value (beside those of the agent; of two with one name
 * the last one counts), then the directory (an absolute path; without one it is the agent's). All of it is UTF-8. */
typedef struct fulmen_spawn_request {
    /* `FULMEN_SPAWN_MAGIC`. */
    FULMEN_ALIGNAS(8) uint32_t magic;
    /* `FULMEN_ABI_VERSION`. */
    uint32_t version;
    /* The requester's number for it; another one each time that a record is used. */
    uint64_t id;
    /* The requester's node, at most `FULMEN_NODE_MAX`. */
    uint32_t source_node;
    /* Where it is to run: a node, `FULMEN_NODE_GATEWAY` or `FULMEN_NODE_ANY`. */
    uint32_t target_node;
    /* Of the requester's world. */
    uint64_t generation;
    /* The requester's lease; 0: none, and it stays until the requester's node is lost. */
    uint64_t lease_id;
    /* Bits of `FULMEN_SPAWN_`. */
    uint32_t flags;
    /* Strings that are arguments; at least 1. */
    uint32_t arg_count;
    /* Strings that are variables. */
    uint32_t env_count;
    /* 1 if there is a directory, else 0. */
    uint32_t cwd_count;
    /* Bytes of all strings with their NULs. */
    uint32_t text_len;
    /* Processors that it may use, in thousandths of one; 0: no limit. */
    uint32_t cpu_milli;
    /* Memory that it may use, in bytes; 0: no limit. */
    uint64_t memory_bytes;
    /* Milliseconds after which it is ended; 0: never. */
    uint64_t timeout_ms;
    /* Milliseconds between SIGTERM and SIGKILL when it is ended. */
    uint64_t grace_ms;
    /* Zero. */
    uint64_t reserved[5];
    /* Where the text is, if it is not in `text`: `len` is `text_len`, with `FULMEN_RIGHT_READ`. It stays as it is
     * until the state is RUNNING or DONE. */
    fulmen_rdma_buffer text_buffer;
    /* The ring of standard input, with `FULMEN_RIGHT_READ`; there if and only if `FULMEN_SPAWN_STDIN` is set. */
    fulmen_rdma_buffer stdin_buffer;
    /* The ring of standard output, with `FULMEN_RIGHT_WRITE`. Without one, it goes only where KEEP_OUTPUT puts it. */
    fulmen_rdma_buffer stdout_buffer;
    /* The ring of standard error, likewise, in other memory. */
    fulmen_rdma_buffer stderr_buffer;
    /* When the lease ends: nanoseconds since 1970. The requester moves it on. 0 without a lease. */
    uint64_t lease_deadline_ns;
    /* Bytes that the requester has written to standard input in all. */
    uint64_t stdin_written;
    /* The requester sets it to 1 when no more will come. */
    uint64_t stdin_closed;
    /* Bytes of standard output that the requester has read in all. The process waits when the ring is full. */
    uint64_t stdout_read;
    /* Of standard error. */
    uint64_t stderr_read;
    /* The requester sets it to 1 to have the process ended, with its grace. */
    uint64_t cancel;
    /* Zero. */
    uint64_t reserved_requester[2];
    /* A `FULMEN_SPAWN_STATE_`: each says who sets it. */
    uint64_t state;
    /* The agent's number for the process, which no other process of that agent ever has. */
    uint64_t process_id;
    /* The system's number for it, on its node. */
    uint32_t pid;
    /* The node that took the request. */
    uint32_t serving_node;
    /* When DONE: why it was not started, or was ended; a `FULMEN_ERROR_`, or 0 if it was not ended by the agent. */
    uint32_t error;
    /* The system's number for the error, or 0. */
    int32_t os_error;
    /* When DONE: a `FULMEN_EXIT_`; 0 if it never ran, and then there is an error. */
    uint32_t exit_kind;
    /* With `FULMEN_EXIT_CODE`: 0 to 255. Else 0. */
    int32_t exit_code;
    /* With `FULMEN_EXIT_SIGNAL`: the signal, 1 to 127, as its node's system numbers it. Else 0. */
    uint32_t signal;
    /* Zero. */
    uint32_t reserved_signal;
    /* When DONE: how long it ran, in nanoseconds. */
    uint64_t ran_ns;
    /* Zero. */
    uint64_t reserved_agent;
    /* Bytes of standard input that the agent has read in all. */
    uint64_t stdin_read;
    /* Bytes of standard output that the agent has written in all. When DONE: all that there was, or there is an
     * error. */
    uint64_t stdout_written;
    /* Of standard error. */
    uint64_t stderr_written;
    /* Zero. */
    uint64_t reserved_output[5];
    /* The text, unless `text_buffer` has it. What follows it means nothing. */
    uint8_t text[3520];
} fulmen_spawn_request;
FULMEN_ASSERT(sizeof(fulmen_spawn_request) == 4096, "size of fulmen_spawn_request");
FULMEN_ASSERT(FULMEN_ALIGNOF(fulmen_spawn_request) == 8, "alignment of fulmen_spawn_request");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, magic) == 0, "fulmen_spawn_request.magic");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, version) == 4, "fulmen_spawn_request.version");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, id) == 8, "fulmen_spawn_request.id");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, source_node) == 16, "fulmen_spawn_request.source_node");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, target_node) == 20, "fulmen_spawn_request.target_node");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, generation) == 24, "fulmen_spawn_request.generation");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, lease_id) == 32, "fulmen_spawn_request.lease_id");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, flags) == 40, "fulmen_spawn_request.flags");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, arg_count) == 44, "fulmen_spawn_request.arg_count");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, env_count) == 48, "fulmen_spawn_request.env_count");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, cwd_count) == 52, "fulmen_spawn_request.cwd_count");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, text_len) == 56, "fulmen_spawn_request.text_len");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, cpu_milli) == 60, "fulmen_spawn_request.cpu_milli");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, memory_bytes) == 64, "fulmen_spawn_request.memory_bytes");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, timeout_ms) == 72, "fulmen_spawn_request.timeout_ms");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, grace_ms) == 80, "fulmen_spawn_request.grace_ms");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, reserved) == 88, "fulmen_spawn_request.reserved");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, text_buffer) == 128, "fulmen_spawn_request.text_buffer");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, stdin_buffer) == 192, "fulmen_spawn_request.stdin_buffer");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, stdout_buffer) == 256, "fulmen_spawn_request.stdout_buffer");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, stderr_buffer) == 320, "fulmen_spawn_request.stderr_buffer");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, lease_deadline_ns) == 384, "fulmen_spawn_request.lease_deadline_ns");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, stdin_written) == 392, "fulmen_spawn_request.stdin_written");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, stdin_closed) == 400, "fulmen_spawn_request.stdin_closed");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, stdout_read) == 408, "fulmen_spawn_request.stdout_read");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, stderr_read) == 416, "fulmen_spawn_request.stderr_read");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, cancel) == 424, "fulmen_spawn_request.cancel");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, reserved_requester) == 432, "fulmen_spawn_request.reserved_requester");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, state) == 448, "fulmen_spawn_request.state");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, process_id) == 456, "fulmen_spawn_request.process_id");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, pid) == 464, "fulmen_spawn_request.pid");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, serving_node) == 468, "fulmen_spawn_request.serving_node");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, error) == 472, "fulmen_spawn_request.error");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, os_error) == 476, "fulmen_spawn_request.os_error");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, exit_kind) == 480, "fulmen_spawn_request.exit_kind");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, exit_code) == 484, "fulmen_spawn_request.exit_code");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, signal) == 488, "fulmen_spawn_request.signal");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, reserved_signal) == 492, "fulmen_spawn_request.reserved_signal");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, ran_ns) == 496, "fulmen_spawn_request.ran_ns");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, reserved_agent) == 504, "fulmen_spawn_request.reserved_agent");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, stdin_read) == 512, "fulmen_spawn_request.stdin_read");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, stdout_written) == 520, "fulmen_spawn_request.stdout_written");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, stderr_written) == 528, "fulmen_spawn_request.stderr_written");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, reserved_output) == 536, "fulmen_spawn_request.reserved_output");
FULMEN_ASSERT(offsetof(fulmen_spawn_request, text) == 576, "fulmen_spawn_request.text");

/* Asks a gateway for one operation of a socket.
 *
 * The requester writes the record while it is FREE: bytes 0 to 447, zero in the words of the gateway, and the
 * state last. After that it writes only `lease_deadline_ns`, and the gateway only the words from `state` on. A
 * handle belongs to the lease, or without one to the node, that opened it: when that is over, the gateway closes
 * it. */
typedef struct fulmen_network_request {
    /* `FULMEN_NETWORK_MAGIC`. */
    FULMEN_ALIGNAS(8) uint32_t magic;
    /* `FULMEN_ABI_VERSION`. */
    uint32_t version;
    /* The requester's number for it; another one each time that a record is used. */
    uint64_t id;
    /* The requester's node, at most `FULMEN_NODE_MAX`. */
    uint32_t source_node;
    /* Who is to do it: a node, `FULMEN_NODE_GATEWAY` or `FULMEN_NODE_ANY`. With a handle: the node that gave it. */
    uint32_t target_node;
    /* Of the requester's world. */
    uint64_t generation;
    /* The requester's lease; 0: none, and it stays until the requester's node is lost. */
    uint64_t lease_id;
    /* When the lease ends: nanoseconds since 1970. The requester moves it on. 0 without a lease. */
    uint64_t lease_deadline_ns;
    /* When the operation fails if it is not over: nanoseconds since 1970; 0: never. */
    uint64_t deadline_ns;
    /* The socket: what `result_handle` was when it was opened. 0 for none. */
    uint64_t handle;
    /* A `FULMEN_NETWORK_CONNECT` to `FULMEN_NETWORK_CLOSE`. */
    uint32_t operation;
    /* A `FULMEN_PROTOCOL_`, or 0. */
    uint32_t protocol;
    /* A `FULMEN_FAMILY_`, or 0. */
    uint32_t family;
    /* The port, 0 to 65535, as a number. */
    uint32_t port;
    /* The address, in the order of its bytes on the wire. */
    uint8_t address[16];
    /* Of an IPv6 address: the gateway's interface that it belongs to, or 0. */
    uint32_t scope_id;
    /* Connections that wait to be accepted, at most; 0: as the gateway likes. */
    uint32_t backlog;
    /* Bytes of `host`, without a NUL. */
    uint32_t host_len;
    /* Zero. */
    uint32_t reserved[5];
    /* The host's name, of letters, digits, `-`, `_` and `.`; ASCII. What follows it means nothing. */
    uint8_t host[256];
    /* What is sent, with `FULMEN_RIGHT_READ`, or where it comes, with `FULMEN_RIGHT_WRITE`. */
    fulmen_rdma_buffer data_buffer;
    /* A `FULMEN_NETWORK_STATE_`: each says who sets it. */
    uint64_t state;
    /* When DONE: why it failed; a `FULMEN_ERROR_`, or 0. */
    uint32_t error;
    /* The system's number for the error, or 0. */
    int32_t os_error;
    /* When DONE: the socket that was opened, or 0. */
    uint64_t result_handle;
    /* When DONE: bytes that were sent or came. */
    uint64_t result_len;
    /* When DONE: `FULMEN_FAMILY_IPV4` or `FULMEN_FAMILY_IPV6`, or 0 for no address. */
    uint32_t result_family;
    /* Its port. */
    uint32_t result_port;
    /* Its bytes, as in `address`. */
    uint8_t result_address[16];
    /* Of an IPv6 address, as `scope_id`. */
    uint32_t result_scope_id;
    /* The gateway that took it. */
    uint32_t serving_node;
} fulmen_network_request;
FULMEN_ASSERT(sizeof(fulmen_network_request) == 512, "size of fulmen_network_request");
FULMEN_ASSERT(FULMEN_ALIGNOF(fulmen_network_request) == 8, "alignment of fulmen_network_request");
FULMEN_ASSERT(offsetof(fulmen_network_request, magic) == 0, "fulmen_network_request.magic");
FULMEN_ASSERT(offsetof(fulmen_network_request, version) == 4, "fulmen_network_request.version");
FULMEN_ASSERT(offsetof(fulmen_network_request, id) == 8, "fulmen_network_request.id");
FULMEN_ASSERT(offsetof(fulmen_network_request, source_node) == 16, "fulmen_network_request.source_node");
FULMEN_ASSERT(offsetof(fulmen_network_request, target_node) == 20, "fulmen_network_request.target_node");
FULMEN_ASSERT(offsetof(fulmen_network_request, generation) == 24, "fulmen_network_request.generation");
FULMEN_ASSERT(offsetof(fulmen_network_request, lease_id) == 32, "fulmen_network_request.lease_id");
FULMEN_ASSERT(offsetof(fulmen_network_request, lease_deadline_ns) == 40, "fulmen_network_request.lease_deadline_ns");
FULMEN_ASSERT(offsetof(fulmen_network_request, deadline_ns) == 48, "fulmen_network_request.deadline_ns");
FULMEN_ASSERT(offsetof(fulmen_network_request, handle) == 56, "fulmen_network_request.handle");
FULMEN_ASSERT(offsetof(fulmen_network_request, operation) == 64, "fulmen_network_request.operation");
FULMEN_ASSERT(offsetof(fulmen_network_request, protocol) == 68, "fulmen_network_request.protocol");
FULMEN_ASSERT(offsetof(fulmen_network_request, family) == 72, "fulmen_network_request.family");
FULMEN_ASSERT(offsetof(fulmen_network_request, port) == 76, "fulmen_network_request.port");
FULMEN_ASSERT(offsetof(fulmen_network_request, address) == 80, "fulmen_network_request.address");
FULMEN_ASSERT(offsetof(fulmen_network_request, scope_id) == 96, "fulmen_network_request.scope_id");
FULMEN_ASSERT(offsetof(fulmen_network_request, backlog) == 100, "fulmen_network_request.backlog");
FULMEN_ASSERT(offsetof(fulmen_network_request, host_len) == 104, "fulmen_network_request.host_len");
FULMEN_ASSERT(offsetof(fulmen_network_request, reserved) == 108, "fulmen_network_request.reserved");
FULMEN_ASSERT(offsetof(fulmen_network_request, host) == 128, "fulmen_network_request.host");
FULMEN_ASSERT(offsetof(fulmen_network_request, data_buffer) == 384, "fulmen_network_request.data_buffer");
FULMEN_ASSERT(offsetof(fulmen_network_request, state) == 448, "fulmen_network_request.state");
FULMEN_ASSERT(offsetof(fulmen_network_request, error) == 456, "fulmen_network_request.error");
FULMEN_ASSERT(offsetof(fulmen_network_request, os_error) == 460, "fulmen_network_request.os_error");
FULMEN_ASSERT(offsetof(fulmen_network_request, result_handle) == 464, "fulmen_network_request.result_handle");
FULMEN_ASSERT(offsetof(fulmen_network_request, result_len) == 472, "fulmen_network_request.result_len");
FULMEN_ASSERT(offsetof(fulmen_network_request, result_family) == 480, "fulmen_network_request.result_family");
FULMEN_ASSERT(offsetof(fulmen_network_request, result_port) == 484, "fulmen_network_request.result_port");
FULMEN_ASSERT(offsetof(fulmen_network_request, result_address) == 488, "fulmen_network_request.result_address");
FULMEN_ASSERT(offsetof(fulmen_network_request, result_scope_id) == 504, "fulmen_network_request.result_scope_id");
FULMEN_ASSERT(offsetof(fulmen_network_request, serving_node) == 508, "fulmen_network_request.serving_node");

/* What a program says first over the socket `desk.sock` in the state of its host's agent, with the descriptor of a region beside it
 * (SCM_RIGHTS): on Linux, a memfd with the seals SHRINK, GROW and SEAL. In it, at `requests_offset`, lie records
 * `fulmen_spawn_request`, one after the other, of zeros at first; the rest is for rings and longer text.
 *
 * The answer is a `fulmen_share_answer`. From then on, each byte that the program sends has the agent look at the records, and each
 * byte that the agent sends says that it has written some of its words; bytes that come together are one. When the connection ends,
 * so does what was asked for over it, unless it is detached. */
typedef struct fulmen_share_request {
    /* `FULMEN_SHARE_MAGIC`. */
    FULMEN_ALIGNAS(8) uint32_t magic;
    /* `FULMEN_ABI_VERSION`. */
    uint32_t version;
    /* Bytes of the region. */
    uint64_t region_len;
    /* Where the records begin: a multiple of 64. */
    uint64_t requests_offset;
    /* How many there are: 1 to `FULMEN_SHARE_RECORDS_MAX`. */
    uint32_t request_count;
    /* Zero. */
    uint32_t reserved;
} fulmen_share_request;
FULMEN_ASSERT(sizeof(fulmen_share_request) == 32, "size of fulmen_share_request");
FULMEN_ASSERT(FULMEN_ALIGNOF(fulmen_share_request) == 8, "alignment of fulmen_share_request");
FULMEN_ASSERT(offsetof(fulmen_share_request, magic) == 0, "fulmen_share_request.magic");
FULMEN_ASSERT(offsetof(fulmen_share_request, version) == 4, "fulmen_share_request.version");
FULMEN_ASSERT(offsetof(fulmen_share_request, region_len) == 8, "fulmen_share_request.region_len");
FULMEN_ASSERT(offsetof(fulmen_share_request, requests_offset) == 16, "fulmen_share_request.requests_offset");
FULMEN_ASSERT(offsetof(fulmen_share_request, request_count) == 24, "fulmen_share_request.request_count");
FULMEN_ASSERT(offsetof(fulmen_share_request, reserved) == 28, "fulmen_share_request.reserved");

/* What an agent answers: how buffers in the region are named in records, `region_len` being the region's. An agent that takes
 * nothing says why, and ends the connection. */
typedef struct fulmen_share_answer {
    /* `FULMEN_SHARE_MAGIC`. */
    FULMEN_ALIGNAS(8) uint32_t magic;
    /* `FULMEN_ABI_VERSION`. */
    uint32_t version;
    /* For records and their buffers. */
    uint64_t generation;
    /* This node's number, for records (`source_node`, and `target_node` where it is to be this one) and their buffers. */
    uint32_t node;
    /* For buffers. */
    uint32_t slot;
    /* For buffers. */
    uint64_t tag;
    /* A `FULMEN_ERROR_`, or 0: the region is shared. */
    uint32_t error;
    /* The system's number for the error, or 0. */
    int32_t os_error;
    /* Zero. */
    uint64_t reserved[3];
} fulmen_share_answer;
FULMEN_ASSERT(sizeof(fulmen_share_answer) == 64, "size of fulmen_share_answer");
FULMEN_ASSERT(FULMEN_ALIGNOF(fulmen_share_answer) == 8, "alignment of fulmen_share_answer");
FULMEN_ASSERT(offsetof(fulmen_share_answer, magic) == 0, "fulmen_share_answer.magic");
FULMEN_ASSERT(offsetof(fulmen_share_answer, version) == 4, "fulmen_share_answer.version");
FULMEN_ASSERT(offsetof(fulmen_share_answer, generation) == 8, "fulmen_share_answer.generation");
FULMEN_ASSERT(offsetof(fulmen_share_answer, node) == 16, "fulmen_share_answer.node");
FULMEN_ASSERT(offsetof(fulmen_share_answer, slot) == 20, "fulmen_share_answer.slot");
FULMEN_ASSERT(offsetof(fulmen_share_answer, tag) == 24, "fulmen_share_answer.tag");
FULMEN_ASSERT(offsetof(fulmen_share_answer, error) == 32, "fulmen_share_answer.error");
FULMEN_ASSERT(offsetof(fulmen_share_answer, os_error) == 36, "fulmen_share_answer.os_error");
FULMEN_ASSERT(offsetof(fulmen_share_answer, reserved) == 40, "fulmen_share_answer.reserved");

#undef FULMEN_ASSERT
#undef FULMEN_ALIGNAS
#undef FULMEN_ALIGNOF

#endif
