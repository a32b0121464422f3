//! What systems tell about themselves, each in its own way.

#[cfg_attr(target_os = "linux", path = "linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "macos.rs")]
mod os;

pub use os::{bridge_of, lock_limit, switched_on, system};
