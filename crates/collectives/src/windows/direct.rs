//! Work on the peers' memory itself.

use std::ops::Range;
use std::sync::atomic::Ordering;

use fulmen_fabric::{FabricError, OpName};
use fulmen_kernels::{Source, Stores, reduce_to_all};
use fulmen_memory::Exposed;
use smallvec::SmallVec;

use super::announce::Agreed;
use super::layout::Counter;
use super::results::stores_for;
use super::{FEW, Ongoing, Places, Progress, Windows};
use crate::CollectiveError;
use crate::call::{Call, Kind};
use crate::request::{Output, Request, reduce, sources};

impl Windows {
    /// The pools and places of all contributions that are read, if all of them lie in pools, and no rank writes into its own
    /// while others read it.
    pub(super) fn contributions<'a>(&self, request: &Request<'_>, agreed: &'a Agreed) -> Option<&'a Places> {
        let read = |rank: usize| request.contributed(rank as u32) > 0;
        let all = (0..self.size).all(|rank| agreed.inputs[rank].is_some() || !read(rank));
        let in_place = (0..self.size).any(|rank| agreed.inputs[rank] == agreed.outputs[rank]);
        let apart = !matches!(request.call.kind, Kind::AllReduce | Kind::Scan) || !in_place;
        (all && apart).then_some(&agreed.inputs)
    }

    /// Every rank reads what it needs from its peers' memory, and none returns while others read its own.
    pub(super) fn pull(
        &self,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
        inputs: &Places,
    ) -> Result<(), CollectiveError> {
        let inputs = self.places(ongoing.operation, inputs, |rank| request.contributed(rank))?;
        let stores = stores_for(request.touched(), request.writers());
        request.complete(0..request.span(), stores, |peer, range| {
            let (pool, at) = inputs[peer as usize];
            Source::Exposed(pool, at + range.start)
        });
        self.finish(ongoing, |peer| !request.needed(self.rank as u32, peer as u32).is_empty())
    }

    /// Tells all that this rank does not work on their memory any more, and waits until those who do so on its own are done.
    pub(super) fn finish(
        &self,
        ongoing: &mut Ongoing<'_>,
        users: impl Fn(usize) -> bool,
    ) -> Result<(), CollectiveError> {
        self.window.local().words()[Counter::Done.word()].store(ongoing.sequence, Ordering::Release);
        ongoing.owes_ring = true;
        self.await_counter(ongoing, Counter::Done, ongoing.sequence, users)?;
        self.settle(ongoing);
        // Before the caller hands memory back: a peer that gave up on this rank may have used its own for other things.
        self.check_poison(ongoing.sequence)
    }

    /// The memory in which each rank's places lie, checked: what a peer announces is not trusted. `len` says how many bytes
    /// of a rank are meant. This rank's own entry is not to be used.
    pub(super) fn places(
        &self,
        operation: OpName,
        places: &Places,
        len: impl Fn(u32) -> usize,
    ) -> Result<SmallVec<[(&Exposed, usize); FEW]>, CollectiveError> {
        let place = |(rank, place): (usize, &Option<usize>)| match rank == self.rank {
            true => Ok((self.window.local(), 0)),
            false => self.in_pool(operation, rank, place.unwrap_or(0), len(rank as u32)),
        };
        places.iter().enumerate().map(place).collect()
    }

    /// So many bytes of a peer's pool, if they lie there.
    #[inline]
    pub(super) fn in_pool(
        &self,
        operation: OpName,
        peer: usize,
        at: usize,
        len: usize,
    ) -> Result<(&Exposed, usize), CollectiveError> {
        let pool = self.pools[peer].as_ref().expect("a peer has a pool");
        if at.checked_add(len).is_none_or(|end| end > pool.len()) {
            let (rank, offset) = (self.team.in_fabric(peer), at as u64);
            let (len, region) = (len as u64, pool.len() as u64);
            return Err(FabricError::OutOfBounds { op: operation, rank, offset, len, region }.into());
        }
        Ok((pool, at))
    }

