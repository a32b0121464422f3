//! What devices and ports are.

use std::ffi::c_int;

use fulmen_soft::Profile;
use fulmen_verbs::{GidEntry, GidKind, LinkLayer, Mtu, PortState};

use crate::context::Context;
use crate::device::{guid, index_of, text};
use crate::error::{Call, refuse};
use crate::export::{export, guard};
use crate::ffi::*;
use crate::thunderbolt;

/// The vendor of the device: an identifier of those that everybody may use.
const VENDOR: u32 = 0x02_464c;
/// The partition that all ports belong to.
const DEFAULT_PKEY: u16 = 0xffff;
/// How Apple's library calls the link layer.
const LINK_LAYER_THUNDERBOLT: u8 = 100;
/// 4 lanes, as the specification encodes them.
const WIDTH_4X: u8 = 2;
/// 25 Gbit/s a lane (EDR), as the specification encodes it.
const SPEED_EDR: u8 = 32;
/// The state of the port below its logical state.
const LINK_UP: u8 = 5;
const LINK_POLLING: u8 = 2;

/// Sets the questions that programs ask through an open device.
pub(crate) fn install(c: &mut verbs_context) {
    c.query_port = Some(query_port);
    c.query_device_ex = Some(query_device_ex);
}

fn device_attr(context: &Context) -> ibv_device_attr {
    let info = context.device.info();
    let (limits, can) = (&thunderbolt::limits_of(context), &info.capabilities);
    let number = |limit: u64| c_int::try_from(limit).unwrap_or(c_int::MAX);
    let guid = guid(context.config, index_of(context)).to_be();
    let ud = if can.ud { limits.queue_pairs } else { 0 };
    let srq = |limit: u32| if can.srq { number(limit.into()) } else { 0 };
    let reads = c_int::from(limits.reads_in_flight);
    // SAFETY: all members are numbers.
    let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
    attr.fw_ver = text(env!("CARGO_PKG_VERSION"));
    attr.node_guid = guid;
    attr.sys_image_guid = guid;
    attr.max_mr_size = limits.registration.max_len.unwrap_or(u64::MAX);
    // All sizes from 4 KiB on.
    attr.page_size_cap = !0xfff;
    attr.vendor_id = VENDOR;
    attr.vendor_part_id = 1;
    attr.hw_ver = 1;
    attr.max_qp = number(limits.queue_pairs.into());
    attr.max_qp_wr = number(limits.queue_depth.into());
    attr.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_PORT_ACTIVE_EVENT
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN;
    attr.max_sge = number(limits.pieces.into());
    attr.max_sge_rd = if can.read { attr.max_sge } else { 0 };
    attr.max_cq = number(limits.completion_queues.into());
    attr.max_cqe = number(limits.completion_entries.into());
    attr.max_mr = number(limits.memory_regions.into());
    attr.max_pd = number(limits.protection_domains.into());
    attr.max_qp_rd_atom = reads;
    attr.max_qp_init_rd_atom = reads;
    attr.max_res_rd_atom = number(u64::from(limits.reads_in_flight) * u64::from(limits.queue_pairs));
    // They hold among processors, too, but adapters say no more than this, and UCX uses only what says exactly this.
    attr.atomic_cap = if can.atomics { IBV_ATOMIC_HCA } else { IBV_ATOMIC_NONE };
    attr.max_ah = number(u64::from(ud) * 64);
    attr.max_srq = srq(limits.queue_pairs);
    attr.max_srq_wr = srq(limits.queue_depth);
    attr.max_srq_sge = srq(limits.pieces);
    attr.max_pkeys = 1;
    // 4.096 µs × 2^15: a process may not run for that long.
    attr.local_ca_ack_delay = 15;
    attr.phys_port_cnt = info.ports;
    attr
}

