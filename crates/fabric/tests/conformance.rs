//! Every carrier keeps the promises of the fabric.

mod machine;
#[cfg(target_os = "linux")]
mod namespaces;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use fulmen_fabric::conformance::{Bench, Verdict, names, run, run_some};
use fulmen_fabric::{Cables, FabricOptions, Providers, Tcp};
use fulmen_reach::Node;
use fulmen_soft::{NetworkOptions, Profile, SoftDevice, SoftOptions};
use fulmen_testbed::is_full;
use fulmen_trust::Authority;
use fulmen_verbs::{Device, FaultPlan, Faulty, Odds};

/// Ranks map one another's memory.
struct Reach;

impl Bench for Reach {
    fn name(&self) -> String {
        "reach".into()
    }

    fn providers(&self, _rank: u32) -> Result<Providers, String> {
        Ok(Providers { node: Some(node()?), ..Providers::default() })
    }

    fn options(&self, options: FabricOptions) -> FabricOptions {
        FabricOptions { windows: true, ..options }
    }
}

fn node() -> Result<Node, String> {
    fulmen_testbed::raise_descriptors();
    Node::open().map_err(|error| error.to_string())
}

/// The software device in one of its profiles.
struct Soft(Profile);

fn soft(profile: Profile) -> Result<Arc<dyn Device>, String> {
    let device = SoftDevice::open(&node()?, profile).map_err(|error| error.to_string())?;
    Ok(device)
}

impl Bench for Soft {
    fn name(&self) -> String {
        format!("soft {}", self.0)
    }

    fn providers(&self, _rank: u32) -> Result<Providers, String> {
        Ok(Providers { devices: vec![soft(self.0)?], ..Providers::default() })
    }

    fn options(&self, options: FabricOptions) -> FabricOptions {
        FabricOptions { windows: false, ..options }
    }
}

/// The software device, with one for each other rank, as hosts have them that cables join two by two.
struct Cabled(Profile);

impl Bench for Cabled {
    fn name(&self) -> String {
        format!("cables {}", self.0)
    }

    fn providers(&self, _rank: u32) -> Result<Providers, String> {
        let node = node()?;
        let open = |_| SoftDevice::open(&node, self.0).map_err(|error| error.to_string());
        let devices = (0..self.most_ranks()).map(open).collect::<Result<Vec<_>, _>>()?;
        let cables = devices.iter().map(|device| vec![device.info().name.clone()]).collect();
        Ok(Providers { devices, cables: Some(Cables(cables)), ..Providers::default() })
    }

    fn options(&self, options: FabricOptions) -> FabricOptions {
        FabricOptions { windows: false, ..options }
    }

    fn most_ranks(&self) -> u32 {
        5
    }
}

/// Two software devices, which both lead to every other rank.
struct Rails(Profile);

impl Bench for Rails {
    fn name(&self) -> String {
        format!("two rails {}", self.0)
    }

    fn providers(&self, _rank: u32) -> Result<Providers, String> {
        let node = node()?;
        let open = |_| SoftDevice::open(&node, self.0).map_err(|error| error.to_string());
        let devices = (0..2).map(open).collect::<Result<Vec<_>, _>>()?;
        let names: Vec<_> = devices.iter().map(|device| device.info().name.clone()).collect();
        let cables = Some(Cables(vec![names; self.most_ranks() as usize]));
        let devices = devices.into_iter().map(|device| -> Arc<dyn Device> { device }).collect();
        Ok(Providers { devices, cables, ..Providers::default() })
    }

    fn options(&self, options: FabricOptions) -> FabricOptions {
        FabricOptions { windows: false, ..options }
    }

    fn most_ranks(&self) -> u32 {
        5
    }
}

/// The software device, with one for each cable of a graph in which few ranks have one.
struct Sparse {
    profile: Profile,
    name: &'static str,
    edges: &'static [(u32, u32)],
}

/// Rank 0 is the one in the middle, which no case takes away.
const STAR: &[(u32, u32)] = &[(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)];
const CHAIN: &[(u32, u32)] = &[(0, 1), (0, 2), (1, 3), (2, 4), (3, 5)];

impl Bench for Sparse {
    fn name(&self) -> String {
        format!("{} {}", self.name, self.profile)
    }

