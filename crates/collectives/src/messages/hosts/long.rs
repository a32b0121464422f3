//! Long all-reduces, reduces, broadcasts, all-gathers and reduce-scatters: shares go from host to host.
//!
//! The vector goes in pieces over the stages of the ranks of each host. Some of these (*columns*, as many on each host) have a share of each piece
//! each: a column combines what the ranks of its host contribute with what comes from the same column of the host before, and passes that on to
//! the next one. The last host's are the results, which come back the same way; each column puts its own on its stage, from where the others take
//! it. What is broadcast are results from the start, of the host of the rank that gives them. Where each rank has a part, the pieces of these go as
//! broadcasts or reduces of their own, those of all ranks in turn. Several pieces are under way at a time.

use std::ops::Range;

use fulmen_kernels::{
    DType, ReduceOp, Source, Stores, ValuesMut, copy_in_with, finish, finish_in_place, reduce_to_plain, widen,
};
use smallvec::SmallVec;

use super::Nearby;
use crate::CollectiveError;
use crate::messages::exchange::Exchange;
use crate::messages::{DATA_TAG, FORWARD_TAG, Half, LEAD, Messages};
use crate::plan::{Division, Goal, TALKS};
use crate::request::{Request, reduce};
use crate::windows::{Counter, Cut, FEW, Ongoing, Progress};

/// The part of a piece of so many bytes that a column has.
pub(crate) fn column_share(piece: usize, columns: usize, column: usize) -> Range<usize> {
    let each = piece.div_ceil(columns).next_multiple_of(64);
    let start = (each * column).min(piece);
    start..(start + each).min(piece)
}

/// A piece, from its place in the vector on; or in those of all ranks, where each has a part.
#[derive(Clone)]
struct Piece {
    /// Counted from call to call.
    number: u64,
    /// Whose part it is of, if each has one.
    owner: usize,
    range: Range<usize>,
    /// Where it lies on the stages.
    stage: usize,
    lane: usize,
}

/// What is under way of a piece.
#[derive(Default)]
struct Lane<'a> {
    /// Partial results of the host before, and results of the one beside this one that has them sooner.
    partials: Option<Exchange<'a>>,
    results: Option<Exchange<'a>>,
    /// What goes.
    going: SmallVec<[Exchange<'a>; 2]>,
}

/// What a rank does with a piece.
struct Way {
    /// Whether one rank gives all, and which one if it is of this host.
    given: bool,
    giver: Option<usize>,
    /// Whether this rank gets the results.
    gets: bool,
    /// Of this rank's column, from whom partial results come and to whom they go, and the same of results.
    partials_from: Option<usize>,
    partials_to: Option<usize>,
    results_from: Option<usize>,
    results_to: SmallVec<[usize; 2]>,
    /// The tag of those that come: a host passes those of others on later than it sends its own.
    tag: u64,
    /// Results begin on this host; it needs them.
    has_results: bool,
    needs_results: bool,
}

/// A call.
struct Long<'a> {
    messages: &'a Messages,
    nearby: &'a Nearby,
    /// For all pieces; or by the rank whose part they are of.
    ways: Vec<Way>,
    /// Bytes of a part.
    part: usize,
    /// Where what this rank contributes begins, and where what it gets does, if it has no more than its part there.
    contributes_from: usize,
    gets_from: usize,
    /// Its own part is to come into what it gets.
    keeps: bool,
    column: Option<usize>,
    columns: usize,
    /// By rank of this host, its column.
    shares: SmallVec<[Option<usize>; FEW]>,
    /// How partial results are combined, their type, and their bytes for each of a result.
    partial: (ReduceOp, DType, usize),
    chunk: usize,
}

/// Memory for what is combined and is not, or not yet, to be in the output.
#[derive(Default)]
struct Apart {
    partials: Vec<u8>,
    /// A contribution, and the same in the longer type.
    bytes: Vec<u8>,
    widened: Vec<u8>,
    results: Vec<u8>,
}

/// Where what was combined is.
#[derive(Clone, Copy)]
enum Combined {
    Nothing,
    Output,
    Partials,
    Results,
}

