//! Every size, offset and number of the C interface that this crate relies on, for the test that asks a C compiler.

use std::mem::{offset_of, size_of};

use fulmen_verbs::CompletionStatus as Status;

use crate::ffi::{self, number};

/// Notes offsets and sizes of fields, and the size of the structure where the structure is known whole.
macro_rules! layout {
    ($facts:ident, $c:literal = $own:ty: $($field:ident)*) => {
        $(
            $facts.push((concat!("offsetof(struct ", $c, ", ", stringify!($field), ")"), offset_of!($own, $field) as u64));
            let size = size_of_field(|own: &$own| &own.$field);
            $facts.push((concat!("sizeof(((struct ", $c, " *)0)->", stringify!($field), ")"), size));
        )*
    };
    ($facts:ident, whole $c:literal = $own:ty: $($field:ident)*) => {
        $facts.push((concat!("sizeof(struct ", $c, ")"), size_of::<$own>() as u64));
        layout!($facts, $c = $own: $($field)*);
    };
}

/// Notes numbers of the C header, whose names there begin with `IBV_`.
macro_rules! numbers {
    ($facts:ident: $($name:ident)*) => {
        $($facts.push((concat!("IBV_", stringify!($name)), number::$name as u64));)*
    };
}

/// Bytes of the field that `get` gives.
fn size_of_field<Whole, Field>(_get: fn(&Whole) -> &Field) -> u64 {
    size_of::<Field>() as u64
}

/// Pairs of a C expression and the value that it must have.
#[must_use]
pub fn facts() -> Vec<(&'static str, u64)> {
    let mut facts = Vec::new();
    structures(&mut facts);
    members(&mut facts);
    numbers!(facts:
        NODE_RNIC TRANSPORT_IB TRANSPORT_IWARP PORT_DOWN PORT_INIT PORT_ARMED PORT_ACTIVE MTU_256 MTU_512 MTU_1024
        MTU_2048 MTU_4096 ATOMIC_NONE ATOMIC_GLOB QPT_RC QPT_UC QPS_RESET QPS_INIT QPS_RTR QPS_RTS QPS_SQD QPS_SQE
        QPS_ERR QP_STATE QP_ACCESS_FLAGS QP_PKEY_INDEX QP_PORT QP_AV QP_PATH_MTU QP_TIMEOUT QP_RETRY_CNT QP_RNR_RETRY
        QP_RQ_PSN QP_MAX_QP_RD_ATOMIC QP_MIN_RNR_TIMER QP_SQ_PSN QP_MAX_DEST_RD_ATOMIC QP_CAP QP_DEST_QPN ACCESS_LOCAL_WRITE
        ACCESS_REMOTE_WRITE ACCESS_REMOTE_READ ACCESS_REMOTE_ATOMIC WR_RDMA_WRITE WR_RDMA_WRITE_WITH_IMM WR_SEND
        WR_SEND_WITH_IMM WR_RDMA_READ WR_ATOMIC_CMP_AND_SWP WR_ATOMIC_FETCH_AND_ADD SEND_SIGNALED SEND_SOLICITED
        SEND_INLINE WC_SUCCESS WC_RECV WC_RECV_RDMA_WITH_IMM WC_WITH_IMM GID_TYPE_IB GID_TYPE_ROCE_V1 GID_TYPE_ROCE_V2 EVENT_CQ_ERR EVENT_DEVICE_FATAL
    );
    statuses(&mut facts);
    facts
}

