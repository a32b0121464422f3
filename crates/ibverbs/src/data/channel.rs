//! Completion channels: where completion queues tell of completions.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::cq::Cq;
use crate::context::Context;
use crate::error;
use crate::export::{export, export_waiting, waiting};
use crate::ffi::*;
use crate::pollable::Pollable;
use crate::users::{User, Users};

/// A completion channel: what the program sees of it, and what is behind.
#[repr(C)]
pub(crate) struct Channel {
    c: UnsafeCell<ibv_comp_channel>,
    events: Arc<Pollable<Arc<Source>>>,
    /// The completion queues that tell it.
    pub(super) users: Users,
    _user: User,
}

/// What a completion queue tells its channel by. It outlives the queue while a thread is about to use it.
pub(super) struct Source {
    events: Arc<Pollable<Arc<Source>>>,
    state: Mutex<SourceState>,
    acknowledged: Condvar,
}

struct SourceState {
    /// The program's completion queue and its context; none before it was made and after it was destroyed.
    queue: Option<(usize, usize)>,
    /// Events that the program got and did not acknowledge.
    unacknowledged: u64,
}

impl Source {
    fn state(&self) -> MutexGuard<'_, SourceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names the completion queue, as the program knows it.
    pub(super) fn open(&self, queue: *mut ibv_cq, context: *mut c_void) {
        self.state().queue = Some((queue as usize, context as usize));
    }

    /// Tells the channel. Never waits for the program.
    pub(super) fn announce(self: &Arc<Source>) {
        let state = self.state();
        if state.queue.is_some() {
            self.events.push(self.clone());
        }
    }

    /// Counts an event that the program gets; none if the completion queue is gone.
    fn deliver(&self) -> Option<(usize, usize)> {
        let mut state = self.state();
        state.unacknowledged += u64::from(state.queue.is_some());
        state.queue
    }

    fn acknowledge(&self, count: u32) {
        let mut state = self.state();
        state.unacknowledged = state.unacknowledged.saturating_sub(count.into());
        self.acknowledged.notify_all();
    }

    /// Forgets the completion queue: drops the events that the program did not get, and waits until it has acknowledged the
    /// others.
    pub(super) fn close(self: &Arc<Source>) {
        self.state().queue = None;
        self.events.retain(|source| !Arc::ptr_eq(source, self));
        let mut state = self.state();
        while state.unacknowledged > 0 {
            state = self.acknowledged.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Channel {
    /// The channel that the program means.
    ///
    /// # Safety
    /// `raw` came from `ibv_create_comp_channel`, and is not destroyed while the reference lives.
    pub(super) unsafe fn of<'a>(raw: *mut ibv_comp_channel) -> &'a Channel {
        // SAFETY: the caller's promise; the program's part comes first.
        unsafe { &*raw.cast() }
    }

    /// By which a new completion queue tells this channel.
    pub(super) fn source(&self) -> Arc<Source> {
        let state = Mutex::new(SourceState { queue: None, unacknowledged: 0 });
        Arc::new(Source { events: self.events.clone(), state, acknowledged: Condvar::new() })
    }

    /// The completion queue that the next event is about, and its context.
    fn next(&self) -> Option<(usize, usize)> {
        loop {
            if let Some(queue) = self.events.pop()?.deliver() {
                return Some(queue);
            }
        }
    }
}

export! {
    /// Makes a completion channel, whose `fd` the program may poll and set to non-blocking.
    "IBVERBS_1.0" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
        // SAFETY: an open device.
        let device = unsafe { Context::of(context) };
        let events = match Pollable::new() {
            Ok(events) => Arc::new(events),
            Err(cause) => {
                let errno = cause.raw_os_error().unwrap_or(libc::EMFILE);
                return error::refuse_null("ibv_create_comp_channel", errno, cause);
            }
        };
        let c = UnsafeCell::new(ibv_comp_channel { context, fd: events.fd(), refcnt: 0 });
        let channel = Channel { c, events, users: Users::default(), _user: device.users.add() };
        Box::into_raw(Box::new(channel)).cast()
    }

    /// Destroys a completion channel; EBUSY while completion queues use it.
    "IBVERBS_1.0" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
        // SAFETY: a channel that lives.
        let users = unsafe { Channel::of(channel) }.users.count();
        if users > 0 {
            let why = format!("{users} completion queues use the channel: destroy them first");
            return error::refuse("ibv_destroy_comp_channel", libc::EBUSY, why);
        }
        // SAFETY: it was a box, and the program gives it up.
        drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
        0
    }

    /// Acknowledges events of a completion queue.
    "IBVERBS_1.1" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
        // SAFETY: a completion queue that lives.
        if let Some(source) = unsafe { Cq::of(cq) }.source() {
            source.acknowledge(nevents);
        }
    }
}

export_waiting! {
    /// Waits for the next event of a channel, unless its descriptor does not block. -1 and `errno` otherwise.
    "IBVERBS_1.1" fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int {
        // SAFETY: a channel that lives.
        let fd = unsafe { (*channel).fd };
        waiting("ibv_get_cq_event", fd, || {
            // SAFETY: as above.
            let (queue, context) = unsafe { Channel::of(channel) }.next()?;
            // SAFETY: the program's places for both.
            unsafe {
                *cq = queue as *mut ibv_cq;
                *cq_context = context as *mut c_void;
            }
            Some(0)
        })
    }
}
