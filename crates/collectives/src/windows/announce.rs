//! What ranks tell one another of each call, and how they know that all make the same ones.
//!
//! A rank waits for those whose data it needs, and goes on: whoever only gives may be some calls ahead of the others, as far as what it
//! wrote has places of its own. Since each announcement also stands for all calls before it, ranks that differ find it at the next one
//! that they compare, though they may not have met since.

use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{self, LINES};
use super::{Ongoing, Place, Places, Windows};
use crate::CollectiveError;
use crate::call::Call;

/// The line in which a rank announces a call.
pub(super) type Line = [AtomicU64; layout::LINE_WORDS];

/// What all ranks said about a call that they all make.
pub(super) struct Agreed {
    /// By rank, where its contribution lies in its pool, if it lies there.
    pub(super) inputs: Places,
    /// The same for the outputs.
    pub(super) outputs: Places,
}

/// The calls of a group so far, as this rank knows them.
#[derive(Default)]
pub(super) struct History {
    /// The last one that all others are known to have announced, alike.
    met: u64,
    /// Stands for all of them: another number, all but certainly, if one was another.
    digest: u64,
    /// What it was before each of the last calls.
    before: [u64; LINES as usize],
}

impl History {
    /// The words of a call as they are announced: together with what stands for all before it. A word of its own would be one more that those who
    /// look at the line meanwhile can hold up.
    #[inline]
    fn tell(&self, call: [u64; 2]) -> [u64; 2] {
        [call[0], call[1] ^ self.digest]
    }

    /// Those of one of the last calls, out of an announcement, if the calls before it were the same.
    fn heard(&self, sequence: u64, words: [u64; 2]) -> [u64; 2] {
        // What a peer announces is not trusted: if they were not, it is told as it is.
        [words[0], words[1] ^ self.before[(sequence % LINES) as usize]]
    }

    #[inline]
    pub(super) fn add(&mut self, call: [u64; 2]) {
        // Each step can be undone, so that two histories of which one call differs never come to the same.
        let mix = |digest: u64, word: u64| (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
        self.digest = mix(mix(self.digest, call[0]), call[1]);
    }
}

/// The call in an announcement.
#[inline]
fn announced(line: &Line) -> [u64; 2] {
    [line[layout::CALL].load(Ordering::Relaxed), line[layout::CALL + 1].load(Ordering::Relaxed)]
}

impl Windows {
    /// Where a rank announces a call.
    #[inline]
    pub(super) fn line(&self, rank: usize, sequence: u64) -> &Line {
        let words = &self.words(rank)[layout::announcement(sequence)..];
        words.first_chunk().expect("announcements lie in front of the stage")
    }

    /// Waits until this rank may write what it has for a call, though it may be so many calls ahead of others.
    #[inline]
    pub(super) fn make_room(
        &self,
        ongoing: &mut Ongoing<'_>,
        history: &mut History,
        lead: u64,
    ) -> Result<(), CollectiveError> {
        history.before[(ongoing.sequence % LINES) as usize] = history.digest;
        if ongoing.sequence <= history.met + lead { Ok(()) } else { self.catch_up(ongoing, history, lead) }
    }

    /// Waits for the others to come closer than they have to, so that not each call has to look.
    #[inline(never)]
    fn catch_up(&self, ongoing: &mut Ongoing<'_>, history: &mut History, lead: u64) -> Result<(), CollectiveError> {
        let sequence = ongoing.sequence - lead.div_ceil(2);
        self.await_announcements(ongoing, sequence, |_| true)?;
        let call = announced(self.line(self.rank, sequence));
        self.compare(ongoing, history, sequence, call, |_| true)?;
        history.met = sequence;
        Ok(())
    }

    /// Announces a call and where its data lies.
    pub(super) fn announce_places(
        &self,
        call: &Call,
        [input, output]: [Option<u64>; 2],
        ongoing: &mut Ongoing<'_>,
        history: &History,
    ) {
        let line = self.line(self.rank, ongoing.sequence);
        let mut flags = 0;
        for (at, what) in [(input, Place::Input), (output, Place::Output)] {
            if let Some(at) = at {
                line[what.word()].store(at, Ordering::Relaxed);
                flags |= what.flag();
            }
        }
        self.announce(call.encode(flags), ongoing, history);
    }

