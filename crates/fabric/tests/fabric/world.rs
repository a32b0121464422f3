//! Ranks as threads of the test's process, each with a node or a device, a session and a fabric of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_fabric::bootstrap::{Heartbeat, Options};
use fulmen_fabric::{
    Cables, Coordinator, Fabric, FabricOptions, Flow, JoinConfig, Providers, Secret, Session, StartError, Tcp,
};
use fulmen_memory::Exposed;
use fulmen_reach::Node;
use fulmen_soft::{NetworkOptions, Profile, SoftDevice, SoftOptions};
use fulmen_trust::Identity;
use fulmen_verbs::{Capabilities, Device};

use crate::scripted::Scripted;

/// Never reached when all is well.
pub const LONG: Duration = Duration::from_secs(60);

/// How long a rank may be silent before it counts as lost, where a test is not about that: a process that a busy machine
/// does not run for some seconds is not to be taken for a dead one.
pub const SILENCE: Duration = Duration::from_secs(600);

/// A coordinator's options with this bound of silence.
pub fn patient(silence: Duration) -> Options {
    let every = (silence / 5).min(Duration::from_secs(2));
    Options { heartbeat: Heartbeat { every, silence }, ..Options::default() }
}

/// What links run over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    Reach,
    Device(Profile),
    /// A device for each peer.
    Cables(Profile),
    /// By TCP, as if each rank were on a host of its own.
    Hosts(Profile),
}

pub const CARRIERS: [Carrier; 5] = [
    Carrier::Reach,
    Carrier::Device(Profile::Infiniband),
    Carrier::Device(Profile::Thunderbolt),
    Carrier::Cables(Profile::Thunderbolt),
    Carrier::Hosts(Profile::Infiniband),
];

impl Carrier {
    pub fn providers(self) -> Providers {
        let node = Node::open().unwrap();
        match self {
            Carrier::Reach => Providers { node: Some(node), ..Providers::default() },
            Carrier::Cables(profile) => cabled(profile, 6),
            Carrier::Hosts(profile) => {
                let own = *node.address().name();
                networked(profile, own, None)
            }
            Carrier::Device(profile) => {
                Providers { devices: vec![SoftDevice::open(&node, profile).unwrap()], ..Providers::default() }
            }
        }
    }

    pub fn options(self, options: FabricOptions) -> FabricOptions {
        FabricOptions { windows: self == Carrier::Reach, ..options }
    }

    pub fn index(self) -> usize {
        CARRIERS.iter().position(|carrier| *carrier == self).unwrap()
    }
}

pub fn options() -> FabricOptions {
    // What is long is the same over every carrier.
    let flow = Flow { rendezvous_tcp: Flow::default().rendezvous, ..Flow::default() };
    FabricOptions { pool: 16 << 20, timeout: LONG, farewell: LONG, flow, ..FabricOptions::default() }
}

