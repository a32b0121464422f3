//! The connection manager as programs meet it: programs in C, compiled here, and those of Debian's packages.
#![cfg(target_os = "linux")]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

use common::{library, over_library, run_with, wait};

/// Runs a program of `tests/c` that uses the connection manager.
fn run(name: &str) {
    if !Path::new("/usr/include/rdma/rdma_cma.h").is_file() {
        println!("SKIPPED: {name}: there is no rdma/rdma_cma.h (apt install librdmacm-dev)");
        return;
    }
    run_with(name, &["-lrdmacm", "-libverbs"]);
}

#[test]
fn each_end_is_told_of_the_other() {
    run("cm_connect");
}

#[test]
fn datagrams_find_who_takes_them() {
    run("cm_datagrams");
}

#[test]
fn refusals_are_events_and_error_numbers() {
    run("cm_refusals");
}

#[test]
fn threads_that_wait_can_be_cancelled() {
    run("cancel");
}

#[test]
fn the_end_of_a_process_is_told() {
    run("cm_death");
}

/// A port on which nobody listens, among those that are not given to who names none. Tests that run at the same time have
/// different processes, or different offsets.
fn own_port(offset: u32) -> u16 {
    let port = 20000 + (std::process::id() * 16 + offset) % 10000;
    u16::try_from(port).expect("less than 30000")
}

/// Whether somebody listens on a port of the connection manager, as the kernel's table of sockets says.
fn listens(port: u16) -> bool {
    let table = fs::read_to_string("/proc/net/unix").expect("Linux has this table");
    table.lines().any(|line| {
        // The flags of one that accepts connections.
        line.contains(" 00010000 ") && line.contains("@fulmen-cm-") && line.ends_with(&format!("-{port}"))
    })
}

/// Runs both ends of a program of Debian's; both must end well.
fn pair(package: &str, port: u16, server: &[&str], client: &[&str]) {
    let number = port.to_string();
    pair_at(package, port, &["-p", &number], server, client);
}

/// The same, where the port is said otherwise.
fn pair_at(package: &str, port: u16, say: &[&str], server: &[&str], client: &[&str]) {
    let what = client.join(" ");
    let program = Path::new("/usr/bin").join(server[0]);
    if !program.is_file() {
        println!("SKIPPED: {what}: it is not installed (apt install {package})");
        return;
    }
    let folder = library();
    let start = |words: &[&str], log: &str| {
        let mut command = over_library(&Path::new("/usr/bin").join(words[0]), folder.path());
        let file = fs::File::create(folder.path().join(log)).expect("a file");
        command.args(&words[1..]).args(say).stderr(file.try_clone().expect("a file")).stdout(file);
        command.spawn().expect("the program starts")
    };
    let logs =
        || ["server", "client"].map(|log| fs::read_to_string(folder.path().join(log)).unwrap_or_default()).join("\n");
    let mut there = start(server, "server");
    let until = Instant::now() + Duration::from_secs(60);
    while !listens(port) {
        let ended = there.try_wait().expect("a child can be waited for");
        assert!(ended.is_none() && Instant::now() < until, "{what}: no server ({ended:?})\n{}", logs());
        thread::sleep(Duration::from_millis(5));
    }
    let here = wait(&mut start(client, "client"), &what);
    let there = wait(&mut there, server[0]);
    assert!(here.success() && there.success(), "{what}: client {here}, server {there}\n{}", logs());
    println!("{what}: fine");
}

#[test]
fn debians_rdmacm_programs_run() {
    let port = own_port(0);
    let many: &[&str] = &["rping", "-c", "-a", "127.0.0.1", "-C", "100", "-V", "-S", "65535"];
    pair("rdmacm-utils", port, &["rping", "-s", "-C", "100", "-V", "-S", "65535"], many);
    pair(
        "rdmacm-utils",
        port,
        &["ucmatose", "-c", "10", "-C", "10"],
        &["ucmatose", "-c", "10", "-C", "10", "-s", "127.0.0.1"],
    );
    pair("rdmacm-utils", port, &["ucmatose", "-m"], &["ucmatose", "-m", "-s", "127.0.0.1"]);
    // It has one port, and no option for another.
    pair_at("rdmacm-utils", 7174, &[], &["udaddy", "-c", "4"], &["udaddy", "-c", "4", "-s", "127.0.0.1"]);
    pair("rdmacm-utils", port, &["rdma_server"], &["rdma_client", "-s", "127.0.0.1"]);
}

#[test]
fn perftest_connects_by_it() {
    let port = own_port(1);
    for words in [
        &["ib_send_bw", "-R", "-n", "500"][..],
        &["ib_write_bw", "-R", "-n", "500", "-q", "4"],
        &["ib_read_lat", "-R", "-n", "500"],
        &["ib_atomic_bw", "-R", "-n", "500"],
        &["ib_send_lat", "-R", "-c", "UD", "-n", "500"],
    ] {
        let client: Vec<&str> = words.iter().copied().chain(["127.0.0.1"]).collect();
        pair("perftest", port, words, &client);
    }
}
