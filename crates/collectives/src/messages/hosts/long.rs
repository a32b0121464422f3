//! Long all-reduces: shares go from host to host and come back.
//!
//! The vector goes in pieces over the stages of the ranks of each host. Some of these (*columns*, as many on each host) have a share of each piece
//! each: a column combines what the ranks of its host contribute with what comes from the same column of the host before, and passes that on to
//! the next one. The last host's are the results, which come back the same way; each column puts its own on its stage, from where the others take
//! it. Several pieces are under way at a time.

use std::ops::Range;

use fulmen_kernels::{
    DType, ReduceOp, Source, Stores, ValuesMut, copy_in_with, finish, finish_in_place, reduce_to_plain, widen,
};
use smallvec::SmallVec;

use super::Inside;
use crate::CollectiveError;
use crate::messages::exchange::Exchange;
use crate::messages::{DATA_TAG, Half, LEAD, Messages};
use crate::plan::{Division, TALKS};
use crate::request::{Request, reduce};
use crate::windows::{Counter, Cut, Ongoing, Progress};

/// The part of a piece of so many bytes that a column has.
pub(crate) fn column_share(piece: usize, columns: usize, column: usize) -> Range<usize> {
    let each = piece.div_ceil(columns).next_multiple_of(64);
    let start = (each * column).min(piece);
    start..(start + each).min(piece)
}

/// A piece, from its place in the vector on.
#[derive(Clone)]
struct Piece {
    /// Counted from call to call.
    number: u64,
    /// Bytes of the vector.
    range: Range<usize>,
    /// Where it lies on the stages.
    stage: usize,
    lane: usize,
}

/// What is under way of a piece.
#[derive(Default)]
struct Lane<'a> {
    /// Partial results of the host before, and results of the next one.
    partials: Option<Exchange<'a>>,
    results: Option<Exchange<'a>>,
    /// What goes.
    going: SmallVec<[Exchange<'a>; 2]>,
}

/// A call.
struct Long<'a> {
    messages: &'a Messages,
    inside: &'a Inside,
    /// This rank's column, and the ranks of it on the hosts before and after this one.
    column: Option<usize>,
    before: Option<usize>,
    after: Option<usize>,
    columns: usize,
    /// By rank of this host, whether it is of a column.
    shares: SmallVec<[Option<usize>; 16]>,
    /// How partial results are combined, their type, and their bytes for each of a result.
    partial: (ReduceOp, DType, usize),
    chunk: usize,
    lanes: Vec<Lane<'a>>,
    /// What was combined, where that is not in the output.
    apart: Vec<u8>,
    widened: Vec<u8>,
}

impl Messages {
    /// Runs a long all-reduce.
    pub(super) fn pass_through_hosts(
        &self,
        inside: &Inside,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
        progress: &mut Progress,
    ) -> Result<(), CollectiveError> {
        let Inside { windows, placement, host } = inside;
        let (call, len) = (request.call, request.vector());
        let (op, dtype) = call.op.partial(call.dtype);
        let factor = dtype.size() / call.dtype.size();
        let Division { chunk, piece: step, depth } = placement.divide(len, factor);
        let (cut, count) = (Cut::of_pieces(step), len.div_ceil(step) as u64);
        let lanes = depth + 2;
        let (base, free_from) = windows.begin_pieces((&call, cut, count), ongoing, progress)?;
        let partners = placement.partners(self.rank);
        let mut greeted = Some(self.greet(&partners, request, ongoing)?);
        let column = placement.column(self.rank);
        let at = |host: Option<usize>| Some(placement.at(host.filter(|host| *host < placement.hosts())?, column?));
        let mut long = Long {
            messages: self,
            inside,
            column,
            before: at(host.checked_sub(1)),
            after: at(Some(host + 1)),
            columns: placement.columns(),
            shares: placement.ranks(*host).map(|rank| placement.column(rank)).collect(),
            partial: (op, dtype, factor),
            chunk,
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            apart: Vec::new(),
            widened: Vec::new(),
        };
        let piece = |number: u64| Piece {
            number: base + number,
            range: number as usize * step..((number as usize + 1) * step).min(len),
            stage: cut.at(base + number),
            lane: number as usize % lanes,
        };
        let is_one = |number: &u64| *number < count;
        // A piece is put, combined a step later, its results awaited so many steps after that, and taken one more later.
        for turn in 0..count + depth as u64 + 2 {
            if let Some(put) = Some(turn).filter(is_one).map(piece) {
                let room = (put.number + 1).saturating_sub(cut.places).max(free_from);
                windows.await_counter(ongoing, Counter::Taken, room, |_| true)?;
                long.put(request, &put);
                windows.count(Counter::Posted, put.number + 1);
                long.prepare(&put, ongoing)?;
            }
            if turn == 0 {
                // Others come to this call while its first piece is put.
                inside.told(windows.begun_pieces(&call, ongoing, &mut progress.history))?;
            }
            if let Some(combined) = turn.checked_sub(1).filter(is_one).map(piece) {
                if let Some(greeted) = greeted.take() {
                    let checked = self.check_greetings(&partners, greeted, request, ongoing);
                    checked.map_err(|error| self.unheard(inside, error, |other| other != *host))?;
                }
                long.combine(request, &combined, ongoing)?;
            }
            if let Some(ended) = turn.checked_sub(1 + depth as u64).filter(is_one).map(piece) {
                long.end(request, &ended, ongoing)?;
            }
            if let Some(taken) = turn.checked_sub(2 + depth as u64).filter(is_one).map(piece) {
                let has_share = |local: usize| long.shares[local].is_some();
                windows
                    .await_counter(ongoing, Counter::Reduced, taken.number + 1, has_share)
                    .map_err(|error| self.unheard(inside, error, |other| other != *host))?;
                long.take(request, &taken);
                windows.count(Counter::Taken, taken.number + 1);
            }
        }
        for exchange in long.lanes.into_iter().flat_map(|lane| lane.going) {
            exchange.finish(ongoing)?;
        }
        windows.settle(ongoing);
        windows.check_poison(ongoing.sequence)
    }
}