    #[inline]
    pub(super) fn announce(&self, call: [u64; 2], ongoing: &mut Ongoing<'_>, history: &History) {
        let line = self.line(self.rank, ongoing.sequence);
        let call = history.tell(call);
        line[layout::CALL].store(call[0], Ordering::Relaxed);
        line[layout::CALL + 1].store(call[1], Ordering::Relaxed);
        line[0].store(ongoing.sequence, Ordering::Release);
        ongoing.owes_ring = true;
        // While the line is on its way to the peers.
        let _ = ongoing.begun();
    }

    /// Waits for the announcements of some of the peers and compares them with this rank's own.
    #[inline]
    pub(super) fn agree(
        &self,
        call: &Call,
        ongoing: &mut Ongoing<'_>,
        history: &mut History,
        with: impl Fn(usize) -> bool,
    ) -> Result<(), CollectiveError> {
        let sequence = ongoing.sequence;
        self.await_announcements(ongoing, sequence, &with)?;
        let call = call.encode(0);
        if self.compare(ongoing, history, sequence, history.tell(call), with)? {
            history.met = sequence;
        }
        history.add(call);
        Ok(())
    }

    #[inline]
    fn await_announcements(
        &self,
        ongoing: &mut Ongoing<'_>,
        sequence: u64,
        of: impl Fn(usize) -> bool,
    ) -> Result<(), CollectiveError> {
        let line = layout::announcement(sequence);
        // None is so far ahead that it has written a later one there.
        self.await_ranks(ongoing, |rank, words| !of(rank) || words[line].load(Ordering::Acquire) == sequence)
    }

    /// Compares what some of the peers have announced with what this rank calls, and called before. Whether these are all.
    // Inlined, so that no words are written to be read at once.
    #[inline(always)]
    fn compare(
        &self,
        ongoing: &Ongoing<'_>,
        history: &History,
        sequence: u64,
        mine: [u64; 2],
        with: impl Fn(usize) -> bool,
    ) -> Result<bool, CollectiveError> {
        let mut all = true;
        for rank in self.peers() {
            if !with(rank) {
                all = false;
            } else if !Call::is_same(mine, announced(self.line(rank, sequence))) {
                return Err(self.mismatch(ongoing, history, rank, sequence, mine));
            }
        }
        Ok(all)
    }

    /// The first call in which a peer differs, of those that both ranks' announcements still tell of: they do of all that were not compared.
    #[cold]
    fn mismatch(
        &self,
        ongoing: &Ongoing<'_>,
        history: &History,
        rank: usize,
        sequence: u64,
        mine: [u64; 2],
    ) -> CollectiveError {
        let known = |of: usize, call: u64| {
            let line = self.line(of, call);
            (line[0].load(Ordering::Acquire) == call).then(|| announced(line))
        };
        let earlier = (sequence.saturating_sub(LINES - 1).max(1)..sequence).find_map(|call| {
            let (mine, theirs) = (known(self.rank, call)?, known(rank, call)?);
            (!Call::is_same(mine, theirs)).then_some((call, mine, theirs))
        });
        let theirs = announced(self.line(rank, sequence));
        let (sequence, mine, theirs) = earlier.unwrap_or((sequence, mine, theirs));
        CollectiveError::Mismatch {
            operation: ongoing.operation,
            sequence,
            mine: Call::describe(history.heard(sequence, mine)),
            theirs: Call::describe(history.heard(sequence, theirs)),
            rank: rank as u32,
        }
    }

    /// Waits until some of the peers have announced the call, and learns where their data lies.
    pub(super) fn agree_on_places(
        &self,
        call: &Call,
        [input, output]: [Option<u64>; 2],
        ongoing: &mut Ongoing<'_>,
        history: &mut History,
        with: impl Fn(usize) -> bool,
    ) -> Result<Agreed, CollectiveError> {
        self.agree(call, ongoing, history, &with)?;
        let places = |own: Option<u64>, what| {
            // Peers are reading its own line.
            let place = |rank| match rank {
                rank if rank == self.rank => own.map(|at| at as usize),
                rank if with(rank) => self.place(ongoing.sequence, rank, what),
                _ => None,
            };
            (0..self.size).map(place).collect()
        };
        let agreed = Agreed { inputs: places(input, Place::Input), outputs: places(output, Place::Output) };
        self.set_about(ongoing);
        Ok(agreed)
    }

    /// Where a peer says, in its announcement, that its contribution lies in its pool, or its output, if it lies there.
    #[inline]
    pub(super) fn place(&self, sequence: u64, peer: usize, what: Place) -> Option<usize> {
        let line = self.line(peer, sequence);
        let lies_there = Call::flags(announced(line)) & what.flag() != 0;
        lies_there.then(|| line[what.word()].load(Ordering::Relaxed) as usize)
    }
}
