//! Ranks that are held at a certain point of a call.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fulmen_kernels::ReduceOp;

use super::{Ongoing, layout};
use crate::ranks::start;
use crate::{Buffer, CollectiveError, Group};

type Hold<'a> = Box<dyn FnOnce(&Ongoing<'_>) + 'a>;

thread_local! {
    static AGREED: RefCell<Option<Hold<'static>>> = const { RefCell::new(None) };
}

/// A rank knows where all data lies, and touches none of the others yet.
pub(super) fn agreed(ongoing: &Ongoing<'_>) {
    if let Some(hold) = AGREED.take() {
        hold(ongoing);
    }
}

/// Has this thread's next call on long data stop there.
fn hold(at: impl FnOnce(&Ongoing<'_>) + 'static) {
    AGREED.set(Some(Box::new(at)));
}

/// Elements of 64 KiB: more than goes through slots.
const COUNT: usize = 16 << 10;

type Call = fn(&Group, &Buffer<f32>, &mut Buffer<f32>) -> Result<(), CollectiveError>;

/// Rank 1 is held while rank 0 does all of its part, gives up on it, and uses its memory for other things.
fn a_rank_that_is_held(call: Call, times: usize) {
    let overwritten: &'static Barrier = Box::leak(Box::new(Barrier::new(2)));
    start(2, None, |fabric| {
        let group = Group::new(fabric).unwrap();
        let mut from = group.alloc::<f32>(COUNT).unwrap();
        let mut to = group.alloc::<f32>(COUNT * times).unwrap();
        from.fill(1.0);
        group.barrier().unwrap();
        if group.rank() == 1 {
            hold(|_| {
                overwritten.wait();
            });
            let late = call(&group, &from, &mut to).unwrap_err();
            assert!(matches!(&late, CollectiveError::Poisoned { cause } if cause.contains("rank 0")), "{late}");
            return;
        }
        call(&group.with_deadline(Duration::from_millis(500)), &from, &mut to).unwrap_err();
        from.fill(9.0);
        overwritten.wait();
    });
}

#[test]
fn a_rank_that_pulls_what_was_overwritten_hears_of_it() {
    a_rank_that_is_held(|group, from, to| group.all_gather(from, to), 2);
}

#[test]
fn a_rank_that_reduces_what_was_overwritten_hears_of_it() {
    a_rank_that_is_held(|group, from, to| group.all_reduce_into(from, to, ReduceOp::Sum), 1);
}

#[test]
fn a_root_that_gets_what_was_overwritten_hears_of_it() {
    a_rank_that_is_held(|group, from, to| group.gather(from, to, 1), 2);
    a_rank_that_is_held(|group, from, to| group.reduce_into(from, to, ReduceOp::Sum, 1), 1);
}

#[test]
fn a_rank_that_exchanges_what_was_overwritten_hears_of_it() {
    a_rank_that_is_held(|group, from, to| group.all_to_all(from, to), 1);
    a_rank_that_is_held(|group, from, to| group.scan_into(from, to, ReduceOp::Sum), 1);
}

#[test]
fn a_rank_that_panics_in_a_call_tells_the_others() {
    start(2, None, |fabric| {
        let group = Group::new(fabric).unwrap();
        let mut data = vec![1f32; COUNT];
        if group.rank() == 0 {
            hold(|_| panic!("as planned"));
            catch_unwind(AssertUnwindSafe(|| group.all_reduce(&mut data, ReduceOp::Sum))).unwrap_err();
        } else {
            let error = group.all_reduce(&mut data, ReduceOp::Sum).unwrap_err();
            assert!(matches!(&error, CollectiveError::Poisoned { cause } if cause.contains("panicked")), "{error}");
        }
    });
}

#[test]
fn who_comes_last_wakes_the_others_before_its_long_work() {
    start(2, None, |fabric| {
        let group = Group::new(fabric).unwrap();
        let (from, mut to) = (group.alloc::<f32>(COUNT).unwrap(), group.alloc::<f32>(COUNT).unwrap());
        for _ in 0..2 {
            if group.rank() == 1 {
                let (windows, calls) = group.windows();
                let line = layout::announcement(calls + 1);
                while windows.words(0)[line].load(Ordering::Acquire) != calls + 1 {
                    std::thread::yield_now();
                }
                hold(|ongoing| assert!(!ongoing.owes_ring, "rank 0 may be parked"));
            }
            group.all_reduce_into(&from, &mut to, ReduceOp::Sum).unwrap();
        }
    });
}

/// Rank 0 of a scan takes nothing. It is done before rank 1 has begun, for which rank 2 waits.
#[test]
fn whoever_is_done_early_does_not_leave_those_that_wait_for_others() {
    start(3, None, |fabric| {
        let group = Group::new(fabric).unwrap();
        group.barrier().unwrap();
        if group.rank() == 1 {
            hold(|_| std::thread::sleep(Duration::from_millis(500)));
        }
        let mut data = vec![1f32; 4 * COUNT];
        group.scan(&mut data, ReduceOp::Sum).unwrap();
        assert!(data.iter().all(|sum| *sum == (group.rank() + 1) as f32));
    });
}
