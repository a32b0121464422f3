//! What two devices say before anything else goes over a connection: fixed bytes, of which nothing is believed.
//!
//! Both sides say a [`Preamble`] first, in plain bytes and in the same form in every version, so that strangers, other
//! versions and ends that do not agree on sealing are told apart. Where both seal, TLS follows. Then the side that dialed
//! sends a [`Request`] and gets an [`Answer`]; it may ask again. A request for data that is welcome is the last one: the
//! connection is the two queue pairs' own after it.

use std::net::SocketAddr;

use fulmen_reach::NodeAddress;
use fulmen_verbs::QueuePairKind;

use super::address::{self, rank};

const MAGIC: [u8; 4] = *b"FLMR";
/// What this side speaks. Every change of what follows the preamble, here or between queue pairs, is another version.
pub(crate) const VERSION: u16 = 1;

/// The first bytes of each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preamble {
    pub(crate) version: u16,
    pub(crate) sealed: bool,
}

impl Preamble {
    pub(crate) const SIZE: usize = 8;

    pub(crate) fn to_bytes(self) -> [u8; Self::SIZE] {
        let [v0, v1] = self.version.to_le_bytes();
        let [m0, m1, m2, m3] = MAGIC;
        [m0, m1, m2, m3, v0, v1, self.sealed.into(), 0]
    }

    /// `None` if the bytes are another protocol's. Of other versions only the version is looked at.
    pub(crate) fn from_bytes(bytes: &[u8; Self::SIZE]) -> Option<Preamble> {
        let [m0, m1, m2, m3, v0, v1, sealed, rest] = *bytes;
        let version = u16::from_le_bytes([v0, v1]);
        let known = version != VERSION || (sealed <= 1 && rest == 0);
        ([m0, m1, m2, m3] == MAGIC && known).then_some(Preamble { version, sealed: sealed != 0 })
    }

    /// Whether these bytes can still become a preamble of any version.
    pub(crate) fn starts(bytes: &[u8]) -> bool {
        let len = bytes.len().min(MAGIC.len());
        bytes[..len] == MAGIC[..len]
    }
}

/// A queue pair as its own side knows it, and as the other one does once they have met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) device: SocketAddr,
    pub(crate) number: u32,
    /// Another one after each reset that ended a connection.
    pub(crate) incarnation: u64,
    pub(crate) kind: QueuePairKind,
}

impl End {
    pub(crate) fn named(&self) -> PeerEnd {
        PeerEnd { device: self.device, number: self.number }
    }
}

/// A queue pair as a path names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerEnd {
    pub(crate) device: SocketAddr,
    pub(crate) number: u32,
}

impl PeerEnd {
    /// Whether this end opens the connection to `peer`: of two ends, exactly one does.
    pub(crate) fn dials(&self, peer: &PeerEnd) -> bool {
        (rank(self.device), self.number) < (rank(peer.device), peer.number)
    }
}

/// What a side that dialed wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// To know where the device is.
    Place,
    /// To know how queue pair `number` is.
    Ask { from: End, number: u32 },
    /// The connection between queue pair `number` and `from`.
    Data { from: End, number: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The code of the profile.
    pub(crate) profile: u8,
    pub(crate) host: [u8; 16],
    pub(crate) device: SocketAddr,
    pub(crate) wish: Wish,
}

impl Request {
    pub(crate) const SIZE: usize = 64;

    pub(crate) fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let (what, pair) = match self.wish {
            Wish::Place => (1, None),
            Wish::Ask { from, number } => (2, Some((from, number))),
            Wish::Data { from, number } => (3, Some((from, number))),
        };
        (bytes[0], bytes[1]) = (what, self.profile);
        if let Some((from, number)) = pair {
            bytes[2] = kind_code(from.kind);
            bytes[4..8].copy_from_slice(&number.to_le_bytes());
            bytes[8..12].copy_from_slice(&from.number.to_le_bytes());
            bytes[16..24].copy_from_slice(&from.incarnation.to_le_bytes());
        }
        bytes[24..40].copy_from_slice(&self.host);
        bytes[40..58].copy_from_slice(&address::to_bytes(self.device));
        bytes
    }

    /// `None` if no correct peer says this.
    pub(crate) fn from_bytes(bytes: &[u8; Self::SIZE]) -> Option<Request> {
        let device = address::from_bytes(&field(bytes, 40))?;
        let [number, own] = [4, 8].map(|at| u32::from_le_bytes(field(bytes, at)));
        let incarnation = u64::from_le_bytes(field(bytes, 16));
        let pair = || {
            let from = End { device, number: own, incarnation, kind: kind_of(bytes[2])? };
            (number < NUMBERS && own < NUMBERS).then_some((from, number))
        };
        let wish = match bytes[0] {
            1 if bytes[2] == 0 && number == 0 && own == 0 && incarnation == 0 => Wish::Place,
            2 => pair().map(|(from, number)| Wish::Ask { from, number })?,
            3 => pair().map(|(from, number)| Wish::Data { from, number })?,
            _ => return None,
        };
        let blank = bytes[3] == 0 && bytes[12..16] == [0; 4] && bytes[58..] == [0; 6];
        blank.then_some(Request { profile: bytes[1], host: field(bytes, 24), device, wish })
    }
}

