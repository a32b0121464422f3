//! The machine's own device, where `FULMEN_TEST_DEVICE` names one.

use std::env;
use std::sync::Arc;

use fulmen_fabric::conformance::{Bench, names, run_some};
use fulmen_fabric::{FabricOptions, Providers};
use fulmen_system::Library;
use fulmen_verbs::{
    CompletionChannel, CompletionQueue, Device, DeviceInfo, GidEntry, PortInfo, ProtectionDomain, VerbsError,
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

/// Runs the cases that are `wanted`, or says why it does not.
fn over(hide_rc: bool, wanted: &dyn Fn(&str) -> bool) {
    let Ok(device) = env::var("FULMEN_TEST_DEVICE") else {
        eprintln!("SKIPPED: the fabric over the machine's own device, because FULMEN_TEST_DEVICE names none");
        return;
    };
    let bench = Machine { device, hide_rc };
    let name = bench.name();
    let report = run_some(&bench, wanted, &mut |case, verdict| println!("{name}: {case}: {verdict:?}"));
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
