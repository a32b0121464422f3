use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::pool::Lease;
use crate::{Exposed, Pool, Region};

/// Types whose every bit pattern is a value and that have no padding: numbers, arrays of them, and structures that
/// derive zerocopy's traits.
pub trait Plain: FromBytes + IntoBytes + Immutable + Copy + Send + Sync + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + Copy + Send + Sync + 'static> Plain for T {}

/// Exclusive memory out of a [`Pool`]: nobody else reads or writes it, so that it gives slices.
///
/// Starts at a multiple of 64 bytes. Returns to its pool when dropped. What it holds at first is what its last user
/// left there.
pub struct Block {
    lease: Lease,
    len: usize,
}

impl Block {
    pub(crate) fn new(lease: Lease, len: usize) -> Block {
        Block { lease, len }
    }

    /// Its length in bytes, as asked for.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it starts in its region, in bytes.
    #[inline]
    #[must_use]
    pub fn offset(&self) -> usize {
        self.lease.offset()
    }

    /// Its first address in this process.
    #[inline]
    #[must_use]
    pub fn addr(&self) -> usize {
        self.region().addr() + self.offset()
    }

    /// The region in which it lies.
    #[inline]
    #[must_use]
    pub fn region(&self) -> &Region {
        self.pool().region()
    }

    /// The pool to which it returns.
    #[inline]
    #[must_use]
    pub fn pool(&self) -> &Pool {
        self.lease.pool()
    }

    /// Its bytes as values.
    ///
    /// # Panics
    /// If the length is no multiple of the type's size, the type has no size, or it needs an alignment of more than 64
    /// bytes that the block happens not to have.
    #[must_use]
    #[track_caller]
    pub fn as_slice<T: Plain>(&self) -> &[T] {
        let count = self.count::<T>();
        // SAFETY: the range lies inside a mapping that the lease keeps, belongs to this block alone (the pool cuts no
        // overlapping blocks and the region is not exposed), is aligned for `T` (checked), and every bit pattern is a
        // valid `T`.
        unsafe { std::slice::from_raw_parts(self.start().cast(), count) }
    }

    /// Its bytes as values, to be written.
    ///
    /// # Panics
    /// As [`Block::as_slice`].
    #[must_use]
    #[track_caller]
    pub fn as_mut_slice<T: Plain>(&mut self) -> &mut [T] {
        let count = self.count::<T>();
        // SAFETY: as in `as_slice`; the block is borrowed exclusively, and a pool's region is writable.
        unsafe { std::slice::from_raw_parts_mut(self.start().cast(), count) }
    }

    /// Lets others write the memory. It becomes a block again with [`Exposed::into_block`].
    #[must_use]
    pub fn into_exposed(self) -> Exposed {
        Exposed::from_block(self)
    }

    fn start(&self) -> *mut u8 {
        self.region().as_ptr().wrapping_add(self.offset())
    }

    #[track_caller]
    fn count<T>(&self) -> usize {
        let size = size_of::<T>();
        assert!(size > 0, "a type of no size has no slices in a block");
        assert!(
            self.len.is_multiple_of(size),
            "a block of {} bytes holds no whole number of {size}-byte values",
            self.len
        );
        let addr = self.addr();
        assert!(
            addr.is_multiple_of(align_of::<T>()),
            "address {addr:#x} is not aligned to the type's {} bytes",
            align_of::<T>()
        );
        self.len / size
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("region", &self.region().id())
            .field("offset", &self.offset())
            .field("len", &self.len)
            .finish()
    }
}
