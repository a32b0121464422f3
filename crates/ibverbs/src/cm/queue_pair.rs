//! Queue pairs of identifiers, and the attributes that connect them.

use std::ffi::{c_int, c_uint};
use std::ptr;

use rustix::io::Errno;

use super::devices::{self, check, last_error};
use super::endpoint::Phase;
use super::ffi::*;
use super::frame::Frame;
use super::id::Id;
use super::{refuse, shared};
use crate::data::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::data::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::data::modify::ibv_modify_qp;
use crate::data::qp::{ibv_create_qp, ibv_destroy_qp};
use crate::export::export;
use crate::ffi::*;

/// The local acknowledgement time-out of who sets none: 4.096 µs · 2^14 = 67 ms.
const ACK_TIMEOUT: u8 = 14;
/// How long a peer waits that met no posted receive: 655 ms, as the encoding has it for 0.
const RNR_TIMER: u8 = 0;

/// The way to who sent this frame.
pub(super) fn address_of(theirs: &Frame) -> ibv_ah_attr {
    let port = devices::first().and_then(|device| device.port());
    let (by_gid, sgid_index) = port.map_or((true, 0), |port| (port.lid == 0 || theirs.lid == 0, port.gid_index));
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: theirs.gid },
            flow_label: 0,
            sgid_index: if by_gid { sgid_index } else { 0 },
            hop_limit: u8::from(by_gid),
            traffic_class: 0,
        },
        dlid: theirs.lid,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: u8::from(by_gid),
        port_num: devices::PORT,
    }
}

/// The attributes with which the queue pair of an identifier comes into a state, and their mask.
pub(super) fn attributes(this: &Id, target: ibv_qp_state) -> Result<(ibv_qp_attr, c_uint), Errno> {
    // SAFETY: numbers, which may be zero.
    let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attr.qp_state = target;
    let mut mask = IBV_QP_STATE;
    // SAFETY: the program does not write while a call runs, and its queue pair lives.
    let reliable = unsafe {
        let qp = (*this.c()).qp;
        if qp.is_null() { (*this.c()).qp_type == IBV_QPT_RC } else { (*qp).qp_type == IBV_QPT_RC }
    };
    let datagram = this.is_datagram();
    let state = this.endpoint.lock();
    match target {
        IBV_QPS_INIT => {
            mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
            attr.port_num = devices::PORT;
            if datagram {
                mask |= IBV_QP_QKEY;
                attr.qkey = RDMA_UDP_QKEY;
            } else {
                mask |= IBV_QP_ACCESS_FLAGS;
                attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
                if reliable {
                    attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
                }
            }
        }
        IBV_QPS_RTR if !datagram => {
            let theirs = state.theirs.as_ref().ok_or(Errno::INVAL)?;
            mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            attr.ah_attr = address_of(theirs);
            let ours = devices::first()?.port()?.mtu;
            attr.path_mtu = c_uint::from(if theirs.mtu == 0 { ours } else { ours.min(theirs.mtu) });
            attr.dest_qp_num = theirs.qp_num;
            attr.rq_psn = theirs.psn;
            if reliable {
                mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
                attr.max_dest_rd_atomic = state.responder_resources;
                attr.min_rnr_timer = RNR_TIMER;
            }
        }
        IBV_QPS_RTS => {
            mask |= IBV_QP_SQ_PSN;
            if !datagram {
                if state.theirs.is_none() {
                    return Err(Errno::INVAL);
                }
                attr.sq_psn = state.psn;
            }
            if reliable {
                mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
                attr.timeout = this.own().ack_timeout.unwrap_or(ACK_TIMEOUT);
                attr.retry_cnt = state.retry_count;
                attr.rnr_retry = state.rnr_retry_count;
                attr.max_rd_atomic = state.initiator_depth;
            }
        }
        IBV_QPS_RTR | IBV_QPS_ERR => {}
        _ => return Err(Errno::INVAL),
    }
    Ok((attr, mask))
}

fn modify(this: &Id, mut attr: ibv_qp_attr, mask: c_uint) -> Result<(), Errno> {
    // SAFETY: the program does not write while a call runs, and its queue pair lives.
    check(unsafe { ibv_modify_qp((*this.c()).qp, &mut attr, mask as c_int) })
}

fn to_state(this: &Id, target: ibv_qp_state) -> Result<(), Errno> {
    let (attr, mask) = attributes(this, target)?;
    modify(this, attr, mask)
}

/// Makes the queue pair receive from the peer, serving at most so many READs and atomics at once.
pub(super) fn to_receive(this: &Id, responder_resources: Option<u8>) -> Result<(), Errno> {
    let (mut attr, mask) = attributes(this, IBV_QPS_RTR)?;
    if let Some(most) = responder_resources {
        attr.max_dest_rd_atomic = most;
    }
    modify(this, attr, mask)
}

