//! The memory of requests stays where it is as long as the device may work on it, and no longer; over the fake library.
#![cfg(target_os = "linux")]

mod fake;

use std::sync::Arc;

use fulmen_memory::{Exposed, Pool, Region};
use fulmen_system::{Library, SystemDevice};
use fulmen_verbs::{
    Access, AckTimeout, Device, GidKind, Mtu, Path, Piece, PortState, QueuePair, QueuePairInit, QueuePairKind,
    QueuePairLimits, RecvRequest, RnrTimer, Transition, VerbsError, select_gid,
};

/// Opens the one device of a library of its own.
fn device(config: &str) -> Option<(Arc<SystemDevice>, tempfile::TempDir)> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = fake::build(dir.path(), &[])?;
    std::fs::write(path.with_extension("so.conf"), format!("device=dev0\n{config}")).expect("it is written");
    let library = Library::open_at(&path).expect("the fake library opens");
    let device = library.open_device("dev0").expect("the device opens");
    Some((device, dir))
}

/// What it takes to make a queue pair.
fn init(device: &dyn Device, kind: QueuePairKind) -> QueuePairInit {
    let cq = device.create_cq(16, None).expect("a completion queue");
    let limits = QueuePairLimits { send_depth: 4, recv_depth: 4, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
    QueuePairInit { kind, send_cq: cq.clone(), recv_cq: cq, limits, signal_all: false, srq: None }
}

fn to_init() -> Transition {
    Transition::Init { port: 1, access: Access::empty() }
}

/// To itself.
fn to_rtr(device: &dyn Device, pair: &dyn QueuePair) -> Transition {
    let port = device.port(1).expect("a port");
    let own = select_gid(port.link_layer, &device.gid_table(1).expect("a table")).expect("a GID");
    let path = Path {
        remote_gid: own.gid,
        remote_lid: 0,
        local_gid_index: own.index,
        remote_qp: pair.qp_num(),
        mtu: Mtu::B1024,
    };
    Transition::ReadyToReceive { path, recv_psn: 1, reads_served: 0, min_rnr_timer: RnrTimer(1) }
}

fn to_rts() -> Transition {
    let timeout = AckTimeout(14);
    Transition::ReadyToSend { send_psn: 1, timeout, retries: 7, rnr_retries: 7, reads_in_flight: 0 }
}

/// A queue pair that is connected to itself, and a piece of registered memory.
fn connected(device: &dyn Device) -> (Arc<dyn QueuePair>, QueuePairInit, Piece) {
    let pd = device.alloc_pd().expect("a domain");
    let init = init(device, QueuePairKind::Uc);
    let pair = pd.create_qp(&init).expect("a queue pair");
    for transition in [to_init(), to_rtr(device, &*pair), to_rts()] {
        pair.modify(&transition).expect("connected");
    }
    let region = Region::alloc(4096).expect("memory");
    let mr = pd.register(&region, 0..4096, Access::LOCAL_WRITE).expect("a registration");
    let lkey = mr.lkey();
    // Wherever the fake looks at keys, the registration has to outlive this function.
    std::mem::forget(mr);
    (pair, init, Piece { memory: region.expose().expect("bytes").slice(0..64), lkey })
}

#[test]
fn memory_of_a_refused_request_is_free_and_that_of_a_posted_one_is_not() {
    let Some((device, _dir)) = device("like=roce\non.post_recv=fail 22 after 1\n") else { return };
    let (pair, _init, piece) = connected(&*device);
    let pool = Pool::new(&Region::alloc(1 << 16).expect("memory")).expect("a pool");
    let block = || pool.take(64).expect("a block").into_exposed();
    let (first, second) = (block(), block());
    let of = |memory: &Exposed| Piece { memory: memory.clone(), ..piece.clone() };
    pair.post_recv(&[RecvRequest::new(1, [of(&first)])]).expect("the first is taken");
    let refused = pair.post_recv(&[RecvRequest::new(2, [of(&second)])]).expect_err("the second is not");
    assert!(refused.to_string().contains("(error 22)"), "{refused}");
    assert!(second.into_block().is_ok(), "the device never had it");
    let first = first.into_block().expect_err("the device has it");
    drop(pair);
    assert!(first.into_block().is_ok(), "the queue pair is gone");
}

#[test]
fn a_post_that_returns_minus_twelve_is_a_full_queue() {
    let Some((device, _dir)) = device("like=thunderbolt\non.post_recv=fail -12 after 1\n") else { return };
    let (pair, _init, piece) = connected(&*device);
    pair.post_recv(&[RecvRequest::new(1, [piece.clone()])]).expect("the first fits");
    let refused = pair.post_recv(&[RecvRequest::new(2, [piece.clone()])]).expect_err("the second does not");
    assert!(refused.index == 0 && matches!(refused.cause, VerbsError::QueueFull { .. }), "{refused}");
}

#[test]
fn kinds_of_gids_are_told() {
    let config = "like=roce\nno_gids=1\ngid=0 fe80::1 roce1\ngid=1 fe80::1 roce2\ngid=3 ::ffff:10.0.0.1 roce2\n";
    let Some((device, _dir)) = device(config) else { return };
    let table = device.gid_table(1).expect("a table");
    let seen: Vec<_> = table.iter().map(|entry| (entry.index, entry.kind)).collect();
    assert_eq!(seen, [(0, GidKind::RoceV1), (1, GidKind::RoceV2), (3, GidKind::RoceV2)]);
    let port = device.port(1).expect("a port");
    assert_eq!(port.state, PortState::Active);
    assert_eq!(select_gid(port.link_layer, &table).expect("one is usable").index, 3);
}
