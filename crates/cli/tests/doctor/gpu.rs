//! GPUs, by a CUDA driver without any.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::setup::{ROCE, Setup};

/// A directory with a driver in it. `None`, and a line that says why, where there is no C compiler.
fn driver() -> Option<TempDir> {
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("fakecuda.c");
    std::fs::write(&source, include_str!("../../../gpu/tests/fake/fakecuda.c")).expect("a file");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-shared", "-fPIC", "-o"]).arg(directory.path().join("libcuda.so.1")).arg(&source);
    match cc.output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            eprintln!("SKIPPED: the fake driver was not built, because the C compiler `cc` cannot be run ({error})");
            return None;
        }
    }
    Some(directory)
}

fn with(setup: Setup, driver: &TempDir) -> Setup {
    setup.variable("LD_LIBRARY_PATH", driver.path().to_str().expect("UTF-8"))
}

/// What this machine has in place of a driver is no library.
fn broken() -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("libcuda.so.1"), "this is no library").expect("a file");
    directory
}

#[test]
fn memory_of_gpus_is_registered() {
    let (Some(setup), Some(driver)) = (Setup::new(ROCE), driver()) else { return };
    let report = with(setup, &driver).report();
    report.says("gpus", "ok", &["CUDA 12.8", "1 GiB"], &[]);
    report.says("gpu memory", "ok", &["mlx5_0 registers memory pinned by CUDA"], &[]).ends("ok", 0);
}

#[test]
fn a_device_without_room_does_not_register_it() {
    let Some(setup) = Setup::new(&format!("{ROCE}on.reg_mr=fail 12 len 1048576\n")) else { return };
    let Some(driver) = driver() else { return };
    let report = with(setup, &driver).report();
    report.says("gpu memory", "warning", &["does not register", "pinned by CUDA"], &["ulimit -l"]).ends("warning", 1);
}

#[test]
fn gpus_without_a_driver_for_programs_are_told() {
    let driver = broken();
    let setup = Setup::without_library().library(Path::new("/no/such/library"));
    let report = with(setup.file("proc/driver/nvidia/gpus/0000:1b:00.0/information", "Model: x"), &driver).report();
    report
        .says("gpus", "failure", &["1 of NVIDIA's GPUs", "libcuda.so.1"], &["libcuda1", "container"])
        .ends("failure", 2);
}

#[test]
fn a_machine_without_gpus_lacks_nothing() {
    let driver = broken();
    let Some(setup) = Setup::new(ROCE) else { return };
    with(setup, &driver).report().says("gpus", "not-applicable", &["no CUDA driver"], &[]).ends("ok", 0);
}
