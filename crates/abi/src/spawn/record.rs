//! The record of a process in memory.

use crate::buffer::RdmaBuffer;
use crate::party::Writer;

constants! {
    "For `fulmen_spawn_request`."
    /// Its magic number: FSPN.
    pub const SPAWN_MAGIC: u32 = u32::from_le_bytes(*b"FSPN"), "FULMEN_SPAWN_MAGIC";
    /// Bytes of text that fit into the record.
    pub const TEXT_ROOM: usize = 3520, "FULMEN_SPAWN_TEXT_ROOM";
    /// Bytes of text at most where it lies in a buffer: 1 MiB.
    pub const TEXT_MAX: usize = 1 << 20, "FULMEN_SPAWN_TEXT_MAX";
}

flags! {
    /// How a process is run: bits of `flags` in `fulmen_spawn_request`.
    pub struct SpawnFlags, "FULMEN_SPAWN" {
        /// It goes on when its requester's lease has ended, and when nobody reads its output.
        DETACH = 1,
        /// All that it writes is also kept in files on its node.
        KEEP_OUTPUT = 2,
        /// It gets a standard input, from the ring `stdin_buffer`; else that is empty.
        STDIN = 4,
    }
}

codes! {
    /// Where a spawn request stands: `state` in `fulmen_spawn_request`.
    pub enum SpawnState: u64, "FULMEN_SPAWN_STATE" {
        /// Nothing is asked; the record is the requester's to write.
        Free "FREE" = 0,
        /// It is asked. Set by the requester (from FREE), after everything else of the record.
        Written "WRITTEN" = 1,
        /// An agent has taken it, by compare-and-swap (from WRITTEN). Until then the requester may take it back to
        /// FREE, by compare-and-swap, too.
        Accepted "ACCEPTED" = 2,
        /// The process runs. Set by the agent (from ACCEPTED), after `process_id`, `pid` and `serving_node`.
        Running "RUNNING" = 3,
        /// It is over, or could not be started. Set by the agent (from RUNNING or ACCEPTED), after all output and all
        /// else that is the agent's; it writes nothing any more. The requester takes it to FREE when it has read all
        /// that it wants.
        Done "DONE" = 4,
    }
}

codes! {
    /// How a process ended: `exit_kind` in `fulmen_spawn_request`; 0 if it never ran.
    pub enum ExitKind: u32, "FULMEN_EXIT" {
        /// By itself, with `exit_code`.
        Code "CODE" = 1,
        /// By the signal `signal`.
        Signal "SIGNAL" = 2,
    }
}