    fn providers(&self, rank: u32) -> Result<Providers, String> {
        let node = node()?;
        let (mut devices, mut cables) = (Vec::<Arc<dyn Device>>::new(), vec![Vec::new(); 6]);
        for (one, other) in self.edges.iter().filter(|(one, other)| [*one, *other].contains(&rank)) {
            let device = SoftDevice::open(&node, self.profile).map_err(|error| error.to_string())?;
            cables[(one + other - rank) as usize].push(device.info().name.clone());
            devices.push(device);
        }
        Ok(Providers { devices, cables: Some(Cables(cables)), ..Providers::default() })
    }

    fn options(&self, options: FabricOptions) -> FabricOptions {
        FabricOptions { windows: false, ..options }
    }
}

/// The software device, by TCP at this address, sealed if there is an authority: as if each rank were on a host of its own.
fn over_tcp(
    profile: Profile,
    authority: Option<&Authority>,
    rank: u32,
    address: IpAddr,
    on_first_use: bool,
) -> Result<Providers, String> {
    let node = node()?;
    let seal = authority.map(|authority| authority.identity(&format!("rank {rank}")));
    let seal = seal.transpose().map_err(|error| error.to_string())?;
    let tcp = Some(Tcp { sealed: seal.is_some(), instead: None });
    let mut network = NetworkOptions::new((address, 0).into());
    // No other node has the same name. Of one host, they would share memory.
    (network.host, network.seal) = (Some(*node.address().name()), seal);
    network.on_first_use = on_first_use;
    let options = SoftOptions { network: Some(network), ..SoftOptions::new(profile) };
    let device = SoftDevice::open_as(&node, options).map_err(|error| error.to_string())?;
    Ok(Providers { devices: vec![device], tcp, ..Providers::default() })
}

/// See [`over_tcp`].
struct Hosts {
    profile: Profile,
    /// What seals it.
    authority: Option<Authority>,
    /// Whether connections are opened when they are needed, as with many ranks.
    on_first_use: bool,
}

impl Bench for Hosts {
    fn name(&self) -> String {
        let when = if self.on_first_use { " on first use" } else { "" };
        format!("{} TCP {}{when}", if self.authority.is_some() { "sealed" } else { "plain" }, self.profile)
    }

    fn providers(&self, rank: u32) -> Result<Providers, String> {
        over_tcp(self.profile, self.authority.as_ref(), rank, Ipv4Addr::LOCALHOST.into(), self.on_first_use)
    }

    fn options(&self, options: FabricOptions) -> FabricOptions {
        FabricOptions { windows: false, ..options }
    }
}

/// Two hosts: ranks of one map one another's memory, and the others are reached over a device. Or over one for each other rank, and
/// for those of the own host, too, which nobody needs.
struct Mixed {
    profile: Profile,
    cabled: bool,
}

impl Bench for Mixed {
    fn name(&self) -> String {
        format!("two hosts {}{}", self.profile, if self.cabled { " with cables" } else { "" })
    }

    fn providers(&self, rank: u32) -> Result<Providers, String> {
        match self.cabled {
            true => Ok(Providers { node: Some(node()?), ..Cabled(self.profile).providers(rank)? }),
            false => Ok(Providers { node: Some(node()?), ..Soft(self.profile).providers(rank)? }),
        }
    }

    fn options(&self, options: FabricOptions) -> FabricOptions {
        FabricOptions { windows: true, ..options }
    }

    fn host(&self, rank: u32) -> Option<[u8; 16]> {
        Some([rank as u8 % 2; 16])
    }

    fn most_ranks(&self) -> u32 {
        if self.cabled { 5 } else { 6 }
    }
}

/// The same over a device that goes wrong now and then.
struct Broken {
    profile: Profile,
    plan: FaultPlan,
    /// Whether frames and moves carry checksums.
    verify: bool,
}

impl Bench for Broken {
    fn name(&self) -> String {
        format!("faulty {}", self.profile)
    }

    fn providers(&self, rank: u32) -> Result<Providers, String> {
        let plan = FaultPlan { seed: self.plan.seed + u64::from(rank), ..self.plan.clone() };
        Ok(Providers { devices: vec![Faulty::new(soft(self.profile)?, plan)], ..Providers::default() })
    }

