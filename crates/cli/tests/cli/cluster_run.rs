//! `fulmen run --cluster`: ranks on the nodes of a cluster that was started together.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Ended, FULMEN, Running, fulmen, wait_until, wait_until_settled};

pub struct Cluster {
    _place: TempDir,
    pub state: PathBuf,
    up: Running,
}

/// The nodes are in the background: a test that fails does not leave them there.
impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = Command::new(FULMEN).args(["down", "--state"]).arg(&self.state).output();
    }
}

impl Cluster {
    /// Three nodes with two slots each.
    fn up() -> Cluster {
        Cluster::up_with(&["--nodes", "3", "--slots", "2"])
    }

    /// Nodes whose names are n-1 and so on.
    pub fn up_with(options: &[&str]) -> Cluster {
        let place = tempfile::tempdir().unwrap();
        let state = place.path().join("state");
        let named = ["up", "--name", "n", "--state", state.to_str().unwrap()];
        let mut up = fulmen(&[&named, options].concat());
        assert_eq!(up.wait_exit().code(), Some(0), "{}", up.wait_for_message(""));
        let cluster = Cluster { _place: place, state, up };
        wait_until_settled(&cluster.state);
        cluster
    }

    pub fn start(&self, command: &[&str], args: &[&str]) -> Running {
        fulmen(&[command, &["--state", self.state.to_str().unwrap()], args].concat())
    }

    fn run(&self, args: &[&str], script: &str) -> Running {
        self.start(&["run", "--cluster"], &[args, &["--", "/bin/sh", "-c", script]].concat())
    }

    /// Slots that are taken, by node.
    pub fn taken(&self) -> Vec<u64> {
        let status: Value = serde_json::from_str(&self.start(&["status", "--json"], &[]).end().out).unwrap();
        let nodes = status["cluster"]["nodes"].as_array().unwrap();
        nodes.iter().map(|node| node["slots_taken"].as_u64().unwrap()).collect()
    }

    pub fn down(self) {
        let down: Ended = self.start(&["down"], &[]).end();
        assert_eq!((down.code, &*down.err), (Some(0), ""));
        self.up.wait_gone();
    }
}

#[test]
fn ranks_are_placed_by_slots_and_programs_run_side_by_side() {
    let cluster = Cluster::up();
    let all = cluster.run(&[], "echo rank $FULMEN_RANK").end();
    assert_eq!((all.code, &*all.err), (Some(0), ""));
    let expected: Vec<String> = (0..6).map(|rank| format!("[{rank}] rank {rank}")).collect();
    assert_eq!(all.sorted(), expected);
    // At once: the slots are free when the command has ended.
    assert_eq!(cluster.run(&["-n", "6"], "true").end().code, Some(0));
    wait_until("slots to be free", || cluster.taken() == [0, 0, 0]);

    let goes_on = "echo on; exec sleep 1000";
    let first = cluster.run(&["-n", "3"], goes_on);
    first.wait_for("on", 3);
    wait_until("slots to be taken", || cluster.taken() == [2, 1, 0]);
    let second = cluster.run(&["-n", "2"], goes_on);
    second.wait_for("on", 2);
    wait_until("more to be taken", || cluster.taken() == [2, 2, 1]);
    let refused = cluster.run(&["-n", "2"], goes_on).end();
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("6 slots, of which 1 are free, and -n asks for 2"), "{}", refused.err);
    // A rank that fails ends its program, not the cluster, and no other program.
    let fails = cluster.run(&["-n", "1"], "exit 7").end();
    assert_eq!(fails.code, Some(7));
    // Whoever kills the launcher ends its ranks, and frees the slots.
    drop(second);
    wait_until("its slots to be free", || cluster.taken() == [2, 1, 0]);
    drop(first);
    wait_until("all slots to be free", || cluster.taken() == [0, 0, 0]);
    cluster.down();
}

#[test]
fn ranks_of_several_nodes_work_together() {
    let cluster = Cluster::up();
    let bench = ["bench", "all-reduce", "--cluster", "-n", "6", "--min", "8", "--max", "64KiB", "--samples", "3"];
    let done = cluster.start(&bench, &[]).end();
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.out.contains("all-reduce"), "{}", done.out);
    cluster.down();
}
