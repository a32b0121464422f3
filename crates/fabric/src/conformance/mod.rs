//! The suite that a fabric has to pass, whatever carries it.
//!
//! A test hands [`run`] a [`Bench`], which says what each rank of a world has: a node, devices, options. The suite makes the
//! worlds, with ranks as threads of the test's process, each with its own session and fabric. Each case stands for one
//! promise of [`Fabric`](crate::Fabric). What a carrier has not is skipped by name and counted; what it has and does not do
//! is a failure.
//!
//! Every wait ends after [`PATIENCE`]. When a rank fails, its fabric goes, so that the others' waits end, and the
//! failure that came first is the verdict. After each case that all ranks passed, every block of every pool has to come
//! back.

mod case;
mod keys;
mod liveness;
mod memory;
mod messages;
mod onesided;
mod order;
mod pattern;
mod regroup;
mod seat;
mod windows;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crate::{FabricOptions, Providers};

use self::case::{Case, Failure};

/// How long a case waits for something that the fabric promises.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What the worlds of the suite are made of.
pub trait Bench: Sync {
    /// What is tested, for people.
    fn name(&self) -> String;

    /// What a rank's links run over, opened for this rank alone.
    ///
    /// # Errors
    /// In words; the case fails then.
    fn providers(&self, rank: u32) -> Result<Providers, String>;

    /// The options of all ranks, made of those that a case asks for.
    fn options(&self, options: FabricOptions) -> FabricOptions;

    /// On which host a rank takes itself to be, if that is not where it is.
    fn host(&self, _rank: u32) -> Option<[u8; 16]> {
        None
    }

    /// The largest world that it can make.
    fn most_ranks(&self) -> u32 {
        6
    }

    /// Where ranks meet.
    fn meets_at(&self) -> IpAddr {
        Ipv4Addr::LOCALHOST.into()
    }

    /// Does `work` once, on a thread that is where a rank lives, or where ranks meet. Here, if there is only one place.
    fn at(&self, _place: At, work: &mut (dyn FnMut() + Send)) {
        work();
    }
}

/// A place at which something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Where the ranks meet.
    Meeting,
    /// Where a rank lives, by its number in the first generation.
    Rank(u32),
}

/// What became of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The fabric kept its promise.
    Passed,
    /// It did not; the text says how.
    Failed(String),
    /// The carrier has not what the case needs; the text says what.
    Skipped(String),
}

/// What became of all cases.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The cases that passed.
    pub passed: Vec<String>,
    /// The cases that failed, and how.
    pub failed: Vec<(String, String)>,
    /// The cases that were skipped, and what is missing.
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
    for case in cases().filter(|case| wanted(case.name)) {
        let verdict = match seat::play(bench, case) {
            Ok(()) => Verdict::Passed,
            Err(Failure::Failed(how)) => Verdict::Failed(how),
            Err(Failure::Missing(what)) => Verdict::Skipped(what),
        };
        told(case.name, &verdict);
        let name = case.name.to_string();
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
pub fn names() -> Vec<&'static str> {
    cases().map(|case| case.name).collect()
}

fn cases() -> impl Iterator<Item = &'static Case> {
    const THEMES: [&[Case]; 8] = [
        messages::CASES,
        order::CASES,
        windows::CASES,
        onesided::CASES,
        keys::CASES,
        liveness::CASES,
        memory::CASES,
        regroup::CASES,
    ];
    THEMES.into_iter().flatten()
}
