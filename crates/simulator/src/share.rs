//! The memory of a node that its peers reach by one-sided operations, and a shadow of it: what must lie there.
//!
//! Some words belong to everybody, for atomics. Each peer has a counter, and an area of its own for puts and gets: the last
//! part of it is *loose*, for puts that are given up, of which nobody knows how far they came.

use std::collections::VecDeque;
use std::ops::Range;

use fulmen_fabric::engine::{Exports, Place, Rights};
use fulmen_memory::{Exposed, Pool};

use crate::messages::CANARY;

/// Words for atomics.
pub(crate) const WORDS: usize = 8;
/// Bytes of each peer's area.
pub(crate) const AREA: usize = 2048;
/// Where its loose part begins.
pub(crate) const LOOSE: usize = 1536;
/// The place of shared memory for peers that map it.
pub(crate) const PLACE: u64 = 0;
const GUARD: usize = 64;
/// Old values of a word that are remembered.
const REMEMBERED: usize = 256;

/// Under which keys peers find it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Keys {
    /// The words, then the counters.
    pub words: u64,
    /// All areas.
    pub data: u64,
    /// The same memory, in the reach of devices and of peers that map it.
    pub direct: u64,
    /// The same memory, to be read only.
    pub read: u64,
    /// A key that was taken back.
    pub stale: u64,
    /// Bytes of all areas.
    pub size: u64,
}

/// Shared memory.
pub(crate) struct Share {
    nodes: usize,
    pub exports: Exports,
    pub keys: Keys,
    pub memory: Exposed,
    shadow: Vec<u8>,
    /// Values that each word had, and how many were forgotten.
    history: Vec<(u64, VecDeque<u64>)>,
}

impl Share {
    pub(crate) fn new(pool: &Pool, nodes: usize, stale: Option<u64>) -> Share {
        let len = 3 * GUARD + (WORDS + nodes) * 8 + nodes * AREA;
        let memory = pool.take(len).expect("memory for a share").into_exposed();
        memory.fill(0..len, CANARY);
        let exports = Exports::new();
        let no_bits = "random bits for a key";
        let mut share = Share {
            nodes,
            exports,
            keys: Keys::default(),
            memory,
            shadow: Vec::new(),
            history: vec![(0, VecDeque::from([0])); WORDS],
        };
        let (words, areas) = (share.words(), share.areas());
        share.memory.fill(words.clone(), 0);
        share.memory.fill(areas.clone(), 0);
        share.shadow = vec![0; len];
        share.memory.read(0, &mut share.shadow);
        let words = share.memory.slice(words);
        let data = share.memory.slice(areas.clone());
        let exports = &share.exports;
        let place = Place { key: PLACE, offset: areas.start as u64, ..Place::default() };
        let taken_back = exports.add(data.clone(), Rights::all()).expect(no_bits);
        exports.remove(taken_back);
        share.keys = Keys {
            words: exports.add(words, Rights::ATOMIC).expect(no_bits),
            data: exports.add(data.clone(), Rights::READ | Rights::WRITE).expect(no_bits),
            direct: exports.add_direct(data.clone(), Rights::READ | Rights::WRITE, place).expect(no_bits),
            read: exports.add(data, Rights::READ).expect(no_bits),
            stale: stale.unwrap_or(taken_back),
            size: areas.len() as u64,
        };
        share
    }

    fn words(&self) -> Range<usize> {
        GUARD..GUARD + (WORDS + self.nodes) * 8
    }

    fn areas(&self) -> Range<usize> {
        let start = self.words().end + GUARD;
        start..start + self.nodes * AREA
    }

    pub(crate) fn word_at(&self, word: usize) -> usize {
        GUARD + word * 8
    }

    /// Where a peer's counter lies among the exported words.
    pub(crate) fn counter(peer: usize) -> usize {
        WORDS + peer
    }

    pub(crate) fn area(&self, peer: usize) -> Range<usize> {
        let start = self.areas().start + peer * AREA;
        start..start + AREA
    }

    /// A word as it is, and as it was.
    pub(crate) fn word(&self, word: usize) -> (u64, u64) {
        let at = self.word_at(word);
        let mut bytes = [0; 8];
        self.memory.read(at, &mut bytes);
        let before = self.shadow[at..at + 8].try_into().expect("eight bytes");
        (u64::from_le_bytes(bytes), u64::from_le_bytes(before))
    }

    /// What a word is now is right.
    pub(crate) fn set_word(&mut self, word: usize, value: u64) {
        let at = self.word_at(word);
        self.shadow[at..at + 8].copy_from_slice(&value.to_le_bytes());
        if let Some((forgotten, values)) = self.history.get_mut(word) {
            values.push_back(value);
            if values.len() > REMEMBERED {
                values.pop_front();
                *forgotten += 1;
            }
        }
    }

    /// How many values a word has had.
    pub(crate) fn age(&self, word: usize) -> u64 {
        let (forgotten, values) = &self.history[word];
        forgotten + values.len() as u64
    }

    /// Whether a word has had a value since it was of some age. True if that is forgotten.
    pub(crate) fn had(&self, word: usize, value: u64, since: u64) -> bool {
        let (forgotten, values) = &self.history[word];
        // The value that it had then counts as well.
        let from = since.saturating_sub(1);
        from < *forgotten || values.iter().skip((from - forgotten) as usize).any(|had| *had == value)
    }

    /// Whether the words, one peer's counter and area, and the guards are what they must be.
    pub(crate) fn is_unchanged(&self, peer: usize, scratch: &mut Vec<u8>) -> bool {
        [self.words(), self.area(peer)].into_iter().all(|range| self.equals(range, scratch))
    }

    /// Whether all of it is.
    pub(crate) fn is_whole(&self, scratch: &mut Vec<u8>) -> bool {
        self.equals(0..self.shadow.len(), scratch)
    }

    fn equals(&self, range: Range<usize>, scratch: &mut Vec<u8>) -> bool {
        scratch.resize(range.len(), 0);
        self.memory.read(range.start, scratch);
        scratch[..] == self.shadow[range]
    }

    /// A peer's area as it is.
    pub(crate) fn read_area(&self, peer: usize, into: &mut Vec<u8>) {
        let area = self.area(peer);
        into.resize(area.len(), 0);
        self.memory.read(area.start, into);
    }

    /// A peer's area as it was.
    pub(crate) fn shadow_area(&self, peer: usize) -> &[u8] {
        &self.shadow[self.area(peer)]
    }

    /// What a peer's area is now is right.
    pub(crate) fn set_area(&mut self, peer: usize, bytes: &[u8]) {
        let area = self.area(peer);
        self.shadow[area].copy_from_slice(bytes);
    }
}
