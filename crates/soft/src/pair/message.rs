//! Frames of a wire's ring.

use fulmen_reach::ShareKey;
use fulmen_verbs::RemoteAddr;

use crate::layout::{MAX_PIECES, PLAIN};
use crate::registrations::Place;

/// Bytes of a frame's header.
pub(super) const HEADER: usize = 16;
/// Bytes of one place in a frame that refers to the sender's memory.
pub(super) const PLACE: usize = 24;
/// Bytes of what a peer is asked to work on.
pub(super) const TARGET: usize = 16;
/// Bytes of what an atomic does.
pub(super) const ATOMIC: usize = 24;
/// Bytes before those of an answer.
pub(super) const ANSWER: usize = 16;

const SMALLEST_REFERENCE: usize = HEADER + PLACE;
const LARGEST_REFERENCE: usize = HEADER + MAX_PIECES * PLACE;

/// What follows the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Bytes of a SEND, from `offset` on.
    Bytes,
    /// Places in the sender's memory, where the bytes of a SEND are.
    Places,
    /// Nothing: the bytes of a WRITE are in place already.
    Written,
    /// A target, and bytes of a WRITE, from `offset` on. With immediate data, [`Kind::Written`] follows the last of them.
    Write,
    /// A target, to be read and answered.
    Read,
    /// A target and an [`Atomic`], to be done and answered.
    Atomic,
}

impl Kind {
    /// Whether the receiver's process is asked to do it on its registered memory.
    pub(super) fn is_asked(self) -> bool {
        matches!(self, Kind::Write | Kind::Read | Kind::Atomic)
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) solicited: bool,
    pub(super) imm: Option<u32>,
    /// Bytes of the whole message.
    pub(super) total: u32,
    /// Where in the message the bytes of this frame belong.
    pub(super) offset: u32,
}

const IMM: u8 = 1;
const SOLICITED: u8 = 2;

impl Header {
    pub(super) fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = match self.kind {
            Kind::Bytes => 1,
            Kind::Places => 2,
            Kind::Written => 3,
            Kind::Write => 4,
            Kind::Read => 5,
            Kind::Atomic => 6,
        };
        bytes[1] = if self.imm.is_some() { IMM } else { 0 } | if self.solicited { SOLICITED } else { 0 };
        bytes[4..8].copy_from_slice(&self.total.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.imm.unwrap_or(0).to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.offset.to_ne_bytes());
        bytes
    }

    /// The header of a frame of `len` bytes, if it can be one: `body` bytes follow, which suit the kind.
    pub(super) fn from_bytes(bytes: [u8; HEADER], len: usize) -> Option<Header> {
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (total, offset) = (word(4), word(12));
        let body = len.checked_sub(HEADER)?;
        let (kind, fits) = match bytes[0] {
            1 => (Kind::Bytes, offset as usize + body <= total as usize && (body > 0 || total == 0)),
            2 => {
                let whole = body.is_multiple_of(PLACE) && (SMALLEST_REFERENCE..=LARGEST_REFERENCE).contains(&len);
                (Kind::Places, whole && offset == 0)
            }
            3 => (Kind::Written, body == 0 && offset == 0),
            4 => (Kind::Write, body > TARGET && offset as usize + body - TARGET <= total as usize),
            5 => (Kind::Read, body == TARGET && offset == 0 && total > 0),
            6 => (Kind::Atomic, body == TARGET + ATOMIC && offset == 0 && total == 8),
            _ => return None,
        };
        let imm = (bytes[1] & IMM != 0).then(|| word(8));
        fits.then_some(Header { kind, solicited: bytes[1] & SOLICITED != 0, imm, total, offset })
    }
}

/// A place in the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentPlace {
    /// The region, if it can be mapped.
    pub(super) share: Option<ShareKey>,
    /// Where it starts in the region, or else in the sender's process.
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl SentPlace {
    pub(super) fn of(place: &Place) -> SentPlace {
        let offset = if place.share.is_some() { place.offset } else { place.addr };
        SentPlace { share: place.share, offset, len: place.len }
    }

    pub(super) fn to_bytes(self) -> [u8; PLACE] {
        let mut bytes = [0; PLACE];
        bytes[..8].copy_from_slice(&self.share.map_or(PLAIN, ShareKey::to_u64).to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.len.to_ne_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; PLACE]) -> SentPlace {
        let [share, offset, len] = words(&bytes);
        SentPlace { share: (share != PLAIN).then(|| ShareKey::from_u64(share)), offset, len }
    }
}

/// What of its memory a peer is asked to work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) addr: u64,
    pub(super) rkey: u32,
}

impl Target {
    pub(super) fn to_bytes(self) -> [u8; TARGET] {
        let mut bytes = [0; TARGET];
        bytes[..8].copy_from_slice(&self.addr.to_ne_bytes());
        bytes[8..].copy_from_slice(&u64::from(self.rkey).to_ne_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; TARGET]) -> Target {
        let [addr, rkey] = words(&bytes);
        Target { addr, rkey: rkey as u32 }
    }
}

/// What a peer is asked to do with a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Atomic {
    Add(u64),
    Swap { compare: u64, swap: u64 },
}

impl Atomic {
    pub(super) fn to_bytes(self) -> [u8; ATOMIC] {
        let (code, first, second) = match self {
            Atomic::Add(add) => (1, add, 0),
            Atomic::Swap { compare, swap } => (2, compare, swap),
        };
        let mut bytes = [0; ATOMIC];
        for (place, word) in bytes.chunks_exact_mut(8).zip([code, first, second]) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; ATOMIC]) -> Option<Atomic> {
        match words(&bytes) {
            [1, add, 0] => Some(Atomic::Add(add)),
            [2, compare, swap] => Some(Atomic::Swap { compare, swap }),
            _ => None,
        }
    }
}

/// What comes before the bytes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The message that asked.
    pub(super) number: u64,
    /// Where in the answer the bytes belong.
    pub(super) offset: u32,
}

impl Answer {
    pub(super) fn to_bytes(self) -> [u8; ANSWER] {
        let mut bytes = [0; ANSWER];
        bytes[..8].copy_from_slice(&self.number.to_ne_bytes());
        bytes[8..].copy_from_slice(&u64::from(self.offset).to_ne_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; ANSWER]) -> Answer {
        let [number, offset] = words(&bytes);
        Answer { number, offset: offset as u32 }
    }
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    std::array::from_fn(|at| u64::from_ne_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes")))
}

impl From<RemoteAddr> for Target {
    fn from(remote: RemoteAddr) -> Target {
        Target { addr: remote.addr, rkey: remote.rkey }
    }
}
