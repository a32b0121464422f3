//! What ranks do when others are stopped, lost or late, step by step: the steps are not public.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_memory::{Exposed, FileAccess, Region};
use fulmen_reach::{Node, ReachError, ShareKey};
use fulmen_soft::{Profile, SoftDevice};

use crate::bootstrap::{Heartbeat, Options, Regroup};
use crate::driver::{Broken, Parker, Payload, Takes, Wire, reach};
use crate::engine::{At, Atomic, Cancel, Exports, Lent, Link, OpError, PREFIX, Source, Target};
use crate::lanes::{Lane, Lanes, OFTEN};
use crate::liveness::Life;
use crate::onesided::{self, OneSided};
use crate::recorder::file;
use crate::{
    Coordinator, Fabric, FabricError, FabricOptions, Flow, JoinConfig, Loss, Providers, RecoveryError, Rights, Secret,
    Session, StartError,
};

/// Never reached when all is well.
const LONG: Duration = Duration::from_secs(60);

/// The message of a rank's memory.
fn filled(fabric: &Fabric, len: usize, byte: u8) -> Exposed {
    let memory = fabric.alloc(len).unwrap().into_exposed();
    memory.fill(0..len, byte);
    memory
}

/// Starts `size` ranks over shared memory, each a thread that gives its node.
pub(crate) fn start(size: u32) -> Vec<(Fabric, Node)> {
    start_with(size, options())
}

fn options() -> FabricOptions {
    FabricOptions { pool: 1 << 20, timeout: LONG, farewell: LONG, ..FabricOptions::default() }
}

/// The same with these options.
fn start_with(size: u32, options: FabricOptions) -> Vec<(Fabric, Node)> {
    start_over(size, &options, |node| Providers { node: Some(node), ..Providers::default() })
}

/// Starts `size` ranks over soft devices that have all one-sided operations.
fn start_devices(size: u32, verify_data: bool) -> Vec<Fabric> {
    let options = FabricOptions { windows: false, verify_data, ..options() };
    let providers = |node| Providers {
        devices: vec![SoftDevice::open(&node, Profile::Infiniband).unwrap()],
        ..Providers::default()
    };
    let ranks = start_over(size, &options, providers);
    ranks.into_iter().map(|(fabric, _)| fabric).collect()
}

