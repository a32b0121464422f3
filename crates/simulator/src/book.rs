//! What one end of a link asked of the other end's memory, and what must come of it.
//!
//! After everything that an owner does for a peer, its memory is held against its shadow: each change must be one that an
//! operation under way asked for, which it did not make before, and for which all that its fences hold back has happened.

use std::ops::Range;

use fulmen_fabric::engine::OpError;

use crate::messages::Wrong;
use crate::report::Broken;
use crate::share::{Keys, LOOSE, Share, WORDS};

/// What was asked.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Put {
        at: usize,
        bytes: Vec<u8>,
        /// What the counter grows by.
        add: Option<u64>,
    },
    Get {
        at: usize,
        /// What it must bring; nothing is known about loose bytes.
        brings: Vec<u8>,
    },
    Add {
        word: usize,
        add: u64,
    },
    Swap {
        word: usize,
        expect: u64,
        new: u64,
        /// How old the word was when this began.
        since: u64,
    },
    /// Something that the owner must refuse.
    Bad {
        error: OpError,
    },
}

#[derive(Clone, Debug)]
struct Entry {
    number: u64,
    asked: Asked,
    /// Fences that were called before.
    fences: u64,
    /// All that it does to data or to its word has been seen.
    done: bool,
    /// Its counter has been seen to grow.
    counted: bool,
    /// The old value that it met.
    old: Option<u64>,
    /// Nobody will tell how it ended: it may still happen, once.
    orphaned: bool,
    given_up: bool,
}

/// What one end asked of the other's memory.
#[derive(Clone, Debug)]
pub(crate) struct Book {
    /// Under which the owner shares its memory.
    pub keys: Keys,
    entries: Vec<Entry>,
    next: u64,
    fences: u64,
    /// The area as it is after all that was asked, in order.
    pub ideal: Vec<u8>,
    /// The owner serves this link no more.
    closed: bool,
}

impl Book {
    pub(crate) fn new(keys: Keys, area: &[u8]) -> Book {
        Book { keys, entries: Vec::new(), next: 1, fences: 0, ideal: area.to_vec(), closed: false }
    }

