//! Frames of a wire's ring.

use fulmen_reach::ShareKey;

use crate::layout::MAX_PIECES;

/// Bytes of a frame's header.
pub(super) const HEADER: usize = 16;
/// Bytes of one place in a frame that refers to the sender's memory.
pub(super) const PLACE: usize = 24;

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
            _ => return None,
        };
        let imm = (bytes[1] & IMM != 0).then(|| word(8));
        fits.then_some(Header { kind, solicited: bytes[1] & SOLICITED != 0, imm, total, offset })
    }
}

/// A place in the sender's shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SentPlace {
    pub(super) share: ShareKey,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl SentPlace {
    pub(super) fn to_bytes(self) -> [u8; PLACE] {
        let mut bytes = [0; PLACE];
        bytes[..8].copy_from_slice(&self.share.to_u64().to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.len.to_ne_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; PLACE]) -> SentPlace {
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        SentPlace { share: ShareKey::from_u64(word(0)), offset: word(8), len: word(16) }
    }
}
