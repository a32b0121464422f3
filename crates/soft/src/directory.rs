//! The shared table in which a device says what peers can connect to and reach. One process writes it: the device's own.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use fulmen_memory::Exposed;
use fulmen_reach::ShareKey;
use fulmen_verbs::Access;

use crate::layout::directory as at;

/// A registration as its owner shares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedKey {
    pub(crate) key: u32,
    pub(crate) share: ShareKey,
    /// Where it starts in the shared region.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Where it starts in its owner's address space.
    pub(crate) addr: u64,
    pub(crate) access: Access,
    pub(crate) domain: u64,
}

/// Where a queue pair's wire is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedPair {
    pub(crate) wire: ShareKey,
    pub(crate) incarnation: u64,
}

/// A directory: the own one, to write, or a peer's, to read.
#[derive(Clone)]
pub(crate) struct Directory {
    words: Exposed,
}

impl Directory {
    pub(crate) fn new(words: Exposed) -> Directory {
        Directory { words }
    }

    fn word(&self, at: usize) -> &std::sync::atomic::AtomicU64 {
        self.words.atomic_u64(at)
    }

    pub(crate) fn announce(&self, profile: u64) {
        self.word(at::PROFILE).store(profile, Relaxed);
        self.word(at::MAGIC).store(crate::layout::DIRECTORY_MAGIC, Release);
    }

    /// The profile's number, if this is a directory of this version.
    pub(crate) fn profile(&self) -> Option<u64> {
        let ours = self.word(at::MAGIC).load(Acquire) == crate::layout::DIRECTORY_MAGIC;
        ours.then(|| self.word(at::PROFILE).load(Relaxed))
    }

    /// Says that the device is closed, to those who keep this mapped.
    pub(crate) fn close(&self) {
        self.word(at::MAGIC).store(0, Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.word(at::MAGIC).load(Acquire) == 0
    }

    pub(crate) fn set_asleep(&self, asleep: bool) {
        self.word(at::ASLEEP).store(asleep.into(), SeqCst);
    }

    #[inline]
    pub(crate) fn is_asleep(&self) -> bool {
        self.word(at::ASLEEP).load(Relaxed) != 0
    }

    pub(crate) fn set_pair(&self, slot: usize, number: u32, pair: SharedPair) {
        let entry = at::PAIRS + slot * at::PAIR_SIZE;
        self.word(entry + at::PAIR_NUMBER).store(at::PAIR_CHANGES | u64::from(number), SeqCst);
        fence(SeqCst);
        self.word(entry + at::PAIR_WIRE).store(pair.wire.to_u64(), Relaxed);
        self.word(entry + at::PAIR_INCARNATION).store(pair.incarnation, Relaxed);
        self.word(entry + at::PAIR_NUMBER).store(number.into(), Release);
    }

    pub(crate) fn clear_pair(&self, slot: usize) {
        self.word(at::PAIRS + slot * at::PAIR_SIZE + at::PAIR_NUMBER).store(0, SeqCst);
    }

    /// Whether queue pair `number` is in `slot`, even if its entry is just being changed.
    pub(crate) fn has_pair(&self, slot: usize, number: u32) -> bool {
        let entry = at::PAIRS + (slot % at::PAIR_SLOTS) * at::PAIR_SIZE;
        self.word(entry + at::PAIR_NUMBER).load(Acquire) & !at::PAIR_CHANGES == u64::from(number)
    }

    /// The entry of queue pair `number` in `slot`; `None` while it is being changed, too.
    pub(crate) fn pair(&self, slot: usize, number: u32) -> Option<SharedPair> {
        let entry = at::PAIRS + (slot % at::PAIR_SLOTS) * at::PAIR_SIZE;
        let named = || self.word(entry + at::PAIR_NUMBER).load(Acquire) == u64::from(number);
        if !named() {
            return None;
        }
        let pair = SharedPair {
            wire: ShareKey::from_u64(self.word(entry + at::PAIR_WIRE).load(Relaxed)),
            incarnation: self.word(entry + at::PAIR_INCARNATION).load(Relaxed),
        };
        fence(Acquire);
        named().then_some(pair)
    }

    pub(crate) fn set_key(&self, slot: usize, shared: &SharedKey) {
        let entry = at::KEYS + slot * at::KEY_SIZE;
        self.word(entry + at::KEY).store(0, SeqCst);
        fence(SeqCst);
        self.word(entry + at::KEY_SHARE).store(shared.share.to_u64(), Relaxed);
        self.word(entry + at::KEY_OFFSET).store(shared.offset, Relaxed);
        self.word(entry + at::KEY_LEN).store(shared.len, Relaxed);
        self.word(entry + at::KEY_ADDR).store(shared.addr, Relaxed);
        self.word(entry + at::KEY_ACCESS).store(shared.access.bits().into(), Relaxed);
        self.word(entry + at::KEY_DOMAIN).store(shared.domain, Relaxed);
        self.word(entry + at::KEY).store(shared.key.into(), Release);
    }

    pub(crate) fn clear_key(&self, slot: usize) {
        self.word(at::KEYS + slot * at::KEY_SIZE + at::KEY).store(0, SeqCst);
        let revoked = self.word(at::REVOKED);
        revoked.store(revoked.load(Relaxed).wrapping_add(1), SeqCst);
        fence(SeqCst);
    }

    /// The registration of this key. Its slot is a part of it.
    pub(crate) fn key(&self, key: u32) -> Option<SharedKey> {
        let entry = at::KEYS + slot_of(key) * at::KEY_SIZE;
        let read = |offset| self.word(entry + offset).load(Relaxed);
        let named = || key != 0 && self.word(entry + at::KEY).load(SeqCst) == u64::from(key);
        if !named() {
            return None;
        }
        let shared = SharedKey {
            key,
            share: ShareKey::from_u64(read(at::KEY_SHARE)),
            offset: read(at::KEY_OFFSET),
            len: read(at::KEY_LEN),
            addr: read(at::KEY_ADDR),
            access: Access::from_bits_truncate(read(at::KEY_ACCESS) as u32),
            domain: read(at::KEY_DOMAIN),
        };
        fence(Acquire);
        named().then_some(shared)
    }

    /// How many registrations have ended.
    pub(crate) fn revoked(&self) -> u64 {
        self.word(at::REVOKED).load(Acquire)
    }

    /// The share keys of all registrations that are valid now.
    pub(crate) fn shares(&self) -> impl Iterator<Item = u64> {
        (0..at::KEY_SLOTS).filter_map(|slot| {
            let entry = at::KEYS + slot * at::KEY_SIZE;
            let valid = self.word(entry + at::KEY).load(Acquire) != 0;
            valid.then(|| self.word(entry + at::KEY_SHARE).load(Relaxed))
        })
    }
}

/// The slot of a key: its lower bits.
pub(crate) fn slot_of(key: u32) -> usize {
    key as usize % at::KEY_SLOTS
}