    /// The number of the next operation.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn fence(&mut self) {
        self.fences += 1;
    }

    /// Whether the order of a new operation on these bytes and of those under way matters.
    pub(crate) fn conflicts(&self, range: &Range<usize>, writes: bool) -> bool {
        self.entries.iter().any(|entry| {
            let (own, both) = match &entry.asked {
                Asked::Put { at, bytes, .. } => (*at..at + bytes.len(), true),
                Asked::Get { at, brings } => (*at..at + brings.len(), writes),
                _ => return false,
            };
            both && own.start < range.end && range.start < own.end
        })
    }

    pub(crate) fn add(&mut self, asked: Asked) -> u64 {
        if let Asked::Put { at, bytes, .. } = &asked {
            self.ideal[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        let number = self.next;
        self.next += 1;
        let fences = self.fences;
        self.entries.push(Entry {
            number,
            asked,
            fences,
            done: false,
            counted: false,
            old: None,
            orphaned: false,
            given_up: false,
        });
        number
    }

    /// What can be said about an operation.
    pub(crate) fn describe(&self, number: u64) -> String {
        let Some(entry) = self.entries.iter().find(|entry| entry.number == number) else {
            return format!("operation {number}");
        };
        let fences = entry.fences;
        match &entry.asked {
            Asked::Put { at, bytes, add } => {
                let counted = if add.is_some() { ", counted" } else { "" };
                format!("put {number} of {} bytes at {at}{counted} (after fence {fences})", bytes.len())
            }
            Asked::Get { at, brings } => {
                format!("get {number} of {} bytes at {at} (after fence {fences})", brings.len())
            }
            Asked::Add { word, add } => format!("fetch-add {number} of {add} to word {word}"),
            Asked::Swap { word, expect, new, .. } => {
                format!("compare-swap {number} of word {word} from {expect} to {new}")
            }
            Asked::Bad { error } => format!("operation {number} that must be refused ({error})"),
        }
    }

    /// An operation was given up, and may end early.
    pub(crate) fn give_up(&mut self, number: u64) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.number == number) {
            entry.given_up = true;
        }
    }

    /// An operation was given up, or its link is over: nobody will tell how it ended.
    pub(crate) fn orphan(&mut self, number: u64) {
        let Some(at) = self.entries.iter().position(|entry| entry.number == number) else { return };
        match self.entries[at].asked {
            // These are seen by nobody.
            Asked::Get { .. } | Asked::Bad { .. } => drop(self.entries.remove(at)),
            // Nothing is known about loose bytes: such a put explains nothing.
            Asked::Put { at: offset, .. } if offset >= LOOSE => drop(self.entries.remove(at)),
            _ => self.entries[at].orphaned = true,
        }
    }

    /// Whether the books stay right if this is given up: a put of bytes of which nothing is known, and whatever shows
    /// whether it happened.
    pub(crate) fn may_be_given_up(&self, number: u64) -> bool {
        self.entries.iter().find(|entry| entry.number == number).is_some_and(|entry| match &entry.asked {
            Asked::Put { at, add, .. } => *at >= LOOSE && add.is_none(),
            Asked::Get { .. } | Asked::Bad { .. } | Asked::Add { .. } | Asked::Swap { .. } => true,
        })
    }

    /// The owner has done something for this end, `peer` to it: explains each change of its memory.
    pub(crate) fn inspect(&mut self, share: &mut Share, peer: usize, scratch: &mut Vec<u8>) -> Result<(), Wrong> {
        if share.is_unchanged(peer, scratch) {
            return Ok(());
        }
        if self.closed {
            return Err((Broken::Generation, "its link is over, and memory changes".into()));
        }
        let mut touched = Vec::new();
        for word in 0..WORDS {
            let (now, before) = share.word(word);
            if now != before {
                self.word_changed(share, word, (before, now), &mut touched)?;
            }
        }
        share.read_area(peer, scratch);
        self.area_changed(share.shadow_area(peer), scratch, &mut touched)?;
        share.set_area(peer, scratch);
        let counter = Share::counter(peer);
        let (now, before) = share.word(counter);
        if now != before {
            self.counter_changed(now.wrapping_sub(before), scratch)?;
            share.set_word(counter, now);
        }
        // Whatever is held back by a fence has not begun before all in front of it was done.
        if let Some(latest) = touched.iter().copied().max_by_key(|at: &usize| self.entries[*at].fences) {
            let fences = self.entries[latest].fences;
            for at in 0..latest {
                if self.entries[at].fences < fences && !self.is_done(at, scratch) {
                    let (held, late) = (self.entries[latest].number, self.entries[at].number);
                    let what = format!("{} began before {} was done", self.describe(held), self.describe(late));
                    return Err((Broken::Fence, what));
                }
            }
        }
        if share.is_unchanged(peer, scratch) {
            return Ok(());
        }
        Err((Broken::Memory, "another rank's counter changed".into()))
    }

    /// Whether all that an operation does has been seen, with `area` as it is now.
    fn is_done(&mut self, at: usize, area: &[u8]) -> bool {
        let entry = &self.entries[at];
        let done = (entry.done && !entry.needs_counter())
            || match &entry.asked {
                Asked::Put { .. } => self.is_present(at, area) && !entry.needs_counter(),
                Asked::Add { .. } => false,
                // A swap that fails shows nothing, and neither does the rest.
                _ => true,
            };
        // What was given up may never happen.
        self.entries[at].done |= done;
        done || self.entries[at].orphaned
    }

    /// Whether a put's bytes are there, but for those that later ones may have written over.
    fn is_present(&self, index: usize, area: &[u8]) -> bool {
        let Asked::Put { at, bytes, .. } = &self.entries[index].asked else { return true };
        if *at >= LOOSE || area[*at..at + bytes.len()] == bytes[..] {
            return true;
        }
        let later: Vec<Range<usize>> = self.entries[index + 1..].iter().filter_map(Entry::written).collect();
        (*at..).zip(bytes).all(|(at, byte)| area[at] == *byte || later.iter().any(|range| range.contains(&at)))
    }

    fn word_changed(
        &mut self,
        share: &mut Share,
        word: usize,
        (before, now): (u64, u64),
        touched: &mut Vec<usize>,
    ) -> Result<(), Wrong> {
        let able: Vec<usize> = (0..self.entries.len()).filter(|at| self.entries[*at].changes(word)).collect();
        let alone = able.iter().find(|at| self.entries[**at].turn(before) == Some(now)).map(|at| vec![*at]);
        // Several in one frame are carried out in their order.
        let order = alone.or_else(|| {
            (0..able.len()).find_map(|first| {
                let mut taken = Vec::new();
                self.turns(&able[first..], before, now, &mut taken).then_some(taken)
            })
        });
        let Some(order) = order else {
            return Err((Broken::Atomic, format!("word {word} went from {before} to {now}, which nothing asked for")));
        };
        let mut value = before;
        for at in order {
            let entry = &mut self.entries[at];
            (entry.old, entry.done) = (Some(value), true);
            value = entry.turn(value).expect("it was tried");
            share.set_word(word, value);
            touched.push(at);
        }
        Ok(())
    }

    /// Whether some of these operations, one after the other, turn one value of a word into another: which.
    fn turns(&self, able: &[usize], value: u64, into: u64, taken: &mut Vec<usize>) -> bool {
        if value == into && !taken.is_empty() {
            return true;
        }
        let Some((at, rest)) = able.split_first() else { return false };
        let entry = &self.entries[*at];
        let turned = entry.turn(value);
        if let Some(next) = turned {
            taken.push(*at);
            if self.turns(rest, next, into, taken) {
                return true;
            }
            taken.pop();
        }
        // What was given up may not have been asked for, and a swap may fail.
        (turned.is_none() || entry.orphaned) && self.turns(rest, value, into, taken)
    }

    fn area_changed(&self, before: &[u8], now: &[u8], touched: &mut Vec<usize>) -> Result<(), Wrong> {
        if before == now {
            return Ok(());
        }
        for at in (0..LOOSE).filter(|at| before[*at] != now[*at]) {
            let writes = |entry: &Entry| !entry.done && entry.byte(at) == Some(now[at]);
            // The one that explained the byte before does so mostly for this one as well.
            if touched.last().is_some_and(|last| writes(&self.entries[*last])) {
                continue;
            }
            let Some(writer) = self.entries.iter().position(writes) else {
                let what = format!("byte {at} went from {:#x} to {:#x}, which nothing asked for", before[at], now[at]);
                return Err((Broken::Memory, what));
            };
            touched.push(writer);
        }
        Ok(())
    }

    fn counter_changed(&mut self, by: u64, area: &[u8]) -> Result<(), Wrong> {
        let able = |entry: &Entry| !entry.counted && matches!(entry.asked, Asked::Put { add: Some(_), .. });
        let able: Vec<usize> = (0..self.entries.len()).filter(|at| able(&self.entries[*at])).collect();
        let adds = |at: usize| match self.entries[at].asked {
            Asked::Put { add: Some(add), .. } => add,
            _ => 0,
        };
        let mut order = able.iter().find(|at| adds(**at) == by).map(|at| vec![*at]);
        for first in 0..able.len() {
            for end in first + 2..=able.len() {
                let sum = able[first..end].iter().fold(0_u64, |sum, at| sum.wrapping_add(adds(*at)));
                if order.is_none() && sum == by {
                    order = Some(able[first..end].to_vec());
                }
            }
        }
        let Some(order) = order else {
            return Err((Broken::Counter, format!("the counter grew by {by}, which nothing asked for")));
        };
        for at in order {
            if !self.entries[at].done && !self.is_present(at, area) {
                let put = self.describe(self.entries[at].number);
                return Err((Broken::Counter, format!("the counter of {put} grew before the bytes were there")));
            }
            (self.entries[at].counted, self.entries[at].done) = (true, true);
        }
        Ok(())
    }

    /// An operation has ended. `got`: what a get brought. `over`: its link is. `owner`: the memory, if it still is.
    pub(crate) fn ended(
        &mut self,
        number: u64,
        outcome: Result<u64, OpError>,
        got: &[u8],
        over: bool,
        owner: Option<(&Share, usize)>,
    ) -> Result<(), Wrong> {
        let Some(at) = self.entries.iter().position(|entry| entry.number == number) else {
            return Err((Broken::Outcome, format!("operation {number} ended twice")));
        };
        if over && matches!(outcome, Err(OpError::Severed | OpError::Left)) {
            self.orphan(number);
            return Ok(());
        }
        if self.entries[at].given_up && outcome == Err(OpError::Cancelled) {
            self.orphan(number);
            return Ok(());
        }
        if let Some((share, peer)) = owner.filter(|_| !self.closed) {
            let mut area = Vec::new();
            if matches!(self.entries[at].asked, Asked::Put { .. }) {
                share.read_area(peer, &mut area);
                self.entries[at].done |= self.is_present(at, &area);
            }
        }
        let entry = &self.entries[at];
        let told = |what: &str| format!("{} ended with {outcome:?}: {what}", self.describe(number));
        let wrong = match (&entry.asked, outcome) {
            (Asked::Bad { error }, outcome) if outcome == Err(*error) => None,
            (Asked::Put { bytes, .. }, Ok(len)) if len == bytes.len() as u64 => {
                if !entry.done {
                    Some((Broken::Memory, told("its bytes are not there")))
                } else if entry.needs_counter() {
                    Some((Broken::Counter, told("its counter did not grow")))
                } else {
                    None
                }
            }
            (Asked::Get { brings, at }, Ok(len)) if len == brings.len() as u64 => {
                let known = LOOSE.saturating_sub(*at).min(brings.len());
                let other = (0..known).find(|at| brings[*at] != got[*at]);
                other.map(|at| (Broken::Get, told(&format!("byte {at} is {:#x} and not {:#x}", got[at], brings[at]))))
            }
            (Asked::Add { .. }, Ok(old)) => (entry.old != Some(old)).then(|| {
                (
                    Broken::Atomic,
                    told(&entry.old.map_or("it did not happen".into(), |old| format!("the old value was {old}"))),
                )
            }),
            (Asked::Swap { word, expect, since, .. }, Ok(old)) => {
                let had = owner.is_none_or(|(share, _)| share.had(*word, old, *since));
                match entry.old {
                    Some(met) if met == old => None,
                    None if old != *expect && had => None,
                    _ => Some((Broken::Atomic, told(&format!("it met {:?}", entry.old)))),
                }
            }
            _ => Some((Broken::Outcome, told("nothing explains that"))),
        };
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        // Requests are carried out in order: what was given up before this one happens no more. A put of many bytes may
        // still.
        let in_order = matches!(self.entries[at].asked, Asked::Add { .. } | Asked::Swap { .. });
        self.entries.remove(at);
        if in_order {
            let mut index = 0;
            self.entries.retain(|entry| {
                index += 1;
                index > at || !entry.orphaned || matches!(entry.asked, Asked::Put { .. })
            });
        }
        Ok(())
    }

    /// The owner serves the link no more: what was done until now stays, and nothing follows.
    pub(crate) fn close(&mut self, area: &[u8]) {
        for at in 0..self.entries.len() {
            self.is_done(at, area);
        }
        self.closed = true;
    }
}

impl Entry {
    /// Whether it may still change this word.
    fn changes(&self, word: usize) -> bool {
        let own = match self.asked {
            Asked::Add { word, .. } | Asked::Swap { word, .. } => Some(word),
            _ => None,
        };
        !self.done && own == Some(word)
    }

    /// What it makes of a word, if it changes it.
    fn turn(&self, value: u64) -> Option<u64> {
        match self.asked {
            Asked::Add { add, .. } => Some(value.wrapping_add(add)),
            Asked::Swap { expect, new, .. } => (value == expect).then_some(new),
            _ => None,
        }
    }

    fn written(&self) -> Option<Range<usize>> {
        match &self.asked {
            Asked::Put { at, bytes, .. } => Some(*at..at + bytes.len()),
            _ => None,
        }
    }

    /// What it writes to a byte of the area.
    fn byte(&self, index: usize) -> Option<u8> {
        match &self.asked {
            Asked::Put { at, bytes, .. } => bytes.get(index.checked_sub(*at)?).copied(),
            _ => None,
        }
    }

    fn needs_counter(&self) -> bool {
        matches!(self.asked, Asked::Put { add: Some(_), .. }) && !self.counted
    }
}
