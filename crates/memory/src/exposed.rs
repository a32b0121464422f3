use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};

use crate::{Block, Region, copies_past_caches, copy_in, copy_out, copy_past};

/// Memory that others may read and write at any time: a device, a peer, another process.
///
/// It gives raw copies and atomics, and no reference to its bytes. A copy that meets a write of somebody else may be
/// torn: bytes of both, in any mixture. Whoever needs more synchronizes through [`Exposed::atomic_u64`]. What a copy
/// brought is read from the memory once: it stays what it is while a peer writes on, so that it can be checked and then
/// used.
///
/// A clone is another handle to the same bytes and keeps them where they are: an operation in flight holds one.
#[derive(Clone)]
pub struct Exposed {
    hold: Arc<Hold>,
    // What `hold` could tell, by one look instead of four: words in it are polled.
    start: *mut u8,
    len: usize,
    writable: bool,
}

// SAFETY: the address is that of memory which `hold` keeps, and all access to it is by raw copies and atomics.
unsafe impl Send for Exposed {}
// SAFETY: as above.
unsafe impl Sync for Exposed {}

/// What keeps the bytes from being anything else.
enum Hold {
    Region(Region),
    Block(Block),
}

impl Hold {
    #[inline]
    fn region(&self) -> &Region {
        match self {
            Hold::Region(region) => region,
            Hold::Block(block) => block.region(),
        }
    }
}

impl Exposed {
    pub(crate) fn whole(region: Region) -> Exposed {
        let len = region.len();
        Exposed::of(Hold::Region(region), 0, len)
    }

    pub(crate) fn from_block(block: Block) -> Exposed {
        let (offset, len) = (block.offset(), block.len());
        Exposed::of(Hold::Block(block), offset, len)
    }

    fn of(hold: Hold, offset: usize, len: usize) -> Exposed {
        let (start, writable) = (hold.region().as_ptr().wrapping_add(offset), hold.region().is_writable());
        Exposed { hold: Arc::new(hold), start, len, writable }
    }

    /// Its length in bytes.
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

    /// Its first address in this process.
    #[inline]
    #[must_use]
    pub fn addr(&self) -> usize {
        self.start.addr()
    }

    /// The region in which it lies.
    #[inline]
    #[must_use]
    pub fn region(&self) -> &Region {
        self.hold.region()
    }

