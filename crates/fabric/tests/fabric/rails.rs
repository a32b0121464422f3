//! Which device, port and address each link runs over, what is waited for, and what is said if it does not connect.

use std::fmt::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use fulmen_fabric::{Cables, DeviceError, Fabric, FabricOptions, Providers, RailInfo, Regroup, StartError};
use fulmen_memory::Exposed;
use fulmen_reach::Node;
use fulmen_soft::{Profile, SoftDevice};
use fulmen_verbs::{
    Device, Gid, GidEntry, GidKind, LinkLayer, Mtu, PortState, QueuePairKind, QueuePairState, Transition, VerbsError,
};

use crate::devices::{check, fill, traffic};
use crate::scripted::Scripted;
use crate::world::{self, LONG, cabled, device, modest, options, start_devices};

/// Long enough to be looked at more than once.
const MOMENT: Duration = Duration::from_millis(300);

/// Starts ranks that wait for `port_wait` for devices that are not ready.
fn start_patient<T: Send>(
    size: u32,
    port_wait: Duration,
    providers: impl Fn(u32) -> Providers + Sync,
    body: impl Fn(u32, Result<Fabric, StartError>) -> T + Sync,
) -> Vec<T> {
    let given = |rank| (providers(rank), FabricOptions { windows: false, port_wait, ..options() });
    world::start_with(size, given, body)
}

fn alone(device: Arc<dyn Device>) -> Providers {
    Providers { devices: vec![device], ..Providers::default() }
}

/// The rail to the other of two ranks, over which something has gone both ways.
pub fn used(fabric: &Fabric) -> RailInfo {
    traffic(fabric, 1);
    fabric.rail(1 - fabric.rank()).unwrap().clone()
}

/// True for the first so many calls.
fn first(calls: u32) -> impl Fn() -> bool + Send + Sync {
    let left = AtomicU32::new(calls);
    move || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

/// A number for addresses, different in each call.
fn fresh() -> [u8; 4] {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    NUMBER.fetch_add(1, Ordering::Relaxed).to_be_bytes()
}

fn link_local() -> Gid {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[12..].copy_from_slice(&fresh());
    Gid(gid)
}

fn mapped() -> Gid {
    let [_, high, middle, low] = fresh();
    Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, high, middle, low])
}

fn entry(index: u8, gid: Gid) -> GidEntry {
    GidEntry { index, gid, kind: GidKind::Unknown, interface_up: Some(true) }
}

/// Events of the fabric, in words.
pub fn events_of(device: &str) -> Vec<String> {
    let device = format!("{device}\"");
    let events = EVENTS.lock().unwrap();
    events.iter().filter(|event| event.contains(&device)).cloned().collect()
}

static EVENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

pub fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Listening).unwrap());
}

struct Listening;

impl tracing::Subscriber for Listening {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= tracing::Level::INFO
    }
    fn event(&self, event: &tracing::Event<'_>) {
        struct Words(String);
        impl tracing::field::Visit for Words {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                write!(self.0, " {field}={value:?}").unwrap();
            }
        }
        let mut words = Words(event.metadata().level().to_string());
        event.record(&mut words);
        EVENTS.lock().unwrap().push(words.0);
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_port_that_comes_up_late_is_waited_for() {
    let devices = |rank| {
        let is_down = first(if rank == 1 { 3 } else { 0 });
        let port = move |port: &mut fulmen_verbs::PortInfo| {
            if is_down() {
                port.state = PortState::Initializing;
            }
        };
        Scripted::over(device(Profile::Infiniband)).port(port).device()
    };
    start_devices(2, devices, |_, fabric| used(&fabric.unwrap()));
}

#[test]
fn an_address_that_comes_late_is_waited_for() {
    for empty in [Vec::new, || vec![entry(0, Gid::default())]] {
        let devices = |rank| {
            let is_empty = first(if rank == 0 { 3 } else { 0 });
            let gids = move |_, own| if is_empty() { empty() } else { vec![own] };
            Scripted::over(device(Profile::Thunderbolt)).gids(gids).device()
        };
        start_devices(2, devices, |_, fabric| used(&fabric.unwrap()));
    }
}

