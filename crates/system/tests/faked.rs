//! The conformance suite over the fake library, whose devices follow the rules of RoCE and of Thunderbolt.
//!
//! It holds what this crate does with the library against the promises of the verbs, on machines that have no device. What
//! real devices do is held against them elsewhere, in a guest that has one.
#![cfg(target_os = "linux")]

mod fake;

use std::fs;
use std::sync::Arc;

use fulmen_system::Library;
use fulmen_verbs::conformance::{Bench, run};
use fulmen_verbs::{Device, VerbsError};

struct Faked {
    like: &'static str,
    library: Arc<Library>,
}

impl Bench for Faked {
    fn name(&self) -> String {
        format!("a fake {} device", self.like)
    }

    fn pair(&self) -> Result<[Arc<dyn Device>; 2], VerbsError> {
        Ok([(); 2].map(|()| self.library.open_device("fake0").expect("it opens") as Arc<dyn Device>))
    }
}

fn keeps_its_promises(like: &'static str) {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(path) = fake::build(dir.path(), &[]) else { return };
    fs::write(path.with_extension("so.conf"), format!("device=fake0\nlike={like}\n")).expect("it is written");
    let library = Library::open_at(&path).expect("the fake library opens");
    let report = run(&Faked { like, library });
    eprintln!("{like}: {} passed, {} skipped", report.passed.len(), report.skipped.len());
    report.assert_passed();
}

#[test]
fn roce() {
    keeps_its_promises("roce");
}

#[test]
fn infiniband() {
    // What differs from RoCE is little, and the suite takes a while.
    if fulmen_testbed::is_full() {
        keeps_its_promises("infiniband");
    }
}

#[test]
fn thunderbolt() {
    keeps_its_promises("thunderbolt");
}
