//! Programs that share a device of which there is one, and which their agents own: in software, as narrow as the narrowest hardware.

use std::process::Command;

use serde_json::Value;

use crate::cluster_run::Cluster;
use crate::support::{FULMEN, Running, fulmen, start, wait_until, wait_until_settled};

const DEVICE: &str = "thunderbolt-strict";
/// A bench that is over soon, also where there are more ranks and agents that look than processors.
const SHORT: [&str; 8] = ["--max", "64KiB", "--factor", "16", "--samples", "3", "--time-budget", "0.05"];

/// Two nodes with three slots each, which own such a device each.
struct Owners(Cluster);

impl Owners {
    fn up() -> Owners {
        Owners(Cluster::up_with(&["--nodes", "2", "--slots", "3", "--devices", DEVICE]))
    }

    fn node(&self, number: u32) -> String {
        self.0.state.join(format!("node-{number}")).to_str().unwrap().to_owned()
    }

    /// A rank on each node: so many slots of the first are held, so that it has one that is free.
    fn bench(&self, held: usize, args: &[&str]) -> Running {
        let slots = held.to_string();
        let before = self.0.taken();
        let hold = ["spawn", "--node", "n-1", "--slots", &slots];
        let holder = self.0.start(&hold, &["--", "/bin/sh", "-c", "echo on; exec sleep 1000"]);
        holder.wait_for("on", 1);
        wait_until("the slots to be held", || self.0.taken() == [before[0] + held as u64, before[1]]);
        let bench = ["bench", "all-reduce", "--cluster", "-n", "2", "--device", DEVICE, "--min", "8"];
        let running = self.0.start(&bench, args);
        running.wait_for("2 hosts", 1);
        holder.send(rustix::process::Signal::TERM);
        drop(holder.end());
        wait_until("the slots to be free again", || self.0.taken()[0] <= before[0] + 1);
        running
    }

    /// What a node's agent tells of its device.
    fn device(&self, number: u32) -> Value {
        let ended = fulmen(&["status", "--json", "--state", &self.node(number)]).end();
        let status: Value = serde_json::from_str(&ended.out).unwrap();
        status["devices"][0].clone()
    }

    fn pairs(&self) -> [u64; 2] {
        [1, 2].map(|node| self.device(node)["pairs"].as_u64().unwrap())
    }
}

/// The device has three queue pairs, all of which lead from one agent to the other. Each rank has two of its own.
#[test]
fn programs_share_a_device_of_three_queue_pairs() {
    let cluster = Owners::up();
    assert_eq!(cluster.pairs(), [0, 0]);
    let mut listed = Command::new("/usr/bin/env");
    listed.args([format!("FULMEN_STATE={}", cluster.node(1)).as_str(), FULMEN, "devices"]);
    let listed = start(listed).end();
    assert!(listed.out.contains(&format!("attached {DEVICE}")), "{}", listed.out);
    let long = ["--max", "8", "--samples", "1000000", "--time-budget", "1000"];
    let first = cluster.bench(2, &long);
    wait_until("the first program's queue pairs", || cluster.pairs() == [2, 2]);
    let short = cluster.bench(1, &SHORT).end();
    assert_eq!(short.code, Some(0), "{}", short.err);
    wait_until("its slots to be free", || cluster.0.taken() == [1, 1]);
    let second = cluster.bench(1, &long);
    wait_until("both programs' queue pairs", || cluster.pairs() == [4, 4]);
    assert_eq!([1, 2].map(|node| cluster.device(node)["trunks"].as_u64()), [Some(1); 2]);
    // Killed with all its ranks, and nothing of it is left.
    drop(second);
    wait_until("the queue pairs to be given back", || cluster.pairs() == [2, 2]);
    drop(first);
    wait_until("all queue pairs to be given back", || cluster.pairs() == [0, 0]);
    assert!(cluster.device(1)["sent_bytes"].as_u64() > Some(0));
    cluster.0.down();
}

#[test]
fn an_agent_that_comes_back_finds_the_others_again() {
    let cluster = Owners::up();
    let bench = || cluster.bench(2, &SHORT).end();
    let before = bench();
    assert_eq!(before.code, Some(0), "{}", before.err);
    let state = cluster.node(2);
    assert_eq!(fulmen(&["down", "--state", &state]).end().code, Some(0));
    let mut back = fulmen(&["up", "--devices", DEVICE, "--slots", "3", "--state", &state]);
    assert_eq!(back.wait_exit().code(), Some(0), "{}", back.wait_for_message(""));
    wait_until_settled(&cluster.0.state);
    let after = bench();
    assert_eq!(after.code, Some(0), "{}", after.err);
    cluster.0.down();
    back.wait_gone();
}

#[test]
fn devices_that_are_not_there_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let state = place.path().to_str().unwrap();
    let bad = fulmen(&["up", "--devices", "thunderbolt,,x", "--state", state]).end();
    assert_eq!(bad.code, Some(2));
    assert!(bad.err.contains("commas"), "{}", bad.err);
    let missing = fulmen(&["up", "--devices", "rdma_en99", "--state", state]).end();
    assert_ne!(missing.code, Some(0));
    assert!(missing.err.contains("the agent cannot own rdma_en99"), "{}", missing.err);
}
