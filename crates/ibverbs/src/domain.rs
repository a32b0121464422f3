//! Protection domains.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fulmen_verbs::ProtectionDomain;

use crate::context::Context;
use crate::error::{Call, refuse};
use crate::export::export;
use crate::ffi::*;
use crate::thunderbolt;
use crate::users::{User, Users};

/// A protection domain.
#[repr(C)]
pub(crate) struct Pd {
    c: UnsafeCell<ibv_pd>,
    /// The device's own.
    pub(crate) device: Arc<dyn ProtectionDomain>,
    /// What was made of it and not destroyed.
    pub(crate) users: Users,
    _user: User,
    /// Its place among those of the device.
    _counted: User,
}

impl Pd {
    /// The domain that the program means.
    ///
    /// # Safety
    /// `raw` came from `ibv_alloc_pd`, and was not given back, nor is it while the reference lives.
    pub(crate) unsafe fn of<'a>(raw: *mut ibv_pd) -> &'a Pd {
        // SAFETY: the caller's promise; each domain of this library is the first member of a `Pd`.
        unsafe { &*raw.cast::<Pd>() }
    }

    /// The open device of which it was made.
    pub(crate) fn context(&self) -> &Context {
        // SAFETY: the cell is read alone; a domain's context is open as long as it is there.
        unsafe { Context::of((*self.c.get()).context) }
    }
}

/// What the next domain is called.
static NEXT_HANDLE: AtomicU32 = AtomicU32::new(0);

export! {
    /// Makes a protection domain.
    "IBVERBS_1.1" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
        // SAFETY: the program's promise about its context.
        let open = unsafe { Context::of(context) };
        match open.device.alloc_pd() {
            Ok(device) => {
                let handle = NEXT_HANDLE.fetch_add(1, Ordering::Relaxed);
                let c = UnsafeCell::new(ibv_pd { context, handle });
                Box::into_raw(Box::new(Pd { c, device, users: Users::default(), _user: open.users.add(), _counted: thunderbolt::count_domain(open) })).cast()
            }
            Err(error) => open.fail_null("ibv_alloc_pd", Call::AllocPd, &error),
        }
    }

    /// Destroys a protection domain of which nothing is left: EBUSY otherwise.
    "IBVERBS_1.1" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
        // SAFETY: the program's promise about its domain.
        let users = unsafe { Pd::of(pd) }.users.count();
        if users > 0 {
            let reason = format_args!("{users} objects of the domain are left: destroy them first");
            return refuse("ibv_dealloc_pd", libc::EBUSY, reason);
        }
        // SAFETY: it was a box when the program got it, and nothing refers to it.
        drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
        0
    }
}
