//! Connecting, accepting, refusing, and ending.

use std::ffi::{c_int, c_void};

use rustix::io::Errno;

use super::devices;
use super::endpoint::{DATAGRAM_REJECT, Phase, REJECT_CONSUMER, REJECT_OPTIONS};
use super::events::{self, complete};
use super::ffi::*;
use super::frame::{Frame, Kind, MASK_24};
use super::id::Id;
use super::{queue_pair, refuse};
use crate::export::export;
use crate::ffi::*;

/// Private data of a program, if it fits the frame.
///
/// # Safety
/// `data` points to `len` bytes, or is null.
unsafe fn private(kind: Kind, data: *const c_void, len: u8) -> Result<Vec<u8>, Errno> {
    if data.is_null() || len == 0 {
        return Ok(Vec::new());
    }
    if usize::from(len) > kind.private_len() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), usize::from(len)) }.to_vec())
}

/// What a program says of the connection it wants, or grants.
struct Wishes {
    responder_resources: u8,
    initiator_depth: u8,
}

/// A frame that says what the program said, and who this is.
///
/// # Safety
/// `param` points to parameters, whose private data is there, or is null.
unsafe fn speak(this: &Id, kind: Kind, param: *const rdma_conn_param) -> Result<(Frame, Wishes), Errno> {
    // SAFETY: the caller's promise.
    let param = unsafe { param.as_ref() };
    // SAFETY: the program does not write while a call runs, and its queue pair lives.
    let (qp, kind_of_qp) = unsafe {
        let c = &*this.c();
        (c.qp.as_ref(), c.qp.as_ref().map_or(c.qp_type, |qp| qp.qp_type))
    };
    if qp.is_none() && param.is_none() {
        return Err(Errno::INVAL);
    }
    let device = devices::first()?;
    let port = device.port()?;
    let state = this.endpoint.lock();
    let asked = kind == Kind::Reply;
    let limit = |wish: Option<u8>, most: u8, agreed: u8| match wish {
        // "As many as there are".
        None | Some(u8::MAX) if asked => Ok(agreed.min(most)),
        None | Some(u8::MAX) => Ok(most),
        Some(wish) if wish > most => Err(Errno::INVAL),
        Some(wish) => Ok(wish),
    };
    let wishes = if this.is_datagram() {
        Wishes { responder_resources: 0, initiator_depth: 0 }
    } else {
        Wishes {
            responder_resources: limit(
                param.map(|param| param.responder_resources),
                device.most_responder_resources,
                state.responder_resources,
            )?,
            initiator_depth: limit(
                param.map(|param| param.initiator_depth),
                device.most_initiator_depth,
                state.initiator_depth,
            )?,
        }
    };
    let mut frame = Frame::new(kind);
    frame.qp_type = u8::try_from(kind_of_qp).map_err(|_| Errno::INVAL)?;
    frame.qp_num = qp.map_or_else(|| param.map_or(0, |param| param.qp_num), |qp| qp.qp_num) & MASK_24;
    frame.srq = qp.map_or_else(|| param.is_some_and(|param| param.srq != 0), |qp| !qp.srq.is_null());
    frame.psn = state.psn;
    frame.qkey = if this.is_datagram() { RDMA_UDP_QKEY } else { 0 };
    (frame.lid, frame.mtu) = (port.lid, port.mtu);
    // SAFETY: each value of the union is bytes.
    frame.gid = unsafe { port.gid.raw };
    frame.responder_resources = wishes.responder_resources;
    frame.initiator_depth = wishes.initiator_depth;
    frame.flow_control = param.is_some_and(|param| param.flow_control != 0);
    frame.retry_count = param.map_or(7, |param| param.retry_count.min(7));
    frame.rnr_retry_count = param.map_or(7, |param| param.rnr_retry_count.min(7));
    if let (Some(local), Some(peer)) = (state.local, state.peer) {
        (frame.source, frame.destination) = (local, peer);
    }
    let own = this.own();
    frame.ece = own.local_ece;
    frame.private = match param {
        // SAFETY: the caller's promise.
        Some(param) if param.private_data_len > 0 => unsafe {
            private(kind, param.private_data, param.private_data_len)?
        },
        _ => own.connect.clone(),
    };
    if frame.private.len() > kind.private_len() {
        return Err(Errno::INVAL);
    }
    Ok((frame, wishes))
}

/// The work of [`rdma_connect`].
///
/// # Safety
/// As [`speak`].
unsafe fn connect(this: &Id, param: *const rdma_conn_param) -> Result<(), Errno> {
    let kind = if this.is_datagram() { Kind::DatagramRequest } else { Kind::Request };
    // SAFETY: the caller's promise.
    let (frame, wishes) = unsafe { speak(this, kind, param)? };
    {
        let mut state = this.endpoint.lock();
        state.responder_resources = wishes.responder_resources;
        state.initiator_depth = wishes.initiator_depth;
        state.retry_count = frame.retry_count;
    }
    this.endpoint.connect(frame)
}

