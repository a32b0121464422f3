//! Ranks as threads, each with a session, a node and a fabric of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use fulmen_fabric::bootstrap::Options;
use fulmen_fabric::{Coordinator, Fabric, FabricOptions, JoinConfig, Providers, Secret, Session};
use fulmen_reach::Node;
use fulmen_soft::{Profile, SoftDevice};

/// Never reached when all is well.
pub const LONG: Duration = Duration::from_secs(120);

/// Runs `body` on `size` ranks that map one another's memory, or have devices of a profile.
pub fn start<T: Send>(size: u32, profile: Option<Profile>, body: impl Fn(Fabric) -> T + Sync) -> Vec<T> {
    let providers = |_, node: Node| {
        let devices = profile.map(|profile| SoftDevice::open(&node, profile).unwrap());
        Providers { node: Some(node), devices: devices.into_iter().collect(), ..Providers::default() }
    };
    start_with(size, profile.is_none(), providers, body)
}

/// Runs `body` on `size` ranks that map one another's memory, or have what is given with a rank and its node.
pub fn start_with<T: Send>(
    size: u32,
    windows: bool,
    providers: impl Fn(u32, Node) -> Providers + Sync,
    body: impl Fn(Fabric) -> T + Sync,
) -> Vec<T> {
    start_as(size, options(windows), providers, body)
}

/// The options of ranks in tests.
pub fn options(windows: bool) -> FabricOptions {
    FabricOptions { pool: 64 << 20, timeout: LONG, windows, ..FabricOptions::default() }
}

/// Runs `body` on `size` ranks with these options, that have what is given with a rank and its node.
pub fn start_as<T: Send>(
    size: u32,
    options: FabricOptions,
    providers: impl Fn(u32, Node) -> Providers + Sync,
    body: impl Fn(Fabric) -> T + Sync,
) -> Vec<T> {
    start_each(size, |_| options.clone(), providers, body)
}

/// The same, with options of each rank's own.
pub fn start_each<T: Send>(
    size: u32,
    options: impl Fn(u32) -> FabricOptions + Sync,
    providers: impl Fn(u32, Node) -> Providers + Sync,
    body: impl Fn(Fabric) -> T + Sync,
) -> Vec<T> {
    fulmen_testbed::raise_descriptors();
    let secret = Secret::generate().unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let coordinator = Coordinator::bind(address, size, secret.clone(), Options::default()).unwrap().serve().unwrap();
    let coordinator_address = coordinator.local_addr();
    thread::scope(|scope| {
        let rank = |rank| {
            let (body, options, providers, secret) = (&body, &options, &providers, secret.clone());
            scope.spawn(move || {
                let config = JoinConfig { coordinator: coordinator_address, rank, size, secret, deadline: LONG };
                let session = Session::join(&config).unwrap();
                let providers = providers(rank, Node::open().unwrap());
                body(Fabric::start(session, options(rank), providers).unwrap())
            })
        };
        let ranks: Vec<_> = (0..size).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
