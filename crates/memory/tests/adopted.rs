//! Memory of somebody else, adopted: what can be done to it, in tests that need no system call and so run under Miri, too.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::thread;

use fulmen_memory::{Pool, Region, page_size};

/// Pages of the heap, freed on drop.
struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation is reached through its region alone, and may be freed on any thread.
unsafe impl Send for Pages {}
// SAFETY: as above; nothing is reached through a shared reference.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and the region that lent it out is gone.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

fn adopt(pages: usize) -> Region {
    let layout = Layout::from_size_align(pages * page_size(), page_size()).expect("a layout");
    // SAFETY: the layout is not empty.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
    let owner = Pages { start, layout };
    // SAFETY: the pages live until `owner` is dropped, and nobody else knows them.
    unsafe { Region::adopt(start, layout.size(), Box::new(owner)) }.expect("pages are adopted")
}

#[test]
fn blocks_of_one_pool_are_used_side_by_side() {
    let pool = Pool::new(&adopt(2)).expect("a pool");
    let mut left = pool.take(256).expect("a block");
    let mut right = pool.take(256).expect("a block");
    let (a, b) = (left.as_mut_slice::<u32>(), right.as_mut_slice::<u32>());
    a.fill(1);
    b.fill(2);
    assert!(a.iter().all(|value| *value == 1) && b.iter().all(|value| *value == 2));
    thread::scope(|scope| {
        scope.spawn(|| left.as_mut_slice::<u8>().fill(3));
        scope.spawn(|| right.as_mut_slice::<u8>().fill(4));
    });
    assert!(left.as_slice::<u8>().iter().all(|byte| *byte == 3));
    drop(left);
    assert!(right.as_slice::<u8>().iter().all(|byte| *byte == 4));
}

#[test]
fn a_block_is_exposed_and_becomes_a_block_again() {
    let pool = Pool::new(&adopt(1)).expect("a pool");
    let mut block = pool.take(64).expect("a block");
    block.as_mut_slice::<u64>()[0] = 7;
    let exposed = block.into_exposed();
    let in_flight = exposed.slice(8..16);
    thread::scope(|scope| {
        scope.spawn(|| in_flight.write(0, &9_u64.to_ne_bytes()));
        scope.spawn(|| exposed.atomic_u64(0).fetch_add(1, Ordering::Relaxed));
    });
    let exposed = exposed.into_block().expect_err("an operation still holds a part of it");
    drop(in_flight);
    let block = exposed.into_block().expect("the last handle");
    assert_eq!(block.as_slice::<u64>()[..2], [8, 9]);
}

#[test]
fn exposed_bytes_are_copied_within_and_across_regions() {
    let (from, to) = (adopt(1).expose().expect("exposed"), adopt(1).expose().expect("exposed"));
    from.write(0, &[1, 2, 3, 4]);
    from.copy_to(0, &from, 2, 4);
    from.copy_to(0, &to, 100, 6);
    to.fill(104..105, 9);
    let mut bytes = [0; 6];
    to.read(100, &mut bytes);
    assert_eq!(bytes, [1, 2, 1, 2, 9, 4]);
}

#[test]
fn words_are_handed_between_threads() {
    let memory = adopt(1).expose().expect("exposed");
    let other = memory.clone();
    thread::scope(|scope| {
        scope.spawn(move || {
            other.atomic_u32(64).store(42, Ordering::Relaxed);
            other.atomic_u32(0).store(1, Ordering::Release);
        });
        while memory.atomic_u32(0).load(Ordering::Acquire) == 0 {
            thread::yield_now();
        }
    });
    assert_eq!(memory.atomic_u32(64).load(Ordering::Relaxed), 42);
}
