//! Collectives where ranks map one another's memory.
//!
//! A call goes like this. A rank *announces* it: what it calls, and up to 40 bytes of data or where the data lies. It waits
//! for the announcements of those whose data it needs, and compares them with its own ([`announce`]). Only then is data touched:
//!
//! - little of it is in the announcements or in slots beside them, and each rank computes for itself;
//! - between buffers, ranks work straight on each other's memory ([`direct`]), count *done*, and return when nobody reads theirs;
//! - plain memory goes in pieces through the stages ([`staged`]), from which others may still read when a rank returns.
//!
//! A rank that fails marks its part as poisoned before it returns. Whoever waits looks at the marks, and looks once more
//! after the last wait: a rank that was stopped in the middle of a call, while the others gave up on it and used their
//! memory for other things, finds the mark when it goes on.

mod announce;
mod direct;
mod layout;
mod nearby;
mod pace;
mod results;
mod staged;
#[cfg(test)]
mod tests;
mod waits;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use fulmen_fabric::{OpName, RegionRef, Running, Window};
use fulmen_kernels::{Source, Stores, copy_in_with};
use fulmen_memory::{Exposed, Region};
use smallvec::SmallVec;

use crate::CollectiveError;
use crate::call::Kind;
use crate::deadline::Deadline;
use crate::request::Request;
use crate::team::Team;
use announce::History;
pub(crate) use layout::{BOARD, Counter, Cut, GAP, SLOT, STAGE_LEN};

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
    history: History,
    /// Pieces that all have put on their stages so far, or will.
    pieces: u64,
    /// How all that is put where this rank puts something next was cut, since it last waited for all to have taken it; none if that is not known.
    cut: Option<Cut>,
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
    running: Running,
    has_begun: bool,
}

impl<'a> Ongoing<'a> {
    pub(crate) fn new(
        operation: OpName,
        sequence: u64,
        deadline: &'a mut Deadline,
        begin: &'a dyn Fn() -> Running,
    ) -> Ongoing<'a> {
        Ongoing { operation, sequence, deadline, owes_ring: false, begin, running: Running::NONE, has_begun: false }
    }

    /// It is in the record from here on, before it waits for anything.
    #[inline]
    pub(crate) fn begun(&mut self) -> Running {
        if !self.has_begun {
            self.has_begun = true;
            self.running = (self.begin)();
        }
        self.running
    }
}

/// Of so many ranks, what is known of each does not have to be allocated.
pub(crate) const FEW: usize = 16;

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
        windows.await_ranks(&mut ongoing, |_, words| words[layout::HELLO].load(Ordering::Acquire) != 0)?;
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
            return self.in_slots::<false>(request, ongoing, progress, longest);
        }
        if longest < in_slots {
            return self.in_slots::<true>(request, ongoing, progress, longest);
        }
        let history = &mut progress.history;
        self.make_room(ongoing, history, layout::LEAD)?;
        if reduces && longest >= layout::REDUCE_SHARES {
            return self.reduce(request, ongoing, progress);
        }
        let own = self.own_places(request);
        self.announce_places(&request.call, own, ongoing, history);
        if own[0].is_none() && request.contributed(self.rank as u32) > 0 {
            // It can only be read from a stage.
            return self.staged(request, ongoing, progress, false);
        }
        let (alone, root) = (request.call.kind.is_given_by_one(), request.call.root as usize);
        let agreed = self.agree_on_places(&request.call, own, ongoing, history, |peer| !alone || peer == root)?;
        match self.contributions(request, &agreed) {
            Some(inputs) => self.pull(request, ongoing, inputs),
            None => self.staged(request, ongoing, progress, true),
        }
    }

    /// The words of a rank's part.
    #[inline]
    fn words(&self, rank: usize) -> &[AtomicU64] {
        self.window.peer(rank as u32).words()
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

    /// All whom this rank needs have announced a call, and it has long work to do for it.
    fn set_about(&self, ongoing: &mut Ongoing<'_>) {
        // If it came last, it found all announced, and the others may be parked.
        self.settle(ongoing);
        #[cfg(test)]
        tests::agreed(ongoing);
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
        let (sequence, slot) = (ongoing.sequence, layout::slot(ongoing.sequence, longest));
        let kind = request.call.kind;
        let least = layout::turning(kind == Kind::AllReduce);
        let turns = longest >= least && layout::take_turns(self.size, self.busy) && kind.is_mutual();
        let in_part_of = |rank: usize| {
            let whose = if turns { layout::whose_slot(sequence, rank) } else { rank };
            self.window.peer(whose as u32)
        };
        let writes = longest > layout::INLINE_MAX && request.contributed(self.rank as u32) > 0;
        self.make_room(ongoing, &mut progress.history, if writes { layout::SLOT_LEAD } else { layout::LEAD })?;
        let stays = request.input.is_some() || request.call.kind == Kind::Broadcast;
        let place = if IN_PLACE && stays { request.contribution_at(self.pool) } else { None };
        // What is read in place tells nothing of how slots are written faster.
        let mut trial = None;
        match place {
            Some(at) => self.line(self.rank, ongoing.sequence)[Place::Input.word()].store(at, Ordering::Relaxed),
            None => {
                let stores = match turns {
                    true => Stores::Cached,
                    false => trial.insert(progress.paces.begin(request.call.kind, longest)).stores,
                };
                copy_in_with(request.contribution(), in_part_of(self.rank), slot, stores);
            }
        }
        let mut in_place = place.is_some();
        let history = &mut progress.history;
        self.announce(request.call.encode(if in_place { Place::Input.flag() } else { 0 }), ongoing, history);
        // Others have read what the call before wrote when they come to this one.
        let together = trial.as_ref().is_some_and(|trial| trial.meets);
        self.agree(&request.call, ongoing, history, |peer| together || request.awaits(peer as u32))?;
        let span = 0..request.span();
        if IN_PLACE {
            let mut parts: SmallVec<[(&Exposed, usize); FEW]> = SmallVec::new();
            for rank in 0..self.size {
                let awaited = rank != self.rank && request.awaits(rank as u32);
                let place = if awaited { self.place(ongoing.sequence, rank, Place::Input) } else { None };
                in_place |= place.is_some();
                parts.push(match place {
                    Some(at) => self.in_pool(ongoing.operation, rank, at, request.contributed(rank as u32))?,
                    None => (in_part_of(rank), slot),
                });
            }
            request.complete(span, Stores::Cached, |peer, range| {
                let (memory, at) = parts[peer as usize];
                Source::Exposed(memory, at + range.start)
            });
        } else {
            let part = |peer: u32, range: Range<usize>| Source::Exposed(in_part_of(peer as usize), slot + range.start);
            request.complete(span, Stores::Cached, part);
        }
        if let Some(trial) = trial {
            progress.paces.end(&trial);
        }
        if in_place {
            let used = |by: usize| place.is_some() && !request.needed(self.rank as u32, by as u32).is_empty();
            return self.finish(ongoing, used);
        }
        self.settle(ongoing);
        self.check_poison(ongoing.sequence)
    }
}
