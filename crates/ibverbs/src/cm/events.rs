//! Events, as the program gets them.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use rustix::io::Errno;

use super::channel::{Channel, Raised};
use super::endpoint::{Endpoint, REJECT_CONSUMER};
use super::ffi::*;
use super::frame::Frame;
use super::id::{EventChannel, Id};
use super::{queue_pair, refuse};
use crate::export::{export, export_waiting, waiting};

/// An event that the program holds.
#[repr(C)]
struct Event {
    c: rdma_cm_event,
    /// Whose acknowledgement it is.
    counted: Arc<Endpoint>,
    private: [u8; 256],
}

/// The next event of a channel, after what the library does about it. Waits for one.
///
/// # Errors
/// As [`Channel::wait`].
pub(super) fn take(channel: &Channel) -> Result<*mut rdma_cm_event, Errno> {
    loop {
        if let Some(event) = next(channel) {
            return Ok(event);
        }
        channel.wait()?;
    }
}

/// The same, if there is one.
fn next(channel: &Channel) -> Option<*mut rdma_cm_event> {
    loop {
        let raised = channel.take()?;
        let counted = raised.endpoint.clone();
        match report(raised) {
            Some(event) => return Some(Box::into_raw(event).cast()),
            None => counted.count_acknowledged(),
        }
    }
}

/// Makes the program's event; `None` if it is of no interest to the program.
fn report(raised: Raised) -> Option<Box<Event>> {
    let address = raised.endpoint.lock().id;
    if address == 0 {
        // Destroyed while the event was under way.
        if let Some(newcomer) = raised.newcomer {
            newcomer.destroy();
        }
        return None;
    }
    let id = ptr::with_exposed_provenance_mut::<rdma_cm_id>(address);
    // SAFETY: the identifier lives until its events are acknowledged, and this one has been counted.
    let this = unsafe { Id::of(id) };
    // SAFETY: numbers and pointers, all of which may be zero.
    let c = rdma_cm_event { id, event: raised.event, status: raised.status, ..unsafe { std::mem::zeroed() } };
    let mut event = Box::new(Event { c, counted: raised.endpoint, private: [0; 256] });
    match raised.event {
        RDMA_CM_EVENT_ADDR_RESOLVED => {
            this.show_addresses();
            if let Err(error) = this.attach() {
                event.fail(RDMA_CM_EVENT_ADDR_ERROR, error);
            }
        }
        RDMA_CM_EVENT_ROUTE_RESOLVED => {
            if let Err(error) = this.show_route() {
                event.fail(RDMA_CM_EVENT_ROUTE_ERROR, error);
            }
        }
        RDMA_CM_EVENT_CONNECT_REQUEST => {
            this.endpoint.lock().waiting -= 1;
            let newcomer = raised.newcomer?;
            match claim(this, &newcomer) {
                Ok(new) => (event.c.id, event.c.listen_id) = (new, id),
                Err(error) => {
                    tracing::warn!(%error, "a request to connect cannot be reported, and is refused");
                    newcomer.destroy();
                    return None;
                }
            }
        }
        RDMA_CM_EVENT_CONNECT_RESPONSE => {
            if let Some(frame) = &raised.frame {
                this.own().remote_ece = frame.ece;
            }
            if let Err(error) = this.show_route() {
                event.fail(RDMA_CM_EVENT_CONNECT_ERROR, error);
            // SAFETY: the program does not write while a call runs.
            } else if unsafe { !(*this.c()).qp.is_null() } {
                respond(this, &mut event);
            }
        }
        RDMA_CM_EVENT_REJECTED | RDMA_CM_EVENT_DISCONNECTED if this.own().connect_failed => return None,
        RDMA_CM_EVENT_REJECTED => queue_pair::to_error(this),
        _ => {}
    }
    if let Some(frame) = &raised.frame {
        event.fill(frame, this.is_datagram());
    }
    Some(event)
}

/// The other end accepted: makes the queue pair ready, and tells it so.
fn respond(this: &Id, event: &mut Event) {
    match queue_pair::to_receive(this, None)
        .and_then(|()| queue_pair::to_send(this, None))
        .and_then(|()| this.endpoint.ready())
    {
        Ok(()) => event.c.event = RDMA_CM_EVENT_ESTABLISHED,
        Err(error) => {
            queue_pair::to_error(this);
            this.own().connect_failed = true;
            // The other end must not wait. If it has gone, there is nobody to tell.
            let _ = this.endpoint.reject(REJECT_CONSUMER, Vec::new());
            event.fail(RDMA_CM_EVENT_CONNECT_ERROR, error);
        }
    }
}