/// Makes the queue pair send to the peer, with at most so many READs and atomics under way.
pub(super) fn to_send(this: &Id, initiator_depth: Option<u8>) -> Result<(), Errno> {
    let (mut attr, mask) = attributes(this, IBV_QPS_RTS)?;
    if let Some(most) = initiator_depth {
        attr.max_rd_atomic = most;
    }
    modify(this, attr, mask)
}

/// Takes the queue pair of a connection, if there is one, out of service: what is posted comes back.
pub(super) fn to_error(this: &Id) {
    // SAFETY: the program does not write while a call runs.
    if !this.is_datagram() && unsafe { !(*this.c()).qp.is_null() } {
        // It cannot but go there; one in RESET stays.
        let _ = to_state(this, IBV_QPS_ERR);
    }
}

/// The domain of an identifier, or the device's own one.
pub(super) fn domain(this: &Id, asked: *mut ibv_pd) -> Result<*mut ibv_pd, Errno> {
    // SAFETY: the program does not write while a call runs, and its domains live.
    unsafe {
        let c = &*this.c();
        if c.verbs.is_null() {
            return Err(Errno::INVAL);
        }
        if !asked.is_null() {
            return if (*asked).context == c.verbs { Ok(asked) } else { Err(Errno::INVAL) };
        }
        if !c.pd.is_null() {
            return Ok(c.pd);
        }
    }
    devices::first()?.domain()
}

/// Makes the completion queues that the program does not bring.
pub(super) fn create_cqs(this: &Id, send: u32, recv: u32) -> Result<(), Errno> {
    let made = (|| {
        // SAFETY: the program does not read or write while a call runs.
        let c = unsafe { &mut *this.c() };
        if send > 0 {
            (c.send_cq_channel, c.send_cq) = create_cq(c.verbs, send, this)?;
        }
        if recv > 0 {
            (c.recv_cq_channel, c.recv_cq) = create_cq(c.verbs, recv, this)?;
        }
        Ok(())
    })();
    if made.is_err() {
        destroy_cqs(this);
    }
    made
}

fn create_cq(verbs: *mut ibv_context, entries: u32, this: &Id) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    let entries = c_int::try_from(entries).map_err(|_| Errno::INVAL)?;
    // SAFETY: the context is open; what was made is undone where the rest fails.
    unsafe {
        let channel = ibv_create_comp_channel(verbs);
        if channel.is_null() {
            return Err(last_error());
        }
        let cq = ibv_create_cq(verbs, entries, this.c().cast(), channel, 0);
        if cq.is_null() {
            let error = last_error();
            ibv_destroy_comp_channel(channel);
            return Err(error);
        }
        Ok((channel, cq))
    }
}

/// Destroys the completion queues that [`create_cqs`] made.
pub(super) fn destroy_cqs(this: &Id) {
    // SAFETY: the program uses them no more; each is destroyed once.
    unsafe {
        let c = &mut *this.c();
        for (cq, channel) in [(&mut c.send_cq, &mut c.send_cq_channel), (&mut c.recv_cq, &mut c.recv_cq_channel)] {
            let (cq, channel) = (std::mem::replace(cq, ptr::null_mut()), std::mem::replace(channel, ptr::null_mut()));
            if !cq.is_null() {
                ibv_destroy_cq(cq);
            }
            if !channel.is_null() {
                ibv_destroy_comp_channel(channel);
            }
        }
    }
}

/// Makes a queue pair and takes it to INIT; one for datagrams to RTS.
fn create(this: &Id, init: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    // SAFETY: the program does not write while a call runs.
    let c = unsafe { *this.c() };
    if !c.qp.is_null() {
        return Err(Errno::ISCONN);
    }
    let asked = if init.comp_mask & IBV_QP_INIT_ATTR_PD == 0 { ptr::null_mut() } else { init.pd };
    init.pd = domain(this, asked)?;
    init.comp_mask |= IBV_QP_INIT_ATTR_PD;
    let missing = |cq: *mut ibv_cq, own: *mut ibv_cq, entries| if cq.is_null() && own.is_null() { entries } else { 0 };
    create_cqs(
        this,
        missing(init.send_cq, c.send_cq, init.cap.max_send_wr),
        missing(init.recv_cq, c.recv_cq, init.cap.max_recv_wr),
    )?;
    // SAFETY: the program does not write while a call runs.
    let c = unsafe { &mut *this.c() };
    if init.send_cq.is_null() {
        init.send_cq = c.send_cq;
    }
    if init.recv_cq.is_null() {
        init.recv_cq = c.recv_cq;
    }
    if init.srq.is_null() {
        init.srq = c.srq;
    }
    // SAFETY: the program's attributes name what lives. The simple ones begin the others.
    let qp = unsafe {
        if init.comp_mask == IBV_QP_INIT_ATTR_PD {
            ibv_create_qp(init.pd, (&raw mut *init).cast())
        } else {
            shared::create_qp_ex(c.verbs, init)
        }
    };
    if qp.is_null() {
        let error = last_error();
        destroy_cqs(this);
        return Err(error);
    }
    c.qp = qp;
    let ready = to_state(this, IBV_QPS_INIT).and_then(|()| {
        if this.is_datagram() { to_receive(this, None).and_then(|()| to_send(this, None)) } else { Ok(()) }
    });
    if let Err(error) = ready {
        destroy(this);
        return Err(error);
    }
    // SAFETY: the program does not write while a call runs.
    unsafe { (*this.c()).pd = init.pd };
    Ok(())
}

