//! The same operation on each block of a list, as one call.

use std::ops::Range;

use fulmen_kernels::{Element, ReduceOp, Stores, ValuesMut};

use crate::call::{Call, Kind};
use crate::operations::elements;
use crate::parts::{Parts, digest};
use crate::request::Output;
use crate::{CollectiveError, Data, Group};

/// Blocks of up to so many bytes are put together: a call for each takes longer than copying them.
const SHORT: usize = 32 << 10;
/// The most bytes that are.
const TOGETHER: usize = 1 << 20;

/// The blocks that go together, of so many bytes each.
fn runs(lens: &[usize]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut together = usize::MAX;
    for (at, len) in lens.iter().copied().enumerate() {
        match runs.last_mut() {
            Some(run) if len <= SHORT && together.saturating_add(len) <= TOGETHER => {
                run.end = at + 1;
                together += len;
            }
            _ => {
                runs.push(at..at + 1);
                together = if len <= SHORT { len } else { usize::MAX };
            }
        }
    }
    runs
}

impl Group {
    /// [`Group::all_reduce`] of each block of a list: gradients of many layers, or the rows of a matrix that is wider than what is
    /// reduced. Ranks have as many blocks, of the same lengths. Short ones go together.
    ///
    /// ```no_run
    /// # use fulmen_collectives::{CollectiveError, Group, ReduceOp};
    /// # fn columns(group: &Group, matrix: &mut [f32], width: usize) -> Result<(), CollectiveError> {
    /// let mut first_ten: Vec<_> = matrix.chunks_mut(width).map(|row| &mut row[..10]).collect();
    /// group.all_reduce_list(&mut first_ten, ReduceOp::Sum)
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Group::all_reduce`].
    pub fn all_reduce_list<D: Data>(&self, blocks: &mut [D], op: ReduceOp) -> Result<(), CollectiveError>
    where
        D::Element: Default,
    {
        op.supports(D::Element::DTYPE)?;
        self.list(blocks, Call { op, ..Call::of::<D::Element>(Kind::AllReduce, 0) })
    }

    /// [`Group::broadcast`] of each block of a list, as [`Group::all_reduce_list`] does it.
    ///
    /// # Errors
    /// As [`Group::broadcast`].
    pub fn broadcast_list<D: Data>(&self, blocks: &mut [D], root: u32) -> Result<(), CollectiveError>
    where
        D::Element: Default,
    {
        self.check_rank("broadcast", root)?;
        self.list(blocks, Call { root, ..Call::of::<D::Element>(Kind::Broadcast, 0) })
    }

    fn list<D: Data>(&self, blocks: &mut [D], call: Call) -> Result<(), CollectiveError>
    where
        D::Element: Default,
    {
        let lens: Vec<usize> = blocks.iter_mut().map(|block| block.output().bytes().len()).collect();
        // All calls say of which list they are, so that a rank with another one is found by the first.
        let call = Call { by_counts: true, count: digest(&lens), ..call };
        if blocks.is_empty() {
            let nothing: &mut [D::Element] = &mut [];
            return self.run(call, Parts::Listed(0), None, Output::Plain(ValuesMut::new(nothing))).map(drop);
        }
        for run in runs(&lens) {
            if let [block] = &mut blocks[run.clone()] {
                self.run(call, Parts::Listed(lens[run.start]), None, block.output())?;
                continue;
            }
            let bytes = lens[run.clone()].iter().sum();
            let mut together = vec![D::Element::default(); bytes / size_of::<D::Element>()];
            let mut at = 0;
            for block in &mut blocks[run.clone()] {
                let output = block.output();
                let count = elements::<D::Element>(output.bytes());
                ValuesMut::new(&mut together[at..at + count]).copy_from(output.bytes(), Stores::Cached);
                at += count;
            }
            self.run(call, Parts::Listed(bytes), None, Output::Plain(ValuesMut::new(&mut together)))?;
            let mut at = 0;
            let together = fulmen_kernels::as_bytes(&together);
            for block in &mut blocks[run] {
                let mut output = block.output();
                let mut values = output.values();
                let end = at + values.len();
                values.copy_from(&together[at..end], Stores::Cached);
                at = end;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_that_are_short_go_together() {
        let none: [Range<usize>; 0] = [];
        assert_eq!(runs(&[]), none);
        assert_eq!(runs(&[0, SHORT, 1]).first(), Some(&(0..3)));
        assert_eq!(runs(&[1, SHORT + 1, 1, 2]), [0..1, 1..2, 2..4]);
        let many = runs(&[SHORT; 70]);
        assert_eq!(many, [0..32, 32..64, 64..70]);
    }
}
