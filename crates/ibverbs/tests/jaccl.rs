//! MLX's JACCL is a program for Macs that must run unmodified. It is not packaged, so that a program in C makes the same
//! calls in the same order (`tests/c/jaccl.c`), with results that are checked.
#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};

use common::{compile, library, over_library, wait};

/// Runs so many ranks; all have to end well, and lint has next to nothing to say.
fn jaccl(ranks: usize, ring: bool) {
    let folder = library();
    let Some(program) = compile("jaccl", folder.path()) else { return };
    // Each pair of hosts has a cable of its own, as far as there are devices.
    let cell = |row: usize, column: usize| match (row, column) {
        _ if row == column => "null".to_owned(),
        _ => format!("\"rdma_en{}\"", 2 + (column + ranks - row - 1) % ranks % 3),
    };
    let row = |row| format!("[{}]", (0..ranks).map(|column| cell(row, column)).collect::<Vec<_>>().join(","));
    let devices = folder.path().join("devices.json");
    fs::write(&devices, format!("[{}]", (0..ranks).map(row).collect::<Vec<_>>().join(","))).expect("a file");
    // Of the loopback's addresses one of its own: elsewhere, others may take the port before the first rank listens there.
    let [.., high, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, high, low, (2 * ranks + usize::from(ring)) as u8);
    let coordinator = TcpListener::bind((host, 0)).expect("loopback").local_addr().expect("bound");
    let records = folder.path().join("records");
    let log = |rank: usize| folder.path().join(format!("log{rank}"));
    let start = |rank: usize| {
        let mut command = over_library(&program, folder.path());
        let file = fs::File::create(log(rank)).expect("a file");
        command.env("FULMEN_VERBS_PROFILE", "thunderbolt").env("FULMEN_LINT", "log");
        command.env("FULMEN_LINT_REPORT", &records).env("MLX_RANK", rank.to_string());
        command.env("MLX_IBV_DEVICES", &devices).env("MLX_JACCL_COORDINATOR", coordinator.to_string());
        if ring {
            command.env("MLX_JACCL_RING", "1");
        }
        command.stdout(file.try_clone().expect("a file")).stderr(file).spawn().expect("the program starts")
    };
    let mut children: Vec<_> = (0..ranks).map(start).collect();
    let ends: Vec<_> = children.iter_mut().map(|child| wait(child, "jaccl")).collect();
    let logs: Vec<_> = (0..ranks).map(|rank| fs::read_to_string(log(rank)).unwrap_or_default()).collect();
    assert!(ends.iter().all(|end| end.success()), "{ends:?}\n{}", logs.join("\n"));
    for (rank, log) in logs.iter().enumerate() {
        // Eight sizes, two buffers, one to send from and one to receive into: for each peer, and for a ring's two ways.
        // Two hosts have all of them on one device, which has a hundred.
        let count = if ring { 64 } else { 32 * (ranks - 1) + 64 };
        assert!(log.contains(&format!("rank {rank} of {ranks}: ")), "{log}");
        assert!(log.contains(&format!("with {count} registrations")), "{log}");
    }
    // The one thing that it may do wrong: it ends without a word from the peer after its last SEND.
    let records = fs::read_to_string(&records).unwrap_or_default();
    let others = records.lines().find(|line| !line.contains("\"completion-is-not-delivery\""));
    assert_eq!(others, None, "{records}");
}

#[test]
fn a_mesh_of_two() {
    jaccl(2, false);
}

#[test]
fn a_mesh_of_four() {
    jaccl(4, false);
}

#[test]
fn a_ring_of_two() {
    jaccl(2, true);
}

#[test]
fn a_ring_of_four() {
    jaccl(4, true);
}