#[test]
fn an_ipv4_address_that_comes_late_is_used_with_its_index() {
    for layer in [LinkLayer::Ethernet, LinkLayer::Thunderbolt] {
        let devices = |rank| {
            let (local, ipv4) = (link_local(), mapped());
            let is_alone = first(if rank == 0 { 4 } else { 0 });
            let gids = move |_, _| match is_alone() {
                true => vec![entry(0, local)],
                false => vec![entry(0, local), entry(3, ipv4)],
            };
            let step = |step: &Transition| match step {
                Transition::ReadyToReceive { path, .. } if path.local_gid_index != 3 => {
                    panic!("another index than the one that was told: {path:?}")
                }
                _ => Ok(()),
            };
            let port = move |port: &mut fulmen_verbs::PortInfo| port.link_layer = layer;
            Scripted::over(device(Profile::Thunderbolt)).port(port).gids(gids).step(step).device()
        };
        let rails = start_devices(2, devices, |_, fabric| used(&fabric.unwrap()));
        assert!(rails[0].here.gid.is_ipv4_mapped() && rails[0].here.gid_index == 3, "{}", rails[0]);
        assert_eq!((&rails[0].here, &rails[0].there), (&rails[1].there, &rails[1].here));
    }
}

#[test]
fn link_local_addresses_do_where_there_are_no_others() {
    listen();
    let devices = |rank| {
        let local = link_local();
        let port = |port: &mut fulmen_verbs::PortInfo| port.link_layer = LinkLayer::Thunderbolt;
        Scripted::over(device(Profile::Thunderbolt))
            .info(|info| info.name = format!("local{rank}"))
            .port(port)
            .gids(move |_, _| vec![entry(0, local)])
            .device()
    };
    let rails = start_devices(2, devices, |_, fabric| used(&fabric.unwrap()));
    assert!(rails.iter().all(|rail| rail.here.gid.is_link_local()));
    let events = events_of("local0");
    assert!(events.iter().any(|event| event.contains("link-local one is used")), "{events:?}");
}

/// Rank 1 cannot start, and all hear why.
fn fails_at_rank_one(script: impl Fn(Scripted) -> Scripted + Sync, words: &[&str]) {
    let providers = |rank| {
        let scripted = Scripted::over(device(Profile::Infiniband)).info(|info| info.name = format!("hca{rank}"));
        alone(if rank == 1 { script(scripted) } else { scripted }.device())
    };
    start_patient(2, MOMENT, providers, |rank, fabric| {
        let error = fabric.unwrap_err();
        let text = error.to_string();
        assert_eq!(matches!(error, StartError::PeerFailed { rank: 1, .. }), rank == 0, "{text}");
        for word in words.iter().chain(&["hca1"]) {
            assert!(text.contains(word), "{text} does not say {word}");
        }
    });
}

#[test]
fn a_port_that_never_comes_up_is_named() {
    fails_at_rank_one(|device| device.port(|port| port.state = PortState::Down), &["port 1", "not active"]);
}

#[test]
fn a_port_without_addresses_is_named() {
    fails_at_rank_one(|device| device.gids(|_, _| Vec::new()), &["port 1", "no GID", "bridges"]);
    let zeros = |_, _| vec![entry(0, Gid::default()), entry(1, Gid::default())];
    fails_at_rank_one(|device| device.gids(zeros), &["port 1", "all 2 GIDs", "zero"]);
}

#[test]
fn the_active_port_is_found() {
    let devices = |rank| {
        let scripted = Scripted::over(device(Profile::Infiniband)).info(|info| info.ports = 3);
        let active = 2 + rank as u8;
        let port = move |port: &mut fulmen_verbs::PortInfo| {
            port.state = if port.number == active { PortState::Active } else { PortState::Down };
        };
        let step = move |step: &Transition| match step {
            Transition::Init { port, .. } if *port != active => panic!("port {port}"),
            _ => Ok(()),
        };
        scripted.port(port).step(step).device()
    };
    let rails = start_devices(2, devices, |_, fabric| used(&fabric.unwrap()));
    assert_eq!((rails[0].here.port, rails[0].there.port), (2, 3));
    assert_eq!((rails[1].here.port, rails[1].there.port), (3, 2));
}

