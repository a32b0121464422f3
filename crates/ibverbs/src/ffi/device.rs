//! Devices, ports, memory and domains.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::timespec;

use super::*;

c_types! {
    DEVICE:
    union ibv_gid in "union ibv_gid" "" {
        raw: [u8; 16],
        global: ibv_gid_global,
    }

    struct ibv_gid_global in "union ibv_gid" "global" {
        subnet_prefix: u64,
        interface_id: u64,
    }

    struct ibv_gid_entry in "struct ibv_gid_entry" "" {
        gid: ibv_gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }

    struct ibv_alloc_dm_attr in "struct ibv_alloc_dm_attr" "" {
        length: usize,
        log_align_req: u32,
        comp_mask: u32,
    }

    struct ibv_dm in "struct ibv_dm" "" {
        context: *mut ibv_context,
        memcpy_to_dm: Option<unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int>,
        memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int>,
        comp_mask: u32,
        handle: u32,
    }

    struct ibv_device_attr in "struct ibv_device_attr" "" {
        fw_ver: [c_char; 64],
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: ibv_atomic_cap,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }

    struct ibv_query_device_ex_input in "struct ibv_query_device_ex_input" "" {
        comp_mask: u32,
    }

    struct ibv_odp_caps in "struct ibv_odp_caps" "" {
        general_caps: u64,
        per_transport_caps: ibv_odp_caps_per_transport_caps,
    }

    struct ibv_odp_caps_per_transport_caps in "struct ibv_odp_caps" "per_transport_caps" {
        rc_odp_caps: u32,
        uc_odp_caps: u32,
        ud_odp_caps: u32,
    }

    struct ibv_tso_caps in "struct ibv_tso_caps" "" {
        max_tso: u32,
        supported_qpts: u32,
    }

    struct ibv_rss_caps in "struct ibv_rss_caps" "" {
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        rx_hash_fields_mask: u64,
        rx_hash_function: u8,
    }

    struct ibv_packet_pacing_caps in "struct ibv_packet_pacing_caps" "" {
        qp_rate_limit_min: u32,
        qp_rate_limit_max: u32,
        supported_qpts: u32,
    }

    struct ibv_tm_caps in "struct ibv_tm_caps" "" {
        max_rndv_hdr_size: u32,
        max_num_tags: u32,
        flags: u32,
        max_ops: u32,
        max_sge: u32,
    }

    struct ibv_cq_moderation_caps in "struct ibv_cq_moderation_caps" "" {
        max_cq_count: u16,
        max_cq_period: u16,
    }

    struct ibv_pci_atomic_caps in "struct ibv_pci_atomic_caps" "" {
        fetch_add: u16,
        swap: u16,
        compare_swap: u16,
    }

    struct ibv_device_attr_ex in "struct ibv_device_attr_ex" "" {
        orig_attr: ibv_device_attr,
        comp_mask: u32,
        odp_caps: ibv_odp_caps,
        completion_timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        tso_caps: ibv_tso_caps,
        rss_caps: ibv_rss_caps,
        max_wq_type_rq: u32,
        packet_pacing_caps: ibv_packet_pacing_caps,
        raw_packet_caps: u32,
        tm_caps: ibv_tm_caps,
        cq_mod_caps: ibv_cq_moderation_caps,
        max_dm_size: u64,
        pci_atomic_caps: ibv_pci_atomic_caps,
        xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }

    struct ibv_port_attr in "struct ibv_port_attr" "" {
        state: ibv_port_state,
        max_mtu: ibv_mtu,
        active_mtu: ibv_mtu,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
    }

    struct ibv_async_event in "struct ibv_async_event" "" {
        element: ibv_async_event_element,
        event_type: ibv_event_type,
    }

    union ibv_async_event_element in "struct ibv_async_event" "element" {
        cq: *mut ibv_cq,
        qp: *mut ibv_qp,
        srq: *mut ibv_srq,
        wq: *mut ibv_wq,
        port_num: c_int,
    }

    struct ibv_pd in "struct ibv_pd" "" {
        context: *mut ibv_context,
        handle: u32,
    }

    struct ibv_td_init_attr in "struct ibv_td_init_attr" "" {
        comp_mask: u32,
    }

    struct ibv_td in "struct ibv_td" "" {
        context: *mut ibv_context,
    }

    struct ibv_xrcd_init_attr in "struct ibv_xrcd_init_attr" "" {
        comp_mask: u32,
        fd: c_int,
        oflags: c_int,
    }

    struct ibv_xrcd in "struct ibv_xrcd" "" {
        context: *mut ibv_context,
    }

    struct ibv_mr in "struct ibv_mr" "" {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    struct ibv_mw in "struct ibv_mw" "" {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        rkey: u32,
        handle: u32,
        r#type: ibv_mw_type,
    }

    struct ibv_device in "struct ibv_device" "" {
        _ops: _ibv_device_ops,
        node_type: ibv_node_type,
        transport_type: ibv_transport_type,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }

    struct ibv_parent_domain_init_attr in "struct ibv_parent_domain_init_attr" "" {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void>,
        free: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64)>,
        pd_context: *mut c_void,
    }

    struct ibv_counters_init_attr in "struct ibv_counters_init_attr" "" {
        comp_mask: u32,
    }

    struct ibv_counters in "struct ibv_counters" "" {
        context: *mut ibv_context,
    }

    struct ibv_counter_attach_attr in "struct ibv_counter_attach_attr" "" {
        counter_desc: ibv_counter_description,
        index: u32,
        comp_mask: u32,
    }

    struct ibv_values_ex in "struct ibv_values_ex" "" {
        comp_mask: u32,
        raw_clock: timespec,
    }
}
