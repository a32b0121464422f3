//! Devices that a fake library has: what opening them says, what they are taken for, and how their errors are told.

mod fake;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use fulmen_memory::Region;
use fulmen_system::{Library, OpenError, SystemDevice, Transport};
use fulmen_verbs::conformance::{Bench, run};
use fulmen_verbs::{
    Access, AckTimeout, Device, GidKind, Mtu, Path, Piece, PortState, QueuePair, QueuePairInit, QueuePairKind,
    QueuePairLimits, QueuePairState, RecvRequest, RnrTimer, SendRequest, Transition, VerbsError, select_gid,
};

/// A library of its own for a test, with the devices that `config` describes.
struct Faked {
    library: Arc<Library>,
    _dir: tempfile::TempDir,
}

/// The library, compiled once.
fn built() -> Option<&'static PathBuf> {
    static BUILT: OnceLock<Option<(PathBuf, tempfile::TempDir)>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a folder");
        Some((fake::build(dir.path(), &[])?, dir))
    });
    built.as_ref().map(|(path, _)| path)
}

fn faked(config: &str) -> Option<Faked> {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("libfakeverbs.so");
    std::fs::copy(built()?, &path).expect("the library is copied");
    std::fs::write(dir.path().join("libfakeverbs.so.conf"), config).expect("the configuration is written");
    let library = Library::open_at(&path).expect("the fake library opens");
    Some(Faked { library, _dir: dir })
}

/// Opens the one device of a library.
fn device(config: &str) -> Option<(Arc<SystemDevice>, Faked)> {
    let faked = faked(&format!("device=dev0\n{config}"))?;
    let device = faked.library.open_device("dev0").expect("the device opens");
    Some((device, faked))
}

#[test]
fn an_absent_library_and_one_without_devices_are_different() {
    let absent = Library::open_at(std::path::Path::new("/nowhere/libibverbs.so.1")).expect_err("there is none");
    assert!(matches!(absent, OpenError::NoLibrary { .. }), "{absent}");
    let no_verbs = Library::open_at(std::path::Path::new("libc.so.6"));
    if let Err(error) = no_verbs {
        assert!(matches!(error, OpenError::MissingSymbol { .. } | OpenError::NoLibrary { .. }), "{error}");
    }
    let Some(faked) = faked("") else { return };
    let none = faked.library.devices().expect_err("there is no device");
    assert!(matches!(none, OpenError::NoDevices { .. }), "{none}");
    let Some(off) = self::faked("on.get_device_list=fail 38\n") else { return };
    let off = off.library.devices().expect_err("verbs are off");
    assert!(matches!(off, OpenError::SwitchedOff { .. }), "{off}");
}

#[test]
fn devices_are_listed_and_refused_by_name() {
    let config =
        "device=one\nlike=roce\nguid=0x1234\ndevice=two\nlike=iwarp\ndevice=three\nlike=roce\non.open_device=fail 13\n";
    let Some(faked) = faked(config) else { return };
    let found = faked.library.devices().expect("devices");
    let names: Vec<&str> = found.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["one", "two", "three"]);
    assert_eq!(found[0].transport, Transport::Infiniband);
    assert_eq!(found[0].node_guid, 0x1234);
    assert_eq!(found[1].transport, Transport::Iwarp);
    let refused = |name| faked.library.open_device(name).map(|_| ()).expect_err("it is refused");
    assert!(matches!(refused("two"), OpenError::Iwarp { .. }));
    let permission = refused("three");
    assert!(matches!(permission, OpenError::Permission { .. }), "{permission}");
    let unknown = refused("four");
    assert!(matches!(&unknown, OpenError::UnknownDevice { known, .. } if known.len() == 3), "{unknown}");
    assert!(faked.library.open_device("one").is_ok());
}

#[test]
fn symbols_say_what_is_there() {
    let Some(faked) = faked("") else { return };
    let symbols = faked.library.symbols();
    assert!(symbols.iter().filter(|symbol| symbol.needed).all(|symbol| symbol.present));
    assert!(symbols.iter().any(|symbol| symbol.name == "ibv_reg_dmabuf_mr" && !symbol.needed));
    assert!(symbols.iter().all(|symbol| !symbol.purpose.is_empty()));
}

#[test]
fn a_device_that_refuses_rc_has_uc() {
    let Some((device, _faked)) = device("like=roce\non.create_qp=fail 102 type rc\n") else { return };
    let can = device.info().capabilities;
    assert!(!can.rc && can.uc && !can.acknowledges && !can.reports_dead_peers);
}

#[test]
fn queue_pairs_that_are_used_up_are_there_all_the_same() {
    let Some((device, _faked)) = device("like=roce\non.create_qp=fail 16\n") else { return };
    assert!(device.info().capabilities.rc && device.info().capabilities.uc);
    let pd = device.alloc_pd().expect("a domain");
    let refused = pd.create_qp(&init(&*device, QueuePairKind::Rc)).map(|_| ()).expect_err("none is left");
    assert!(refused.to_string().contains("in use"), "{refused}");
}

#[test]
fn thunderbolt_has_its_own_rules() {
    let Some((device, _faked)) = device("like=thunderbolt\n") else { return };
    let info = device.info();
    assert_eq!(device.attributes().transport, Transport::Thunderbolt);
    assert_eq!(info.limits.frame, Some(4096));
    assert_eq!((info.limits.pieces, info.limits.inline_bytes), (1, 0));
    assert_eq!(info.limits.registration.boundary, Some(1 << 32));
    let can = info.capabilities;
    assert!(can.uc && can.holds_sends && !can.rc && !can.write && !can.read && !can.immediate && !can.atomics);
}

