//! Builds the fake verbs library: `fakeverbs.c` says how it is configured. Tests of other crates include this file by its
//! path.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library's source.
const SOURCE: [(&str, &str); 6] = [
    ("fakeverbs.h", include_str!("fakeverbs.h")),
    ("fakeverbs.c", include_str!("fakeverbs.c")),
    ("objects.c", include_str!("objects.c")),
    ("config.c", include_str!("config.c")),
    ("faults.c", include_str!("faults.c")),
    ("datapath.c", include_str!("datapath.c")),
];

/// Compiles the library to `libfakeverbs.so` in `dir`, with names such as `WITHOUT_IBV_QUERY_GID` defined. `None`, and
/// a line that says why, where there is no C compiler or no header of the verbs.
///
/// It takes a while: a test binary does it once, and gives copies to those that want one of their own. A process
/// that loads two copies has two libraries.
///
/// # Panics
/// If the source does not compile where compiler and header are there.
pub fn build(dir: &Path, defines: &[&str]) -> Option<PathBuf> {
    let skipped = |why: &str| eprintln!("SKIPPED: the fake verbs library was not built because {why}");
    let header =
        Command::new("cc").args(["-fsyntax-only", "-include", "infiniband/verbs.h", "-x", "c", "/dev/null"]).output();
    match header {
        Err(error) => {
            skipped(&format!("the C compiler `cc` cannot be run ({error})"));
            return None;
        }
        Ok(output) if !output.status.success() => {
            skipped("the header <infiniband/verbs.h> is missing (Debian has it in libibverbs-dev)");
            return None;
        }
        Ok(_) => {}
    }
    let library = dir.join("libfakeverbs.so");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]);
    cc.args(defines.iter().map(|name| format!("-D{name}"))).arg("-o").arg(&library);
    for (name, text) in SOURCE {
        let path = dir.join(name);
        fs::write(&path, text).expect("the source is written");
        if !name.ends_with(".h") {
            cc.arg(path);
        }
    }
    let output = cc.arg("-ldl").output().expect("the C compiler ran a moment ago");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the fake verbs library does not compile:\n{said}");
    if !said.is_empty() {
        eprintln!("{said}");
    }
    Some(library)
}