    fn options(&self, options: FabricOptions) -> FabricOptions {
        FabricOptions { windows: false, verify_data: self.verify, ..options }
    }
}

#[test]
fn reach() {
    run(&Reach).assert_passed();
}

#[test]
fn soft_infiniband() {
    run(&Soft(Profile::Infiniband)).assert_passed();
}

#[test]
fn soft_thunderbolt() {
    run(&Soft(Profile::Thunderbolt)).assert_passed();
}

/// What is different from one device: those of its operations that name memory, and the end of generations.
#[test]
fn cables_infiniband() {
    let full = is_full();
    let wanted = |case: &str| full || ["one-sided", "keys", "regroup"].iter().any(|theme| case.starts_with(theme));
    let bench = Cabled(Profile::Infiniband);
    run_some(&bench, &wanted, &mut |case, verdict| println!("{}: {case}: {verdict:?}", bench.name())).assert_passed();
}

/// Runs the cases of these themes, or all in the full tier.
fn sparse(bench: &Sparse, themes: &[&str]) {
    let full = is_full();
    let wanted = |case: &str| (full || themes.iter().any(|theme| case.starts_with(theme))) && !MIDDLE.contains(&case);
    run_some(bench, &wanted, &mut |case, verdict| println!("{}: {case}: {verdict:?}", bench.name())).assert_passed();
}

/// The rank in the middle dies in the one, so that the others are apart. In the other, a message is to come from a rank that dies
/// right after: what is still on its way over others goes with it.
const MIDDLE: [&str; 2] = ["regroup: twice in a row", "keys: a user's death does not keep the memory"];

#[test]
fn star_infiniband() {
    sparse(&Sparse { profile: Profile::Infiniband, name: "star", edges: STAR }, &["one-sided", "keys", "regroup"]);
}

#[test]
fn chain_thunderbolt() {
    sparse(&Sparse { profile: Profile::Thunderbolt, name: "chain", edges: CHAIN }, &["messages", "order", "liveness"]);
}

#[test]
fn tcp_infiniband() {
    run(&Hosts { profile: Profile::Infiniband, authority: None, on_first_use: false }).assert_passed();
}

#[test]
fn tcp_thunderbolt() {
    run(&Hosts { profile: Profile::Thunderbolt, authority: None, on_first_use: false }).assert_passed();
}

/// The bytes take another way through the connection; all else is the same.
#[test]
fn tcp_sealed() {
    let full = is_full();
    let wanted = |case: &str| full || ["messages", "one-sided", "regroup"].iter().any(|theme| case.starts_with(theme));
    let authority = Some(Authority::from_secret(&[7; 32]).unwrap());
    for profile in if full { &Profile::ALL[..] } else { &[Profile::Infiniband] } {
        let bench = Hosts { profile: *profile, authority: authority.clone(), on_first_use: false };
        run_some(&bench, &wanted, &mut |case, verdict| println!("{}: {case}: {verdict:?}", bench.name()))
            .assert_passed();
    }
}

/// What is different where links carry nothing at first: who is gone, what a device does by itself, and new generations.
#[test]
fn tcp_on_first_use() {
    let full = is_full();
    let themes = ["messages", "liveness", "one-sided", "keys", "regroup"];
    let wanted = |case: &str| full || themes.iter().any(|theme| case.starts_with(theme));
    for profile in Profile::ALL {
        let bench = Hosts { profile, authority: None, on_first_use: true };
        run_some(&bench, &wanted, &mut |case, verdict| println!("{}: {case}: {verdict:?}", bench.name()))
            .assert_passed();
    }
}

#[test]
fn two_hosts_infiniband() {
    run(&Mixed { profile: Profile::Infiniband, cabled: false }).assert_passed();
}

#[test]
fn two_hosts_thunderbolt() {
    for cabled in [false, true] {
        run(&Mixed { profile: Profile::Thunderbolt, cabled }).assert_passed();
    }
}

#[test]
fn rails_infiniband() {
    run(&Rails(Profile::Infiniband)).assert_passed();
}

#[test]
fn rails_thunderbolt() {
    run(&Rails(Profile::Thunderbolt)).assert_passed();
}

