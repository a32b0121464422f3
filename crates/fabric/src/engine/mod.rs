//! The protocol of a link between two ranks, without any input or output of its own.
//!
//! A [`Link`] is one end of it, a plain state machine: no thread, no clock, no system call. Its driver hands in the frames
//! that come ([`Link::receive`]), sends the frames that are to go ([`Link::transmit`], [`Link::transmitted`]), and does the
//! large moves ([`Link::next_copy`], [`Link::next_posting`]). Callers start operations ([`Link::send`], [`Link::recv`]) and
//! look at their outcome ([`Link::poll`]). Deadlines are the callers': they [cancel](Link::cancel). Whether a time has come
//! is said from outside, so the same engine runs over shared memory, over devices, and over a virtual network in tests.
//!
//! # What the frames below must be
//!
//! Each direction carries frames in order, each whole and once. The sequence number in every frame proves it; a frame that
//! is missing, repeated or garbled is a [`ProtocolError`], after which the link is [severed](Link::sever). Recovering from
//! it is the business of a layer that keeps frames until they are acknowledged: both numbers it needs are in the header.
//!
//! # Messages
//!
//! A receive takes the oldest message of its tag, whatever the [`LABEL`] in it; of several receives with one tag, the first posted is first. Lengths have
//! 64 bits. A message longer than its receive is [`OpError::Truncated`] there, and nothing of it is written; its sender is
//! told ([`OpError::Refused`]) if it still waits: a message that fits in one frame has been sent as soon as it is in it. The
//! same goes for a message whose label is another one than its receive's ([`OpError::Mislabelled`]).
//!
//! - *Eager*: it goes out at once, in one frame or in consecutive fragments. A message that nobody has asked for yet is kept
//!   (up to [`Config::unexpected`] bytes on a link; 64 bytes are added for each). Beyond that, no credits are given back,
//!   which holds the sender, until receives take messages away.
//! - *Offered* ([`Source::Offered`]): an Rts says where the bytes are. When it has met its receive, they move with one copy:
//!   [`Rendezvous::Mapped`], the receiver copies them out of the sender's memory and says Fin; [`Rendezvous::Matched`], the
//!   receiver's driver posts receives for them, Cts grants what was posted, the sender's driver sends exactly as many bytes
//!   in chunks of the same lengths on a channel of its own, and Fin comes from the receiver; [`Rendezvous::Striped`], the
//!   same over several channels, each Grant of one part and for one of them, in any order of parts, and again for a part that
//!   did not come. Such a send ends with delivery,
//!   and when the sender's device holds the memory no longer. Where the receiver cannot have the bytes in this way (its
//!   memory is not registered, or the channel of large moves [was given up](Link::give_up_moves)), its Cts asks for them as
//!   a stream: they come in fragments, and the send ends well with the last of them, as that of an eager message does. It
//!   has met its receive then, whose memory is long enough, but that the bytes have come the sender does not know.
//!
//! # One-sided operations
//!
//! A rank puts into, gets out of and changes words of memory that its peer has [exported](Exports), without the peer's
//! program. See [`onesided`].
//!
//! # Frames of others
//!
//! Where two ranks have no link of their own, other links [carry](Carried) their frames.
//!
//! # Credits
//!
//! Each frame but Credit takes one credit of [`Config::credits`]; its receiver gives it back once it has room again, on
//! whatever frame goes the other way, or on a Credit frame when half of them are owed. The last [`RESERVE`] credits are left
//! for frames other than messages, so that the answers that free memory always get through; half of them also for frames
//! other than those of one-sided operations, for which no credit is ever withheld. A receiver has room for
//! [`Config::receive_buffers`] frames, and is never sent more.
//!
//! # Memory
//!
//! An operation owns its memory ([`Exposed`](fulmen_memory::Exposed)) until its outcome. [`Link::cancel`] tells whether it
//! was released at once. Bytes from the peer never decide about an allocation: what is kept is what has come.

mod carried;
pub mod checksum;
mod exports;
mod fallback;
mod frame;
mod incoming;
mod keys;
pub(crate) mod lengths;
mod link;
mod matching;
mod moves;
pub mod onesided;
mod ops;
mod outgoing;
mod reliable;
mod stripes;
#[cfg(test)]
mod tests;

