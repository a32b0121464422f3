//! What is Apple's own: where the library is, and how RDMA is switched on.

use std::ffi::c_int;
use std::path::PathBuf;

use fulmen_verbs::{GidKind, LinkLayer};

/// It lies in the loader's cache, and not as a file: it is opened and never looked at.
pub(crate) const LIBRARY: &str = "/usr/lib/librdma.dylib";
pub(crate) const INSTALL: &str = "RDMA over Thunderbolt needs macOS 26.2 or later on Apple silicon with Thunderbolt 5";
/// The library does not tell the two apart.
pub(crate) const NO_DEVICES: &str = "RDMA is off (start in Recovery, run `rdma_ctl enable` in its Terminal, and \
     restart), or this machine has no Thunderbolt 5 port";
/// What to do where a call is not permitted.
pub(crate) const NOT_PERMITTED: &str = "not permitted: run as a user who may use RDMA, and outside of sandboxes";

const SWITCH_ON: &str = "start in Recovery, run `rdma_ctl enable` in its Terminal, and restart";

/// Whether RDMA is off, judged from what listing the devices left behind (`errno`, 0 for an empty list): what says so,
/// and the way out. An empty list says nothing: there may be no port.
pub(crate) fn switched_off(errno: i32, _another: bool) -> Option<(String, &'static str)> {
    (errno != 0).then(|| (format!("the library cannot list devices, error {errno}"), SWITCH_ON))
}

pub(crate) fn set_errno_zero() {
    // SAFETY: the place of this thread's error number is valid for as long as the thread runs.
    unsafe { *libc::__error() = 0 };
}

/// Whether the descriptor of events about a device can be trusted: nobody has tried.
pub(crate) const HAS_EVENTS: bool = false;
/// Whether the call that registers dma-bufs can be trusted: it is there, and no header declares it.
pub(crate) const HAS_DMA_BUFS: bool = false;
/// Whether the call that gives all addresses can be trusted: nobody has tried.
pub(crate) const HAS_GID_TABLES: bool = false;

/// Only the library knows the devices.
pub(crate) fn undriven_devices() -> Option<(Vec<String>, &'static str)> {
    None
}

/// What opening a device opens has no name here.
pub(crate) fn device_file(_device: &str) -> Option<PathBuf> {
    None
}

/// As there are no files, none is forbidden.
pub(crate) fn forbidden_file(_device: &str) -> Option<PathBuf> {
    None
}

pub(crate) const ALLOW: &str = "run as a user who may use RDMA, and outside of sandboxes";

/// Devices have no files here.
pub(crate) fn no_device_files(_another: bool) -> Option<(String, &'static str)> {
    None
}

/// The system tells neither the kind of a GID nor the interface behind it.
pub(crate) fn gid(_device: &str, _port: u8, _index: u8, _link_layer: LinkLayer) -> (GidKind, Option<bool>) {
    (GidKind::Unknown, None)
}

/// Makes reading a descriptor never wait. Whether that was possible.
pub(crate) fn unblock(fd: c_int) -> bool {
    // SAFETY: two calls with numbers only, on a descriptor of the library's.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
    }
}
