//! The system below: kernel, policies, pages and clock.

use std::path::Path;

use crate::setup::{ROCE, Report, Setup};

/// Without a library, whose absence is a failure of its own.
fn report(setup: Setup) -> Report {
    setup.library(Path::new("/no/such/library")).report()
}

#[test]
fn the_kernel_is_too_old() {
    let report = report(Setup::without_library().file("proc/sys/kernel/osrelease", "4.19.0"));
    report.says("system", "failure", &["4.19.0", "older"], &["5.3"]).ends("failure", 2);
}

#[test]
fn options_that_mean_nothing_are_told() {
    for (variable, value, fix) in [
        ("FULMEN_POOL", "many", "64K"),
        ("FULMEN_TIMEOUT", "-1", "a number of seconds"),
        ("FULMEN_SILENCE", "for ever: 0", "a number of seconds"),
    ] {
        let Some(setup) = Setup::new(ROCE) else { return };
        let report = setup.variable(variable, value).report();
        report.says("options", "failure", &[variable, value], &[fix]).ends("failure", 2).alone("options");
    }
    let Some(setup) = Setup::new(ROCE) else { return };
    let setup = setup.variable("FULMEN_DEVICE", "mlx5_0").variable("FULMEN_PROFILE", "thunderbolt");
    setup.report().says("options", "failure", &["FULMEN_DEVICE", "FULMEN_PROFILE"], &["unset"]).ends("failure", 2);
}

#[test]
fn a_link_file_is_one_or_not() {
    for (file, outcome, words) in [
        ("roce-fat-tree", "ok", "has figures"),
        ("/no/such/links", "failure", "cannot read the link file"),
        ("/dev/null", "failure", "is no link file"),
    ] {
        let Some(setup) = Setup::new(ROCE) else { return };
        let fix: &[&str] = if outcome == "ok" { &[] } else { &["fulmen plan", "thunderbolt5-mesh-4"] };
        setup.variable("FULMEN_LINKS", file).report().says("link file", outcome, &[file, words], fix);
    }
}

#[test]
fn no_process_may_look_into_another() {
    let report = report(Setup::without_library().file("proc/sys/kernel/yama/ptrace_scope", "3"));
    report.says("single copy", "warning", &["ptrace_scope is 3", "debugger"], &["ptrace_scope to 1", "restart"]);
}

#[test]
fn reserved_pages_are_used_up() {
    let pages = "HugePages_Total: 8\nHugePages_Free: 0\nHugepagesize: 2048 kB";
    let report = report(Setup::without_library().file("proc/meminfo", pages));
    report.says("huge pages", "warning", &["0 of 8", "2048 KiB"], &["vm.nr_hugepages"]);
}

#[test]
fn the_clock_is_slow() {
    let clock = "sys/devices/system/clocksource/clocksource0/current_clocksource";
    let report = report(Setup::without_library().file(clock, "hpet"));
    report.says("clock", "warning", &["hpet"], &["tsc", "dmesg"]);
}
