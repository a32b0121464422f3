//! Libraries and drivers that hang, crash or babble: the doctor tells and ends.

use crate::setup::{ROCE, Setup};

fn roce(more: &str) -> Option<Setup> {
    Setup::new(&format!("{ROCE}{more}"))
}

#[test]
fn the_driver_hangs_in_query_port() {
    // Long enough for a busy machine to answer everything else.
    let Some(setup) = roce("on.query_port=hang\n") else { return };
    let report = setup.arguments(&["--patience", "4"]).report();
    report.ends("failure", 2).says("device", "failure", &["mlx5_0", "within 4 s"], &["dmesg", "restart"]);
}

#[test]
fn the_driver_crashes_when_a_device_is_opened() {
    let Some(setup) = roce("on.open_device=abort\n") else { return };
    setup.report().ends("failure", 2).says("device", "failure", &["mlx5_0", "SIGABRT"], &["dmesg", "reinstall"]);
    let Some(setup) = roce("on.open_device=crash\n") else { return };
    setup.report().ends("failure", 2).says("device", "failure", &["mlx5_0", "SIGSEGV"], &["dmesg"]);
}

#[test]
fn the_library_crashes_when_devices_are_listed() {
    let Some(setup) = Setup::new("on.get_device_list=abort\ndevice=mlx5_0\nlike=roce\n") else { return };
    let report = setup.report();
    report.ends("failure", 2).alone("devices");
    report.says("devices", "failure", &["ibv_get_device_list", "SIGABRT"], &["reinstall"]);
}

#[test]
fn one_device_that_crashes_spoils_the_others_until_one_is_named() {
    let Some(setup) = roce("device=mlx5_1\nlike=roce\nstate=active\non.open_device=abort\n") else { return };
    let report = setup.report();
    report
        .says("device", "ok", &["mlx5_0"], &[])
        .says("device", "failure", &["mlx5_1", "SIGABRT"], &["reinstall", "or set FULMEN_DEVICE=mlx5_0"])
        .ends("failure", 2);
    let setup = setup.variable("FULMEN_DEVICE", "any");
    setup.report().ends("failure", 2).says("device", "failure", &["mlx5_1"], &["FULMEN_DEVICE=mlx5_0"]);
    setup.variable("FULMEN_DEVICE", "mlx5_0").report().ends("ok", 0);
}

#[test]
fn a_port_that_crashes_spoils_the_other_devices() {
    let Some(setup) = roce("on.query_gid_table=abort\ndevice=mlx5_1\nlike=roce\nstate=active\n") else { return };
    let report = setup.report();
    report.says("port", "failure", &["mlx5_0", "SIGABRT"], &["or set FULMEN_DEVICE=mlx5_1"]).ends("failure", 2);
}

#[test]
fn a_name_commands_no_terminal() {
    let Some(setup) = Setup::new("device=mlx\u{1b}[2J\nlike=roce\nstate=active\n") else { return };
    let (text, _) = setup.text();
    assert!(!text.contains('\u{1b}') && text.contains("mlx\\u{1b}[2J"), "{text}");
}
