//! Calls in which partial results and results are passed on, by a [`Schedule`].
//!
//! The vector goes in pieces, each in rounds. Two pieces are under way at a time, so that one's messages travel while the other's are
//! combined. Of each rank with which this one will have to do, and of its neighbours, it hears first what it calls; what comes from a
//! rank that calls something else is never used. Neighbours are among them in every call of any kind, so that ranks that call different
//! things do not wait for one another.

use std::ops::Range;

use fulmen_kernels::{DType, ReduceOp, Source, Stores, ValuesMut, finish, finish_in_place, reduce_to_plain, widen};
use smallvec::SmallVec;

use super::exchange::Exchange;
use super::rounds::missing;
use super::{DATA_TAG, HEADER, HEADER_TAG, Half, LEAD, Messages, header};
use crate::CollectiveError;
use crate::plan::{Goal, Passing, Round, Schedule, Transfer, greeted};
use crate::request::{Request, reduce};
use crate::windows::Ongoing;

/// A call, and what all of its pieces have in common.
struct Work {
    op: ReduceOp,
    dtype: DType,
    /// How partial results are combined, and their type.
    partial: (ReduceOp, DType),
    ranks: usize,
    rank: usize,
    /// Whether this rank gets the result.
    gets: bool,
    /// Partial results are kept apart from the output.
    apart: bool,
}

/// A piece under way.
struct Lane<'a> {
    /// Where its part of the group's memory begins, incoming and outgoing.
    at: [usize; 2],
    /// Elements.
    piece: Range<usize>,
    schedule: Schedule,
    /// Which round comes next.
    next: usize,
    /// What goes on in the one before.
    round: Option<(Round, Exchange<'a>)>,
    /// Partial results, if they are kept apart; and results, if this rank has them for others.
    partials: Vec<u8>,
    results: Vec<u8>,
}

impl Messages {
    /// Runs a call by passing on.
    pub(super) fn run_passing(
        &self,
        passing: &Passing,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
    ) -> Result<(), CollectiveError> {
        let call = request.call;
        let (count, partial) = (request.vector() / call.dtype.size(), call.op.partial(call.dtype));
        let gets = match passing.goal {
            Goal::AllReduce | Goal::Broadcast(_) => true,
            Goal::Reduce(root) => root == self.rank,
        };
        let apart = !matches!(passing.goal, Goal::Broadcast(_)) && (!gets || partial.1 != call.dtype);
        let (ranks, rank) = (self.size, self.rank);
        let work = Work { op: call.op, dtype: call.dtype, partial, ranks, rank, gets, apart };
        if let (false, Some(input)) = (apart, request.input) {
            request.output.values().copy_from(input.bytes(), Stores::Cached);
        }

        let pieces = (0..count).step_by(passing.piece).map(|start| start..(start + passing.piece).min(count));
        let mut pieces = pieces.collect::<Vec<_>>().into_iter();
        let heard = greeted(&passing.schedule(passing.piece.min(count)), rank);
        let (greetings, mut greeted) = (heard.len() * self.greeting(), Some(self.greet(&heard, request, ongoing)?));
        let lane_len = passing.lane;
        let mut lanes: SmallVec<[Lane<'_>; 2]> = SmallVec::new();
        for number in 0..2 {
            let at = [greetings + number * lane_len, LEAD + number * lane_len];
            let (schedule, piece) = (passing.schedule(0), 0..0);
            lanes.push(Lane { at, piece, schedule, next: 0, round: None, partials: Vec::new(), results: Vec::new() });
        }
        let mut live = true;
        while live {
            live = false;
            for lane in &mut lanes {
                if let Some((round, exchange)) = lane.round.take() {
                    if let Some(first) = greeted.take() {
                        self.check_greetings(&heard, first, request, ongoing)?;
                    }
                    work.end(self, lane, &round, exchange, request, ongoing)
                        .map_err(|error| self.not_heard(error, &heard))?;
                }
                if lane.next == lane.schedule.rounds() {
                    let Some(piece) = pieces.next() else { continue };
                    work.begin(lane, passing.schedule(piece.len()), piece, request);
                }
                let round = lane.schedule.round(rank, lane.next);
                lane.next += 1;
                let exchange = work.start(self, lane, &round, request)?;
                lane.round = Some((round, exchange));
                live = true;
            }
        }
        match greeted {
            Some(first) => self.check_greetings(&heard, first, request, ongoing),
            None => Ok(()),
        }
    }

    /// Room for a greeting: of a call that does not match, more may come.
    fn greeting(&self) -> usize {
        LEAD + self.segment
    }

    /// Tells these ranks what this one calls.
    fn greet(
        &self,
        peers: &[usize],
        request: &Request<'_>,
        ongoing: &Ongoing<'_>,
    ) -> Result<Exchange<'_>, CollectiveError> {
        let mut exchange = Exchange::new(self, HEADER_TAG, Half(0));
        for (place, peer) in peers.iter().enumerate() {
            let at = place * self.greeting();
            exchange.recv_into(*peer, &self.incoming.slice(at..at + HEADER + self.segment))?;
        }
        self.outgoing.write(0, &header(&request.call, ongoing));
        for peer in peers {
            exchange.send_from(*peer, &self.outgoing.slice(0..HEADER))?;
        }
        Ok(exchange)
    }