fn start_over(size: u32, given: &FabricOptions, providers: fn(Node) -> Providers) -> Vec<(Fabric, Node)> {
    let secret = Secret::generate().unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let heartbeat = Heartbeat { silence: Duration::from_secs(600), ..Heartbeat::default() };
    let options = Options { heartbeat, ..Options::default() };
    // It goes on for as long as one of its ranks is there.
    let coordinator = Coordinator::bind(address, size, secret.clone(), options).unwrap().serve().unwrap();
    let coordinator: &'static _ = Box::leak(Box::new(coordinator));
    let rank = |rank| {
        let config =
            JoinConfig { coordinator: coordinator.local_addr(), rank, size, secret: secret.clone(), deadline: LONG };
        let given = given.clone();
        thread::spawn(move || {
            let session = Session::join(&config).unwrap();
            let node = Node::open().unwrap();
            (Fabric::start(session, given, providers(node.clone())).unwrap(), node)
        })
    };
    let ranks: Vec<_> = (0..size).map(rank).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

/// The other end leaves because of it, within the time that an error waits for a better cause.
#[test]
fn what_broke_a_link_is_told_although_the_other_end_has_left_by_then() {
    let mut ranks = start(2);
    let (one, _node) = ranks.pop().unwrap();
    let zero = &ranks[0].0;
    let life = &zero.inner.lanes.life;
    life.lose(1, Loss::Broken("a bad frame".into()));
    let error = one.recv_bytes(0, 1, &mut [0], LONG).unwrap_err();
    assert!(matches!(&error, FabricError::PeerLost { rank: 0, cause: Loss::GaveUp, .. }), "{error}");
    drop(one);
    while !life.has_left_for(1, Duration::ZERO) {
        thread::sleep(Duration::from_millis(1));
    }
    let error = zero.recv_bytes(1, 1, &mut [0], LONG).unwrap_err();
    assert!(matches!(&error, FabricError::PeerLost { rank: 1, cause: Loss::Broken(_), .. }), "{error}");
}

#[test]
fn a_broken_link_is_a_loss_to_its_two_ends_alone() {
    let ranks = start(3);
    let [zero, one, two] = [0, 1, 2].map(|rank: usize| &ranks[rank].0);
    zero.inner.lanes.life.lose(2, Loss::Broken("no answer".into()));
    let error = zero.recv_bytes(2, 1, &mut [0], LONG).unwrap_err();
    assert!(matches!(&error, FabricError::PeerLost { rank: 2, cause: Loss::Broken(_), .. }), "{error}");
    let error = two.recv_bytes(0, 1, &mut [0], LONG).unwrap_err();
    assert!(matches!(&error, FabricError::PeerLost { rank: 0, cause: Loss::GaveUp, .. }), "{error}");
    // Whatever the third rank is told has come before the answer to what is asked now.
    thread::scope(|scope| {
        for (fabric, _) in &ranks {
            scope.spawn(|| fabric.inner.session.barrier(LONG).unwrap());
        }
    });
    for other in [zero, two] {
        one.send_bytes(other.rank(), 1, &[1], LONG).unwrap();
        assert_eq!(other.recv_bytes(1, 1, &mut [0], LONG).unwrap(), 1);
        other.send_bytes(1, 1, &[1], LONG).unwrap();
        assert_eq!(one.recv_bytes(other.rank(), 1, &mut [0], LONG).unwrap(), 1);
        assert_eq!(one.loss(other.rank()), None);
    }
}

#[test]
fn a_rank_whose_deadline_passed_while_it_connected_is_still_a_member() {
    const SHORT: Duration = Duration::from_secs(5);
    let ranks = start(3);
    let [zero, one, two] = [0, 1, 2].map(|rank: usize| &ranks[rank].0);
    thread::scope(|scope| {
        let connects = scope.spawn(|| zero.regroup(Regroup::Survivors, SHORT).unwrap_err());
        let waits = scope.spawn(|| one.regroup(Regroup::Survivors, LONG).unwrap());
        let last = two.inner.session.regroup(Regroup::Survivors, LONG).unwrap();
        // Rank 0 had asked before that.
        thread::sleep(SHORT);
        drop(last);
        let error = connects.join().unwrap();
        assert!(matches!(&error, RecoveryError::Start(StartError::Session(_))), "{error}");
        let first = zero.regroup(Regroup::Survivors, LONG).unwrap();
        let second = waits.join().unwrap();
        assert_eq!((first.members(), second.members()), (&[0, 1][..], &[0, 1][..]));
        first.send_bytes(1, 1, &[1], LONG).unwrap();
        assert_eq!(second.recv_bytes(0, 1, &mut [0], LONG).unwrap(), 1);
    });
}

#[test]
fn the_pool_of_a_rank_that_has_left_is_mapped() {
    let mut ranks = start(2);
    let (one, _node) = ranks.pop().unwrap();
    let (zero, node) = ranks.pop().unwrap();
    let block = zero.alloc(64).unwrap().into_exposed();
    block.fill(0..64, 9);
    let at = zero.region_ref(&block).unwrap();
    drop((zero, block, node));
    // It heard the goodbye, and the rank's node is closed.
    let error = one.recv_bytes(0, 1, &mut [0], LONG).unwrap_err();
    assert!(matches!(error, FabricError::PeerLost { rank: 0, .. }), "{error}");
    let mut bytes = [0; 64];
    one.map(0, at).unwrap().read(0, &mut bytes);
    assert_eq!(bytes, [9; 64]);
}

#[test]
fn nobody_maps_the_pool_of_a_fabric_that_is_gone() {
    let mut ranks = start(2);
    let (one, _) = ranks.pop().unwrap();
    let (zero, node) = ranks.pop().unwrap();
    let at = zero.region_ref(&zero.alloc(64).unwrap().into_exposed()).unwrap();
    let stranger = Node::open().unwrap();
    let peer = stranger.connect(&node.address(), LONG).unwrap();
    let key = ShareKey::from_u64(at.key);
    assert!(peer.map(key, LONG).is_ok());
    drop((zero, one));
    let error = peer.map(key, LONG).unwrap_err();
    assert!(matches!(error, ReachError::Refused { .. }), "{error}");
}

/// The sender gives the link up at this moment of the receiver's copy: before it takes the offer, before it copies, or
/// after it has copied.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    Offered,
    Taken,
    Copied,
}