/// The identifier of one that asks to connect.
fn claim(listener: &Id, newcomer: &Arc<Endpoint>) -> Result<*mut rdma_cm_id, Errno> {
    // SAFETY: the program does not write while a call runs.
    let c = unsafe { *listener.c() };
    let id = Id::wrap(newcomer.clone(), c.channel, c.context, c.ps, c.qp_type);
    // SAFETY: it was made just now.
    let this = unsafe { Id::of(id) };
    this.show_addresses();
    let shown = this.attach().and_then(|()| this.show_route()).and_then(|()| {
        if listener.own().sync {
            this.become_sync()?;
        }
        Ok(())
    });
    let mut own = this.own();
    own.type_of_service = listener.own().type_of_service;
    own.ack_timeout = listener.own().ack_timeout;
    if let Some(theirs) = &newcomer.lock().theirs {
        own.remote_ece = theirs.ece;
    }
    drop(own);
    if let Err(error) = shown {
        // SAFETY: nobody else knows it.
        unsafe { super::id::destroy(id) };
        return Err(error);
    }
    Ok(id)
}

impl Event {
    fn fail(&mut self, event: rdma_cm_event_type, error: Errno) {
        (self.c.event, self.c.status) = (event, -error.raw_os_error());
    }

    /// What the other end said.
    fn fill(&mut self, frame: &Frame, datagram: bool) {
        self.private[..frame.private.len()].copy_from_slice(&frame.private);
        // All that InfiniBand's message has room for: where less was sent, zeros follow.
        let len = frame.kind.private_len();
        let private_data = if len == 0 { ptr::null() } else { self.private.as_ptr().cast::<c_void>() };
        let private_data_len = len as u8;
        self.c.param = if datagram {
            let ah_attr = queue_pair::address_of(frame);
            let (qp_num, qkey) = (frame.qp_num, frame.qkey);
            rdma_cm_event_param { ud: rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey } }
        } else {
            let conn = rdma_conn_param {
                private_data,
                private_data_len,
                // What one end grants the other end may use.
                responder_resources: frame.initiator_depth,
                initiator_depth: frame.responder_resources,
                flow_control: u8::from(frame.flow_control),
                retry_count: frame.retry_count,
                rnr_retry_count: frame.rnr_retry_count,
                srq: u8::from(frame.srq),
                qp_num: frame.qp_num,
            };
            rdma_cm_event_param { conn }
        };
    }
}

/// Takes an event back; none is fine.
///
/// # Safety
/// It came from [`take`], and this is the last use of it.
pub(super) unsafe fn acknowledge(event: *mut rdma_cm_event) {
    if !event.is_null() {
        // SAFETY: the caller's promise.
        let event = unsafe { Box::from_raw(event.cast::<Event>()) };
        event.counted.count_acknowledged();
    }
}

/// The end of a call of a synchronous identifier: waits for the event that it leads to. Of another, nothing.
pub(super) fn complete(name: &str, this: &Id) -> c_int {
    if !this.own().sync {
        return 0;
    }
    // SAFETY: the program does not write while a call runs; a synchronous identifier's event is the library's.
    let (channel, status, event) = unsafe {
        let channel = EventChannel::of((*this.c()).channel).channel.clone();
        acknowledge(std::mem::replace(&mut (*this.c()).event, ptr::null_mut()));
        let taken = match take(&channel) {
            Ok(taken) => taken,
            Err(error) => return refuse(name, error, "no event came"),
        };
        (*this.c()).event = taken;
        (channel, (*taken).status, (*taken).event)
    };
    drop(channel);
    match status {
        0 => 0,
        _ if event == RDMA_CM_EVENT_REJECTED => refuse(name, Errno::CONNREFUSED, format_args!("rejected ({status})")),
        error if error < 0 => refuse(name, Errno::from_raw_os_error(-error), "the event says so"),
        // Of an answer about datagrams.
        status => refuse(name, Errno::CONNREFUSED, format_args!("status {status}")),
    }
}

export_waiting! {
    /// The next event of a channel; waits for one unless the descriptor does not block.
    "RDMACM_1.0" fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int {
        if channel.is_null() || event.is_null() {
            return refuse("rdma_get_cm_event", Errno::INVAL, "no channel, or no place for the event");
        }
        // SAFETY: the manual page asks for a channel.
        let fd = unsafe { (*channel).fd };
        waiting("rdma_get_cm_event", fd, || {
            // SAFETY: as above. It outlives what follows by this handle.
            let channel = unsafe { EventChannel::of(channel) }.channel.clone();
            let taken = next(&channel)?;
            // SAFETY: the manual page asks for a place.
            unsafe { *event = taken };
            Some(0)
        })
    }
}

export! {
    /// Gives an event back.
    "RDMACM_1.0" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
        if event.is_null() {
            return refuse("rdma_ack_cm_event", Errno::INVAL, "no event");
        }
        // SAFETY: the manual page asks for an event that was got and not acknowledged.
        unsafe { acknowledge(event) };
        0
    }

    /// An event's name.
    "RDMACM_1.0" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
        let name = match event {
            RDMA_CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
            RDMA_CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
            RDMA_CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
            RDMA_CM_EVENT_ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
            RDMA_CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
            RDMA_CM_EVENT_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
            RDMA_CM_EVENT_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
            RDMA_CM_EVENT_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
            RDMA_CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
            RDMA_CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
            RDMA_CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
            RDMA_CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
            RDMA_CM_EVENT_MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
            RDMA_CM_EVENT_MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
            RDMA_CM_EVENT_ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
            RDMA_CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
            _ => c"UNKNOWN EVENT",
        };
        name.as_ptr()
    }
}