pub use carried::Carried;
pub use exports::{Exports, Rights};
pub use frame::{FRAGMENT_HEADER, Header, Incoming, MAX_HEADER, PREFIX};
pub use incoming::comes_in_parts;
pub use link::{Cancel, Lent, Link};
pub use matching::Landing;
pub use moves::{Copy, Into, Posting};
pub use onesided::{At, Atomic, Counter, Request};
pub use ops::{OpId, Source, Target};
pub use outgoing::{Body, Outgoing};
pub use reliable::{Reliable, ReliableConfig, Verdict};
pub use stripes::{Part, Word};

/// The bits of a tag that say what a message is, and not which one.
pub const LABEL: u64 = 0xff << 48;

/// Credits that messages leave for other frames. One-sided operations leave half of them.
pub const RESERVE: u16 = 8;

/// How registered messages move. The same at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// The receiver maps the sender's memory.
    Mapped,
    /// Each send of a device meets a receive that was posted for it.
    Matched,
    /// The same over several channels: the receiver says of each part over which one it is to come.
    Striped,
}

impl Rendezvous {
    /// Whether devices move messages.
    #[must_use]
    pub fn is_by_device(self) -> bool {
        self != Rendezvous::Mapped
    }
}

/// How a link is set up. The same at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of the longest frame, of those that are not [`Config::long`]: at least 128.
    pub frame: usize,
    /// The messages for whose fragments there is more room.
    pub long: Option<Long>,
    /// Frames that may be under way, other than Credit: 16 to 1024.
    pub credits: u16,
    /// Bytes of messages that are kept before a receive asks for them.
    pub unexpected: u64,
    /// How registered messages move.
    pub rendezvous: Rendezvous,
    /// Whether every frame and every large message carries a checksum. Frames get theirs from the driver. Memory that others
    /// may write has none that lasts, so that all bytes of one-sided operations then go in frames, and a message that changes
    /// while it is offered ends with [`OpError::Changed`] at both ends, or comes as it is where it falls back to frames.
    pub verify: bool,
    /// A bug that a simulator is to find.
    #[cfg(feature = "planted-bugs")]
    pub planted: Option<Planted>,
}

/// The parts of a long message begin where lines of memory do, if it does.
const ALIGNED: u64 = 64;

/// Messages that go in longer frames, so that less time is taken for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Long {
    /// They have more bytes than that.
    pub beyond: u64,
    /// Bytes of the longest frame with a whole one.
    pub whole: usize,
    /// Bytes of the longest frame with a fragment of a longer one: no less than either, or [`Config::frame`].
    pub frame: usize,
}

/// Bugs for tests that show that a simulator finds such.
#[cfg(feature = "planted-bugs")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Each Credit frame gives one credit back that the next frame gives back again.
    CreditOffByOne,
    /// Frames of another generation are taken.
    NoGenerationCheck,
    /// What was acknowledged once is not acknowledged again when it comes again.
    LostAck,
}

impl Config {
    /// Whether a message of so many bytes goes in one frame.
    #[must_use]
    pub fn goes_whole(&self, len: u64) -> bool {
        let long = self.long.filter(|long| len > long.beyond);
        len <= (long.map_or(self.frame, |long| long.whole) - PREFIX) as u64
    }

    /// Bytes of the longest frame of any kind.
    fn longest(&self) -> usize {
        self.long.map_or(self.frame, |long| long.frame)
    }

    /// Bytes of the next fragment of what comes from there, after so many. [`Source::Bytes`] go as if they were short.
    fn fragment(&self, source: &Source, sent: u64) -> u64 {
        let (total, left) = (source.len(), source.len() - sent);
        let long = self.long.filter(|long| total > long.beyond && !matches!(source, Source::Bytes(_)));
        // What follows is written while what went before is read.
        let half = long.map_or(u64::MAX, |_| total.div_ceil(2).next_multiple_of(ALIGNED));
        left.min((long.map_or(self.frame, |long| long.frame) - FRAGMENT_HEADER) as u64).min(half)
    }