impl Messages {
    /// Runs a long call.
    pub(super) fn pass_through_hosts(
        &self,
        nearby: &Nearby,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
        progress: &mut Progress,
    ) -> Result<(), CollectiveError> {
        let Nearby { windows, placement, host } = nearby;
        let call = request.call;
        let long = Long::new(self, nearby, request);
        let (part, parts) = (long.part, long.ways.len());
        let Division { piece: step, depth, .. } = placement.divide(part, long.partial.2);
        let (cut, count) = (Cut::of_pieces(step), (part.div_ceil(step) * parts) as u64);
        let (base, free_from) = windows.begin_pieces((&call, cut, count), ongoing, progress)?;
        let partners = placement.partners(self.rank);
        let mut greeted = Some(self.greet(&partners, request, ongoing)?);
        let mut lanes: Vec<Lane<'_>> = (0..depth + 2).map(|_| Lane::default()).collect();
        let mut apart = Apart::default();
        // A piece of each part, and then the next ones.
        let piece = |number: u64| {
            let (owner, within) = (number as usize % parts, number as usize / parts * step);
            let start = owner * part;
            Piece {
                number: base + number,
                owner,
                range: start + within..start + (within + step).min(part),
                stage: cut.at(base + number),
                lane: number as usize % (depth + 2),
            }
        };
        let is_one = |number: &u64| *number < count;
        let unheard = |error| self.unheard(nearby, error, |other| other != *host);
        // A piece is put, combined a step later, its results awaited so many steps after that, and taken one more later.
        for turn in 0..count + depth as u64 + 2 {
            if let Some(put) = Some(turn).filter(is_one).map(piece) {
                let room = (put.number + 1).saturating_sub(cut.places).max(free_from);
                windows.await_counter(ongoing, Counter::Taken, room, |_| true)?;
                long.put(request, &put);
                windows.count(Counter::Posted, put.number + 1);
                long.prepare(&put, &mut lanes[put.lane], ongoing)?;
            }
            if turn == 0 {
                // Others come to this call while its first piece is put.
                nearby.told(windows.begun_pieces(&call, ongoing, progress))?;
            }
            if let Some(combined) = turn.checked_sub(1).filter(is_one).map(piece) {
                if let Some(greeted) = greeted.take() {
                    self.check_greetings(&partners, greeted, request, ongoing).map_err(unheard)?;
                }
                long.combine(request, &combined, (&mut lanes[combined.lane], &mut apart), ongoing)?;
            }
            if let Some(ended) = turn.checked_sub(1 + depth as u64).filter(is_one).map(piece) {
                long.end(request, &ended, &mut lanes[ended.lane], ongoing)?;
            }
            if let Some(taken) = turn.checked_sub(2 + depth as u64).filter(is_one).map(piece) {
                if long.takes(&taken) {
                    let has_share = |local: usize| long.shares[local].is_some();
                    let reduced = windows.await_counter(ongoing, Counter::Reduced, taken.number + 1, has_share);
                    reduced.map_err(unheard)?;
                    long.take(request, &taken);
                }
                windows.count(Counter::Taken, taken.number + 1);
            }
        }
        for exchange in lanes.into_iter().flat_map(|lane| lane.going) {
            exchange.finish(ongoing)?;
        }
        windows.settle(ongoing);
        windows.check_poison(ongoing.sequence)
    }
}