    /// An all-reduce, or a reduce, of so much that each rank had better reduce its share for all.
    pub(super) fn reduce(
        &self,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
        progress: &mut Progress,
    ) -> Result<(), CollectiveError> {
        let call = request.call;
        let share = (request.vector(), stores_for(request.touched(), request.writers()));
        let [input, output] = self.own_places(request);
        let gets = gets(&call, self.rank);
        if input.is_none() || gets && output.is_none() {
            self.announce_places(&call, [None; 2], ongoing, &progress.history);
            // Whoever has none for what it contributes has it read from a stage.
            return self.staged(request, ongoing, progress, false);
        }
        let direct = |agreed: &Agreed| agreed.inputs.iter().all(Option::is_some);
        if !gets {
            self.announce_places(&call, [input, None], ongoing, &progress.history);
            let agreed = self.agree_on_places(&call, [input, None], ongoing, &mut progress.history, |_| true)?;
            if direct(&agreed) {
                self.reduce_share(&call, share, ongoing, Source::Plain(request.contribution()), None, &agreed)?;
                return self.finish(ongoing, |_| true);
            }
            return self.staged(request, ongoing, progress, true);
        }
        // Peers write into the output as soon as they have read the announcement.
        let Output::Buffer(memory) = &mut request.output else { unreachable!("it lies in the pool") };
        let Some(lent) = memory.lend() else { unreachable!("it lies in the pool") };
        self.announce_places(&call, [input, output], ongoing, &progress.history);
        let agreed = self.agree_on_places(&call, [input, output], ongoing, &mut progress.history, |_| true)?;
        if direct(&agreed) {
            let own = match request.input {
                Some(input) => Source::Plain(input.bytes()),
                None => Source::Exposed(lent.exposed(), 0),
            };
            self.reduce_share(&call, share, ongoing, own, Some(lent.exposed()), &agreed)?;
            self.finish(ongoing, |_| true)?;
            lent.finish();
            return Ok(());
        }
        // Some rank's memory is plain, so nobody writes into another's.
        lent.finish();
        self.staged(request, ongoing, progress, true)
    }

    /// Reduces this rank's share of the vector, of so many bytes, from all ranks' inputs into the outputs of all ranks that get the
    /// result, of which `output` is this one's. The shares are apart, so that nobody waits for anybody meanwhile.
    fn reduce_share(
        &self,
        call: &Call,
        (len, stores): (usize, Stores),
        ongoing: &Ongoing<'_>,
        own: Source<'_>,
        output: Option<&Exposed>,
        agreed: &Agreed,
    ) -> Result<(), CollectiveError> {
        let inputs = self.places(ongoing.operation, &agreed.inputs, |_| len)?;
        let written = |rank| if gets(call, rank as usize) { len } else { 0 };
        let outputs = self.places(ongoing.operation, &agreed.outputs, written)?;
        for peer in self.peers().filter(|peer| gets(call, *peer)) {
            // What a peer says is not trusted.
            let distance = inputs[peer].1.abs_diff(outputs[peer].1);
            if (1..len).contains(&distance) {
                let (op, rank) = (ongoing.operation, self.team.in_fabric(peer));
                let problem = "its input and its output overlap in part".into();
                return Err(FabricError::PeerFailed { op, rank, problem }.into());
            }
        }
        let Range { start, end } = self.share(self.rank, len);
        let peers = self.peers().filter(|peer| gets(call, *peer)).map(|peer| outputs[peer]);
        let all = output.map(|output| (output, 0)).into_iter().chain(peers);
        let targets: SmallVec<[(&Exposed, usize); FEW]> = all.map(|(memory, at)| (memory, at + start)).collect();
        // What was read just now is in the caches: there, writing past them costs more, and in place all of it was.
        let stores = if self.in_place(own, agreed) { Stores::Cached } else { stores };
        let own = match own {
            Source::Plain(bytes) => Source::Plain(&bytes[start..end]),
            Source::Exposed(memory, from) => Source::Exposed(memory, from + start),
            Source::Target => Source::Target,
        };
        let sources = sources(self.rank as u32, self.size as u32, own, |peer| {
            let (pool, from) = inputs[peer as usize];
            Source::Exposed(pool, from + start)
        });
        // One pass: what was read is in registers, from which it goes to all.
        reduce(reduce_to_all(call.op, call.dtype, &targets, end - start, sources, stores));
        Ok(())
    }

    /// Whether some rank reduces in place: its input is overwritten with the result.
    fn in_place(&self, own: Source<'_>, agreed: &Agreed) -> bool {
        let peers = self.peers().any(|peer| agreed.inputs[peer] == agreed.outputs[peer]);
        peers || !matches!(own, Source::Plain(_))
    }
}

/// Whether a rank gets the result of a reduction.
fn gets(call: &Call, rank: usize) -> bool {
    call.kind == Kind::AllReduce || rank == call.root as usize
}
