//! The fabric over devices of the machine's own library, where there are none: a fake library stands for it, whose devices
//! follow the rules of RoCE and of Thunderbolt.
#![cfg(target_os = "linux")]

#[path = "../../system/tests/fake/mod.rs"]
mod fake;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use fulmen_fabric::conformance::{Bench, run_some};
use fulmen_fabric::{FabricOptions, Providers};
use fulmen_system::Library;

struct Faked {
    like: &'static str,
    library: Arc<Library>,
}

impl Bench for Faked {
    fn name(&self) -> String {
        format!("a fake {} device", self.like)
    }

    fn providers(&self, _rank: u32) -> Result<Providers, String> {
        let device = self.library.open_device("fake0").map_err(|error| error.to_string())?;
        Ok(Providers { devices: vec![device], ..Providers::default() })
    }

    fn options(&self, options: FabricOptions) -> FabricOptions {
        FabricOptions { windows: false, ..options }
    }
}

/// A directory that is gone when its user is.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn over(like: &'static str) {
    let directory = Directory::new(like);
    let Some(path) = fake::build(&directory.0, &[]) else { return };
    // All ranks share one device here, which has enough of everything for all of them.
    let limits = "max_qp=100\nmax_cq=400\nmax_pd=100\nmax_mr=2000\n";
    fs::write(path.with_extension("so.conf"), format!("device=fake0\nlike={like}\n{limits}")).expect("it is written");
    let library = Library::open_at(&path).expect("the fake library opens");
    let all = fulmen_testbed::is_full();
    let some = [
        "messages: in fragments",
        "messages: by rendezvous",
        "messages: all ranks to all",
        "one-sided: plain bytes",
        "one-sided: while the owner computes",
        "regroup: the survivors of a death go on",
    ];
    let wanted = |case: &str| all || some.contains(&case);
    let report = run_some(&Faked { like, library }, &wanted, &mut |case, verdict| println!("{case}: {verdict:?}"));
    report.assert_passed();
    assert!(all || report.passed.len() == some.len(), "the cases have other names now: {:?}", report.passed);
}

#[test]
fn roce() {
    over("roce");
}

#[test]
fn thunderbolt() {
    over("thunderbolt");
}
