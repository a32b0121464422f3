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
fn the_device_that_is_taken_has_too_little_where_another_has_enough() {
    let small = "device=mlx5_0\nlike=roce\nstate=active\nmax_qp=8\n";
    let large = "device=mlx5_1\nlike=roce\nstate=active\n";
    let Some(setup) = Setup::new(&format!("{small}{large}")) else { return };
    let setup = setup.arguments(&["--peers", "5"]);
    let report = setup.report();
    report.ends("failure", 2).alone("limits");
    report.says("limits", "failure", &["mlx5_0", "8 queue pairs"], &["fewer ranks", "or set FULMEN_DEVICE=mlx5_1"]);
    setup.variable("FULMEN_DEVICE", "mlx5_1").report().ends("ok", 0);
    // The other way round, the one that is taken has enough; and one whose port is down is not taken.
    let Some(setup) = Setup::new(&format!("{large}{small}")) else { return };
    setup.arguments(&["--peers", "5"]).report().ends("warning", 1).says("limits", "warning", &["mlx5_0"], &[]);
    let Some(setup) = Setup::new(&format!("{small}state=down\n{large}")) else { return };
    setup.arguments(&["--peers", "5"]).report().ends("warning", 1).says("limits", "warning", &["mlx5_0"], &[]);
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

#[test]
fn the_right_to_lock_memory_counts_outside_user_namespaces_only() {
    let Some(setup) = Setup::new(ROCE) else { return };
    let mut setup = setup.before("ulimit -l 64").file("proc/self/uid_map", "         0          0 4294967295");
    setup.report().says("memory lock", "ok", &["CAP_IPC_LOCK"], &[]).ends("ok", 0);
    for map in ["         0       1000          1", "0 1000 1\n1 100000 65536"] {
        setup = setup.file("proc/self/uid_map", map);
        let report = setup.report();
        report.ends("failure", 2).alone("memory lock");
        report.says("memory lock", "failure", &["64 KiB", "MiB locked"], &["unlimited"]);
    }
}