/// Starts `size` ranks, each with the providers and options that `given` gives it, and runs `body` on what came of it.
pub fn start_with<T: Send>(
    size: u32,
    given: impl Fn(u32) -> (Providers, FabricOptions) + Sync,
    body: impl Fn(u32, Result<Fabric, StartError>) -> T + Sync,
) -> Vec<T> {
    fulmen_testbed::raise_descriptors();
    let secret = Secret::generate().unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let coordinator = Coordinator::bind(address, size, secret.clone(), patient(SILENCE)).unwrap().serve().unwrap();
    let coordinator_address = coordinator.local_addr();
    // Its ranks are known as the test: by that, whoever does more in the full tier is found.
    let test = thread::current().name().unwrap_or("ranks").to_owned();
    thread::scope(|scope| {
        let rank = |rank| {
            let (given, body, secret) = (&given, &body, secret.clone());
            let named = thread::Builder::new().name(test.clone());
            let rank = move || {
                let config = JoinConfig { coordinator: coordinator_address, rank, size, secret, deadline: LONG };
                let session = Session::join(&config).unwrap();
                let (providers, options) = given(rank);
                body(rank, Fabric::start(session, options, providers))
            };
            named.spawn_scoped(scope, rank).expect("a thread")
        };
        let ranks: Vec<_> = (0..size).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Starts `size` ranks over shared memory.
pub fn start<T: Send>(
    size: u32,
    options: impl Fn(u32) -> FabricOptions + Sync,
    body: impl Fn(u32, Result<Fabric, StartError>) -> T + Sync,
) -> Vec<T> {
    start_with(size, |rank| (Carrier::Reach.providers(), options(rank)), body)
}

/// Starts `size` ranks over shared memory and runs `body` on each.
pub fn run<T: Send>(size: u32, body: impl Fn(&Fabric) -> T + Sync) -> Vec<T> {
    start(size, |_| options(), |_, fabric| body(&fabric.unwrap()))
}

/// Starts `size` ranks over each carrier, one after the other.
pub fn start_over_each(
    size: u32,
    options: impl Fn(u32) -> FabricOptions + Sync,
    body: impl Fn(u32, Result<Fabric, StartError>) + Sync,
) {
    for carrier in CARRIERS {
        println!("over {carrier:?}");
        start_with(size, |rank| (carrier.providers(), carrier.options(options(rank))), &body);
    }
}

/// Starts `size` ranks over each carrier, one after the other, and runs `body` on each rank.
pub fn run_over_each(size: u32, body: impl Fn(&Fabric) + Sync) {
    start_over_each(size, |_| options(), |_, fabric| body(&fabric.unwrap()));
}

/// Starts `size` ranks over these devices, which `device` gives.
pub fn start_devices<T: Send>(
    size: u32,
    device: impl Fn(u32) -> Arc<dyn Device> + Sync,
    body: impl Fn(u32, Result<Fabric, StartError>) -> T + Sync,
) -> Vec<T> {
    let given = |rank| {
        let options = FabricOptions { windows: false, ..options() };
        (Providers { devices: vec![device(rank)], ..Providers::default() }, options)
    };
    start_with(size, given, body)
}

/// A soft device on a node of its own.
pub fn device(profile: Profile) -> Arc<dyn Device> {
    SoftDevice::open(&Node::open().unwrap(), profile).unwrap()
}

/// A soft device that takes those of other `host`s for devices that it reaches by TCP alone, sealed if there is an identity.
pub fn networked(profile: Profile, host: [u8; 16], seal: Option<Identity>) -> Providers {
    let tcp = Some(Tcp { sealed: seal.is_some(), instead: None });
    let mut network = NetworkOptions::new((Ipv4Addr::LOCALHOST, 0).into());
    (network.host, network.seal) = (Some(host), seal);
    let options = SoftOptions { network: Some(network), ..SoftOptions::new(profile) };
    let device = SoftDevice::open_as(&Node::open().unwrap(), options).unwrap();
    Providers { devices: vec![device], tcp, ..Providers::default() }
}

/// A soft device on a node of its own, which says that it can do something else.
pub fn modest(profile: Profile, change: impl Fn(&mut Capabilities)) -> Arc<dyn Device> {
    Scripted::over(device(profile)).info(|info| change(&mut info.capabilities)).device()
}

/// A rank of a world in which cables join these ranks alone, with a soft device for each of its cables.
pub fn joined(profile: Profile, (rank, size): (u32, u32), edges: &[(u32, u32)]) -> Providers {
    let node = Node::open().unwrap();
    let (mut devices, mut cables) = (Vec::<Arc<dyn Device>>::new(), vec![Vec::new(); size as usize]);
    for (one, other) in edges.iter().filter(|(one, other)| [*one, *other].contains(&rank)) {
        let device = SoftDevice::open(&node, profile).unwrap();
        cables[(one + other - rank) as usize].push(device.info().name.clone());
        devices.push(device);
    }
    Providers { devices, cables: Some(Cables(cables)), ..Providers::default() }
}

/// A soft device for each other rank, of at most so many ranks, and the cables that say so.
pub fn cabled(profile: Profile, ranks: u32) -> Providers {
    let node = Node::open().unwrap();
    let devices: Vec<_> = (0..ranks).map(|_| SoftDevice::open(&node, profile).unwrap()).collect();
    let cables = devices.iter().map(|device| vec![device.info().name.clone()]).collect();
    Providers { devices, cables: Some(Cables(cables)), ..Providers::default() }
}

/// Waits until this is so, with a limit.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < end, "{what} did not come");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until nobody has this memory any more.
pub fn released(what: &str, memory: Exposed) {
    let mut kept = Some(memory);
    eventually(what, || match kept.take().unwrap().into_block() {
        Ok(_) => true,
        Err(still) => {
            kept = Some(still);
            false
        }
    });
}
