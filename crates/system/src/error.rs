use std::path::{Path, PathBuf};

/// Why the machine's library or a device of it could not be opened.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// The verbs library is not there.
    #[error("the verbs library {path} cannot be opened ({cause}): {way_out}")]
    NoLibrary {
        /// What was to be opened.
        path: PathBuf,
        /// What the loader said.
        cause: String,
        /// What to do.
        way_out: &'static str,
    },
    /// The library lacks a call that is needed.
    #[error("the verbs library {path} has no {symbol}: it is too old or no verbs library; install another")]
    MissingSymbol {
        /// The library.
        path: PathBuf,
        /// The call.
        symbol: &'static str,
    },
    /// The library works, and lists no device.
    #[error("the verbs library lists no RDMA device: {way_out}")]
    NoDevices {
        /// What to do; on macOS, where the library does not say whether RDMA is off, what it may be.
        way_out: &'static str,
    },
    /// The system has devices, and the library has no driver for any of them.
    #[error("the system has {}, and the verbs library has no driver for it: {way_out}", list(devices))]
    NoDriver {
        /// The devices of the system.
        devices: Vec<String>,
        /// What to do.
        way_out: &'static str,
    },
    /// RDMA is switched off, or its drivers are not loaded.
    #[error("RDMA is switched off on this machine ({cause}): {way_out}")]
    SwitchedOff {
        /// What says so.
        cause: String,
        /// What to do.
        way_out: &'static str,
    },
    /// The device may not be opened by this user.
    #[error("{device} may not be opened by this user{}: {way_out}", not_open(path.as_deref()))]
    Permission {
        /// The device.
        device: String,
        /// The file behind it, where devices have files.
        path: Option<PathBuf>,
        /// What to do.
        way_out: &'static str,
    },
    /// There is no device of this name.
    #[error("this machine has no RDMA device {name:?}: it has {}", list(known))]
    UnknownDevice {
        /// The name.
        name: String,
        /// The names of those that there are.
        known: Vec<String>,
    },
    /// The device speaks iWARP, whose connections are made by another library.
    #[error(
        "{name} speaks iWARP, whose connections only librdmacm makes: use a RoCE, InfiniBand or Thunderbolt device"
    )]
    Iwarp {
        /// The device.
        name: String,
    },
    /// A call of the library failed.
    #[error("{device}: {call} failed: {cause}")]
    Call {
        /// The device, or the library.
        device: String,
        /// The call.
        call: &'static str,
        /// The error's number, positive.
        errno: i32,
        /// What it means and what to do.
        cause: String,
    },
}

fn not_open(path: Option<&Path>) -> String {
    path.map(|path| format!(" ({} is not readable and writable)", path.display())).unwrap_or_default()
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
