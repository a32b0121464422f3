//! One operation on one rank: what was called, where its data lies, and what comes of everybody's contribution.

use std::ops::Range;

use fulmen_kernels::{Source, Stores, ValuesMut, reduce_to_plain};
use smallvec::SmallVec;

use crate::buffer::Memory;
use crate::call::{Call, Kind};

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
}

impl Output<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Output::Plain(values) => values.bytes(),
            Output::Buffer(memory) => memory.bytes(),
        }
    }

    pub(crate) fn values(&mut self) -> ValuesMut<'_> {
        match self {
            Output::Plain(values) => values.part(0..values.len()),
            Output::Buffer(memory) => ValuesMut::new(memory.bytes_mut()),
        }
    }

    fn at(&self, region: u64) -> Option<u64> {
        match self {
            Output::Plain(_) => None,
            Output::Buffer(memory) => memory.at(region),
        }
    }
}

/// How [`Data`](crate::Data) gives its memory to operations. Not nameable outside, so that nobody else implements it.
pub trait Access {
    fn input(&self) -> Input<'_>;
    fn output(&mut self) -> Output<'_>;
}

/// What the ranks contribute, by rank.
pub(crate) type Sources<'a> = SmallVec<[Source<'a>; 8]>;

/// One operation on one rank. Lengths have been checked.
pub(crate) struct Request<'a> {
    pub(crate) call: Call,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Missing if the operation works in place.
    pub(crate) input: Option<Input<'a>>,
    pub(crate) output: Output<'a>,
}

impl Request<'_> {
    /// Where this rank's contribution lies in what it contributes from (the input, or the output in place).
    fn own(&self) -> Range<usize> {
        let len = self.call.contribution(self.rank, self.size);
        let gathers_in_place = self.call.kind == Kind::AllGather && self.input.is_none();
        let start = if gathers_in_place { self.rank as usize * len } else { 0 };
        start..start + len
    }

    /// What this rank contributes.
    pub(crate) fn contribution(&self) -> &[u8] {
        let from = self.input.map_or_else(|| self.output.bytes(), Input::bytes);
        &from[self.own()]
    }

    /// Where this rank's contribution starts in the region of that id, if it lies there.
    pub(crate) fn contribution_at(&self, region: u64) -> Option<u64> {
        let at = self.input.map_or_else(|| self.output.at(region), |input| input.at(region))?;
        Some(at + self.own().start as u64)
    }

    /// Where the output starts in the region of that id, if it lies there.
    pub(crate) fn output_at(&self, region: u64) -> Option<u64> {
        self.output.at(region)
    }

    /// Computes this rank's output from bytes `piece` of what each rank contributes (of each rank's part of it, for
    /// reduce_scatter).
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
        let mut output = self.output.values();
        let len = self.call.bytes();
        let of = |rank: u32| rank as usize * len;
        match kind {
            Kind::Barrier => {}
            Kind::AllReduce => {
                let own = input.map_or(Source::Target, |bytes| Source::Plain(&bytes[piece.clone()]));
                let sources = sources(rank, size, own, |other| part(other, piece.clone()));
                reduce(reduce_to_plain(op, dtype, &mut output.part(piece), &sources, stores));
            }
            Kind::ReduceScatter => {
                let mine = of(rank) + piece.start..of(rank) + piece.end;
                let own = input.map_or(Source::Target, |bytes| Source::Plain(&bytes[mine.clone()]));
                let to = if input.is_some() { piece } else { mine.clone() };
                let sources = sources(rank, size, own, |other| part(other, mine.clone()));
                reduce(reduce_to_plain(op, dtype, &mut output.part(to), &sources, stores));
            }
            Kind::AllGather => {
                // Each rank begins with another one, so that not all read from one.
                for other in (rank..size).chain(0..rank) {
                    let mut to = output.part(of(other) + piece.start..of(other) + piece.end);
                    if other != rank {
                        copy(&mut to, part(other, piece.clone()), stores);
                    } else if let Some(bytes) = input {
                        to.copy_from(&bytes[piece.clone()], stores);
                    }
                }
            }
            Kind::Broadcast if rank == root => {}
            Kind::Broadcast => copy(&mut output.part(piece.clone()), part(root, piece), stores),
        }
    }
}

/// One source a rank: `own` for this one.
pub(crate) fn sources<'a>(rank: u32, size: u32, own: Source<'a>, peer: impl Fn(u32) -> Source<'a>) -> Sources<'a> {
    (0..size).map(|other| if other == rank { own } else { peer(other) }).collect()
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