#[test]
fn kinds_of_gids_are_told() {
    let config = "like=roce\nno_gids=1\ngid=0 fe80::1 roce1\ngid=1 fe80::1 roce2\ngid=3 ::ffff:10.0.0.1 roce2\n";
    let Some((device, _faked)) = device(config) else { return };
    let table = device.gid_table(1).expect("a table");
    let seen: Vec<_> = table.iter().map(|entry| (entry.index, entry.kind)).collect();
    assert_eq!(seen, [(0, GidKind::RoceV1), (1, GidKind::RoceV2), (3, GidKind::RoceV2)]);
    let port = device.port(1).expect("a port");
    assert_eq!(port.state, PortState::Active);
    assert_eq!(select_gid(port.link_layer, &table).expect("one is usable").index, 3);
}

/// Half a queue pair: what it takes to make one.
fn init(device: &dyn Device, kind: QueuePairKind) -> QueuePairInit {
    let cq = device.create_cq(16, None).expect("a completion queue");
    let limits = QueuePairLimits { send_depth: 4, recv_depth: 4, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
    QueuePairInit { kind, send_cq: cq.clone(), recv_cq: cq, limits, signal_all: false }
}

fn to_init() -> Transition {
    Transition::Init { port: 1, access: Access::empty() }
}

/// To itself.
fn to_rtr(device: &dyn Device, pair: &dyn QueuePair) -> Transition {
    let port = device.port(1).expect("a port");
    let own = select_gid(port.link_layer, &device.gid_table(1).expect("a table")).expect("a GID");
    let path = Path { remote_gid: own.gid, local_gid_index: own.index, remote_qp: pair.qp_num(), mtu: Mtu::B1024 };
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
fn each_errno_on_the_way_to_rtr_is_explained() {
    for (errno, word) in
        [(22, "bridge"), (60, "GID"), (110, "GID"), (16, "earlier connection"), (96, "protection domain")]
    {
        let config = format!("like=roce\non.modify_qp=fail {errno} state rtr\n");
        let Some((device, _faked)) = device(&config) else { return };
        let pair = device.alloc_pd().expect("a domain").create_qp(&init(&*device, QueuePairKind::Uc)).expect("a pair");
        pair.modify(&to_init()).expect("INIT");
        let refused = pair.modify(&to_rtr(&*device, &*pair)).expect_err("it is refused");
        assert!(matches!(refused, VerbsError::Unreachable { .. }), "{refused}");
        let text = refused.to_string();
        assert!(text.contains(word) && text.contains(&format!("(error {errno})")), "{text}");
        assert_eq!(pair.state(), QueuePairState::Init);
    }
}

#[test]
fn a_post_that_returns_minus_twelve_is_a_full_queue() {
    let Some((device, _faked)) = device("like=thunderbolt\non.post_recv=fail -12 after 1\n") else { return };
    let (pair, _init, piece) = connected(&*device);
    pair.post_recv(&[RecvRequest::new(1, [piece.clone()])]).expect("the first fits");
    let refused = pair.post_recv(&[RecvRequest::new(2, [piece.clone()])]).expect_err("the second does not");
    assert!(refused.index == 0 && matches!(refused.cause, VerbsError::QueueFull { .. }), "{refused}");
}

#[test]
fn memory_of_a_refused_request_is_free_and_that_of_a_posted_one_is_not() {
    let Some((device, _faked)) = device("like=roce\non.post_recv=fail 22 after 1\n") else { return };
    let (pair, _init, piece) = connected(&*device);
    let pool = fulmen_memory::Pool::new(&Region::alloc(1 << 16).expect("memory")).expect("a pool");
    let block = || pool.take(64).expect("a block").into_exposed();
    let (first, second) = (block(), block());
    let of = |memory: &fulmen_memory::Exposed| Piece { memory: memory.clone(), ..piece.clone() };
    pair.post_recv(&[RecvRequest::new(1, [of(&first)])]).expect("the first is taken");
    let refused = pair.post_recv(&[RecvRequest::new(2, [of(&second)])]).expect_err("the second is not");
    assert!(refused.to_string().contains("(error 22)"), "{refused}");
    assert!(second.into_block().is_ok(), "the device never had it");
    let first = first.into_block().expect_err("the device has it");
    drop(pair);
    assert!(first.into_block().is_ok(), "the queue pair is gone");
}

/// Two sides on one device.
struct OnePort(Arc<SystemDevice>, &'static str);

impl Bench for OnePort {
    fn name(&self) -> String {
        format!("fake {}", self.1)
    }

    fn pair(&self) -> Result<[Arc<dyn Device>; 2], VerbsError> {
        Ok([self.0.clone(), self.0.clone()])
    }
}

#[test]
fn the_fake_thunderbolt_device_conforms() {
    let Some((device, _faked)) = device("like=thunderbolt\n") else { return };
    run(&OnePort(device, "thunderbolt")).assert_passed();
}

#[test]
fn the_fake_roce_device_conforms() {
    let Some((device, _faked)) = device("like=roce\n") else { return };
    run(&OnePort(device, "roce")).assert_passed();
}

#[test]
fn a_send_reaches_its_own_queue_pair() {
    let Some((device, _faked)) = device("like=roce\n") else { return };
    let (pair, init, piece) = connected(&*device);
    pair.post_recv(&[RecvRequest::new(1, [piece.clone()])]).expect("a RECV");
    pair.post_send(&[SendRequest::send(2, [piece])]).expect("a SEND");
    assert_eq!(init.send_cq.entries(), 16);
}
