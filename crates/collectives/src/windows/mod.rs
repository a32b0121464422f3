//! Collectives where ranks map one another's memory.
//!
//! A call goes like this. A rank *announces* it: what it calls, and up to 40 bytes of data or where the data lies. It waits
//! for the announcements of all others, and compares them with its own. Only then is data touched:
//!
//! - little of it is in the announcements or in slots beside them, and each rank computes for itself;
//! - between buffers, ranks work straight on each other's memory ([`direct`]), count *done*, and return when all have;
//! - plain memory goes in pieces through the stages ([`staged`]), and ranks return when all have taken what they need.
//!
//! A rank that fails marks its part as poisoned before it returns. Whoever waits looks at the marks, and looks once more
//! after the last wait: a rank that was stopped in the middle of a call, while the others gave up on it and used their
//! memory for other things, finds the mark when it goes on.

mod direct;
mod layout;
mod pace;
mod results;
mod staged;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::task::Poll;

use fulmen_fabric::{OpName, RegionRef, Running, Window};
use fulmen_kernels::{Source, Stores, copy_in_with};
use fulmen_memory::{Exposed, Region};
use smallvec::SmallVec;

use crate::CollectiveError;
use crate::call::{Call, Kind};
use crate::deadline::Deadline;
use crate::request::Request;
use crate::team::Team;
use layout::Counter;
pub(crate) use layout::SLOT;

/// Looks at the others before this rank wakes them, where each rank has a processor: those that come at about the same
/// time have no need to be woken first.
const EAGER_LOOKS: u32 = 64;

/// The group's window, and the peers' pools.
pub(crate) struct Windows {
    team: Team,
    window: Window,
    rank: usize,
    size: usize,
    /// The region of this rank's pool.
    pool: u64,
    /// By rank; this rank's own is not used.
    pools: Vec<Option<Exposed>>,
    /// Every rank has a processor to look with. The same on all ranks.
    busy: bool,
}

/// What goes on from call to call.
#[derive(Default)]
pub(crate) struct Progress {
    /// Pieces that all have put on their stages so far.
    pieces: u64,
    paces: pace::Paces,
}

/// One call under way.
pub(crate) struct Ongoing<'a> {
    pub(crate) operation: OpName,
    pub(crate) sequence: u64,
    pub(crate) deadline: &'a mut Deadline,
    /// Something was written that parked peers have not been woken for.
    owes_ring: bool,
    /// Notes in this rank's record that it begins.
    begin: &'a dyn Fn() -> Running,
    running: Option<Running>,
}

impl<'a> Ongoing<'a> {
    pub(crate) fn new(
        operation: OpName,
        sequence: u64,
        deadline: &'a mut Deadline,
        begin: &'a dyn Fn() -> Running,
    ) -> Ongoing<'a> {
        Ongoing { operation, sequence, deadline, owes_ring: false, begin, running: None }
    }

    /// It is in the record from here on, before it waits for anything.
    #[inline]
    pub(crate) fn begun(&mut self) -> Running {
        *self.running.get_or_insert_with(self.begin)
    }
}

/// What all ranks said about a call that they all make.
struct Agreed {
    /// By rank, where its contribution lies in its pool, if it lies there.
    inputs: Places,
    /// The same for the outputs.
    outputs: Places,
}

/// Of so many ranks, what is known of each does not have to be allocated.
const FEW: usize = 16;

type Places = SmallVec<[Option<usize>; FEW]>;

/// What a rank may have in its pool, and say where.
#[derive(Clone, Copy)]
enum Place {
    Input,
    Output,
}

impl Place {
    /// In the call's flags, that it is there.
    const fn flag(self) -> u8 {
        1 << self as u8
    }

    /// Which word of the announcement says where.
    const fn word(self) -> usize {
        match self {
            Place::Input => layout::INPUT_AT,
            Place::Output => layout::OUTPUT_AT,
        }
    }
}

/// The line in which a rank announces a call.
type Line = [AtomicU64; layout::LINE_WORDS];

/// The call in an announcement.
#[inline]
fn announced(line: &Line) -> [u64; 2] {
    [line[layout::CALL].load(Ordering::Relaxed), line[layout::CALL + 1].load(Ordering::Relaxed)]
}

impl Windows {
    /// Bytes of a rank's part of the window.
    pub(crate) const LEN: usize = layout::LEN;

