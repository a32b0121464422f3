//! The machine's own RDMA devices, through its own library: `libibverbs.so.1` on Linux, `librdma.dylib` on macOS, opened at
//! run time.
//!
//! [`Library::open`] opens it, [`Library::devices`] lists what the machine has, and [`Library::open_device`] gives a
//! [`fulmen_verbs::Device`]. What a device can do is asked of it. An absent library, a machine without devices, one
//! whose devices the library cannot drive, RDMA that is switched off and a missing permission are different errors
//! ([`OpenError`]), and error numbers are told in words, with a way out ([`errno`]).
//!
//! `FULMEN_VERBS_LIBRARY` names another library than the machine's own.
#![warn(missing_docs)]

mod attributes;
mod completion;
mod device;
mod domain;
pub mod errno;
mod error;
mod ffi;
mod gid;
mod inflight;
#[doc(hidden)]
pub mod layout;
mod library;
mod pair;
#[cfg_attr(target_os = "linux", path = "platform/linux.rs")]
#[cfg_attr(target_os = "macos", path = "platform/macos.rs")]
mod platform;
mod transport;

pub use attributes::{Attributes, PortSpeed};
pub use device::SystemDevice;
pub use error::OpenError;
pub use library::{FoundDevice, Library, Symbol};
pub use transport::Transport;