/// The work of [`rdma_accept`].
///
/// # Safety
/// As [`speak`].
unsafe fn accept(this: &Id, param: *const rdma_conn_param) -> Result<(), Errno> {
    let datagram = this.is_datagram();
    let kind = if datagram { Kind::DatagramReply } else { Kind::Reply };
    // SAFETY: the caller's promise.
    let (frame, wishes) = unsafe { speak(this, kind, param)? };
    // SAFETY: the program does not write while a call runs, and its queue pair lives.
    let qp = unsafe { (*this.c()).qp.as_ref() };
    if let Some(qp) = qp.filter(|_| !datagram) {
        let theirs = this.endpoint.lock().theirs.as_ref().map(|theirs| theirs.qp_type);
        if theirs.is_some_and(|theirs| u32::from(theirs) != qp.qp_type) {
            tracing::warn!(?theirs, ours = qp.qp_type, "the two ends have queue pairs of different kinds");
            return Err(Errno::INVAL);
        }
        queue_pair::to_receive(this, Some(wishes.responder_resources))?;
        queue_pair::to_send(this, Some(wishes.initiator_depth))?;
    }
    {
        let mut state = this.endpoint.lock();
        state.responder_resources = wishes.responder_resources;
        state.initiator_depth = wishes.initiator_depth;
    }
    this.endpoint.accept(&frame).inspect_err(|_| queue_pair::to_error(this))
}

/// The work of the calls that refuse.
///
/// # Safety
/// As [`private`].
unsafe fn reject(name: &str, id: *mut rdma_cm_id, reason: i32, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the manual pages ask for an identifier.
    let Some(this) = (unsafe { Id::find(name, id) }) else { return -1 };
    let datagram = this.is_datagram();
    let kind = if datagram { Kind::DatagramReply } else { Kind::Reject };
    let reason = if datagram { DATAGRAM_REJECT } else { reason };
    // SAFETY: the caller's promise.
    match unsafe { private(kind, data, len) }.and_then(|private| this.endpoint.reject(reason, private)) {
        Ok(()) => 0,
        Err(error) => refuse(name, error, "there is no request to refuse, or the private data is too long"),
    }
}

export! {
    /// Asks the peer to connect.
    "RDMACM_1.0" fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
        // SAFETY: the manual page asks for an identifier, and parameters or none.
        let Some(this) = (unsafe { Id::find("rdma_connect", id) }) else { return -1 };
        // SAFETY: as above.
        match unsafe { connect(this, conn_param) } {
            Ok(()) => complete("rdma_connect", this),
            Err(error) => refuse("rdma_connect", error, "no request to connect can be made"),
        }
    }

    /// Accepts a request to connect.
    "RDMACM_1.0" fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
        // SAFETY: the manual page asks for an identifier, and parameters or none.
        let Some(this) = (unsafe { Id::find("rdma_accept", id) }) else { return -1 };
        // SAFETY: as above.
        if let Err(error) = unsafe { accept(this, conn_param) } {
            return refuse("rdma_accept", error, "the request cannot be accepted");
        }
        if !this.is_datagram() {
            return complete("rdma_accept", this);
        }
        if this.own().sync {
            // No event follows; the one of the request is done with.
            // SAFETY: a synchronous identifier's event is the library's.
            unsafe { events::acknowledge(std::mem::replace(&mut (*this.c()).event, std::ptr::null_mut())) };
        }
        0
    }

    /// Refuses a request to connect.
    "RDMACM_1.0" fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int {
        // SAFETY: the manual page asks for private data of that length.
        unsafe { reject("rdma_reject", id, REJECT_CONSUMER, private_data, private_data_len) }
    }

    /// Refuses a request to connect for its options of enhanced connection establishment.
    "RDMACM_1.3" fn rdma_reject_ece(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int {
        // SAFETY: the manual page asks for private data of that length.
        unsafe { reject("rdma_reject_ece", id, REJECT_OPTIONS, private_data, private_data_len) }
    }

    /// Tells the peer that accepted that the program's own queue pair is ready.
    "RDMACM_1.2" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
        // SAFETY: the manual page asks for an identifier.
        let Some(this) = (unsafe { Id::find("rdma_establish", id) }) else { return -1 };
        // SAFETY: the program does not write while a call runs.
        if unsafe { !(*id).qp.is_null() } {
            return refuse("rdma_establish", Errno::INVAL, "the identifier's queue pair is made ready without it");
        }
        match this.endpoint.ready() {
            Ok(()) => 0,
            Err(error) => refuse("rdma_establish", error, "there is no answer to complete"),
        }
    }

    /// Tells of an event of the queue pair: the first message may come before the peer's last word.
    "RDMACM_1.0" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
        if event != IBV_EVENT_COMM_EST {
            return refuse("rdma_notify", Errno::INVAL, format_args!("event {event} tells nothing of a connection"));
        }
        // SAFETY: the manual page asks for an identifier.
        let Some(this) = (unsafe { Id::find("rdma_notify", id) }) else { return -1 };
        match this.endpoint.establish_early() {
            Ok(()) => 0,
            Err(error) => refuse("rdma_notify", error, "there is no connection to establish"),
        }
    }

    /// Ends a connection.
    "RDMACM_1.0" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
        // SAFETY: the manual page asks for an identifier.
        let Some(this) = (unsafe { Id::find("rdma_disconnect", id) }) else { return -1 };
        queue_pair::to_error(this);
        if let Err(error) = this.endpoint.disconnect() {
            return refuse("rdma_disconnect", error, "there is no connection");
        }
        // One that ended before, and whose end was waited for, has no event left to wait for.
        let over = this.endpoint.lock().phase == Phase::Closed && !has_event(this);
        if over { 0 } else { complete("rdma_disconnect", this) }
    }
}

fn has_event(this: &Id) -> bool {
    let channel = this.endpoint.lock().channel.clone();
    channel.is_some_and(|channel| channel.has(&this.endpoint))
}
