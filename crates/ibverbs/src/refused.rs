//! What the device does not have, refused in the way of the manual pages: EOPNOTSUPP, and a reason in the log.

use std::ffi::{c_int, c_uint};

use crate::error::{refuse, refuse_null};
use crate::export::{export, guard};
use crate::ffi::*;

/// A refusal that returns NULL or the error number.
trait Refusal {
    fn refusal(name: &'static str, what: &str) -> Self;
}

impl Refusal for c_int {
    fn refusal(name: &'static str, what: &str) -> c_int {
        refuse(name, libc::EOPNOTSUPP, format_args!("the device has no {what}"))
    }
}

impl<T> Refusal for *mut T {
    fn refusal(name: &'static str, what: &str) -> *mut T {
        refuse_null(name, libc::EOPNOTSUPP, format_args!("the device has no {what}"))
    }
}

/// Functions with the types of members of a context that refuse.
macro_rules! refusals {
    ($($name:ident($($type:ty),*) -> $result:ty: $what:literal;)*) => {
        $(
            unsafe extern "C" fn $name($(_: $type),*) -> $result {
                let name = concat!("ibv_", stringify!($name));
                guard(name, || <$result as Refusal>::refusal(name, $what))
            }
        )*
    };
}

refusals! {
    alloc_mw(*mut ibv_pd, ibv_mw_type) -> *mut ibv_mw: "memory windows";
    bind_mw(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int: "memory windows";
    dealloc_mw(*mut ibv_mw) -> c_int: "memory windows";
    advise_mr(*mut ibv_pd, c_uint, u32, *mut ibv_sge, u32) -> c_int: "on-demand paging, so that there is nothing to prefetch";
    alloc_null_mr(*mut ibv_pd) -> *mut ibv_mr: "registration of nothing";
    read_counters(*mut ibv_counters, *mut u64, u32, u32) -> c_int: "counters";
    attach_counters_point_flow(*mut ibv_counters, *mut ibv_counter_attach_attr, *mut ibv_flow) -> c_int: "counters";
    create_counters(*mut ibv_context, *mut ibv_counters_init_attr) -> *mut ibv_counters: "counters";
    destroy_counters(*mut ibv_counters) -> c_int: "counters";
    reg_dm_mr(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr: "memory of its own";
    alloc_dm(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm: "memory of its own";
    free_dm(*mut ibv_dm) -> c_int: "memory of its own";
    modify_flow_action_esp(*mut ibv_flow_action, *mut ibv_flow_action_esp_attr) -> c_int: "packets to steer";
    destroy_flow_action(*mut ibv_flow_action) -> c_int: "packets to steer";
    create_flow_action_esp(*mut ibv_context, *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action: "packets to steer";
    modify_qp_rate_limit(*mut ibv_qp, *mut ibv_qp_rate_limit_attr) -> c_int: "limits of rates";
    alloc_parent_domain(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd: "parent domains";
    dealloc_td(*mut ibv_td) -> c_int: "thread domains";
    alloc_td(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td: "thread domains";
    post_srq_ops(*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr) -> c_int: "tag matching";
    destroy_rwq_ind_table(*mut ibv_rwq_ind_table) -> c_int: "raw packet queues";
    create_rwq_ind_table(*mut ibv_context, *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table: "raw packet queues";
    destroy_wq(*mut ibv_wq) -> c_int: "raw packet queues";
    modify_wq(*mut ibv_wq, *mut ibv_wq_attr) -> c_int: "raw packet queues";
    create_wq(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq: "raw packet queues";
    destroy_flow(*mut ibv_flow) -> c_int: "packets to steer";
    create_flow(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow: "packets to steer";
    open_qp(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp: "extended reliable connections (XRC)";
    open_xrcd(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd: "extended reliable connections (XRC)";
    close_xrcd(*mut ibv_xrcd) -> c_int: "extended reliable connections (XRC)";
}

/// Sets the calls that refuse.
pub(crate) fn install(c: &mut verbs_context) {
    let ops = &mut c.context.ops;
    ops.alloc_mw = Some(alloc_mw);
    ops.bind_mw = Some(bind_mw);
    ops.dealloc_mw = Some(dealloc_mw);
    c.advise_mr = Some(advise_mr);
    c.alloc_null_mr = Some(alloc_null_mr);
    c.read_counters = Some(read_counters);
    c.attach_counters_point_flow = Some(attach_counters_point_flow);
    c.create_counters = Some(create_counters);
    c.destroy_counters = Some(destroy_counters);
    c.reg_dm_mr = Some(reg_dm_mr);
    c.alloc_dm = Some(alloc_dm);
    c.free_dm = Some(free_dm);
    c.modify_flow_action_esp = Some(modify_flow_action_esp);
    c.destroy_flow_action = Some(destroy_flow_action);
    c.create_flow_action_esp = Some(create_flow_action_esp);
    c.modify_qp_rate_limit = Some(modify_qp_rate_limit);
    c.alloc_parent_domain = Some(alloc_parent_domain);
    c.dealloc_td = Some(dealloc_td);
    c.alloc_td = Some(alloc_td);
    c.post_srq_ops = Some(post_srq_ops);
    c.destroy_rwq_ind_table = Some(destroy_rwq_ind_table);
    c.create_rwq_ind_table = Some(create_rwq_ind_table);
    c.destroy_wq = Some(destroy_wq);
    c.modify_wq = Some(modify_wq);
    c.create_wq = Some(create_wq);
    c.ibv_destroy_flow = Some(destroy_flow);
    c.ibv_create_flow = Some(create_flow);
    c.open_qp = Some(open_qp);
    c.open_xrcd = Some(open_xrcd);
    c.close_xrcd = Some(close_xrcd);
}

export! {
    /// Registers a dma-buf.
    "IBVERBS_1.12" fn ibv_reg_dmabuf_mr(
        _pd: *mut ibv_pd, _offset: u64, _length: usize, _iova: u64, _fd: c_int, _access: c_int
    ) -> *mut ibv_mr {
        Refusal::refusal("ibv_reg_dmabuf_mr", "way to memory of other devices")
    }

    /// Opens what another process has open.
    "IBVERBS_1.10" fn ibv_import_device(_cmd_fd: c_int) -> *mut ibv_context {
        Refusal::refusal("ibv_import_device", "objects that processes share")
    }

    /// Takes a domain of another process.
    "IBVERBS_1.10" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
        Refusal::refusal("ibv_import_pd", "objects that processes share")
    }

    /// Gives it back.
    "IBVERBS_1.10" fn ibv_unimport_pd(_pd: *mut ibv_pd) -> () {
        let _: c_int = Refusal::refusal("ibv_unimport_pd", "objects that processes share");
    }

    /// Takes a memory region of another process.
    "IBVERBS_1.10" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
        Refusal::refusal("ibv_import_mr", "objects that processes share")
    }

    /// Gives it back.
    "IBVERBS_1.10" fn ibv_unimport_mr(_mr: *mut ibv_mr) -> () {
        let _: c_int = Refusal::refusal("ibv_unimport_mr", "objects that processes share");
    }

    /// Takes device memory of another process.
    "IBVERBS_1.13" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut ibv_dm {
        Refusal::refusal("ibv_import_dm", "objects that processes share")
    }

    /// Gives it back.
    "IBVERBS_1.13" fn ibv_unimport_dm(_dm: *mut ibv_dm) -> () {
        let _: c_int = Refusal::refusal("ibv_unimport_dm", "objects that processes share");
    }

    /// Has a queue pair get what is sent to a group.
    "IBVERBS_1.1" fn ibv_attach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
        Refusal::refusal("ibv_attach_mcast", "multicast groups")
    }

    /// Ends that.
    "IBVERBS_1.1" fn ibv_detach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
        Refusal::refusal("ibv_detach_mcast", "multicast groups")
    }

    /// Sets options that vendors agree on between two queue pairs.
    "IBVERBS_1.10" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
        // SAFETY: the program's promise about its structure.
        if unsafe { (*ece).vendor_id } == 0 {
            // Nobody's options: the peer has none, as this device.
            return 0;
        }
        Refusal::refusal("ibv_set_ece", "options of vendors for connections")
    }

    /// The options that were agreed on: none.
    "IBVERBS_1.10" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
        // SAFETY: the program's promise about its structure.
        unsafe { *ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 } };
        0
    }

    /// Whether bytes arrive in order: that is not promised.
    "IBVERBS_1.14" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: ibv_wr_opcode, _flags: u32) -> c_int {
        0
    }

    /// The Ethernet address behind a GID: there are no such ports.
    "IBVERBS_1.1" fn ibv_resolve_eth_l2_from_gid(
        _context: *mut ibv_context, _attr: *mut ibv_ah_attr, _mac: *mut u8, _vid: *mut u16
    ) -> c_int {
        Refusal::refusal("ibv_resolve_eth_l2_from_gid", "port that speaks Ethernet")
    }
}