    /// Over a window of the group's ranks. Maps the peers' pools. Collective.
    pub(crate) fn new(team: Team, window: Window, deadline: &mut Deadline) -> Result<Windows, CollectiveError> {
        let (fabric, rank, size) = (team.fabric.clone(), team.rank(), team.size());
        let block = fabric.alloc(0)?.into_exposed();
        let pool: &Region = block.region();
        let key = fabric.region_ref(&block).map_or(0, |at| at.key);
        let hello = &window.local().words()[layout::HELLO..];
        hello[1].store(key, Ordering::Relaxed);
        hello[2].store(pool.len() as u64, Ordering::Relaxed);
        let busy = fabric.poll_policy().yields == 0;
        hello[3].store(busy.into(), Ordering::Relaxed);
        hello[0].store(1, Ordering::Release);
        let pools = vec![None; size];
        let pool = pool.id();
        let mut windows = Windows { team, window, rank, size, pool, pools, busy };
        let mut ongoing = Ongoing::new("group", 0, deadline, &|| Running::NONE);
        ongoing.owes_ring = true;
        windows.await_peers(&mut ongoing, |words| words[layout::HELLO].load(Ordering::Acquire) != 0)?;
        windows.settle(&mut ongoing);
        for peer in (0..size).filter(|peer| *peer != rank) {
            let hello = &windows.words(peer)[layout::HELLO..];
            let key = hello[1].load(Ordering::Relaxed);
            let at = RegionRef { key, offset: 0, len: hello[2].load(Ordering::Relaxed) };
            windows.busy &= hello[3].load(Ordering::Relaxed) != 0;
            windows.pools[peer] = Some(fabric.map(windows.team.in_fabric(peer), at)?);
        }
        Ok(windows)
    }

    /// Runs one call to its end.
    pub(crate) fn run(
        &self,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
        progress: &mut Progress,
    ) -> Result<(), CollectiveError> {
        let longest = request.longest();
        let reduces = matches!(request.call.kind, Kind::AllReduce | Kind::Reduce);
        // Where ranks share processors, one more meeting costs more than anything else.
        let (copied, in_slots) = match self.busy {
            true => (layout::READ_IN_PLACE, layout::staged(request.call.kind == Kind::AllReduce, self.size)),
            false => (layout::SLOT + 1, layout::SLOT + 1),
        };
        if longest < copied {
            self.in_slots::<false>(request, ongoing, progress, longest)
        } else if longest < in_slots {
            self.in_slots::<true>(request, ongoing, progress, longest)
        } else if reduces && longest >= layout::REDUCE_SHARES {
            self.reduce(request, ongoing, progress)
        } else {
            let own = self.own_places(request);
            self.announce_places(&request.call, own, ongoing);
            if own[0].is_none() && request.contributed(self.rank as u32) > 0 {
                // It can only be read from a stage.
                return self.staged(request, ongoing, progress, false);
            }
            let agreed = self.agree_on_places(&request.call, own, ongoing)?;
            match self.contributions(request, &agreed) {
                Some(inputs) => self.pull(request, ongoing, inputs),
                None => self.staged(request, ongoing, progress, true),
            }
        }
    }

    /// The words of a rank's part.
    #[inline]
    fn words(&self, rank: usize) -> &[AtomicU64] {
        self.window.peer(rank as u32).words()
    }