#[test]
fn memory_that_was_withdrawn_is_never_taken_for_the_message() {
    for moment in [Moment::Offered, Moment::Taken, Moment::Copied] {
        let ranks = start(2);
        let [zero, one] = [0, 1].map(|rank: usize| &ranks[rank].0);
        let (data, into) = (filled(zero, 100_000, 1), filled(one, 100_000, 0));
        let send = zero.start_send(1, 5, &data).unwrap();
        let lanes = &one.inner.lanes;
        let mut lane = lanes.lock(0).unwrap();
        let target = lane.wire.target(into);
        let receive = lane.link.recv(5, target);
        let sever = || zero.inner.lanes.lock(1).unwrap().sever();
        if moment == Moment::Offered {
            sever();
        }
        let outcome = if moment == Moment::Copied {
            // As `pump` does it, with the sender's act in between.
            let Lane { link, wire, .. } = &mut *lane;
            wire.pump(link, &mut Lent::Nothing, Takes::All).unwrap();
            let copy = link.next_copy(&mut Lent::Nothing).unwrap();
            drop(lane);
            let copied = lanes.copy(0, copy, &mut Lent::Nothing, None);
            assert!(copied.is_ok());
            sever();
            let mut lane = lanes.lock(0).unwrap();
            lanes.copied(0, &mut lane, receive, copied);
            lane.link.poll(receive, &mut Lent::Nothing)
        } else {
            if moment == Moment::Taken {
                let Lane { link, wire, .. } = &mut *lane;
                wire.pump(link, &mut Lent::Nothing, Takes::All).unwrap();
                sever();
            }
            let (_, mut lane) = lanes.pump(0, lane, &mut Lent::Nothing, Takes::All, None);
            lane.link.poll(receive, &mut Lent::Nothing)
        };
        assert_eq!(outcome, Poll::Ready(Err(OpError::Severed)), "{moment:?}");
        assert_eq!(one.loss(0), Some(Loss::GaveUp));
        drop(send);
    }
}

#[test]
fn a_message_that_changes_while_it_is_offered_ends_alone() {
    let ranks = start_with(2, FabricOptions { verify_data: true, ..options() });
    let [zero, one] = [0, 1].map(|rank: usize| &ranks[rank].0);
    let (data, into) = (filled(zero, 100_000, 1), filled(one, 100_000, 0));
    let send = zero.start_send(1, 5, &data).unwrap();
    // The offer is out.
    data.fill(99_999..100_000, 2);
    let error = one.recv(0, 5, &into, LONG).unwrap_err();
    assert!(matches!(error, FabricError::Changed { rank: 0, .. }), "{error}");
    let error = send.wait(LONG).unwrap_err();
    assert!(matches!(error, FabricError::Changed { rank: 1, .. }), "{error}");
    let again = zero.start_send(1, 6, &data).unwrap();
    assert_eq!(one.recv(0, 6, &into, LONG).unwrap(), 100_000);
    assert_eq!(again.wait(LONG).unwrap(), 100_000);
    assert_eq!((zero.loss(1), one.loss(0)), (None, None));
}

