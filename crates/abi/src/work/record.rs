//! The record of work in memory.

use crate::buffer::RdmaBuffer;
use crate::party::Writer;

constants! {
    "For `fulmen_work_item`."
    /// Its magic number: FWRK.
    pub const WORK_MAGIC: u32 = u32::from_le_bytes(*b"FWRK"), "FULMEN_WORK_MAGIC";
    /// Bytes of arguments that fit into the record.
    pub const ARGUMENTS_ROOM: usize = 192, "FULMEN_WORK_ARGUMENTS_ROOM";
    /// In `state`: the bits of the `FULMEN_WORK_STATE_`.
    pub const WORK_STATE_MASK: u32 = 0xff, "FULMEN_WORK_STATE_MASK";
    /// In `state`, the error stands so many bits above the state: 24 bits, 0 unless the state is DONE.
    pub const WORK_ERROR_SHIFT: u32 = 8, "FULMEN_WORK_ERROR_SHIFT";
    /// In `state` and `lease_id`, the number of claims stands so many bits above the rest: 32 bits.
    pub const WORK_CLAIMS_SHIFT: u32 = 32, "FULMEN_WORK_CLAIMS_SHIFT";
}

codes! {
    /// What does the work: `kind` in `fulmen_work_item`.
    pub enum WorkKind: u32, "FULMEN_WORK" {
        /// A kernel of a GPU.
        Kernel "KERNEL" = 1,
        /// A function of a program.
        Function "FUNCTION" = 2,
    }
}

codes! {
    /// Where work stands: the lowest 8 bits of `state` in `fulmen_work_item`. With it go the error and the number of
    /// claims, which counts all claims of the record, those of earlier uses too, and never goes back. All changes are
    /// by compare-and-swap of the whole word: a worker whose claim was taken back cannot end what another one works on.
    pub enum WorkState: u64, "FULMEN_WORK_STATE" {
        /// Nothing is asked; the record is the requester's to write.
        Free "FREE" = 0,
        /// It is to be done. Set by the requester (from FREE), after everything else of the record; by the worker that
        /// gives it back, and by anybody who sees that its lease is over (from CLAIMED, with the same number of
        /// claims). The requester may take it back to FREE.
        Written "WRITTEN" = 1,
        /// A worker does it. Set by that worker (from WRITTEN), with the next number of claims; then it writes its
        /// lease.
        Claimed "CLAIMED" = 2,
        /// It is over. Set by the worker (from CLAIMED, with its own number of claims), after the result has landed;
        /// also by a worker that finds the request wrong, or claimed as often as it may be (from WRITTEN), with the
        /// error. Whoever set it then adds to the counter. The requester takes it to FREE.
        Done "DONE" = 3,
    }
}

layout! {
    /// Asks for one run of a kernel or function, by whichever worker claims it.
    ///
    /// The requester writes the record while it is FREE: bytes 0 to 447, and the state last. After that it writes
    /// nothing but the state. The worker writes the state and its lease.
    ///
    /// A claim is good until `lease_deadline_ns`, which its worker moves on. The lease counts only if its number of
    /// claims is that of the state; until it does, who waits for its end waits as long as a lease of its own would
    /// last. A worker that was slow may still run beside the next one: what they write to the result must be the same,
    /// or go to places of their own. How long a result is, its kernel says.
    pub struct WorkItem, "fulmen_work_item", 512 {
        /// `FULMEN_WORK_MAGIC`.
        0 magic: u32,
        /// `FULMEN_ABI_VERSION`.
        4 version: u32,
        /// The requester's number for it; another one each time that a record is used.
        8 id: u64,
        /// The requester's node, at most `FULMEN_NODE_MAX`.
        16 source_node: u32,
        /// Who may claim it: a node, `FULMEN_NODE_GATEWAY` or `FULMEN_NODE_ANY`.
        20 target_node: u32,
        /// Of the requester's world.
        24 generation: u64,
        /// A `FULMEN_WORK_KERNEL` or `FULMEN_WORK_FUNCTION`.
        32 kind: u32,
        /// Bytes of `arguments`; 0 with an `arguments_buffer`.
        36 arguments_len: u32,
        /// Which kernel or function: the number under which it was registered.
        40 kernel: u64,
        /// How often it may be claimed; 0: no limit.
        48 max_attempts: u32,
        /// Claims of the record's earlier uses: the number that its state had when this was written. 0 in new memory. A
        /// record with the highest number is neither claimed nor used any more.
        52 claims_before: u32,
        /// What is added to the counter at the end; 0 without one.
        56 counter_add: u64,
        /// The arguments, unless `arguments_buffer` has them. What follows them means nothing.
        64 arguments: [u8; 192],
        /// Where the arguments are, if they are not in `arguments`, with `FULMEN_RIGHT_READ`.
        256 arguments_buffer: RdmaBuffer,
        /// Where the result goes, with `FULMEN_RIGHT_WRITE`; or none.
        320 result_buffer: RdmaBuffer,
        /// A 64-bit word at a multiple of 8, with `FULMEN_RIGHT_ATOMIC`: `counter_add` is added to it at the end; or
        /// none. If the worker is lost between the two, nothing is added: the state is what counts.
        384 counter_buffer: RdmaBuffer,
        /// A `FULMEN_WORK_STATE_`, each of which says who sets it; a `FULMEN_ERROR_` or 0, shifted by
        /// `FULMEN_WORK_ERROR_SHIFT`; the number of claims, shifted by `FULMEN_WORK_CLAIMS_SHIFT`.
        448 state: u64,
        /// The worker's node, and the number of claims, shifted by `FULMEN_WORK_CLAIMS_SHIFT`. Stored after the
        /// deadline.
        456 lease_id: u64,
        /// When the claim ends: nanoseconds since 1970. The worker moves it on.
        464 lease_deadline_ns: u64,
        /// Zero.
        472 reserved: [u64; 5],
    }
}

const _: () = assert!(64 + ARGUMENTS_ROOM == core::mem::offset_of!(WorkItem, arguments_buffer));

impl WorkState {
    /// Who may change the state to `next`; `None` if nobody may.
    #[must_use]
    pub const fn writer(self, next: WorkState) -> Option<Writer> {
        match (self, next) {
            (WorkState::Free, WorkState::Written)
            | (WorkState::Written, WorkState::Free)
            | (WorkState::Done, WorkState::Free) => Some(Writer::Requester),
            (WorkState::Written, WorkState::Claimed | WorkState::Done) | (WorkState::Claimed, WorkState::Done) => {
                Some(Writer::Server)
            }
            (WorkState::Claimed, WorkState::Written) => Some(Writer::Anybody),
            _ => None,
        }
    }
}
