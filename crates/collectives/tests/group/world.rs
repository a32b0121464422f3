//! Ranks as threads, each with a session, a node, a fabric and a group of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use fulmen_collectives::Group;
use fulmen_fabric::bootstrap::Options;
use fulmen_fabric::{Coordinator, Fabric, FabricOptions, JoinConfig, Providers, Secret, Session};
use fulmen_reach::Node;
use fulmen_soft::{Profile, SoftDevice};

/// Never reached when all is well.
pub const LONG: Duration = Duration::from_secs(120);

/// Runs `body` on `size` ranks that map one another's memory, or have devices of a profile.
fn start<T: Send>(size: u32, profile: Option<Profile>, body: impl Fn(Fabric) -> T + Sync) -> Vec<T> {
    let secret = Secret::generate().unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let coordinator = Coordinator::bind(address, size, secret.clone(), Options::default()).unwrap().serve().unwrap();
    let coordinator_address = coordinator.local_addr();
    thread::scope(|scope| {
        let rank = |rank| {
            let (body, secret) = (&body, secret.clone());
            scope.spawn(move || {
                let config = JoinConfig { coordinator: coordinator_address, rank, size, secret, deadline: LONG };
                let session = Session::join(&config).unwrap();
                let windows = profile.is_none();
                let options = FabricOptions { pool: 64 << 20, timeout: LONG, windows, ..FabricOptions::default() };
                let node = Node::open().unwrap();
                let devices = profile.map(|profile| SoftDevice::open(&node, profile).unwrap());
                let providers = Providers { node: Some(node), devices: devices.into_iter().collect() };
                body(Fabric::start(session, options, providers).unwrap())
            })
        };
        let ranks: Vec<_> = (0..size).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Runs `body` on `size` ranks that map one another's memory.
pub fn run<T: Send>(size: u32, body: impl Fn(Fabric) -> T + Sync) -> Vec<T> {
    start(size, None, body)
}

/// Runs `body` on the group of `size` ranks.
pub fn run_group<T: Send>(size: u32, body: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    run(size, |fabric| body(&Group::new(fabric).unwrap()))
}

/// Runs `body` on the group of `size` ranks, by messages over shared memory.
pub fn run_by_messages<T: Send>(size: u32, body: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    run(size, |fabric| body(&Group::by_messages(fabric).unwrap()))
}

/// Runs `body` on the group of `size` ranks, over devices of a profile.
pub fn run_over<T: Send>(profile: Profile, size: u32, body: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    start(size, Some(profile), |fabric| body(&Group::new(fabric).unwrap()))
}

/// How many times a random test goes round: more in the full tier.
pub fn rounds(few: u64) -> u64 {
    if std::env::var("FULMEN_TEST_TIER").is_ok_and(|tier| tier == "full") { few * 10 } else { few }
}

/// Numbers that look random, the same for the same seed.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