#[test]
fn cables_thunderbolt() {
    run(&Cabled(Profile::Thunderbolt)).assert_passed();
}

/// Completions that come late. A reliable device that fails in any other way breaks its links, as it should.
#[test]
fn faulty_infiniband() {
    let plan = FaultPlan { delay: Odds::one_in(4), ..FaultPlan::quiet(1) };
    run(&Broken { profile: Profile::Infiniband, plan, verify: true }).assert_passed();
}

/// Everything that an unreliable device may do, more seldom where the tests are to be short. It waits for what is to come
/// again more than it works, so that its cases are dealt out to tests that run side by side.
fn faulty_thunderbolt(part: usize) {
    let full = is_full();
    let odds = Odds::one_in(if full { 60 } else { 200 });
    let plan = FaultPlan { drop: odds, duplicate: odds, corrupt: odds, delay: Odds::one_in(10), ..FaultPlan::quiet(2) };
    let bench = Broken { profile: Profile::Thunderbolt, plan, verify: true };
    let mine: Vec<_> = names().into_iter().skip(part).step_by(PARTS).collect();
    let report = run_some(&bench, &|case| mine.contains(&case), &mut |case, verdict| {
        println!("{}: {case}: {verdict:?}", bench.name());
    });
    report.assert_passed();
}

const PARTS: usize = 4;

#[test]
fn faulty_thunderbolt_first_part() {
    faulty_thunderbolt(0);
}

#[test]
fn faulty_thunderbolt_second_part() {
    faulty_thunderbolt(1);
}

#[test]
fn faulty_thunderbolt_third_part() {
    faulty_thunderbolt(2);
}

#[test]
fn faulty_thunderbolt_last_part() {
    faulty_thunderbolt(PARTS - 1);
}

/// Cases of these themes fail over this bench, and say how.
fn notices(bench: &dyn Bench, themes: &[&str]) {
    for theme in themes {
        let report = run_some(bench, &|case| case.starts_with(theme), &mut |case, verdict| match verdict {
            Verdict::Failed(how) => println!("{case} fails: {how}"),
            _ => println!("{case}: {verdict:?}"),
        });
        assert!(!report.failed.is_empty(), "no case of \"{theme}\" noticed what is wrong with {}", bench.name());
    }
}

#[test]
fn the_suite_notices_a_device_that_breaks_bytes_behind_the_fabrics_back() {
    // Without checksums on large moves, nothing below the suite sees it.
    let plan = FaultPlan { corrupt: Odds::one_in(8), ..FaultPlan::quiet(3) };
    let bench = Broken { profile: Profile::Thunderbolt, plan, verify: false };
    notices(&bench, &["messages: by rendezvous"]);
}

#[test]
fn the_suite_notices_a_reliable_device_that_fails() {
    let plan = FaultPlan { drop: Odds::one_in(10), ..FaultPlan::quiet(4) };
    let bench = Broken { profile: Profile::Infiniband, plan, verify: false };
    notices(&bench, &["one-sided: plain", "handles: many"]);
}

/// Ranks that believe in different options.
struct Disagreeing;

impl Bench for Disagreeing {
    fn name(&self) -> String {
        "ranks with and without windows".into()
    }

    fn providers(&self, rank: u32) -> Result<Providers, String> {
        if rank == 0 { Reach.providers(rank) } else { Ok(Providers::default()) }
    }

    fn options(&self, options: FabricOptions) -> FabricOptions {
        Reach.options(options)
    }
}

/// Ranks that nothing connects.
struct Apart;

impl Bench for Apart {
    fn name(&self) -> String {
        "ranks without a link".into()
    }

    fn providers(&self, _rank: u32) -> Result<Providers, String> {
        Ok(Providers::default())
    }

    fn options(&self, options: FabricOptions) -> FabricOptions {
        FabricOptions { windows: false, ..options }
    }
}

#[test]
fn the_suite_notices_worlds_that_do_not_come_about() {
    notices(&Disagreeing, &["messages: zero", "windows: zeroed"]);
    notices(&Apart, &["messages: zero", "one-sided: plain", "liveness: a death ends a receive", "regroup: twice"]);
}
