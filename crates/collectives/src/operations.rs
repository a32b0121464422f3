//! The operations of a group in which all ranks have as much.

use std::ops::Range;

use fulmen_fabric::OpName;
use fulmen_kernels::{Element, ReduceOp, ValuesMut};

use crate::call::{Call, Kind};
use crate::parts::Parts;
use crate::request::{Input, Output};
use crate::{CollectiveError, Data, Group};

impl Group {
    /// Combines the ranks' `data`, element by element in rank order; all ranks get the result, in place.
    ///
    /// # Errors
    /// [`CollectiveError::Mismatch`], [`CollectiveError::Poisoned`], [`CollectiveError::Fabric`] (a lost rank, the
    /// deadline), and [`CollectiveError::Unsupported`] for minima and maxima of complex numbers. When it fails, what
    /// `data` holds is unspecified.
    pub fn all_reduce<D: Data + ?Sized>(&self, data: &mut D, op: ReduceOp) -> Result<(), CollectiveError> {
        self.combine(Kind::AllReduce, data, op)
    }

    /// [`Group::all_reduce`] of `from`, into `to`. Both have the same length.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`] if the lengths differ.
    pub fn all_reduce_into<S, D>(&self, from: &S, to: &mut D, op: ReduceOp) -> Result<(), CollectiveError>
    where
        S: Data + ?Sized,
        D: Data<Element = S::Element> + ?Sized,
    {
        self.combine_into(Kind::AllReduce, from, to, op)
    }

    /// Gives all ranks the vectors of all ranks, one after the other in rank order. `to` is as long as all of them.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`] if `to` is not `size` times as long as `from`.
    pub fn all_gather<S, D>(&self, from: &S, to: &mut D) -> Result<(), CollectiveError>
    where
        S: Data + ?Sized,
        D: Data<Element = S::Element> + ?Sized,
    {
        let (input, output) = (from.input(), to.output());
        let count = elements::<D::Element>(input.bytes());
        self.require_all("all_gather", "output", elements::<D::Element>(output.bytes()), "input", count)?;
        self.equal(Call::of::<D::Element>(Kind::AllGather, count), Some(input), output)
    }

    /// [`Group::all_gather`] in place: each rank's part of `data` is the one of its rank.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`] if the ranks cannot have parts of the same length.
    pub fn all_gather_in_place<D: Data + ?Sized>(&self, data: &mut D) -> Result<(), CollectiveError> {
        let output = data.output();
        let count = self.part("all_gather", elements::<D::Element>(output.bytes()))?;
        self.equal(Call::of::<D::Element>(Kind::AllGather, count), None, output)
    }

    /// Combines the ranks' `from`, element by element in rank order, and gives each rank its part of the result: the
    /// first `to.len()` elements to rank 0, and so on.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`] if `from` is not `size` times as long as `to`.
    pub fn reduce_scatter<S, D>(&self, from: &S, to: &mut D, op: ReduceOp) -> Result<(), CollectiveError>
    where
        S: Data + ?Sized,
        D: Data<Element = S::Element> + ?Sized,
    {
        op.supports(D::Element::DTYPE)?;
        let (input, output) = (from.input(), to.output());
        let count = elements::<D::Element>(output.bytes());
        self.require_all("reduce_scatter", "input", elements::<D::Element>(input.bytes()), "output", count)?;
        self.equal(Call { op, ..Call::of::<D::Element>(Kind::ReduceScatter, count) }, Some(input), output)
    }

    /// [`Group::reduce_scatter`] in place. Returns which elements of `data` this rank's part of the result are; what the
    /// others hold then is unspecified.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`] if the ranks cannot have parts of the same length.
    pub fn reduce_scatter_in_place<D: Data + ?Sized>(
        &self,
        data: &mut D,
        op: ReduceOp,
    ) -> Result<Range<usize>, CollectiveError> {
        op.supports(D::Element::DTYPE)?;
        let output = data.output();
        let count = self.part("reduce_scatter", elements::<D::Element>(output.bytes()))?;
        self.equal(Call { op, ..Call::of::<D::Element>(Kind::ReduceScatter, count) }, None, output)?;
        let start = self.rank() as usize * count;
        Ok(start..start + count)
    }

