//! The suite over hosts of their own: network namespaces, joined by cables.

use std::net::IpAddr;
use std::time::Duration;

use fulmen_fabric::conformance::{At, Bench, run_some};
use fulmen_fabric::{FabricOptions, Providers};
use fulmen_soft::Profile;
use fulmen_testbed::{Bed, Host, Link, Net};
use fulmen_trust::Authority;

/// A host for each rank, and one at which they meet.
struct Namespaces {
    profile: Profile,
    /// What seals it.
    authority: Option<Authority>,
    is_v6: bool,
    hosts: Vec<Host>,
    meeting: Host,
    net: Net,
    // Goes last.
    _bed: Bed,
}

/// Ranks of the largest world.
const RANKS: usize = 6;

impl Namespaces {
    /// None, loudly, if this machine can have no hosts.
    fn or_skip(what: &str, profile: Profile, link: Link) -> Option<Namespaces> {
        let bed = Bed::or_skip(what)?;
        let (hosts, meeting) = (bed.hosts(RANKS), bed.host("meeting"));
        let all: Vec<Host> = hosts.iter().chain([&meeting]).cloned().collect();
        let net = bed.switch(&all, link);
        Some(Namespaces { profile, authority: None, is_v6: false, hosts, meeting, net, _bed: bed })
    }

    fn address(&self, host: &Host) -> IpAddr {
        if self.is_v6 { self.net.address6(host) } else { self.net.address(host) }
    }

    /// Runs the cases of these themes, or all in the full tier.
    fn run(&self, themes: &[&str]) {
        let full = fulmen_testbed::is_full();
        let wanted = |case: &str| full || themes.iter().any(|theme| case.starts_with(theme));
        let name = self.name();
        let report = run_some(self, &wanted, &mut |case, verdict| println!("{name}: {case}: {verdict:?}"));
        report.assert_passed();
        // It went over the cables, and not by another way.
        let crossed = self.net.counts(&self.hosts[0], &self.hosts[1]).delivered;
        assert!(crossed > 100, "{crossed} frames");
        let missing = report.skipped.iter().filter(|(_, missing)| missing != "windows");
        assert_eq!(missing.count(), 0, "{:?}", report.skipped);
    }
}

impl Bench for Namespaces {
    fn name(&self) -> String {
        format!("{} hosts {}", if self.authority.is_some() { "sealed" } else { "plain" }, self.profile)
    }

    fn providers(&self, rank: u32) -> Result<Providers, String> {
        crate::over_tcp(self.profile, self.authority.as_ref(), rank, self.address(&self.hosts[rank as usize]), false)
    }

    fn options(&self, options: FabricOptions) -> FabricOptions {
        FabricOptions { windows: false, ..options }
    }

    fn meets_at(&self) -> IpAddr {
        self.address(&self.meeting)
    }

    fn at(&self, place: At, work: &mut (dyn FnMut() + Send)) {
        match place {
            At::Meeting => self.meeting.run(work),
            At::Rank(rank) => self.hosts[rank as usize].run(work),
        }
    }
}

#[test]
fn hosts_infiniband() {
    if let Some(bench) = Namespaces::or_skip("the suite over hosts", Profile::Infiniband, Link::new()) {
        bench.run(&["messages", "one-sided", "regroup"]);
    }
}

#[test]
fn sealed_hosts_thunderbolt_by_ipv6() {
    let Some(bench) = Namespaces::or_skip("the suite over hosts by IPv6", Profile::Thunderbolt, Link::new()) else {
        return;
    };
    let authority = Some(Authority::from_secret(&[7; 32]).unwrap());
    Namespaces { authority, is_v6: true, ..bench }.run(&["order", "keys", "liveness"]);
}

/// As far from one another as cities.
#[test]
fn distant_hosts() {
    let link = Link::new().delay(Duration::from_millis(5)).jitter(Duration::from_millis(1));
    if let Some(bench) = Namespaces::or_skip("the suite over distant hosts", Profile::Infiniband, link) {
        bench.run(&["messages: by rendezvous", "one-sided: plain", "regroup: the survivors"]);
    }
}

/// Frames are lost, come twice or are overtaken.
#[test]
fn lossy_hosts() {
    let link = Link::new().delay(Duration::from_millis(1)).loss(0.01).duplicate(0.01).reorder(0.01);
    if let Some(bench) = Namespaces::or_skip("the suite over lossy networks", Profile::Thunderbolt, link) {
        bench.run(&["messages: by rendezvous", "one-sided: plain", "regroup: the survivors"]);
    }
}
