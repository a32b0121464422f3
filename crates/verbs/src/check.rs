//! What every device refuses in the same words: checks against [`DeviceInfo`], made before a driver is asked.

use std::ops::Range;

use fulmen_memory::Region;

use crate::{
    Access, DeviceInfo, Piece, QueuePairKind, QueuePairLimits, QueuePairState, RecvRequest, SendOp, SendRequest,
    Transition, VerbsError,
};

/// Sequence numbers of packets have 24 bits.
const PSN_LIMIT: u32 = 1 << 24;
const MAX_RETRIES: u8 = 7;
const MAX_TIMER: u8 = 31;
/// Atomics work on words of so many bytes.
const ATOMIC_BYTES: u64 = 8;

impl DeviceInfo {
    /// Refuses more than the device has, in the words of [`VerbsError::Limit`].
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if `asked` exceeds `limit`; `what` is in the plural, with its unit.
    pub fn check_limit(&self, what: &'static str, asked: u64, limit: u64) -> Result<(), VerbsError> {
        if asked <= limit {
            return Ok(());
        }
        Err(VerbsError::Limit { device: self.name.clone(), what, asked, limit })
    }

    /// Whether there is a port of this number.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if there is none.
    pub fn check_port(&self, number: u8) -> Result<(), VerbsError> {
        if (1..=self.ports).contains(&number) {
            return Ok(());
        }
        let problem = match self.ports {
            1 => format!("{} has port 1 only, and port {number} was named", self.name),
            ports => format!("{} has ports 1 to {ports}, and port {number} was named", self.name),
        };
        Err(VerbsError::Invalid { what: "port", problem })
    }

    /// Whether a completion queue of `entries` entries can be made.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for none, [`VerbsError::Limit`] for too many.
    pub fn check_completion_queue(&self, entries: u32) -> Result<(), VerbsError> {
        if entries == 0 {
            return Err(invalid("completion queue", "it needs at least one entry"));
        }
        self.check_limit("entries in a completion queue", entries.into(), self.limits.completion_entries.into())
    }

    /// Whether a queue pair of this kind with these limits can be made.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchKind`] and [`VerbsError::Limit`].
    pub fn check_queue_pair(&self, kind: QueuePairKind, asked: &QueuePairLimits) -> Result<(), VerbsError> {
        if !self.capabilities.has(kind) {
            return Err(VerbsError::NoSuchKind { device: self.name.clone(), kind });
        }
        let limits = &self.limits;
        let (send_unit, recv_unit) = match limits.frame {
            None => ("requests in a send queue", "requests in a receive queue"),
            Some(_) => ("frames in a send queue", "frames in a receive queue"),
        };
        self.check_limit(send_unit, asked.send_depth.into(), limits.queue_depth.into())?;
        self.check_limit(recv_unit, asked.recv_depth.into(), limits.queue_depth.into())?;
        self.check_limit("pieces in a send request", asked.send_pieces.into(), limits.pieces.into())?;
        self.check_limit("pieces in a receive request", asked.recv_pieces.into(), limits.pieces.into())?;
        self.check_limit("inline bytes in a request", asked.inline_bytes.into(), limits.inline_bytes.into())
    }

    /// Whether this piece of a region can be registered with these rights.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for an empty range, one outside of the region, one that the device cannot register in
    /// one piece, rights without the [`Access::LOCAL_WRITE`] that they need, and rights to write a read-only region.
    pub fn check_registration(&self, region: &Region, range: &Range<usize>, access: Access) -> Result<(), VerbsError> {
        const WHAT: &str = "registration";
        if range.start >= range.end || range.end > region.len() {
            let len = region.len();
            return Err(invalid(WHAT, format!("bytes {}..{} of a region of {len}", range.start, range.end)));
        }
        let pieces = self.limits.registration.pieces(region.addr() + range.start, range.end - range.start).len();
        if pieces > 1 {
            let len = range.end - range.start;
            let problem = format!(
                "{} registers these {len} bytes in {pieces} pieces only: register each of Region::registrations",
                self.name
            );
            return Err(invalid(WHAT, problem));
        }
        check_access(access)?;
        if access.contains(Access::LOCAL_WRITE) && !region.is_writable() {
            return Err(invalid(WHAT, "the region is mapped read-only: leave out the rights to write"));
        }
        Ok(())
    }

