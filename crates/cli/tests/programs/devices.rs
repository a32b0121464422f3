//! Programs that look at devices.

use crate::case::{Case, Outcome, Program, expect};
use crate::pair::Launch;

const LIST: Program = Program::of("ibverbs-utils", "ibv_devices");
const INFO: Program = Program::of("ibverbs-utils", "ibv_devinfo");

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(LIST, "one device", true, || lists(&[], &["fulmen_0"])),
        Case::new(LIST, "four devices", false, || {
            lists(&["--devices=4"], &["fulmen_0", "fulmen_1", "fulmen_2", "fulmen_3"])
        }),
        Case::new(LIST, "thunderbolt", true, || {
            lists(&["--profile=thunderbolt"], &["rdma_en2", "rdma_en3", "rdma_en4"])
        }),
        Case::new(INFO, "-v", true, || {
            let said = Launch::of(INFO).run(&["-v".into()])?.said;
            ["hca_id:\tfulmen_0", "PORT_ACTIVE", "max_qp:", "GID[", "active_mtu:", "InfiniBand"]
                .iter()
                .try_for_each(|part| expect(said.contains(part), &format!("no {part:?}"), &said))
        }),
        Case::new(INFO, "-v, thunderbolt", true, || {
            let said = Launch::of(INFO).with(&["--profile=thunderbolt"]).run(&["-v".into()])?.said;
            expect(said.matches("hca_id:").count() == 3, "not three devices", &said)?;
            // An IPv4-mapped address beside the link-local one.
            ["rdma_en2", "PORT_ACTIVE", "max_mr:\t\t\t\t100", "fe80:", "ffff:169.254"]
                .iter()
                .try_for_each(|part| expect(said.contains(part), &format!("no {part:?}"), &said))
        }),
        Case::new(INFO, "-v, strict", false, || {
            let said = Launch::of(INFO).with(&["--profile=thunderbolt", "--strict"]).run(&["-v".into()])?.said;
            ["max_qp:\t\t\t\t3", "max_cq:\t\t\t\t6", "max_pd:\t\t\t\t6"]
                .iter()
                .try_for_each(|part| expect(said.contains(part), &format!("no {part:?}"), &said))
        }),
        Case::new(INFO, "-l", false, || {
            let said = Launch::of(INFO).with(&["--devices=8"]).run(&["-l".into()])?.said;
            expect(said.contains("8 HCAs found") && said.contains("fulmen_7"), "not eight devices", &said)
        }),
    ]
}

/// The list has these devices and no others.
fn lists(options: &[&str], names: &[&str]) -> Outcome {
    let said = Launch::of(LIST).with(options).run(&[])?.said;
    let listed: Vec<&str> = said.lines().skip(2).filter_map(|line| line.split_whitespace().next()).collect();
    expect(listed == names, &format!("expected {names:?}, found {listed:?}"), &said)
}
