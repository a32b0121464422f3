//! The decorator that injects faults, over a device that is right.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{self, Likeness, ModelBench};
use fulmen_memory::{Exposed, Region};
use fulmen_verbs::conformance::{self, Bench};
use fulmen_verbs::{
    Access, AckTimeout, Completion, CompletionQueue, CompletionStatus as Status, Device, FaultPlan, Faulty, Kill,
    KillMode, MemoryRegion, Mtu, Odds, Path, Piece, QueuePair, QueuePairInit, QueuePairKind as Kind, QueuePairLimits,
    QueuePairState, RecvRequest, RnrTimer, SendRequest, Transition, VerbsError,
};

/// Devices of the model, both decorated.
struct FaultyBench {
    likeness: Likeness,
    plan: FaultPlan,
}

impl Bench for FaultyBench {
    fn name(&self) -> String {
        format!("faulty model of {:?}", self.likeness)
    }

    fn pair(&self) -> Result<[Arc<dyn Device>; 2], VerbsError> {
        let pair = ModelBench { likeness: self.likeness, bug: None }.pair()?;
        Ok(pair.map(|device| {
            let faulty = Faulty::new(device, self.plan.clone());
            let ticking = Arc::downgrade(&faulty);
            std::thread::spawn(move || {
                while let Some(faulty) = ticking.upgrade() {
                    faulty.tick();
                    drop(faulty);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            faulty as Arc<dyn Device>
        }))
    }
}

#[test]
fn without_faults_it_is_the_device_below() {
    for likeness in [Likeness::Infiniband, Likeness::Thunderbolt] {
        conformance::run(&FaultyBench { likeness, plan: FaultPlan::quiet(1) }).assert_passed();
    }
}

#[test]
fn delays_break_no_promise() {
    let plan = FaultPlan { delay: Odds::one_in(2), delay_polls: 3, ..FaultPlan::quiet(2) };
    for likeness in [Likeness::Infiniband, Likeness::Thunderbolt] {
        conformance::run(&FaultyBench { likeness, plan: plan.clone() }).assert_passed();
    }
}

/// One side of a connection; 64 bytes for each request.
pub struct Side {
    cq: Arc<dyn CompletionQueue>,
    memory: Exposed,
    mr: Arc<dyn MemoryRegion>,
    pub qp: Arc<dyn QueuePair>,
}

const LEN: usize = 64;
pub const ROOM: usize = 256;

impl Side {
    fn new(device: &dyn Device, kind: Kind) -> Side {
        let cq = device.create_cq(1024, None).unwrap();
        let pd = device.alloc_pd().unwrap();
        let region = Region::alloc(LEN * ROOM).unwrap();
        let mr = pd.register(&region, 0..LEN * ROOM, Access::LOCAL_WRITE).unwrap();
        let depth = ROOM as u32;
        let limits =
            QueuePairLimits { send_depth: depth, recv_depth: depth, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let qp = pd.create_qp(&QueuePairInit { kind, send_cq, recv_cq, limits, signal_all: false, srq: None }).unwrap();
        Side { cq, memory: region.expose().unwrap(), mr, qp }
    }

    pub fn connect(&self, device: &dyn Device, peer: &Side, peer_device: &dyn Device) {
        self.qp.modify(&Transition::Init { port: 1, access: Access::empty() }).unwrap();
        let remote_gid = peer_device.gid_table(1).unwrap()[0].gid;
        let path = Path { remote_gid, remote_lid: 0, local_gid_index: 0, remote_qp: peer.qp.qp_num(), mtu: Mtu::B4096 };
        let (reads_served, min_rnr_timer) = (device.info().limits.reads_in_flight, RnrTimer(1));
        self.qp.modify(&Transition::ReadyToReceive { path, recv_psn: 0, reads_served, min_rnr_timer }).unwrap();
        let (timeout, reads_in_flight) = (AckTimeout(14), 0);
        let rts = Transition::ReadyToSend { send_psn: 0, timeout, retries: 7, rnr_retries: 7, reads_in_flight };
        self.qp.modify(&rts).unwrap();
    }

    fn piece(&self, slot: usize) -> Piece {
        Piece { memory: self.memory.slice(slot * LEN..(slot + 1) * LEN), lkey: self.mr.lkey() }
    }

    pub fn recv(&self, slot: usize) {
        self.qp.post_recv(&[RecvRequest::new(slot as u64, [self.piece(slot)])]).unwrap();
    }

    pub fn send(&self, slot: usize) -> Result<(), VerbsError> {
        self.memory.fill(slot * LEN..(slot + 1) * LEN, slot as u8);
        self.qp.post_send(&[SendRequest::send(slot as u64, [self.piece(slot)])]).map_err(|error| error.cause)
    }

    pub fn poll(&self) -> Vec<Completion> {
        let nothing = Completion::BLANK;
        let mut room = [nothing; 1024];
        let count = self.cq.poll(&mut room).unwrap();
        room[..count].to_vec()
    }

    /// The bytes of a received message.
    pub fn bytes(&self, completion: &Completion) -> Vec<u8> {
        let mut bytes = vec![0; completion.byte_len as usize];
        self.memory.read(completion.wr_id as usize * LEN, &mut bytes);
        bytes
    }
}

/// A connection from a faulty device to one that is right, with receives posted. The model does everything at once.
pub fn connected(plan: FaultPlan, kind: Kind, faulty_receiver: bool) -> (Arc<Faulty>, Side, Side) {
    let [left, right] = model::pair(Likeness::Infiniband, None);
    let (plain, faulty) =
        if faulty_receiver { (left, Faulty::new(right, plan)) } else { (right, Faulty::new(left, plan)) };
    let (a, b) = match faulty_receiver {
        true => (Side::new(&*plain, kind), Side::new(&*faulty, kind)),
        false => (Side::new(&*faulty, kind), Side::new(&*plain, kind)),
    };
    let (a_device, b_device): (&dyn Device, &dyn Device) =
        if faulty_receiver { (&*plain, &*faulty) } else { (&*faulty, &*plain) };
    a.connect(a_device, &b, b_device);
    b.connect(b_device, &a, a_device);
    (faulty, a, b)
}

/// Sends `count` messages from a faulty device; gives the completions of both sides.
pub fn exchange(plan: FaultPlan, kind: Kind, count: usize) -> (Arc<Faulty>, Vec<Completion>, Vec<Vec<u8>>) {
    let (faulty, a, b) = connected(plan, kind, false);
    (0..ROOM).for_each(|slot| b.recv(slot));
    (0..count).for_each(|slot| a.send(slot).unwrap());
    let sent = a.poll();
    let received = b.poll().iter().filter(|done| done.status.is_success()).map(|done| b.bytes(done)).collect();
    (faulty, sent, received)
}

#[test]
fn drops_on_uc_look_like_success() {
    let plan = FaultPlan { drop: Odds::one_in(4), ..FaultPlan::quiet(7) };
    let (faulty, sent, received) = exchange(plan.clone(), Kind::Uc, 100);
    let dropped = faulty.injected().dropped as usize;
    assert!((10..45).contains(&dropped), "{dropped}");
    assert_eq!(received.len(), 100 - dropped);
    assert!(sent.iter().map(|done| done.wr_id).eq(0..100) && sent.iter().all(|done| done.status.is_success()));
    assert!(received.windows(2).all(|two| two[0][0] < two[1][0]), "the others keep their order");
    // The seed repeats it, and another one does not.
    assert_eq!(exchange(plan.clone(), Kind::Uc, 100).2, received);
    assert_ne!(exchange(FaultPlan { seed: 8, ..plan }, Kind::Uc, 100).2, received);
}

#[test]
fn drops_on_rc_are_errors() {
    let plan = FaultPlan { drop: Odds::one_in(20), ..FaultPlan::quiet(3) };
    let (faulty, sent, received) = exchange(plan, Kind::Rc, 100);
    let good = sent.iter().take_while(|done| done.status.is_success()).count();
    assert!(good > 0 && good < 100, "{good}");
    assert_eq!(faulty.injected().dropped, 1, "nothing is tried after a failure");
    assert!(sent.iter().map(|done| done.wr_id).eq(0..100), "in order: {sent:?}");
    assert_eq!(sent[good].status, Status::RetryExceeded);
    assert!(sent[good + 1..].iter().all(|done| done.status == Status::Flushed));
    assert_eq!(received.len(), good, "what was told as done arrived, and nothing else did");
}

#[test]
fn an_rc_drop_takes_the_queue_pair_down_and_it_starts_anew() {
    let plan = FaultPlan { drop: Odds::one_in(3), ..FaultPlan::quiet(5) };
    let (_faulty, a, b) = connected(plan, Kind::Rc, false);
    (0..8).for_each(|slot| a.recv(slot));
    (0..ROOM).for_each(|slot| b.recv(slot));
    (8..40).for_each(|slot| a.send(slot).unwrap());
    // The receives may be flushed below after this poll took from there.
    let mut done = a.poll();
    done.extend(a.poll());
    assert_eq!(a.qp.state(), QueuePairState::Error);
    let flushed: Vec<u64> = done.iter().map(|done| done.wr_id).filter(|wr_id| *wr_id < 8).collect();
    assert!(flushed.iter().copied().eq(0..8), "receives are flushed, too: {done:?}");
    a.qp.modify(&Transition::Reset).unwrap();
    assert_eq!(a.qp.state(), QueuePairState::Reset);
    assert!(a.poll().is_empty());
}

#[test]
fn duplicates_arrive_twice_on_uc_alone() {
    let plan = FaultPlan { duplicate: Odds::one_in(5), ..FaultPlan::quiet(9) };
    let (faulty, sent, received) = exchange(plan.clone(), Kind::Uc, 100);
    let duplicated = faulty.injected().duplicated as usize;
    assert!((5..40).contains(&duplicated), "{duplicated}");
    assert_eq!(received.len(), 100 + duplicated);
    assert_eq!(sent.len(), 100, "the sender hears of each once");
    assert_eq!(received.windows(2).filter(|two| two[0] == two[1]).count(), duplicated);
    let (faulty, _, received) = exchange(plan, Kind::Rc, 100);
    assert_eq!((faulty.injected().duplicated, received.len()), (0, 100));
}

#[test]
fn damage_flips_one_bit_on_uc_alone() {
    let plan = FaultPlan { corrupt: Odds::one_in(4), ..FaultPlan::quiet(11) };
    for (kind, some) in [(Kind::Uc, true), (Kind::Rc, false)] {
        let (faulty, a, b) = connected(plan.clone(), kind, true);
        (0..100).for_each(|slot| b.recv(slot));
        (0..100).for_each(|slot| a.send(slot).unwrap());
        let mut flipped = 0;
        for done in b.poll() {
            let wanted = done.wr_id as u8;
            flipped += b.bytes(&done).iter().map(|byte| u64::from((byte ^ wanted).count_ones())).sum::<u64>();
        }
        assert_eq!(flipped, faulty.injected().corrupted);
        assert_eq!(flipped > 0, some);
    }
}

#[test]
fn posts_and_requests_fail_as_planned() {
    let plan = FaultPlan { fail_post: Odds::one_in(4), ..FaultPlan::quiet(13) };
    let (faulty, a, b) = connected(plan, Kind::Rc, false);
    (0..100).for_each(|slot| b.recv(slot));
    let refused = (0..100).filter(|slot| matches!(a.send(*slot), Err(VerbsError::System { .. }))).count();
    assert_eq!(refused as u64, faulty.injected().failed_posts);
    assert!(refused > 0 && a.poll().len() == 100 - refused && b.poll().len() == 100 - refused);

    let fail_status = Status::LocalQueuePair;
    let plan = FaultPlan { fail_completion: Odds::one_in(10), fail_status, ..FaultPlan::quiet(14) };
    let (faulty, sent, received) = exchange(plan, Kind::Uc, 100);
    let good = sent.iter().take_while(|done| done.status.is_success()).count();
    assert_eq!(faulty.injected().failed_completions, 1);
    assert_eq!((sent[good].status, received.len(), sent.len()), (fail_status, good, 100));
}

#[test]
fn a_delayed_completion_holds_those_behind_it() {
    let plan = FaultPlan { delay: Odds::ALWAYS, delay_polls: 4, ..FaultPlan::quiet(15) };
    let (faulty, a, b) = connected(plan, Kind::Rc, false);
    b.recv(0);
    b.recv(1);
    a.send(0).unwrap();
    a.send(1).unwrap();
    let polls: Vec<usize> = (0..9).map(|_| a.poll().len()).collect();
    assert_eq!(polls, [0, 0, 0, 0, 1, 0, 0, 0, 1].map(|count: usize| count));
    assert_eq!(faulty.injected().delayed, 2);
}

#[test]
fn a_silent_death_says_nothing_here_and_is_noticed_there() {
    let plan = FaultPlan { kill: Some(Kill { when: Odds::at(11), mode: KillMode::Silent }), ..FaultPlan::quiet(17) };
    let (faulty, a, b) = connected(plan, Kind::Rc, false);
    (0..100).for_each(|slot| b.recv(slot));
    (0..10).for_each(|slot| a.send(slot).unwrap());
    assert_eq!(a.poll().len(), 10);
    assert!(!faulty.is_dead());
    (10..20).for_each(|slot| a.send(slot).unwrap());
    assert!(faulty.is_dead());
    assert!((0..100).all(|_| a.poll().is_empty()));
    assert_eq!(b.poll().len(), 10, "what was posted before arrived");
    // The peer asks, and gets no answer.
    b.send(200).unwrap();
    assert_eq!(b.poll()[0].status, Status::RetryExceeded);
}

#[test]
fn a_loud_death_fails_everything() {
    let kill = Some(Kill { when: Odds::at(13), mode: KillMode::FailsEverything });
    let (faulty, a, _b) = connected(FaultPlan { kill, ..FaultPlan::quiet(19) }, Kind::Rc, false);
    // Nobody receives: they are in flight when the device dies.
    (100..104).for_each(|slot| a.recv(slot));
    (0..8).for_each(|slot| a.send(slot).unwrap());
    assert!(a.poll().is_empty());
    assert!(matches!(a.send(8), Err(VerbsError::System { .. })));
    let done = a.poll();
    assert_eq!(done.len(), 12);
    assert!(done.iter().all(|done| done.status == Status::Fatal), "{done:?}");
    assert!(matches!(faulty.alloc_pd().map(|_| ()), Err(VerbsError::System { .. })));
    assert!(matches!(a.qp.modify(&Transition::Reset), Err(VerbsError::System { .. })));
}
