//! What differs between systems: pinning, ending with the parent, memory to share.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;

#[cfg(target_os = "linux")]
pub use linux::{allowed_processors, end_with_parent, pin, shared_file};
#[cfg(target_os = "macos")]
pub use macos::{allowed_processors, end_with_parent, pin, shared_file};
