//! Where the words of shared memory lie, in bytes. Each word has one writer.
//!
//! A device shares one *directory*, written by its own process alone: the queue pairs that can be connected to, and the
//! registrations that peers may reach. A queue pair shares one *wire*, which it writes and its peer reads: the ring of
//! outgoing messages, and words that acknowledge the incoming ones. Nothing in them is trusted: a word is read once,
//! checked, and then used.

use fulmen_reach::ring::Layout;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The first word of every directory: "FLMSOFT" and the version of the layout.
pub(crate) const DIRECTORY_MAGIC: u64 = u64::from_be_bytes(*b"FLMSOFT\x02");
/// The first word of every wire.
pub(crate) const WIRE_MAGIC: u64 = u64::from_be_bytes(*b"FLMWIRE\x02");

/// Words of a directory.
pub(crate) mod directory {
    use super::LINE;

    /// 0 once the device is closed, while peers keep the directory mapped.
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const PROFILE: usize = 8;
    /// A random number that goes into the check words of this directory's registrations.
    pub(crate) const SALT: usize = 16;
    /// Where in its process's own memory the number of [`PROBE_NONCE`] lies; 0 if the memory is not to be copied by the
    /// system.
    pub(crate) const PROBE_ADDR: usize = 24;
    pub(crate) const PROBE_NONCE: usize = 32;
    /// 1 while the device's thread sleeps and wants the doorbell rung for whatever arrives.
    pub(crate) const ASLEEP: usize = LINE;
    pub(crate) const DOORBELL: usize = 2 * LINE;
    /// Counts the registrations that ended, so that peers unmap what they no longer need.
    pub(crate) const REVOKED: usize = 4 * LINE;

    pub(crate) const PAIRS: usize = 4096;
    pub(crate) const PAIR_SLOTS: usize = 1024;
    pub(crate) const PAIR_SIZE: usize = 32;
    /// The queue pair's number, with [`PAIR_CHANGES`] while the entry is being changed; 0 while it is empty.
    pub(crate) const PAIR_NUMBER: usize = 0;
    pub(crate) const PAIR_CHANGES: u64 = 1 << 32;
    pub(crate) const PAIR_WIRE: usize = 8;
    pub(crate) const PAIR_INCARNATION: usize = 16;

    pub(crate) const KEYS: usize = PAIRS + PAIR_SLOTS * PAIR_SIZE;
    pub(crate) const KEY_SLOTS: usize = 1 << 15;
    pub(crate) const KEY_SIZE: usize = LINE;
    /// The key; 0 while the entry is empty. Keys are never used twice, so that a reader who finds the same key before
    /// and after has read one registration.
    pub(crate) const KEY: usize = 0;
    /// Under which key the region is shared; [`super::PLAIN`] if it cannot be mapped.
    pub(crate) const KEY_SHARE: usize = 8;
    pub(crate) const KEY_OFFSET: usize = 16;
    pub(crate) const KEY_LEN: usize = 24;
    pub(crate) const KEY_ADDR: usize = 32;
    pub(crate) const KEY_ACCESS: usize = 40;
    pub(crate) const KEY_DOMAIN: usize = 48;
    /// A number that follows from all the others and the directory's salt.
    pub(crate) const KEY_CHECK: usize = 56;

    pub(crate) const SIZE: usize = KEYS + KEY_SLOTS * KEY_SIZE;
}

/// Words of a wire.
pub(crate) mod wire {
    use super::{ANSWERS, LINE, RING};

    pub(crate) const MAGIC: usize = 0;
    /// A random number that no other wire has.
    pub(crate) const INCARNATION: usize = 8;
    pub(crate) const NUMBER: usize = 16;
    pub(crate) const KIND: usize = 24;

    /// The queue pair's state: [`super::state`].
    pub(crate) const STATE: usize = 2 * LINE;
    /// The incarnation of the wire that this queue pair receives from.
    pub(crate) const PARTNER: usize = 2 * LINE + 8;
    /// How long a peer waits when no RECV is posted, in nanoseconds.
    pub(crate) const NOT_READY_NS: usize = 2 * LINE + 16;
    /// What peers may do through this queue pair: bits of `Access`.
    pub(crate) const ACCESS: usize = 2 * LINE + 24;
    /// The number of the protection domain in its process.
    pub(crate) const DOMAIN: usize = 2 * LINE + 32;
    /// The GIDs by which this side goes and to which it sends, 16 bytes each.
    pub(crate) const SOURCE: usize = 2 * LINE + 40;
    pub(crate) const TARGET: usize = 2 * LINE + 56;
    /// 1 if this side copies out of the partner's memory by the system's calls.
    pub(crate) const PULLS: usize = 2 * LINE + 72;

