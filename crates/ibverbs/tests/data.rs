//! The data path as programs meet it: programs in C, compiled here, run over the library as two processes.
#![cfg(target_os = "linux")]

mod common;

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

use common::{library, over_library, run, wait};
use fulmen_testbed::reserve_port;

#[test]
fn messages_arrive_as_they_were_sent() {
    run("messages");
}

#[test]
fn failures_are_told_by_completions() {
    run("failures");
}

#[test]
fn rules_are_kept_by_error_numbers() {
    run("rules");
}

#[test]
fn channels_tell_of_completions() {
    run("events");
}

#[test]
fn calls_post_and_poll_as_lists_do() {
    run("extended");
}

#[test]
fn queue_pairs_share_a_receive_queue() {
    run("shared");
}

#[test]
fn datagrams_find_their_way_and_back() {
    run("datagrams");
}

#[test]
fn an_overflow_is_told() {
    run("overflow");
}

/// Runs one of the programs of Debian's `ibverbs-utils` with itself.
fn pingpong(name: &str, arguments: &[&str]) {
    let program = Path::new("/usr/bin").join(name);
    if !program.is_file() {
        println!("SKIPPED: {name} {arguments:?}: it is not installed (apt install ibverbs-utils)");
        return;
    }
    // With several queue pairs, it ends as soon as it has counted enough of all of them, while sends are under way. One that
    // gets no processor for the half second until these fail sees its last successes and the failure at once, and gives up.
    let tries = if name == "ibv_srq_pingpong" { 3 } else { 1 };
    let cut_off = |said: &String| said.contains("transport retry counter exceeded");
    for last in (0..tries).rev() {
        match try_pingpong(name, &program, arguments) {
            Ok(()) => return,
            Err(said) if last > 0 && cut_off(&said) => println!("again, since its peer was done first: {said}"),
            Err(said) => panic!("{said}"),
        }
    }
}

fn try_pingpong(name: &str, program: &Path, arguments: &[&str]) -> Result<(), String> {
    let folder = library();
    // The programs do not mind that it is in use.
    let (_reserved, address) = reserve_port((Ipv4Addr::LOCALHOST, 0).into()).expect("loopback");
    let port = address.port().to_string();
    let start = |log: &Path, host: Option<&str>| {
        let mut command = over_library(program, folder.path());
        let file = fs::File::create(log).expect("a file");
        command.args(["-p", &port]).args(arguments).args(host).stderr(file.try_clone().expect("a file")).stdout(file);
        command.spawn().expect("the program starts")
    };
    let (server_log, client_log) = (folder.path().join("server"), folder.path().join("client"));
    let mut server = start(&server_log, None);
    // The client does not wait for a server that does not listen yet.
    let mut client = loop {
        assert!(server.try_wait().expect("a child").is_none(), "{}", fs::read_to_string(&server_log).unwrap());
        if listens(&port) {
            break start(&client_log, Some("127.0.0.1"));
        }
        thread::sleep(Duration::from_millis(5));
    };
    let (client, server) = (wait(&mut client, name), wait(&mut server, name));
    let logs = [server_log, client_log].map(|log| fs::read_to_string(log).unwrap_or_default());
    match client.success() && server.success() {
        true => Ok(()),
        false => Err(format!("{name} {arguments:?}: {client}, {server}\n{}", logs.join("\n"))),
    }
}

/// Whether somebody listens on a port, as the kernel's own table says: nobody is disturbed.
fn listens(port: &str) -> bool {
    let port = format!(":{:04X} ", port.parse::<u16>().expect("a port"));
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let table = fs::read_to_string(table).unwrap_or_default();
        table.lines().any(|line| line.contains(&port) && line.contains(" 0A "))
    })
}

#[test]
fn debians_pingpongs_run() {
    pingpong("ibv_rc_pingpong", &["-t"]);
    for name in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        let mut cases: Vec<&[&str]> = vec![&[], &["-e"], &["-g", "0", "-c"]];
        // Datagrams are no longer than a frame.
        if name != "ibv_ud_pingpong" {
            cases.push(&["-e", "-c", "-s", "1048576", "-n", "100"]);
        }
        for case in cases {
            pingpong(name, case);
        }
    }
}