fn structures(facts: &mut Vec<(&'static str, u64)>) {
    layout!(facts, "ibv_device" = ffi::Device:
        node_type transport_type
    );
    layout!(facts, whole "ibv_context_ops" = ffi::ContextOps:
        poll_cq req_notify_cq post_send post_recv
    );
    layout!(facts, "ibv_context" = ffi::Context:
        device ops cmd_fd async_fd
    );
    layout!(facts, "ibv_cq" = ffi::Cq:
        context channel cq_context handle cqe
    );
    layout!(facts, "ibv_qp" = ffi::Qp:
        context qp_context pd send_cq recv_cq srq handle qp_num
    );
    layout!(facts, "ibv_comp_channel" = ffi::CompChannel:
        context fd
    );
    layout!(facts, whole "ibv_mr" = ffi::Mr:
        context pd addr length handle lkey rkey
    );
    layout!(facts, whole "ibv_wc" = ffi::Wc:
        wr_id status opcode vendor_err byte_len imm_data qp_num src_qp wc_flags pkey_index slid sl dlid_path_bits
    );
    layout!(facts, whole "ibv_sge" = ffi::Sge:
        addr length lkey
    );
    layout!(facts, whole "ibv_send_wr" = ffi::SendWr:
        wr_id next sg_list num_sge opcode send_flags imm_data wr
    );
    layout!(facts, whole "ibv_recv_wr" = ffi::RecvWr:
        wr_id next sg_list num_sge
    );
    layout!(facts, whole "ibv_gid_entry" = ffi::GidEntry:
        gid gid_index port_num gid_type ndev_ifindex
    );
    layout!(facts, whole "ibv_global_route" = ffi::GlobalRoute:
        dgid flow_label sgid_index hop_limit traffic_class
    );
    layout!(facts, whole "ibv_ah_attr" = ffi::AhAttr:
        grh dlid sl src_path_bits static_rate is_global port_num
    );
    layout!(facts, whole "ibv_qp_cap" = ffi::QpCap:
        max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data
    );
    layout!(facts, whole "ibv_qp_init_attr" = ffi::QpInitAttr:
        qp_context send_cq recv_cq srq cap qp_type sq_sig_all
    );
    layout!(facts, whole "ibv_qp_attr" = ffi::QpAttr:
        qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num qp_access_flags cap ah_attr
        alt_ah_attr pkey_index alt_pkey_index en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic
        min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num alt_timeout rate_limit
    );
    layout!(facts, whole "ibv_device_attr" = ffi::DeviceAttr:
        fw_ver node_guid sys_image_guid max_mr_size page_size_cap vendor_id vendor_part_id hw_ver max_qp max_qp_wr
        device_cap_flags max_sge max_sge_rd max_cq max_cqe max_mr max_pd max_qp_rd_atom max_ee_rd_atom max_res_rd_atom
        max_qp_init_rd_atom max_ee_init_rd_atom atomic_cap max_pkeys local_ca_ack_delay phys_port_cnt
    );
    layout!(facts, "ibv_port_attr" = ffi::PortAttr:
        state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz bad_pkey_cntr qkey_viol_cntr pkey_tbl_len lid
        sm_lid lmc max_vl_num sm_sl subnet_timeout init_type_reply active_width active_speed phys_state link_layer
        flags port_cap_flags2
    );
    layout!(facts, whole "ibv_async_event" = ffi::AsyncEvent:
        element event_type
    );
}

fn members(facts: &mut Vec<(&'static str, u64)>) {
    let wr = offset_of!(ffi::SendWr, wr);
    facts.extend([
        ("sizeof(union ibv_gid)", size_of::<ffi::Gid>() as u64),
        ("_Alignof(union ibv_gid)", align_of::<ffi::Gid>() as u64),
        ("sizeof(((struct ibv_send_wr *)0)->wr)", offset_of!(ffi::SendWr, rest) as u64 - wr as u64),
        ("offsetof(struct ibv_send_wr, wr.rdma.remote_addr)", (wr + offset_of!(ffi::WrRdma, remote_addr)) as u64),
        ("offsetof(struct ibv_send_wr, wr.rdma.rkey)", (wr + offset_of!(ffi::WrRdma, rkey)) as u64),
        ("offsetof(struct ibv_send_wr, wr.atomic.remote_addr)", (wr + offset_of!(ffi::WrAtomic, remote_addr)) as u64),
        ("offsetof(struct ibv_send_wr, wr.atomic.compare_add)", (wr + offset_of!(ffi::WrAtomic, compare_add)) as u64),
        ("offsetof(struct ibv_send_wr, wr.atomic.swap)", (wr + offset_of!(ffi::WrAtomic, swap)) as u64),
        ("offsetof(struct ibv_send_wr, wr.atomic.rkey)", (wr + offset_of!(ffi::WrAtomic, rkey)) as u64),
        ("IBV_LINK_LAYER_INFINIBAND", number::LINK_LAYER_INFINIBAND.into()),
        ("IBV_LINK_LAYER_ETHERNET", number::LINK_LAYER_ETHERNET.into()),
    ]);
}

/// The statuses of completions are in the vocabulary already.
fn statuses(facts: &mut Vec<(&'static str, u64)>) {
    facts.extend([
        ("IBV_WC_LOC_LEN_ERR", Status::LocalLength as u64),
        ("IBV_WC_LOC_QP_OP_ERR", Status::LocalQueuePair as u64),
        ("IBV_WC_LOC_PROT_ERR", Status::LocalProtection as u64),
        ("IBV_WC_WR_FLUSH_ERR", Status::Flushed as u64),
        ("IBV_WC_BAD_RESP_ERR", Status::BadResponse as u64),
        ("IBV_WC_LOC_ACCESS_ERR", Status::LocalAccess as u64),
        ("IBV_WC_REM_INV_REQ_ERR", Status::RemoteInvalidRequest as u64),
        ("IBV_WC_REM_ACCESS_ERR", Status::RemoteAccess as u64),
        ("IBV_WC_REM_OP_ERR", Status::RemoteOperation as u64),
        ("IBV_WC_RETRY_EXC_ERR", Status::RetryExceeded as u64),
        ("IBV_WC_RNR_RETRY_EXC_ERR", Status::RnrRetryExceeded as u64),
        ("IBV_WC_FATAL_ERR", Status::Fatal as u64),
        ("IBV_WC_GENERAL_ERR", Status::General as u64),
    ]);
}
