//! Names the library as programs look for it, and declares the versions of its symbols.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=versions.map");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    let here = env::var("CARGO_MANIFEST_DIR").expect("cargo names the directory of the package");
    // Which symbol is of which version is said where it is defined: see `src/export.rs`.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={here}/versions.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // Worker threads run its code until the process ends.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
