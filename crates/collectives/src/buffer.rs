//! Memory that peers reach, and what data operations take.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use fulmen_kernels::{Element, ValuesMut, as_bytes, copy_from_bytes};
use fulmen_memory::{Block, Exposed, Plain, Pool, Region};

use crate::p2p::{Message, Parcel};
use crate::request::{Access, Input, Output};

/// Elements in registered memory: peers reach it, so that collectives need no staging. From [`Group::alloc`].
///
/// It is used like a slice (`Deref<Target = [T]>`), except for elements of type `bool`: bytes that peers may have written
/// are no `bool`s, so that a `Buffer<bool>` is read with [`Buffer::to_vec`] and written with [`Buffer::copy_from_slice`].
///
/// When an `all_reduce` on it fails, a peer may write to its memory at any time after; the buffer then has fresh memory
/// (zeroes), and what it had before is out of use until the group has [shrunk](crate::Group::shrink) or
/// [rejoined](crate::Group::rejoin). Should there be no memory left, the buffer is empty from then on.
///
/// It can be used with the groups that come after its own. If a rank was left behind then that may still run, its memory is
/// reached by peers no more, and goes in pieces like plain memory: allocate it anew where that matters.
///
/// [`Group::alloc`]: crate::Group::alloc
pub struct Buffer<T: Element> {
    memory: Memory,
    elements: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    pub(crate) fn new(block: Block) -> Buffer<T> {
        let mut memory = Memory { pool: block.pool().clone(), block: Some(block) };
        memory.bytes_mut().fill(0);
        Buffer { memory, elements: PhantomData }
    }

    /// How many elements it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.bytes().len() / size_of::<T>()
    }

    /// Whether it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements.
    #[must_use]
    pub fn to_vec(&self) -> Vec<T>
    where
        T: Default,
    {
        let mut elements = vec![T::default(); self.len()];
        copy_from_bytes(self.memory.bytes(), &mut elements);
        elements
    }

    /// Sets all elements.
    ///
    /// # Panics
    /// If the lengths differ.
    #[track_caller]
    pub fn copy_from_slice(&mut self, elements: &[T]) {
        assert_eq!(elements.len(), self.len(), "the slice and the buffer have different lengths");
        self.memory.bytes_mut().copy_from_slice(as_bytes(elements));
    }
}

impl<T: Element + Plain> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.memory.block.as_ref().map_or(&[], Block::as_slice)
    }
}

impl<T: Element + Plain> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.memory.block.as_mut().map_or(&mut [], Block::as_mut_slice)
    }
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("dtype", &T::DTYPE).field("len", &self.len()).finish()
    }
}

/// A buffer's memory, without its type.
pub struct Memory {
    /// Missing only while it is lent, and after there was no fresh memory.
    block: Option<Block>,
    pool: Pool,
}

impl Memory {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], Block::as_slice)
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.block.as_mut().map_or(&mut [], Block::as_mut_slice)
    }

    /// Where it starts in the region of that id, if it lies there.
    pub(crate) fn at(&self, region: u64) -> Option<u64> {
        let block = self.block.as_ref()?;
        (block.region().id() == region).then_some(block.offset() as u64)
    }

    /// Lets peers write it until [`Lent::finish`].
    pub(crate) fn lend(&mut self) -> Option<Lent<'_>> {
        let exposed = self.take()?;
        Some(Lent { memory: self, exposed: Some(exposed) })
    }

    /// Gives it away for a message of one's own, until [`Memory::restore`]. Nothing if it is empty.
    pub(crate) fn take(&mut self) -> Option<Exposed> {
        self.block.take().map(Block::into_exposed)
    }

    /// Has it again after a message. Should an operation that was given up still hold it, this gets other memory that holds the same;
    /// what it was returns to the pool when the operation has ended.
    pub(crate) fn restore(&mut self, exposed: Exposed) {
        self.block = exposed.into_block().or_else(|held| self.copy_of(&held).ok_or(())).ok();
    }

    fn fresh(&self, len: usize) -> Option<Block> {
        self.pool.take(len).ok().or_else(|| private(len))
    }

    fn copy_of(&self, held: &Exposed) -> Option<Block> {
        let mut block = self.fresh(held.len())?;
        held.read(0, block.as_mut_slice());
        Some(block)
    }
}

