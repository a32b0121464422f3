//! Two queue pairs, connected, with memory and completion queues.

use std::ops::Range;
use std::sync::Arc;

use fulmen_memory::{Exposed, Region};

use super::bed::{Bed, Failure, Outcome, ensure};
use super::pattern;
use super::watch::Watch;
use crate::{
    Access, AckTimeout, Completion, CompletionQueue, Device, DeviceInfo, MemoryRegion, Path, Piece, ProtectionDomain,
    QueuePair, QueuePairInit, QueuePairKind, QueuePairLimits, RecvRequest, RemoteAddr, RnrTimer, SendOp, SendRequest,
    Transition, select_gid,
};

/// 4.3 s: nothing that the suite does takes so long, however busy the machine.
const LONG_TIMEOUT: AckTimeout = AckTimeout(20);

/// How a pair is to be made.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    /// Requests (of at most a frame) in each queue.
    pub depth: u32,
    pub signal_all: bool,
    /// Bytes of registered memory on each side.
    pub bytes: usize,
    /// What peers may do through the queue pairs; all that the device can if `None`.
    pub qp_access: Option<Access>,
    /// What may be done to the memory; all that the device can if `None`.
    pub memory_access: Option<Access>,
    pub timeout: AckTimeout,
    pub retries: u8,
    pub rnr_retries: u8,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            depth: 64,
            signal_all: false,
            bytes: 64 << 10,
            qp_access: None,
            memory_access: None,
            timeout: LONG_TIMEOUT,
            retries: 7,
            rnr_retries: 7,
        }
    }
}

/// All rights that make sense on a device.
pub(super) fn all_access(info: &DeviceInfo) -> Access {
    let can = &info.capabilities;
    let mut access = Access::LOCAL_WRITE;
    access.set(Access::REMOTE_WRITE, can.write);
    access.set(Access::REMOTE_READ, can.read);
    access.set(Access::REMOTE_ATOMIC, can.atomics);
    access
}

/// Memory that is registered.
#[derive(Clone)]
pub(super) struct Memory {
    pub bytes: Exposed,
    pub mr: Arc<dyn MemoryRegion>,
}

impl Memory {
    /// Registers `len` bytes, in one piece.
    pub(super) fn new(
        bed: &Bed,
        device: &dyn Device,
        pd: &dyn ProtectionDomain,
        len: usize,
        access: Access,
    ) -> Outcome<Memory> {
        let region = region_in_one_piece(bed, device, len)?;
        let mr = pd.register(&region, 0..len, access)?;
        Ok(Memory { bytes: region.expose()?, mr })
    }

    pub(super) fn piece(&self, range: Range<usize>) -> Piece {
        Piece { memory: self.bytes.slice(range), lkey: self.mr.lkey() }
    }

    /// How a peer names its byte `at`.
    pub(super) fn remote(&self, at: usize) -> RemoteAddr {
        RemoteAddr { addr: (self.bytes.addr() + at) as u64, rkey: self.mr.rkey() }
    }
}

/// A region that the device registers whole: where the system maps it is luck, with boundaries in the address space.
pub(super) fn region_in_one_piece(bed: &Bed, device: &dyn Device, len: usize) -> Outcome<Region> {
    let rule = device.info().limits.registration;
    let mut unfit = Vec::new();
    for _ in 0..8 {
        let region = bed.memory(len)?;
        if region.registrations(rule).len() == 1 {
            return Ok(region);
        }
        // Kept mapped, so that the next one lies elsewhere.
        unfit.push(region);
    }
    Err(Failure::Missing(format!("registrations of {len} bytes")))
}

/// One side: everything that belongs to one queue pair.
pub(super) struct Side {
    pub device: Arc<dyn Device>,
    pub port: u8,
    pub pd: Arc<dyn ProtectionDomain>,
    pub send_cq: Arc<dyn CompletionQueue>,
    pub recv_cq: Arc<dyn CompletionQueue>,
    pub memory: Memory,
    pub qp: Arc<dyn QueuePair>,
}

impl Side {
    pub(super) fn new(device: &Arc<dyn Device>, bed: &Bed, setup: &Setup) -> Outcome<Side> {
        // Room for every request of the queue pair, and then some.
        let entries = (4 * setup.depth).min(device.info().limits.completion_entries);
        let send_cq = device.create_cq(entries, None)?;
        let recv_cq = device.create_cq(entries, None)?;
        Side::with_queues(device, bed, setup, send_cq, recv_cq)
    }