impl<'a> Long<'a> {
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
    fn put(&self, request: &Request<'_>, piece: &Piece) {
        let (contribution, stage) = (request.contribution(), self.inside.windows.part(self.local()));
        let own = self.share(piece);
        for of in [0..own.start, own.end..piece.range.len()] {
            let from = &contribution[piece.range.start + of.start..piece.range.start + of.end];
            copy_in_with(from, stage, piece.stage + of.start, Stores::Cached);
        }
    }

    /// This rank, among those of its host.
    fn local(&self) -> usize {
        self.messages.rank - self.inside.placement.ranks(self.inside.host).start
    }

    /// Makes ready for what comes of a piece.
    fn prepare(&mut self, piece: &Piece, ongoing: &mut Ongoing<'_>) -> Result<(), CollectiveError> {
        let len = self.share(piece).len();
        // Of an earlier piece, which has come back by now.
        for exchange in std::mem::take(&mut self.lanes[piece.lane].going) {
            exchange.finish(ongoing)?;
        }
        if len == 0 {
            return Ok(());
        }
        let [partials, results] = self.incoming(piece.lane);
        let receive = |peer: Option<usize>, at: usize, len: usize| {
            let Some(peer) = peer else { return Ok(None) };
            let mut exchange = Exchange::new(self.messages, DATA_TAG, Half(0));
            exchange.recv_into(peer, &self.messages.incoming.slice(at..at + len))?;
            Ok::<_, CollectiveError>(Some(exchange))
        };
        let partials = receive(self.before, partials, len * self.partial.2)?;
        let results = receive(self.after, results, len)?;
        (self.lanes[piece.lane].partials, self.lanes[piece.lane].results) = (partials, results);
        Ok(())
    }

    /// Combines this column's share of a piece, and sends it on; or its result back, from the last host.
    fn combine(
        &mut self,
        request: &mut Request<'_>,
        piece: &Piece,
        ongoing: &mut Ongoing<'_>,
    ) -> Result<(), CollectiveError> {
        if self.column.is_none() {
            return Ok(());
        }
        let (windows, of) = (&self.inside.windows, self.within(piece));
        windows.await_counter(ongoing, Counter::Posted, piece.number + 1, |_| true)?;
        if let Some(mut partials) = self.lanes[piece.lane].partials.take() {
            partials.receive_all_exact(ongoing).map_err(|error| self.unheard(error))?;
        }
        if !of.is_empty() {
            let [partials, _] = self.incoming(piece.lane);
            let from_before = self.before.map(|_| Source::Exposed(&self.messages.incoming, partials));
            if self.partial.1 == request.call.dtype {
                self.combine_in_output(request, piece, from_before);
            } else {
                self.combine_apart(request, piece, from_before);
            }
            let output = &request.output.bytes()[of.clone()];
            match (self.after, self.before) {
                (Some(after), _) if self.partial.1 == request.call.dtype => self.send(after, piece.lane, output)?,
                (Some(after), _) => {
                    let partials = std::mem::take(&mut self.apart);
                    self.send(after, piece.lane, &partials)?;
                    self.apart = partials;
                }
                (None, Some(before)) => self.send(before, piece.lane, output)?,
                (None, None) => unreachable!("there are several hosts"),
            }
        }
        if self.after.is_none() {
            let stage = windows.part(self.local());
            copy_in_with(&request.output.bytes()[of], stage, piece.stage + self.share(piece).start, Stores::Cached);
            windows.count(Counter::Reduced, piece.number + 1);
        }
        Ok(())
    }

