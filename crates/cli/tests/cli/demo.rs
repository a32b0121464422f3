//! `fulmen demo`: it verifies what it claims, and does not claim what it could not verify.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{fulmen, wait_until};

#[test]
fn it_ends_with_verified() {
    let ended = fulmen(&["demo"]).end();
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{}", ended.out);
    assert!(ended.out.starts_with("fulmen demo: 4 processes"), "{}", ended.out);
    let lines: Vec<Vec<&str>> = ended.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(*lines.last().unwrap(), ["verdict", "verified"], "{}", ended.out);
    for part in ["held out", "equal on 4 of 4 ranks, and those of a training in one process", "memory's limit", "moved"]
    {
        assert!(ended.out.contains(part), "{part} in {}", ended.out);
    }
}

#[test]
fn its_numbers_are_those_of_the_data() {
    let ended = fulmen(&["demo", "--nodes", "1", "--json"]).end();
    assert_eq!((ended.code, ended.err.as_str(), ended.out.lines().count()), (Some(0), "", 1), "{}", ended.out);
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((&report["verified"], &report["problems"]), (&Value::Bool(true), &Value::Array(Vec::new())));
    assert_eq!(
        (&report["train_rows"], &report["held_out_rows"], &report["ranks"]),
        (&1437.into(), &360.into(), &1.into())
    );
    assert!(report["accuracy"].as_f64().unwrap() > 0.95 && report["majority"].as_f64().unwrap() < 0.15, "{report}");
    assert_eq!(report["all_reduces_of_ranks"], Value::Array(vec![report["steps"].clone()]));
}

#[test]
fn it_ends_with_verified_over_devices() {
    for profile in ["infiniband", "thunderbolt"] {
        let ended = fulmen(&["demo", "--nodes", "2", "--profile", profile]).end();
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{}", ended.out);
        assert!(ended.out.contains(&format!("over the software {profile} device")), "{}", ended.out);
        assert!(ended.out.ends_with("verified\n"), "{}", ended.out);
    }
}

#[test]
fn a_killed_process_is_no_success() {
    // Whoever looks for the processes may be so slow that the demo is over: then the next one is tried.
    for _ in 0..20 {
        let run = fulmen(&["demo", "--nodes", "3"]);
        // The command lines of supervisors begin otherwise. One that has worked for a while is in the midst of it.
        let rank =
            |(pid, command): (Pid, String)| (command.trim_end() == "fulmen __demo" && ticks(pid) >= 5).then_some(pid);
        wait_until("a process at work, or the end", || {
            let processes = run.processes();
            processes.is_empty() || processes.into_iter().any(|process| rank(process).is_some())
        });
        let victim = run.processes().into_iter().find_map(rank);
        let killed = victim.is_some_and(|victim| kill_process(victim, Signal::KILL).is_ok());
        let ended = run.end();
        if !killed || ended.code == Some(0) {
            continue;
        }
        assert_eq!(ended.code, Some(137), "{}{}", ended.out, ended.err);
        assert!(ended.out.lines().last().unwrap().contains("verdict    failed: "), "{}", ended.out);
        assert!(ended.err.contains("failed first: killed by SIGKILL"), "{}", ended.err);
        return;
    }
    panic!("no demo of 20 was hit");
}

/// The processor time that a process has taken, in hundredths of a second.
fn ticks(pid: Pid) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let times = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(2);
    times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

#[test]
fn impossible_demos_are_refused() {
    for (nodes, part) in [("0", "1..=64"), ("65", "1..=64"), ("-1", "1..=64"), ("four", "four")] {
        let ended = fulmen(&["demo", "--nodes", nodes]).end();
        assert_eq!((ended.code, ended.out.as_str(), ended.err.lines().count()), (Some(2), "", 1), "{}", ended.err);
        assert!(ended.err.contains(part), "{}", ended.err);
    }
}
