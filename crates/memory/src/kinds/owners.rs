//! What frees memory when the region that was made of it is gone.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::KindError;
use crate::Region;

/// Memory of the C library's allocator.
pub(super) struct Allocated {
    start: NonNull<u8>,
}

// SAFETY: the allocation is reached through its region alone, and may be freed on any thread.
unsafe impl Send for Allocated {}
// SAFETY: as above; nothing is reached through a shared reference.
unsafe impl Sync for Allocated {}

impl Allocated {
    /// # Safety
    /// `start` came from the C library's allocator, and nobody else frees it.
    pub(super) unsafe fn new(start: NonNull<u8>) -> Allocated {
        Allocated { start }
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: it came from the C library's allocator, and is freed here only.
        unsafe { libc::free(self.start.as_ptr().cast()) }
    }
}

/// A mapping of this process.
pub(super) struct Mapped {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is reached through its region alone, and may be unmapped on any thread.
unsafe impl Send for Mapped {}
// SAFETY: as above; nothing is reached through a shared reference.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps `len` bytes without a file.
    pub(super) fn anonymous(len: usize, flags: MapFlags) -> Result<Mapped, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses an unused range; nothing of this process changes.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }?;
        // SAFETY: it was just mapped, for nobody else.
        Ok(unsafe { Mapped::new(start.cast(), len) })
    }

    /// Maps the first `len` bytes of a file, shared.
    pub(super) fn shared(fd: BorrowedFd<'_>, len: usize) -> Result<Mapped, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses an unused range; nothing of this process changes.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0) }?;
        // SAFETY: it was just mapped, for nobody else.
        Ok(unsafe { Mapped::new(start.cast(), len) })
    }

    /// # Safety
    /// The range is a mapping of `len` bytes that nobody else unmaps.
    pub(super) unsafe fn new(start: *mut u8, len: usize) -> Mapped {
        Mapped { start: NonNull::new(start).expect("the system maps nothing at address zero unless asked to"), len }
    }

    /// The whole mapping as a region.
    pub(super) fn into_region(self) -> Result<Region, KindError> {
        let (start, len) = (self.start, self.len);
        // SAFETY: the mapping is readable and writable and lasts until it is dropped; nobody else knows it.
        unsafe { adopt(start, len, self) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range is a mapping of this length that is unmapped here only.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, Ok(()), "a mapping of this process can be unmapped");
    }
}

/// # Safety
/// As [`Region::adopt`].
pub(super) unsafe fn adopt<T: Any + Send + Sync>(
    start: NonNull<u8>,
    len: usize,
    owner: T,
) -> Result<Region, KindError> {
    // SAFETY: the caller promises what it asks for.
    Ok(unsafe { Region::adopt(start, len, Box::new(owner)) }?)
}
