//! The layout of frames.
//!
//! All numbers are little-endian. Every frame begins with 16 bytes, so that a message of up to 40 bytes and its header
//! share one line of a ring:
//!
//! | bytes | field |
//! |---|---|
//! | 0 | kind |
//! | 1 | flags (of a fragment, a grant) or status (of a Fin) |
//! | 2..4 | credits that the sender of the frame gives back |
//! | 4..8 | sequence number of the frame on its link and in its direction, from 0, wrapping |
//! | 8..16 | tag, or operation |
//!
//! | kind | tag or operation | what follows |
//! |---|---|---|
//! | Eager | tag | the whole message |
//! | EagerFragment | tag; the receiver's operation if flag `MATCHED` | total (u64), offset (u64), the sender's operation (u64), bytes |
//! | Rts | tag; the receiver's get if flag `MATCHED` | the sender's operation (u64), length (u64), key (u64), offset (u64), checksum of the message (u32; 0 if none is verified) |
//! | Cts | the sender's operation | the receiver's operation (u64), bytes granted so far (u64) |
//! | Grant | the sender's operation | the receiver's operation (u64), offset (u64), length (u64), rail (u32), its incarnation (u32) |
//! | Fin | the sender's operation | length (u64) |
//! | Cancel | the sender's operation | nothing |
//! | Credit, Bye, Forsake | 0 | nothing |
//! | Tell | 0 | up to 64 bytes for the peer's driver |
//! | Requests | how many | requests, one behind the other |
//! | Answers | how many | answers: the request's operation (u64), code (u8), value (u64) |
//! | PutFragment | 0 | total (u64), offset (u64), the put's operation (u64), bytes |
//! | Carried | source (u16), destination (u16), hops left (u8), 0 (u24) | a frame of theirs |
//!
//! A request of a [one-sided operation](super::onesided) is
//!
//! | bytes | field |
//! |---|---|
//! | 0 | verb: 1 put, 2 get, 3 fetch-add, 4 compare-swap |
//! | 1 | flags: 1 `COUNTED` (put), 2 `FIRST` (put), 4 `OFFERED` (put), 8 `DIRECT` (get) |
//! | 2..10 | the operation of the side that asks |
//! | 10..18 | key of the memory |
//! | 18..26 | offset in it |
//! | 26..34 | bytes: of the whole put; to get; 8 for a word |
//! | of a put with `COUNTED` | the counter's key (u64), offset (u64), what is added (u64) |
//! | of a put with `OFFERED` | where its bytes are: key (u64), offset (u64) |
//! | of another put | its bytes; with `FIRST`, which is the last request of its frame, only the first of them |
//! | of a fetch-add | what is added (u64) |
//! | of a compare-swap | what is expected (u64), what is stored (u64) |
//!
//! The code of an answer is 0 done (value: the old value of a word), 1 no such key, 2 out of bounds (value: bytes of the
//! memory), 3 not permitted, 4 misaligned, 5 cancelled, 6 unreachable; plus 128 where the counter of a put is meant.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::onesided::wire::{CounterBody, RequestBody};
use super::stripes::Word;
use super::{OpError, ProtocolError};

/// Bytes with which every frame begins.
pub const PREFIX: usize = size_of::<Prefix>();
/// Bytes of a fragment before its payload.
pub const FRAGMENT_HEADER: usize = PREFIX + size_of::<FragmentBody>();
/// Bytes of the longest header.
pub const MAX_HEADER: usize = {
    let request = size_of::<RequestBody>() + size_of::<CounterBody>();
    PREFIX + if request > Word::MOST { request } else { Word::MOST }
};

