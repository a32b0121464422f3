//! The entry points of the library.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

use libloading::os::unix::Library as Loaded;

use crate::OpenError;
use crate::ffi::{
    AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, Gid, GidEntry, Mr, Pd, PortAttr, Qp, QpAttr, QpInitAttr,
};

/// An entry point of a verbs library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its name.
    pub name: &'static str,
    /// Whether Fulmen cannot do without it.
    pub needed: bool,
    /// Whether this library has it.
    pub present: bool,
    /// What it is for.
    pub purpose: &'static str,
}

/// Declares the calls that are used, and how they are loaded.
macro_rules! calls {
    (
        needed { $($field:ident $name:literal: fn($($arg:ty),*) $(-> $result:ty)?, $purpose:literal;)* }
        optional { $($may:ident $may_name:literal: fn($($may_arg:ty),*) $(-> $may_result:ty)?, $may_purpose:literal;)* }
    ) => {
        /// The calls of the library that are used.
        pub(crate) struct Calls {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
            $(pub(crate) $may: Option<unsafe extern "C" fn($($may_arg),*) $(-> $may_result)?>,)*
        }

        fn used(loaded: &Loaded, path: &Path, symbols: &mut Vec<Symbol>) -> Result<Calls, OpenError> {
            $(
                // SAFETY: the C header declares the symbol with this type.
                let $field = unsafe { loaded.get::<unsafe extern "C" fn($($arg),*) $(-> $result)?>($name.as_bytes()) };
                symbols.push(Symbol { name: $name, needed: true, present: $field.is_ok(), purpose: $purpose });
            )*
            $(
                // SAFETY: the C header declares the symbol with this type.
                let $may = unsafe { loaded.get::<unsafe extern "C" fn($($may_arg),*) $(-> $may_result)?>($may_name.as_bytes()) };
                symbols.push(Symbol { name: $may_name, needed: false, present: $may.is_ok(), purpose: $may_purpose });
            )*
            Ok(Calls {
                $($field: *$field.map_err(|_| OpenError::MissingSymbol { path: path.to_owned(), symbol: $name })?,)*
                $($may: $may.ok().map(|symbol| *symbol),)*
            })
        }
    };
}

calls! {
    needed {
        get_device_list "ibv_get_device_list": fn(*mut c_int) -> *mut *mut Device, "list devices";
        free_device_list "ibv_free_device_list": fn(*mut *mut Device), "list devices";
        get_device_name "ibv_get_device_name": fn(*mut Device) -> *const c_char, "list devices";
        get_device_guid "ibv_get_device_guid": fn(*mut Device) -> u64, "list devices";
        open_device "ibv_open_device": fn(*mut Device) -> *mut Context, "open a device";
        close_device "ibv_close_device": fn(*mut Context) -> c_int, "close a device";
        query_device "ibv_query_device": fn(*mut Context, *mut DeviceAttr) -> c_int, "limits of a device";
        query_port "ibv_query_port": fn(*mut Context, u8, *mut PortAttr) -> c_int, "state of a port";
        query_gid "ibv_query_gid": fn(*mut Context, u8, c_int, *mut Gid) -> c_int, "addresses of a port";
        alloc_pd "ibv_alloc_pd": fn(*mut Context) -> *mut Pd, "protection domains";
        dealloc_pd "ibv_dealloc_pd": fn(*mut Pd) -> c_int, "protection domains";
        reg_mr "ibv_reg_mr": fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr, "register memory";
        dereg_mr "ibv_dereg_mr": fn(*mut Mr) -> c_int, "register memory";
        create_comp_channel "ibv_create_comp_channel": fn(*mut Context) -> *mut CompChannel, "wait for completions";
        destroy_comp_channel "ibv_destroy_comp_channel": fn(*mut CompChannel) -> c_int, "wait for completions";
        get_cq_event "ibv_get_cq_event": fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int,
            "wait for completions";
        ack_cq_events "ibv_ack_cq_events": fn(*mut Cq, u32), "wait for completions";
        create_cq "ibv_create_cq": fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq,
            "completion queues";
        destroy_cq "ibv_destroy_cq": fn(*mut Cq) -> c_int, "completion queues";
        create_qp "ibv_create_qp": fn(*mut Pd, *mut QpInitAttr) -> *mut Qp, "queue pairs";
        modify_qp "ibv_modify_qp": fn(*mut Qp, *mut QpAttr, c_int) -> c_int, "queue pairs";
        query_qp "ibv_query_qp": fn(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int, "queue pairs";
        destroy_qp "ibv_destroy_qp": fn(*mut Qp) -> c_int, "queue pairs";
    }
    optional {
        get_async_event "ibv_get_async_event": fn(*mut Context, *mut AsyncEvent) -> c_int,
            "hear of overflows and of devices that are gone";
        ack_async_event "ibv_ack_async_event": fn(*mut AsyncEvent), "hear of overflows and of devices that are gone";
        reg_dmabuf_mr "ibv_reg_dmabuf_mr": fn(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr,
            "register memory of GPUs by dma-buf";
        query_gid_table "_ibv_query_gid_table": fn(*mut Context, *mut GidEntry, usize, u32, usize) -> isize,
            "whole tables of addresses (ibv_query_gid_table)";
    }
}

/// What is looked for and not called.
const KNOWN: [(&str, &str); 13] = [
    ("ibv_reg_mr_iova2", "registrations with relaxed rights and own addresses"),
    ("_ibv_query_gid_ex", "addresses with their kinds (ibv_query_gid_ex)"),
    ("ibv_qp_to_qp_ex", "extended work requests (ibv_wr_*)"),
    ("ibv_query_qp_data_in_order", "order of bytes within a message"),
    ("ibv_import_device", "share a device between processes"),
    ("ibv_import_mr", "share registrations between processes"),
    ("ibv_import_pd", "share protection domains between processes"),
    ("ibv_rereg_mr", "change registrations"),
    ("ibv_create_srq", "shared receive queues"),
    ("ibv_create_ah", "unreliable datagrams"),
    ("ibv_query_ece", "options of a vendor in connections"),
    ("ibv_fork_init", "children of a process that uses RDMA, on old kernels"),
    ("ibv_get_device_index", "a device's number that stays"),
];

/// Loads what is used and looks for what is known.
pub(super) fn load(loaded: &Loaded, path: &Path) -> Result<(Calls, Vec<Symbol>), OpenError> {
    let mut symbols = Vec::new();
    let calls = used(loaded, path, &mut symbols)?;
    for (name, purpose) in KNOWN {
        // SAFETY: the address is not used, only whether there is one.
        let present = unsafe { loaded.get::<*mut c_void>(name.as_bytes()) }.is_ok();
        symbols.push(Symbol { name, needed: false, present, purpose });
    }
    Ok((calls, symbols))
}
