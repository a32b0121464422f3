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
use crate::plan::{Goal, Passing, Pattern, Round, Schedule, Transfer, greeted};
use crate::request::{Request, reduce};
use crate::windows::Ongoing;

/// A call, and what all of its pieces have in common.
struct Work {
    op: ReduceOp,
    dtype: DType,
    /// How partial results are combined, and their type.
    partial: (ReduceOp, DType),
    /// How many are combined in this rank's result.
    ranks: usize,
    rank: usize,
    /// Elements of a rank's part in the output, where this has one of each; else 0.
    part: usize,
    /// Whether this rank gets the result.
    gets: bool,
    /// Partial results are kept apart from the output.
    apart: bool,
    /// What is combined first is combined with the input, and comes into the output so: nothing needs to be there before.
    late: bool,
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
    /// Something has been combined.
    combined: bool,
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
        let (goal, rank) = (passing.goal, self.rank);
        let gets = !matches!(goal, Goal::Reduce(root) if root != rank);
        let apart = goal.combines() && (!gets || partial.1 != call.dtype);
        let ranks = if goal == Goal::Scan { rank + 1 } else { self.size };
        let part = if goal == Goal::AllGather { count } else { 0 };
        let late = goal.combines() && request.input.is_some() && !apart;
        let work = Work { op: call.op, dtype: call.dtype, partial, ranks, rank, part, gets, apart, late };
        if let (Goal::AllGather, Some(input)) = (goal, request.input) {
            request.keep(0..input.bytes().len(), Stores::Cached);
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
            lanes.push(Lane {
                at,
                piece,
                schedule,
                next: 0,
                round: None,
                combined: false,
                partials: Vec::new(),
                results: Vec::new(),
            });
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
    pub(super) fn greeting(&self) -> usize {
        LEAD + self.segment
    }

    /// Tells these ranks what this one calls.
    pub(super) fn greet(
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

    pub(super) fn check_greetings(
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
    fn begin(&self, lane: &mut Lane<'_>, schedule: Schedule, piece: Range<usize>, request: &mut Request<'_>) {
        let within = bytes(&piece, self.dtype);
        if self.apart {
            let own = &request.contribution()[within.clone()];
            lane.partials.resize(piece.len() * self.partial.1.size(), 0);
            match self.partial.1 == self.dtype {
                true => lane.partials.copy_from_slice(own),
                false => widen(self.dtype, own, &mut lane.partials),
            }
        }
        if schedule.goal == Goal::Scan && self.rank == 0 {
            // What is combined of one alone.
            let own = request.input.map_or(Source::Target, |input| Source::Plain(&input.bytes()[within.clone()]));
            let mut output = request.output.values();
            reduce(reduce_to_plain(self.op, self.dtype, &mut output.part(within), [own], Stores::Cached));
        }
        (lane.schedule, lane.piece, lane.next, lane.combined) = (schedule, piece, 0, false);
    }

    /// Where something of a piece lies in the output.
    fn within(&self, lane: &Lane<'_>, range: &Range<usize>) -> Range<usize> {
        // A range lies in one rank's part.
        let (rank, start) = match self.part {
            0 => (0, range.start),
            _ => (range.start / lane.piece.len(), range.start % lane.piece.len()),
        };
        let start = rank * self.part + lane.piece.start + start;
        bytes(&(start..start + range.len()), self.dtype)
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
        // What goes is this rank's contribution: it begins a chain, or its way around a circle, or nothing has come yet.
        let begins = match lane.schedule.pattern {
            Pattern::Chain(_) => self.rank == 0,
            Pattern::Ring => lane.next == 1,
            _ => !lane.combined,
        };
        for (send, place) in round.sends.iter().zip(self.places(lane.at[1], &round.sends)) {
            let inside = bytes(&send.range, self.type_of(send));
            let in_output = || &request.output.bytes()[self.within(lane, &send.range)];
            let data = match send.result {
                true if self.gets => in_output(),
                true => &lane.results[inside],
                false if self.apart => &lane.partials[inside],
                false if self.late && begins => &request.contribution()[self.within(lane, &send.range)],
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
        // Chains and circles combine each element once.
        let first = matches!(lane.schedule.pattern, Pattern::Chain(_) | Pattern::Ring) || !lane.combined;
        lane.combined |= round.receives.iter().any(|receive| !receive.result);
        for (receive, place) in round.receives.iter().zip(self.places(lane.at[0], &round.receives)) {
            let mut output = request.output.values();
            if receive.result {
                output.part(self.within(lane, &receive.range)).copy_out(
                    &messages.incoming,
                    place.start,
                    Stores::Cached,
                );
                continue;
            }
            let theirs = Source::Exposed(&messages.incoming, place.start);
            let own = match request.input {
                Some(input) if self.late && first => Source::Plain(&input.bytes()[self.within(lane, &receive.range)]),
                _ => Source::Target,
            };
            // In rank order, where there is one.
            let sources = if receive.peer < self.rank { [theirs, own] } else { [own, theirs] };
            let (op, dtype) = self.partial;
            let combine = |mut target: ValuesMut<'_>| {
                reduce(reduce_to_plain(op, dtype, &mut target, sources, Stores::Cached));
            };
            match self.apart {
                true => combine(ValuesMut::new(&mut lane.partials[bytes(&receive.range, dtype)])),
                false => combine(output.part(self.within(lane, &receive.range))),
            }
        }
        for range in &round.finished {
            let mut output = request.output.values();
            if !self.apart {
                finish_in_place(self.op, self.dtype, self.ranks, &mut output.part(self.within(lane, range)));
                continue;
            }
            let within = self.within(lane, range);
            let partials = &mut lane.partials[bytes(range, self.partial.1)];
            let mut to = if self.gets {
                output.part(within)
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