fn mtu(mtu: Mtu) -> ibv_mtu {
    match mtu {
        Mtu::B256 => IBV_MTU_256,
        Mtu::B512 => IBV_MTU_512,
        Mtu::B1024 => IBV_MTU_1024,
        Mtu::B2048 => IBV_MTU_2048,
        Mtu::B4096 => IBV_MTU_4096,
    }
}

/// A port, or the number of the error.
fn port_attr(context: &Context, name: &str, port: u8) -> Result<ibv_port_attr, c_int> {
    let info = context.device.port(port).map_err(|error| context.fail(name, Call::Query, &error))?;
    let infiniband = info.link_layer == LinkLayer::Infiniband;
    // SAFETY: all members are numbers.
    let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
    attr.state = match info.state {
        PortState::Down => IBV_PORT_DOWN,
        PortState::Initializing => IBV_PORT_INIT,
        PortState::Armed => IBV_PORT_ARMED,
        PortState::Active => IBV_PORT_ACTIVE,
    };
    attr.max_mtu = IBV_MTU_4096;
    attr.active_mtu = mtu(info.active_mtu);
    attr.gid_tbl_len = info.gid_entries.into();
    attr.port_cap_flags = IBV_PORT_CM_SUP | if infiniband { 0 } else { IBV_PORT_IP_BASED_GIDS };
    attr.max_msg_sz = u32::try_from(thunderbolt::limits_of(context).message_bytes).unwrap_or(u32::MAX);
    attr.pkey_tbl_len = 1;
    attr.lid = info.lid;
    // A subnet manager is always elsewhere.
    attr.sm_lid = u16::from(infiniband);
    attr.max_vl_num = 1;
    attr.subnet_timeout = if infiniband { 18 } else { 0 };
    attr.active_width = WIDTH_4X;
    attr.active_speed = SPEED_EDR;
    attr.phys_state = if info.state == PortState::Down { LINK_POLLING } else { LINK_UP };
    attr.link_layer = match info.link_layer {
        LinkLayer::Infiniband => IBV_LINK_LAYER_INFINIBAND as u8,
        LinkLayer::Ethernet => IBV_LINK_LAYER_ETHERNET as u8,
        LinkLayer::Thunderbolt => LINK_LAYER_THUNDERBOLT,
    };
    // Addresses are GIDs alone where there is no subnet manager to give LIDs.
    attr.flags = u8::from(!infiniband);
    Ok(attr)
}

/// Writes the first bytes of a structure into one that may be shorter, or longer: then the rest is zero.
///
/// # Safety
/// `to` is valid for writes of `len` bytes.
unsafe fn copy_out<T>(from: &T, to: *mut u8, len: usize) {
    let known = len.min(size_of::<T>());
    // SAFETY: the caller's promise; `known` bytes of both are valid, and they cannot overlap.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const *from).cast::<u8>(), to, known);
        std::ptr::write_bytes(to.add(known), 0, len - known);
    }
}

/// # Safety
/// As `ibv_query_port`.
unsafe fn port_into(name: &'static str, context: *mut ibv_context, port: u8, to: *mut u8, len: usize) -> c_int {
    // SAFETY: the program's promise about its context.
    match port_attr(unsafe { Context::of(context) }, name, port) {
        Ok(attr) => {
            // SAFETY: the program's promise about `to`.
            unsafe { copy_out(&attr, to, len) };
            0
        }
        Err(number) => number,
    }
}

