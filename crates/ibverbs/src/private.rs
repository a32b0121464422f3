//! What drivers of hardware ask of the library: symbols that must exist so that programs which are linked with a driver's
//! own library (libmlx5, libefa) load, and that nobody calls, since no such driver gets a device.
//!
//! The library changed these without changing its name, and calls each change by another version: 34 until rdma-core 56,
//! then 57, 59, 64 and 65. Each symbol is here in all of them. (Unit tests are programs, which have no versions.)
#![cfg(all(target_os = "linux", not(test)))]

use std::arch::global_asm;
use std::ffi::{c_char, c_int};

use crate::error::refuse;
use crate::export::guard;
use crate::query::query_gid_type;
use crate::sysfs::read_ibdev_sysfs_file;

/// Stands for all calls of drivers.
extern "C" fn refused() -> c_int {
    guard("a driver's call", || refuse("a driver's call", libc::EOPNOTSUPP, "no driver has a device here"))
}

/// Stands for those that give an address.
extern "C" fn refused_null() -> usize {
    refused();
    0
}

/// Takes a driver in, as the driver's library asks when it is loaded.
extern "C" fn register_driver() {}

/// An operation in words.
extern "C" fn opcode_word() -> *const c_char {
    c"unknown".as_ptr()
}

/// Whether drivers may go on after their device went away.
static DISASSOCIATE: u8 = 0;

/// More names for something of this module, in each version.
macro_rules! private {
    ($kind:literal $target:ident: $($name:ident)*) => {
        $(global_asm!(
            concat!(".globl ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @", $kind),
            concat!(".set ", stringify!($name), ", {target}"),
            concat!(".symver ", stringify!($name), ", ", stringify!($name), "@@IBVERBS_PRIVATE_34"),
            concat!(".symver ", stringify!($name), ", ", stringify!($name), "@IBVERBS_PRIVATE_57"),
            concat!(".symver ", stringify!($name), ", ", stringify!($name), "@IBVERBS_PRIVATE_59"),
            concat!(".symver ", stringify!($name), ", ", stringify!($name), "@IBVERBS_PRIVATE_64"),
            concat!(".symver ", stringify!($name), ", ", stringify!($name), "@IBVERBS_PRIVATE_65"),
            target = sym $target,
        );)*
    };
}

/// The same for a symbol whose version says when it was new.
macro_rules! later {
    ($target:ident: $($name:ident $version:literal)*) => {
        $(global_asm!(
            concat!(".globl ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(".set ", stringify!($name), ", {target}"),
            concat!(".symver ", stringify!($name), ", ", stringify!($name), "@@@", $version),
            target = sym $target,
        );)*
    };
}

private! { "function" register_driver:
    verbs_register_driver_34 verbs_register_driver_57 verbs_register_driver_59 verbs_register_driver_64
    verbs_register_driver_65
}
private! { "object" DISASSOCIATE: verbs_allow_disassociate_destroy }
private! { "function" query_gid_type: ibv_query_gid_type }
private! { "function" read_ibdev_sysfs_file: ibv_read_ibdev_sysfs_file }
private! { "function" opcode_word: ibv_wr_opcode_str }
private! { "function" refused_null: _verbs_init_and_alloc_context verbs_open_device ibv_dmabuf_heap_alloc }
private! { "function" refused:
    __ioctl_final_num_attrs __verbs_log execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_dmah
    ibv_cmd_alloc_mw ibv_cmd_alloc_pd ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah
    ibv_cmd_create_comp_cntr ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex
    ibv_cmd_create_cq_ex2 ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp
    ibv_cmd_create_qp_ex ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq
    ibv_cmd_create_srq_ex ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr
    ibv_cmd_destroy_ah ibv_cmd_destroy_comp_cntr ibv_cmd_destroy_counters ibv_cmd_destroy_cq
    ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table
    ibv_cmd_destroy_srq ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_export_dmabuf_fd ibv_cmd_free_dm
    ibv_cmd_free_dmah ibv_cmd_get_context ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq ibv_cmd_modify_wq
    ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv ibv_cmd_post_send ibv_cmd_post_srq_recv
    ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps ibv_cmd_query_context ibv_cmd_query_device_any
    ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_port_speed ibv_cmd_query_qp ibv_cmd_query_srq
    ibv_cmd_read_comp_cntr ibv_cmd_read_counters ibv_cmd_read_err_comp_cntr ibv_cmd_reg_dm_mr
    ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr ibv_cmd_reg_mr_ex ibv_cmd_req_notify_cq ibv_cmd_rereg_mr
    ibv_cmd_resize_cq ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr ibv_dmabuf_heap_cc_shared_init
    ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free verbs_init_cq verbs_set_ops verbs_uninit_context
}

// What rdma-core had later than this library's header, so that programs which know of it load; they ask the device first,
// or are refused here.
later! { refused_null:
    ibv_alloc_dmah "IBVERBS_1.15" ibv_reg_mr_ex "IBVERBS_1.15" ibv_alloc_buf "IBVERBS_1.17"
    ibv_reg_buf_mr "IBVERBS_1.17" ibv_create_comp_cntr "IBVERBS_1.18"
}
later! { refused:
    ibv_dealloc_dmah "IBVERBS_1.15" ibv_query_port_speed "IBVERBS_1.16" ibv_free_buf "IBVERBS_1.17"
    _ibv_query_comp_cntr_caps "IBVERBS_1.18" ibv_destroy_comp_cntr "IBVERBS_1.18" ibv_inc_comp_cntr "IBVERBS_1.18"
    ibv_inc_err_comp_cntr "IBVERBS_1.18" ibv_qp_attach_comp_cntr "IBVERBS_1.18" ibv_read_comp_cntr "IBVERBS_1.18"
    ibv_read_err_comp_cntr "IBVERBS_1.18" ibv_set_comp_cntr "IBVERBS_1.18" ibv_set_err_comp_cntr "IBVERBS_1.18"
}
later! { refused_descriptor: ibv_dm_export_dmabuf_fd "IBVERBS_1.16" ibv_export_buf_dmabuf_fd "IBVERBS_1.18" }

/// Stands for those that give a descriptor.
extern "C" fn refused_descriptor() -> c_int {
    refused();
    -1
}

// What the connection manager of the same project asks of the library: structures of the kernel's, of which there are
// none here. Its own calls do not ask.
later! { refused:
    ibv_copy_ah_attr_from_kern "IBVERBS_1.1" ibv_copy_path_rec_from_kern "IBVERBS_1.0"
    ibv_copy_path_rec_to_kern "IBVERBS_1.0" ibv_copy_qp_attr_from_kern "IBVERBS_1.0"
}
