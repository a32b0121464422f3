//! Memory that peers may reach by one-sided operations.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use fulmen_memory::Exposed;

use super::keys::Keys;
use super::{OpError, Place};

bitflags::bitflags! {
    /// What peers may do to exported memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Rights: u8 {
        /// Get it.
        const READ = 1;
        /// Put into it.
        const WRITE = 2;
        /// Use its words by atomics, and as counters of puts.
        const ATOMIC = 4;
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

/// The memory that a rank has exported, by key: one for all its links. A clone is another handle to the same table.
///
/// No peer guesses a key, and none serves again, so that a late request for memory that was taken back is refused.
#[derive(Clone, Default)]
pub struct Exports {
    table: Arc<RwLock<Table>>,
}

#[derive(Default)]
struct Table {
    live: HashMap<u64, Export>,
    keys: Keys,
}

struct Export {
    memory: Exposed,
    rights: Rights,
    direct: Option<Place>,
}

/// A part of exported memory that a request may use.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub memory: Exposed,
    /// Where it lies for large moves, if they reach it.
    pub direct: Option<Place>,
}

impl Exports {
    /// Nothing is exported yet.
    #[must_use]
    pub fn new() -> Exports {
        Exports::default()
    }

    /// Exports memory: peers that know the key may do to it what `rights` say, or read it where this process cannot write
    /// it. Its bytes move in frames.
    ///
    /// # Errors
    /// If the operating system gives no random bits.
    pub fn add(&self, memory: Exposed, rights: Rights) -> Result<u64, getrandom::Error> {
        self.insert(Export { memory, rights, direct: None })
    }

    /// As [`Exports::add`], for memory that large moves reach: a device can receive into it and send it
    /// ([`Rendezvous::Matched`](super::Rendezvous), to which `place` means nothing), or peers find it at `place`
    /// ([`Rendezvous::Mapped`](super::Rendezvous)).
    ///
    /// # Errors
    /// As [`Exports::add`].
    pub fn add_direct(&self, memory: Exposed, rights: Rights, place: Place) -> Result<u64, getrandom::Error> {
        self.insert(Export { memory, rights, direct: Some(place) })
    }

    fn insert(&self, mut export: Export) -> Result<u64, getrandom::Error> {
        if !export.memory.region().is_writable() {
            export.rights &= Rights::READ;
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let key = table.keys.next()?;
        table.live.insert(key, export);
        Ok(key)
    }

    /// Takes memory back: from now on its key is refused. Operations that were accepted before keep the memory until they
    /// end. False if there was no such key.
    pub fn remove(&self, key: u64) -> bool {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let removed = table.live.remove(&key);
        // The memory goes after the lock: dropping it may give it back to a pool.
        drop(table);
        removed.is_some()
    }

    /// How many keys are good.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.read().unwrap_or_else(PoisonError::into_inner).live.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory that a request means: what the owner asks before it does anything for a peer.
    ///
    /// # Errors
    /// [`OpError::NoSuchKey`], [`OpError::NotPermitted`], [`OpError::OutOfBounds`], and, if `need` has
    /// [`Rights::ATOMIC`], [`OpError::Misaligned`].
    pub fn find(&self, key: u64, offset: u64, len: u64, need: Rights) -> Result<Exposed, OpError> {
        self.look_up(key, offset, len, need).map(|found| found.memory)
    }

    pub(super) fn look_up(&self, key: u64, offset: u64, len: u64, need: Rights) -> Result<Found, OpError> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let Export { memory, rights, direct } = table.live.get(&key).ok_or(OpError::NoSuchKey)?;
        if !rights.contains(need) {
            return Err(OpError::NotPermitted { need });
        }
        let size = memory.len() as u64;
        let end = offset.checked_add(len).filter(|end| *end <= size);
        let end = end.ok_or(OpError::OutOfBounds { offset, len, size })?;
        let memory = memory.slice(offset as usize..end as usize);
        if need.contains(Rights::ATOMIC) && !memory.addr().is_multiple_of(size_of::<u64>()) {
            return Err(OpError::Misaligned { offset });
        }
        let direct = direct.map(|place| Place { offset: place.offset.wrapping_add(offset), ..place });
        Ok(Found { memory, direct })
    }
}

impl fmt::Debug for Exports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exports").field("len", &self.len()).finish()
    }
}
