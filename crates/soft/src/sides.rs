//! Two sides that tests connect: a device each, a queue pair each, and memory with fences around what is registered.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fulmen_memory::{Exposed, FileAccess, Region};
use fulmen_reach::Node;
use fulmen_verbs::{
    Access, AckTimeout, Completion, CompletionQueue, Device, Gid, Mtu, Path, Piece, ProtectionDomain, QueuePair,
    QueuePairInit, QueuePairKind, QueuePairLimits, RnrTimer, Transition, VerbsError,
};

use crate::layout::directory;
use crate::{NetworkOptions, Profile, SoftDevice, SoftOptions};

pub(crate) const LEN: usize = 16 << 10;
/// Bytes that nobody may touch lie on both sides of the registered ones.
pub(crate) const FENCED: std::ops::Range<usize> = 4096..12288;

pub(crate) struct Side {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) cq: Arc<dyn CompletionQueue>,
    pub(crate) qp: Arc<dyn QueuePair>,
    pub(crate) memory: Exposed,
    pub(crate) key: u32,
    pub(crate) pd: Arc<dyn ProtectionDomain>,
    pub(crate) mr: Arc<dyn fulmen_verbs::MemoryRegion>,
}

pub(crate) fn side(profile: Profile, kind: QueuePairKind) -> Side {
    let node = Node::open().unwrap();
    side_on(SoftDevice::open(&node, profile).unwrap(), profile, kind)
}

/// A side on a host of its own.
pub(crate) fn far_side(profile: Profile, kind: QueuePairKind) -> Side {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut network = NetworkOptions::new((Ipv4Addr::LOCALHOST, 0).into());
    let mut host = [0xfa; 16];
    host[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    network.host = Some(host);
    let options = SoftOptions { network: Some(network), ..SoftOptions::new(profile) };
    side_on(SoftDevice::open_as(&Node::open().unwrap(), options).unwrap(), profile, kind)
}

/// A side on a device that others may use, too.
pub(crate) fn side_on(device: Arc<dyn Device>, profile: Profile, kind: QueuePairKind) -> Side {
    side_of(device, profile, kind, Region::alloc(LEN).unwrap())
}

/// A side whose memory no peer can map. `process_vm`: the system copies it.
pub(crate) fn plain_side(kind: QueuePairKind, process_vm: bool) -> Side {
    let profile = Profile::Infiniband;
    let options = SoftOptions { process_vm, ..SoftOptions::new(profile) };
    let device = SoftDevice::open_as(&Node::open().unwrap(), options).unwrap();
    side_of(device, profile, kind, unmappable(LEN))
}

/// Memory of a file that has no name, which is not handed to peers.
pub(crate) fn unmappable(len: usize) -> Region {
    let path = std::env::temp_dir().join(format!("fulmen-{:016x}", getrandom::u64().unwrap()));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(len as u64).unwrap();
    Region::map_file(&file, FileAccess::ReadWrite).unwrap()
}

fn side_of(device: Arc<dyn Device>, profile: Profile, kind: QueuePairKind, region: Region) -> Side {
    let pd = device.alloc_pd().unwrap();
    let rich = profile == Profile::Infiniband;
    let access = if rich { Access::all() } else { Access::LOCAL_WRITE };
    let mr = pd.register(&region, FENCED, access).unwrap();
    let cq = device.create_cq(512, None).unwrap();
    let limits = QueuePairLimits { send_depth: 128, recv_depth: 128, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
    let init = QueuePairInit { kind, send_cq: cq.clone(), recv_cq: cq.clone(), limits, signal_all: true, srq: None };
    let qp = pd.create_qp(&init).unwrap();
    qp.modify(&Transition::Init { port: 1, access }).unwrap();
    Side { device, cq, qp, memory: region.expose().unwrap(), key: mr.lkey(), pd, mr }
}

impl Side {
    pub(crate) fn connect(&self, peer: &Side) {
        self.try_connect(peer).unwrap();
    }

    pub(crate) fn try_connect(&self, peer: &Side) -> Result<(), VerbsError> {
        let remote_gid: Gid = peer.device.gid_table(1).unwrap()[0].gid;
        let (remote_lid, remote_qp) = (peer.device.port(1).unwrap().lid, peer.qp.qp_num());
        let path = Path { remote_gid, remote_lid, local_gid_index: 0, remote_qp, mtu: Mtu::B4096 };
        let (min_rnr_timer, reads) = (RnrTimer(1), self.device.info().limits.reads_in_flight);
        self.qp.modify(&Transition::ReadyToReceive { path, recv_psn: 0, reads_served: reads, min_rnr_timer })?;
        let timeout = AckTimeout(8);
        let rts = Transition::ReadyToSend { send_psn: 0, timeout, retries: 1, rnr_retries: 1, reads_in_flight: reads };
        self.qp.modify(&rts)
    }

    pub(crate) fn piece(&self, range: std::ops::Range<usize>) -> Piece {
        Piece { memory: self.memory.slice(range), lkey: self.key }
    }

    pub(crate) fn poll_one(&self) -> Option<Completion> {
        let mut one = [Completion::BLANK];
        (self.cq.poll(&mut one).unwrap() == 1).then_some(one[0])
    }

    /// Polls for a while. Failures are expected, overflow and panics are not.
    pub(crate) fn poll(&self) -> Vec<Completion> {
        let mut all = Vec::new();
        for _ in 0..64 {
            let mut some = [Completion::BLANK; 4];
            let count = self.cq.poll(&mut some).unwrap();
            all.extend_from_slice(&some[..count]);
        }
        all
    }
}

/// What the other process maps of a queue pair, as that process gets at it: by its own device's directory.
pub(crate) fn shared_words(victim: &Side, peer: &Node, size: usize) -> Vec<Exposed> {
    let gid = victim.device.gid_table(1).unwrap()[0].gid;
    let address = fulmen_reach::NodeAddress::on_this_host(gid.0).unwrap();
    let wait = std::time::Duration::from_secs(30);
    let connection = peer.connect(&address, wait).unwrap();
    let key = fulmen_reach::ShareKey::from_u64(u64::from_be_bytes(*b"FLMSOFT\0"));
    let table = connection.map(key, wait).unwrap();
    assert_eq!(table.len(), directory::SIZE);
    let words = table.expose().unwrap();
    let number = victim.qp.qp_num();
    let slot = directory::PAIRS + (number as usize % directory::PAIR_SLOTS) * directory::PAIR_SIZE;
    let share = words.atomic_u64(slot + directory::PAIR_WIRE).load(Ordering::SeqCst);
    let wire = connection.map(fulmen_reach::ShareKey::from_u64(share), wait).unwrap();
    assert_eq!(wire.len(), size);
    vec![words, wire.expose().unwrap()]
}
