//! What two nodes say to each other: frames of 64 bytes, whole or not at all.
//!
//! Every frame starts with a magic number, the version and its kind, so that versions can tell each other apart for
//! ever. What a frame does not use is zero.

use crate::{NodeAddress, Refusal};

pub(crate) const FRAME: usize = 64;
pub(crate) const VERSION: u16 = 2;
const MAGIC: [u8; 4] = *b"FLMR";
const BODY: usize = 8;

const HELLO: u16 = 1;
const MAP: u16 = 2;
const MAPPED: u16 = 3;
const REFUSED: u16 = 4;
const NOTICE: u16 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The first frame in both directions: who speaks.
    Hello(NodeAddress),
    /// Asks for the region under a key.
    Map { request: u64, key: u64 },
    /// The region's length; its descriptor comes with this frame.
    Mapped { request: u64, len: u64 },
    /// No region, or (for request 0) no connection.
    Refused { request: u64, reason: Refusal },
    /// Two numbers for whoever listens at the other end. There is no reply.
    Notice { a: u64, b: u64 },
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    Foreign,
    Version(u16),
}

impl Frame {
    pub(crate) fn to_bytes(self) -> [u8; FRAME] {
        let mut bytes = [0; FRAME];
        let (kind, body) = match self {
            Frame::Hello(address) => {
                bytes[BODY..BODY + NodeAddress::SIZE].copy_from_slice(&address.to_bytes());
                (HELLO, None)
            }
            Frame::Map { request, key } => (MAP, Some((request, key))),
            Frame::Mapped { request, len } => (MAPPED, Some((request, len))),
            Frame::Refused { request, reason } => (REFUSED, Some((request, code_of(reason)))),
            Frame::Notice { a, b } => (NOTICE, Some((a, b))),
        };
        if let Some((request, value)) = body {
            bytes[BODY..BODY + 8].copy_from_slice(&request.to_le_bytes());
            bytes[BODY + 8..BODY + 16].copy_from_slice(&value.to_le_bytes());
        }
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&kind.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; FRAME]) -> Result<Frame, Unreadable> {
        if bytes[..4] != MAGIC {
            return Err(Unreadable::Foreign);
        }
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        if version != VERSION {
            return Err(Unreadable::Version(version));
        }
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (request, value) = (number(BODY), number(BODY + 8));
        let (frame, used) = match u16::from_le_bytes([bytes[6], bytes[7]]) {
            HELLO => {
                let address = bytes[BODY..].first_chunk().ok_or(Unreadable::Foreign)?;
                let address = NodeAddress::from_bytes(address).map_err(|_| Unreadable::Foreign)?;
                (Frame::Hello(address), BODY + NodeAddress::SIZE)
            }
            MAP => (Frame::Map { request, key: value }, BODY + 16),
            MAPPED => (Frame::Mapped { request, len: value }, BODY + 16),
            REFUSED => {
                let reason = reason_of(value).ok_or(Unreadable::Foreign)?;
                (Frame::Refused { request, reason }, BODY + 16)
            }
            NOTICE => (Frame::Notice { a: request, b: value }, BODY + 16),
            _ => return Err(Unreadable::Foreign),
        };
        if bytes[used..].iter().any(|byte| *byte != 0) {
            return Err(Unreadable::Foreign);
        }
        Ok(frame)
    }
}

fn code_of(reason: Refusal) -> u64 {
    match reason {
        Refusal::UnknownKey => 1,
        Refusal::Busy => 2,
        Refusal::Descriptors => 3,
    }
}

fn reason_of(code: u64) -> Option<Refusal> {
    [Refusal::UnknownKey, Refusal::Busy, Refusal::Descriptors].into_iter().find(|reason| code_of(*reason) == code)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let reasons = prop_oneof![Just(Refusal::UnknownKey), Just(Refusal::Busy), Just(Refusal::Descriptors)];
        prop_oneof![
            Just(()).prop_map(|()| Frame::Hello(NodeAddress::new().unwrap())),
            any::<(u64, u64)>().prop_map(|(request, key)| Frame::Map { request, key }),
            any::<(u64, u64)>().prop_map(|(request, len)| Frame::Mapped { request, len }),
            any::<(u64, u64)>().prop_map(|(a, b)| Frame::Notice { a, b }),
            (any::<u64>(), reasons).prop_map(|(request, reason)| Frame::Refused { request, reason }),
        ]
    }

    proptest! {
        #[test]
        fn frames_come_back(frame in frames()) {
            prop_assert_eq!(Frame::from_bytes(&frame.to_bytes()), Ok(frame));
        }

        /// One way to say each thing: whatever is read would be written the same.
        #[test]
        fn a_changed_byte_is_refused_or_means_what_it_says(frame in frames(), at in 0..FRAME, byte in any::<u8>()) {
            let mut bytes = frame.to_bytes();
            bytes[at] = byte;
            if let Ok(read) = Frame::from_bytes(&bytes) {
                prop_assert_eq!(read.to_bytes(), bytes);
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), FRAME)) {
            let _ = Frame::from_bytes(bytes.first_chunk().unwrap());
        }
    }

    #[test]
    fn another_version_is_told_from_foreign_bytes() {
        let mut bytes = Frame::Map { request: 1, key: 2 }.to_bytes();
        bytes[4] = 9;
        assert_eq!(Frame::from_bytes(&bytes), Err(Unreadable::Version(9)));
        bytes[0] = b'X';
        assert_eq!(Frame::from_bytes(&bytes), Err(Unreadable::Foreign));
    }
}
