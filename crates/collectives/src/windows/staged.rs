//! Plain memory, in pieces through the ranks' stages.

use std::ops::Range;
use std::time::Instant;

use fulmen_kernels::{Source, Stores, copy_in_with, reduce_to_exposed};

use super::cache::stores_for;
use super::layout::{self, Counter, PIECE, PIECES};
use super::{Ongoing, Progress, Windows};
use crate::CollectiveError;
use crate::call::Kind;
use crate::request::{Request, reduce, sources};

/// Up to so many ranks, each reduces whole pieces for itself: that needs one meeting a piece. With more of them, each
/// reduces its share of a piece for all.
const WHOLE: usize = 3;

impl Windows {
    /// Runs a call on which all have agreed, whatever memory they have.
    ///
    /// At any time, piece t is put on the stage, piece t - 1 is taken (or reduced, and t - 2 taken), so that a rank that
    /// comes late to one piece need not make the others wait.
    pub(super) fn staged(
        &self,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
        progress: &mut Progress,
    ) -> Result<(), CollectiveError> {
        let call = request.call;
        let len = request.span();
        // Where ranks need different parts, a stage holds a piece of each rank's.
        let each = match call.kind.is_by_parts() {
            // Whole lines, and at least one element of the longest type.
            true => (PIECE / self.size / 64 * 64).max(8),
            false => PIECE,
        };
        let shares = call.kind == Kind::AllReduce && self.size > WHOLE;
        let stores = stores_for(request.touched());
        let (base, begun) = (progress.pieces, Instant::now());
        let pace = progress.paces.of(call.kind, len);
        let (onto_stage, measured) = pace.next();
        let pieces = len.div_ceil(each) as u64;
        let range = |piece: u64| {
            let start = piece as usize * each;
            start..(start + each).min(len)
        };
        let lag = if shares { 2 } else { 1 };
        for step in 0..pieces + lag {
            if step < pieces {
                self.put(request, ongoing, base + step, range(step), onto_stage)?;
            }
            if shares && (1..=pieces).contains(&step) {
                let piece = base + step - 1;
                self.await_counter(ongoing, Counter::Posted, piece + 1)?;
                self.reduce_on_stage(request, piece, range(step - 1).len());
                self.count(Counter::Reduced, piece + 1);
            }
            if let Some(taken) = step.checked_sub(lag) {
                let piece = base + taken;
                if shares {
                    self.await_counter(ongoing, Counter::Reduced, piece + 1)?;
                    self.take_shares(request, piece, range(taken), stores);
                } else {
                    self.await_counter(ongoing, Counter::Posted, piece + 1)?;
                    self.take(request, piece, range(taken), stores);
                }
                self.count(Counter::Taken, piece + 1);
            }
        }
        progress.pieces = base + pieces;
        if measured {
            // What one rank writes faster, others may read slower.
            self.await_counter(ongoing, Counter::Taken, base + pieces)?;
            pace.took(onto_stage, len, begun.elapsed());
        }
        self.check_poison(ongoing.sequence)
    }

    /// Puts this rank's piece on its stage, as soon as nobody needs what lay there.
    fn put(
        &self,
        request: &Request<'_>,
        ongoing: &mut Ongoing<'_>,
        piece: u64,
        range: Range<usize>,
        stores: Stores,
    ) -> Result<(), CollectiveError> {
        let contribution = request.contribution();
        if !contribution.is_empty() {
            self.await_counter(ongoing, Counter::Taken, (piece + 1).saturating_sub(PIECES))?;
            let (stage, at) = (self.window.local(), layout::stage(piece));
            let parts = if request.call.kind.is_by_parts() { self.size as u32 } else { 1 };
            for rank in 0..parts {
                // All that need all of it need the same.
                let of = if parts > 1 { request.needed_in(&range, self.rank as u32, rank) } else { range.clone() };
                let part = &contribution[of.start.min(contribution.len())..of.end.min(contribution.len())];
                copy_in_with(part, stage, at + rank as usize * range.len(), stores);
            }
        }
        self.count(Counter::Posted, piece + 1);
        Ok(())
    }

    /// Computes this rank's output of a piece from the stages.
    fn take(&self, request: &mut Request<'_>, piece: u64, range: Range<usize>, stores: Stores) {
        let at = layout::stage(piece);
        // What each rank put there begins with what the range begins with, or holds a part for each rank.
        let before = if request.call.kind.is_by_parts() { at + self.rank * range.len() } else { at };
        request.complete(range, stores, |peer, _| Source::Exposed(self.window.peer(peer), before));
    }

    /// This rank's share of a piece of `len` bytes: its bytes in the piece.
    fn share(&self, rank: usize, len: usize) -> Range<usize> {
        let share = len.div_ceil(self.size).next_multiple_of(64);
        let start = (share * rank).min(len);
        start..(start + share).min(len)
    }

    /// Reduces this rank's share of a piece, in its own stage: nobody else reads that part of it before.
    fn reduce_on_stage(&self, request: &Request<'_>, piece: u64, len: usize) {
        let (call, at, share) = (request.call, layout::stage(piece), self.share(self.rank, len));
        let stage = |rank: u32| Source::Exposed(self.window.peer(rank), at + share.start);
        let own = stage(self.rank as u32);
        let sources = sources(self.rank as u32, self.size as u32, own, stage);
        let to = at + share.start..at + share.end;
        reduce(reduce_to_exposed(call.op, call.dtype, self.window.local(), to, &sources, Stores::Cached));
    }

    /// Copies all shares of a piece from where they were reduced.
    fn take_shares(&self, request: &mut Request<'_>, piece: u64, range: Range<usize>, stores: Stores) {
        let (at, len) = (layout::stage(piece), range.len());
        let mut output = request.output.values();
        for rank in (self.rank..self.size).chain(0..self.rank) {
            let share = self.share(rank, len);
            let mut to = output.part(range.start + share.start..range.start + share.end);
            to.copy_out(self.window.peer(rank as u32), at + share.start, stores);
        }
    }
}
