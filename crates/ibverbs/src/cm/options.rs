//! Options, and multicast, of which there is none.

use std::ffi::{c_int, c_void};

use libc::sockaddr;
use rustix::io::Errno;

use super::ffi::*;
use super::id::Id;
use super::refuse;
use crate::export::export;
use crate::ffi::*;

/// # Safety
/// `value` points to `len` bytes.
unsafe fn set(this: &Id, level: c_int, name: c_int, value: *const c_void, len: usize) -> Result<(), Errno> {
    if level != RDMA_OPTION_ID {
        // Paths of a subnet manager; there is none that could have given another.
        return Err(Errno::NOSYS);
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len) };
    match (name, bytes) {
        (RDMA_OPTION_ID_TOS, [service]) => this.own().type_of_service = *service,
        (RDMA_OPTION_ID_REUSEADDR, bytes) if bytes.len() == size_of::<c_int>() => {
            this.endpoint.lock().reuse_address = bytes.iter().any(|byte| *byte != 0);
        }
        // An IPv6 "any" address that takes IPv4, or not, has the same ports here.
        (RDMA_OPTION_ID_AFONLY, bytes) if bytes.len() == size_of::<c_int>() => {}
        (RDMA_OPTION_ID_ACK_TIMEOUT, [timeout]) if *timeout < 32 => this.own().ack_timeout = Some(*timeout),
        (RDMA_OPTION_ID_TOS | RDMA_OPTION_ID_REUSEADDR | RDMA_OPTION_ID_AFONLY | RDMA_OPTION_ID_ACK_TIMEOUT, _) => {
            return Err(Errno::INVAL);
        }
        _ => return Err(Errno::NOSYS),
    }
    Ok(())
}

const NO_MULTICAST: &str = "the device has no multicast";

export! {
    /// Sets an option of an identifier.
    "RDMACM_1.0" fn rdma_set_option(
        id: *mut rdma_cm_id,
        level: c_int,
        optname: c_int,
        optval: *mut c_void,
        optlen: usize,
    ) -> c_int {
        if optval.is_null() {
            return refuse("rdma_set_option", Errno::INVAL, "no value");
        }
        // SAFETY: the manual page asks for an identifier and a value of that length.
        let Some(this) = (unsafe { Id::find("rdma_set_option", id) }) else { return -1 };
        // SAFETY: as above.
        match unsafe { set(this, level, optname, optval, optlen) } {
            Ok(()) => 0,
            Err(error) => refuse(
                "rdma_set_option",
                error,
                format_args!("level {level}, option {optname}, {optlen} bytes"),
            ),
        }
    }

    /// Sets what the peer is told of enhanced connection establishment.
    "RDMACM_1.3" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
        // SAFETY: the manual page asks for an identifier and options.
        let Some(this) = (unsafe { Id::find("rdma_set_local_ece", id) }) else { return -1 };
        // SAFETY: as above.
        match unsafe { ece.as_ref() } {
            Some(ece) if ece.vendor_id != 0 && ece.comp_mask == 0 => {
                this.own().local_ece = (ece.vendor_id, ece.options);
                0
            }
            _ => refuse("rdma_set_local_ece", Errno::INVAL, "no options, or a vendor of 0"),
        }
    }

    /// What the peer told of enhanced connection establishment.
    "RDMACM_1.3" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
        if ece.is_null() {
            return refuse("rdma_get_remote_ece", Errno::INVAL, "no place for the options");
        }
        // SAFETY: the manual page asks for an identifier and a place.
        let Some(this) = (unsafe { Id::find("rdma_get_remote_ece", id) }) else { return -1 };
        let (vendor_id, options) = this.own().remote_ece;
        // SAFETY: as above.
        unsafe { *ece = ibv_ece { vendor_id, options, comp_mask: 0 } };
        0
    }

    /// Refused: there is no multicast.
    "RDMACM_1.0" fn rdma_join_multicast(_id: *mut rdma_cm_id, _addr: *mut sockaddr, _context: *mut c_void) -> c_int {
        refuse("rdma_join_multicast", Errno::OPNOTSUPP, NO_MULTICAST)
    }

    /// Refused: there is no multicast.
    "RDMACM_1.1" fn rdma_join_multicast_ex(
        _id: *mut rdma_cm_id,
        _attributes: *mut rdma_cm_join_mc_attr_ex,
        _context: *mut c_void,
    ) -> c_int {
        refuse("rdma_join_multicast_ex", Errno::OPNOTSUPP, NO_MULTICAST)
    }

    /// Refused: no group was ever joined.
    "RDMACM_1.0" fn rdma_leave_multicast(_id: *mut rdma_cm_id, _addr: *mut sockaddr) -> c_int {
        refuse("rdma_leave_multicast", Errno::ADDRNOTAVAIL, NO_MULTICAST)
    }
}
