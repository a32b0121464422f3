//! The machine's own device, where `FULMEN_TEST_DEVICE` names one.

use std::env;
use std::sync::Arc;

use fulmen_fabric::conformance::{Bench, names, run_some};
use fulmen_fabric::{FabricOptions, Providers};
use fulmen_system::Library;
use fulmen_verbs::{
    CompletionChannel, CompletionQueue, Device, DeviceInfo, GidEntry, LinkLayer, PortInfo, ProtectionDomain,
    VerbsError, select_gid,
};

/// Each rank opens the device for itself, as processes would.
struct Machine {
    device: String,
    /// Whether RC is kept from the fabric, so that it has UC alone.
    hide_rc: bool,
}

impl Bench for Machine {
    fn name(&self) -> String {
        format!("{} over {}", self.device, if self.hide_rc { "UC" } else { "RC" })
    }

    fn providers(&self, _rank: u32) -> Result<Providers, String> {
        let library = Library::open().map_err(|error| error.to_string())?;
        let mut device: Arc<dyn Device> = library.open_device(&self.device).map_err(|error| error.to_string())?;
        if self.hide_rc {
            device = Arc::new(WithoutRc::new(device));
        }
        Ok(Providers { devices: vec![device], ..Providers::default() })
    }

    fn options(&self, options: FabricOptions) -> FabricOptions {
        FabricOptions { windows: false, ..options }
    }
}

/// A device that keeps quiet about what only RC queue pairs can do.
struct WithoutRc {
    device: Arc<dyn Device>,
    info: DeviceInfo,
}

impl WithoutRc {
    fn new(device: Arc<dyn Device>) -> WithoutRc {
        let mut info = device.info().clone();
        info.capabilities.rc = false;
        info.capabilities.read = false;
        info.capabilities.atomics = false;
        info.capabilities.acknowledges = false;
        info.capabilities.reports_dead_peers = false;
        WithoutRc { device, info }
    }
}

impl Device for WithoutRc {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn port(&self, number: u8) -> Result<PortInfo, VerbsError> {
        self.device.port(number)
    }

    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.device.gid_table(port)
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        self.device.alloc_pd()
    }

    fn create_cq(
        &self,
        entries: u32,
        channel: Option<&Arc<dyn CompletionChannel>>,
    ) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        self.device.create_cq(entries, channel)
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        self.device.create_channel()
    }
}

/// The device to test, or a word on why there is none.
fn named() -> Option<String> {
    let device = env::var("FULMEN_TEST_DEVICE").ok();
    if device.is_none() {
        eprintln!("SKIPPED: the fabric over the machine's own device, because FULMEN_TEST_DEVICE names none");
    }
    device
}

/// The case that ends registrations while READs are under way.
const UNFINISHED_READ: &str = "keys: close waits for those who are at it, and then nothing is written";

/// Runs the cases that are `wanted`.
fn over(hide_rc: bool, wanted: &dyn Fn(&str) -> bool) {
    let Some(device) = named() else { return };
    let bench = Machine { device, hide_rc };
    let name = bench.name();
    if wanted(UNFINISHED_READ) && !hide_rc {
        println!(
            "SKIPPED: {UNFINISHED_READ}, because a READ on Soft-RoCE whose registration ends under it was seen to complete \
             neither well nor badly, once in several runs"
        );
    }
    let wanted = |case: &str| wanted(case) && (case != UNFINISHED_READ || hide_rc);
    let report = run_some(&bench, &wanted, &mut |case, verdict| println!("{name}: {case}: {verdict:?}"));
    let (passed, skipped) = (report.passed.len(), report.skipped.len());
    println!("{name}: {passed} cases passed, {} failed, {skipped} skipped", report.failed.len());
    report.assert_passed();
}

/// Dealt out to tests that run side by side, since each waits more than it works.
const PARTS: usize = 2;

fn part(hide_rc: bool, part: usize) {
    let mine: Vec<_> = names().into_iter().skip(part).step_by(PARTS).collect();
    over(hide_rc, &|case| mine.contains(&case));
}

#[test]
fn rc_first_half() {
    part(false, 0);
}

#[test]
fn rc_second_half() {
    part(false, 1);
}

#[test]
fn uc_first_half() {
    part(true, 0);
}

#[test]
fn uc_second_half() {
    part(true, 1);
}

/// What the table should hold depends on the machine; whoever runs this there reads what it prints.
#[test]
fn the_first_address_of_ipv4_is_chosen() {
    let Some(name) = named() else { return };
    let device = Library::open().unwrap().open_device(&name).unwrap();
    for number in 1..=device.info().ports {
        let layer = device.port(number).unwrap().link_layer;
        let table = device.gid_table(number).unwrap();
        for entry in &table {
            println!("{name} port {number} has {}: {} ({:?})", entry.index, entry.gid, entry.kind);
        }
        let chosen = select_gid(layer, &table).unwrap();
        println!("{name} port {number} takes {}: {}", chosen.index, chosen.gid);
        let first = table.iter().find(|entry| entry.gid.is_ipv4_mapped() && entry.interface_up == Some(true));
        if let (LinkLayer::Ethernet, Some(first)) = (layer, first) {
            assert_eq!(chosen.index, first.index);
        }
    }
}
