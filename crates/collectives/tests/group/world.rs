//! Groups of ranks that are threads of this process.

use std::net::Ipv4Addr;
use std::sync::{Arc, Barrier};

use fulmen_collectives::Group;
use fulmen_fabric::{Cables, Fabric, FabricOptions, PollPolicy, Providers, Tcp};
use fulmen_reach::Node;
use fulmen_soft::{NetworkOptions, Profile, SoftDevice, SoftOptions};
use fulmen_testbed::Tier;
use fulmen_verbs::Device;

use crate::ranks::{options, start, start_as, start_each, start_with};

/// Runs `body` on `size` ranks that map one another's memory.
pub fn run<T: Send>(size: u32, body: impl Fn(Fabric) -> T + Sync) -> Vec<T> {
    start(size, None, body)
}

/// Runs `body` on the group of `size` ranks.
pub fn run_group<T: Send>(size: u32, body: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    run(size, |fabric| body(&Group::new(fabric).unwrap()))
}

/// Runs `body` on the group of `size` ranks that wait as if each had a processor.
pub fn run_busy<T: Send>(size: u32, body: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    let providers = |_, node| Providers { node: Some(node), ..Providers::default() };
    // Not for long: there may be fewer.
    let poll = Some(PollPolicy { spins: 64, ..PollPolicy::BUSY });
    let options = FabricOptions { poll, ..options(true) };
    start_as(size, options, providers, |fabric| body(&Group::new(fabric).unwrap()))
}

/// Runs `body` on the group of `size` ranks, by messages over shared memory.
pub fn run_by_messages<T: Send>(size: u32, body: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    run(size, |fabric| body(&Group::by_messages(fabric).unwrap()))
}

/// Runs `body` on the group of `size` ranks, over devices of a profile.
pub fn run_over<T: Send>(profile: Profile, size: u32, body: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    start(size, Some(profile), |fabric| body(&Group::new(fabric).unwrap()))
}

/// Runs `body` on the group of `size` ranks, over devices of a profile: one for each pair.
pub fn run_over_cables<T: Send>(profile: Profile, size: u32, body: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    let providers = |_, node| {
        let devices: Vec<_> = (0..size).map(|_| SoftDevice::open(&node, profile).unwrap()).collect();
        let cables = devices.iter().map(|device| vec![device.info().name.clone()]).collect();
        Providers { devices, cables: Some(Cables(cables)), ..Providers::default() }
    };
    start_with(size, false, providers, |fabric| body(&Group::new(fabric).unwrap()))
}

/// Runs `body` on the group of `size` ranks in a chain, over devices of a profile: one for each cable.
pub fn run_over_chain<T: Send>(profile: Profile, size: u32, body: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    let providers = |rank: u32, node| {
        let (mut devices, mut cables) = (Vec::<Arc<dyn Device>>::new(), vec![Vec::new(); size as usize]);
        for peer in (0..size).filter(|peer| peer.abs_diff(rank) == 1) {
            let device = SoftDevice::open(&node, profile).unwrap();
            cables[peer as usize].push(device.info().name.clone());
            devices.push(device);
        }
        Providers { devices, cables: Some(Cables(cables)), ..Providers::default() }
    };
    start_with(size, false, providers, |fabric| body(&Group::new(fabric).unwrap()))
}

/// Runs `body` on the group of `size` ranks, over devices of a profile by TCP, as if each rank were on a host of its own.
pub fn run_over_hosts<T: Send>(profile: Profile, size: u32, body: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    let providers = |_, node: Node| {
        let mut network = NetworkOptions::new((Ipv4Addr::LOCALHOST, 0).into());
        // No other node has the same name.
        network.host = Some(*node.address().name());
        let options = SoftOptions { network: Some(network), ..SoftOptions::new(profile) };
        let tcp = Some(Tcp { sealed: false, instead: None });
        Providers { devices: vec![SoftDevice::open_as(&node, options).unwrap()], tcp, ..Providers::default() }
    };
    start_with(size, false, providers, |fabric| body(&Group::new(fabric).unwrap()))
}

/// Runs `body` on the group of ranks of several hosts, so many on each, in their order: those of one map one another's memory, and
/// between them are devices of a profile.
pub fn run_on_hosts<T: Send>(profile: Profile, hosts: &[u32], body: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    start_on_hosts(profile, hosts, |fabric| body(&Group::new(fabric).unwrap()))
}

/// The same with each rank's fabric.
pub fn start_on_hosts<T: Send>(profile: Profile, hosts: &[u32], body: impl Fn(Fabric) -> T + Sync) -> Vec<T> {
    let places: Vec<u8> = (0..).zip(hosts).flat_map(|(host, ranks)| vec![host; *ranks as usize]).collect();
    let options = |rank: u32| FabricOptions { host: Some([places[rank as usize]; 16]), ..options(true) };
    let providers = |_, node: Node| {
        let devices = vec![SoftDevice::open(&node, profile).unwrap() as Arc<dyn Device>];
        Providers { node: Some(node), devices, ..Providers::default() }
    };
    start_each(places.len() as u32, options, providers, body)
}

/// Comes to the barrier when it is dropped, also by a rank that fails: the others are not to wait for ever.
pub struct Comes<'a>(pub &'a Barrier);

impl Drop for Comes<'_> {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// How many times a random test goes round.
pub fn rounds(few: u64) -> u64 {
    if Tier::now() == Tier::Soak { few * 4 } else { few }
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