    /// Whether a queue pair of this kind may make this transition on this device: [`check_transition`], and the port
    /// and the numbers of READs and atomics in flight.
    ///
    /// # Errors
    /// [`VerbsError::State`], [`VerbsError::Invalid`] and [`VerbsError::Limit`].
    pub fn check_transition(
        &self,
        qp_num: u32,
        from: QueuePairState,
        transition: &Transition,
    ) -> Result<(), VerbsError> {
        check_transition(qp_num, from, transition)?;
        let limit = self.limits.reads_in_flight.into();
        match *transition {
            Transition::Init { port, .. } | Transition::DatagramInit { port, .. } => self.check_port(port),
            Transition::ReadyToReceive { reads_served, .. } => {
                self.check_limit("READs and atomics served at a time", reads_served.into(), limit)
            }
            Transition::ReadyToSend { reads_in_flight, .. } => {
                self.check_limit("READs and atomics in flight", reads_in_flight.into(), limit)
            }
            Transition::DatagramReceive
            | Transition::DatagramSend { .. }
            | Transition::Reset
            | Transition::SendDrain
            | Transition::Error => Ok(()),
        }
    }

    /// Whether a send request suits the device and the queue pair (its kind and what it was given), and what it takes
    /// of the queue's depth. Keys are not looked at: they fail a completion, not a post.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`], [`VerbsError::Limit`] and [`VerbsError::Invalid`].
    pub fn check_send(
        &self,
        kind: QueuePairKind,
        given: &QueuePairLimits,
        request: &SendRequest,
    ) -> Result<u64, VerbsError> {
        self.check_operation(kind, &request.op)?;
        let bytes = self.check_message("pieces in a send request", &request.pieces, given.send_pieces)?;
        let reads = match request.op {
            SendOp::Send { .. } | SendOp::SendTo { .. } | SendOp::Write { .. } => false,
            SendOp::Read { .. } => true,
            SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => {
                if bytes != ATOMIC_BYTES {
                    return Err(invalid("atomic", format!("it brings {ATOMIC_BYTES} bytes, and has room for {bytes}")));
                }
                true
            }
        };
        if request.inline {
            if reads {
                return Err(invalid(
                    "inline",
                    "READs and atomics bring bytes: only SEND and WRITE can carry them inline",
                ));
            }
            self.check_limit("inline bytes in a request", bytes, given.inline_bytes.into())?;
        }
        Ok(self.limits.depth_of(bytes))
    }

    /// Whether a receive request suits the device and the queue pair, and what it takes of the queue's depth.
    ///
    /// # Errors
    /// [`VerbsError::Limit`].
    pub fn check_recv(&self, given: &QueuePairLimits, request: &RecvRequest) -> Result<u64, VerbsError> {
        let bytes = self.check_message("pieces in a receive request", &request.pieces, given.recv_pieces)?;
        Ok(self.limits.depth_of(bytes))
    }

    fn check_message(&self, unit: &'static str, pieces: &[Piece], given: u32) -> Result<u64, VerbsError> {
        self.check_limit(unit, pieces.len() as u64, given.into())?;
        let bytes = pieces.iter().map(|piece| piece.memory.len() as u64).sum();
        self.check_limit("bytes in one message", bytes, self.limits.message_bytes)?;
        Ok(bytes)
    }

    fn check_operation(&self, kind: QueuePairKind, op: &SendOp) -> Result<(), VerbsError> {
        let can = &self.capabilities;
        let (imm, able, what) = match *op {
            SendOp::Send { imm } => (imm, kind != QueuePairKind::Ud, "SEND without an address over UD queue pairs"),
            SendOp::SendTo { imm, .. } => (imm, kind == QueuePairKind::Ud, "addressed SEND over connected queue pairs"),
            SendOp::Write { imm, .. } => (imm, can.write, "RDMA WRITE"),
            SendOp::Read { .. } => (None, can.read, "RDMA READ"),
            SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => (None, can.atomics, "atomics"),
        };
        let missing = if !able {
            what
        } else if imm.is_some() && !can.immediate {
            "immediate data"
        } else {
            match (kind, op) {
                (QueuePairKind::Ud, SendOp::Write { .. } | SendOp::Read { .. }) => "RDMA over UD queue pairs",
                (QueuePairKind::Ud, SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. }) => {
                    "atomics over UD queue pairs"
                }
                (QueuePairKind::Uc, SendOp::Read { .. }) => "RDMA READ over UC queue pairs",
                (QueuePairKind::Uc, SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. }) => {
                    "atomics over UC queue pairs"
                }
                _ => return Ok(()),
            }
        };
        Err(VerbsError::Unsupported { device: self.name.clone(), what: missing })
    }
}

