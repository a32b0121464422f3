//! A vector whose elements do not lie one behind the other.

use std::cell::OnceCell;
use std::fmt;

use fulmen_kernels::{Element, ValuesMut, as_bytes};

use crate::Data;
use crate::request::{Access, Input, Output, Scattered};

/// A vector that lies in blocks: a column of a matrix, the edge of a field, the gradients of several layers. All operations take it as if its
/// blocks lay one behind the other, and write nothing beside them. Ranks may have other blocks than their peers, or none but one: lengths
/// count, not where the elements are.
///
/// ```no_run
/// # use fulmen_collectives::{Blocks, CollectiveError, Group};
/// # fn halo(group: &Group, field: &mut [f32], width: usize, right: u32, left: u32) -> Result<(), CollectiveError> {
/// // The last column but one goes to the right, and the first one comes from the left.
/// let edge = Blocks::strided(&mut field[width - 2..], 1, width);
/// group.send(&edge, right, 1)?;
/// let mut halo = Blocks::strided(field, 1, width);
/// group.recv(&mut halo, left, 1)?;
/// # Ok(())
/// # }
/// ```
///
/// Its elements are copied, before an operation and after. Where blocks are long and ranks have the same ones,
/// [`Group::all_reduce_list`](crate::Group::all_reduce_list) and [`Group::broadcast_list`](crate::Group::broadcast_list) do without.
pub struct Blocks<'a, T: Element> {
    blocks: Vec<&'a mut [T]>,
    /// The elements, one behind the other, as long as they are those of the blocks.
    packed: OnceCell<Vec<T>>,
}

impl<'a, T: Element> Blocks<'a, T> {
    /// Blocks of `block` elements, of which each begins `stride` elements behind the one before it, as far as there are elements: the last
    /// one may be shorter.
    ///
    /// # Panics
    /// If the stride is 0 or less than a block.
    #[track_caller]
    pub fn strided(elements: &'a mut [T], block: usize, stride: usize) -> Blocks<'a, T> {
        assert!(stride > 0 && block <= stride, "blocks of {block} elements do not begin every {stride}");
        let first = |row: &'a mut [T]| {
            let len = row.len().min(block);
            &mut row[..len]
        };
        elements.chunks_mut(stride).map(first).collect()
    }

    /// How many elements it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.iter().map(|block| block.len()).sum()
    }

    /// Whether it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a, T: Element> FromIterator<&'a mut [T]> for Blocks<'a, T> {
    fn from_iter<I: IntoIterator<Item = &'a mut [T]>>(blocks: I) -> Blocks<'a, T> {
        Blocks { blocks: blocks.into_iter().collect(), packed: OnceCell::new() }
    }
}

impl<T: Element> Data for Blocks<'_, T> {
    type Element = T;
}

impl<T: Element> Access for Blocks<'_, T> {
    fn input(&self) -> Input<'_> {
        Input::Plain(as_bytes(self.packed.get_or_init(|| self.blocks.concat())))
    }

    fn output(&mut self) -> Output<'_> {
        let packed = self.packed.take().unwrap_or_else(|| self.blocks.concat());
        Output::Scattered(Box::new(Packed { packed, blocks: &mut self.blocks }))
    }
}

impl<T: Element> fmt::Debug for Blocks<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dtype, blocks) = (T::DTYPE, self.blocks.len());
        f.debug_struct("Blocks").field("dtype", &dtype).field("len", &self.len()).field("blocks", &blocks).finish()
    }
}

/// Elements on their way: into their blocks in the end.
struct Packed<'p, 'a, T: Element> {
    packed: Vec<T>,
    blocks: &'p mut [&'a mut [T]],
}

impl<T: Element> Scattered for Packed<'_, '_, T> {
    fn bytes(&self) -> &[u8] {
        as_bytes(&self.packed)
    }

    fn values(&mut self) -> ValuesMut<'_> {
        ValuesMut::new(&mut self.packed)
    }
}

impl<T: Element> Drop for Packed<'_, '_, T> {
    fn drop(&mut self) {
        let mut rest = &self.packed[..];
        for block in &mut *self.blocks {
            let (own, behind) = rest.split_at(block.len());
            block.copy_from_slice(own);
            rest = behind;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_end_with_the_elements() {
        let mut elements: Vec<u8> = (0..11).collect();
        let column = Blocks::strided(&mut elements[1..], 2, 4);
        assert!(matches!(column.input(), Input::Plain([1, 2, 5, 6, 9, 10])) && column.len() == 6);
        assert!(matches!(Blocks::strided(&mut elements[..9], 2, 4).input(), Input::Plain([0, 1, 4, 5, 8])));
        assert!(Blocks::strided(&mut elements, 0, 4).is_empty() && Blocks::<u8>::strided(&mut [], 3, 3).is_empty());
        assert_eq!(Blocks::strided(&mut elements, 3, 3).len(), 11);
    }

    #[test]
    fn what_was_read_before_is_not_what_is_read_after_it_was_written() {
        let mut elements = [0_u8; 6];
        let mut column = Blocks::strided(&mut elements, 1, 2);
        assert!(matches!(column.input(), Input::Plain([0, 0, 0])));
        {
            let mut output = column.output();
            let _ = output.values().bytes_mut().map(|bytes| bytes.fill(7));
        }
        assert!(matches!(column.input(), Input::Plain([7, 7, 7])));
        assert_eq!(elements, [7, 0, 7, 0, 7, 0]);
    }
}