    fn check_greetings(
        &self,
        peers: &[usize],
        mut exchange: Exchange<'_>,
        request: &Request<'_>,
        ongoing: &mut Ongoing<'_>,
    ) -> Result<(), CollectiveError> {
        let lens = exchange.receive_all(ongoing)?.to_vec();
        for (place, peer) in peers.iter().enumerate() {
            self.check_header(place * self.greeting(), (*peer, lens[*peer]), HEADER, request, ongoing)?;
        }
        exchange.finish(ongoing)
    }

    /// Names the ranks that may not have called, as far as this one knows: one that has greeted waits for others itself.
    fn not_heard(&self, error: CollectiveError, heard: &[usize]) -> CollectiveError {
        let silent = self.peers().filter(|peer| !heard.contains(peer)).map(|peer| self.team.in_fabric(peer));
        let silent: Vec<u32> = silent.collect();
        if silent.is_empty() { error } else { missing(error, silent.into_iter()) }
    }
}

impl Work {
    /// Takes up a piece.
    fn begin(&self, lane: &mut Lane<'_>, schedule: Schedule, piece: Range<usize>, request: &Request<'_>) {
        if self.apart {
            let own = &request.contribution()[bytes(&piece, self.dtype)];
            lane.partials.resize(piece.len() * self.partial.1.size(), 0);
            match self.partial.1 == self.dtype {
                true => lane.partials.copy_from_slice(own),
                false => widen(self.dtype, own, &mut lane.partials),
            }
        }
        (lane.schedule, lane.piece, lane.next) = (schedule, piece, 0);
    }

    /// The type in which something travels.
    fn type_of(&self, transfer: &Transfer) -> DType {
        if transfer.result { self.dtype } else { self.partial.1 }
    }

    /// Begins a round.
    fn start<'a>(
        &self,
        messages: &'a Messages,
        lane: &Lane<'_>,
        round: &Round,
        request: &Request<'_>,
    ) -> Result<Exchange<'a>, CollectiveError> {
        let mut exchange = Exchange::new(messages, DATA_TAG, Half(0));
        for (receive, place) in round.receives.iter().zip(self.places(lane.at[0], &round.receives)) {
            exchange.recv_into(receive.peer, &messages.incoming.slice(place))?;
        }
        for (send, place) in round.sends.iter().zip(self.places(lane.at[1], &round.sends)) {
            let inside = bytes(&send.range, self.type_of(send));
            let in_output = || {
                let begin = lane.piece.start * self.dtype.size();
                &request.output.bytes()[begin + inside.start..begin + inside.end]
            };
            let data = match send.result {
                true if self.gets => in_output(),
                true => &lane.results[inside],
                false if self.apart => &lane.partials[inside],
                false => in_output(),
            };
            messages.outgoing.write(place.start, data);
            exchange.send_from(send.peer, &messages.outgoing.slice(place))?;
        }
        Ok(exchange)
    }

    /// Ends a round.
    fn end(
        &self,
        messages: &Messages,
        lane: &mut Lane<'_>,
        round: &Round,
        mut exchange: Exchange<'_>,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
    ) -> Result<(), CollectiveError> {
        exchange.receive_all_exact(ongoing)?;
        let begin = lane.piece.start * self.dtype.size();
        let within = |range: &Range<usize>| {
            let inside = bytes(range, self.dtype);
            begin + inside.start..begin + inside.end
        };
        for (receive, place) in round.receives.iter().zip(self.places(lane.at[0], &round.receives)) {
            let mut output = request.output.values();
            if receive.result {
                output.part(within(&receive.range)).copy_out(&messages.incoming, place.start, Stores::Cached);
                continue;
            }
            let theirs = Source::Exposed(&messages.incoming, place.start);
            // In rank order, where there is one.
            let sources = match receive.peer < self.rank {
                true => [theirs, Source::Target],
                false => [Source::Target, theirs],
            };
            let (op, dtype) = self.partial;
            let combine = |mut target: ValuesMut<'_>| {
                reduce(reduce_to_plain(op, dtype, &mut target, sources, Stores::Cached));
            };
            match self.apart {
                true => combine(ValuesMut::new(&mut lane.partials[bytes(&receive.range, dtype)])),
                false => combine(output.part(within(&receive.range))),
            }
        }
        for range in &round.finished {
            let mut output = request.output.values();
            if !self.apart {
                finish_in_place(self.op, self.dtype, self.ranks, &mut output.part(within(range)));
                continue;
            }
            let partials = &mut lane.partials[bytes(range, self.partial.1)];
            let mut to = if self.gets {
                output.part(within(range))
            } else {
                lane.results.resize(lane.piece.len() * self.dtype.size(), 0);
                ValuesMut::new(&mut lane.results[bytes(range, self.dtype)])
            };
            if self.partial.1 == self.dtype {
                to.copy_from(partials, Stores::Cached);
                finish_in_place(self.op, self.dtype, self.ranks, &mut to);
            } else {
                finish(self.op, self.dtype, self.ranks, partials, &mut to);
            }
        }
        exchange.finish(ongoing)
    }

    /// Where each of these lies in a lane's memory.
    fn places(&self, at: usize, transfers: &[Transfer]) -> impl Iterator<Item = Range<usize>> {
        transfers.iter().scan(at, |next, transfer| {
            let start = *next;
            let end = start + transfer.range.len() * self.type_of(transfer).size();
            *next = end.next_multiple_of(64);
            Some(start..end)
        })
    }
}

/// Elements as bytes.
fn bytes(range: &Range<usize>, dtype: DType) -> Range<usize> {
    range.start * dtype.size()..range.end * dtype.size()
}
