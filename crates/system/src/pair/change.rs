//! Changes of a queue pair's state.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use fulmen_verbs::{Access, LinkLayer, Mtu, Path, QueuePairKind, QueuePairState, Transition, VerbsError};

use super::{Pair, lock};
use crate::errno::{TO_INIT, TO_OTHER, TO_RTR, TO_RTS};
use crate::ffi::{self, number};

/// Routers between the two ends that a packet may pass.
const HOP_LIMIT: u8 = 64;

impl Pair {
    pub(super) fn change(&self, transition: &Transition) -> Result<(), VerbsError> {
        let core = self.core();
        let mut port = lock(&self.port);
        core.info.check_transition(self.number, self.now(), transition)?;
        let rc = self.kind == QueuePairKind::Rc;
        let mut attr = blank();
        let mut mask = number::QP_STATE;
        let before = self.told();
        let call;
        match *transition {
            Transition::DatagramInit { .. } | Transition::DatagramReceive | Transition::DatagramSend { .. } => {
                let what = "datagrams on connected queue pairs";
                return Err(VerbsError::Unsupported { device: core.info.name.clone(), what });
            }
            Transition::Reset => return self.reset(&mut attr),
            // It is there: Linux refuses the change for UC.
            Transition::SendDrain if before == QueuePairState::SendDrain => return Ok(()),
            Transition::Init { port, access } => {
                call = TO_INIT;
                attr.qp_state = number::QPS_INIT;
                attr.port_num = port;
                attr.qp_access_flags = core.pair_flags(access);
                mask |= number::QP_PKEY_INDEX | number::QP_PORT | number::QP_ACCESS_FLAGS;
            }
            Transition::ReadyToReceive { path, recv_psn, reads_served, min_rnr_timer } => {
                call = TO_RTR;
                attr.qp_state = number::QPS_RTR;
                attr.ah_attr = self.address(*port, &path)?;
                attr.path_mtu = mtu(path.mtu);
                attr.dest_qp_num = path.remote_qp;
                attr.rq_psn = recv_psn;
                mask |= number::QP_AV | number::QP_PATH_MTU | number::QP_DEST_QPN | number::QP_RQ_PSN;
                if rc {
                    attr.max_dest_rd_atomic = reads_served;
                    attr.min_rnr_timer = min_rnr_timer.0;
                    mask |= number::QP_MAX_DEST_RD_ATOMIC | number::QP_MIN_RNR_TIMER;
                }
            }
            Transition::ReadyToSend { send_psn, timeout, retries, rnr_retries, reads_in_flight } => {
                call = TO_RTS;
                attr.qp_state = number::QPS_RTS;
                // Out of SQD or RTS, the connection stays as it is.
                if before == QueuePairState::ReadyToReceive {
                    attr.sq_psn = send_psn;
                    mask |= number::QP_SQ_PSN;
                    if rc {
                        attr.timeout = timeout.0;
                        attr.retry_cnt = retries;
                        attr.rnr_retry = rnr_retries;
                        attr.max_rd_atomic = reads_in_flight;
                        mask |= number::QP_TIMEOUT
                            | number::QP_RETRY_CNT
                            | number::QP_RNR_RETRY
                            | number::QP_MAX_QP_RD_ATOMIC;
                    }
                }
            }
            Transition::SendDrain => {
                call = TO_OTHER;
                attr.qp_state = number::QPS_SQD;
            }
            Transition::Error => {
                call = TO_OTHER;
                attr.qp_state = number::QPS_ERR;
                if before == QueuePairState::Reset {
                    self.pass_init(*port)?;
                }
            }
        }
        self.modify_raw(&mut attr, mask, call).map_err(|error| match *transition {
            Transition::ReadyToReceive { path, .. } => self.unreachable(&path, error),
            _ => error,
        })?;
        self.set_told(transition.target());
        if let Transition::Init { port: named, .. } = *transition {
            *port = named;
        }
        Ok(())
    }

