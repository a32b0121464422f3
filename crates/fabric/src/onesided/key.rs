//! How a share is named to others.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::driver::device::DeviceKey;
use crate::engine::Rights;

/// Names memory that a rank shares: plain data, to be sent to the ranks that are to work on it, and to nobody else. Whoever
/// has it can do what its rights say until the share ends; it cannot be guessed, and means nothing after that.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteKey {
    /// Of the owner's world: ranks of another one are others.
    pub(super) generation: u64,
    /// The owner.
    pub(super) rank: u32,
    pub(super) len: u64,
    pub(super) rights: u8,
    /// The line of the owner's exports, and what stands there.
    pub(super) slot: u32,
    pub(super) tag: u64,
    /// For each of the owner's devices that does something with it.
    pub(super) devices: Vec<DeviceKey>,
}

/// Bytes that are no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "these {len} bytes are no key of shared memory: pass on what RemoteKey::to_bytes gave, unchanged, from the same release"
)]
pub struct InvalidKey {
    /// How many there are.
    pub len: usize,
}

/// Before the rest of a key's bytes, so that other data is not taken for one.
const MARK: [u8; 2] = *b"K3";
/// Bytes of the checksum behind them: of what was changed on its way, nothing is believed.
const CHECKSUM: usize = 4;

impl RemoteKey {
    /// The rank that shares the memory.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Bytes of the memory, as its owner said.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the memory has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What may be done to the memory, as its owner said.
    #[must_use]
    pub fn rights(&self) -> Rights {
        Rights::from_bits_truncate(self.rights)
    }

    /// What somebody could guess who knows all of a key but its secret: wrong in these bits.
    #[cfg(feature = "conformance")]
    pub(crate) fn guessed(&self, wrong: u64) -> RemoteKey {
        RemoteKey { tag: self.tag ^ wrong, devices: Vec::new(), ..self.clone() }
    }

    /// The same key, of another generation of ranks.
    #[cfg(feature = "conformance")]
    pub(crate) fn of_generation(&self, generation: u64) -> RemoteKey {
        RemoteKey { generation, ..self.clone() }
    }

    /// The key as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = postcard::to_extend(self, MARK.to_vec()).expect("a vector takes what is written to it");
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// The key that these bytes are.
    ///
    /// # Errors
    /// [`InvalidKey`] if they are none, or if any of them was changed.
    pub fn from_bytes(bytes: &[u8]) -> Result<RemoteKey, InvalidKey> {
        let invalid = || InvalidKey { len: bytes.len() };
        let (said, checksum) = bytes.split_last_chunk::<CHECKSUM>().ok_or_else(invalid)?;
        if crc32c::crc32c(said) != u32::from_le_bytes(*checksum) {
            return Err(invalid());
        }
        let rest = said.strip_prefix(&MARK).ok_or_else(invalid)?;
        let (key, rest) = postcard::take_from_bytes::<RemoteKey>(rest).map_err(|_| invalid())?;
        if rest.is_empty() { Ok(key) } else { Err(invalid()) }
    }
}

impl fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The rest is a secret.
        f.debug_struct("RemoteKey")
            .field("rank", &self.rank)
            .field("len", &self.len)
            .field("rights", &self.rights())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_give_the_key_back() {
        let key = RemoteKey {
            generation: 9,
            rank: 3,
            len: 1 << 40,
            rights: 7,
            slot: 4095,
            tag: u64::MAX,
            devices: Vec::new(),
        };
        let bytes = key.to_bytes();
        assert_eq!(RemoteKey::from_bytes(&bytes), Ok(key.clone()));
        for cut in 0..bytes.len() {
            assert_eq!(RemoteKey::from_bytes(&bytes[..cut]), Err(InvalidKey { len: cut }));
        }
        assert!(RemoteKey::from_bytes(&[bytes.clone(), vec![0]].concat()).is_err());
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert!(RemoteKey::from_bytes(&changed).is_err(), "byte {at} was changed");
            }
        }
        assert!(!format!("{key:?}").contains("18446744073709551615"), "the tag is a secret");
    }

    proptest! {
        #[test]
        fn garbage_is_no_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..64), marked in any::<bool>()) {
            if marked && bytes.len() >= 2 {
                bytes[..2].copy_from_slice(&MARK);
                bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
            }
            if let Ok(key) = RemoteKey::from_bytes(&bytes) {
                prop_assert_eq!(RemoteKey::from_bytes(&key.to_bytes()), Ok(key));
            }
        }
    }
}
