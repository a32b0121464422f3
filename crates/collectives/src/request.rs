//! One operation on one rank: what was called, where its data lies, and what comes of everybody's contribution.

use std::ops::Range;

use fulmen_kernels::{Source, Sources, Stores, ValuesMut, reduce_to_plain};

use crate::buffer::Memory;
use crate::call::{Call, Kind};
use crate::parts::Parts;
use crate::plan::{Algorithm, Order};

/// What an operation reads.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    Plain(&'a [u8]),
    Buffer(&'a Memory),
}

impl<'a> Input<'a> {
    pub(crate) fn bytes(self) -> &'a [u8] {
        match self {
            Input::Plain(bytes) => bytes,
            Input::Buffer(memory) => memory.bytes(),
        }
    }

    /// Where it starts in the region of that id, if it lies there.
    fn at(self, region: u64) -> Option<u64> {
        match self {
            Input::Plain(_) => None,
            Input::Buffer(memory) => memory.at(region),
        }
    }
}

/// What an operation writes.
pub enum Output<'a> {
    Plain(ValuesMut<'a>),
    Buffer(&'a mut Memory),
    Scattered(Box<dyn Scattered + 'a>),
}

/// Elements that lie one behind the other during an operation, and elsewhere when this is dropped.
pub trait Scattered {
    fn bytes(&self) -> &[u8];
    fn values(&mut self) -> ValuesMut<'_>;
}

impl Output<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Output::Plain(values) => values.bytes(),
            Output::Scattered(elements) => elements.bytes(),
            Output::Buffer(memory) => memory.bytes(),
        }
    }

    pub(crate) fn values(&mut self) -> ValuesMut<'_> {
        match self {
            Output::Plain(values) => values.part(0..values.len()),
            Output::Scattered(elements) => elements.values(),
            Output::Buffer(memory) => ValuesMut::new(memory.bytes_mut()),
        }
    }

    fn at(&self, region: u64) -> Option<u64> {
        match self {
            Output::Plain(_) | Output::Scattered(_) => None,
            Output::Buffer(memory) => memory.at(region),
        }
    }
}

/// How [`Data`](crate::Data) gives its memory to operations. Not nameable outside, so that nobody else implements it.
pub trait Access {
    fn input(&self) -> Input<'_>;
    fn output(&mut self) -> Output<'_>;
}

/// One operation on one rank. Lengths have been checked.
pub(crate) struct Request<'a> {
    pub(crate) call: Call,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) parts: Parts,
    /// Missing if the operation works in place.
    pub(crate) input: Option<Input<'a>>,
    pub(crate) output: Output<'a>,
    /// This rank's own part comes into the output by [`Request::keep`], and not with the others'.
    pub(crate) kept: bool,
    pub(crate) how: How,
}

/// How a call may go by messages.
#[derive(Clone, Copy, Default)]
pub(crate) struct How {
    pub(crate) order: Order,
    /// The one algorithm, if the caller has chosen.
    pub(crate) algorithm: Option<Algorithm>,
    /// What the caller calls it by.
    pub(crate) tag: u16,
}