    pub(super) fn with_queues(
        device: &Arc<dyn Device>,
        bed: &Bed,
        setup: &Setup,
        send_cq: Arc<dyn CompletionQueue>,
        recv_cq: Arc<dyn CompletionQueue>,
    ) -> Outcome<Side> {
        let info = device.info();
        let pd = device.alloc_pd()?;
        let access = setup.memory_access.unwrap_or_else(|| all_access(info));
        let memory = Memory::new(bed, &**device, &*pd, setup.bytes, access)?;
        let init = QueuePairInit {
            kind: bed.kind,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            limits: queue_pair_limits(info, setup.depth),
            signal_all: setup.signal_all,
            srq: None,
        };
        let qp = pd.create_qp(&init)?;
        Ok(Side { device: device.clone(), port: bed.port, pd, send_cq, recv_cq, memory, qp })
    }

    pub(super) fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    /// RESET → INIT.
    pub(super) fn init(&self, setup: &Setup) -> Outcome {
        let access = setup.qp_access.unwrap_or_else(|| all_access(self.info()));
        Ok(self.qp.modify(&Transition::Init { port: self.port, access })?)
    }

    /// INIT → RTR.
    pub(super) fn ready_to_receive(&self, peer: &Side) -> Outcome {
        Ok(self.qp.modify(&to_rtr(self, peer)?)?)
    }

    /// RTR → RTS.
    pub(super) fn ready_to_send(&self, setup: &Setup) -> Outcome {
        Ok(self.qp.modify(&to_rts(self.info(), setup))?)
    }

    pub(super) fn send(&self, request: SendRequest) -> Outcome {
        Ok(self.qp.post_send(&[request])?)
    }

    pub(super) fn recv(&self, request: RecvRequest) -> Outcome {
        Ok(self.qp.post_recv(&[request])?)
    }

    /// Posts a signalled SEND of this part of the side's memory.
    pub(super) fn send_range(&self, wr_id: u64, range: Range<usize>) -> Outcome {
        self.send(SendRequest::send(wr_id, [self.memory.piece(range)]))
    }

    /// Posts a RECV into this part of the side's memory.
    pub(super) fn recv_range(&self, wr_id: u64, range: Range<usize>) -> Outcome {
        self.recv(RecvRequest::new(wr_id, [self.memory.piece(range)]))
    }

    /// Posts a signalled request over this part of the side's memory.
    pub(super) fn post(&self, wr_id: u64, op: SendOp, range: Range<usize>) -> Outcome {
        self.send(SendRequest::new(wr_id, op, [self.memory.piece(range)]))
    }

    /// Writes a pattern into this part of the side's memory.
    pub(super) fn write(&self, range: Range<usize>, seed: u64) {
        pattern::write(&self.memory.bytes.slice(range), seed);
    }

    /// Fails unless this part of the side's memory holds the pattern.
    pub(super) fn check(&self, range: Range<usize>, seed: u64, what: &str) -> Outcome {
        pattern::check(&self.memory.bytes.slice(range), seed, what)
    }
}

/// What the suite asks of a queue pair, within what the device has.
pub(super) fn queue_pair_limits(info: &DeviceInfo, depth: u32) -> QueuePairLimits {
    let limits = &info.limits;
    QueuePairLimits {
        send_depth: depth.min(limits.queue_depth),
        recv_depth: depth.min(limits.queue_depth),
        send_pieces: limits.pieces.min(4),
        recv_pieces: limits.pieces.min(4),
        inline_bytes: limits.inline_bytes.min(64),
    }
}

/// The transition that points a side at its peer.
pub(super) fn to_rtr(side: &Side, peer: &Side) -> Outcome<Transition> {
    let own = usable_gid(side)?;
    let remote = usable_gid(peer)?;
    let peer_port = peer.device.port(peer.port)?;
    let mtu = side.device.port(side.port)?.active_mtu.min(peer_port.active_mtu);
    Ok(Transition::ReadyToReceive {
        path: Path {
            remote_gid: remote.gid,
            remote_lid: peer_port.lid,
            local_gid_index: own.index,
            remote_qp: peer.qp.qp_num(),
            mtu,
        },
        recv_psn: 7,
        reads_served: side.info().limits.reads_in_flight.min(16),
        min_rnr_timer: RnrTimer(1),
    })
}

