//! Whatever way a test ends, its hosts are gone.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use fulmen_testbed::{Bed, Link};

use crate::common::{ROLE, own, role, until};

/// A test that has a bed with hosts, nets, a process and a daemon, and ends as its role says. Nothing when it runs as a test.
#[test]
fn a_test() {
    let Ok(role) = env::var(ROLE) else { return };
    let bed = Bed::new().unwrap();
    let hosts = bed.hosts(3);
    let nets = (bed.switch(&hosts, Link::new()), bed.direct(&hosts));
    let script = "(setsid sleep 1000 </dev/null >/dev/null 2>&1 &) ; trap '' TERM ; sleep 1000";
    let mut command = hosts[1].command("sh");
    let child = command.args(["-c", script]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("they run", || hosts[1].processes().len() == 3);
    // The harness has begun a line.
    print!("\nhosts");
    hosts.iter().for_each(|host| print!(" {}", host.namespace().display()));
    println!();
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
    match role.as_str() {
        "ends" => drop((nets, child)),
        "panics" => panic!("it was told to"),
        // While all of it stands.
        "exits" => std::process::exit(0),
        other => panic!("{other}"),
    }
}

fn start(as_what: &str) -> (Child, Vec<String>) {
    let mut command = role(Command::new(own()), "ends::a_test", as_what);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let hosts = loop {
        let line = lines.next().expect("it says where its hosts are").unwrap();
        if let Some(paths) = line.strip_prefix("hosts ") {
            break paths.split(' ').map(str::to_owned).collect();
        }
    };
    (child, hosts)
}

/// Ends such a test, and finds that nothing holds its namespaces: no process, no descriptor, no device, no guard.
fn leaves_nothing(as_what: &str, end: impl Fn(&mut Child)) {
    let Some(bed) = Bed::or_skip("what a test leaves") else { return };
    let watcher = bed.host("watcher");
    let (mut child, hosts) = start(as_what);
    // One end of a veth pair goes with the namespace of the other one.
    let ip = |arguments: String| watcher.command("ip").args(arguments.split(' ')).output().unwrap();
    for (at, path) in hosts.iter().enumerate() {
        let made = ip(format!("link add watch{at} type veth peer name watched netns {path}"));
        assert!(made.status.success(), "{made:?}");
    }
    let watches = || String::from_utf8(ip("-oneline link".into()).stdout).unwrap().matches("watch").count();
    assert!(watches() >= 3);
    end(&mut child);
    child.wait().unwrap();
    until("all of it is gone", || watches() == 0);
}

#[test]
fn a_test_that_ends_leaves_nothing() {
    leaves_nothing("ends", |child| writeln!(child.stdin.as_mut().unwrap(), "go").unwrap());
}

#[test]
fn a_test_that_panics_leaves_nothing() {
    leaves_nothing("panics", |child| writeln!(child.stdin.as_mut().unwrap(), "go").unwrap());
}

#[test]
fn a_test_that_exits_leaves_nothing() {
    leaves_nothing("exits", |child| writeln!(child.stdin.as_mut().unwrap(), "go").unwrap());
}

#[test]
fn a_test_that_is_killed_leaves_nothing() {
    leaves_nothing("killed", |child| child.kill().unwrap());
}
