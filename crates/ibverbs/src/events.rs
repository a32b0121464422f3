//! Asynchronous events: from the device's thread to the program's.

use std::collections::HashMap;
use std::ffi::c_int;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use fulmen_verbs::AsyncEvent;

use crate::context::Context;
use crate::export::{export, export_waiting, waiting};
use crate::ffi::*;
use crate::pollable::Pollable;

/// What an event is about, as devices name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// A queue pair, by its number.
    Qp(u32),
    /// A completion queue, by its number.
    Cq(u32),
    /// A shared receive queue, by its number.
    Srq(u32),
}

#[derive(Default)]
struct Object {
    address: usize,
    /// Events that the program got and did not acknowledge.
    unacknowledged: usize,
}

/// The events of one open device.
pub(crate) struct Events {
    queue: Pollable<(Option<Subject>, AsyncEvent)>,
    objects: Mutex<HashMap<Subject, Object>>,
    acknowledged: Condvar,
}

impl Events {
    pub(crate) fn new() -> io::Result<Arc<Events>> {
        Ok(Arc::new(Events { queue: Pollable::new()?, objects: Mutex::default(), acknowledged: Condvar::new() }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.queue.fd()
    }

    fn objects(&self) -> MutexGuard<'_, HashMap<Subject, Object>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an object known by the address that the program has of it.
    pub(crate) fn add<T>(&self, subject: Subject, object: *mut T) {
        self.objects().insert(subject, Object { address: object as usize, unacknowledged: 0 });
    }

    /// Forgets an object that is destroyed: waits until the program has acknowledged the events about it that it got, and
    /// drops those that it did not get.
    pub(crate) fn remove(&self, subject: Subject) {
        let mut objects = self.objects();
        while objects.get(&subject).is_some_and(|object| object.unacknowledged > 0) {
            objects = self.acknowledged.wait(objects).unwrap_or_else(PoisonError::into_inner);
        }
        objects.remove(&subject);
        self.queue.retain(|(about, _)| *about != Some(subject));
    }

    /// Takes an event from the device. Never waits for the program.
    pub(crate) fn push(&self, event: AsyncEvent) {
        let subject = match event {
            AsyncEvent::QueuePairFatal { qp_num }
            | AsyncEvent::Established { qp_num }
            | AsyncEvent::LastReceive { qp_num } => Some(Subject::Qp(qp_num)),
            AsyncEvent::SharedReceiveLimit { number } => Some(Subject::Srq(number)),
            AsyncEvent::CompletionQueueFatal { number } => Some(Subject::Cq(number)),
            _ => None,
        };
        let objects = self.objects();
        // An object that is gone cannot be told of.
        if subject.is_none_or(|subject| objects.contains_key(&subject)) {
            self.queue.push((subject, event));
        }
    }

    /// The oldest event, as the program sees it, if there is one.
    pub(crate) fn get(&self) -> Option<ibv_async_event> {
        loop {
            let (subject, event) = self.queue.pop()?;
            let Some(event_type) = event_type(event) else { continue };
            let address = match subject {
                None => 0,
                Some(subject) => match self.objects().get_mut(&subject) {
                    Some(object) => {
                        object.unacknowledged += 1;
                        object.address
                    }
                    None => continue,
                },
            };
            let element = match (subject, event) {
                (Some(Subject::Qp(_)), _) => ibv_async_event_element { qp: address as *mut ibv_qp },
                (Some(Subject::Cq(_)), _) => ibv_async_event_element { cq: address as *mut ibv_cq },
                (Some(Subject::Srq(_)), _) => ibv_async_event_element { srq: address as *mut ibv_srq },
                (None, AsyncEvent::PortActive { port } | AsyncEvent::PortError { port }) => {
                    ibv_async_event_element { port_num: port.into() }
                }
                (None, _) => ibv_async_event_element { cq: std::ptr::null_mut() },
            };
            return Some(ibv_async_event { element, event_type });
        }
    }

    /// One event about the object at `address` is acknowledged.
    pub(crate) fn acknowledge(&self, address: usize) {
        let mut objects = self.objects();
        if let Some(object) = objects.values_mut().find(|object| object.address == address) {
            object.unacknowledged = object.unacknowledged.saturating_sub(1);
            self.acknowledged.notify_all();
        }
    }
}

fn event_type(event: AsyncEvent) -> Option<ibv_event_type> {
    Some(match event {
        AsyncEvent::QueuePairFatal { .. } => IBV_EVENT_QP_FATAL,
        AsyncEvent::Established { .. } => IBV_EVENT_COMM_EST,
        AsyncEvent::LastReceive { .. } => IBV_EVENT_QP_LAST_WQE_REACHED,
        AsyncEvent::SharedReceiveLimit { .. } => IBV_EVENT_SRQ_LIMIT_REACHED,
        AsyncEvent::CompletionQueueFatal { .. } => IBV_EVENT_CQ_ERR,
        AsyncEvent::PortActive { .. } => IBV_EVENT_PORT_ACTIVE,
        AsyncEvent::PortError { .. } => IBV_EVENT_PORT_ERR,
        AsyncEvent::DeviceFatal => IBV_EVENT_DEVICE_FATAL,
        _ => return None,
    })
}

export_waiting! {
    /// The next asynchronous event; waits for one unless the descriptor does not block. -1 and `errno` otherwise.
    "IBVERBS_1.1" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
        // SAFETY: the program's promise about its context.
        let fd = unsafe { (*context).async_fd };
        // A device that is closed meanwhile ends the wait, after which it is not looked at.
        waiting("ibv_get_async_event", fd, || {
            // SAFETY: as above.
            let got = unsafe { Context::of(context) }.events.get()?;
            // SAFETY: the program's promise about its structure.
            unsafe { *event = got };
            Some(0)
        })
    }
}

export! {
    /// Acknowledges an event, so that what it was about can be destroyed.
    "IBVERBS_1.1" fn ibv_ack_async_event(event: *mut ibv_async_event) -> () {
        // SAFETY: the program's promise: it is an event that it got.
        let event = unsafe { &*event };
        match event.event_type {
            IBV_EVENT_QP_FATAL | IBV_EVENT_COMM_EST | IBV_EVENT_QP_LAST_WQE_REACHED | IBV_EVENT_SRQ_LIMIT_REACHED
            | IBV_EVENT_CQ_ERR => {
                // SAFETY: all members of this union that these events have are addresses of objects, whose first member
                // is their context; they exist until this event is acknowledged.
                unsafe {
                    let object: *mut *mut ibv_context = event.element.qp.cast();
                    Context::of(*object).events.acknowledge(object as usize);
                }
            }
            _ => {}
        }
    }
}
