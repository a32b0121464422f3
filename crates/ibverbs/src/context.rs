//! An open device.

use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::sync::Arc;

use fulmen_soft::Profile;
use fulmen_verbs::{Device, VerbsError};

use crate::config::Config;
use crate::error::{self, Call};
use crate::events::Events;
use crate::ffi::*;
use crate::memory::Memory;
use crate::users::Users;

/// An open device: what the program sees of it, and what is behind.
#[repr(C)]
pub(crate) struct Context {
    /// The program has the address of its last member.
    c: UnsafeCell<verbs_context>,
    /// The device.
    pub(crate) device: Arc<dyn Device>,
    /// What the environment asked for.
    pub(crate) config: &'static Config,
    /// Its registrations.
    pub(crate) memory: Memory,
    /// Its asynchronous events.
    pub(crate) events: Arc<Events>,
    /// What was made of it and not destroyed.
    pub(crate) users: Users,
}

// SAFETY: the part that the program sees is changed by the program alone, which synchronizes itself.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Puts the parts together. The program's part is `c`, in which the operations are set.
    pub(crate) fn new(
        c: verbs_context,
        device: Arc<dyn Device>,
        config: &'static Config,
        events: Arc<Events>,
    ) -> Box<Context> {
        let (memory, users) = (Memory::default(), Users::default());
        Box::new(Context { c: UnsafeCell::new(c), device, config, memory, events, users })
    }

    /// The open device that the program means.
    ///
    /// # Safety
    /// `raw` came from `ibv_open_device`, and was not closed, nor is it while the reference lives.
    #[inline]
    pub(crate) unsafe fn of<'a>(raw: *mut ibv_context) -> &'a Context {
        // SAFETY: the caller's promise; every context of this library is a part of a `Context`.
        unsafe { &*raw.byte_sub(offset_of!(verbs_context, context)).cast::<Context>() }
    }

    /// What the program has of it.
    pub(crate) fn raw(&self) -> *mut ibv_context {
        // Only an address inside of the cell is computed.
        self.c.get().wrapping_byte_add(offset_of!(verbs_context, context)).cast()
    }

    /// Takes it back from the program.
    ///
    /// # Safety
    /// As [`Context::of`], and nobody uses it from now on.
    pub(crate) unsafe fn take(raw: *mut ibv_context) -> Box<Context> {
        // SAFETY: the caller's promise; it was a `Box` when the program got it.
        unsafe { Box::from_raw(raw.byte_sub(offset_of!(verbs_context, context)).cast::<Context>()) }
    }

    /// The profile of the device.
    pub(crate) fn profile(&self) -> Profile {
        self.config.profile
    }

    /// Logs why a call failed, sets `errno`, and gives its (positive) number.
    pub(crate) fn fail(&self, name: &str, call: Call, error: &VerbsError) -> i32 {
        error::fail(self.profile(), name, call, error)
    }

    /// The same for a call that gives NULL.
    pub(crate) fn fail_null<T>(&self, name: &str, call: Call, error: &VerbsError) -> *mut T {
        self.fail(name, call, error);
        std::ptr::null_mut()
    }
}
