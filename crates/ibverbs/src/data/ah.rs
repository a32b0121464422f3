//! Address handles.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

use fulmen_verbs::{AddressHandle, AddressPath, Gid};

use crate::context::Context;
use crate::domain::Pd;
use crate::error::{self, Call};
use crate::export::export;
use crate::ffi::*;
use crate::lint;
use crate::users::User;

/// An address handle: what the program sees of it, and what is behind.
#[repr(C)]
pub(super) struct Ah {
    c: UnsafeCell<ibv_ah>,
    handle: Arc<dyn AddressHandle>,
    _user: User,
}

impl Ah {
    /// The address handle that the program means.
    ///
    /// # Safety
    /// `raw` came from `ibv_create_ah`, and is not destroyed while the reference lives.
    #[inline]
    pub(super) unsafe fn of<'a>(raw: *mut ibv_ah) -> &'a Ah {
        // SAFETY: the caller's promise; the program's part comes first.
        unsafe { &*raw.cast() }
    }

    /// How requests name it.
    #[inline]
    pub(super) fn number(&self) -> u32 {
        self.handle.number()
    }
}

/// A GID of C.
pub(super) fn gid(raw: &ibv_gid) -> Gid {
    // SAFETY: sixteen bytes, whichever member they were written by.
    Gid(unsafe { raw.raw })
}

/// Where a port is: by its GID if the attributes have a routing header, else by its LID alone.
pub(super) fn address_path(attr: &ibv_ah_attr) -> AddressPath {
    let global = attr.is_global != 0;
    AddressPath {
        port: attr.port_num,
        remote_gid: if global { gid(&attr.grh.dgid) } else { Gid([0; 16]) },
        remote_lid: attr.dlid,
        local_gid_index: if global { attr.grh.sgid_index } else { 0 },
    }
}

/// The attributes of the way back to who sent a message.
///
/// # Safety
/// The device is open; if the completion says that there is a routing header, `grh` has it.
unsafe fn answer(context: *mut ibv_context, port: u8, wc: &ibv_wc, grh: *const ibv_grh) -> Result<ibv_ah_attr, String> {
    // SAFETY: numbers, of which each may be zero.
    let mut attr: ibv_ah_attr = unsafe { std::mem::zeroed() };
    attr.dlid = wc.slid;
    attr.sl = wc.sl;
    attr.src_path_bits = wc.dlid_path_bits;
    attr.port_num = port;
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Ok(attr);
    }
    // SAFETY: by the contract of this function.
    let (device, grh) = unsafe { (Context::of(context), grh.read_unaligned()) };
    let own = gid(&grh.dgid);
    let table = device.device.gid_table(port).map_err(|cause| cause.to_string())?;
    let entry = table.iter().find(|entry| entry.gid == own);
    let index =
        entry.ok_or_else(|| format!("the message was for {own}, which is not in the table of port {port}"))?.index;
    // Version, traffic class and flow label share a word.
    let word = u32::from_be(grh.version_tclass_flow);
    attr.is_global = 1;
    attr.grh.dgid = grh.sgid;
    attr.grh.sgid_index = index;
    attr.grh.flow_label = word & 0xf_ffff;
    attr.grh.traffic_class = (word >> 20) as u8;
    attr.grh.hop_limit = 0xff;
    Ok(attr)
}

export! {
    /// Makes an address handle.
    "IBVERBS_1.1" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
        const NAME: &str = "ibv_create_ah";
        // SAFETY: a domain that lives, of an open device.
        let (domain, context) = unsafe { (Pd::of(pd), Context::of((*pd).context)) };
        // SAFETY: the program's attributes.
        let path = address_path(unsafe { &*attr });
        if let Some(lint) = lint::get() {
            lint.create_ah(pd as u64);
        }
        match domain.device.create_ah(&path) {
            Ok(handle) => {
                let c = UnsafeCell::new(ibv_ah { context: context.raw(), pd, handle: handle.number() });
                Box::into_raw(Box::new(Ah { c, handle, _user: domain.users.add() })).cast()
            }
            Err(cause) => context.fail_null(NAME, Call::CreateAh, &cause),
        }
    }

    /// Fills in the way back to who sent the message that `wc` tells of.
    "IBVERBS_1.1" fn ibv_init_ah_from_wc(context: *mut ibv_context, port_num: u8, wc: *mut ibv_wc, grh: *mut ibv_grh, ah_attr: *mut ibv_ah_attr) -> c_int {
        // SAFETY: an open device, the program's completion and the header that it has.
        match unsafe { answer(context, port_num, &*wc, grh) } {
            Ok(answer) => {
                // SAFETY: the program's place for them.
                unsafe { *ah_attr = answer };
                0
            }
            Err(why) => {
                error::refuse("ibv_init_ah_from_wc", libc::EINVAL, why);
                -1
            }
        }
    }

    /// Makes an address handle for the way back to who sent the message that `wc` tells of.
    "IBVERBS_1.1" fn ibv_create_ah_from_wc(pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut ibv_grh, port_num: u8) -> *mut ibv_ah {
        // SAFETY: a domain that lives, the program's completion and the header that it has.
        match unsafe { answer((*pd).context, port_num, &*wc, grh) } {
            // SAFETY: as above.
            Ok(mut answer) => unsafe { ibv_create_ah(pd, &raw mut answer) },
            Err(why) => error::refuse_null("ibv_create_ah_from_wc", libc::EINVAL, why),
        }
    }

    /// Destroys an address handle. What was posted with it goes out.
    "IBVERBS_1.1" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
        // SAFETY: it was a box, and the program gives it up.
        drop(unsafe { Box::from_raw(ah.cast::<Ah>()) });
        0
    }
}
