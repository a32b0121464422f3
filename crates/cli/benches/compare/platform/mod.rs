//! What differs between systems: pinning, ending with the parent, memory to share, reading a process.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;

#[cfg(target_os = "linux")]
pub use linux::{allow_reads, allowed_processors, end_with_parent, pin, read_process, shared_file};
#[cfg(target_os = "macos")]
pub use macos::{allow_reads, allowed_processors, end_with_parent, pin, read_process, shared_file};
