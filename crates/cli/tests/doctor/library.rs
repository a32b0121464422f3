//! No library, one that is none, one that lacks something, and RDMA that is switched off.

use std::path::Path;

use crate::setup::{ROCE, Setup, built};

#[test]
fn there_is_no_library() {
    let setup = Setup::without_library().library(Path::new("/no/such/libibverbs.so.1"));
    let report = setup.report();
    report.ends("failure", 2).alone("library");
    report.says("library", "failure", &["/no/such/libibverbs.so.1"], &["install", "libibverbs1"]);
    report.says("devices", "not-applicable", &["no library"], &[]);
    report.says("gid", "not-applicable", &["no RDMA device"], &[]);
}

#[test]
fn the_library_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("libnothing.so");
    std::fs::write(&path, "this is no library").unwrap();
    let report = Setup::without_library().library(&path).report();
    report.ends("failure", 2).alone("library").says("library", "failure", &["libnothing.so"], &["install"]);
}

#[test]
fn the_library_lacks_a_symbol_that_is_needed() {
    let Some(library) = built("no-modify-qp", &["WITHOUT_IBV_MODIFY_QP"]) else { return };
    let report = Setup::without_library().library(&library).report();
    report.ends("failure", 2).alone("symbols");
    report.says("symbols", "failure", &["ibv_modify_qp", "libfakeverbs.so"], &["install another"]);
}

#[test]
fn the_library_lacks_an_optional_symbol() {
    let Some(library) = built("no-dmabuf", &["WITHOUT_IBV_REG_DMABUF_MR"]) else { return };
    let Some(setup) = Setup::new(ROCE) else { return };
    setup.library(&library).report().ends("ok", 0).says("symbols", "ok", &["ibv_reg_dmabuf_mr", "GPUs"], &[]);
}

#[test]
fn rdma_is_switched_off_in_the_kernel() {
    let setup = Setup::without_library().library(Path::new("/no/such/library"));
    let report = setup.without("sys/class/infiniband_verbs").report();
    report.ends("failure", 2).says("rdma", "failure", &["mlx5_0", "ib_uverbs is not loaded"], &["modprobe ib_uverbs"]);
}

#[test]
fn the_devices_have_no_files() {
    let setup = Setup::without_library().library(Path::new("/no/such/library")).without("dev/infiniband/uverbs0");
    let report = setup.report();
    report.says("rdma", "failure", &["mlx5_0", "/dev/infiniband/uverbs"], &["udevadm", "--device /dev/infiniband"]);
}

#[test]
fn there_is_no_device() {
    let Some(setup) = Setup::new("") else { return };
    let report = setup.report();
    report.ends("failure", 2).alone("devices");
    report.says("devices", "failure", &["no RDMA device"], &["rdma link add"]);
}

#[test]
fn the_chosen_device_is_not_there() {
    let Some(setup) = Setup::new(ROCE) else { return };
    let report = setup.variable("FULMEN_DEVICE", "mlx5_7").report();
    report.ends("failure", 2).says("device", "failure", &["FULMEN_DEVICE", "mlx5_7"], &["mlx5_0", "any"]);
}
