//! Lint: what a program does that RDMA over Thunderbolt does not bear.
//!
//! Under the `thunderbolt` profile the device itself keeps the rules of Apple's hardware: it refuses what that refuses,
//! and loses or corrupts what that loses or corrupts. Lint says so: in mode `log` it writes one line for the first break of
//! each rule on each object, and counts at the end; in mode `fail` it also refuses the call, where the hardware would
//! go on in silence. Each function here stands for one call, takes what the program passed, and gives the error number
//! with which the call is to be refused, if it is.

mod calls;
mod darwin;
mod report;
mod rule;
#[cfg(test)]
mod tests;
mod watch;

use std::ffi::c_int;
use std::fmt::Display;
use std::path::Path;
use std::sync::OnceLock;

use fulmen_soft::Profile;

use crate::config::{self, Config};
pub(crate) use calls::{PairAsked, SendAsked, crosses};
pub(crate) use darwin::{errno_of, number};
use report::Report;
use rule::Rule;
pub(crate) use watch::Idle;
use watch::Watch;

/// The lint of this process.
pub(crate) struct Lint {
    /// Calls that break a rule are refused.
    fails: bool,
    report: Report,
    watch: Watch,
}

/// The lint of this process, if it is on. The first call makes it, out of the environment.
#[inline]
pub(crate) fn get() -> Option<&'static Lint> {
    static LINT: OnceLock<Option<Lint>> = OnceLock::new();
    LINT.get_or_init(start).as_ref()
}

fn start() -> Option<Lint> {
    let config = Config::get().ok()?;
    // The rules are those of one device. Others are made so that other programs run.
    if config.profile != Profile::Thunderbolt || config.lint == config::Lint::Off {
        return None;
    }
    // SAFETY: `at_exit` is a function of this library, which is never unloaded.
    unsafe { libc::atexit(at_exit) };
    Some(Lint::new(config.lint == config::Lint::Fail, config.lint_report.as_deref()))
}

extern "C" fn at_exit() {
    if let Some(lint) = get() {
        for line in lint.report.summary() {
            eprintln!("{line}");
        }
    }
}

impl Lint {
    fn new(fails: bool, records: Option<&Path>) -> Lint {
        Lint { fails, report: Report::new(records), watch: Watch::default() }
    }

    /// Tells that `call` broke `rule` on `object`; the number with which it is to be refused, in mode `fail`.
    fn broken(&self, rule: Rule, call: &str, object: u64, what: impl Display) -> Option<c_int> {
        self.report.add(rule, call, object, &what);
        self.fails.then(|| rule.errno())
    }
}
