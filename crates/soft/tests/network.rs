//! Both profiles keep the promises of the verbs between hosts, which two devices of this process are made to be.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use fulmen_reach::Node;
use fulmen_soft::{NetworkOptions, Profile, SoftDevice, SoftOptions};
use fulmen_verbs::conformance::{Bench, Verdict, run_some};
use fulmen_verbs::{Device, VerbsError};

const V4: &str = "127.0.0.1:0";
const V6: &str = "[::1]:0";

/// Two devices on two hosts, and how they reach each other.
struct Hosts {
    profile: Profile,
    listen: &'static str,
    recv_patience: Duration,
}

/// A host that no other device is on.
fn host() -> [u8; 16] {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    [NEXT.fetch_add(1, Ordering::Relaxed); 16]
}

impl Hosts {
    fn new(profile: Profile, listen: &'static str) -> Hosts {
        Hosts { profile, listen, recv_patience: Duration::ZERO }
    }

    fn open(&self) -> Arc<dyn Device> {
        let listen: SocketAddr = self.listen.parse().expect("an address");
        let mut network = NetworkOptions::new(listen);
        network.host = Some(host());
        let mut options = SoftOptions::new(self.profile);
        options.network = Some(network);
        options.recv_patience = self.recv_patience;
        SoftDevice::open_as(&Node::open().expect("a node opens"), options).expect("a device opens")
    }

    /// All cases but those of datagrams, which stay on their host: an address handle to another one is refused.
    fn check(&self) {
        let name = self.name();
        let wanted = std::env::var("FULMEN_TEST_CASE").unwrap_or_default();
        let report =
            run_some(self, &|case| !case.starts_with("datagrams: ") && case.contains(&wanted), &mut |case, verdict| {
                match verdict {
                    Verdict::Passed => println!("{name}: {case} ... ok"),
                    Verdict::Failed(how) => println!("{name}: {case} ... FAILED: {how}"),
                    Verdict::Skipped(missing) => println!("{name}: {case} ... skipped: no {missing}"),
                }
            });
        report.assert_passed();
    }
}

impl Bench for Hosts {
    fn name(&self) -> String {
        format!("soft {} between hosts, {}", self.profile, self.listen)
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
    Hosts::new(Profile::Infiniband, V6).check();
}

/// As a device of the drop-in library is.
#[test]
fn infiniband_between_hosts_with_patience() {
    Hosts { recv_patience: Duration::from_secs(1), ..Hosts::new(Profile::Infiniband, V4) }.check();
}

#[test]
fn thunderbolt_between_hosts() {
    Hosts::new(Profile::Thunderbolt, V4).check();
}