    /// How many incoming messages were taken.
    pub(crate) const ACKED: usize = 4 * LINE;
    /// One more than the number of the incoming message that finds no RECV; 0 while there is none.
    pub(crate) const STALLED: usize = 4 * LINE + 8;
    /// The incoming message that was refused, and why: one more than its number in the upper 56 bits, the completion
    /// status for its sender in the lower 8.
    pub(crate) const REFUSED: usize = 4 * LINE + 16;
    /// How many RECVs were posted, for a sender that is held until there is one for its message.
    pub(crate) const POSTED: usize = 4 * LINE + 24;

    /// The key of the peer's registration that this side works on at the moment.
    pub(crate) const WORKING_ON: usize = 6 * LINE;

    pub(crate) const RING_AT: usize = 8 * LINE;
    pub(crate) const ANSWERS_AT: usize = RING_AT + RING.size();
    pub(crate) const SIZE: usize = ANSWERS_AT + ANSWERS.size();
}

/// Words of a datagram wire: see [`crate::datagrams`].
pub(crate) mod datagrams {
    use super::{LINE, RING};

    pub(crate) const MAGIC: usize = 0;
    /// The first word of every datagram wire.
    pub(crate) const THIS_MAGIC: u64 = u64::from_be_bytes(*b"FLMDGRM\x01");
    /// [`GONE`] once the sender has no use for it any more.
    pub(crate) const STATE: usize = 2 * LINE;
    pub(crate) const GONE: u64 = 1;
    /// 1 while a message waits for room in the ring.
    pub(crate) const WAITING: usize = 2 * LINE + 8;
    /// 1 once the receiver takes messages: the one word of these that it writes.
    pub(crate) const ATTACHED: usize = 4 * LINE;

    pub(crate) const RING_AT: usize = 6 * LINE;
    pub(crate) const SIZE: usize = RING_AT + RING.size();
}

/// The ring of a wire.
pub(crate) const RING: Layout = Layout::new(256 << 10);

/// The second ring of a wire, for what a peer asked for. A peer can always take it, whatever its own ring is full of, so
/// that two that ask each other do not block.
pub(crate) const ANSWERS: Layout = Layout::new(128 << 10);

/// Messages up to this many bytes travel in the ring, so that the sender's memory is read and written once more but
/// never mapped by the receiver; longer ones are copied once, by the receiver, out of the sender's region.
pub(crate) const EAGER: usize = 2048;

/// What names the region of a registration, or of a place, that cannot be mapped. Its bytes are at their owner's address.
pub(crate) const PLAIN: u64 = 0;

/// Messages from memory that cannot be mapped travel through the ring up to this many bytes; longer ones are copied once,
/// by the receiver, out of the sender's process, if the system lets it. The system looks at each page for it, so that the
/// two copies of a ring, which two processors share, are faster for messages that caches hold (measured: 27 GB/s, and
/// 14 GB/s by the system, at 1 MiB); where both sides share one processor, one copy is faster from there on.
pub(crate) const PULLED: usize = 1 << 20;

/// Messages from memory that cannot be shared travel through the ring in parts of this many bytes.
pub(crate) const PART: usize = 32 << 10;

/// Pieces of one request.
pub(crate) const MAX_PIECES: usize = 16;

/// States of a queue pair as its wire tells them; zero before it is connected.
pub(crate) mod state {
    /// RTR, RTS or SQD.
    pub(crate) const CONNECTED: u64 = 1;
    /// In error, reset or destroyed: whatever the queue pair had posted is void, and its memory is used otherwise.
    pub(crate) const GONE: u64 = 2;
    /// In error, where messages are done once their bytes are in the ring: those bytes stand, nothing comes after them.
    pub(crate) const ENDED: u64 = 3;
}
