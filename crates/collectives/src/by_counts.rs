//! The operations of a group in which ranks have different lengths.

use fulmen_fabric::OpName;
use fulmen_kernels::{Element, ReduceOp};

use crate::call::{Call, Composite, Kind};
use crate::operations::{elements, require};
use crate::parts::{Parts, digest};
use crate::{CollectiveError, Data, Group};

impl Group {
    /// [`Group::all_gather`] of vectors of different lengths: `counts` says, by rank and alike on all ranks, how many elements
    /// each has.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], also if ranks give different counts, and [`CollectiveError::Invalid`] if lengths are not as the
    /// counts say.
    pub fn all_gather_v<S, D>(&self, from: &S, to: &mut D, counts: &[usize]) -> Result<(), CollectiveError>
    where
        S: Data + ?Sized,
        D: Data<Element = S::Element> + ?Sized,
    {
        const OPERATION: OpName = "all_gather";
        let (input, output) = (from.input(), to.output());
        let (call, parts) = self.counted::<D::Element>(OPERATION, Kind::AllGather, counts)?;
        self.require_own(OPERATION, "input", elements::<D::Element>(input.bytes()), counts)?;
        require_sum(OPERATION, "output", elements::<D::Element>(output.bytes()), counts)?;
        self.run(call, parts, Some(input), output).map(drop)
    }

    /// [`Group::gather`] of vectors of different lengths: `counts` says, by rank and alike on all ranks, how many elements each has.
    ///
    /// # Errors
    /// As [`Group::all_gather_v`], and [`CollectiveError::Invalid`] if there is no such rank.
    pub fn gather_v<S, D>(&self, from: &S, to: &mut D, counts: &[usize], root: u32) -> Result<(), CollectiveError>
    where
        S: Data + ?Sized,
        D: Data<Element = S::Element> + ?Sized,
    {
        const OPERATION: OpName = "gather";
        self.check_rank(OPERATION, root)?;
        let (input, output) = (from.input(), to.output());
        let (call, parts) = self.counted::<D::Element>(OPERATION, Kind::Gather, counts)?;
        self.require_own(OPERATION, "input", elements::<D::Element>(input.bytes()), counts)?;
        if self.rank() == root {
            require_sum(OPERATION, "output", elements::<D::Element>(output.bytes()), counts)?;
        }
        self.run(Call { root, ..call }, parts, Some(input), output).map(drop)
    }

    /// [`Group::scatter`] of parts of different lengths: `counts` says, by rank and alike on all ranks, how many elements each gets.
    ///
    /// # Errors
    /// As [`Group::all_gather_v`], and [`CollectiveError::Invalid`] if there is no such rank.
    pub fn scatter_v<S, D>(&self, from: &S, counts: &[usize], to: &mut D, root: u32) -> Result<(), CollectiveError>
    where
        S: Data + ?Sized,
        D: Data<Element = S::Element> + ?Sized,
    {
        const OPERATION: OpName = "scatter";
        self.check_rank(OPERATION, root)?;
        let (input, output) = (from.input(), to.output());
        let (call, parts) = self.counted::<D::Element>(OPERATION, Kind::Scatter, counts)?;
        self.require_own(OPERATION, "output", elements::<D::Element>(output.bytes()), counts)?;
        if self.rank() == root {
            require_sum(OPERATION, "input", elements::<D::Element>(input.bytes()), counts)?;
        }
        self.run(Call { root, ..call }, parts, Some(input), output).map(drop)
    }

    /// [`Group::reduce_scatter`] into parts of different lengths: `counts` says, by rank and alike on all ranks, how many elements
    /// each gets.
    ///
    /// # Errors
    /// As [`Group::all_gather_v`].
    pub fn reduce_scatter_v<S, D>(
        &self,
        from: &S,
        counts: &[usize],
        to: &mut D,
        op: ReduceOp,
    ) -> Result<(), CollectiveError>
    where
        S: Data + ?Sized,
        D: Data<Element = S::Element> + ?Sized,
    {
        const OPERATION: OpName = "reduce_scatter";
        op.supports(D::Element::DTYPE)?;
        let (input, output) = (from.input(), to.output());
        let (call, parts) = self.counted::<D::Element>(OPERATION, Kind::ReduceScatter, counts)?;
        self.require_own(OPERATION, "output", elements::<D::Element>(output.bytes()), counts)?;
        require_sum(OPERATION, "input", elements::<D::Element>(input.bytes()), counts)?;
        self.run(Call { op, ..call }, parts, Some(input), output).map(drop)
    }