impl Request<'_> {
    /// The length of a vector of which each rank has all.
    pub(crate) fn vector(&self) -> usize {
        if let Parts::Listed(len) = self.parts { len } else { self.call.bytes() }
    }

    /// A rank's part of a vector that holds all ranks' parts.
    fn part(&self, rank: u32) -> Range<usize> {
        let (rank, len) = (rank as usize, self.call.bytes());
        match &self.parts {
            Parts::Equal | Parts::Listed(_) => rank * len..(rank + 1) * len,
            Parts::Each(places) | Parts::Pairs { got: places, .. } => places[rank]..places[rank + 1],
        }
    }

    /// The length of such a vector.
    fn whole(&self) -> usize {
        self.part(self.size - 1).end
    }

    /// Which bytes of its contribution a rank has for another one, or for itself.
    pub(crate) fn needed(&self, from: u32, to: u32) -> Range<usize> {
        let root = self.call.root;
        match self.call.kind {
            Kind::AllReduce => 0..self.vector(),
            Kind::Reduce if to == root => 0..self.vector(),
            Kind::Scan if from <= to => 0..self.vector(),
            Kind::Broadcast if from == root => 0..self.vector(),
            Kind::AllGather => 0..self.part(from).len(),
            Kind::Gather if to == root => 0..self.part(from).len(),
            Kind::ReduceScatter => self.part(to),
            Kind::Scatter if from == root => self.part(to),
            Kind::AllToAll => match &self.parts {
                Parts::Pairs { given, .. } => {
                    let at = from as usize * (self.size as usize + 1) + to as usize;
                    given[at]..given[at + 1]
                }
                _ => self.part(to),
            },
            Kind::Barrier | Kind::Reduce | Kind::Scan | Kind::Broadcast | Kind::Gather | Kind::Scatter => 0..0,
        }
    }

    /// Whether this rank is done only after a peer has come: it has something for this rank. Of calls in which all have something for all, also
    /// if that is of no length.
    pub(crate) fn awaits(&self, peer: u32) -> bool {
        match self.call.kind {
            Kind::Broadcast | Kind::Scatter => peer == self.call.root,
            Kind::Reduce | Kind::Gather => self.rank == self.call.root,
            Kind::Scan => peer < self.rank,
            _ => true,
        }
    }

    /// The bytes that are needed, of those that lie in this piece of what is needed.
    pub(crate) fn needed_in(&self, piece: &Range<usize>, from: u32, to: u32) -> Range<usize> {
        clip(&self.needed(from, to), piece)
    }

    /// Bytes that a rank contributes.
    pub(crate) fn contributed(&self, rank: u32) -> usize {
        match self.call.kind {
            Kind::Barrier => 0,
            Kind::AllReduce | Kind::Reduce | Kind::Scan => self.vector(),
            Kind::AllGather | Kind::Gather => self.part(rank).len(),
            Kind::Broadcast if rank == self.call.root => self.vector(),
            Kind::ReduceScatter => self.whole(),
            Kind::Scatter if rank == self.call.root => self.whole(),
            Kind::Broadcast | Kind::Scatter => 0,
            Kind::AllToAll => self.needed(rank, self.size - 1).end,
        }
    }

    /// The most that any rank contributes.
    pub(crate) fn longest(&self) -> usize {
        match self.parts {
            Parts::Equal | Parts::Listed(_) => self.contributed(self.call.root),
            _ => (0..self.size).map(|rank| self.contributed(rank)).max().unwrap_or(0),
        }
    }

    /// The most that any rank has for any: how many bytes pass in pieces.
    pub(crate) fn span(&self) -> usize {
        match &self.parts {
            Parts::Equal | Parts::Listed(_) => self.vector(),
            // Between the rows of pairs are no parts.
            Parts::Each(places) | Parts::Pairs { given: places, .. } => {
                places.windows(2).map(|part| part[1].saturating_sub(part[0])).max().unwrap_or(0)
            }
        }
    }

    /// Bytes that all ranks together read and write.
    pub(crate) fn touched(&self) -> usize {
        let ranks = self.size as usize;
        match self.call.kind {
            Kind::Barrier => 0,
            Kind::AllReduce | Kind::Scan => 2 * ranks * self.vector(),
            Kind::Reduce => (ranks + 1) * self.vector(),
            Kind::Broadcast => ranks * self.vector(),
            Kind::AllGather | Kind::ReduceScatter => (ranks + 1) * self.whole(),
            Kind::Gather | Kind::Scatter => 2 * self.whole(),
            Kind::AllToAll => 2 * ranks * self.longest(),
        }
    }

    /// Ranks that write results. Of a reduction that is long, each writes its share.
    pub(crate) fn writers(&self) -> usize {
        match self.call.kind {
            Kind::Gather => 1,
            Kind::Broadcast => self.size as usize - 1,
            _ => self.size as usize,
        }
    }

    /// Where this rank's contribution begins in what it contributes from (the input, or the output in place).
    fn own(&self) -> usize {
        match (self.call.kind, self.input) {
            (Kind::AllGather, None) => self.part(self.rank).start,
            _ => 0,
        }
    }

    /// What this rank contributes.
    pub(crate) fn contribution(&self) -> &[u8] {
        let from = self.input.map_or_else(|| self.output.bytes(), Input::bytes);
        &from[self.own()..][..self.contributed(self.rank)]
    }

    /// Where this rank's contribution starts in the region of that id, if it lies there.
    pub(crate) fn contribution_at(&self, region: u64) -> Option<u64> {
        let at = self.input.map_or_else(|| self.output.at(region), |input| input.at(region))?;
        Some(at + self.own() as u64)
    }

    /// Where the output starts in the region of that id, if it lies there.
    pub(crate) fn output_at(&self, region: u64) -> Option<u64> {
        self.output.at(region)
    }

    /// Copies some of this rank's own contribution to its place among those of all.
    pub(crate) fn keep(&mut self, range: Range<usize>, stores: Stores) {
        let Some(input) = self.input else { return };
        let start = self.part(self.rank).start;
        self.output.values().part(start + range.start..start + range.end).copy_from(&input.bytes()[range], stores);
        self.kept = true;
    }

    /// Computes this rank's output from a piece of what each rank has for it.
    ///
    /// `part(rank, range)` gives bytes of a peer's contribution. Of this rank's own, it is not asked.
    pub(crate) fn complete<'s>(
        &mut self,
        piece: Range<usize>,
        stores: Stores,
        part: impl Fn(u32, Range<usize>) -> Source<'s>,
    ) {
        let Call { kind, dtype, op, root, .. } = self.call;
        let (rank, size) = (self.rank, self.size);
        let input = self.input.map(Input::bytes);
        match kind {
            Kind::Barrier => {}
            Kind::Reduce | Kind::Gather if rank != root => {}
            Kind::AllReduce | Kind::Reduce | Kind::Scan => {
                let ranks = if kind == Kind::Scan { rank + 1 } else { size };
                let own = input.map_or(Source::Target, |bytes| Source::Plain(&bytes[piece.clone()]));
                let sources = sources(rank, ranks, own, |other| part(other, piece.clone()));
                reduce(reduce_to_plain(op, dtype, &mut self.output.values().part(piece.clone()), sources, stores));
            }
            Kind::ReduceScatter => {
                let mine = self.part(rank);
                let range = clip(&mine, &piece);
                let own = input.map_or(Source::Target, |bytes| Source::Plain(&bytes[range.clone()]));
                let to = if input.is_some() { range.start - mine.start..range.end - mine.start } else { range.clone() };
                let sources = sources(rank, size, own, |other| part(other, range.clone()));
                reduce(reduce_to_plain(op, dtype, &mut self.output.values().part(to), sources, stores));
            }
            Kind::AllGather | Kind::Gather | Kind::AllToAll => {
                // Each rank begins with its own part, so that not all read from one.
                for other in (rank..size).chain(0..rank) {
                    let (has, place) = (self.needed(other, rank), self.part(other).start);
                    let range = clip(&has, &piece);
                    let to = place + range.start - has.start..place + range.end - has.start;
                    let mut values = self.output.values();
                    let mut to = values.part(to);
                    if other != rank {
                        copy(&mut to, part(other, range), stores);
                    } else if let Some(bytes) = input.filter(|_| !self.kept) {
                        to.copy_from(&bytes[range], stores);
                    }
                }
            }
            Kind::Broadcast if rank == root => {}
            Kind::Broadcast => copy(&mut self.output.values().part(piece.clone()), part(root, piece), stores),
            Kind::Scatter => {
                let mine = self.part(rank);
                let range = clip(&mine, &piece);
                let mut values = self.output.values();
                let mut to = values.part(range.start - mine.start..range.end - mine.start);
                match input.filter(|_| rank == root) {
                    Some(bytes) => to.copy_from(&bytes[range], stores),
                    None => copy(&mut to, part(root, range), stores),
                }
            }
        }
    }
}

/// What lies in this piece of a range, whose own length is that of the piece or less.
fn clip(range: &Range<usize>, piece: &Range<usize>) -> Range<usize> {
    let at = |offset: usize| (range.start + offset).min(range.end);
    at(piece.start)..at(piece.end)
}

/// What the ranks contribute, by rank: `own` for this one.
pub(crate) fn sources<'a>(rank: u32, size: u32, own: Source<'a>, peer: impl Fn(u32) -> Source<'a>) -> impl Sources<'a> {
    (0..size as usize).map(move |other| if other == rank as usize { own } else { peer(other as u32) })
}

/// The outcome of a reduction whose operation, type and lengths were checked before.
pub(crate) fn reduce(outcome: Result<(), fulmen_kernels::ReduceError>) {
    if let Err(error) = outcome {
        unreachable!("a reduction that was checked: {error}");
    }
}

fn copy(to: &mut ValuesMut<'_>, from: Source<'_>, stores: Stores) {
    match from {
        Source::Plain(bytes) => to.copy_from(bytes, stores),
        Source::Exposed(memory, at) => to.copy_out(memory, at, stores),
        Source::Target => {}
    }
}