    /// Linux knows no way from RESET to ERR but over INIT.
    fn pass_init(&self, port: u8) -> Result<(), VerbsError> {
        let mut attr = blank();
        attr.qp_state = number::QPS_INIT;
        attr.port_num = port;
        attr.qp_access_flags = self.core().pair_flags(Access::empty());
        let mask = number::QP_STATE | number::QP_PKEY_INDEX | number::QP_PORT | number::QP_ACCESS_FLAGS;
        self.modify_raw(&mut attr, mask, TO_INIT)
    }

    /// Goes to ERR, again if it is there: some devices look at what was posted in ERR only then.
    pub(super) fn flush(&self) -> Result<(), VerbsError> {
        let mut attr = blank();
        attr.qp_state = number::QPS_ERR;
        self.modify_raw(&mut attr, number::QP_STATE, TO_OTHER)
    }

    /// Everything posted is forgotten.
    fn reset(&self, attr: &mut ffi::QpAttr) -> Result<(), VerbsError> {
        // Nobody posts meanwhile.
        let _posters = (lock(&self.send), lock(&self.recv));
        attr.qp_state = number::QPS_RESET;
        self.modify_raw(attr, number::QP_STATE, TO_OTHER)?;
        self.set_told(QueuePairState::Reset);
        // SAFETY: a queue pair in RESET has let go of all its requests, and this thread holds the locks of both posters.
        unsafe {
            self.send_queue.forget(&self.sent);
            self.recv_queue.forget(&self.received);
        }
        self.lost.store(false, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn modify_raw(&self, attr: &mut ffi::QpAttr, mask: u32, call: &'static str) -> Result<(), VerbsError> {
        let core = self.core();
        // SAFETY: the queue pair lives, and the attributes that the mask names are set.
        let returned = unsafe { (core.library.calls.modify_qp)(self.raw.as_ptr(), attr, mask as c_int) };
        match returned {
            0 => Ok(()),
            -1 => Err(core.failed(call, crate::library::last_errno())),
            other => Err(core.failed(call, other)),
        }
    }

    fn address(&self, port: u8, path: &Path) -> Result<ffi::AhAttr, VerbsError> {
        let core = self.core();
        if core.gid(port, path.local_gid_index).ok().is_none_or(|gid| gid.is_zero()) {
            let problem = format!(
                "port {port} of {} has no GID at index {}: use the index that belongs to the GID",
                core.info.name, path.local_gid_index
            );
            return Err(VerbsError::Invalid { what: "GID", problem });
        }
        if path.remote_qp >= 1 << 24 {
            let problem = format!("{:#x} has more than 24 bits", path.remote_qp);
            return Err(VerbsError::Invalid { what: "remote queue pair", problem });
        }
        let attr = core.port_attr(port)?;
        // Switches find a port by its LID, which the subnet manager gives.
        let infiniband = core.link_layer(&attr) == LinkLayer::Infiniband;
        if infiniband && path.remote_lid == 0 {
            let problem = format!("{} is on InfiniBand, and its path names no LID of the peer's port", core.info.name);
            return Err(VerbsError::Invalid { what: "LID", problem });
        }
        Ok(ffi::AhAttr {
            grh: ffi::GlobalRoute {
                dgid: ffi::Gid { raw: path.remote_gid.0 },
                flow_label: 0,
                sgid_index: path.local_gid_index,
                hop_limit: HOP_LIMIT,
                traffic_class: 0,
            },
            dlid: if infiniband { path.remote_lid } else { 0 },
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            is_global: 1,
            port_num: port,
        })
    }

    /// Nobody answers at the peer's address: that is told as such.
    fn unreachable(&self, path: &Path, error: VerbsError) -> VerbsError {
        match error {
            VerbsError::System { cause, .. } => {
                VerbsError::Unreachable { qp_num: self.number, peer: path.remote_gid.to_string(), cause }
            }
            other => other,
        }
    }
}

fn blank() -> ffi::QpAttr {
    // SAFETY: numbers alone, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

fn mtu(mtu: Mtu) -> u32 {
    match mtu {
        Mtu::B256 => number::MTU_256,
        Mtu::B512 => number::MTU_512,
        Mtu::B1024 => number::MTU_1024,
        Mtu::B2048 => number::MTU_2048,
        Mtu::B4096 => number::MTU_4096,
    }
}