/// A buffer's memory that peers may write. Unless it is [finished](Lent::finish), the buffer gets other memory.
pub(crate) struct Lent<'a> {
    memory: &'a mut Memory,
    /// Missing only when it was finished.
    exposed: Option<Exposed>,
}

impl Lent<'_> {
    pub(crate) fn exposed(&self) -> &Exposed {
        self.exposed.as_ref().expect("it is there until it is finished")
    }

    /// Gives it back, when no peer writes any more and no other handle is left.
    pub(crate) fn finish(mut self) {
        let exposed = self.exposed.take().expect("it is finished once");
        self.memory.block = exposed.into_block().ok();
        debug_assert!(self.memory.block.is_some(), "no operation keeps a handle beyond its end");
    }

    /// Gives it back after a message of one's own.
    pub(crate) fn retire(mut self) {
        let exposed = self.exposed.take().expect("it is retired once");
        self.memory.restore(exposed);
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let Some(exposed) = self.exposed.take() else { return };
        let len = exposed.len();
        // A peer that went on after all may write to it whenever it likes, so nobody has it again in this generation.
        let pool = exposed.into_block().map(|block| (block.pool().clone(), block.into_exposed()));
        match pool {
            Ok((pool, exposed)) => pool.withhold(exposed),
            // Some operation still has it, too.
            Err(exposed) => self.memory.pool.withhold(exposed),
        }
        self.memory.block = self.memory.fresh(len);
        self.memory.bytes_mut().fill(0);
    }
}

/// Memory of this process alone.
fn private(len: usize) -> Option<Block> {
    let region = Region::alloc(len.max(64)).ok()?;
    Pool::new(&region).ok()?.take(len).ok()
}

/// What [`Group::send`](crate::Group::send) takes: a reference to any [`Data`], or a `&mut` [`Buffer`], whose memory the
/// receiver then reaches.
pub trait Outgoing: Message {
    /// The type of its elements.
    type Element: Element;
}

impl<D: Data + ?Sized> Outgoing for &D {
    type Element = D::Element;
}

impl<D: Data + ?Sized> Message for &D {
    fn parcel<'a>(self) -> Parcel<'a>
    where
        Self: 'a,
    {
        Parcel::Plain(self.input().bytes())
    }
}

impl<T: Element> Outgoing for &mut Buffer<T> {
    type Element = T;
}

impl<T: Element> Message for &mut Buffer<T> {
    fn parcel<'a>(self) -> Parcel<'a>
    where
        Self: 'a,
    {
        Parcel::Lent(&mut self.memory)
    }
}

/// What operations work on: a [`Buffer`], plain memory (`[T]`, `Vec<T>`, `[T; N]`), or [`Blocks`](crate::Blocks) of it.
///
/// Plain memory is copied through the ranks' windows in pieces.
pub trait Data: Access {
    /// The type of its elements.
    type Element: Element;
}

impl<T: Element> Data for Buffer<T> {
    type Element = T;
}

impl<T: Element> Access for Buffer<T> {
    fn input(&self) -> Input<'_> {
        Input::Buffer(&self.memory)
    }

    fn output(&mut self) -> Output<'_> {
        Output::Buffer(&mut self.memory)
    }
}

impl<T: Element> Data for [T] {
    type Element = T;
}

impl<T: Element> Access for [T] {
    fn input(&self) -> Input<'_> {
        Input::Plain(as_bytes(self))
    }

    fn output(&mut self) -> Output<'_> {
        Output::Plain(ValuesMut::new(self))
    }
}

impl<T: Element> Data for Vec<T> {
    type Element = T;
}

impl<T: Element> Access for Vec<T> {
    fn input(&self) -> Input<'_> {
        self.as_slice().input()
    }

    fn output(&mut self) -> Output<'_> {
        Output::Plain(ValuesMut::new(self))
    }
}

impl<T: Element, const N: usize> Data for [T; N] {
    type Element = T;
}

impl<T: Element, const N: usize> Access for [T; N] {
    fn input(&self) -> Input<'_> {
        self.as_slice().input()
    }

    fn output(&mut self) -> Output<'_> {
        Output::Plain(ValuesMut::new(self))
    }
}

impl<D: Data + ?Sized> Data for &mut D {
    type Element = D::Element;
}

impl<D: Access + ?Sized> Access for &mut D {
    fn input(&self) -> Input<'_> {
        (**self).input()
    }

    fn output(&mut self) -> Output<'_> {
        (**self).output()
    }
}
