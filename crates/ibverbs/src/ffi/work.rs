//! Work requests and completions.

use std::ffi::{c_int, c_uint, c_void};

use super::*;

c_types! {
    WORK:
    struct ibv_wc in "struct ibv_wc" "" {
        wr_id: u64,
        status: ibv_wc_status,
        opcode: ibv_wc_opcode,
        vendor_err: u32,
        byte_len: u32,
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    struct ibv_mw_bind_info in "struct ibv_mw_bind_info" "" {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }

    struct ibv_data_buf in "struct ibv_data_buf" "" {
        addr: *mut c_void,
        length: usize,
    }

    struct ibv_sge in "struct ibv_sge" "" {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    struct ibv_send_wr in "struct ibv_send_wr" "" {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: ibv_wr_opcode,
        send_flags: c_uint,
        imm_data: u32,
        wr: ibv_send_wr_wr,
        qp_type: ibv_send_wr_qp_type,
        bind_mw: ibv_send_wr_bind_mw,
    }

    union ibv_send_wr_wr in "struct ibv_send_wr" "wr" {
        rdma: ibv_send_wr_wr_rdma,
        atomic: ibv_send_wr_wr_atomic,
        ud: ibv_send_wr_wr_ud,
    }

    union ibv_send_wr_qp_type in "struct ibv_send_wr" "qp_type" {
        xrc: ibv_send_wr_qp_type_xrc,
    }

    struct ibv_send_wr_wr_rdma in "struct ibv_send_wr" "wr.rdma" {
        remote_addr: u64,
        rkey: u32,
    }

    struct ibv_send_wr_wr_atomic in "struct ibv_send_wr" "wr.atomic" {
        remote_addr: u64,
        compare_add: u64,
        swap: u64,
        rkey: u32,
    }

    struct ibv_send_wr_wr_ud in "struct ibv_send_wr" "wr.ud" {
        ah: *mut ibv_ah,
        remote_qpn: u32,
        remote_qkey: u32,
    }

    struct ibv_send_wr_qp_type_xrc in "struct ibv_send_wr" "qp_type.xrc" {
        remote_srqn: u32,
    }

    struct ibv_send_wr_bind_mw in "struct ibv_send_wr" "bind_mw" {
        mw: *mut ibv_mw,
        rkey: u32,
        bind_info: ibv_mw_bind_info,
    }

    struct ibv_recv_wr in "struct ibv_recv_wr" "" {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }

    struct ibv_ops_wr in "struct ibv_ops_wr" "" {
        wr_id: u64,
        next: *mut ibv_ops_wr,
        opcode: ibv_ops_wr_opcode,
        flags: c_int,
        tm: ibv_ops_wr_tm,
    }

    struct ibv_ops_wr_tm in "struct ibv_ops_wr" "tm" {
        unexpected_cnt: u32,
        handle: u32,
        add: ibv_ops_wr_tm_add,
    }

    struct ibv_ops_wr_tm_add in "struct ibv_ops_wr" "tm.add" {
        recv_wr_id: u64,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        tag: u64,
        mask: u64,
    }

    struct ibv_mw_bind in "struct ibv_mw_bind" "" {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: ibv_mw_bind_info,
    }

    struct ibv_wc_tm_info in "struct ibv_wc_tm_info" "" {
        tag: u64,
        r#priv: u32,
    }
}