#[test]
fn frames_out_of_memory_that_others_write_are_whole() {
    let ranks = start_with(2, FabricOptions { verify_data: true, ..options() });
    let [zero, one] = [0, 1].map(|rank: usize| &ranks[rank].0);
    let (data, over) = (filled(zero, 8000, 1), AtomicBool::new(false));
    let into = filled(one, 8000, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut byte = 0_u8;
            while !over.load(Ordering::Relaxed) {
                byte = byte.wrapping_add(1);
                data.fill(0..8000, byte);
            }
        });
        let pass = || -> Result<(), FabricError> {
            for _ in 0..2000 {
                zero.send(1, 5, &data, LONG)?;
                one.recv(0, 5, &into, LONG)?;
            }
            Ok(())
        };
        let passed = pass();
        over.store(true, Ordering::Relaxed);
        passed.unwrap();
    });
}

#[test]
fn a_rank_whose_peer_gave_up_learns_it_from_whatever_it_does_next() {
    type Act = fn(&Fabric) -> FabricError;
    let acts: [Act; 3] = [
        |one| one.send_bytes(0, 1, &[1], LONG).unwrap_err(),
        |one| one.send(0, 1, &filled(one, 100_000, 1), LONG).unwrap_err(),
        |one| {
            // What was sent before counts.
            assert_eq!(one.recv_bytes(0, 1, &mut [0], LONG).unwrap(), 1);
            one.recv_bytes(0, 1, &mut [0], LONG).unwrap_err()
        },
    ];
    for act in acts {
        let ranks = start(2);
        let [zero, one] = [0, 1].map(|rank: usize| &ranks[rank].0);
        zero.send_bytes(1, 1, &[1], LONG).unwrap();
        zero.inner.lanes.lock(1).unwrap().sever();
        let error = act(one);
        assert!(matches!(&error, FabricError::PeerLost { rank: 0, cause: Loss::GaveUp, .. }), "{error}");
    }
}

#[test]
fn a_rank_that_leaves_gives_up_what_it_still_offers() {
    let mut ranks = start_with(2, FabricOptions { farewell: Duration::ZERO, ..options() });
    let (one, _) = ranks.pop().unwrap();
    let (zero, _node) = ranks.pop().unwrap();
    drop(zero.start_send(1, 5, &filled(&zero, 100_000, 1)).unwrap());
    drop(zero);
    let into = filled(&one, 100_000, 0);
    let error = one.recv(0, 5, &into, LONG).unwrap_err();
    assert!(matches!(&error, FabricError::PeerLost { rank: 0, .. }), "{error}");
    // Whoever was in the middle of the copy sees it.
    assert!(one.inner.lanes.lock(0).unwrap().wire.is_given_up());
}

/// The acknowledgement of a goodbye may be lost with the end that sent it.
#[test]
fn a_rank_that_leaves_waits_for_no_peer_whose_end_is_gone() {
    const RAILS: [fn(Node) -> Providers; 2] = [|node| thunderbolt(&node, 1), |node| thunderbolt(&node, 2)];
    for providers in RAILS {
        let ranks = start_over(2, &FabricOptions { windows: false, ..options() }, providers);
        let [zero, one] = [0, 1].map(|rank: usize| &ranks[rank].0.inner.lanes);
        let mut stopped = zero.lock(1).unwrap();
        one.close();
        one.pump_all();
        assert!(one.is_leaving(), "nobody has heard the goodbye");
        stopped.sever();
        drop(stopped);
        let end = Instant::now() + LONG;
        while one.is_leaving() {
            assert!(Instant::now() < end, "a goodbye that nobody can acknowledge is waited for");
            thread::yield_now();
        }
        assert!(one.give_up().is_empty(), "nobody waits for what this rank had to say");
    }
}