    /// [`Group::all_to_all`] of parts of different lengths: `gives` says, by rank, how many elements of `from` this rank has for
    /// each, and `gets` how many it gets of each, in `to`.
    ///
    /// Ranks tell each other all of it first, so that this counts as two calls of the group.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`], on all ranks, if a rank expects other lengths than it is given, or,
    /// on one alone, if lengths are not as the counts say.
    pub fn all_to_all_v<S, D>(
        &self,
        from: &S,
        gives: &[usize],
        to: &mut D,
        gets: &[usize],
    ) -> Result<(), CollectiveError>
    where
        S: Data + ?Sized,
        D: Data<Element = S::Element> + ?Sized,
    {
        const OPERATION: OpName = "all_to_all";
        let size = self.size() as usize;
        for counts in [gives, gets] {
            self.check_counts(OPERATION, counts)?;
        }
        require_sum(OPERATION, "input", elements::<S::Element>(from.input().bytes()), gives)?;
        require_sum(OPERATION, "output", elements::<S::Element>(to.output().bytes()), gets)?;
        let own: Vec<u64> = gives.iter().chain(gets).map(|count| *count as u64).collect();
        let mut all = vec![0_u64; own.len() * size];
        self.tell(Composite::AllToAllV, &own, &mut all)?;
        let told = |rank: usize, place: usize| all[rank * 2 * size + place] as usize;
        for (giver, getter) in (0..size).flat_map(|giver| (0..size).map(move |getter| (giver, getter))) {
            let (given, expected) = (told(giver, getter), told(getter, size + giver));
            require(OPERATION, given == expected, || {
                format!(
                    "rank {giver} gives rank {getter} {given} elements, which expects {expected}: give both the same count"
                )
            })?;
        }
        let matrix: Vec<usize> = (0..size)
            .flat_map(|giver| (0..size).map(move |getter| (giver, getter)))
            .map(|(giver, getter)| told(giver, getter))
            .collect();
        let parts = Parts::pairs(&matrix, self.rank() as usize, size, S::Element::DTYPE);
        let parts = parts.ok_or_else(|| too_long(OPERATION))?;
        let call = Call { by_counts: true, count: digest(&matrix), ..Call::of::<S::Element>(Kind::AllToAll, 0) };
        self.run(call, parts, Some(from.input()), to.output()).map(drop)
    }

    /// A call in which each rank has its own length.
    fn counted<T: Element>(
        &self,
        operation: OpName,
        kind: Kind,
        counts: &[usize],
    ) -> Result<(Call, Parts), CollectiveError> {
        self.check_counts(operation, counts)?;
        let parts = Parts::each(counts, T::DTYPE).ok_or_else(|| too_long(operation))?;
        Ok((Call { by_counts: true, count: digest(counts), ..Call::of::<T>(kind, 0) }, parts))
    }

    fn check_counts(&self, operation: OpName, counts: &[usize]) -> Result<(), CollectiveError> {
        let (size, given) = (self.size() as usize, counts.len());
        require(operation, given == size, || format!("there are {given} counts: give one for each of the {size} ranks"))
    }

    fn require_own(&self, operation: OpName, what: &str, has: usize, counts: &[usize]) -> Result<(), CollectiveError> {
        let rank = self.rank();
        let count = counts[rank as usize];
        require(operation, has == count, || {
            format!("the {what} has {has} elements and the count of rank {rank}, which this is, says {count}")
        })
    }
}

fn require_sum(operation: OpName, what: &str, has: usize, counts: &[usize]) -> Result<(), CollectiveError> {
    let sum = counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count));
    require(operation, sum == Some(has), || match sum {
        Some(sum) => format!("the {what} has {has} elements and the counts say {sum} in all"),
        None => format!("the {what} has {has} elements and the counts say more than there is memory"),
    })
}

fn too_long(operation: OpName) -> CollectiveError {
    CollectiveError::invalid(operation, "the counts are more than there is memory")
}