    /// What each rank of this host contributes to this column's share of a piece; the output for what is there in place.
    fn contributions<'s>(
        &'s self,
        input: Option<&'s [u8]>,
        piece: &Piece,
    ) -> impl ExactSizeIterator<Item = Source<'s>> + use<'s, 'a> {
        let (local, of) = (self.local(), self.within(piece));
        let at = piece.stage + self.share(piece).start;
        (0..self.shares.len()).map(move |rank| match input {
            _ if rank != local => Source::Exposed(self.inside.windows.part(rank), at),
            Some(input) => Source::Plain(&input[of.clone()]),
            None => Source::Target,
        })
    }

    /// Combines them in the output.
    fn combine_in_output(&self, request: &mut Request<'_>, piece: &Piece, from_before: Option<Source<'_>>) {
        let (op, dtype, _) = self.partial;
        let input = request.input.map(|input| input.bytes());
        let mut output = request.output.values();
        let mut output = output.part(self.within(piece));
        let sources: SmallVec<[Source<'_>; 17]> =
            from_before.into_iter().chain(self.contributions(input, piece)).collect();
        reduce(reduce_to_plain(op, dtype, &mut output, sources, Stores::Cached));
        if self.after.is_none() {
            finish_in_place(request.call.op, request.call.dtype, self.messages.size, &mut output);
        }
    }

    /// Combines them as partial results of a longer type, which become results on the last host.
    fn combine_apart(&mut self, request: &mut Request<'_>, piece: &Piece, from_before: Option<Source<'_>>) {
        let (call, of) = (request.call, self.within(piece));
        let (op, dtype, factor) = self.partial;
        let (mut apart, mut widened) = (std::mem::take(&mut self.apart), std::mem::take(&mut self.widened));
        let mut bytes = vec![0; of.len()];
        apart.resize(of.len() * factor, 0);
        widened.resize(of.len() * factor, 0);
        let mut empty = true;
        if let Some(Source::Exposed(memory, at)) = from_before {
            memory.read(at, &mut apart);
            empty = false;
        }
        let input = request.input.map(|input| input.bytes());
        for source in self.contributions(input, piece) {
            let own = match source {
                Source::Plain(own) => own,
                Source::Target => &request.output.bytes()[of.clone()],
                Source::Exposed(memory, at) => {
                    memory.read(at, &mut bytes);
                    &bytes
                }
            };
            let into = if empty { &mut apart } else { &mut widened };
            widen(call.dtype, own, into);
            if !std::mem::take(&mut empty) {
                let sources = [Source::Target, Source::Plain(&widened)];
                reduce(reduce_to_plain(op, dtype, &mut ValuesMut::new(&mut apart), sources, Stores::Cached));
            }
        }
        if self.after.is_none() {
            let mut output = request.output.values();
            finish(call.op, call.dtype, self.messages.size, &mut apart, &mut output.part(of));
        }
        (self.apart, self.widened) = (apart, widened);
    }

    /// Sends this.
    fn send(&mut self, peer: usize, lane: usize, data: &[u8]) -> Result<(), CollectiveError> {
        let at = self.outgoing(lane);
        self.messages.outgoing.write(at, data);
        let memory = self.messages.outgoing.slice(at..at + data.len());
        let mut exchange = Exchange::new(self.messages, DATA_TAG, Half(0));
        exchange.send_from(peer, &memory)?;
        self.lanes[lane].going.push(exchange);
        Ok(())
    }

    /// Takes the result of this column's share, which comes back, puts it on the stage, and passes it on.
    fn end(
        &mut self,
        request: &mut Request<'_>,
        piece: &Piece,
        ongoing: &mut Ongoing<'_>,
    ) -> Result<(), CollectiveError> {
        let (Some(_), Some(_)) = (self.column, self.after) else { return Ok(()) };
        let (windows, of) = (&self.inside.windows, self.within(piece));
        if let Some(mut results) = self.lanes[piece.lane].results.take() {
            results.receive_all_exact(ongoing).map_err(|error| self.unheard(error))?;
            let (incoming, [_, at]) = (&self.messages.incoming, self.incoming(piece.lane));
            if let Some(before) = self.before {
                let mut exchange = Exchange::new(self.messages, DATA_TAG, Half(0));
                exchange.send_from(before, &incoming.slice(at..at + of.len()))?;
                self.lanes[piece.lane].going.push(exchange);
            }
            let stage = piece.stage + self.share(piece).start;
            incoming.copy_to(at, windows.part(self.local()), stage, of.len());
            request.output.values().part(of).copy_out(incoming, at, Stores::Cached);
        }
        windows.count(Counter::Reduced, piece.number + 1);
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
            let mut to = output.part(piece.range.start + share.start..piece.range.start + share.end);
            to.copy_out(self.inside.windows.part(other), piece.stage + share.start, Stores::Cached);
        }
    }

    fn unheard(&self, error: CollectiveError) -> CollectiveError {
        self.messages.unheard(self.inside, error, |host| host != self.inside.host)
    }
}
