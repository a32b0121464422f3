//! Devices and limits that are too small for the links.

use crate::setup::{ROCE, Setup};

#[test]
fn there_are_too_few_queue_pairs() {
    let Some(setup) = Setup::new(&format!("{ROCE}max_qp=8\n")) else { return };
    setup.report().ends("ok", 0);
    let report = setup.arguments(&["--peers", "5"]).report();
    report.ends("failure", 2).alone("limits");
    report.says("limits", "failure", &["mlx5_0", "5 peers", "8 queue pairs", "10 are needed"], &["fewer ranks"]);
}

#[test]
fn there_are_too_few_registrations() {
    let Some(setup) = Setup::new(&format!("{ROCE}max_mr=1\n")) else { return };
    let report = setup.report();
    report.ends("failure", 2).alone("limits");
    report.says("limits", "failure", &["mlx5_0", "1 registrations where 2 are needed"], &["FULMEN_POOL"]);
}

#[test]
fn queues_hold_too_few_frames() {
    let devices = "device=rdma_en5\nlike=thunderbolt\nstate=active\nmax_qp_wr=32\n";
    let Some(setup) = Setup::new(devices) else { return };
    let report = setup.report();
    report.ends("failure", 2).alone("limits");
    report.says("limits", "failure", &["rdma_en5", "32 frames in a queue"], &["another program"]);
}

#[test]
fn too_little_memory_may_be_locked() {
    let Some(setup) = Setup::new(ROCE) else { return };
    let setup = setup.file("proc/self/status", "Name: x\nCapEff:\t0000000000000000").before("ulimit -l 64");
    let report = setup.report();
    report.ends("failure", 2).alone("memory lock");
    report.says("memory lock", "failure", &["64 KiB", "ulimit -l", "MiB locked"], &["unlimited", "FULMEN_POOL"]);
}

#[test]
fn a_small_pool_needs_little_locked_memory() {
    let Some(setup) = Setup::new(ROCE) else { return };
    let setup = setup.file("proc/self/status", "Name: x\nCapEff:\t0000000000000000").before("ulimit -l 4096");
    setup.variable("FULMEN_POOL", "1M").report().says("memory lock", "ok", &["4096 KiB"], &[]).ends("ok", 0);
}
