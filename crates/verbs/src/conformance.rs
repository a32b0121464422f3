//! The suite that every device has to pass, whoever made it.
//!
//! A test hands [`run`] a [`Bench`], which opens two devices that reach each other. Each case stands for one promise of
//! the traits in this crate. What a device says it cannot do is skipped by name and counted; what it claims and does
//! not do is a failure.
//!
//! Every wait polls the completion queues of both sides and ends after [`PATIENCE`], so that a device may move messages
//! in whichever side polls, or in a thread of its own.

mod bed;
mod datagrams;
mod events;
mod faults;
mod lifetime;
mod limits;
mod messages;
mod notifier;
mod notify;
mod one_sided;
mod pattern;
mod queues;
mod receive;
mod rig;
mod shared_receive;
mod states;
mod traffic;
mod watch;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use fulmen_memory::{Region, RegionError};

use crate::{Device, QueuePairKind, VerbsError};

use self::bed::{Bed, Case, Failure};

/// How long a case waits for something that a device promises.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Where the suite finds its devices.
pub trait Bench {
    /// What is tested, for people.
    fn name(&self) -> String;

    /// Two devices of this process whose queue pairs can be connected to each other; they may be the same. Asked for
    /// once a case or more often; what was got is dropped at the case's end.
    ///
    /// # Errors
    /// Whatever opening them says; the case fails then.
    fn pair(&self) -> Result<[Arc<dyn Device>; 2], VerbsError>;

    /// Memory of `len` bytes to register, which can be exposed.
    ///
    /// # Errors
    /// Whatever making it says; the case fails then.
    fn memory(&self, len: usize) -> Result<Region, RegionError> {
        Region::alloc(len)
    }

    /// The port to use.
    fn port(&self) -> u8 {
        1
    }
}

/// What became of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The device kept its promise.
    Passed,
    /// It did not; the text says how.
    Failed(String),
    /// The device says that it has not what the case needs; the text says what.
    Skipped(String),
}

/// What became of all cases.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The cases that passed.
    pub passed: Vec<String>,
    /// The cases that failed, and how.
    pub failed: Vec<(String, String)>,
    /// The cases that were skipped, and what the device lacks.
    pub skipped: Vec<(String, String)>,
}

impl Report {
    /// Ends a test with the failures, if there are any.
    ///
    /// # Panics
    /// If a case failed, or none passed.
    pub fn assert_passed(&self) {
        assert!(self.failed.is_empty(), "{} conformance cases failed: {:#?}", self.failed.len(), self.failed);
        assert!(!self.passed.is_empty(), "no conformance case passed");
    }
}

/// Runs every case, printing a line for each.
pub fn run(bench: &dyn Bench) -> Report {
    let name = bench.name();
    let report = run_some(bench, &|_| true, &mut |case, verdict| match verdict {
        Verdict::Passed => println!("{name}: {case} ... ok"),
        Verdict::Failed(how) => println!("{name}: {case} ... FAILED: {how}"),
        Verdict::Skipped(missing) => println!("{name}: {case} ... skipped: no {missing}"),
    });
    let (passed, failed, skipped) = (report.passed.len(), report.failed.len(), report.skipped.len());
    println!("{name}: {passed} cases passed, {failed} failed, {skipped} skipped");
    report
}

/// Runs the cases whose name `wanted` likes, and tells `told` about each as it ends.
pub fn run_some(bench: &dyn Bench, wanted: &dyn Fn(&str) -> bool, told: &mut dyn FnMut(&str, &Verdict)) -> Report {
    let mut report = Report::default();
    for (case, kind) in cases() {
        let name = case.full_name(kind);
        if !wanted(&name) {
            continue;
        }
        let verdict = judge(bench, case, kind);
        told(&name, &verdict);
        match verdict {
            Verdict::Passed => report.passed.push(name),
            Verdict::Failed(how) => report.failed.push((name, how)),
            Verdict::Skipped(missing) => report.skipped.push((name, missing)),
        }
    }
    report
}

/// The names of all cases, in the order in which they run.
#[must_use]
pub fn names() -> Vec<String> {
    cases().map(|(case, kind)| case.full_name(kind)).collect()
}

fn cases() -> impl Iterator<Item = (&'static Case, QueuePairKind)> {
    const THEMES: [&[Case]; 14] = [
        states::CASES,
        messages::CASES,
        one_sided::CASES,
        faults::CASES,
        receive::CASES,
        shared_receive::CASES,
        queues::CASES,
        limits::CASES,
        notify::CASES,
        notifier::CASES,
        events::CASES,
        lifetime::CASES,
        traffic::CASES,
        datagrams::CASES,
    ];
    THEMES.into_iter().flatten().flat_map(|case| case.kinds.iter().map(move |kind| (case, *kind)))
}

fn judge(bench: &dyn Bench, case: &Case, kind: QueuePairKind) -> Verdict {
    // A case that panics (in the device, most likely) fails; the others still run.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let bed = Bed::new(bench, kind)?;
        case.check_needs(&bed)?;
        (case.run)(&bed)
    }));
    match outcome {
        Ok(Ok(())) => Verdict::Passed,
        Ok(Err(Failure::Failed(how))) => Verdict::Failed(how),
        Ok(Err(Failure::Missing(what))) => Verdict::Skipped(what),
        Err(panic) => Verdict::Failed(format!("panicked: {}", words(&*panic))),
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without words".to_string())
}