/// Whether rights make sense together: peers' rights to change memory need the device's own.
///
/// # Errors
/// [`VerbsError::Invalid`] for REMOTE_WRITE or REMOTE_ATOMIC without LOCAL_WRITE.
pub fn check_access(access: Access) -> Result<(), VerbsError> {
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) && !access.contains(Access::LOCAL_WRITE) {
        return Err(invalid("access rights", "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE: add it"));
    }
    Ok(())
}

/// Whether a queue pair in state `from` may make this transition, and whether its attributes are in range. What only a
/// device knows (ports, GIDs, peers) is not looked at.
///
/// # Errors
/// [`VerbsError::State`] for an illegal change, [`VerbsError::Invalid`] for an attribute out of range.
pub fn check_transition(qp_num: u32, from: QueuePairState, transition: &Transition) -> Result<(), VerbsError> {
    if !transition.is_legal_from(from) {
        let (action, needed) = match transition.target() {
            QueuePairState::Reset => ("going to RESET", "any state"),
            QueuePairState::Init => ("going to INIT", "RESET or INIT"),
            QueuePairState::ReadyToReceive => ("going to RTR", "INIT"),
            QueuePairState::ReadyToSend => ("going to RTS", "RTR, RTS or SQD"),
            QueuePairState::SendDrain => ("going to SQD", "RTS or SQD"),
            QueuePairState::Error => ("going to ERR", "any state"),
        };
        return Err(VerbsError::State { qp_num, state: from, action, needed });
    }
    match *transition {
        Transition::ReadyToReceive { recv_psn, min_rnr_timer, .. } => {
            in_range("recv_psn", recv_psn, PSN_LIMIT - 1)?;
            in_range("min_rnr_timer", min_rnr_timer.0.into(), MAX_TIMER.into())
        }
        Transition::ReadyToSend { send_psn, timeout, retries, rnr_retries, .. } => {
            in_range("send_psn", send_psn, PSN_LIMIT - 1)?;
            in_range("timeout", timeout.0.into(), MAX_TIMER.into())?;
            in_range("retries", retries.into(), MAX_RETRIES.into())?;
            in_range("rnr_retries", rnr_retries.into(), MAX_RETRIES.into())
        }
        Transition::DatagramSend { send_psn } => in_range("send_psn", send_psn, PSN_LIMIT - 1),
        Transition::Init { .. }
        | Transition::DatagramInit { .. }
        | Transition::DatagramReceive
        | Transition::Reset
        | Transition::SendDrain
        | Transition::Error => Ok(()),
    }
}

/// Whether requests can be posted to the send queue in this state. In SQD they wait, in ERR they are flushed.
///
/// # Errors
/// [`VerbsError::State`] in RESET, INIT and RTR.
pub fn check_post_send(qp_num: u32, state: QueuePairState) -> Result<(), VerbsError> {
    match state {
        QueuePairState::ReadyToSend | QueuePairState::SendDrain | QueuePairState::Error => Ok(()),
        QueuePairState::Reset | QueuePairState::Init | QueuePairState::ReadyToReceive => {
            Err(VerbsError::State { qp_num, state, action: "posting to the send queue", needed: "RTS, SQD or ERR" })
        }
    }
}

/// Whether requests can be posted to the receive queue in this state. In ERR they are flushed.
///
/// # Errors
/// [`VerbsError::State`] in RESET.
pub fn check_post_recv(qp_num: u32, state: QueuePairState) -> Result<(), VerbsError> {
    if state != QueuePairState::Reset {
        return Ok(());
    }
    Err(VerbsError::State { qp_num, state, action: "posting to the receive queue", needed: "any state but RESET" })
}

fn in_range(what: &'static str, value: u32, largest: u32) -> Result<(), VerbsError> {
    if value <= largest {
        return Ok(());
    }
    Err(invalid(what, format!("{value} is more than {largest}")))
}

fn invalid(what: &'static str, problem: impl Into<String>) -> VerbsError {
    VerbsError::Invalid { what, problem: problem.into() }
}