#[test]
fn a_device_without_rc_gets_uc_and_it_is_said() {
    listen();
    let named = |name: &'static str, profile, rc| {
        Scripted::over(device(profile)).info(|info| (info.name, info.capabilities.rc) = (name.into(), rc)).device()
    };
    let devices = |rank| {
        if rank == 0 {
            named("with_rc", Profile::Infiniband, true)
        } else {
            named("without_rc", Profile::Infiniband, false)
        }
    };
    let rails = start_devices(2, devices, |_, fabric| used(&fabric.unwrap()));
    assert!(rails.iter().all(|rail| rail.kind == QueuePairKind::Uc && !rail.one_sided));
    let said =
        |event: &&String| event.starts_with("WARN") && event.contains("UC") && event.contains("lacks=\"without_rc\"");
    // Once at each end.
    assert_eq!(events_of("with_rc").iter().filter(said).count(), 2);

    let devices = |rank| named(if rank == 0 { "apple0" } else { "apple1" }, Profile::Thunderbolt, false);
    let rails = start_devices(2, devices, |_, fabric| used(&fabric.unwrap()));
    assert!(rails.iter().all(|rail| rail.kind == QueuePairKind::Uc));
    let events = events_of("apple0");
    assert!(events.iter().any(|event| event.starts_with("INFO") && event.contains("UC")), "{events:?}");
    assert!(!events.iter().any(|event| event.starts_with("WARN")), "{events:?}");

    let rails = start_devices(2, |_| device(Profile::Infiniband), |_, fabric| used(&fabric.unwrap()));
    assert!(rails.iter().all(|rail| rail.kind == QueuePairKind::Rc && rail.one_sided));
}

#[test]
fn the_smaller_transmission_unit_is_used() {
    let devices = |rank| {
        let step = |step: &Transition| match step {
            Transition::ReadyToReceive { path, .. } if path.mtu != Mtu::B1024 => panic!("{path:?}"),
            _ => Ok(()),
        };
        let mtu = if rank == 0 { Mtu::B1024 } else { Mtu::B4096 };
        Scripted::over(device(Profile::Infiniband)).port(move |port| port.active_mtu = mtu).step(step).device()
    };
    let rails = start_devices(2, devices, |_, fabric| used(&fabric.unwrap()));
    assert!(rails.iter().all(|rail| rail.mtu == Mtu::B1024));
}

#[test]
fn what_the_system_says_reaches_the_user_with_both_ends() {
    const WORDS: &str = "Connection timed out (60): the address is not that of the cable's other end";
    let devices = |rank| {
        let step = |step: &Transition| match step.target() {
            QueuePairState::ReadyToReceive => {
                Err(VerbsError::System { device: "rdma_en5".into(), call: "ibv_modify_qp", cause: WORDS.into() })
            }
            _ => Ok(()),
        };
        let scripted =
            Scripted::over(device(Profile::Infiniband)).info(|info| info.name = format!("rdma_en{}", 5 + rank));
        if rank == 0 { scripted.step(step) } else { scripted }.device()
    };
    start_devices(2, devices, |rank, fabric| {
        let text = fabric.unwrap_err().to_string();
        let words =
            ["rdma_en5 (port 1, GID ", "rank 1's rdma_en6 (port 1, GID ", "at index 0", "queue pair ", "RTR", WORDS];
        // The other one may find that out by itself, in other words.
        for word in words.iter().filter(|_| rank == 0) {
            assert!(text.contains(word), "{text} does not say {word}");
        }
    });
}

#[test]
fn numbers_that_no_queue_pair_has_are_refused_with_the_rank() {
    for number in [0, 1 << 24] {
        let devices = |rank| {
            let scripted = Scripted::over(device(Profile::Infiniband));
            if rank == 1 { scripted.number(move |_| number) } else { scripted }.device()
        };
        start_devices(2, devices, |rank, fabric| {
            // The rank whose device it is may find out by itself that there is no connection.
            let text = fabric.unwrap_err().to_string();
            assert!(rank == 1 || text.contains("rank 1's soft0") && text.contains("24 bits"), "{text}");
        });
    }
}

#[test]
fn a_device_that_promised_too_much_is_named() {
    let refuse = |kind| Err(VerbsError::NoSuchKind { device: "hca1".into(), kind });
    fails_at_rank_one(|device| device.kind(refuse), &["says that it has RC", "refuses to make one", "rank 0"]);
}

#[test]
fn addresses_of_two_families_do_not_connect() {
    let devices = |rank| {
        let mut global = link_local().0;
        global[0] = 0x20;
        let gid = if rank == 0 { mapped() } else { Gid(global) };
        let port = |port: &mut fulmen_verbs::PortInfo| port.link_layer = LinkLayer::Ethernet;
        Scripted::over(device(Profile::Infiniband)).port(port).gids(move |_, _| vec![entry(1, gid)]).device()
    };
    start_devices(2, devices, |rank, fabric| {
        let text = fabric.unwrap_err().to_string();
        assert!(
            text.contains("IPv4") && text.contains("IPv6") && text.contains(&format!("rank {}'s", 1 - rank)),
            "{text}"
        );
    });
}

