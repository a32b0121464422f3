//! What is Apple's own: where the library is, and how RDMA is switched on.

/// It lies in the loader's cache, and not as a file: it is opened and never looked at.
pub(crate) const LIBRARY: &str = "/usr/lib/librdma.dylib";
pub(crate) const INSTALL: &str = "RDMA over Thunderbolt needs macOS 26.2 or later on Apple silicon with Thunderbolt 5";
pub(crate) const NO_DEVICES: &str =
    "switch RDMA on (`rdma_ctl enable` in Recovery) on a machine with Thunderbolt 5, and connect a cable";

const SWITCH_ON: &str = "start in Recovery, run `rdma_ctl enable` in its Terminal, and restart";

/// Whether RDMA is off, judged from what listing the devices left behind (`errno`, 0 for an empty list): what says so,
/// and the way out.
pub(crate) fn switched_off(errno: i32) -> Option<(String, &'static str)> {
    let text = match errno {
        0 => "the library lists no device",
        _ => "the library cannot list devices",
    };
    Some((text.to_owned(), SWITCH_ON))
}

pub(crate) fn set_errno_zero() {
    // SAFETY: the place of this thread's error number is valid for as long as the thread runs.
    unsafe { *libc::__error() = 0 };
}