fn thunderbolt(node: &Node, rails: usize) -> Providers {
    let device = || SoftDevice::open(node, Profile::Thunderbolt).unwrap();
    Providers { devices: std::iter::repeat_with(device).take(rails).collect(), ..Providers::default() }
}

/// Counts its wake-ups.
#[derive(Default)]
struct Counting(AtomicU32);

impl Parker for Counting {
    fn park(&self, _timeout: Duration, _awake: &mut dyn FnMut() -> bool) {}
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Frames that are there from the start, and room for any number.
struct Canned(Vec<Vec<u8>>);

impl Wire for Canned {
    fn pump(&mut self, link: &mut Link, lent: &mut Lent<'_>, _takes: Takes) -> Result<bool, Broken> {
        let moved = !self.0.is_empty();
        for frame in self.0.drain(..) {
            link.receive(frame.as_slice(), lent)?;
        }
        while let Some(frame) = link.transmit(lent) {
            link.transmitted(&frame);
        }
        Ok(moved)
    }
    fn push(&mut self, _link: &Link, _header: &[u8; PREFIX], _payload: Payload<'_>) -> Result<bool, Broken> {
        Ok(false)
    }
    fn source(&self, memory: Exposed) -> Source {
        Source::Memory(memory)
    }
    fn target(&self, memory: Exposed) -> Target {
        Target::Memory { memory, direct: false }
    }
}

/// One-sided operations of a rank that nobody reaches.
pub(crate) fn alone() -> Arc<OneSided> {
    let area = Region::alloc(onesided::AREA).unwrap().expose().unwrap();
    Arc::new(OneSided::new((1, 0), vec![Some(area), None], None, Exports::new(), Box::new(|_| None), None))
}

#[test]
fn links_are_made_for_every_flow_and_number_of_ranks() {
    for size in [2, 3, 4, 8, 9, 16, 64, 1024] {
        for (frame, credits) in
            [(256, 16), (8184, 60), (16_424, 60), (16_428, 60), (32_768, 60), (65_536, 16), (65_536, 1024)]
        {
            for verify in [false, true] {
                let _ = Link::new(reach::config(size, &Flow { frame, credits, ..Flow::default() }, verify));
            }
        }
    }
}

#[test]
fn what_came_before_the_sender_was_lost_is_received_after_it_in_any_number_of_receives() {
    for given_up in [false, true] {
        let ranks = start(2);
        let [zero, one] = [0, 1].map(|rank: usize| &ranks[rank].0);
        for tag in 1..=3 {
            zero.send_bytes(1, tag, &[tag as u8; 10_000], LONG).unwrap();
        }
        if given_up {
            zero.inner.lanes.lock(1).unwrap().sever();
        } else {
            one.inner.lanes.life.lose(0, Loss::Ended);
        }
        for tag in 1..=3 {
            let mut into = vec![0; 10_000];
            one.recv_bytes(0, tag, &mut into, LONG).unwrap();
            assert_eq!(into, vec![tag as u8; 10_000], "{given_up}");
        }
    }
}

/// What it took would have to be copied twice, and would hold up whoever sends more.
#[test]
fn a_receive_leaves_what_comes_after_its_message_where_it_came() {
    let ranks = start(2);
    let [zero, one] = [0, 1].map(|rank: usize| &ranks[rank].0);
    let message = |tag: u8| vec![tag; 20_000];
    for tag in 1..=3 {
        zero.send_bytes(1, tag.into(), &message(tag), LONG).unwrap();
    }
    let kept = || one.inner.lanes.lock(0).unwrap().link.kept();
    let mut into = message(0);
    one.recv_bytes(0, 1, &mut into, LONG).unwrap();
    assert_eq!((into, kept()), (message(1), 0));
    // One that asks for a later message has to take what comes before it.
    let mut into = message(0);
    one.recv_bytes(0, 3, &mut into, LONG).unwrap();
    assert_eq!(into, message(3));
    assert!(kept() >= 20_000);
    let mut into = message(0);
    one.recv_bytes(0, 2, &mut into, LONG).unwrap();
    assert_eq!((into, kept()), (message(2), 0));
}

#[test]
fn whoever_ends_the_operation_of_another_thread_wakes_it() {
    let config = reach::config(2, &Flow::default(), false);
    let counting = Arc::new(Counting::default());
    let woken = || counting.0.swap(0, Ordering::Relaxed);
    let with = |frames: Vec<Vec<u8>>| {
        let life = Arc::new(Life::new(2, Box::new(Counting::default())));
        let lane = Lane::new(Link::new(config), Box::new(Canned(frames)));
        Lanes::new(vec![None, Some(lane)], life, None, alone(), counting.clone(), None)
    };
    let message = || {
        let mut bytes = Link::new(config).eager(3, 1).unwrap().to_vec();
        bytes.push(7);
        bytes
    };
    let memory = Region::alloc(1).unwrap().expose().unwrap();
    let nothing = &mut Lent::Nothing;

    // A receive: of another thread, or the caller's own.
    for own in [false, true] {
        let lanes = with(vec![message()]);
        let mut lane = lanes.lock(1).unwrap();
        let target = lane.wire.target(memory.slice(0..1));
        let op = lane.link.recv(3, target);
        let (_, mut lane) = lanes.pump(1, lane, nothing, if own { Takes::For(op) } else { Takes::All }, None);
        assert_eq!(lane.link.poll(op, nothing), Poll::Ready(Ok(1)));
        assert_eq!(woken(), u32::from(!own));
    }

    // A send out of plain memory, which only its own thread can move on, behind another one.
    let lanes = with(Vec::new());
    let mut lane = lanes.lock(1).unwrap();
    let first = lane.link.send(3, Source::Lent(1));
    let second = lane.link.send(3, Source::Lent(1));
    let (_, mut lane) = lanes.pump(1, lane, &mut Lent::Source(first, &[1]), Takes::For(first), None);
    assert_eq!(lane.link.poll(first, nothing), Poll::Ready(Ok(1)));
    assert_eq!(lane.link.awaits_lender(), [Some(second), None]);
    assert_eq!(woken(), 1);
}

#[test]
fn whoever_waits_or_looks_often_moves_everything_on() {
    let life = Arc::new(Life::new(2, Box::new(Counting::default())));
    let lanes = Lanes::new(vec![None, None], life, None, alone(), Arc::new(Counting::default()), None);
    let mut before = 0;
    assert_eq!(lanes.looks_since(&mut before), 0);
    lanes.note_look();
    lanes.note_look();
    assert_eq!(lanes.looks_since(&mut before), 2);
    assert_eq!(lanes.looks_since(&mut before), 0);
    lanes.enter();
    assert_eq!(lanes.looks_since(&mut before), u32::MAX, "somebody waits");
    lanes.leave();
    assert_eq!(lanes.looks_since(&mut before), 0, "that was counted");
    lanes.enter();
    lanes.leave();
    assert_eq!(lanes.looks_since(&mut before), OFTEN);
}

#[test]
fn no_device_moves_one_sided_bytes_that_are_to_be_verified() {
    for verify in [false, true] {
        let ranks = start_devices(2, verify);
        let by_device = ranks[0].inner.lanes.lock(1).unwrap().wire.rdma().is_some();
        assert_eq!(by_device, !verify);
        let memory = filled(&ranks[1], 64, 0);
        let shared = ranks[1].share(&memory, Rights::all()).unwrap();
        let remote = ranks[0].remote(1, &shared.key()).unwrap();
        remote.put_bytes(0, &[3; 64], LONG).unwrap();
        assert_eq!(remote.fetch_add(8, 1, LONG).unwrap(), 0x0303_0303_0303_0303);
        shared.close(LONG).unwrap();
    }
}

#[test]
fn a_flush_does_not_wait_for_what_begins_after_it() {
    let mut lane = Lane::new(Link::new(reach::config(2, &Flow::default(), false)), Box::new(Canned(Vec::new())));
    let at = At { key: 1, offset: 0 };
    let before = lane.link.atomic(at, Atomic::FetchAdd(1));
    let mut open = lane.open();
    lane.link.atomic(at, Atomic::FetchAdd(1));
    assert!(!lane.have_ended(&mut open));
    assert_eq!(lane.link.cancel(before), Cancel::Released);
    assert!(lane.have_ended(&mut open) && !lane.is_quiet());
}

#[test]
fn a_fence_keeps_mapped_words_behind_bytes_that_go_over_the_link() {
    const LEN: usize = 1 << 20;
    let ranks: Vec<_> = start(2).into_iter().map(|(fabric, _)| fabric).collect();
    let path = std::env::temp_dir().join(format!("fulmen-fence-{}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    file.set_len(LEN as u64).unwrap();
    // Peers cannot map what is a file.
    let bytes = Region::map_file(&file, FileAccess::ReadWrite).unwrap().expose().unwrap().slice(0..LEN);
    std::fs::remove_file(&path).unwrap();
    let word = filled(&ranks[0], 8, 0);
    let [far, near] = [&bytes, &word].map(|memory| ranks[0].share(memory, Rights::all()).unwrap());
    let [to_far, to_near] = [&far, &near].map(|shared| ranks[1].remote(0, &shared.key()).unwrap());
    let data = Region::alloc(LEN).unwrap().expose().unwrap().slice(0..LEN);
    for round in 1..=20_u8 {
        data.fill(0..LEN, round);
        let put = to_far.start_put(0, &data).unwrap();
        ranks[1].fence(0).unwrap();
        to_near.fetch_add(0, 1, LONG).unwrap();
        let mut last = [0];
        bytes.read(LEN - 1, &mut last);
        assert_eq!(last, [round], "the word overtook the bytes");
        put.wait(LONG).unwrap();
    }
    far.close(LONG).unwrap();
    near.close(LONG).unwrap();
}

#[test]
fn one_sided_operations_of_devices_are_recorded() {
    let ranks = start_devices(2, false);
    let memory = filled(&ranks[0], 64, 0);
    let shared = ranks[0].share(&memory, Rights::all()).unwrap();
    let remote = ranks[1].remote(0, &shared.key()).unwrap();
    let data = filled(&ranks[1], 16, 1);
    remote.put(8, &data, LONG).unwrap();
    remote.get_bytes(8, &mut [0; 16], LONG).unwrap();
    remote.put_counted(8, &data, (&remote, 0, 1), LONG).unwrap();
    remote.start_fetch_add(0, 1).unwrap().wait(LONG).unwrap();
    remote.compare_swap(0, 2, 3, LONG).unwrap();
    remote.batch().fetch_add(0, 1).put(8, &[1; 4]).post(LONG).unwrap();
    let folder = std::env::temp_dir().join(format!("fulmen-one-sided-{}", std::process::id()));
    let path = ranks[1].recorder().write(&folder).unwrap().unwrap();
    let read = file::read(&std::fs::read(path).unwrap()).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(read.operations.iter().all(|done| done.phase == file::Phase::Done && done.peer == Some(0)));
    let done = read.operations.iter().map(|done| (&*done.op, done.sequence, done.bytes));
    let expected = [
        ("put", 8, 16),
        ("get", 8, 16),
        ("put_counted", 8, 16),
        ("fetch_add", 0, 8),
        ("compare_swap", 0, 8),
        ("batch", 0, 12),
    ];
    assert_eq!(done.collect::<Vec<_>>(), expected);
    shared.close(LONG).unwrap();
}
