//! What may stand at the coordinator's address.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::thread;
use std::time::Duration;

use fulmen::parts::fabric::bootstrap::{Coordinator, Options, PROTOCOL_VERSION, Secret};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

use crate::setup::{Report, Setup};

const LIMIT: Duration = Duration::from_secs(60);

fn report(address: &str) -> Report {
    let setup = Setup::without_library().library(Path::new("/no/such/library"));
    setup.arguments(&["--coordinator", address]).report()
}

#[test]
fn an_address_of_this_machine_is_tried() {
    let report = report("127.0.0.1:0");
    report.says("coordinator", "ok", &["127.0.0.1:", "this machine's"], &[]);
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
    // Bound and not listening: nobody else can have the port, and it answers nobody.
    let bound = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&bound, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
    let address = SocketAddr::try_from(getsockname(&bound).unwrap()).unwrap();
    let report = report(&address.to_string());
    report.says("coordinator", "failure", &[&address.to_string(), "nobody listens"], &["rank 0", "firewall"]);
    report.ends("failure", 2);
}

#[test]
fn an_address_that_is_none_is_told() {
    report("nonsense").says("coordinator", "failure", &["nonsense"], &["10.0.0.1:29500"]).ends("failure", 2);
}