    /// Gives all ranks what `data` holds on rank `root`.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`] if there is no such rank.
    pub fn broadcast<D: Data + ?Sized>(&self, data: &mut D, root: u32) -> Result<(), CollectiveError> {
        self.check_rank("broadcast", root)?;
        let output = data.output();
        let count = elements::<D::Element>(output.bytes());
        self.equal(Call { root, ..Call::of::<D::Element>(Kind::Broadcast, count) }, None, output)
    }

    /// Combines the ranks' `data`, element by element in rank order, into that of rank `root`. What the others hold stays.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`] if there is no such rank.
    pub fn reduce<D: Data + ?Sized>(&self, data: &mut D, op: ReduceOp, root: u32) -> Result<(), CollectiveError> {
        op.supports(D::Element::DTYPE)?;
        self.check_rank("reduce", root)?;
        let output = data.output();
        let count = elements::<D::Element>(output.bytes());
        self.equal(Call { op, root, ..Call::of::<D::Element>(Kind::Reduce, count) }, None, output)
    }

    /// [`Group::reduce`] of `from`, into `to`, which is as long on rank `root`. On other ranks it is left alone, and may be
    /// empty.
    ///
    /// # Errors
    /// As [`Group::reduce`], and [`CollectiveError::Invalid`] if the lengths differ.
    pub fn reduce_into<S, D>(&self, from: &S, to: &mut D, op: ReduceOp, root: u32) -> Result<(), CollectiveError>
    where
        S: Data + ?Sized,
        D: Data<Element = S::Element> + ?Sized,
    {
        op.supports(D::Element::DTYPE)?;
        self.check_rank("reduce", root)?;
        let (input, output) = (from.input(), to.output());
        let count = elements::<D::Element>(input.bytes());
        if self.rank() == root {
            self.require_same("reduce", elements::<D::Element>(output.bytes()), count)?;
        }
        self.equal(Call { op, root, ..Call::of::<D::Element>(Kind::Reduce, count) }, Some(input), output)
    }

    /// Combines the `data` of the ranks from 0 up to each rank, its own included, element by element in that order. Each gets
    /// its result in place. (A mean is divided by as many as were combined.)
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn scan<D: Data + ?Sized>(&self, data: &mut D, op: ReduceOp) -> Result<(), CollectiveError> {
        self.combine(Kind::Scan, data, op)
    }

    /// [`Group::scan`] of `from`, into `to`. Both have the same length.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`] if the lengths differ.
    pub fn scan_into<S, D>(&self, from: &S, to: &mut D, op: ReduceOp) -> Result<(), CollectiveError>
    where
        S: Data + ?Sized,
        D: Data<Element = S::Element> + ?Sized,
    {
        self.combine_into(Kind::Scan, from, to, op)
    }

    /// Gives rank `root` the vectors of all ranks, one after the other in rank order. There, `to` is as long as all of them; on
    /// other ranks it is left alone, and may be empty.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`] if there is no such rank, or `to` is not `size` times as long as
    /// `from` there.
    pub fn gather<S, D>(&self, from: &S, to: &mut D, root: u32) -> Result<(), CollectiveError>
    where
        S: Data + ?Sized,
        D: Data<Element = S::Element> + ?Sized,
    {
        self.check_rank("gather", root)?;
        let (input, output) = (from.input(), to.output());
        let count = elements::<D::Element>(input.bytes());
        if self.rank() == root {
            self.require_all("gather", "output", elements::<D::Element>(output.bytes()), "input", count)?;
        }
        self.equal(Call { root, ..Call::of::<D::Element>(Kind::Gather, count) }, Some(input), output)
    }

    /// Gives each rank its part of what `from` holds on rank `root`: the first `to.len()` elements to rank 0, and so on. On
    /// other ranks `from` is not read, and may be empty.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`] if there is no such rank, or `from` is not `size` times as long
    /// as `to` there.
    pub fn scatter<S, D>(&self, from: &S, to: &mut D, root: u32) -> Result<(), CollectiveError>
    where
        S: Data + ?Sized,
        D: Data<Element = S::Element> + ?Sized,
    {
        self.check_rank("scatter", root)?;
        let (input, output) = (from.input(), to.output());
        let count = elements::<D::Element>(output.bytes());
        if self.rank() == root {
            self.require_all("scatter", "input", elements::<D::Element>(input.bytes()), "output", count)?;
        }
        self.equal(Call { root, ..Call::of::<D::Element>(Kind::Scatter, count) }, Some(input), output)
    }

