//! Shared receive queues of identifiers, and what is made through the extended calls of a context.

use std::ffi::c_int;
use std::ptr;

use rustix::io::Errno;

use super::devices::last_error;
use super::ffi::*;
use super::id::Id;
use super::{queue_pair, refuse};
use crate::data::srq::{ibv_create_srq, ibv_destroy_srq};
use crate::error::set_errno;
use crate::export::export;
use crate::ffi::*;

/// The extended part of a context of this library.
///
/// # Safety
/// The context is open.
unsafe fn extended<'a>(context: *mut ibv_context) -> &'a verbs_context {
    // SAFETY: every context of this library is the last member of an extended one.
    unsafe { &*context.byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>() }
}

/// `ibv_create_qp_ex`, which is no exported function.
///
/// # Safety
/// The context is open, and the attributes name what lives.
pub(super) unsafe fn create_qp_ex(context: *mut ibv_context, init: &mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: the caller's promise.
    unsafe {
        match extended(context).create_qp_ex {
            Some(create) => create(context, init),
            None => {
                set_errno(libc::EOPNOTSUPP);
                ptr::null_mut()
            }
        }
    }
}

fn create(this: &Id, make: impl FnOnce(*mut ibv_context) -> *mut ibv_srq, pd: *mut ibv_pd) -> Result<(), Errno> {
    // SAFETY: the program does not read or write while a call runs.
    let c = unsafe { &mut *this.c() };
    if !c.srq.is_null() {
        return Err(Errno::INVAL);
    }
    let srq = make(c.verbs);
    if srq.is_null() {
        return Err(last_error());
    }
    (c.srq, c.pd) = (srq, pd);
    Ok(())
}

export! {
    /// Makes a receive queue that the identifier's queue pairs share.
    "RDMACM_1.0" fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> c_int {
        // SAFETY: the manual page asks for an identifier and attributes.
        let Some(this) = (unsafe { Id::find("rdma_create_srq", id) }) else { return -1 };
        let made = queue_pair::domain(this, pd).and_then(|pd| {
            // SAFETY: as above; the domain lives.
            create(this, |_| unsafe { ibv_create_srq(pd, attr) }, pd)
        });
        match made {
            Ok(()) => 0,
            Err(error) => refuse("rdma_create_srq", error, "no shared receive queue for the identifier"),
        }
    }

    /// The same from attributes of which the mask says which are there.
    "RDMACM_1.0" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
        // SAFETY: the manual page asks for an identifier and attributes.
        let Some(this) = (unsafe { Id::find("rdma_create_srq_ex", id) }) else { return -1 };
        // SAFETY: as above.
        let Some(attr) = (unsafe { attr.as_mut() }) else { return refuse("rdma_create_srq_ex", Errno::INVAL, "no attributes") };
        let asked = if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 { ptr::null_mut() } else { attr.pd };
        let made = queue_pair::domain(this, asked).and_then(|pd| {
            (attr.comp_mask, attr.pd) = (attr.comp_mask | IBV_SRQ_INIT_ATTR_PD, pd);
            create(
                this,
                // SAFETY: the context is open, and the attributes name what lives.
                |context| unsafe {
                    match extended(context).create_srq_ex {
                        Some(create) => create(context, attr),
                        None => {
                            set_errno(libc::EOPNOTSUPP);
                            ptr::null_mut()
                        }
                    }
                },
                pd,
            )
        });
        match made {
            Ok(()) => 0,
            Err(error) => refuse("rdma_create_srq_ex", error, "no shared receive queue for the identifier"),
        }
    }

    /// Destroys the shared receive queue of an identifier.
    "RDMACM_1.0" fn rdma_destroy_srq(id: *mut rdma_cm_id) -> () {
        // SAFETY: the manual page asks for an identifier, whose queue is used no more.
        let Some(this) = (unsafe { Id::find("rdma_destroy_srq", id) }) else { return };
        // SAFETY: as above.
        unsafe {
            let srq = std::mem::replace(&mut (*this.c()).srq, ptr::null_mut());
            if !srq.is_null() {
                ibv_destroy_srq(srq);
            }
        }
        // SAFETY: the program does not write while a call runs.
        if unsafe { (*this.c()).qp.is_null() } {
            queue_pair::destroy_cqs(this);
        }
    }
}
