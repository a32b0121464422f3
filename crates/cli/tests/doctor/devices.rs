//! Devices and ports that cannot be used.

use crate::setup::{ROCE, Setup};

/// The adapter with these lines more.
fn roce(more: &str) -> Option<Setup> {
    Setup::new(&format!("{ROCE}{more}"))
}

#[test]
fn the_device_may_not_be_opened() {
    let Some(setup) = roce("on.open_device=fail 13\n") else { return };
    let report = setup.report();
    report.ends("failure", 2).alone("device");
    report.says("device", "failure", &["mlx5_0", "may not be opened"], &["udev rule", "group"]);
}

#[test]
fn the_device_speaks_iwarp() {
    let Some(setup) = Setup::new("device=siw0\nlike=iwarp\nstate=active\n") else { return };
    let report = setup.report();
    report.says("device", "failure", &["siw0", "iWARP", "librdmacm"], &["RoCE"]).ends("failure", 2);
}

#[test]
fn the_port_is_down() {
    let Some(setup) = roce("state=down\n") else { return };
    let report = setup.report();
    report.ends("failure", 2).alone("port");
    report.says("port", "failure", &["port 1 of mlx5_0", "down"], &["cable", "ip link set eth7 up"]);
}

#[test]
fn no_subnet_manager_has_been_there() {
    let Some(setup) = Setup::new("device=ib0\nlike=infiniband\nstate=init\n") else { return };
    setup.report().ends("failure", 2).says("port", "failure", &["ib0", "initializing"], &["subnet manager", "opensm"]);
}

#[test]
fn one_usable_port_is_enough() {
    let Some(setup) = roce("port=2\nstate=down\n") else { return };
    let report = setup.report();
    report.says("port", "ok", &["port 1 of mlx5_0"], &[]);
    report.says("port", "warning", &["port 2 of mlx5_0", "down"], &["cable"]).ends("warning", 1);
}

#[test]
fn there_are_only_link_local_addresses() {
    let Some(setup) = roce("no_gids=1\ngid=0 fe80::1 roce1\ngid=1 fe80::1 roce2\n") else { return };
    let report = setup.report();
    report.ends("warning", 1).alone("gid");
    report.says("gid", "warning", &["[1] fe80::1", "link-local"], &["IPv4", "ip addr add", "dev eth7"]);
}

#[test]
fn all_addresses_are_zero() {
    let Some(setup) = roce("no_gids=1\ngid_table=4\n") else { return };
    let report = setup.report();
    report.ends("failure", 2).alone("gid");
    report.says("gid", "failure", &["port 1 of mlx5_0", "no address", "GID"], &["eth7", "up", "bridge"]);
}

#[test]
fn there_is_only_roce_of_version_1() {
    let Some(setup) = roce("no_gids=1\ngid=0 ::ffff:192.0.2.1 roce1\n") else { return };
    let report = setup.report();
    report.ends("failure", 2).alone("gid");
    report.says("gid", "failure", &["version 2", "RoCE v1", "192.0.2.1"], &["allow RoCE v2"]);
}

#[test]
fn the_interface_is_down() {
    let Some(setup) = roce("no_gids=1\ngid=3 ::ffff:192.0.2.1 roce2\n") else { return };
    let report = setup.file("sys/class/net/eth7/operstate", "down").report();
    report.ends("failure", 2).alone("gid");
    report.says("gid", "failure", &["interfaces behind", "down", "192.0.2.1"], &["ip link set", "eth7"]);
}

#[test]
fn the_interface_is_in_a_bridge() {
    let Some(setup) = roce("no_gids=1\ngid_table=4\n") else { return };
    let setup = setup.file("sys/class/net/eth7/brport/state", "3").link("sys/class/net/eth7/master", "../br0");
    let report = setup.report();
    report.ends("failure", 2);
    report.says("bridge", "failure", &["eth7", "bridge br0", "port 1 of mlx5_0"], &["ip link set eth7 nomaster"]);
}

#[test]
fn a_bridge_is_told_also_where_an_address_is_left() {
    let Some(setup) = roce("") else { return };
    let setup = setup.file("sys/class/net/eth7/brport/state", "3").link("sys/class/net/eth7/master", "../br0");
    setup.report().ends("warning", 1).alone("bridge").says("bridge", "warning", &["br0"], &["nomaster"]);
}

#[test]
fn the_link_is_slow() {
    // Speed 1 and width 1: one lane of 2.5 Gb/s.
    let Some(setup) = roce("speed=1\nwidth=1\n") else { return };
    setup.report().ends("warning", 1).alone("link").says(
        "link",
        "warning",
        &["2.5 Gb/s", "slow"],
        &["cable", "switch"],
    );
}

#[test]
fn apples_device_is_well() {
    let devices = "device=rdma_en5\nlike=thunderbolt\nstate=active\n";
    let Some(setup) = Setup::new(devices) else { return };
    let report = setup.report();
    report.says("link", "ok", &["Thunderbolt"], &[]).says("gid", "ok", &["[1]", "192.0.2.1"], &[]);
    report.says("limits", "ok", &["frames"], &[]).ends("ok", 0);
}