    /// Gives each rank its part of what each rank has: `from` holds a part for each rank, in rank order, and `to` gets a part
    /// from each. All parts have the same length.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`] if the lengths differ, or the ranks cannot have parts of the same
    /// length.
    pub fn all_to_all<S, D>(&self, from: &S, to: &mut D) -> Result<(), CollectiveError>
    where
        S: Data + ?Sized,
        D: Data<Element = S::Element> + ?Sized,
    {
        let (input, output) = (from.input(), to.output());
        let whole = elements::<D::Element>(input.bytes());
        self.require_same("all_to_all", elements::<D::Element>(output.bytes()), whole)?;
        let count = self.part("all_to_all", whole)?;
        self.equal(Call::of::<D::Element>(Kind::AllToAll, count), Some(input), output)
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// [`CollectiveError::Mismatch`], [`CollectiveError::Poisoned`], [`CollectiveError::Fabric`].
    pub fn barrier(&self) -> Result<(), CollectiveError> {
        let output = Output::Plain(ValuesMut::new::<u8>(&mut []));
        self.equal(Call::of::<u8>(Kind::Barrier, 0), None, output)
    }

    /// An operation in which every rank gets what vectors of all or some give together, in place.
    fn combine<D: Data + ?Sized>(&self, kind: Kind, data: &mut D, op: ReduceOp) -> Result<(), CollectiveError> {
        op.supports(D::Element::DTYPE)?;
        let output = data.output();
        let count = elements::<D::Element>(output.bytes());
        self.equal(Call { op, ..Call::of::<D::Element>(kind, count) }, None, output)
    }

    fn combine_into<S, D>(&self, kind: Kind, from: &S, to: &mut D, op: ReduceOp) -> Result<(), CollectiveError>
    where
        S: Data + ?Sized,
        D: Data<Element = S::Element> + ?Sized,
    {
        op.supports(D::Element::DTYPE)?;
        let (input, output) = (from.input(), to.output());
        let count = elements::<D::Element>(input.bytes());
        self.require_same(kind.name(), elements::<D::Element>(output.bytes()), count)?;
        self.equal(Call { op, ..Call::of::<D::Element>(kind, count) }, Some(input), output)
    }

    /// Runs a call in which all parts are equal.
    #[inline(always)]
    fn equal(&self, call: Call, input: Option<Input<'_>>, output: Output<'_>) -> Result<(), CollectiveError> {
        self.run(call, Parts::Equal, input, output).map(drop)
    }

    pub(crate) fn check_rank(&self, operation: OpName, rank: u32) -> Result<(), CollectiveError> {
        let size = self.size();
        require(operation, rank < size, || format!("there is no rank {rank}: name one below {size}"))
    }

    fn require_all(
        &self,
        operation: OpName,
        whole: &str,
        has: usize,
        part: &str,
        count: usize,
    ) -> Result<(), CollectiveError> {
        let size = self.size() as usize;
        require(operation, count.checked_mul(size) == Some(has), || {
            format!(
                "the {whole} has {has} elements and the {part} {count}: for {size} ranks, give it {size} times as many"
            )
        })
    }

    /// The length of a rank's part of `count` elements.
    fn part(&self, operation: OpName, count: usize) -> Result<usize, CollectiveError> {
        let size = self.size() as usize;
        require(operation, count.is_multiple_of(size), || {
            format!("{count} elements are no equal parts for {size} ranks: give a multiple of {size}")
        })?;
        Ok(count / size)
    }

    fn require_same(&self, operation: OpName, output: usize, input: usize) -> Result<(), CollectiveError> {
        require(operation, output == input, || {
            format!("the output has {output} elements and the input {input}: give both the same length")
        })
    }
}

pub(crate) fn elements<T>(bytes: &[u8]) -> usize {
    bytes.len() / size_of::<T>()
}

pub(crate) fn require(operation: OpName, holds: bool, problem: impl FnOnce() -> String) -> Result<(), CollectiveError> {
    if holds { Ok(()) } else { Err(CollectiveError::invalid(operation, problem())) }
}
