//! A device of the machine keeps the promises of the verbs: the one that `FULMEN_TEST_DEVICE` names.

use std::sync::Arc;

use fulmen_system::Library;
use fulmen_verbs::conformance::{Bench, Verdict, run_some};
use fulmen_verbs::{Device, VerbsError};

/// Where Soft-RoCE (the kernel's `rdma_rxe`) ends a request otherwise than the verbs say, and why that is no fault of
/// this crate: the name of the case, and the reason.
const DEVIATIONS: &[(&str, &str)] = &[
    ("states: SQD holds new sends until RTS (RC)", SQD),
    ("states: SQD holds new sends until RTS (UC)", SQD),
    ("faults: a SEND with a wrong, stale or foreign key (RC)", LOCAL_KEY),
    ("faults: a SEND with a wrong, stale or foreign key (UC)", LOCAL_KEY),
    ("faults: a RECV out of bounds (RC)", LOCAL_KEY),
    ("faults: a RECV out of bounds (UC)", LOCAL_KEY),
    ("faults: a RECV with a wrong, stale or foreign key (RC)", LOCAL_KEY),
    ("faults: a RECV with a wrong, stale or foreign key (UC)", LOCAL_KEY),
    ("faults: a RECV into memory without LOCAL_WRITE (RC)", LOCAL_KEY),
    ("faults: a RECV into memory without LOCAL_WRITE (UC)", LOCAL_KEY),
    ("queues: a failure flushes what is behind it (RC)", LOCAL_KEY),
    ("queues: a failure flushes what is behind it (UC)", LOCAL_KEY),
    ("receive: a message longer than its RECV (RC)", TOO_LONG),
    ("receive: a message longer than its RECV (UC)", TOO_LONG),
    ("faults: an atomic on a word that is not aligned", ALIGNMENT),
];

const SQD: &str =
    "what waited in SQD is sent when the next request is posted, and not when the queue pair is in RTS again";
const LOCAL_KEY: &str = "a local key that does not allow the access ends as LocalQueuePair, and not as LocalProtection";
const TOO_LONG: &str = "a message longer than its RECV ends as LocalQueuePair, and not as LocalLength";
const ALIGNMENT: &str = "an atomic on a word that is not aligned is refused when it is posted, and does not fail";

/// What Soft-RoCE says that its vendor is.
const SOFT_ROCE: u32 = 0xFF_FFFF;

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
    let attributes = library.open_device(&device).expect("the device opens").attributes().clone();
    let deviations = if attributes.vendor_id == SOFT_ROCE { DEVIATIONS } else { &[] };
    let bench = OnePort { library, device };
    let name = bench.name();
    // For whoever looks into one case: a part of its name.
    let only = std::env::var("FULMEN_TEST_CASE").unwrap_or_default();
    // Each of these waits for half a minute until it is sure.
    let full = fulmen_testbed::is_full();
    let slow = |case: &str| !full && deviations.iter().any(|(name, reason)| *name == case && *reason == SQD);
    for (case, reason) in deviations.iter().filter(|(case, _)| slow(case)) {
        println!("SKIPPED: {case}, because {reason} (FULMEN_TEST_TIER=full waits for it)");
    }
    let wanted = |case: &str| case.contains(&only) && !slow(case);
    let report = run_some(&bench, &wanted, &mut |case, verdict| match verdict {
        Verdict::Passed => println!("{name}: {case} ... ok"),
        Verdict::Failed(how) => println!("{name}: {case} ... FAILED: {how}"),
        Verdict::Skipped(missing) => println!("{name}: {case} ... skipped: no {missing}"),
    });
    let (passed, failed, skipped) = (report.passed.len(), report.failed.len(), report.skipped.len());
    println!("{name}: {passed} cases passed, {failed} failed, {skipped} skipped");
    let (known, new): (Vec<_>, Vec<_>) =
        report.failed.iter().partition(|(case, _)| deviations.iter().any(|(name, _)| name == case));
    for (case, how) in &known {
        let reason = deviations.iter().find(|(name, _)| name == case).map_or("", |(_, reason)| reason);
        println!("DEVIATION: {case}: {how} ({reason})");
    }
    let passes = deviations.iter().filter(|(name, _)| report.passed.iter().any(|case| case == name));
    let passes: Vec<_> = passes.map(|(name, _)| name).collect();
    println!("{} of {} known deviations of Soft-RoCE were seen", known.len(), deviations.len());
    for (case, missing) in &report.skipped {
        println!("SKIPPED: {case}, because the device has no {missing}");
    }
    assert!(new.is_empty(), "{} conformance cases failed: {new:#?}", new.len());
    assert!(passes.is_empty(), "these known deviations are none any more, take them off the list: {passes:#?}");
    assert!(!report.passed.is_empty(), "no conformance case passed");
}
