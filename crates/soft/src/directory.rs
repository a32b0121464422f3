//! The shared table in which a device says what peers can connect to and reach. One process writes it: the device's own.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use fulmen_memory::Exposed;
use fulmen_reach::ShareKey;
use fulmen_verbs::Access;

use crate::layout::{PLAIN, directory as at};
use crate::vm::Probe;

/// A registration as its owner shares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedKey {
    pub(crate) key: u32,
    /// None if the region cannot be mapped.
    pub(crate) share: Option<ShareKey>,
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

    pub(crate) fn announce(&self, profile: u64, salt: u64, probe: Option<Probe>) {
        self.word(at::PROFILE).store(profile, Relaxed);
        self.word(at::SALT).store(salt, Relaxed);
        if let Some(probe) = probe {
            self.word(at::PROBE_NONCE).store(probe.nonce, Relaxed);
            self.word(at::PROBE_ADDR).store(probe.addr, Relaxed);
        }
        self.word(at::MAGIC).store(crate::layout::DIRECTORY_MAGIC, Release);
    }

    /// The profile's number, if this is a directory of this version.
    pub(crate) fn profile(&self) -> Option<u64> {
        let ours = self.word(at::MAGIC).load(Acquire) == crate::layout::DIRECTORY_MAGIC;
        ours.then(|| self.word(at::PROFILE).load(Relaxed))
    }

    /// What proves which process this directory is of.
    pub(crate) fn probe(&self) -> Probe {
        Probe { addr: self.word(at::PROBE_ADDR).load(Relaxed), nonce: self.word(at::PROBE_NONCE).load(Relaxed) }
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
        for (offset, word) in FIELDS.into_iter().zip(shared.words()) {
            self.word(entry + offset).store(word, Relaxed);
        }
        let check = self.check_of(shared.key, &shared.words());
        self.word(entry + at::KEY_CHECK).store(check, Relaxed);
        self.word(entry + at::KEY).store(shared.key.into(), Release);
    }

    pub(crate) fn clear_key(&self, slot: usize) {
        self.word(at::KEYS + slot * at::KEY_SIZE + at::KEY).store(0, SeqCst);
        let revoked = self.word(at::REVOKED);
        revoked.store(revoked.load(Relaxed).wrapping_add(1), SeqCst);
        fence(SeqCst);
    }

    /// Whether there is a registration of this key.
    #[inline]
    pub(crate) fn has_key(&self, key: u32) -> bool {
        key != 0 && self.word(at::KEYS + slot_of(key) * at::KEY_SIZE + at::KEY).load(SeqCst) == u64::from(key)
    }

    /// The registration of this key. Its slot is a part of it.
    pub(crate) fn key(&self, key: u32) -> Option<SharedKey> {
        if !self.has_key(key) {
            return None;
        }
        let entry = at::KEYS + slot_of(key) * at::KEY_SIZE;
        let words = FIELDS.map(|offset| self.word(entry + offset).load(Relaxed));
        let check = self.word(entry + at::KEY_CHECK).load(Relaxed);
        fence(Acquire);
        let whole = check == self.check_of(key, &words);
        (whole && self.has_key(key)).then(|| SharedKey::of_words(key, words))
    }

    /// What a registration's check word is: each word by itself decides it, so that a table that was damaged shows.
    fn check_of(&self, key: u32, words: &[u64; FIELDS.len()]) -> u64 {
        let salt = self.word(at::SALT).load(Relaxed);
        let start = salt ^ u64::from(key).wrapping_mul(FACTORS[FIELDS.len()]);
        let sum = words
            .iter()
            .zip(FACTORS)
            .fold(start, |sum, (word, factor)| sum.wrapping_add((word ^ salt).wrapping_mul(factor)));
        sum ^ sum >> 29
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

/// The words of a registration, beside its key and its check.
const FIELDS: [usize; 6] = [at::KEY_SHARE, at::KEY_OFFSET, at::KEY_LEN, at::KEY_ADDR, at::KEY_ACCESS, at::KEY_DOMAIN];

/// Odd numbers with as many bits set as not, one for each field and one for the key.
const FACTORS: [u64; FIELDS.len() + 1] = [
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
    0x8ebc_6af0_9c88_c6e3,
];

impl SharedKey {
    fn words(&self) -> [u64; FIELDS.len()] {
        let share = self.share.map_or(PLAIN, ShareKey::to_u64);
        [share, self.offset, self.len, self.addr, self.access.bits().into(), self.domain]
    }

    fn of_words(key: u32, [share, offset, len, addr, access, domain]: [u64; FIELDS.len()]) -> SharedKey {
        let share = (share != PLAIN).then(|| ShareKey::from_u64(share));
        SharedKey { key, share, offset, len, addr, access: Access::from_bits_truncate(access as u32), domain }
    }
}

/// The slot of a key: its lower bits.
pub(crate) fn slot_of(key: u32) -> usize {
    key as usize % at::KEY_SLOTS
}
