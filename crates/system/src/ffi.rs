//! The C interface of libibverbs, as far as Fulmen uses it.
//!
//! Of what the library allocates (`ibv_context`, `ibv_qp`, …) only prefixes are named here: they are read through the
//! library's pointers, never made, copied or embedded. What Fulmen allocates is laid out whole.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// Prefix of `struct ibv_device`.
#[repr(C)]
pub struct Device {
    pub ops: [*mut c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
}

pub type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int;
pub type ReqNotifyCq = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
pub type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
pub type PostRecv = unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;

/// `struct ibv_context_ops`.
#[repr(C)]
pub struct ContextOps {
    pub before_poll_cq: [*mut c_void; 11],
    pub poll_cq: Option<PollCq>,
    pub req_notify_cq: Option<ReqNotifyCq>,
    pub before_post_send: [*mut c_void; 12],
    pub post_send: Option<PostSend>,
    pub post_recv: Option<PostRecv>,
    pub after_post_recv: [*mut c_void; 5],
}

/// Prefix of `struct ibv_context`.
#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
}

/// Prefix of `struct ibv_cq`.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
    pub channel: *mut CompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
}

/// Prefix of `struct ibv_qp`.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub handle: u32,
    pub qp_num: u32,
}

/// Prefix of `struct ibv_comp_channel`.
#[repr(C)]
pub struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
}

/// Prefix of `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_pd`, of which nothing is read.
#[repr(C)]
pub struct Pd {
    _opaque: [u8; 0],
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// In network byte order.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// The member `wr.rdma` of `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrRdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// The member `wr.atomic` of `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrAtomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// The member `wr` of `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Wr {
    pub rdma: WrRdma,
    pub atomic: WrAtomic,
}

/// `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    /// In network byte order.
    pub imm_data: u32,
    pub wr: Wr,
    /// The members `qp_type` and what stands behind it, which no request of Fulmen uses.
    pub rest: [u64; 7],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// `union ibv_gid`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Gid {
    pub raw: [u8; 16],
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GidEntry {
    pub gid: Gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GlobalRoute {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub cap: QpCap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct QpAttr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    /// In network byte order.
    pub node_guid: u64,
    /// In network byte order.
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_uint,
    /// What stands between `atomic_cap` and `max_pkeys`: limits of what Fulmen does not use.
    pub unused: [c_int; 14],
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `struct ibv_port_attr`, with room for what later versions of the library write behind it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PortAttr {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    /// Room only.
    pub room: [u64; 32],
}

/// `struct ibv_async_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AsyncEvent {
    /// The queue, queue pair or port that it is about.
    pub element: *mut c_void,
    pub event_type: c_uint,
}

/// Numbers of the C header.
pub mod number {
    use std::ffi::c_uint;

    pub const NODE_RNIC: i32 = 4;
    pub const TRANSPORT_IB: i32 = 0;
    pub const TRANSPORT_IWARP: i32 = 1;
    /// Apple's; no header of rdma-core has it.
    pub const TRANSPORT_THUNDERBOLT: i32 = 100;

    pub const LINK_LAYER_INFINIBAND: u8 = 1;
    pub const LINK_LAYER_ETHERNET: u8 = 2;
    /// Apple's; no header of rdma-core has it.
    pub const LINK_LAYER_THUNDERBOLT: u8 = 100;

    pub const PORT_DOWN: c_uint = 1;
    pub const PORT_INIT: c_uint = 2;
    pub const PORT_ARMED: c_uint = 3;
    pub const PORT_ACTIVE: c_uint = 4;

    pub const MTU_256: c_uint = 1;
    pub const MTU_512: c_uint = 2;
    pub const MTU_1024: c_uint = 3;
    pub const MTU_2048: c_uint = 4;
    pub const MTU_4096: c_uint = 5;

    pub const ATOMIC_NONE: c_uint = 0;
    pub const ATOMIC_GLOB: c_uint = 2;

    pub const QPT_RC: c_uint = 2;
    pub const QPT_UC: c_uint = 3;

    pub const QPS_RESET: c_uint = 0;
    pub const QPS_INIT: c_uint = 1;
    pub const QPS_RTR: c_uint = 2;
    pub const QPS_RTS: c_uint = 3;
    pub const QPS_SQD: c_uint = 4;
    pub const QPS_SQE: c_uint = 5;
    pub const QPS_ERR: c_uint = 6;

    pub const QP_STATE: c_uint = 1 << 0;
    pub const QP_ACCESS_FLAGS: c_uint = 1 << 3;
    pub const QP_PKEY_INDEX: c_uint = 1 << 4;
    pub const QP_PORT: c_uint = 1 << 5;
    pub const QP_AV: c_uint = 1 << 7;
    pub const QP_PATH_MTU: c_uint = 1 << 8;
    pub const QP_TIMEOUT: c_uint = 1 << 9;
    pub const QP_RETRY_CNT: c_uint = 1 << 10;
    pub const QP_RNR_RETRY: c_uint = 1 << 11;
    pub const QP_RQ_PSN: c_uint = 1 << 12;
    pub const QP_MAX_QP_RD_ATOMIC: c_uint = 1 << 13;
    pub const QP_MIN_RNR_TIMER: c_uint = 1 << 15;
    pub const QP_SQ_PSN: c_uint = 1 << 16;
    pub const QP_MAX_DEST_RD_ATOMIC: c_uint = 1 << 17;
    pub const QP_CAP: c_uint = 1 << 19;
    pub const QP_DEST_QPN: c_uint = 1 << 20;

    pub const ACCESS_LOCAL_WRITE: c_uint = 1;
    pub const ACCESS_REMOTE_WRITE: c_uint = 2;
    pub const ACCESS_REMOTE_READ: c_uint = 4;
    pub const ACCESS_REMOTE_ATOMIC: c_uint = 8;

    pub const WR_RDMA_WRITE: c_uint = 0;
    pub const WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
    pub const WR_SEND: c_uint = 2;
    pub const WR_SEND_WITH_IMM: c_uint = 3;
    pub const WR_RDMA_READ: c_uint = 4;
    pub const WR_ATOMIC_CMP_AND_SWP: c_uint = 5;
    pub const WR_ATOMIC_FETCH_AND_ADD: c_uint = 6;

    pub const SEND_SIGNALED: c_uint = 2;
    pub const SEND_SOLICITED: c_uint = 4;
    pub const SEND_INLINE: c_uint = 8;

    pub const WC_SUCCESS: c_uint = 0;
    pub const WC_RECV: c_uint = 128;
    pub const WC_RECV_RDMA_WITH_IMM: c_uint = 129;
    pub const WC_WITH_IMM: c_uint = 2;

    pub const GID_TYPE_IB: u32 = 0;
    pub const GID_TYPE_ROCE_V1: u32 = 1;
    pub const GID_TYPE_ROCE_V2: u32 = 2;

    pub const EVENT_CQ_ERR: c_uint = 0;
    pub const EVENT_DEVICE_FATAL: c_uint = 8;
}
