//! What is Linux's own: where the library is, and how RDMA is switched on.

use std::path::Path;

/// Looked for where the loader looks.
pub(crate) const LIBRARY: &str = "libibverbs.so.1";
pub(crate) const INSTALL: &str = "install it (package libibverbs1 with ibverbs-providers, or rdma-core)";
pub(crate) const NO_DEVICES: &str =
    "plug one in, load its driver, or add Soft-RoCE (`rdma link add rxe0 type rxe netdev …`)";

const SWITCH_ON: &str = "load the drivers (`modprobe ib_uverbs` and the device's own)";

/// Whether RDMA is off, judged from what listing the devices left behind (`errno`, 0 for an empty list) and from the
/// system: what says so, and the way out.
pub(crate) fn switched_off(errno: i32) -> Option<(String, &'static str)> {
    const ENOSYS: i32 = 38;
    if errno == ENOSYS {
        return Some(("the kernel has no verbs: the module ib_uverbs is not loaded".to_owned(), SWITCH_ON));
    }
    if errno == 0 && std::env::var_os("FULMEN_VERBS_LIBRARY").is_none_or(|path| path.is_empty()) && !is_loaded() {
        return Some(("neither /sys/class/infiniband_verbs nor /dev/infiniband is there".to_owned(), SWITCH_ON));
    }
    None
}

fn is_loaded() -> bool {
    Path::new("/sys/class/infiniband_verbs").exists() || Path::new("/dev/infiniband").exists()
}

pub(crate) fn set_errno_zero() {
    // SAFETY: the place of this thread's error number is valid for as long as the thread runs.
    unsafe { *libc::__errno_location() = 0 };
}
