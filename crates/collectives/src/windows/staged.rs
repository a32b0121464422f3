//! Plain memory, in pieces through the ranks' stages.

use std::ops::Range;
use std::sync::atomic::Ordering;

use fulmen_kernels::{Source, Stores, copy_in_with, reduce_to_both};
use fulmen_memory::Exposed;
use smallvec::SmallVec;

use super::layout::{self, Counter, Cut, Flow};
use super::results::stores_for;
use super::{FEW, Ongoing, Progress, Windows};
use crate::CollectiveError;
use crate::call::Kind;
use crate::request::{Request, reduce, sources};

/// Some of the ranks: for each of them, whether it is one.
type Ranks = SmallVec<[bool; FEW]>;

/// Up to so many ranks and so many bytes, each rank reduces all for itself: that needs one meeting less. Else each reduces its share of a piece
/// for all. All-reduces of two ranks that are so long take the same time either way, and those of 48 KiB 1.15 of it if each reduces all.
const WHOLE: usize = 3;
const WHOLE_LEN: usize = 32 << 10;

/// Bytes that go on the stage, and from the nearest cache also to where the rank itself needs them, before it goes on to the next ones. (Of two
/// ranks, all-gathers of 32 KiB to 4 MiB take 0.92 to 0.95 of the time that they take if their own part is copied with the others'.)
const KEPT: usize = 16 << 10;

/// Where systems have larger pages, some are touched more than once.
const PAGE: usize = 4096;

/// A call's data, cut into pieces. They are counted from call to call.
#[derive(Clone, Copy)]
struct Pieces {
    /// Pieces before this call.
    base: u64,
    /// Bytes of the data, and of a piece of it.
    len: usize,
    each: usize,
    cut: Cut,
    /// Each rank reduces its share of a piece for all.
    shares: bool,
}

impl Pieces {
    fn count(self) -> u64 {
        self.len.div_ceil(self.each) as u64
    }

    /// Which bytes of the data a piece of this call has.
    fn range(self, piece: u64) -> Range<usize> {
        let start = (piece - self.base) as usize * self.each;
        start..(start + self.each).min(self.len)
    }
}