/// How a request was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// So be it. The incarnation is that of the queue pair that was asked about; 0 if none was.
    Welcome { incarnation: u64 },
    /// The device keeps other rules.
    OtherProfile,
    /// There is no such queue pair.
    NoSuchPair,
    /// The queue pair is of another kind.
    OtherKind,
    /// The queue pair is in the error state.
    InError,
    /// The queue pair is connected to another one, or to an earlier self of this one.
    Taken,
    /// There is no room at the moment.
    Busy,
}

impl Verdict {
    fn code(self) -> (u8, u64) {
        match self {
            Verdict::Welcome { incarnation } => (1, incarnation),
            Verdict::OtherProfile => (2, 0),
            Verdict::NoSuchPair => (3, 0),
            Verdict::OtherKind => (4, 0),
            Verdict::InError => (5, 0),
            Verdict::Taken => (6, 0),
            Verdict::Busy => (7, 0),
        }
    }

    fn of(code: u8, incarnation: u64) -> Option<Verdict> {
        let verdict = match code {
            1 => Verdict::Welcome { incarnation },
            2 => Verdict::OtherProfile,
            3 => Verdict::NoSuchPair,
            4 => Verdict::OtherKind,
            5 => Verdict::InError,
            6 => Verdict::Taken,
            7 => Verdict::Busy,
            _ => return None,
        };
        (verdict.code() == (code, incarnation)).then_some(verdict)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) verdict: Verdict,
    pub(crate) host: [u8; 16],
    /// The address by which the device goes. Whoever reached it by another one is told so by this.
    pub(crate) device: SocketAddr,
    /// Where its node is, for those on its host.
    pub(crate) node: Option<NodeAddress>,
}

impl Answer {
    pub(crate) const SIZE: usize = 112;

    pub(crate) fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let (code, incarnation) = self.verdict.code();
        (bytes[0], bytes[1]) = (code, self.node.is_some().into());
        bytes[16..24].copy_from_slice(&incarnation.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.host);
        bytes[40..58].copy_from_slice(&address::to_bytes(self.device));
        if let Some(node) = self.node {
            bytes[64..].copy_from_slice(&node.to_bytes());
        }
        bytes
    }

    /// `None` if no correct peer says this.
    pub(crate) fn from_bytes(bytes: &[u8; Self::SIZE]) -> Option<Answer> {
        let verdict = Verdict::of(bytes[0], u64::from_le_bytes(field(bytes, 16)))?;
        let device = address::from_bytes(&field(bytes, 40))?;
        let node = match bytes[1] {
            0 if bytes[64..] == [0; NodeAddress::SIZE] => None,
            1 => Some(NodeAddress::from_bytes(&field(bytes, 64)).ok()?),
            _ => return None,
        };
        let blank = bytes[2..16] == [0; 14] && bytes[58..64] == [0; 6];
        blank.then_some(Answer { verdict, host: field(bytes, 24), device, node })
    }
}

/// Numbers of queue pairs have 24 bits.
const NUMBERS: u32 = 1 << 24;

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

fn kind_code(kind: QueuePairKind) -> u8 {
    match kind {
        QueuePairKind::Rc => 1,
        QueuePairKind::Uc => 2,
        QueuePairKind::Ud => 3,
    }
}

/// Only connected kinds have connections.
fn kind_of(code: u8) -> Option<QueuePairKind> {
    match code {
        1 => Some(QueuePairKind::Rc),
        2 => Some(QueuePairKind::Uc),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