    /// Where a rank announces a call.
    #[inline]
    fn line(&self, rank: usize, sequence: u64) -> &Line {
        let words = &self.words(rank)[layout::announcement(sequence)..];
        words.first_chunk().expect("announcements lie in front of the stage")
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.size).filter(move |peer| *peer != rank)
    }

    /// The bytes that a rank reduces for all, of so many: whole lines.
    fn share(&self, rank: usize, len: usize) -> Range<usize> {
        let share = len.div_ceil(self.size).next_multiple_of(64);
        let start = (share * rank).min(len);
        start..(start + share).min(len)
    }

    /// Where this rank's contribution and its output lie in its pool.
    fn own_places(&self, request: &Request<'_>) -> [Option<u64>; 2] {
        [request.contribution_at(self.pool), request.output_at(self.pool)]
    }

    /// Announces a call and where its data lies.
    fn announce_places(&self, call: &Call, [input, output]: [Option<u64>; 2], ongoing: &mut Ongoing<'_>) {
        let line = self.line(self.rank, ongoing.sequence);
        let mut flags = 0;
        for (at, what) in [(input, Place::Input), (output, Place::Output)] {
            if let Some(at) = at {
                line[what.word()].store(at, Ordering::Relaxed);
                flags |= what.flag();
            }
        }
        self.announce(line, call.encode(flags), ongoing);
    }

    /// Waits until all have announced the call, and learns where the others' data lies.
    fn agree_on_places(
        &self,
        call: &Call,
        [input, output]: [Option<u64>; 2],
        ongoing: &mut Ongoing<'_>,
    ) -> Result<Agreed, CollectiveError> {
        self.agree(call, ongoing)?;
        let places = |own: Option<u64>, what| {
            // Peers are reading its own line.
            let place = |rank| {
                if rank == self.rank { own.map(|at| at as usize) } else { self.place(ongoing.sequence, rank, what) }
            };
            (0..self.size).map(place).collect()
        };
        let agreed = Agreed { inputs: places(input, Place::Input), outputs: places(output, Place::Output) };
        self.set_about(ongoing);
        Ok(agreed)
    }

    /// All have announced a call, and this rank has long work to do for it.
    fn set_about(&self, ongoing: &mut Ongoing<'_>) {
        // If it came last, it found all announced, and the others may be parked.
        self.settle(ongoing);
        #[cfg(test)]
        tests::agreed(ongoing);
    }

    #[inline]
    fn announce(&self, line: &Line, call: [u64; 2], ongoing: &mut Ongoing<'_>) {
        line[layout::CALL].store(call[0], Ordering::Relaxed);
        line[layout::CALL + 1].store(call[1], Ordering::Relaxed);
        line[0].store(ongoing.sequence, Ordering::Release);
        ongoing.owes_ring = true;
        // While the line is on its way to the peers.
        let _ = ongoing.begun();
    }

    /// Waits for all announcements and compares them with this rank's own.
    #[inline]
    fn agree(&self, call: &Call, ongoing: &mut Ongoing<'_>) -> Result<(), CollectiveError> {
        let sequence = ongoing.sequence;
        let line = layout::announcement(sequence);
        self.await_peers(ongoing, |words| words[line].load(Ordering::Acquire) == sequence)?;
        let mine = call.encode(0);
        for rank in self.peers() {
            let theirs = announced(self.line(rank, sequence));
            if !Call::is_same(mine, theirs) {
                return Err(CollectiveError::Mismatch {
                    operation: call.kind.name(),
                    sequence,
                    mine: call.to_string(),
                    theirs: Call::describe(theirs),
                    rank: rank as u32,
                });
            }
        }
        Ok(())
    }

    /// Where a peer says, in its announcement, that its contribution lies in its pool, or its output, if it lies there.
    #[inline]
    fn place(&self, sequence: u64, peer: usize, what: Place) -> Option<usize> {
        let line = self.line(peer, sequence);
        let lies_there = Call::flags(announced(line)) & what.flag() != 0;
        lies_there.then(|| line[what.word()].load(Ordering::Relaxed) as usize)
    }

    /// Runs a call of which each rank reads what is in its peers' announcements or slots; or, `IN_PLACE`, in their buffers, if these stay as
    /// they are meanwhile. That saves a copy, and takes another meeting.
    fn in_slots<const IN_PLACE: bool>(
        &self,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
        progress: &mut Progress,
        longest: usize,
    ) -> Result<(), CollectiveError> {
        let line = self.line(self.rank, ongoing.sequence);
        let slot = layout::slot(ongoing.sequence, longest);
        let stays = request.input.is_some() || request.call.kind == Kind::Broadcast;
        let place = if IN_PLACE && stays { request.contribution_at(self.pool) } else { None };
        // What is read in place tells nothing of how slots are written faster.
        let mut trial = None;
        match place {
            Some(at) => line[Place::Input.word()].store(at, Ordering::Relaxed),
            None => {
                let begun = trial.insert(progress.paces.begin(request.call.kind, longest));
                copy_in_with(request.contribution(), self.window.local(), slot, begun.stores);
            }
        }
        let mut in_place = place.is_some();
        self.announce(line, request.call.encode(if in_place { Place::Input.flag() } else { 0 }), ongoing);
        self.agree(&request.call, ongoing)?;
        let span = 0..request.span();
        if IN_PLACE {
            let mut parts: SmallVec<[(&Exposed, usize); FEW]> = SmallVec::new();
            for rank in 0..self.size {
                let place = if rank == self.rank { None } else { self.place(ongoing.sequence, rank, Place::Input) };
                in_place |= place.is_some();
                parts.push(match place {
                    Some(at) => self.in_pool(ongoing.operation, rank, at, request.contributed(rank as u32))?,
                    None => (self.window.peer(rank as u32), slot),
                });
            }
            request.complete(span, Stores::Cached, |peer, range| {
                let (memory, at) = parts[peer as usize];
                Source::Exposed(memory, at + range.start)
            });
        } else {
            let part = |peer, range: Range<usize>| Source::Exposed(self.window.peer(peer), slot + range.start);
            request.complete(span, Stores::Cached, part);
        }
        if let Some(trial) = trial {
            progress.paces.end(&trial);
        }
        if in_place {
            return self.finish(ongoing);
        }
        self.settle(ongoing);
        self.check_poison(ongoing.sequence)
    }

    /// Adds to one of this rank's counters and wakes who waits for it.
    fn count(&self, counter: Counter, value: u64) {
        self.window.local().words()[counter.word()].store(value, Ordering::Release);
        self.ring_all();
    }

    /// Waits until a counter of all peers has reached `value`.
    fn await_counter(&self, ongoing: &mut Ongoing<'_>, counter: Counter, value: u64) -> Result<(), CollectiveError> {
        self.await_counter_of(ongoing, counter, value, |_| true)
    }

    /// The same for some of them.
    fn await_counter_of(
        &self,
        ongoing: &mut Ongoing<'_>,
        counter: Counter,
        value: u64,
        of: impl Fn(usize) -> bool,
    ) -> Result<(), CollectiveError> {
        self.await_ranks(ongoing, |rank, words| !of(rank) || words[counter.word()].load(Ordering::Acquire) >= value)
    }

    /// Waits until all peers are ready, one of them is poisoned, or the fabric sees no hope.
    fn await_peers(
        &self,
        ongoing: &mut Ongoing<'_>,
        ready: impl Fn(&[AtomicU64]) -> bool,
    ) -> Result<(), CollectiveError> {
        self.await_ranks(ongoing, |_, words| ready(words))
    }

    fn await_ranks(
        &self,
        ongoing: &mut Ongoing<'_>,
        ready: impl Fn(usize, &[AtomicU64]) -> bool,
    ) -> Result<(), CollectiveError> {
        let mut next = 0;
        let mut look = || {
            while next < self.size && (next == self.rank || ready(next, self.words(next))) {
                next += 1;
            }
            next == self.size
        };
        if look() {
            return Ok(());
        }
        if ongoing.owes_ring {
            if self.busy {
                for _ in 0..EAGER_LOOKS {
                    if look() {
                        return Ok(());
                    }
                }
            }
            self.settle(ongoing);
        }
        let sequence = ongoing.sequence;
        let waited = self.team.fabric.wait(ongoing.operation, self.team.others(), ongoing.deadline.left(), || {
            if look() {
                return Poll::Ready(Ok(()));
            }
            self.check_poison(sequence).map_or_else(|poisoned| Poll::Ready(Err(poisoned)), |()| Poll::Pending)
        });
        waited?
    }

    /// Wakes peers that may be parked, if something was written since the last time.
    fn settle(&self, ongoing: &mut Ongoing<'_>) {
        if std::mem::take(&mut ongoing.owes_ring) {
            self.ring_all();
        }
    }

    fn ring_all(&self) {
        for peer in self.peers() {
            self.window.ring(peer as u32);
        }
    }

    /// Marks this rank's part, so that no peer goes on with this call or a later one.
    pub(crate) fn poison(&self, sequence: u64, why: &str) {
        let mut end = why.len().min(layout::POISON_TEXT_MAX);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        let local = self.window.local();
        local.write(layout::POISON_TEXT, &why.as_bytes()[..end]);
        let words = &local.words()[layout::POISON / 8..];
        words[1].store(end as u64, Ordering::Relaxed);
        words[0].store(sequence, Ordering::Release);
        // The mark is there before the caller uses its memory for anything else.
        fence(Ordering::SeqCst);
        self.ring_all();
    }

    /// Fails if a peer has failed in this call or before it.
    fn check_poison(&self, sequence: u64) -> Result<(), CollectiveError> {
        // What was read of the peers' memory was read before the marks are.
        fence(Ordering::Acquire);
        for peer in self.peers() {
            let failed = self.words(peer)[layout::POISON / 8].load(Ordering::Acquire);
            if failed != 0 && failed <= sequence {
                return Err(CollectiveError::Poisoned { cause: self.poison_of(peer).into() });
            }
        }
        Ok(())
    }

    #[cold]
    fn poison_of(&self, peer: usize) -> String {
        let len = self.words(peer)[layout::POISON / 8 + 1].load(Ordering::Relaxed) as usize;
        let mut text = vec![0; len.min(layout::POISON_TEXT_MAX)];
        self.window.peer(peer as u32).read(layout::POISON_TEXT, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}