impl Windows {
    /// Runs a call that was announced, whatever memory the ranks have. `agreed`: those that have something for this rank have announced it,
    /// too.
    ///
    /// At any time, piece t is put on the stage, piece t - 1 is taken (or reduced, and t - 2 taken), so that a rank that
    /// comes late to one piece need not make the others wait. A rank that has put and taken all returns: what lies on its stage stays there
    /// until it has been taken.
    pub(super) fn staged(
        &self,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
        progress: &mut Progress,
        agreed: bool,
    ) -> Result<(), CollectiveError> {
        let (kind, base) = (request.call.kind, progress.pieces);
        if base == 0 {
            self.touch_stages();
        }
        let len = request.span();
        let shares = kind == Kind::AllReduce && (self.size > WHOLE || len > WHOLE_LEN);
        let flow = match shares {
            true => Flow::Shares,
            false if kind.has_root() => Flow::Rooted,
            false if kind.is_mutual() => Flow::Mutual,
            false => Flow::Partial,
        };
        // Where ranks need different parts, a stage holds a piece of each rank's.
        let parts = if kind.is_by_parts() { self.size } else { 1 };
        let cut = Cut::of(len * parts, flow, self.size, self.busy);
        // Whole lines, and at least one element of the longest type.
        let each = if parts > 1 { (cut.piece / parts / 64 * 64).max(8) } else { cut.piece };
        let pieces = Pieces { base, len, each, cut, shares };
        let end = base + pieces.count();
        // The stage is in the caches, too, where it is written and where it is read. (Without, broadcasts of 10 to 12 MiB go through caches of 32 MiB,
        // which takes twice as long.)
        let stores = stores_for(request.touched() + 2 * cut.way(), request.writers());
        let trial = (!cut.turns).then(|| progress.paces.begin(kind, request.longest()));
        let onto_stage = trial.as_ref().map_or(Stores::Cached, |trial| trial.stores);
        // Who gives all runs ahead as far as there is room, and who only takes has nothing to tell of. They wait for none but those with
        // whom they have to do: others may wait for them.
        let needs = |of: usize, by: usize| of != by && !request.needed(of as u32, by as u32).is_empty();
        let givers: Ranks = (0..self.size).map(|peer| needs(peer, self.rank)).collect();
        let takers: Ranks = (0..self.size).map(|peer| needs(self.rank, peer)).collect();
        let (gives, takes) = (takers.contains(&true), givers.contains(&true));
        // What was put there in another cut lies across any of this one's places.
        let recut = gives && progress.cut.replace(cut) != Some(cut);
        if !gives && layout::take_turns(self.size, self.busy) {
            // The other rank may put something on this one's stage.
            progress.cut.take_if(|before| *before != cut);
        }
        let lag = if shares { 2 } else { 1 };
        for piece in base..end + lag {
            if piece < end && gives {
                // What lay there may be an earlier call's, and have been for others.
                let room = (piece + 1).saturating_sub(cut.places).max(if recut { base } else { 0 });
                self.await_counter(ongoing, Counter::Taken, room, |peer| takers[peer] || room <= base)?;
                self.put(request, (pieces, piece), (stores, onto_stage));
            }
            if piece == base && !agreed {
                // Others come to this call while its first piece is put.
                self.agree(&request.call, ongoing, &mut progress.history, |peer| request.awaits(peer as u32))?;
                self.set_about(ongoing);
            }
            if shares && (base + 1..=end).contains(&piece) {
                let piece = piece - 1;
                self.await_counter(ongoing, Counter::Posted, piece + 1, |_| true)?;
                self.reduce_staged_share(request, (pieces, piece), (stores, onto_stage));
                self.count(Counter::Reduced, piece + 1);
            }
            if let Some(piece) = piece.checked_sub(lag).filter(|piece| *piece >= base) {
                if shares {
                    self.await_counter(ongoing, Counter::Reduced, piece + 1, |_| true)?;
                    self.take_shares(request, (pieces, piece), stores);
                } else {
                    self.await_counter(ongoing, Counter::Posted, piece + 1, |peer| givers[peer])?;
                    self.take(request, (pieces, piece), stores);
                }
                if takes {
                    self.count(Counter::Taken, piece + 1);
                }
            }
        }
        if !takes {
            self.count(Counter::Taken, end);
        }
        progress.pieces = end;
        if let Some(trial) = trial.filter(|trial| trial.meets) {
            // What one rank writes faster, others may read slower.
            self.await_counter(ongoing, Counter::Taken, end, |_| true)?;
            progress.paces.end(&trial);
        }
        self.settle(ongoing);
        self.check_poison(ongoing.sequence)
    }

    /// The system gives pages when they are first used, which takes longer than what they are used for.
    pub(super) fn touch_stages(&self) {
        let stage = layout::stage(self.size);
        for rank in 0..self.size {
            for word in self.words(rank)[stage.start / 8..stage.end / 8].iter().step_by(PAGE / 8) {
                match rank == self.rank {
                    true => word.store(0, Ordering::Relaxed),
                    false => _ = word.load(Ordering::Relaxed),
                }
            }
        }
    }