/// The fragment or the offer belongs to an operation of the receiver that its header names.
pub(super) const MATCHED: u8 = 1;
/// The message ends here, incomplete.
pub(super) const ABORT: u8 = 2;
/// The receiver wants the message in fragments.
pub(super) const STREAM: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Prefix {
    pub kind: u8,
    pub flags: u8,
    pub credits: U16,
    pub sequence: U32,
    pub word: U64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct FragmentBody {
    pub total: U64,
    pub offset: U64,
    pub op: U64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RtsBody {
    pub op: U64,
    pub len: U64,
    pub key: U64,
    pub offset: U64,
    pub checksum: U32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct CtsBody {
    pub op: U64,
    pub granted: U64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct GrantBody {
    pub op: U64,
    pub offset: U64,
    pub len: U64,
    pub rail: U32,
    pub incarnation: U32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct FinBody {
    pub len: U64,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Eager = 1,
    EagerFragment = 2,
    Rts = 3,
    Cts = 4,
    Fin = 5,
    Credit = 6,
    Cancel = 7,
    Bye = 8,
    Requests = 9,
    Answers = 10,
    PutFragment = 11,
    Forsake = 12,
    Grant = 13,
    Tell = 14,
    Carried = 15,
}

impl Kind {
    pub(super) fn parse(byte: u8) -> Result<Kind, ProtocolError> {
        Ok(match byte {
            1 => Kind::Eager,
            2 => Kind::EagerFragment,
            3 => Kind::Rts,
            4 => Kind::Cts,
            5 => Kind::Fin,
            6 => Kind::Credit,
            7 => Kind::Cancel,
            8 => Kind::Bye,
            9 => Kind::Requests,
            10 => Kind::Answers,
            11 => Kind::PutFragment,
            12 => Kind::Forsake,
            13 => Kind::Grant,
            14 => Kind::Tell,
            15 => Kind::Carried,
            kind => return Err(ProtocolError::Kind { kind }),
        })
    }
}

/// How a message that was offered ended, as its receiver tells the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Status {
    Delivered = 0,
    Truncated = 1,
    Cancelled = 2,
    Failed = 3,
    Changed = 4,
}

impl Status {
    pub(super) fn parse(byte: u8) -> Result<Status, ProtocolError> {
        Ok(match byte {
            0 => Status::Delivered,
            1 => Status::Truncated,
            2 => Status::Cancelled,
            3 => Status::Failed,
            4 => Status::Changed,
            _ => return Err(ProtocolError::Malformed { what: "the status of a Fin" }),
        })
    }

    /// What it means to the sender of `len` bytes.
    pub(super) fn outcome(self, len: u64) -> Result<u64, OpError> {
        match self {
            Status::Delivered => Ok(len),
            Status::Truncated => Err(OpError::Refused { len }),
            Status::Cancelled => Err(OpError::Cancelled),
            Status::Failed => Err(OpError::Unreachable),
            Status::Changed => Err(OpError::Changed),
        }
    }
}

/// The bytes of a frame that came in. They may be in memory that the sender can still change, so that each byte is read
/// once and what was checked is the copy.
pub trait Incoming {
    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out, from offset `at`. The range lies inside.
    fn read(&self, at: usize, into: &mut [u8]);

    /// How many of them have come: more than `before`, unless whoever writes them keeps this one waiting.
    fn come(&self, before: usize) -> usize {
        let _ = before;
        self.len()
    }

    /// Copies bytes out past the caches of what is read into, where the way can: nobody reads it soon.
    fn read_past(&self, at: usize, into: &mut [u8]) {
        self.read(at, into);
    }

    /// Copies bytes from offset `at` to offset `to_at` of exposed memory. Both ranges lie inside.
    fn copy_to(&self, at: usize, to: &fulmen_memory::Exposed, to_at: usize, len: usize);
}

impl Incoming for [u8] {
    fn len(&self) -> usize {
        self.len()
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self[at..at + into.len()]);
    }

    fn copy_to(&self, at: usize, to: &fulmen_memory::Exposed, to_at: usize, len: usize) {
        to.write(to_at, &self[at..at + len]);
    }
}

impl Incoming for fulmen_reach::ring::Frame<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.len()
    }

    #[inline]
    fn read(&self, at: usize, into: &mut [u8]) {
        self.read(at, into);
    }

    #[inline]
    fn come(&self, before: usize) -> usize {
        self.come(before)
    }

    fn read_past(&self, at: usize, into: &mut [u8]) {
        self.read_past(at, into);
    }

    fn copy_to(&self, at: usize, to: &fulmen_memory::Exposed, to_at: usize, len: usize) {
        self.copy_to(at, to, to_at, len);
    }
}

/// Reads a fixed layout at offset `at`.
pub(super) fn read<T: FromBytes + IntoBytes + Immutable>(
    frame: &(impl Incoming + ?Sized),
    at: usize,
    what: &'static str,
) -> Result<T, ProtocolError> {
    if frame.len() < at + size_of::<T>() {
        return Err(ProtocolError::Short { what, len: frame.len() });
    }
    let mut value = T::new_zeroed();
    frame.read(at, value.as_mut_bytes());
    Ok(value)
}

/// A header, ready to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    bytes: [u8; MAX_HEADER],
    len: usize,
}

impl Header {
    #[inline]
    pub(super) fn new(prefix: Prefix, body: &(impl IntoBytes + Immutable)) -> Header {
        let mut bytes = [0; MAX_HEADER];
        bytes[..PREFIX].copy_from_slice(prefix.as_bytes());
        let body = body.as_bytes();
        bytes[PREFIX..PREFIX + body.len()].copy_from_slice(body);
        Header { bytes, len: PREFIX + body.len() }
    }

    /// A header, and bytes right behind it: no more than 64.
    pub(super) fn with_bytes(prefix: Prefix, more: &[u8]) -> Header {
        let mut header = Header::new(prefix, &());
        header.bytes[header.len..header.len + more.len()].copy_from_slice(more);
        header.len += more.len();
        header
    }

    /// A header with two bodies.
    pub(super) fn with_two(
        prefix: Prefix,
        body: &(impl IntoBytes + Immutable),
        more: &(impl IntoBytes + Immutable),
    ) -> Header {
        let mut header = Header::new(prefix, body);
        let more = more.as_bytes();
        header.bytes[header.len..header.len + more.len()].copy_from_slice(more);
        header.len += more.len();
        header
    }

    /// Its bytes.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
