//! What ranks do when others are stopped, lost or late, step by step: the steps are not public.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use fulmen_reach::{Node, ReachError, ShareKey};

use crate::bootstrap::{Heartbeat, Options};
use crate::{Coordinator, Fabric, FabricError, FabricOptions, JoinConfig, Loss, Providers, Secret, Session};

/// Never reached when all is well.
const LONG: Duration = Duration::from_secs(60);

/// Starts `size` ranks over shared memory, each a thread that gives its node.
fn start(size: u32) -> Vec<(Fabric, Node)> {
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
            let options = FabricOptions { pool: 1 << 20, timeout: LONG, ..FabricOptions::default() };
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
