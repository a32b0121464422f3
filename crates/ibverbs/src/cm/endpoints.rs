//! Calls that do several steps at once.

use std::ffi::c_int;
use std::ptr;

use rustix::io::Errno;

use super::endpoint::Phase;
use super::events;
use super::ffi::*;
use super::id::{self, EventChannel, Id, Template};
use super::resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use super::shared::rdma_destroy_srq;
use super::{queue_pair, refuse};
use crate::export::export;
use crate::ffi::*;

/// How long an address may take to be resolved. It takes no time here.
const PATIENCE_MS: c_int = 2000;

/// The work of [`rdma_create_ep`]: an identifier with everything that `res` names. A failure leaves `errno`.
///
/// # Safety
/// `res` is a result of `rdma_getaddrinfo`; the domain and the attributes live, or are null.
unsafe fn create(
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<*mut rdma_cm_id, Errno> {
    // SAFETY: the caller's promise.
    let res = unsafe { res.as_ref() }.ok_or(Errno::INVAL)?;
    let number = |number: c_int| u32::try_from(number).map_err(|_| Errno::INVAL);
    let (ps, qp_type) = (number(res.ai_port_space)?, number(res.ai_qp_type)?);
    let made = Id::create(ptr::null_mut(), ptr::null_mut(), ps, qp_type)?;
    // SAFETY: it was made just now, and is undone if it cannot be finished.
    unsafe {
        match furnish(made, res, pd, init, qp_type) {
            Ok(()) => Ok(made),
            Err(error) => {
                queue_pair::destroy(Id::of(made));
                id::destroy(made);
                Err(error)
            }
        }
    }
}

/// # Safety
/// As [`create`].
unsafe fn furnish(
    made: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
    qp_type: ibv_qp_type,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let this = Id::of(made);
        if res.ai_flags & RAI_PASSIVE != 0 {
            done(rdma_bind_addr(made, res.ai_src_addr))?;
            (*this.c()).pd = pd;
            if let Some(init) = init.as_mut() {
                init.qp_type = qp_type;
                this.own().template = Some(Template { pd, attributes: *init });
            }
            return Ok(());
        }
        done(rdma_resolve_addr(made, res.ai_src_addr, res.ai_dst_addr, PATIENCE_MS))?;
        done(rdma_resolve_route(made, PATIENCE_MS))?;
        if let Some(init) = init.as_mut() {
            init.qp_type = qp_type;
            queue_pair::create_plain(this, pd, init)?;
        }
        if res.ai_connect_len > 0 && !res.ai_connect.is_null() {
            this.own().connect = std::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len).to_vec();
        }
    }
    Ok(())
}

/// The error of a call that left it in `errno`.
fn done(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(super::devices::last_error()) }
}

/// The next request to connect, with a queue pair if the listener has a template for it.
///
/// # Safety
/// The identifier lives.
unsafe fn next_request(listener: *mut rdma_cm_id) -> Result<*mut rdma_cm_id, Errno> {
    // SAFETY: the caller's promise.
    let this = unsafe { Id::find("rdma_get_request", listener) }.ok_or(Errno::INVAL)?;
    if !this.own().sync || this.endpoint.lock().phase != Phase::Listening {
        return Err(Errno::INVAL);
    }
    // SAFETY: a synchronous identifier's event and channel are the library's.
    let taken = unsafe {
        events::acknowledge(std::mem::replace(&mut (*this.c()).event, ptr::null_mut()));
        let channel = EventChannel::of((*this.c()).channel).channel.clone();
        events::take(&channel)?
    };
    // SAFETY: it was taken just now.
    let event = unsafe { *taken };
    if event.event != RDMA_CM_EVENT_CONNECT_REQUEST {
        // SAFETY: as above.
        unsafe { events::acknowledge(taken) };
        return Err(if event.status < 0 { Errno::from_raw_os_error(-event.status) } else { Errno::INVAL });
    }
    let template = this.own().template;
    if let Some(Template { pd, mut attributes }) = template {
        // SAFETY: the program keeps what the template names, as the manual page asks.
        if let Err(error) = unsafe { queue_pair::create_plain(Id::of(event.id), pd, &mut attributes) } {
            // SAFETY: the program never saw it.
            unsafe {
                events::acknowledge(taken);
                id::destroy(event.id);
            }
            return Err(error);
        }
    }
    // The event, with the peer's private data, is the new identifier's until its next call.
    // SAFETY: it was made just now.
    unsafe { (*Id::of(event.id).c()).event = taken };
    Ok(event.id)
}

export! {
    /// Makes an identifier with all that a result of `rdma_getaddrinfo` names.
    "RDMACM_1.0" fn rdma_create_ep(
        id: *mut *mut rdma_cm_id,
        res: *mut rdma_addrinfo,
        pd: *mut ibv_pd,
        qp_init_attr: *mut ibv_qp_init_attr,
    ) -> c_int {
        // SAFETY: the manual page asks for what `create` asks for, and for a place for the result.
        match unsafe { create(res, pd, qp_init_attr) } {
            Ok(made) => {
                // SAFETY: as above.
                unsafe { *id = made };
                0
            }
            Err(error) => refuse("rdma_create_ep", error, "no endpoint for the address"),
        }
    }

    /// Ends an identifier and all that belongs to it.
    "RDMACM_1.0" fn rdma_destroy_ep(id: *mut rdma_cm_id) -> () {
        // SAFETY: the manual page asks for an identifier that nobody uses any more.
        unsafe {
            let Some(this) = Id::find("rdma_destroy_ep", id) else { return };
            queue_pair::destroy(this);
            rdma_destroy_srq(id);
            id::destroy(id);
        }
    }

    /// Waits for the next request to connect, at a synchronous identifier.
    "RDMACM_1.0" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
        // SAFETY: the manual page asks for an identifier that listens, and a place for the new one.
        match unsafe { next_request(listen) } {
            Ok(new) => {
                // SAFETY: as above.
                unsafe { *id = new };
                0
            }
            Err(error) => refuse("rdma_get_request", error, "no request to connect"),
        }
    }
}
