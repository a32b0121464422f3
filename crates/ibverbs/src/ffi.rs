//! The types and constants of `infiniband/verbs.h`, under their own names, which the manual pages explain.
//!
//! Each type and constant is listed with its name in C in a table as well, so that a test can have a C compiler compare
//! them with the header.
#![allow(missing_docs, non_camel_case_types, non_snake_case)]

/// Where a type lies in memory, to be compared with the header.
pub struct Layout {
    /// The type in C, with its keyword, or the type in which it is nested without a name.
    pub outer: &'static str,
    /// The member of `outer` that is of this type; empty for `outer` itself.
    pub path: &'static str,
    /// Its size in bytes.
    pub size: usize,
    /// Its members: name, offset and size in bytes.
    pub members: &'static [(&'static str, usize, usize)],
}

/// The size of what a pointer points to, for sizes of members.
pub(crate) const fn size_of_pointee<T>(_: *const T) -> usize {
    size_of::<T>()
}

/// Types with the layout of C, and their table.
macro_rules! c_types {
    ($table:ident: $($kind:tt $name:ident in $outer:literal $path:literal { $($field:ident: $type:ty,)* })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub $kind $name { $(pub $field: $type,)* }
        )*
        /// The layouts of these types.
        pub const $table: &[Layout] = &[$(Layout {
            outer: $outer,
            path: $path,
            size: size_of::<$name>(),
            members: &[$((
                stringify!($field),
                std::mem::offset_of!($name, $field),
                {
                    let it = std::mem::MaybeUninit::<$name>::uninit();
                    // SAFETY: only the address of the member is computed, inside of `it`.
                    size_of_pointee(unsafe { &raw const (*it.as_ptr()).$field })
                },
            ),)*],
        },)*];
    };
}

/// Enumerations of C, as numbers of the type that C gives them, and their table.
macro_rules! c_constants {
    ($table:ident: $($name:ident: $type:ty { $($constant:ident = $value:expr,)* })*) => {
        $(
            pub type $name = $type;
            $(pub const $constant: $name = $value;)*
        )*
        /// Names and values of these constants.
        pub const $table: &[(&str, i64)] = &[$($((stringify!($constant), $constant as i64),)*)*];
    };
}

/// The layouts of all types.
pub const LAYOUTS: [&[Layout]; 4] = [CONTEXT, DEVICE, QUEUE, WORK];

/// Names and values of all constants.
pub const VALUES: [&[(&str, i64)]; 2] = [CONSTANTS, REQUESTS];

#[cfg(target_os = "linux")]
pub(crate) use {c_constants, c_types};

/// Types of which only addresses are used.
macro_rules! opaque {
    ($($name:ident),*) => {
        $(
            #[repr(C)]
            pub struct $name {
                _private: [u8; 0],
            }
        )*
    };
}

pub mod constants;
pub mod context;
pub mod device;
pub mod queue;
pub mod requests;
pub mod work;

pub use constants::*;
pub use context::*;
pub use device::*;
pub use queue::*;
pub use requests::*;
pub use work::*;

opaque!(
    _compat_ibv_port_attr,
    ibv_counters_init_attr,
    ibv_counter_attach_attr,
    ibv_flow,
    ibv_flow_action,
    ibv_flow_action_esp_attr,
    ibv_flow_attr,
    verbs_ex_private
);

/// Two obsolete members of [`ibv_device`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct _ibv_device_ops {
    pub _dummy1: usize,
    pub _dummy2: usize,
}

/// What [`ibv_context::abi_compat`] holds in a context that is part of a [`verbs_context`].
pub const VERBS_ABI_IS_EXTENDED: usize = usize::MAX;

/// Bytes of [`ibv_port_attr`] that the exported `ibv_query_port` writes: all that the first version of the structure had.
pub const COMPAT_PORT_ATTR_LEN: usize = 48;

/// Access flags that a device may ignore: what it does not know of them is no error.
pub const IBV_ACCESS_OPTIONAL_RANGE: c_uint = 0x3ff0_0000;

use std::ffi::c_uint;

const _: () = {
    assert!(size_of::<ibv_device>() == 664);
    assert!(std::mem::offset_of!(verbs_context, context) == size_of::<verbs_context>() - size_of::<ibv_context>());
};

// What the documentation of the ABI was measured as on 64-bit Linux.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<ibv_context>() == 328 && offset_of!(ibv_context, ops) == 8);
    assert!(offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, poll_cq) == 96);
    assert!(offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, req_notify_cq) == 104);
    assert!(offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, post_srq_recv) == 168);
    assert!(offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, post_send) == 208);
    assert!(offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, post_recv) == 216);
    assert!(size_of::<verbs_context>() == 648 && offset_of!(verbs_context, context) == 320);
    assert!(offset_of!(verbs_context, create_cq_ex) == 200 && offset_of!(verbs_context, query_device_ex) == 216);
    assert!(offset_of!(verbs_context, create_qp_ex) == 264 && offset_of!(verbs_context, sz) == 312);
    assert!(size_of::<ibv_qp_ex>() == 352 && offset_of!(ibv_qp_ex, wr_id) == 168);
    assert!(offset_of!(ibv_qp_ex, wr_start) == 320);
    assert!(size_of::<ibv_qp>() == 160 && offset_of!(ibv_qp, qp_num) == 52 && offset_of!(ibv_qp, state) == 56);
    assert!(size_of::<ibv_cq>() == 128 && size_of::<ibv_cq_ex>() == 288 && size_of::<ibv_srq>() == 128);
    assert!(size_of::<ibv_mr>() == 48 && offset_of!(ibv_mr, lkey) == 36 && offset_of!(ibv_mr, rkey) == 40);
    assert!(size_of::<ibv_pd>() == 16 && size_of::<ibv_wc>() == 48 && size_of::<ibv_send_wr>() == 128);
    assert!(size_of::<ibv_recv_wr>() == 32 && size_of::<ibv_sge>() == 16 && size_of::<ibv_port_attr>() == 52);
    assert!(size_of::<ibv_device_attr>() == 232 && size_of::<ibv_qp_init_attr>() == 64);
    assert!(size_of::<ibv_qp_attr>() == 144 && offset_of!(ibv_qp_attr, port_num) == 129);
    assert!(offset_of!(ibv_qp_attr, path_mtu) == 8 && offset_of!(ibv_qp_attr, dest_qp_num) == 28);
    assert!(offset_of!(ibv_qp_attr, ah_attr) == 56);
    assert!(IBV_WR_SEND == 2 && IBV_SEND_SIGNALED == 2);
};
