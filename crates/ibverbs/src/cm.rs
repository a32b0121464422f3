//! The connection manager: `librdmacm`.
//!
//! The kernel's connection manager needs a device of the kernel's. Here, what two ends say to each other goes over Unix
//! sockets between processes of one user on one host: `frame` is what they say, `port` how they find each other, `endpoint`
//! and `progress` what becomes of it, `service` the thread that listens, `channel` how a program learns of it. The other
//! modules are the calls. `docs/verbs.md` says what works, and why it is done like this.

#[cfg(target_os = "linux")]
mod address;
#[cfg(target_os = "linux")]
mod addrinfo;
#[cfg(target_os = "linux")]
mod channel;
#[cfg(target_os = "linux")]
mod connect;
#[cfg(target_os = "linux")]
mod devices;
#[cfg(target_os = "linux")]
mod endpoint;
#[cfg(target_os = "linux")]
mod endpoints;
#[cfg(target_os = "linux")]
mod events;
#[cfg(target_os = "linux")]
pub mod ffi;
#[cfg(target_os = "linux")]
mod frame;
#[cfg(target_os = "linux")]
mod id;
#[cfg(target_os = "linux")]
mod options;
#[cfg(target_os = "linux")]
mod port;
#[cfg(target_os = "linux")]
mod progress;
#[cfg(target_os = "linux")]
mod queue_pair;
#[cfg(target_os = "linux")]
mod resolve;
#[cfg(target_os = "linux")]
mod rsockets;
#[cfg(target_os = "linux")]
mod service;
#[cfg(target_os = "linux")]
mod shared;

#[cfg(target_os = "linux")]
use std::ffi::c_int;

#[cfg(target_os = "linux")]
use rustix::io::Errno;

/// Logs why a call failed, and sets `errno`; what the call returns.
#[cfg(target_os = "linux")]
fn refuse(name: &str, error: Errno, reason: impl std::fmt::Display) -> c_int {
    crate::error::refuse(name, error.raw_os_error(), reason);
    -1
}

/// The same for calls that return an address.
#[cfg(target_os = "linux")]
fn refuse_null<T>(name: &str, error: Errno, reason: impl std::fmt::Display) -> *mut T {
    crate::error::refuse_null(name, error.raw_os_error(), reason)
}
