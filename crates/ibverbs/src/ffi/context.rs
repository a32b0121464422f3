//! The open device, and the calls that the header makes through it.

use std::ffi::{c_int, c_uint, c_void};

use libc::pthread_mutex_t;

use super::*;

c_types! {
    CONTEXT:
    struct ibv_context_ops in "struct ibv_context_ops" "" {
        _compat_query_device: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int>,
        _compat_query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int>,
        _compat_alloc_pd: Option<unsafe extern "C" fn() -> *mut c_void>,
        _compat_dealloc_pd: Option<unsafe extern "C" fn() -> *mut c_void>,
        _compat_reg_mr: Option<unsafe extern "C" fn() -> *mut c_void>,
        _compat_rereg_mr: Option<unsafe extern "C" fn() -> *mut c_void>,
        _compat_dereg_mr: Option<unsafe extern "C" fn() -> *mut c_void>,
        alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, ibv_mw_type) -> *mut ibv_mw>,
        bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
        dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
        _compat_create_cq: Option<unsafe extern "C" fn() -> *mut c_void>,
        poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
        _compat_cq_event: Option<unsafe extern "C" fn() -> *mut c_void>,
        _compat_resize_cq: Option<unsafe extern "C" fn() -> *mut c_void>,
        _compat_destroy_cq: Option<unsafe extern "C" fn() -> *mut c_void>,
        _compat_create_srq: Option<unsafe extern "C" fn() -> *mut c_void>,
        _compat_modify_srq: Option<unsafe extern "C" fn() -> *mut c_void>,
        _compat_query_srq: Option<unsafe extern "C" fn() -> *mut c_void>,
        _compat_destroy_srq: Option<unsafe extern "C" fn() -> *mut c_void>,
        post_srq_recv: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        _compat_create_qp: Option<unsafe extern "C" fn() -> *mut c_void>,
        _compat_query_qp: Option<unsafe extern "C" fn() -> *mut c_void>,
        _compat_modify_qp: Option<unsafe extern "C" fn() -> *mut c_void>,
        _compat_destroy_qp: Option<unsafe extern "C" fn() -> *mut c_void>,
        post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
        post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        _compat_create_ah: Option<unsafe extern "C" fn() -> *mut c_void>,
        _compat_destroy_ah: Option<unsafe extern "C" fn() -> *mut c_void>,
        _compat_attach_mcast: Option<unsafe extern "C" fn() -> *mut c_void>,
        _compat_detach_mcast: Option<unsafe extern "C" fn() -> *mut c_void>,
        _compat_async_event: Option<unsafe extern "C" fn() -> *mut c_void>,
    }

    struct ibv_context in "struct ibv_context" "" {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }

    struct verbs_context in "struct verbs_context" "" {
        query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
        advise_mr: Option<unsafe extern "C" fn(*mut ibv_pd, c_uint, u32, *mut ibv_sge, u32) -> c_int>,
        alloc_null_mr: Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr>,
        read_counters: Option<unsafe extern "C" fn(*mut ibv_counters, *mut u64, u32, u32) -> c_int>,
        attach_counters_point_flow: Option<unsafe extern "C" fn(*mut ibv_counters, *mut ibv_counter_attach_attr, *mut ibv_flow) -> c_int>,
        create_counters: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_counters_init_attr) -> *mut ibv_counters>,
        destroy_counters: Option<unsafe extern "C" fn(*mut ibv_counters) -> c_int>,
        reg_dm_mr: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr>,
        alloc_dm: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm>,
        free_dm: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>,
        modify_flow_action_esp: Option<unsafe extern "C" fn(*mut ibv_flow_action, *mut ibv_flow_action_esp_attr) -> c_int>,
        destroy_flow_action: Option<unsafe extern "C" fn(*mut ibv_flow_action) -> c_int>,
        create_flow_action_esp: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action>,
        modify_qp_rate_limit: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_rate_limit_attr) -> c_int>,
        alloc_parent_domain: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd>,
        dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
        alloc_td: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>,
        modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int>,
        post_srq_ops: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr) -> c_int>,
        destroy_rwq_ind_table: Option<unsafe extern "C" fn(*mut ibv_rwq_ind_table) -> c_int>,
        create_rwq_ind_table: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table>,
        destroy_wq: Option<unsafe extern "C" fn(*mut ibv_wq) -> c_int>,
        modify_wq: Option<unsafe extern "C" fn(*mut ibv_wq, *mut ibv_wq_attr) -> c_int>,
        create_wq: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq>,
        query_rt_values: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
        create_cq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
        r#priv: *mut verbs_ex_private,
        query_device_ex: Option<unsafe extern "C" fn(*mut ibv_context, *const ibv_query_device_ex_input, *mut ibv_device_attr_ex, usize) -> c_int>,
        ibv_destroy_flow: Option<unsafe extern "C" fn(*mut ibv_flow) -> c_int>,
        ABI_placeholder2: Option<unsafe extern "C" fn()>,
        ibv_create_flow: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow>,
        ABI_placeholder1: Option<unsafe extern "C" fn()>,
        open_qp: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp>,
        create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
        get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
        create_srq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
        open_xrcd: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>,
        close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>,
        _ABI_placeholder3: u64,
        sz: usize,
        context: ibv_context,
    }
}