    /// Frames for which a receiver must have room at any time: the credits, and as many Credit frames as can be unread.
    #[must_use]
    pub fn receive_buffers(&self) -> usize {
        usize::from(self.credits) + usize::from(self.credits.div_ceil(RESERVE / 2)) + 1
    }

    /// Bytes of the longest get that is answered in frames: two are sooner there than an offer is agreed on.
    pub(crate) fn framed_get(&self) -> u64 {
        2 * (self.frame - FRAGMENT_HEADER) as u64
    }

    /// One-sided operations that may be under way in a direction.
    #[must_use]
    pub fn requests(&self) -> usize {
        16 * usize::from(self.credits)
    }

    fn check(&self) {
        assert!(self.frame >= 128, "a frame has at least 128 bytes");
        let fits = |long: Long| long.frame >= self.frame.max(long.whole);
        assert!(self.long.is_none_or(fits), "a long frame is no shorter than others");
        assert!((2 * RESERVE..=1024).contains(&self.credits), "a link has 16 to 1024 credits");
    }
}

/// Where the peer finds offered bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The key of the region.
    pub key: u64,
    /// The first byte's place in it.
    pub offset: u64,
    /// What the sender says to be the bytes' checksum, where the link verifies.
    pub checksum: u32,
}

/// How an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// The message was longer than the receive.
    #[error("the message has {len} bytes and the receive takes {room}")]
    Truncated {
        /// Bytes of the message.
        len: u64,
        /// Bytes that the receive takes.
        room: u64,
    },
    /// The message has another label than the receive.
    #[error("the message has the label {label}")]
    Mislabelled {
        /// The message's.
        label: u8,
    },
    /// The receive that met this message was shorter, or had another label.
    #[error("the receiver takes no such message of {len} bytes")]
    Refused {
        /// Bytes of the message.
        len: u64,
    },
    /// The other side gave its operation up.
    #[error("the other side gave up")]
    Cancelled,
    /// The receiver could not reach the sender's memory.
    #[error("the receiver could not reach the sender's memory")]
    Unreachable,
    /// The bytes that the receiver copied are not those of which the offer has the checksum.
    #[error("the bytes of the message are not those that were offered")]
    Changed,
    /// The owner has exported no memory under this key, or has taken it back.
    #[error("no memory has this key")]
    NoSuchKey,
    /// The bytes lie outside of the exported memory.
    #[error("{len} bytes at {offset} lie outside of {size} bytes")]
    OutOfBounds {
        /// Where they should start.
        offset: u64,
        /// How many there should be.
        len: u64,
        /// Bytes of the memory.
        size: u64,
    },
    /// The memory was exported without this right.
    #[error("the memory was exported without the right {need}")]
    NotPermitted {
        /// What the operation needs.
        need: Rights,
    },
    /// A word does not lie at a multiple of its size.
    #[error("a word of 8 bytes at {offset} is not aligned")]
    Misaligned {
        /// Where it should start.
        offset: u64,
    },
    /// The peer has closed its end.
    #[error("the peer has closed the link")]
    Left,
    /// The link was severed.
    #[error("the link was severed")]
    Severed,
}

/// The peer broke the protocol: the link is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A frame ends before its header does.
    #[error("a frame of {len} bytes is too short for {what}")]
    Short {
        /// What it was to be.
        what: &'static str,
        /// Bytes of the frame.
        len: usize,
    },
    /// There is no such kind of frame.
    #[error("a frame of the unknown kind {kind}")]
    Kind {
        /// Its kind.
        kind: u8,
    },
    /// A frame is missing or came twice.
    #[error("frame {found} came where {expected} was due")]
    Sequence {
        /// The number that was due.
        expected: u32,
        /// The number that came.
        found: u32,
    },
    /// More credits were used or given back than there are.
    #[error("more credits than there are")]
    Credits,
    /// More one-sided operations are under way than there may be.
    #[error("more than {limit} one-sided operations under way")]
    Requests {
        /// How many there may be.
        limit: usize,
    },
    /// A field of a frame makes no sense there.
    #[error("a frame that makes no sense: {what}")]
    Malformed {
        /// The field.
        what: &'static str,
    },
}