/// Destroys the queue pair and the completion queues that were made for it.
pub(super) fn destroy(this: &Id) {
    // SAFETY: the program uses it no more.
    unsafe {
        let qp = std::mem::replace(&mut (*this.c()).qp, ptr::null_mut());
        if !qp.is_null() {
            ibv_destroy_qp(qp);
        }
    }
    destroy_cqs(this);
}

/// The work of [`rdma_create_qp`].
///
/// # Safety
/// `init` points to attributes, which name what lives.
pub(super) unsafe fn create_plain(this: &Id, pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> Result<(), Errno> {
    if init.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: numbers and pointers, all of which may be zero.
    let mut all: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's promise; the simple attributes begin the others.
    unsafe { ptr::copy_nonoverlapping(init, (&raw mut all).cast::<ibv_qp_init_attr>(), 1) };
    if !pd.is_null() {
        (all.comp_mask, all.pd) = (IBV_QP_INIT_ATTR_PD, pd);
    }
    create(this, &mut all)?;
    // SAFETY: as above. The program learns what it was given.
    unsafe { ptr::copy_nonoverlapping((&raw const all).cast::<ibv_qp_init_attr>(), init, 1) };
    Ok(())
}

export! {
    /// Makes the queue pair of an identifier.
    "RDMACM_1.0" fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> c_int {
        // SAFETY: the manual page asks for an identifier and attributes.
        let Some(this) = (unsafe { Id::find("rdma_create_qp", id) }) else { return -1 };
        // SAFETY: as above.
        match unsafe { create_plain(this, pd, qp_init_attr) } {
            Ok(()) => 0,
            Err(error) => refuse("rdma_create_qp", error, "no queue pair for the identifier"),
        }
    }

    /// Makes the queue pair of an identifier, from attributes of which the mask says which are there.
    "RDMACM_1.0" fn rdma_create_qp_ex(id: *mut rdma_cm_id, qp_init_attr: *mut ibv_qp_init_attr_ex) -> c_int {
        // SAFETY: the manual page asks for an identifier and attributes.
        let Some(this) = (unsafe { Id::find("rdma_create_qp_ex", id) }) else { return -1 };
        // SAFETY: as above.
        let made = unsafe { qp_init_attr.as_mut() }.ok_or(Errno::INVAL).and_then(|init| create(this, init));
        match made {
            Ok(()) => 0,
            Err(error) => refuse("rdma_create_qp_ex", error, "no queue pair for the identifier"),
        }
    }

    /// Destroys the queue pair of an identifier.
    "RDMACM_1.0" fn rdma_destroy_qp(id: *mut rdma_cm_id) -> () {
        // SAFETY: the manual page asks for an identifier.
        let Some(this) = (unsafe { Id::find("rdma_destroy_qp", id) }) else { return };
        destroy(this);
    }

    /// The attributes with which a queue pair of the program's own comes into `qp_attr->qp_state`.
    "RDMACM_1.2" fn rdma_init_qp_attr(
        id: *mut rdma_cm_id,
        qp_attr: *mut ibv_qp_attr,
        qp_attr_mask: *mut c_int,
    ) -> c_int {
        // SAFETY: the manual page asks for an identifier, and for places.
        let Some(this) = (unsafe { Id::find("rdma_init_qp_attr", id) }) else { return -1 };
        // SAFETY: as above.
        let target = unsafe { (*qp_attr).qp_state };
        // SAFETY: the program does not write while a call runs.
        if unsafe { (*id).verbs.is_null() } || this.endpoint.lock().phase == Phase::Listening {
            return refuse("rdma_init_qp_attr", Errno::INVAL, "the identifier has no device");
        }
        match attributes(this, target) {
            Ok((attr, mask)) => {
                // SAFETY: as above.
                unsafe { (*qp_attr, *qp_attr_mask) = (attr, mask as c_int) };
                0
            }
            Err(error) => refuse("rdma_init_qp_attr", error, format_args!("state {target} is not known yet")),
        }
    }
}