unsafe extern "C" fn query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr, len: usize) -> c_int {
    // SAFETY: the program's promises: the header says how long its structure is.
    guard("ibv_query_port", || unsafe { port_into("ibv_query_port", context, port, attr.cast(), len) })
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    to: *mut ibv_device_attr_ex,
    len: usize,
) -> c_int {
    guard("ibv_query_device_ex", || {
        // SAFETY: the program's promise: NULL or its structure.
        if !input.is_null() && unsafe { (*input).comp_mask } != 0 {
            return refuse("ibv_query_device_ex", libc::EINVAL, "the input's comp_mask is of a later version");
        }
        if len < size_of::<ibv_device_attr>() {
            return refuse("ibv_query_device_ex", libc::EINVAL, format_args!("{len} bytes are no ibv_device_attr_ex"));
        }
        // SAFETY: the program's promise about its context.
        let context = unsafe { Context::of(context) };
        // SAFETY: all members are numbers.
        let mut attr: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
        attr.orig_attr = device_attr(context);
        attr.device_cap_flags_ex = attr.orig_attr.device_cap_flags.into();
        attr.phys_port_cnt_ex = attr.orig_attr.phys_port_cnt.into();
        // Times of completions are nanoseconds: all bits of a clock of 1 GHz (the unit here is kHz).
        attr.completion_timestamp_mask = u64::MAX;
        attr.hca_core_clock = 1_000_000;
        // SAFETY: the program's promise about `to`, whose length the header says.
        unsafe { copy_out(&attr, to.cast(), len) };
        0
    })
}

fn gid_table(context: &Context, name: &str, port: u8) -> Result<Vec<GidEntry>, c_int> {
    context.device.gid_table(port).map_err(|error| context.fail(name, Call::Query, &error))
}

/// A GID of a port; zero for an entry that is empty, and an error beyond the table.
fn gid(context: &Context, name: &str, port: u8, index: u32) -> Result<Option<GidEntry>, c_int> {
    let len = context.device.port(port).map_err(|error| context.fail(name, Call::Query, &error))?.gid_entries;
    if index >= u32::from(len) {
        return Err(refuse(name, libc::EINVAL, format_args!("the GID table has {len} entries, and none at {index}")));
    }
    Ok(gid_table(context, name, port)?.into_iter().find(|entry| u32::from(entry.index) == index))
}

fn gid_type(context: &Context, entry: &GidEntry) -> ibv_gid_type {
    match (entry.kind, context.profile()) {
        (GidKind::RoceV1, _) => IBV_GID_TYPE_ROCE_V1,
        // Thunderbolt says nothing; its addresses are those of IP interfaces, as with RoCE version 2.
        (GidKind::RoceV2, _) | (GidKind::Unknown, Profile::Thunderbolt) => IBV_GID_TYPE_ROCE_V2,
        _ => IBV_GID_TYPE_IB,
    }
}

fn gid_entry(context: &Context, port: u32, entry: &GidEntry) -> ibv_gid_entry {
    let gid = ibv_gid { raw: entry.gid.0 };
    let gid_type = gid_type(context, entry);
    ibv_gid_entry { gid, gid_index: entry.index.into(), port_num: port, gid_type, ndev_ifindex: 0 }
}

