//! One queue pair with everything that it needs.

use std::net::Ipv4Addr;
use std::sync::Arc;

use fulmen_memory::{Exposed, Region};
use fulmen_reach::Node;
use fulmen_soft::{NetworkOptions, Profile, SoftDevice, SoftOptions};
use fulmen_testbed::Child;
use fulmen_verbs::{
    Access, AckTimeout, Completion, CompletionQueue, Device, Gid, MemoryRegion, Mtu, Path, Piece, ProtectionDomain,
    QueuePair, QueuePairInit, QueuePairKind, QueuePairLimits, RecvRequest, RemoteAddr, RnrTimer, Transition,
};

use super::plain;

/// What memory an endpoint has, and how its peers get at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// In a region that peers map.
    Mapped,
    /// In memory that nobody can map: the system copies it.
    Copied,
    /// The same, and the system does not: it goes through rings.
    InRings,
    /// In a region, and the peer is on another host.
    Afar,
}

impl Kept {
    pub const ALL: [Kept; 4] = [Kept::Mapped, Kept::Copied, Kept::InRings, Kept::Afar];

    pub fn from_word(word: &str) -> Kept {
        Kept::ALL.into_iter().find(|kept| format!("{kept:?}") == word).expect("a sort of memory")
    }

    /// A child whose role ends with this word, and that is on another host if need be.
    pub fn start_child(self, role: &str) -> Child {
        let start = if self == Kept::Afar { Child::start_elsewhere } else { Child::start };
        start(&format!("{role} {self:?}"))
    }
}

pub struct Endpoint {
    pub qp: Arc<dyn QueuePair>,
    pub cq: Arc<dyn CompletionQueue>,
    pub mr: Arc<dyn MemoryRegion>,
    pub memory: Exposed,
    gid: Gid,
    lid: u16,
    _pd: Arc<dyn ProtectionDomain>,
}

/// How a peer finds an endpoint and its memory.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    pub gid: Gid,
    pub lid: u16,
    pub qp_num: u32,
    pub memory: RemoteAddr,
}

/// The kind of queue pairs that a profile is tested with.
pub fn kind_of(profile: Profile) -> QueuePairKind {
    match profile {
        Profile::Infiniband => QueuePairKind::Rc,
        Profile::Thunderbolt => QueuePairKind::Uc,
    }
}

impl Endpoint {
    /// An endpoint in INIT on a device of its own, with so many bytes of registered memory.
    pub fn open(profile: Profile, bytes: usize) -> Endpoint {
        Endpoint::keeping(profile, Kept::Mapped, bytes)
    }

    /// The same with memory of this sort.
    pub fn keeping(profile: Profile, kept: Kept, bytes: usize) -> Endpoint {
        let node = Node::open().expect("a node opens");
        let mut options = SoftOptions { process_vm: kept == Kept::Copied, ..SoftOptions::new(profile) };
        // Which host a process is on, its parent says.
        options.network = (kept == Kept::Afar).then(|| NetworkOptions::new((Ipv4Addr::LOCALHOST, 0).into()));
        let device = SoftDevice::open_as(&node, options).expect("a device opens");
        let region = match kept {
            Kept::Mapped | Kept::Afar => region(&device.info().limits.registration, bytes),
            Kept::Copied | Kept::InRings => plain::region(bytes).expect("memory"),
        };
        Endpoint::of(&*device, profile, region, bytes)
    }

    /// The same on a device that others may use, too.
    pub fn on(device: &dyn Device, profile: Profile, bytes: usize) -> Endpoint {
        let region = region(&device.info().limits.registration, bytes);
        Endpoint::of(device, profile, region, bytes)
    }

    fn of(device: &dyn Device, profile: Profile, region: Region, bytes: usize) -> Endpoint {
        let pd = device.alloc_pd().expect("a domain");
        let access = match profile {
            Profile::Infiniband => Access::all(),
            Profile::Thunderbolt => Access::LOCAL_WRITE,
        };
        let mr = pd.register(&region, 0..bytes, access).expect("a registration");
        let cq = device.create_cq(4000, None).expect("a completion queue");
        let limits =
            QueuePairLimits { send_depth: 2000, recv_depth: 2000, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
        let init = QueuePairInit {
            kind: kind_of(profile),
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            limits,
            signal_all: true,
            srq: None,
        };
        let qp = pd.create_qp(&init).expect("a queue pair");
        qp.modify(&Transition::Init { port: 1, access }).expect("INIT");
        let gid = device.gid_table(1).expect("port 1")[0].gid;
        let lid = device.port(1).expect("port 1").lid;
        Endpoint { qp, cq, mr, memory: region.expose().expect("memory"), gid, lid, _pd: pd }
    }

    pub fn name(&self) -> Name {
        let memory = RemoteAddr { addr: self.memory.addr() as u64, rkey: self.mr.rkey() };
        Name { gid: self.gid, lid: self.lid, qp_num: self.qp.qp_num(), memory }
    }

    /// Connects to a peer: ready to receive and to send.
    pub fn connect(&self, peer: &Name) {
        let (remote_gid, remote_lid, remote_qp) = (peer.gid, peer.lid, peer.qp_num);
        let path = Path { remote_gid, remote_lid, local_gid_index: 0, remote_qp, mtu: Mtu::B4096 };
        let min_rnr_timer = RnrTimer(1);
        let receive = Transition::ReadyToReceive { path, recv_psn: 0, reads_served: 0, min_rnr_timer };
        self.qp.modify(&receive).expect("RTR");
        let timeout = AckTimeout(22);
        let send = Transition::ReadyToSend { send_psn: 0, timeout, retries: 7, rnr_retries: 7, reads_in_flight: 0 };
        self.qp.modify(&send).expect("RTS");
    }

    pub fn piece(&self, at: usize, len: usize) -> Piece {
        Piece { memory: self.memory.slice(at..at + len), lkey: self.mr.lkey() }
    }

    pub fn recv(&self, wr_id: u64, at: usize, len: usize) {
        self.qp.post_recv(&[RecvRequest::new(wr_id, [self.piece(at, len)])]).expect("a RECV is posted");
    }

    /// The next completion, if there is one.
    pub fn poll(&self) -> Option<Completion> {
        let mut completions = [Completion::BLANK];
        let count = self.cq.poll(&mut completions).expect("the queue is large enough");
        (count == 1).then_some(completions[0])
    }
}

fn region(rule: &fulmen_memory::ChunkRule, bytes: usize) -> Region {
    // Where the system maps it is luck.
    let tries: Vec<Region> = (0..8).map(|_| Region::alloc(bytes).expect("memory")).collect();
    tries.into_iter().find(|region| region.registrations(*rule).len() == 1).expect("one in one piece")
}

impl Name {
    pub fn to_line(self) -> String {
        let gid = u128::from_be_bytes(self.gid.0);
        format!("{gid:x} {} {} {} {}", self.qp_num, self.memory.addr, self.memory.rkey, self.lid)
    }

    pub fn from_line(line: &str) -> Name {
        let words: Vec<&str> = line.split(' ').collect();
        let gid = u128::from_str_radix(words[0], 16).expect("a GID");
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        let memory = RemoteAddr { addr: number(2), rkey: number(3) as u32 };
        Name { gid: Gid(gid.to_be_bytes()), lid: number(4) as u16, qp_num: number(1) as u32, memory }
    }
}
