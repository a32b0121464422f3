//! What the system offers to keep hold of processes, where systems differ.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub use linux::{adopt_orphans, children, die_with_parent, ignored_signals, own_program};

#[cfg(not(target_os = "linux"))]
mod macos;
#[cfg(not(target_os = "linux"))]
pub use macos::{adopt_orphans, children, die_with_parent, ignored_signals, own_program};