pub(super) fn to_rts(info: &DeviceInfo, setup: &Setup) -> Transition {
    Transition::ReadyToSend {
        send_psn: 7,
        timeout: setup.timeout,
        retries: setup.retries,
        rnr_retries: setup.rnr_retries,
        reads_in_flight: info.limits.reads_in_flight.min(16),
    }
}

pub(super) fn usable_gid(side: &Side) -> Outcome<crate::GidEntry> {
    let link_layer = side.device.port(side.port)?.link_layer;
    let table = side.device.gid_table(side.port)?;
    select_gid(link_layer, &table).map_err(|error| Failure::Failed(error.to_string()))
}

/// Takes both sides from RESET to RTS.
pub(super) fn connect(a: &Side, b: &Side, setup: &Setup) -> Outcome {
    a.init(setup)?;
    b.init(setup)?;
    a.ready_to_receive(b)?;
    b.ready_to_receive(a)?;
    a.ready_to_send(setup)?;
    b.ready_to_send(setup)
}

/// Two connected sides, and the watch over their queues.
pub(super) struct Rig {
    pub a: Side,
    pub b: Side,
    pub watch: Watch,
    pub kind: QueuePairKind,
}

const A_SENDS: usize = 0;
const A_RECVS: usize = 1;
const B_SENDS: usize = 2;
pub(super) const B_RECVS: usize = 3;

impl Rig {
    /// Two sides in state RTS.
    pub(super) fn connected(bed: &Bed, setup: &Setup) -> Outcome<Rig> {
        let rig = Rig::reset(bed, setup)?;
        connect(&rig.a, &rig.b, setup)?;
        Ok(rig)
    }

    /// Two sides in state RESET.
    pub(super) fn reset(bed: &Bed, setup: &Setup) -> Outcome<Rig> {
        let [a, b] = &bed.devices;
        let (a, b) = (Side::new(a, bed, setup)?, Side::new(b, bed, setup)?);
        Ok(Rig::of(a, b, bed.kind))
    }

    pub(super) fn of(a: Side, b: Side, kind: QueuePairKind) -> Rig {
        let queues = [&a.send_cq, &a.recv_cq, &b.send_cq, &b.recv_cq].map(Clone::clone);
        Rig { a, b, watch: Watch::new(queues), kind }
    }

    /// The next completion of A's send queue.
    pub(super) fn a_sent(&mut self) -> Outcome<Completion> {
        self.watch.next(A_SENDS)
    }

    /// The next completion of A's receive queue.
    pub(super) fn a_received(&mut self) -> Outcome<Completion> {
        self.watch.next(A_RECVS)
    }

    /// The next completion of B's send queue.
    pub(super) fn b_sent(&mut self) -> Outcome<Completion> {
        self.watch.next(B_SENDS)
    }

    /// The next completion of B's receive queue.
    pub(super) fn b_received(&mut self) -> Outcome<Completion> {
        self.watch.next(B_RECVS)
    }

    /// The next `count` completions of B's receive queue.
    pub(super) fn b_received_all(&mut self, count: usize) -> Outcome<Vec<Completion>> {
        self.watch.take(B_RECVS, count)
    }

    /// Fails if something completes on A's send queue.
    pub(super) fn a_sends_quiet(&mut self, why: &str) -> Outcome {
        self.watch.quiet(A_SENDS, why)
    }

    /// Fails if something completes on B's receive queue.
    pub(super) fn b_recvs_quiet(&mut self, why: &str) -> Outcome {
        self.watch.quiet(B_RECVS, why)
    }

    /// Whether requests of this kind tell their poster about failures at the peer.
    pub(super) fn reliable(&self) -> bool {
        self.kind == QueuePairKind::Rc
    }

    /// Sends a message from A to B and checks it: the pair works.
    pub(super) fn check_alive(&mut self) -> Outcome {
        let seed = 0xA11;
        self.a.write(0..64, seed);
        self.b.memory.bytes.fill(64..128, 0);
        self.b.recv_range(901, 64..128)?;
        self.a.send_range(900, 0..64)?;
        super::watch::check_done(&self.a_sent()?, 900, crate::CompletionOpcode::Send)?;
        super::watch::check_done(&self.b_received()?, 901, crate::CompletionOpcode::Recv)?;
        ensure!(self.a.qp.state() == crate::QueuePairState::ReadyToSend, "a queue pair that works is in RTS");
        self.b.check(64..128, seed, "the message")
    }
}