impl<'a> Long<'a> {
    fn new(messages: &'a Messages, nearby: &'a Nearby, request: &Request<'_>) -> Long<'a> {
        let Nearby { placement, host, .. } = nearby;
        let (call, rank, size) = (request.call, messages.rank, messages.size);
        let goal = messages.wanted(request).goal;
        let column = placement.column(rank);
        let at = |host: usize| column.map(|column| placement.at(host, column));
        let way = |goal: Goal| {
            let route = placement.route(goal).expect("it goes from host to host");
            let has_results = *host == route.source;
            let (given, giver, gets) = match goal {
                Goal::Broadcast(root) => (true, placement.ranks(*host).position(|rank| rank == root), true),
                Goal::Reduce(root) => (false, None, rank == root),
                _ => (false, None, true),
            };
            Way {
                given,
                giver,
                gets,
                partials_from: host.checked_sub(1).filter(|_| route.combines).and_then(at),
                partials_to: Some(host + 1).filter(|_| route.combines && !has_results).and_then(at),
                results_from: route.results_from(*host).and_then(at),
                results_to: route.results_to(*host).filter_map(at).collect(),
                tag: if host.abs_diff(route.source) == 1 { DATA_TAG } else { FORWARD_TAG },
                has_results,
                needs_results: route.needs(*host),
            }
        };
        let ways = match goal.has_parts() {
            false => vec![way(goal)],
            true => (0..size).filter_map(|owner| goal.of_part(owner)).map(way).collect(),
        };
        let (op, dtype) = if goal.combines() { call.op.partial(call.dtype) } else { (call.op, call.dtype) };
        let (part, factor) = (request.vector(), dtype.size() / call.dtype.size());
        let (own, apart) = (rank * part, request.input.is_some());
        Long {
            messages,
            nearby,
            ways,
            part,
            contributes_from: if goal == Goal::AllGather { own } else { 0 },
            gets_from: if goal == Goal::ReduceScatter && apart { own } else { 0 },
            keeps: goal == Goal::AllGather && apart,
            column,
            columns: placement.columns(),
            shares: placement.ranks(*host).map(|rank| placement.column(rank)).collect(),
            partial: (op, dtype, factor),
            chunk: placement.divide(part, factor).chunk,
        }
    }

    fn way(&self, piece: &Piece) -> &Way {
        &self.ways[piece.owner]
    }

    /// Whether this rank takes the columns' results from their stages.
    fn takes(&self, piece: &Piece) -> bool {
        let way = self.way(piece);
        way.gets && way.needs_results && way.giver != Some(self.local())
    }

    /// Where some of a piece lies in what this rank contributes, and in what it gets.
    fn in_contribution(&self, range: &Range<usize>) -> Range<usize> {
        range.start - self.contributes_from..range.end - self.contributes_from
    }

    fn in_output(&self, range: &Range<usize>) -> Range<usize> {
        range.start - self.gets_from..range.end - self.gets_from
    }

    /// This column's part of a piece, or nothing.
    fn share(&self, piece: &Piece) -> Range<usize> {
        self.column.map_or(0..0, |column| column_share(piece.range.len(), self.columns, column))
    }

    /// The same in the vector.
    fn within(&self, piece: &Piece) -> Range<usize> {
        let share = self.share(piece);
        piece.range.start + share.start..piece.range.start + share.end
    }

    /// Where a lane begins in the memory for what comes; results lie behind partial results.
    fn incoming(&self, lane: usize) -> [usize; 2] {
        let partials = TALKS * self.messages.greeting() + lane * self.chunk * (self.partial.2 + 1);
        [partials, partials + self.chunk * self.partial.2]
    }

    /// The same in that for what goes, in which either lies.
    fn outgoing(&self, lane: usize) -> usize {
        LEAD + lane * self.chunk * self.partial.2
    }

    /// Puts what this rank contributes to a piece on its stage, but for its own share.
    fn put(&self, request: &mut Request<'_>, piece: &Piece) {
        let way = self.way(piece);
        if way.given && way.giver != Some(self.local()) {
            return;
        }
        let (contribution, stage) = (request.contribution(), self.nearby.windows.part(self.local()));
        let own = self.share(piece);
        for of in [0..own.start, own.end..piece.range.len()] {
            let from = self.in_contribution(&(piece.range.start + of.start..piece.range.start + of.end));
            copy_in_with(&contribution[from], stage, piece.stage + of.start, Stores::Cached);
        }
        if self.keeps {
            request.keep(self.in_contribution(&piece.range), Stores::Cached);
        }
    }

    /// This rank, among those of its host.
    fn local(&self) -> usize {
        self.messages.rank - self.nearby.placement.ranks(self.nearby.host).start
    }

    /// Makes ready for what comes of a piece.
    fn prepare(&self, piece: &Piece, lane: &mut Lane<'a>, ongoing: &mut Ongoing<'_>) -> Result<(), CollectiveError> {
        let len = self.share(piece).len();
        // Of an earlier piece, which has come back by now.
        for exchange in std::mem::take(&mut lane.going) {
            exchange.finish(ongoing)?;
        }
        if len == 0 {
            return Ok(());
        }
        let [partials, results] = self.incoming(piece.lane);
        let receive = |peer: Option<usize>, tag: u64, at: usize, len: usize| {
            let Some(peer) = peer else { return Ok(None) };
            let mut exchange = Exchange::new(self.messages, tag, Half(0));
            exchange.recv_into(peer, &self.messages.incoming.slice(at..at + len))?;
            Ok::<_, CollectiveError>(Some(exchange))
        };
        let way = self.way(piece);
        lane.partials = receive(way.partials_from, DATA_TAG, partials, len * self.partial.2)?;
        lane.results = receive(way.results_from, way.tag, results, len)?;
        Ok(())
    }

    /// Combines this column's share of a piece, and sends it on; or results, where these begin.
    fn combine(
        &self,
        request: &mut Request<'_>,
        piece: &Piece,
        (lane, apart): (&mut Lane<'a>, &mut Apart),
        ongoing: &mut Ongoing<'_>,
    ) -> Result<(), CollectiveError> {
        let (windows, of, way) = (&self.nearby.windows, self.within(piece), self.way(piece));
        if self.column.is_none() || way.given && !way.has_results {
            return Ok(());
        }
        windows.await_counter(ongoing, Counter::Posted, piece.number + 1, |local| {
            way.giver.is_none_or(|giver| giver == local)
        })?;
        if let Some(mut partials) = lane.partials.take() {
            partials.receive_all_exact(ongoing).map_err(|error| self.unheard(error))?;
        }
        let combined = match (of.is_empty(), way.giver) {
            (true, _) => Combined::Nothing,
            (_, Some(giver)) => self.take_given(request, piece, giver),
            _ if self.partial.1 == request.call.dtype && way.gets => self.combine_in_output(request, piece),
            _ => self.combine_apart(request, piece, apart),
        };
        let data: &[u8] = match combined {
            Combined::Nothing => &[],
            Combined::Output => &request.output.bytes()[self.in_output(&of)],
            Combined::Partials => &apart.partials,
            Combined::Results => &apart.results,
        };
        if !of.is_empty() {
            let to = match way.has_results {
                true => &way.results_to[..],
                false => way.partials_to.as_slice(),
            };
            self.send(to, piece.lane, lane, data)?;
        }
        if way.has_results && way.needs_results {
            let stage = windows.part(self.local());
            copy_in_with(data, stage, piece.stage + self.share(piece).start, Stores::Cached);
        }
        Ok(())
    }

    /// Takes this column's share from the rank of this host that gives all.
    fn take_given(&self, request: &mut Request<'_>, piece: &Piece, giver: usize) -> Combined {
        if giver != self.local() {
            let from = self.nearby.windows.part(giver);
            let at = piece.stage + self.share(piece).start;
            let to = self.in_output(&self.within(piece));
            request.output.values().part(to).copy_out(from, at, Stores::Cached);
        }
        Combined::Output
    }

    /// Partial results of the hosts before, and what each rank of this host contributes to this column's share of a piece; `own` of this one.
    fn sources<'s>(&'s self, piece: &Piece, own: Source<'s>) -> SmallVec<[Source<'s>; FEW + 1]> {
        let (local, at) = (self.local(), piece.stage + self.share(piece).start);
        let [partials, _] = self.incoming(piece.lane);
        let before = self.way(piece).partials_from.map(|_| Source::Exposed(&self.messages.incoming, partials));
        let here = (0..self.shares.len()).map(|rank| match rank == local {
            true => own,
            false => Source::Exposed(self.nearby.windows.part(rank), at),
        });
        before.into_iter().chain(here).collect()
    }

    /// Combines them in the output.
    fn combine_in_output(&self, request: &mut Request<'_>, piece: &Piece) -> Combined {
        let ((op, dtype, _), of) = (self.partial, self.within(piece));
        let own = request.input.map_or(Source::Target, |input| Source::Plain(&input.bytes()[of.clone()]));
        let mut output = request.output.values();
        let mut output = output.part(self.in_output(&of));
        reduce(reduce_to_plain(op, dtype, &mut output, self.sources(piece, own), Stores::Cached));
        if self.way(piece).has_results {
            finish_in_place(request.call.op, request.call.dtype, self.messages.size, &mut output);
        }
        Combined::Output
    }

    /// Combines them in other memory, as partial results of a longer type if there is one.
    fn combine_apart(&self, request: &mut Request<'_>, piece: &Piece, apart: &mut Apart) -> Combined {
        let (call, of) = (request.call, self.within(piece));
        let ((op, dtype, factor), way) = (self.partial, self.way(piece));
        let Apart { partials, bytes, widened, results } = apart;
        partials.resize(of.len() * factor, 0);
        let sources = self.sources(piece, Source::Plain(&request.contribution()[of.clone()]));
        if dtype == call.dtype {
            let mut partials = ValuesMut::new(partials);
            reduce(reduce_to_plain(op, dtype, &mut partials, sources, Stores::Cached));
            if way.has_results {
                finish_in_place(call.op, call.dtype, self.messages.size, &mut partials);
            }
            return Combined::Partials;
        }
        bytes.resize(of.len(), 0);
        widened.resize(of.len() * factor, 0);
        let mut sources = sources.into_iter();
        let mut empty = true;
        if way.partials_from.is_some()
            && let Some(Source::Exposed(memory, at)) = sources.next()
        {
            memory.read(at, partials);
            empty = false;
        }
        for source in sources {
            let own = match source {
                Source::Plain(own) => own,
                Source::Exposed(memory, at) => {
                    memory.read(at, bytes);
                    &*bytes
                }
                Source::Target => unreachable!("what is combined apart is nowhere else"),
            };
            if std::mem::take(&mut empty) {
                widen(call.dtype, own, partials);
                continue;
            }
            widen(call.dtype, own, widened);
            let both = [Source::Target, Source::Plain(widened)];
            reduce(reduce_to_plain(op, dtype, &mut ValuesMut::new(partials), both, Stores::Cached));
        }
        if !way.has_results {
            return Combined::Partials;
        }
        if way.gets {
            let mut output = request.output.values();
            finish(call.op, call.dtype, self.messages.size, partials, &mut output.part(self.in_output(&of)));
            return Combined::Output;
        }
        results.resize(of.len(), 0);
        finish(call.op, call.dtype, self.messages.size, partials, &mut ValuesMut::new(results));
        Combined::Results
    }

    /// Sends this to these.
    fn send(&self, to: &[usize], number: usize, lane: &mut Lane<'a>, data: &[u8]) -> Result<(), CollectiveError> {
        if to.is_empty() {
            return Ok(());
        }
        let at = self.outgoing(number);
        self.messages.outgoing.write(at, data);
        let mut exchange = Exchange::new(self.messages, DATA_TAG, Half(0));
        for peer in to {
            exchange.send_from(*peer, &self.messages.outgoing.slice(at..at + data.len()))?;
        }
        lane.going.push(exchange);
        Ok(())
    }

    /// Takes the results of this column's share that come from another host, puts them on the stage, and passes them on.
    fn end(
        &self,
        request: &mut Request<'_>,
        piece: &Piece,
        lane: &mut Lane<'a>,
        ongoing: &mut Ongoing<'_>,
    ) -> Result<(), CollectiveError> {
        let (windows, of, way) = (&self.nearby.windows, self.within(piece), self.way(piece));
        if self.column.is_none() {
            return Ok(());
        }
        if let Some(mut results) = lane.results.take() {
            results.receive_all_exact(ongoing).map_err(|error| self.unheard(error))?;
            let (incoming, [_, at]) = (&self.messages.incoming, self.incoming(piece.lane));
            let mut exchange = Exchange::new(self.messages, FORWARD_TAG, Half(0));
            for peer in &way.results_to {
                exchange.send_from(*peer, &incoming.slice(at..at + of.len()))?;
            }
            lane.going.push(exchange);
            if way.needs_results {
                let stage = piece.stage + self.share(piece).start;
                incoming.copy_to(at, windows.part(self.local()), stage, of.len());
                if way.gets {
                    request.output.values().part(self.in_output(&of)).copy_out(incoming, at, Stores::Cached);
                }
            }
        }
        // Also where they began on this host: pieces are counted one after the other.
        if way.needs_results {
            windows.count(Counter::Reduced, piece.number + 1);
        }
        Ok(())
    }

    /// Takes the other columns' results.
    fn take(&self, request: &mut Request<'_>, piece: &Piece) {
        let mut output = request.output.values();
        let local = self.local();
        // Each rank begins with the next one, so that not all read from one.
        for other in (local + 1..self.shares.len()).chain(0..local) {
            let Some(column) = self.shares[other] else { continue };
            let share = column_share(piece.range.len(), self.columns, column);
            let of = piece.range.start + share.start..piece.range.start + share.end;
            let mut to = output.part(self.in_output(&of));
            to.copy_out(self.nearby.windows.part(other), piece.stage + share.start, Stores::Cached);
        }
    }

    fn unheard(&self, error: CollectiveError) -> CollectiveError {
        self.messages.unheard(self.nearby, error, |host| host != self.nearby.host)
    }
}
