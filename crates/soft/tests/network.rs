//! Both profiles keep the promises of the verbs between hosts, which two devices of this process are made to be.

#[path = "network/between.rs"]
mod between;
#[path = "network/dormant.rs"]
mod dormant;
#[path = "network/side.rs"]
mod side;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fulmen_reach::Node;
use fulmen_soft::{NetworkOptions, Profile, SoftDevice, SoftOptions};
use fulmen_trust::{Authority, Identity};
use fulmen_verbs::conformance::{Bench, Verdict, run_some};
use fulmen_verbs::{Device, VerbsError};

const V4: &str = "127.0.0.1:0";
const V6: &str = "[::1]:0";

/// Two devices on two hosts, and how they reach each other.
struct Hosts {
    profile: Profile,
    listen: &'static str,
    recv_patience: Duration,
    seal: Option<Identity>,
    on_first_use: bool,
}

/// A host that no other device is on.
fn host() -> [u8; 16] {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    u128::from(NEXT.fetch_add(1, Ordering::Relaxed)).to_le_bytes()
}

impl Hosts {
    fn new(profile: Profile, listen: &'static str) -> Hosts {
        Hosts { profile, listen, recv_patience: Duration::ZERO, seal: None, on_first_use: false }
    }

    /// A device on a host of its own.
    fn open(&self) -> Arc<dyn Device> {
        self.open_on(host())
    }

    fn open_on(&self, host: [u8; 16]) -> Arc<dyn Device> {
        fulmen_testbed::raise_descriptors();
        let listen: SocketAddr = self.listen.parse().expect("an address");
        let mut network = NetworkOptions::new(listen);
        network.host = Some(host);
        network.seal = self.seal.clone();
        network.on_first_use = self.on_first_use;
        let mut options = SoftOptions::new(self.profile);
        options.network = Some(network);
        options.recv_patience = self.recv_patience;
        SoftDevice::open_as(&Node::open().expect("a node opens"), options).expect("a device opens")
    }

    /// All cases but those of datagrams, which stay on their host: an address handle to another one is refused.
    fn check(&self) {
        self.check_some(&[]);
    }

    /// Cases of these themes, or all of them in the tier that takes its time.
    fn check_some(&self, themes: &[&str]) {
        let name = self.name();
        let all = themes.is_empty() || fulmen_testbed::is_full();
        let wanted = |case: &str| {
            let of = |theme: &&str| case.starts_with(*theme);
            !case.starts_with("datagrams: ") && (all || themes.iter().any(of))
        };
        let mut told = |case: &str, verdict: &Verdict| match verdict {
            Verdict::Passed => println!("{name}: {case} ... ok"),
            Verdict::Failed(how) => println!("{name}: {case} ... FAILED: {how}"),
            Verdict::Skipped(missing) => println!("{name}: {case} ... skipped: no {missing}"),
        };
        run_some(self, &wanted, &mut told).assert_passed();
    }
}

impl Bench for Hosts {
    fn name(&self) -> String {
        let sealed = if self.seal.is_some() { ", sealed" } else { "" };
        let when = if self.on_first_use { ", on first use" } else { "" };
        format!("soft {} between hosts, {}{sealed}{when}", self.profile, self.listen)
    }

    fn pair(&self) -> Result<[Arc<dyn Device>; 2], VerbsError> {
        Ok([self.open(), self.open()])
    }
}

#[test]
fn infiniband_between_hosts() {
    Hosts::new(Profile::Infiniband, V4).check();
}

#[test]
fn infiniband_between_hosts_over_ipv6() {
    Hosts::new(Profile::Infiniband, V6).check_some(&["messages: ", "states: ", "lifetime: a peer"]);
}

/// As a device of the drop-in library is.
#[test]
fn infiniband_between_hosts_with_patience() {
    Hosts { recv_patience: Duration::from_secs(1), ..Hosts::new(Profile::Infiniband, V4) }.check_some(&[
        "receive: ",
        "shared receive: ",
        "events: ",
    ]);
}

#[test]
fn infiniband_between_hosts_sealed() {
    let authority = Authority::from_secret(&[7; 32]).expect("an authority");
    let seal = Some(authority.identity("a rank").expect("an identity"));
    Hosts { seal, ..Hosts::new(Profile::Infiniband, V4) }.check();
}

#[test]
fn thunderbolt_between_hosts() {
    Hosts::new(Profile::Thunderbolt, V4).check();
}

/// Whatever is promised once queue pairs are connected, without a connection until then.
#[test]
fn infiniband_between_hosts_on_first_use() {
    Hosts { on_first_use: true, ..Hosts::new(Profile::Infiniband, V4) }.check();
}

#[test]
fn thunderbolt_between_hosts_on_first_use() {
    Hosts { on_first_use: true, ..Hosts::new(Profile::Thunderbolt, V4) }.check_some(&["messages: ", "lifetime: "]);
}
