//! Machines that are well, and the form of the report.

use std::process::Command;

use serde_json::Value;

use crate::setup::{ROCE, Setup};

const NAMES: [&str; 24] = [
    "system",
    "options",
    "link file",
    "shared memory",
    "rdma",
    "library",
    "symbols",
    "devices",
    "device",
    "port",
    "link",
    "gid",
    "bridge",
    "limits",
    "memory lock",
    "gpus",
    "gpu memory",
    "single copy",
    "huge pages",
    "clock",
    "tcp",
    "coordinator",
    "version",
    "agent",
];

#[test]
fn a_machine_that_is_well_has_nothing_to_mend() {
    let Some(setup) = Setup::new(ROCE) else { return };
    let report = setup.report();
    report
        .ends("ok", 0)
        .says("system", "ok", &["Linux 6.12.0-test"], &[])
        .says("options", "ok", &["pool of", "s for an operation"], &[])
        .says("rdma", "ok", &["ib_uverbs", "mlx5_0", "uverbs0"], &[])
        .says("library", "ok", &["libfakeverbs.so"], &[])
        .says("symbols", "ok", &["all that are needed"], &[])
        .says("devices", "ok", &["mlx5_0 (InfiniBand)"], &[])
        .says("device", "ok", &["mlx5_0", "16.35.1", "RC", "UC"], &[])
        .says("port", "ok", &["port 1 of mlx5_0", "active"], &[])
        .says("link", "ok", &["Ethernet", "Gb/s", "MTU 1024"], &[])
        .says("gid", "ok", &["192.0.2.1", "RoCE v2", "first that holds an IPv4 address"], &[])
        .says("bridge", "ok", &["eth7"], &[])
        .says("limits", "ok", &["1 peer", "2 of 1024 queue pairs"], &[]);
    for name in NAMES {
        assert!(report.checks().iter().any(|check| check["name"] == name), "{name}");
    }
    assert_eq!(report.whole["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn people_get_one_line_a_check() {
    let Some(setup) = Setup::new(ROCE) else { return };
    let (text, code) = setup.text();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.ends_with("all is well\n"), "{text}");
    assert_eq!(text.lines().count(), setup.report().checks().len() + 1, "{text}");
    let (text, code) = setup.file("proc/sys/kernel/yama/ptrace_scope", "3").text();
    assert_eq!(code, Some(1), "{text}");
    let lines: Vec<_> = text.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("warning")).expect("a warning");
    assert!(lines[at].contains("single copy") && lines[at].contains("ptrace_scope is 3"), "{text}");
    assert!(lines[at + 1].starts_with("         ") && lines[at + 1].contains("sysctl.d"), "{text}");
    assert!(text.ends_with("0 failures, 1 warning\n"), "{text}");
}

/// Whatever this machine is: the doctor ends, with the code that fits its verdict.
#[test]
fn the_machine_under_the_tests_is_looked_at() {
    let output = Command::new(env!("CARGO_BIN_EXE_fulmen")).args(["doctor", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let code = ["ok", "warning", "failure"].iter().position(|verdict| report["verdict"] == *verdict);
    assert_eq!(output.status.code(), code.map(|code| code as i32), "{report:#}");
    let names: Vec<_> = report["checks"].as_array().unwrap().iter().map(|check| &check["name"]).collect();
    for name in ["system", "library", "devices", "memory lock", "version"] {
        assert!(names.iter().any(|found| *found == name), "{name} in {names:?}");
    }
}

#[test]
fn bad_arguments_are_refused_in_one_line() {
    for arguments in [&["--peers", "0"][..], &["--peers", "many"], &["--patience", "0"], &["--jsom"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_fulmen")).arg("doctor").args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
        assert!(output.stdout.is_empty() && text.contains(arguments[0]), "{text}");
    }
}
