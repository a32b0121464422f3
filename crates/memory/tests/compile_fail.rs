//! What must not compile: every way to reach bytes that somebody else may be writing.

use std::process::Command;

#[test]
fn compile_fail() {
    // The errors are compared word by word, and compilers change their words: those of the workspace's version count.
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().expect("the compiler that compiled this runs");
    let version = String::from_utf8_lossy(&version.stdout);
    if !version.starts_with(concat!("rustc ", env!("CARGO_PKG_RUST_VERSION"), ".")) {
        eprintln!("skipped: expects the errors of rustc {}, not of {version}", env!("CARGO_PKG_RUST_VERSION"));
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