#[test]
fn each_pair_has_the_device_that_leads_there() {
    for profile in Profile::ALL {
        let providers = |_| cabled(profile, 4);
        start_patient(4, MOMENT, providers, |rank, fabric| {
            let fabric = fabric.unwrap();
            assert_eq!(fabric.rail(rank), None);
            traffic(&fabric, 3);
            for peer in (0..4).filter(|peer| *peer != rank) {
                let rail = fabric.rail(peer).unwrap();
                assert_eq!(
                    (&*rail.here.device, &*rail.there.device),
                    (&*format!("soft{peer}"), &*format!("soft{rank}"))
                );
            }
        });
    }
}

/// Ten queue pairs on a device are four too few for nine ranks over one device.
#[test]
fn more_ranks_than_one_device_connects_have_a_device_for_each_peer() {
    start_patient(8, MOMENT, |_| cabled(Profile::Thunderbolt, 8), |_, fabric| traffic(&fabric.unwrap(), 1));
}

#[test]
fn ranks_go_on_over_their_cables_without_one_that_left() {
    for profile in Profile::ALL {
        start_patient(
            4,
            MOMENT,
            |_| cabled(profile, 4),
            |rank, fabric| {
                let fabric = fabric.unwrap();
                traffic(&fabric, 1);
                // It leaves once all have what was sent: a send that is complete may not have arrived, and a survivor that
                // regroups ends what others still wait for.
                if rank == 1 {
                    for peer in [0, 2, 3] {
                        fabric.recv_bytes(peer, 76, &mut [0], LONG).unwrap();
                    }
                    return;
                }
                fabric.send_bytes(1, 76, &[0], LONG).unwrap();
                let error = fabric.recv_bytes(1, 77, &mut [0], LONG).unwrap_err();
                assert!(matches!(error, fulmen_fabric::FabricError::PeerLost { rank: 1, .. }), "{error}");
                let next = fabric.regroup(Regroup::Survivors, LONG).unwrap();
                assert_eq!(next.members(), [0, 2, 3]);
                traffic(&next, 2);
                // Ranks have other numbers, and their cables are the same.
                for (peer, member) in (0..).zip([0, 2, 3]).filter(|(_, member)| *member != rank) {
                    assert_eq!(next.rail(peer).unwrap().here.device, format!("soft{member}"));
                }
            },
        );
    }
}

#[test]
fn shares_are_worked_on_over_each_device() {
    use fulmen_fabric::Rights;

    const KEY: u64 = 5;
    start_patient(
        3,
        MOMENT,
        |_| cabled(Profile::Infiniband, 3),
        |rank, fabric| {
            let fabric = fabric.unwrap();
            if rank == 0 {
                let memory = fabric.alloc(1 << 20).unwrap().into_exposed();
                let shared = fabric.share(&memory, Rights::all()).unwrap();
                for peer in [1, 2] {
                    fabric.send_bytes(peer, KEY, &shared.key().to_bytes(), LONG).unwrap();
                }
                for peer in [1_u32, 2] {
                    fabric.recv_bytes(peer, KEY, &mut [0], LONG).unwrap();
                    let half = (peer as usize - 1) << 19;
                    check(&memory.slice(half + 64..half + (1 << 19)), peer.into(), "a share");
                }
                let mut word = [0; 8];
                memory.read(0, &mut word);
                assert_eq!(u64::from_ne_bytes(word), 200);
                return;
            }
            let mut key = [0; 256];
            let len = fabric.recv_bytes(0, KEY, &mut key, LONG).unwrap();
            let remote = fabric.remote(0, &fulmen_fabric::RemoteKey::from_bytes(&key[..len]).unwrap()).unwrap();
            assert!(fabric.rail(0).unwrap().one_sided);
            let data: Exposed = fabric.alloc((1 << 19) - 64).unwrap().into_exposed();
            fill(&data, rank.into());
            remote.put(((u64::from(rank) - 1) << 19) + 64, &data, LONG).unwrap();
            for _ in 0..100 {
                remote.fetch_add(0, 1, LONG).unwrap();
            }
            fabric.fence(0).unwrap();
            fabric.send_bytes(0, KEY, &[1], LONG).unwrap();
            fabric.recv_bytes(0, 99, &mut [0], LONG).unwrap_err();
        },
    );
}