layout! {
    /// Asks for a process on a node.
    ///
    /// The requester writes the record while it is FREE: bytes 0 to 447 and `text`, zero in the words of the agent, and
    /// the state last. After that it writes only the words from `lease_deadline_ns` to `cancel`, one by one, and the
    /// agent only those from `state` to `stderr_written`. A record whose agent was lost is not used again before its
    /// memory is shared anew: the agent may write late.
    ///
    /// The text is strings with a NUL behind each, one after the other: the arguments (the program first, a path or a
    /// name that is looked for in PATH), then variables as NAME=value (beside those of the agent; of two with one name
    /// the last one counts), then the directory (an absolute path; without one it is the agent's). All of it is UTF-8.
    pub struct SpawnRequest, "fulmen_spawn_request", 4096 {
        /// `FULMEN_SPAWN_MAGIC`.
        0 magic: u32,
        /// `FULMEN_ABI_VERSION`.
        4 version: u32,
        /// The requester's number for it; another one each time that a record is used.
        8 id: u64,
        /// The requester's node, at most `FULMEN_NODE_MAX`.
        16 source_node: u32,
        /// Where it is to run: a node, `FULMEN_NODE_GATEWAY` or `FULMEN_NODE_ANY`.
        20 target_node: u32,
        /// Of the requester's world.
        24 generation: u64,
        /// The requester's lease; 0: none, and it stays until the requester's node is lost.
        32 lease_id: u64,
        /// Bits of `FULMEN_SPAWN_`.
        40 flags: u32,
        /// Strings that are arguments; at least 1.
        44 arg_count: u32,
        /// Strings that are variables.
        48 env_count: u32,
        /// 1 if there is a directory, else 0.
        52 cwd_count: u32,
        /// Bytes of all strings with their NULs.
        56 text_len: u32,
        /// Processors that it may use, in thousandths of one; 0: no limit.
        60 cpu_milli: u32,
        /// Memory that it may use, in bytes; 0: no limit.
        64 memory_bytes: u64,
        /// Milliseconds after which it is ended; 0: never.
        72 timeout_ms: u64,
        /// Milliseconds between SIGTERM and SIGKILL when it is ended.
        80 grace_ms: u64,
        /// Zero.
        88 reserved: [u64; 5],
        /// Where the text is, if it is not in `text`: `len` is `text_len`, with `FULMEN_RIGHT_READ`. It stays as it is
        /// until the state is RUNNING or DONE.
        128 text_buffer: RdmaBuffer,
        /// The ring of standard input, with `FULMEN_RIGHT_READ`; there if and only if `FULMEN_SPAWN_STDIN` is set.
        192 stdin_buffer: RdmaBuffer,
        /// The ring of standard output, with `FULMEN_RIGHT_WRITE`. Without one, it goes only where KEEP_OUTPUT puts it.
        256 stdout_buffer: RdmaBuffer,
        /// The ring of standard error, likewise, in other memory.
        320 stderr_buffer: RdmaBuffer,
        /// When the lease ends: nanoseconds since 1970. The requester moves it on. 0 without a lease.
        384 lease_deadline_ns: u64,
        /// Bytes that the requester has written to standard input in all.
        392 stdin_written: u64,
        /// The requester sets it to 1 when no more will come.
        400 stdin_closed: u64,
        /// Bytes of standard output that the requester has read in all. The process waits when the ring is full.
        408 stdout_read: u64,
        /// Of standard error.
        416 stderr_read: u64,
        /// The requester sets it to 1 to have the process ended, with its grace.
        424 cancel: u64,
        /// Zero.
        432 reserved_requester: [u64; 2],
        /// A `FULMEN_SPAWN_STATE_`: each says who sets it.
        448 state: u64,
        /// The agent's number for the process, which no other process of that agent ever has.
        456 process_id: u64,
        /// The system's number for it, on its node.
        464 pid: u32,
        /// The node that took the request.
        468 serving_node: u32,
        /// When DONE: why it was not started, or was ended; a `FULMEN_ERROR_`, or 0 if it was not ended by the agent.
        472 error: u32,
        /// The system's number for the error, or 0.
        476 os_error: i32,
        /// When DONE: a `FULMEN_EXIT_`; 0 if it never ran, and then there is an error.
        480 exit_kind: u32,
        /// With `FULMEN_EXIT_CODE`: 0 to 255. Else 0.
        484 exit_code: i32,
        /// With `FULMEN_EXIT_SIGNAL`: the signal, 1 to 127, as its node's system numbers it. Else 0.
        488 signal: u32,
        /// Zero.
        492 reserved_signal: u32,
        /// When DONE: how long it ran, in nanoseconds.
        496 ran_ns: u64,
        /// Zero.
        504 reserved_agent: u64,
        /// Bytes of standard input that the agent has read in all.
        512 stdin_read: u64,
        /// Bytes of standard output that the agent has written in all. When DONE: all that there was, or there is an
        /// error.
        520 stdout_written: u64,
        /// Of standard error.
        528 stderr_written: u64,
        /// Zero.
        536 reserved_output: [u64; 5],
        /// The text, unless `text_buffer` has it. What follows it means nothing.
        576 text: [u8; 3520],
    }
}

const _: () = assert!(576 + TEXT_ROOM == size_of::<SpawnRequest>());

impl SpawnState {
    /// Who may change the state to `next`; `None` if nobody may.
    #[must_use]
    pub const fn writer(self, next: SpawnState) -> Option<Writer> {
        match (self, next) {
            (SpawnState::Free, SpawnState::Written)
            | (SpawnState::Written, SpawnState::Free)
            | (SpawnState::Done, SpawnState::Free) => Some(Writer::Requester),
            (SpawnState::Written, SpawnState::Accepted)
            | (SpawnState::Accepted, SpawnState::Running | SpawnState::Done)
            | (SpawnState::Running, SpawnState::Done) => Some(Writer::Server),
            _ => None,
        }
    }
}
