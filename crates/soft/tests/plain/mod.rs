//! Memory as programs allocate it: of this process alone, and no part of a file.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use fulmen_memory::{Region, RegionError};

/// Pages of the allocator, given back when they are dropped.
struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the pages belong to this value alone, and are only given back through it.
unsafe impl Send for Pages {}
// SAFETY: as above; nothing is done through a shared reference.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: they were allocated so, once, and the region that used them is gone.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// `len` bytes of zeroes, rounded up to pages.
pub fn region(len: usize) -> Result<Region, RegionError> {
    let page = rustix::param::page_size();
    let layout = Layout::from_size_align(len.next_multiple_of(page), page).expect("a size");
    // SAFETY: the layout is not empty: no test asks for no bytes.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
    let pages = Pages { start, layout };
    // SAFETY: the pages stay until the owner is dropped, and nobody has a reference to them.
    unsafe { Region::adopt(start, layout.size(), Box::new(pages)) }
}
