//! What ranks do when others are stopped, lost or late, step by step: the steps are not public.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use fulmen_memory::{Exposed, Region};
use fulmen_reach::{Node, ReachError, ShareKey};

use crate::bootstrap::{Heartbeat, Options, Regroup};
use crate::driver::{Broken, Parker, Wire, reach};
use crate::engine::{Exports, Lent, Link, OpError, PREFIX, Source, Target};
use crate::lanes::{Lane, Lanes};
use crate::liveness::Life;
use crate::onesided::{self, OneSided};
use crate::{
    Coordinator, Fabric, FabricError, FabricOptions, Flow, JoinConfig, Loss, Providers, RecoveryError, Secret, Session,
    StartError,
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
    start_with(size, LONG)
}

/// The same, where a rank that leaves waits so long for what it still sends.
fn start_with(size: u32, farewell: Duration) -> Vec<(Fabric, Node)> {
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
        thread::spawn(move || {
            let session = Session::join(&config).unwrap();
            let options = FabricOptions { pool: 1 << 20, timeout: LONG, farewell, ..FabricOptions::default() };
            let node = Node::open().unwrap();
            let providers = Providers { node: Some(node.clone()), devices: Vec::new() };
            (Fabric::start(session, options, providers).unwrap(), node)
        })
    };
    let ranks: Vec<_> = (0..size).map(rank).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
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
            wire.pump(link, &mut Lent::Nothing).unwrap();
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
                wire.pump(link, &mut Lent::Nothing).unwrap();
                sever();
            }
            let (_, mut lane) = lanes.pump(0, lane, &mut Lent::Nothing, None, None);
            lane.link.poll(receive, &mut Lent::Nothing)
        };
        assert_eq!(outcome, Poll::Ready(Err(OpError::Severed)), "{moment:?}");
        assert_eq!(one.loss(0), Some(Loss::GaveUp));
        drop(send);
    }
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
    let mut ranks = start_with(2, Duration::ZERO);
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
    fn pump(&mut self, link: &mut Link, lent: &mut Lent<'_>) -> Result<bool, Broken> {
        let moved = !self.0.is_empty();
        for frame in self.0.drain(..) {
            link.receive(frame.as_slice(), lent)?;
        }
        while let Some(frame) = link.transmit(lent) {
            link.transmitted(&frame);
        }
        Ok(moved)
    }
    fn push(&mut self, _header: &[u8; PREFIX], _payload: &[u8]) -> Result<bool, Broken> {
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
fn alone() -> Arc<OneSided> {
    let area = Region::alloc(onesided::AREA).unwrap().expose().unwrap();
    Arc::new(OneSided::new(0, vec![Some(area), None], None, Exports::new(), Box::new(|_| None), None))
}

#[test]
fn whoever_ends_the_operation_of_another_thread_wakes_it() {
    let config = reach::config(&Flow::default(), false);
    let counting = Arc::new(Counting::default());
    let woken = || counting.0.swap(0, Ordering::Relaxed);
    let with = |frames: Vec<Vec<u8>>| {
        let life = Arc::new(Life::new(2, Box::new(Counting::default())));
        let lane = Lane::new(Link::new(config), Box::new(Canned(frames)));
        Lanes::new(vec![None, Some(lane)], life, None, alone(), counting.clone())
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
        let (_, mut lane) = lanes.pump(1, lane, nothing, own.then_some(op), None);
        assert_eq!(lane.link.poll(op, nothing), Poll::Ready(Ok(1)));
        assert_eq!(woken(), u32::from(!own));
    }

    // A send out of plain memory, which only its own thread can move on, behind another one.
    let lanes = with(Vec::new());
    let mut lane = lanes.lock(1).unwrap();
    let first = lane.link.send(3, Source::Lent(1));
    let second = lane.link.send(3, Source::Lent(1));
    let (_, mut lane) = lanes.pump(1, lane, &mut Lent::Source(first, &[1]), Some(first), None);
    assert_eq!(lane.link.poll(first, nothing), Poll::Ready(Ok(1)));
    assert_eq!(lane.link.awaits_lender(), [Some(second), None]);
    assert_eq!(woken(), 1);
}
