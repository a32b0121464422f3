//! Taking memory back from other processes that map it.
//!
//! The region's addresses are mapped anew: as a *private* view of the same file, in one step of the system. A private
//! page shows the file's bytes, also those that others write, until this process writes to it; with that it becomes a copy
//! that nobody else has. So each page that is in use is made such a copy. Stores of this process before the step are in
//! the file, and so in the copy; stores after it make the copy themselves. None is lost in between: a thread that touches
//! a page while its mapping changes waits for the system.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::{Backing, Region, RegionError};
use crate::page_size;

impl Region {
    /// Takes the region back. `used` are the ranges in use, in order. One call at a time.
    pub(crate) fn take_back(&self, used: &[Range<usize>]) -> Result<(), RegionError> {
        let mapping = &*self.mapping;
        let fd = match &mapping.backing {
            Backing::Made(fd) => fd.as_fd(),
            Backing::Received(_) => return Err(RegionError::CannotTakeBack { what: "another process's region" }),
            Backing::File(_) => return Err(RegionError::CannotTakeBack { what: "a mapped file" }),
            Backing::Adopted { .. } => return Err(RegionError::CannotTakeBack { what: "adopted memory" }),
        };
        // Never twice: the copies would be lost.
        if !mapping.private.load(Ordering::Acquire) {
            make_private(mapping.start, mapping.len, fd)
                .map_err(|cause| RegionError::system("take back", mapping.len, cause))?;
            mapping.private.store(true, Ordering::Release);
        }
        for pages in pages(used) {
            copy(self, &pages).map_err(|cause| RegionError::system("copy", pages.len(), cause))?;
        }
        Ok(())
    }
}

/// The pages in which ranges lie that are in order, each once.
fn pages(ranges: &[Range<usize>]) -> Vec<Range<usize>> {
    let page = page_size();
    let mut pages: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        let (start, end) = (range.start / page * page, range.end.next_multiple_of(page));
        match pages.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => pages.push(start..end),
        }
    }
    pages
}

/// Maps the file privately where it was mapped shared.
fn make_private(start: NonNull<u8>, len: usize, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // The pages that are copied are counted when they are, not the whole region.
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    match map_over(start, len, fd, flags) {
        Ok(()) => Ok(()),
        Err(cause) => {
            // The system may have taken the old mapping away before it failed. With nothing at these addresses, this
            // process would soon be ended by a signal; it ends here, where it can be told why.
            if map_over(start, len, fd, MapFlags::SHARED | MapFlags::FIXED).is_err() {
                eprintln!("fulmen: the system took a region's memory away and does not give it back: {cause}");
                std::process::abort();
            }
            Err(cause)
        }
    }
}

fn map_over(start: NonNull<u8>, len: usize, fd: BorrowedFd<'_>, flags: MapFlags) -> Result<(), Errno> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the range is that of a live mapping of the same file at the same offset, made by `map` and owned by the
    // region, so that nothing else lies there. Either mapping shows the same bytes at the same addresses; references to
    // bytes of blocks stay valid, and no store is lost (see the module).
    unsafe { rustix::mm::mmap(start.as_ptr().cast(), len, protection, flags, fd, 0) }.map(drop)
}

/// Makes each page a copy of this process's own.
#[cfg(target_os = "linux")]
fn copy(region: &Region, pages: &Range<usize>) -> Result<(), Errno> {
    use rustix::mm::Advice;

    let start = region.as_ptr().wrapping_add(pages.start);
    // SAFETY: the pages lie inside the region's mapping. The system does what a write to each of them would do, without
    // one: no byte changes for any thread of this process.
    match unsafe { rustix::mm::madvise(start.cast(), pages.len(), Advice::LinuxPopulateWrite) } {
        // Linux before 5.14 does not know it.
        Err(Errno::INVAL) => touch(region, pages),
        done => done?,
    }
    Ok(())
}

/// Makes each page a copy of this process's own.
#[cfg(not(target_os = "linux"))]
fn copy(region: &Region, pages: &Range<usize>) -> Result<(), Errno> {
    touch(region, pages);
    Ok(())
}

/// Writes to each page without changing it: adds 0 to its first byte in one step, beside whatever else threads do.
fn touch(region: &Region, pages: &Range<usize>) {
    for at in pages.clone().step_by(page_size()) {
        let byte = region.as_ptr().wrapping_add(at);
        // SAFETY: inside the region's mapping, which is writable. A block's owner may read and write the byte by plain
        // accesses meanwhile. The addition is one instruction (or one exclusive pair) of the processor, which stores the
        // very byte that is there or fails: it changes no value that anybody sees, and hides no store.
        let byte = unsafe { AtomicU8::from_ptr(byte) };
        // A zero that the compiler knows would let it leave the store out.
        byte.fetch_add(std::hint::black_box(0), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_named_once_and_in_order() {
        let page = page_size();
        assert_eq!(pages(&[]), []);
        assert_eq!(pages(&[0..64, 64..128]), std::slice::from_ref(&(0..page)));
        assert_eq!(pages(&[10..page + 1, 3 * page..3 * page + 1]), [0..2 * page, 3 * page..4 * page]);
        assert_eq!(pages(&[10..page, page..page + 64]), std::slice::from_ref(&(0..2 * page)));
    }

    /// What macOS does, and Linux before 5.14: tried where it can be. Not by Miri, which has no files in memory.
    #[cfg(not(miri))]
    #[test]
    fn a_page_that_was_touched_is_a_copy() {
        let page = page_size();
        let region = Region::alloc(2 * page).unwrap();
        let Backing::Made(fd) = &region.mapping.backing else { unreachable!() };
        let other = Region::from_fd(fd.try_clone().unwrap(), 2 * page).unwrap().expose().unwrap();
        let own = region.expose().unwrap();
        own.fill(0..2 * page, 1);
        make_private(region.mapping.start, 2 * page, fd.as_fd()).unwrap();
        touch(&region, &(0..page));
        other.fill(0..2 * page, 2);
        let mut bytes = vec![0; 2 * page];
        own.read(0, &mut bytes);
        assert!(bytes[..page].iter().all(|byte| *byte == 1), "the copy");
        assert!(bytes[page..].iter().all(|byte| *byte == 2), "a page that nobody touched shows the file");
    }
}
