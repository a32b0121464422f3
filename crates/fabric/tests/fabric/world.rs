//! Ranks as threads of the test's process, each with a node, a session and a fabric of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use fulmen_fabric::bootstrap::Options;
use fulmen_fabric::{Coordinator, Fabric, FabricOptions, JoinConfig, Providers, Secret, Session, StartError};
use fulmen_reach::Node;

/// Never reached when all is well.
pub const LONG: Duration = Duration::from_secs(60);

pub fn options() -> FabricOptions {
    FabricOptions { pool: 16 << 20, timeout: LONG, ..FabricOptions::default() }
}

/// Starts `size` ranks, each with the options that `options` gives it, and runs `body` on what came of it.
pub fn start<T: Send>(
    size: u32,
    options: impl Fn(u32) -> FabricOptions + Sync,
    body: impl Fn(u32, Result<Fabric, StartError>) -> T + Sync,
) -> Vec<T> {
    let secret = Secret::generate().unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let coordinator = Coordinator::bind(address, size, secret.clone(), Options::default()).unwrap().serve().unwrap();
    let coordinator_address = coordinator.local_addr();
    thread::scope(|scope| {
        let rank = |rank| {
            let (options, body, secret) = (&options, &body, secret.clone());
            scope.spawn(move || {
                let config = JoinConfig { coordinator: coordinator_address, rank, size, secret, deadline: LONG };
                let session = Session::join(&config).unwrap();
                let providers = Providers { node: Some(Node::open().unwrap()), devices: Vec::new() };
                body(rank, Fabric::start(session, options(rank), providers))
            })
        };
        let ranks: Vec<_> = (0..size).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Starts `size` ranks and runs `body` on each.
pub fn run<T: Send>(size: u32, body: impl Fn(&Fabric) -> T + Sync) -> Vec<T> {
    start(size, |_| options(), |_, fabric| body(&fabric.unwrap()))
}
