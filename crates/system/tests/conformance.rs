//! A device of the machine keeps the promises of the verbs: the one that `FULMEN_TEST_DEVICE` names.

use std::sync::Arc;

use fulmen_system::Library;
use fulmen_verbs::conformance::{Bench, run};
use fulmen_verbs::{Device, VerbsError};

/// Where Soft-RoCE (the kernel's `rdma_rxe`) ends a request otherwise than the verbs say, and why that is no fault of
/// this crate: the name of the case, and the reason.
const DEVIATIONS: &[(&str, &str)] = &[];

/// Both sides are on one device, opened twice.
struct OnePort {
    library: Arc<Library>,
    device: String,
}

impl Bench for OnePort {
    fn name(&self) -> String {
        format!("system {}", self.device)
    }

    fn pair(&self) -> Result<[Arc<dyn Device>; 2], VerbsError> {
        let open = || -> Result<Arc<dyn Device>, VerbsError> {
            match self.library.open_device(&self.device) {
                Ok(device) => Ok(device),
                Err(error) => {
                    let device = self.device.clone();
                    Err(VerbsError::System { device, call: "open_device", cause: error.to_string() })
                }
            }
        };
        Ok([open()?, open()?])
    }
}

#[test]
fn conformance() {
    let Some(device) = std::env::var_os("FULMEN_TEST_DEVICE") else {
        eprintln!("SKIPPED: conformance of the machine's own device, because FULMEN_TEST_DEVICE names none");
        return;
    };
    let device = device.into_string().expect("the name of a device");
    let library = Library::open().expect("the verbs library opens");
    let report = run(&OnePort { library, device });
    let (known, new): (Vec<_>, Vec<_>) =
        report.failed.iter().partition(|(case, _)| DEVIATIONS.iter().any(|(name, _)| name == case));
    for (case, how) in &known {
        println!("DEVIATION: {case}: {how}");
    }
    let passes = DEVIATIONS.iter().filter(|(name, _)| report.passed.iter().any(|case| case == name));
    let passes: Vec<_> = passes.map(|(name, _)| name).collect();
    println!("{} of {} known deviations of Soft-RoCE were seen", known.len(), DEVIATIONS.len());
    for (case, missing) in &report.skipped {
        println!("SKIPPED: {case}, because the device has no {missing}");
    }
    assert!(new.is_empty(), "{} conformance cases failed: {new:#?}", new.len());
    assert!(passes.is_empty(), "these known deviations are none any more, take them off the list: {passes:#?}");
    assert!(!report.passed.is_empty(), "no conformance case passed");
}
