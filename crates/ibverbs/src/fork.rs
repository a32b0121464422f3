//! What `fork` means for registered memory: nothing. Peers reach the pages of the process that registered them by its
//! own page tables, so that a copy that either side makes of a page after a fork is followed.

use std::ffi::{c_int, c_void};

use crate::export::export;
use crate::ffi::*;

export! {
    /// Makes memory safe against forks, which it is.
    "IBVERBS_1.1" fn ibv_fork_init() -> c_int {
        0
    }

    /// Whether that was needed.
    "IBVERBS_1.13" fn ibv_is_fork_initialized() -> ibv_fork_status {
        IBV_FORK_UNNEEDED
    }

    /// Keeps children from a range, for drivers.
    "IBVERBS_1.1" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
        0
    }

    /// Lets children have it again.
    "IBVERBS_1.1" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
        0
    }
}