export! {
    /// The attributes of a device.
    "IBVERBS_1.1" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
        // SAFETY: the program's promises.
        unsafe { *attr = device_attr(Context::of(context)) };
        0
    }

    /// The attributes of a port, as far as the first version of the structure had them.
    "IBVERBS_1.1" fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut _compat_ibv_port_attr) -> c_int {
        // SAFETY: the program's promises.
        unsafe { port_into("ibv_query_port", context, port, attr.cast(), COMPAT_PORT_ATTR_LEN) }
    }

    /// An entry of a port's GID table: -1 if there is none.
    "IBVERBS_1.1" fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, to: *mut ibv_gid) -> c_int {
        // SAFETY: the program's promise about its context.
        let context = unsafe { Context::of(context) };
        match gid(context, "ibv_query_gid", port, index as u32) {
            Ok(entry) => {
                // SAFETY: the program's promise about `to`.
                unsafe { (*to).raw = entry.map_or([0; 16], |entry| entry.gid.0) };
                0
            }
            Err(_) => -1,
        }
    }

    /// An entry of a port's GID table, with what is known of it.
    "IBVERBS_1.11" fn _ibv_query_gid_ex(
        context: *mut ibv_context, port: u32, index: u32, to: *mut ibv_gid_entry, flags: u32, len: usize
    ) -> c_int {
        let name = "ibv_query_gid_ex";
        if flags != 0 {
            return refuse(name, libc::EOPNOTSUPP, format_args!("flags {flags:#x} are of a later version"));
        }
        // SAFETY: the program's promise about its context.
        let context = unsafe { Context::of(context) };
        match gid(context, name, u8::try_from(port).unwrap_or(0), index) {
            Ok(Some(entry)) => {
                // SAFETY: the program's promise about `to`, whose length the header says.
                unsafe { copy_out(&gid_entry(context, port, &entry), to.cast(), len) };
                0
            }
            Ok(None) => refuse(name, libc::ENODATA, format_args!("entry {index} of the GID table is empty")),
            Err(number) => number,
        }
    }

    /// The GID tables of all ports: how many entries there are, or a negative error number.
    "IBVERBS_1.11" fn _ibv_query_gid_table(
        context: *mut ibv_context, to: *mut ibv_gid_entry, room: usize, flags: u32, len: usize
    ) -> isize {
        let name = "ibv_query_gid_table";
        if flags != 0 {
            return -refuse(name, libc::EOPNOTSUPP, format_args!("flags {flags:#x} are of a later version")) as isize;
        }
        // SAFETY: the program's promise about its context.
        let context = unsafe { Context::of(context) };
        let mut written = 0;
        for port in 1..=context.device.info().ports {
            let table = match gid_table(context, name, port) {
                Ok(table) => table,
                Err(number) => return -(number as isize),
            };
            for entry in table {
                if written == room {
                    return -refuse(name, libc::EINVAL, format_args!("there are more than {room} entries")) as isize;
                }
                // SAFETY: the program's promise: `to` has `room` entries of `len` bytes.
                unsafe {
                    let place = to.cast::<u8>().add(written * len);
                    copy_out(&gid_entry(context, port.into(), &entry), place, len);
                }
                written += 1;
            }
        }
        written as isize
    }

    /// An entry of a port's partition table, in network byte order: -1 if there is none.
    "IBVERBS_1.1" fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, to: *mut u16) -> c_int {
        // SAFETY: the program's promise about its context.
        if port_attr(unsafe { Context::of(context) }, "ibv_query_pkey", port).is_err() {
            return -1;
        }
        if index != 0 {
            refuse("ibv_query_pkey", libc::EINVAL, format_args!("the table has one entry, and none at {index}"));
            return -1;
        }
        // SAFETY: the program's promise about `to`.
        unsafe { *to = DEFAULT_PKEY.to_be() };
        0
    }

    /// Where a partition key, in network byte order, is in a port's table: -1 if it is not.
    "IBVERBS_1.5" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
        // SAFETY: the program's promise about its context.
        if port_attr(unsafe { Context::of(context) }, "ibv_get_pkey_index", port).is_err() {
            return -1;
        }
        if u16::from_be(pkey) == DEFAULT_PKEY {
            return 0;
        }
        refuse("ibv_get_pkey_index", libc::EINVAL, format_args!("no port is of partition {:#x}", u16::from_be(pkey)));
        -1
    }
}

/// What kind of address an entry is, for drivers: as the kernel's files number them, 1 for RoCE v2 and 0 for the others.
///
/// # Safety
/// The context is open, and `to` is valid for writes.
#[cfg(all(target_os = "linux", not(test)))]
pub(crate) unsafe extern "C" fn query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    to: *mut ibv_gid_type,
) -> c_int {
    crate::export::guard_with(
        "ibv_query_gid_type",
        || -1,
        || {
            // SAFETY: the caller's promise about its context.
            let context = unsafe { Context::of(context) };
            match gid(context, "ibv_query_gid_type", port, index) {
                Ok(entry) => {
                    let routed = entry.is_some_and(|entry| gid_type(context, &entry) == IBV_GID_TYPE_ROCE_V2);
                    // SAFETY: the caller's promise about `to`.
                    unsafe { *to = ibv_gid_type::from(routed) };
                    0
                }
                Err(_) => -1,
            }
        },
    )
}