    /// Where it starts in its region, in bytes.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.start.addr() - self.region().addr()
    }

    /// Whether it may be written: not if its region is mapped read-only.
    #[inline]
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Its first byte, for kernels and devices. Whoever dereferences it answers for the bounds and for races, and
    /// keeps a clone of this handle meanwhile.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// A part of it, by another handle to the same bytes.
    ///
    /// # Panics
    /// If the range does not lie inside.
    #[must_use]
    #[track_caller]
    pub fn slice(&self, range: Range<usize>) -> Exposed {
        self.check(range.start, range.end.checked_sub(range.start).expect("a range starts before its end"));
        let (start, len) = (self.start.wrapping_add(range.start), range.end - range.start);
        Exposed { hold: self.hold.clone(), start, len, writable: self.writable }
    }

    /// Copies bytes out, from offset `at`.
    ///
    /// # Panics
    /// If they do not lie inside.
    #[track_caller]
    pub fn read(&self, at: usize, into: &mut [u8]) {
        self.read_by(at, into, copies_past_caches(into.len()));
    }

    /// The same past the caches of what is read into: see [`copy_past`].
    ///
    /// # Panics
    /// As [`Exposed::read`].
    #[track_caller]
    pub fn read_past(&self, at: usize, into: &mut [u8]) {
        self.read_by(at, into, true);
    }

    #[track_caller]
    fn read_by(&self, at: usize, into: &mut [u8], past: bool) {
        self.check(at, into.len());
        racing(|| {
            // SAFETY: the source lies inside a mapping that this handle keeps, the target is a slice of the caller,
            // and the two cannot overlap since exposed memory has no references. A racing writer can tear the bytes,
            // each of which is valid as `u8` whatever its value.
            unsafe {
                let (from, to, len) = (self.as_ptr().add(at), into.as_mut_ptr(), into.len());
                if past { copy_past(from, to, len) } else { copy_out(from, to, len) }
            }
        });
    }

    /// Copies bytes in, to offset `at`.
    ///
    /// # Panics
    /// If they do not lie inside, or the region cannot be written.
    #[track_caller]
    pub fn write(&self, at: usize, from: &[u8]) {
        self.check_write(at, from.len());
        racing(|| {
            // SAFETY: as in `read`, with the roles exchanged; the mapping is writable.
            unsafe { copy_in(from.as_ptr(), self.as_ptr().add(at), from.len()) }
        });
    }

    /// Sets all bytes of a range.
    ///
    /// # Panics
    /// If the range does not lie inside, or the region cannot be written.
    #[track_caller]
    pub fn fill(&self, range: Range<usize>, byte: u8) {
        let len = range.end.checked_sub(range.start).expect("a range starts before its end");
        self.check_write(range.start, len);
        racing(|| {
            // SAFETY: the range lies inside a writable mapping that this handle keeps, and has no references.
            unsafe { std::ptr::write_bytes(self.as_ptr().add(range.start), byte, len) }
        });
    }

    /// Copies `len` bytes from offset `at` to offset `to_at` of `to`, which may overlap.
    ///
    /// # Panics
    /// If one of the ranges does not lie inside, or the target's region cannot be written.
    #[track_caller]
    pub fn copy_to(&self, at: usize, to: &Exposed, to_at: usize, len: usize) {
        self.copy_by(at, (to, to_at), len, copies_past_caches(len));
    }

    /// The same past the caches, where the ranges lie apart: see [`copy_past`].
    ///
    /// # Panics
    /// As [`Exposed::copy_to`].
    #[track_caller]
    pub fn copy_past_to(&self, at: usize, to: &Exposed, to_at: usize, len: usize) {
        self.copy_by(at, (to, to_at), len, true);
    }

    #[track_caller]
    fn copy_by(&self, at: usize, (to, to_at): (&Exposed, usize), len: usize, past: bool) {
        self.check(at, len);
        to.check_write(to_at, len);
        racing(|| {
            // SAFETY: both ranges lie inside mappings that these handles keep, and have no references; where they may not overlap, they lie
            // apart.
            unsafe {
                let (from, to) = (self.as_ptr().add(at).cast_const(), to.as_ptr().add(to_at));
                match from.addr().abs_diff(to.addr()) >= len {
                    true if past => copy_past(from, to, len),
                    true => copy_in(from, to, len),
                    false => std::ptr::copy(from, to, len),
                }
            }
        });
    }

    /// A 32-bit word at offset `at`, for synchronization among the processors of this host.
    ///
    /// # Panics
    /// If it does not lie inside, is not aligned to 4 bytes, or the region cannot be written.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn atomic_u32(&self, at: usize) -> &AtomicU32 {
        self.check_atomic(at, 4);
        // SAFETY: inside a writable mapping that lives as long as `self`, aligned, and reached by no reference but
        // atomics. Every bit pattern is a valid value.
        unsafe { AtomicU32::from_ptr(self.as_ptr().add(at).cast()) }
    }

    /// A 64-bit word at offset `at`, for synchronization among the processors of this host.
    ///
    /// # Panics
    /// If it does not lie inside, is not aligned to 8 bytes, or the region cannot be written.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn atomic_u64(&self, at: usize) -> &AtomicU64 {
        self.check_atomic(at, 8);
        // SAFETY: inside a writable mapping that lives as long as `self`, aligned, and reached by no reference but
        // atomics. Every bit pattern is a valid value.
        unsafe { AtomicU64::from_ptr(self.as_ptr().add(at).cast()) }
    }

    /// All of it as 64-bit words, for synchronization among the processors of this host; what lies beyond the last whole
    /// word is left out.
    ///
    /// # Panics
    /// If it is not aligned to 8 bytes, or the region cannot be written.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn words(&self) -> &[AtomicU64] {
        let start = self.as_ptr();
        assert!(start.addr().is_multiple_of(8), "words cannot lie at address {:#x}", start.addr());
        assert!(self.writable, "the region is mapped read-only");
        // SAFETY: inside a writable mapping that lives as long as `self`, aligned, and reached by no reference but
        // atomics. Every bit pattern is a valid value.
        unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>().cast_const(), self.len / 8) }
    }

    /// Turns the last handle of a block's memory into the whole block again, whichever part of it the handle meant.
    ///
    /// What the holders of other handles wrote before they dropped them is visible in the block.
    ///
    /// # Errors
    /// The handle itself, if others exist or the memory is no block's.
    pub fn into_block(self) -> Result<Block, Exposed> {
        if let Hold::Region(_) = *self.hold {
            return Err(self);
        }
        match Arc::try_unwrap(self.hold) {
            Ok(Hold::Block(block)) => Ok(block),
            Ok(Hold::Region(_)) => unreachable!("looked at above"),
            Err(hold) => Err(Exposed { hold, ..self }),
        }
    }

    #[inline]
    #[track_caller]
    fn check(&self, at: usize, len: usize) {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at {at} do not lie in exposed memory of {} bytes", self.len);
    }

    #[inline]
    #[track_caller]
    fn check_write(&self, at: usize, len: usize) {
        self.check(at, len);
        assert!(self.writable, "the region is mapped read-only");
    }

    #[inline]
    #[track_caller]
    fn check_atomic(&self, at: usize, size: usize) {
        self.check_write(at, size);
        let addr = self.addr() + at;
        assert!(addr.is_multiple_of(size), "an atomic of {size} bytes cannot lie at address {addr:#x}");
    }
}

impl fmt::Debug for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposed")
            .field("region", &self.region().id())
            .field("offset", &self.offset())
            .field("len", &self.len)
            .finish()
    }
}

/// Runs one copy of memory that others may write meanwhile.
///
/// The fences keep the compiler from doing the copy twice, later or in part: without them it may take the source again
/// where the copy is meant, and a value that was checked would not be the value that is used.
#[inline]
fn racing(copy: impl FnOnce()) {
    compiler_fence(Ordering::SeqCst);
    copy();
    compiler_fence(Ordering::SeqCst);
}