    /// Puts this rank's piece on its stage, where nobody needs any more what lay there.
    fn put(&self, request: &mut Request<'_>, (pieces, piece): (Pieces, u64), (stores, onto_stage): (Stores, Stores)) {
        let range = pieces.range(piece);
        let (stage, at) = self.stage(pieces, piece, self.rank);
        if pieces.shares {
            // Of its own share nobody else has need.
            let (contribution, own) = (request.contribution(), self.share(self.rank, range.len()));
            for of in [0..own.start, own.end..range.len()] {
                copy_in_with(
                    &contribution[range.start + of.start..range.start + of.end],
                    stage,
                    at + of.start,
                    onto_stage,
                );
            }
        } else {
            let kind = request.call.kind;
            let parts = if kind.is_by_parts() { self.size as u32 } else { 1 };
            let keeps = kind == Kind::AllGather && request.input.is_some();
            for rank in (0..parts).filter(|rank| parts == 1 || *rank != self.rank as u32) {
                // All that need all of it need the same.
                let of = if parts > 1 { request.needed_in(&range, self.rank as u32, rank) } else { range.clone() };
                let len = request.contribution().len();
                let of = of.start.min(len)..of.end.min(len);
                let step = if keeps { KEPT } else { of.len().max(1) };
                for from in of.clone().step_by(step) {
                    let part = from..(from + step).min(of.end);
                    let at = at + if parts > 1 { self.part_for(self.rank, rank as usize) * range.len() } else { 0 };
                    let at = at + from - of.start;
                    copy_in_with(&request.contribution()[part.clone()], stage, at, onto_stage);
                    if keeps {
                        request.keep(part, stores);
                    }
                }
            }
        }
        self.count(Counter::Posted, piece + 1);
    }

    /// Computes this rank's output of a piece from the stages.
    fn take(&self, request: &mut Request<'_>, (pieces, piece): (Pieces, u64), stores: Stores) {
        let range = pieces.range(piece);
        let (len, by_parts) = (range.len(), request.call.kind.is_by_parts());
        request.complete(range, stores, |peer, _| {
            // What each rank put there begins with what the range begins with, or holds a part for each other rank.
            let part = if by_parts { self.part_for(peer as usize, self.rank) * len } else { 0 };
            let (stage, at) = self.stage(pieces, piece, peer as usize);
            Source::Exposed(stage, at + part)
        });
    }

    /// Which of the parts that a rank puts on a stage is for another one.
    fn part_for(&self, from: usize, to: usize) -> usize {
        (to + self.size - from - 1) % self.size
    }

    /// Where a rank puts its piece.
    fn stage(&self, pieces: Pieces, piece: u64, rank: usize) -> (&Exposed, usize) {
        let whose = pieces.cut.whose(piece, rank);
        (self.window.peer(whose as u32), pieces.cut.at(piece))
    }

    /// Reduces this rank's share of a piece, into its output and onto its stage, where it has put nothing of its own.
    fn reduce_staged_share(
        &self,
        request: &mut Request<'_>,
        (pieces, piece): (Pieces, u64),
        (stores, onto_stage): (Stores, Stores),
    ) {
        let range = pieces.range(piece);
        let (call, share) = (request.call, self.share(self.rank, range.len()));
        let of = range.start + share.start..range.start + share.end;
        let own = request.input.map_or(Source::Target, |input| Source::Plain(&input.bytes()[of.clone()]));
        let stage = |rank: u32| {
            let (memory, at) = self.stage(pieces, piece, rank as usize);
            (memory, at + share.start)
        };
        let sources = sources(self.rank as u32, self.size as u32, own, |peer| {
            let (memory, at) = stage(peer);
            Source::Exposed(memory, at)
        });
        let (memory, at) = stage(self.rank as u32);
        let mut output = request.output.values();
        let mut output = output.part(of);
        reduce(reduce_to_both(call.op, call.dtype, (&mut output, stores), (memory, at, onto_stage), sources));
    }

    /// Copies the other ranks' shares of a piece from where they were reduced.
    fn take_shares(&self, request: &mut Request<'_>, (pieces, piece): (Pieces, u64), stores: Stores) {
        let range = pieces.range(piece);
        let len = range.len();
        let mut output = request.output.values();
        for rank in (self.rank + 1..self.size).chain(0..self.rank) {
            let share = self.share(rank, len);
            let mut to = output.part(range.start + share.start..range.start + share.end);
            let (stage, at) = self.stage(pieces, piece, rank);
            to.copy_out(stage, at + share.start, stores);
        }
    }
}
