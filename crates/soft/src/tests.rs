//! What only the inside can test: hostile bytes, and keys that are never used twice.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fulmen_memory::{Exposed, Region};
use fulmen_reach::Node;
use fulmen_verbs::{
    Access, AckTimeout, Completion, CompletionOpcode, CompletionQueue, CompletionStatus, Device, Gid, Mtu, Path, Piece,
    ProtectionDomain, QueuePair, QueuePairInit, QueuePairKind, QueuePairLimits, RecvRequest, RemoteAddr, RnrTimer,
    SendOp, SendRequest, Transition, VerbsError,
};
use proptest::prelude::*;

use crate::layout::{directory, wire};
use crate::{Profile, SoftDevice};

pub(crate) const LEN: usize = 16 << 10;
/// Bytes that nobody may touch lie on both sides of the registered ones.
pub(crate) const FENCED: std::ops::Range<usize> = 4096..12288;

const BLANK: Completion = Completion {
    wr_id: 0,
    status: CompletionStatus::General,
    opcode: CompletionOpcode::Send,
    byte_len: 0,
    imm: None,
    qp_num: 0,
};

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

/// A side on a device that others may use, too.
pub(crate) fn side_on(device: Arc<dyn Device>, profile: Profile, kind: QueuePairKind) -> Side {
    let pd = device.alloc_pd().unwrap();
    let region = Region::alloc(LEN).unwrap();
    let rich = profile == Profile::Infiniband;
    let access = if rich { Access::all() } else { Access::LOCAL_WRITE };
    let mr = pd.register(&region, FENCED, access).unwrap();
    let cq = device.create_cq(512, None).unwrap();
    let limits = QueuePairLimits { send_depth: 128, recv_depth: 128, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
    let init = QueuePairInit { kind, send_cq: cq.clone(), recv_cq: cq.clone(), limits, signal_all: true };
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
        let path = Path { remote_gid, remote_lid: 0, local_gid_index: 0, remote_qp: peer.qp.qp_num(), mtu: Mtu::B4096 };
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
        let mut one = [BLANK];
        (self.cq.poll(&mut one).unwrap() == 1).then_some(one[0])
    }

    /// Polls for a while. Failures are expected, overflow and panics are not.
    pub(crate) fn poll(&self) -> Vec<Completion> {
        let mut all = Vec::new();
        for _ in 0..64 {
            let mut some = [BLANK; 4];
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

/// A change of a shared word: in the directory or the wire, where, and what.
type Scribble = (bool, usize, u64);

fn scribbles() -> impl Strategy<Value = Vec<Scribble>> {
    let small = prop_oneof![any::<u64>(), 0_u64..4, Just(u64::MAX), (0_u64..64).prop_map(|bit| 1 << bit)];
    let at = prop_oneof![
        // Words of the wire's head, its first frames, and the directory's first entries.
        (0_usize..wire::RING_AT / 8).prop_map(|word| (true, word * 8)),
        (wire::RING_AT / 8..wire::RING_AT / 8 + 96).prop_map(|word| (true, word * 8)),
        (0_usize..64).prop_map(|word| (false, word * 8)),
        (directory::PAIRS / 8..directory::PAIRS / 8 + 8).prop_map(|word| (false, word * 8)),
        (directory::KEYS / 8..directory::KEYS / 8 + 16).prop_map(|word| (false, word * 8)),
    ];
    prop::collection::vec((at, small).prop_map(|((wire, at), value)| (wire, at, value)), 1..24)
}

fn survives(profile: Profile, kind: QueuePairKind, scribbles: &[Scribble]) {
    let (good, bad) = (side(profile, kind), side(profile, kind));
    good.connect(&bad);
    bad.connect(&good);
    good.memory.fill(0..LEN, 0x55);
    bad.memory.fill(0..LEN, 0x77);
    let reader = Node::open().unwrap();
    let words = shared_words(&bad, &reader, wire::SIZE);
    for wr_id in 0..4 {
        good.qp.post_recv(&[RecvRequest::new(wr_id, [good.piece(4096..8192)])]).unwrap();
    }
    for len in [64, 4096] {
        // Frames of both sorts lie in the ring before it is scribbled on.
        let _ = bad.qp.post_send(&[SendRequest::send(9, [bad.piece(4096..4096 + len)])]);
    }
    for (in_wire, at, value) in scribbles {
        words[usize::from(*in_wire)].atomic_u64(*at).store(*value, Ordering::SeqCst);
        let remote = RemoteAddr { addr: bad.memory.addr() as u64 + 4096, rkey: bad.key };
        let mut ops = vec![(SendOp::Send { imm: None }, 64)];
        if kind == QueuePairKind::Rc {
            ops.extend([(SendOp::Write { remote, imm: None }, 64), (SendOp::Read { remote }, 64)]);
            ops.push((SendOp::FetchAdd { remote, add: 1 }, 8));
        }
        for (op, len) in ops {
            // A full queue is one of the things that a hostile peer can bring about.
            let _ = good.qp.post_send(&[SendRequest::new(7, op, [good.piece(8192..8192 + len)])]);
        }
        for completion in good.poll() {
            assert!(completion.byte_len <= 4096, "no more than the RECV has: {completion:?}");
        }
    }
    for outside in [0..FENCED.start, FENCED.end..LEN] {
        let mut seen = vec![0; outside.len()];
        good.memory.read(outside.start, &mut seen);
        assert!(seen.iter().all(|byte| *byte == 0x55), "memory outside of the registration");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_words_break_a_reliable_connection_only(scribbles in scribbles()) {
        survives(Profile::Infiniband, QueuePairKind::Rc, &scribbles);
    }

    #[test]
    fn hostile_words_break_an_unreliable_connection_only(scribbles in scribbles()) {
        survives(Profile::Infiniband, QueuePairKind::Uc, &scribbles);
    }

    #[test]
    fn hostile_words_break_a_thunderbolt_connection_only(scribbles in scribbles()) {
        survives(Profile::Thunderbolt, QueuePairKind::Uc, &scribbles);
    }
}

#[test]
fn keys_are_never_used_twice() {
    let node = Node::open().unwrap();
    let device = SoftDevice::open(&node, Profile::Thunderbolt).unwrap();
    let pd = device.alloc_pd().unwrap();
    let region = Region::alloc(4096).unwrap();
    let mut seen = HashSet::new();
    // More than there are slots, so that slots are used again.
    for _ in 0..directory::KEY_SLOTS * 2 + 100 {
        let mr = pd.register(&region, 0..4096, Access::LOCAL_WRITE).unwrap();
        assert!(mr.lkey() != 0 && seen.insert(mr.lkey()), "key {:#x} was given out before", mr.lkey());
    }
}

#[test]
fn limits_can_be_lower() {
    let node = Node::open().unwrap();
    let profile = Profile::Thunderbolt;
    let few = fulmen_verbs::DeviceLimits { protection_domains: 2, ..profile.limits() };
    let device = SoftDevice::open_with(&node, profile, few).unwrap();
    let _domains = [device.alloc_pd().unwrap(), device.alloc_pd().unwrap()];
    let refused = device.alloc_pd().map(|_| ());
    assert!(matches!(refused, Err(VerbsError::Limit { limit: 2, .. })), "{refused:?}");
    let many = fulmen_verbs::DeviceLimits { queue_pairs: 1 << 20, ..profile.limits() };
    assert!(SoftDevice::open_with(&node, profile, many).is_err());
}

#[test]
fn profiles_have_names() {
    for profile in Profile::ALL {
        assert_eq!(profile.to_string().parse(), Ok(profile));
    }
    let error = "ethernet".parse::<Profile>().unwrap_err();
    assert!(error.to_string().contains("thunderbolt"), "{error}");
}
