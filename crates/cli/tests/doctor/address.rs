//! What may stand at the coordinator's address.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use fulmen::parts::fabric::bootstrap::{Coordinator, Options, PROTOCOL_VERSION, Secret};
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

use crate::setup::{Report, Setup};

const LIMIT: Duration = Duration::from_secs(60);

fn report(address: &str) -> Report {
    let setup = Setup::without_library().library(Path::new("/no/such/library"));
    setup.arguments(&["--coordinator", address]).report()
}

/// A socket that has a port of its own and listens not.
fn bound(shared: bool) -> (OwnedFd, SocketAddr) {
    let bound = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    set_socket_reuseaddr(&bound, shared).unwrap();
    bind(&bound, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
    let address = SocketAddr::try_from(getsockname(&bound).unwrap()).unwrap();
    (bound, address)
}

#[test]
fn an_address_of_this_machine_is_tried() {
    // The port is kept for the doctor, which may bind it too, since neither minds and this one does not listen.
    let (_bound, address) = bound(true);
    let report = report(&address.to_string());
    report.says("coordinator", "ok", &[&address.to_string(), "this machine's"], &[]);
    report.says("version", "not-applicable", &["fulmen", env!("CARGO_PKG_VERSION")], &[]);
}

#[test]
fn a_coordinator_tells_its_version() {
    let address = "127.0.0.1:0".parse().unwrap();
    let coordinator = Coordinator::bind(address, 2, Secret::generate().unwrap(), Options::default()).unwrap();
    let serving = coordinator.serve().unwrap();
    let address = serving.local_addr().to_string();
    let report = report(&address);
    report.says("coordinator", "ok", &[&address], &[]);
    report.says("version", "ok", &[&address, &format!("version {PROTOCOL_VERSION}")], &[]);
}

/// Serves one connection with these bytes.
fn server(answer: Vec<u8>) -> (SocketAddr, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(&answer).unwrap();
        // Its end may come with a reset, for what was not read here or there.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    (address, serving)
}

#[test]
fn another_version_is_told() {
    let mut answer = b"FULM".to_vec();
    answer.extend(99_u16.to_le_bytes());
    answer.extend([0; 34]);
    let (address, serving) = server(answer);
    let report = report(&address.to_string());
    serving.join().unwrap();
    report
        .says("version", "failure", &["version 99", &address.to_string()], &["same version of fulmen"])
        .ends("failure", 2);
}

#[test]
fn another_program_has_the_port() {
    let (address, serving) = server(b"HTTP/1.1 200 OK\r\n".to_vec());
    let report = report(&address.to_string());
    serving.join().unwrap();
    report
        .says("coordinator", "failure", &[&address.to_string(), "HTTP"], &["another port", "ss -tlnp"])
        .ends("failure", 2);
}

#[test]
fn nobody_listens() {
    // Nobody else can have the port, and it answers nobody.
    let (_bound, address) = bound(false);
    let report = report(&address.to_string());
    report.says("coordinator", "failure", &[&address.to_string(), "nobody listens"], &["rank 0", "firewall"]);
    report.ends("failure", 2);
}

#[test]
fn an_address_that_is_none_is_told() {
    report("nonsense").says("coordinator", "failure", &["nonsense"], &["10.0.0.1:29500"]).ends("failure", 2);
}

#[test]
fn an_address_where_nobody_can_meet_is_told() {
    for (address, why) in [
        ("127.0.0.1:0", "port 0"),
        ("0.0.0.0:29500", "all addresses"),
        ("[::]:29500", "all addresses"),
        ("224.0.0.1:29500", "multicast"),
        ("[ff02::1]:29500", "multicast"),
    ] {
        let report = report(address);
        report.says("coordinator", "failure", &[address, why], &["10.0.0.1:29500", "rank 0", "port from 1"]);
        report.says("version", "not-applicable", &[], &[]).ends("failure", 2);
    }
}

#[test]
fn a_port_that_this_user_may_not_have_is_told() {
    const ADDRESS: &str = "127.0.0.1:1";
    // Whoever may have the port is to give up the right to it.
    const WITHOUT: &str = "setpriv --bounding-set -net_bind_service --inh-caps -net_bind_service";
    let skipped = |why: &str| eprintln!("SKIPPED: a port that this user may not have was not tried because {why}");
    let start = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    if start.trim() == "0" || start.trim() == "1" {
        return skipped("this system lets everybody have all ports");
    }
    let mut setup = Setup::without_library().library(Path::new("/no/such/library"));
    if !TcpListener::bind(ADDRESS).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
        let given_up = Command::new("/bin/sh").arg("-c").arg(format!("{WITHOUT} true 2>/dev/null")).status().unwrap();
        if !given_up.success() {
            return skipped("there is no setpriv that gives up the right to ports below 1024");
        }
        setup = setup.before(&format!("set -- {WITHOUT} \"$@\""));
    }
    let report = setup.arguments(&["--coordinator", ADDRESS]).report();
    report.says("coordinator", "failure", &[ADDRESS, "may not listen on port 1"], &["above 1023"]).ends("failure", 2);
}
