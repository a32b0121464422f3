//! A queue pair with what it needs, on a device that may be on a host of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_memory::{Exposed, Region};
use fulmen_verbs::{
    Access, AckTimeout, Completion, CompletionQueue, CompletionStatus, Device, MemoryRegion, Mtu, Path, Piece,
    ProtectionDomain, QueuePair, QueuePairInit, QueuePairKind, QueuePairLimits, RecvRequest, RemoteAddr, RnrTimer,
    SendOp, SendRequest, Transition, VerbsError,
};

/// Reached by no test that succeeds.
const LONG: Duration = Duration::from_secs(60);

pub struct Side {
    pub device: Arc<dyn Device>,
    pub cq: Arc<dyn CompletionQueue>,
    pub qp: Arc<dyn QueuePair>,
    pub pd: Arc<dyn ProtectionDomain>,
    pub region: Region,
    pub memory: Exposed,
    pub mr: Arc<dyn MemoryRegion>,
}

impl Side {
    pub fn new(device: &Arc<dyn Device>, kind: QueuePairKind, bytes: usize) -> Side {
        Side::of_depth(device, kind, bytes, 512)
    }

    /// With so many entries in either queue.
    pub fn of_depth(device: &Arc<dyn Device>, kind: QueuePairKind, bytes: usize, depth: u32) -> Side {
        let access = if device.info().capabilities.write { Access::all() } else { Access::LOCAL_WRITE };
        let pd = device.alloc_pd().expect("a domain");
        let region = Region::alloc(bytes).expect("memory");
        let mr = pd.register(&region, 0..bytes, access).expect("a registration");
        let cq = device.create_cq(1024, None).expect("a completion queue");
        let pieces = device.info().limits.pieces.min(4);
        let limits = QueuePairLimits {
            send_depth: depth,
            recv_depth: depth,
            send_pieces: pieces,
            recv_pieces: pieces,
            inline_bytes: 0,
        };
        let init =
            QueuePairInit { kind, send_cq: cq.clone(), recv_cq: cq.clone(), limits, signal_all: false, srq: None };
        let qp = pd.create_qp(&init).expect("a queue pair");
        qp.modify(&Transition::Init { port: 1, access }).expect("INIT");
        let memory = region.expose().expect("memory");
        Side { device: device.clone(), cq, qp, pd, region, memory, mr }
    }

    pub fn pair(devices: &[Arc<dyn Device>; 2], kind: QueuePairKind, bytes: usize) -> [Side; 2] {
        let sides = [0, 1].map(|index: usize| Side::new(&devices[index], kind, bytes));
        sides[0].connect(&sides[1]).expect("a peer");
        sides[1].connect(&sides[0]).expect("a peer");
        sides
    }

    pub fn connect(&self, peer: &Side) -> Result<(), VerbsError> {
        let path = Path {
            remote_gid: peer.device.gid_table(1)?[0].gid,
            remote_lid: peer.device.port(1)?.lid,
            local_gid_index: 0,
            remote_qp: peer.qp.qp_num(),
            mtu: Mtu::B4096,
        };
        let reads = self.device.info().limits.reads_in_flight;
        let min_rnr_timer = RnrTimer(1);
        self.qp.modify(&Transition::ReadyToReceive { path, recv_psn: 0, reads_served: reads, min_rnr_timer })?;
        let (timeout, retries, rnr_retries) = (AckTimeout(14), 7, 7);
        self.qp.modify(&Transition::ReadyToSend { send_psn: 0, timeout, retries, rnr_retries, reads_in_flight: reads })
    }

    /// RESET, and INIT again.
    pub fn reset(&self) {
        self.qp.modify(&Transition::Reset).expect("RESET");
        self.qp.modify(&Transition::Init { port: 1, access: self.mr.access() }).expect("INIT");
    }

    pub fn piece(&self, at: usize, len: usize) -> Piece {
        Piece { memory: self.memory.slice(at..at + len), lkey: self.mr.lkey() }
    }

    pub fn remote(&self, at: usize) -> RemoteAddr {
        RemoteAddr { addr: (self.memory.addr() + at) as u64, rkey: self.mr.rkey() }
    }

    pub fn post(&self, wr_id: u64, op: SendOp, at: usize, len: usize) {
        self.qp.post_send(&[SendRequest::new(wr_id, op, [self.piece(at, len)])]).expect("a request is posted");
    }

    pub fn send(&self, wr_id: u64, at: usize, len: usize) {
        self.post(wr_id, SendOp::Send { imm: None }, at, len);
    }

    pub fn recv(&self, wr_id: u64, at: usize, len: usize) {
        self.qp.post_recv(&[RecvRequest::new(wr_id, [self.piece(at, len)])]).expect("a RECV is posted");
    }

    pub fn poll(&self) -> Option<Completion> {
        let mut one = [Completion::BLANK];
        (self.cq.poll(&mut one).expect("a queue that is large enough") == 1).then_some(one[0])
    }

    /// The next completion, of this request and with this status.
    #[track_caller]
    pub fn expect(&self, wr_id: u64, status: CompletionStatus) -> Completion {
        let done = until("a completion", || self.poll());
        assert_eq!((done.wr_id, done.status), (wr_id, status), "{done:?}");
        done
    }
}

/// Does `step` until it gives something.
#[track_caller]
pub fn until<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = step() {
            return found;
        }
        assert!(start.elapsed() < LONG, "waited too long: {what}");
        std::thread::yield_now();
    }
}