/// Two ranks, each with these devices of a node, whose names are `a`, `b` and so on, and these cables to the other.
fn start_cables<T: Send>(
    devices: impl Fn(u32, usize, Scripted) -> Scripted + Sync,
    cables: impl Fn(u32) -> Vec<&'static str> + Sync,
    body: impl Fn(u32, Result<Fabric, StartError>) -> T + Sync,
) -> Vec<T> {
    let providers = |rank: u32| {
        let node = Node::open().unwrap();
        let device = |at: usize| {
            let soft = SoftDevice::open(&node, Profile::Thunderbolt).unwrap();
            let named = Scripted::over(soft).info(|info| info.name = ["a", "b", "c"][at].to_owned());
            devices(rank, at, named).device()
        };
        let mut rows = vec![Vec::new(); 2];
        rows[1 - rank as usize] = cables(rank).into_iter().map(str::to_owned).collect();
        Providers { devices: (0..3).map(device).collect(), cables: Some(Cables(rows)), ..Providers::default() }
    };
    start_patient(2, MOMENT, providers, body)
}

fn unchanged(_: u32, _: usize, device: Scripted) -> Scripted {
    device
}

#[test]
fn cables_that_are_not_there_are_named() {
    let names = |rank| if rank == 1 { vec!["x"] } else { vec!["a"] };
    start_cables(unchanged, names, |rank, fabric| {
        let error = fabric.unwrap_err();
        let text = error.to_string();
        for word in ["x is to lead to rank 0", "a, b, c", "list of cables"] {
            assert!(text.contains(word), "{text} does not say {word}");
        }
        assert_eq!(
            matches!(error, StartError::Device(cause) if matches!(*cause, DeviceError::UnknownCable { .. })),
            rank == 1
        );
    });
    let names = |rank| if rank == 1 { vec![] } else { vec!["a"] };
    start_cables(unchanged, names, |_, fabric| {
        let text = fabric.unwrap_err().to_string();
        assert!(text.contains("rank 0 is to reach rank 1 by a, and rank 1 has no cable to rank 0"), "{text}");
    });
}

fn down(port: &mut fulmen_verbs::PortInfo) {
    port.state = PortState::Down;
}

#[test]
fn a_cable_that_is_not_connected_is_named() {
    let devices = |rank, at, device: Scripted| if (rank, at) == (0, 1) { device.port(down) } else { device };
    start_cables(
        devices,
        |_| vec!["b"],
        |_, fabric| {
            let text = fabric.unwrap_err().to_string();
            for word in ["no cable to rank 1", "port 1 of b", "not active"] {
                assert!(text.contains(word), "{text} does not say {word}");
            }
        },
    );
}

#[test]
fn another_cable_is_taken_for_one_that_fails_at_either_end() {
    listen();
    for dead in [0, 1] {
        let devices = |rank, at, device: Scripted| if (rank, at) == (dead, 0) { device.port(down) } else { device };
        // The same cable has other names at its ends.
        let names = |rank| if rank == 0 { vec!["a", "b"] } else { vec!["a", "c"] };
        let rails = start_cables(devices, names, |_, fabric| used(&fabric.unwrap()));
        assert_eq!((&*rails[0].here.device, &*rails[0].there.device), ("b", "c"));
        assert_eq!((&*rails[1].here.device, &*rails[1].there.device), ("c", "b"));
    }
    let both = |rank, at: usize, device: Scripted| if at == rank as usize { device.port(down) } else { device };
    start_cables(
        both,
        |_| vec!["a", "b"],
        |rank, fabric| {
            let text = fabric.unwrap_err().to_string();
            let word =
                if rank == 0 { "here none and b, there a and none" } else { "here a and none, there none and b" };
            assert!(text.contains(&format!("rank {}", 1 - rank)) && text.contains(word), "{text}");
        },
    );
}

#[test]
fn without_cables_the_first_device_that_can_be_used_is() {
    let providers = |rank| {
        let dead =
            Scripted::over(device(Profile::Infiniband)).port(down).info(|info| info.name = "dead".into()).device();
        let none = modest(Profile::Infiniband, |can| (can.rc, can.uc) = (false, false));
        let good = Scripted::over(device(Profile::Infiniband)).info(|info| info.name = format!("good{rank}")).device();
        Providers { devices: vec![none, dead, good], ..Providers::default() }
    };
    let rails = start_patient(2, LONG, providers, |_, fabric| used(&fabric.unwrap()));
    assert_eq!((&*rails[0].here.device, &*rails[1].here.device), ("good0", "good1"));
}
