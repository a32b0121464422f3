use std::env;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;

use fulmen_testbed::{Bed, Host, Link, Net};

use crate::common::{LONG, ROLE, own, role, until};

/// The role of a process that a test starts on a host. Nothing when it runs as a test.
#[test]
fn a_process() {
    let Ok(role) = env::var(ROLE) else { return };
    assert_eq!(role, "host id");
    println!("\nhost id {:x?}", fulmen_reach::this_host().unwrap());
}

fn says(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn host_id(command: Command) -> String {
    let mut command = role(command, "hosts::a_process", "host id");
    let said = says(&mut command);
    said.lines().find(|line| line.starts_with("host id ")).unwrap_or_else(|| panic!("{said}")).to_owned()
}

#[test]
fn hosts_are_apart() {
    let Some(bed) = Bed::or_skip("hosts that are apart") else { return };
    let hosts = bed.hosts(3);
    let mut ids: Vec<String> = hosts.iter().map(|host| host_id(host.command(own()))).collect();
    assert_eq!(host_id(hosts[1].command(own())), ids[1]);
    let mut chosen = Command::new(own());
    chosen.env_remove("FULMEN_HOST_ID");
    ids.push(host_id(chosen));
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4, "three hosts and this one: {ids:?}");
    for (host, name) in hosts.iter().zip(["a", "b", "c"]) {
        assert_eq!(host.name(), name);
        assert_eq!(says(&mut host.command("hostname")).trim(), name);
        // No interface but the loopback.
        let devices = says(host.command("ip").args(["-oneline", "link"]));
        assert!(devices.lines().count() == 1 && devices.contains("LOOPBACK,UP"), "{devices}");
    }
    // Each has its own loopback, and this one is none of them.
    let listener = hosts[0].run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    assert!(hosts[0].run(|| TcpStream::connect(address)).is_ok());
    for host in &hosts[1..] {
        let refused = host.run(|| TcpStream::connect(address)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    }
}

/// Bytes that depend on their place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ (at / 251) as u8).collect()
}

/// Sends so many bytes over TCP and back.
pub fn echoes(net: &Net, from: &Host, to: &Host, address: IpAddr, len: usize) {
    let listener = to.run(|| TcpListener::bind((address, 0))).unwrap();
    let sent = pattern(len);
    // The listener's queue takes it, whenever it is accepted.
    let stream = from.run(|| TcpStream::connect(listener.local_addr().unwrap())).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (stream, peer) = listener.accept().unwrap();
            assert!([net.address(from), net.address6(from)].contains(&peer.ip()));
            std::io::copy(&mut &stream, &mut &stream).unwrap();
        });
        scope.spawn(|| {
            (&stream).write_all(&sent).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut come = Vec::new();
        (&stream).read_to_end(&mut come).unwrap();
        assert!(come == sent, "{} of {len} bytes came, or others", come.len());
    });
}

#[test]
fn every_net_joins_its_hosts_by_both_versions_of_ip() {
    let Some(bed) = Bed::or_skip("nets") else { return };
    let hosts = bed.hosts(4);
    let nets = [
        bed.cable(&hosts[0], &hosts[1], Link::new()),
        bed.cable(&hosts[1], &hosts[0], Link::new()),
        bed.switch(&hosts, Link::new()),
        bed.direct(&hosts[..2]),
        bed.direct(&hosts),
    ];
    for net in &nets {
        let members: Vec<&Host> = net.hosts().collect();
        for (from, to) in members.iter().flat_map(|from| members.iter().map(move |to| (*from, *to))) {
            if from != to {
                echoes(net, from, to, net.address(to), 100_000);
                echoes(net, from, to, net.address6(to), 1000);
            }
        }
    }
    let devices: Vec<&str> = nets.iter().map(|net| net.device(&hosts[0])).collect();
    assert_eq!(devices, ["eth1", "eth2", "eth3", "eth4", "eth5"]);
}

#[test]
fn all_that_runs_on_a_host_can_be_stopped_and_killed() {
    let Some(bed) = Bed::or_skip("the end of a host's processes") else { return };
    let (a, b) = (bed.host("a"), bed.host("b"));
    // A daemon, whose parent is gone.
    let script = "(setsid sleep 1000 </dev/null >/dev/null 2>&1 &) ; sleep 1000";
    let mut children = [&a, &b].map(|host| host.command("sh").args(["-c", script]).spawn().unwrap());
    let names = |host: &Host| {
        let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let mut names: Vec<String> = host.processes().into_iter().map(name).collect();
        names.sort();
        names.concat()
    };
    until("both run", || [&a, &b].iter().all(|host| names(host) == "sh\nsleep\nsleep\n"));
    let state = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().chars().next().unwrap()
    };
    assert_eq!(a.stop_all(), 3);
    assert!(a.processes().into_iter().all(|pid| state(pid) == 'T'));
    assert_eq!(a.cont_all(), 3);
    until("all go on", || a.processes().into_iter().all(|pid| state(pid) == 'S'));
    assert_eq!(a.kill_all(), 3);
    assert_eq!((a.processes().len(), b.processes().len(), a.kill_all()), (0, 3, 0));
    assert!(!children[0].wait().unwrap().success());
    // The host is still one.
    assert!(a.command("true").stdin(Stdio::null()).status().unwrap().success());
    drop(bed);
    assert!(!children[1].wait().unwrap().success());
}
