//! What is Linux's own: where the library is, and how RDMA is switched on.

use std::ffi::c_int;
use std::path::{Path, PathBuf};

use fulmen_verbs::{GidKind, LinkLayer};

/// Looked for where the loader looks.
pub(crate) const LIBRARY: &str = "libibverbs.so.1";
pub(crate) const INSTALL: &str = "install it (package libibverbs1 with ibverbs-providers, or rdma-core)";
pub(crate) const NO_DEVICES: &str =
    "plug one in, load its driver, or add Soft-RoCE (`rdma link add rxe0 type rxe netdev …`)";

const SWITCH_ON: &str = "load the drivers (`modprobe ib_uverbs` and the device's own)";

/// Whether RDMA is off, judged from what listing the devices left behind (`errno`, 0 for an empty list) and from the
/// system, unless another library than the machine's own was asked: what says so, and the way out.
pub(crate) fn switched_off(errno: i32, another: bool) -> Option<(String, &'static str)> {
    const ENOSYS: i32 = 38;
    if errno == ENOSYS {
        return Some(("the kernel has no verbs: the module ib_uverbs is not loaded".to_owned(), SWITCH_ON));
    }
    if errno == 0 && !another && !is_loaded() {
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

/// Whether the descriptor of events about a device can be trusted.
pub(crate) const HAS_EVENTS: bool = true;
/// Whether the call that registers dma-bufs can be trusted.
pub(crate) const HAS_DMA_BUFS: bool = true;
/// Whether the call that gives all addresses can be trusted.
pub(crate) const HAS_GID_TABLES: bool = true;

/// The file that opening this device opens.
pub(crate) fn device_file(device: &str) -> PathBuf {
    let entries = std::fs::read_dir("/sys/class/infiniband_verbs").into_iter().flatten().flatten();
    let found = entries
        .into_iter()
        .find(|entry| std::fs::read_to_string(entry.path().join("ibdev")).is_ok_and(|name| name.trim() == device));
    match found {
        Some(entry) => Path::new("/dev/infiniband").join(entry.file_name()),
        None => PathBuf::from("/dev/infiniband"),
    }
}

/// Why a device that the machine's own library lists has no file: what says so, and the way out.
pub(crate) fn no_device_files(another: bool) -> Option<(String, &'static str)> {
    if another || Path::new("/dev/infiniband").exists() {
        return None;
    }
    let way_out = "load the module ib_uverbs, or hand /dev/infiniband to this container";
    Some(("there is no /dev/infiniband".to_owned(), way_out))
}

/// The kind of a port's GID, and whether the interface behind it is up.
pub(crate) fn gid(device: &str, port: u8, index: u8, link_layer: LinkLayer) -> (GidKind, Option<bool>) {
    let attributes = Path::new("/sys/class/infiniband").join(device).join(format!("ports/{port}/gid_attrs"));
    let read = |what: &str| std::fs::read_to_string(attributes.join(what).join(index.to_string())).ok();
    let kind = match read("types").as_deref().map(str::trim) {
        Some("RoCE v2") => GidKind::RoceV2,
        Some("IB/RoCE v1") if link_layer == LinkLayer::Ethernet => GidKind::RoceV1,
        Some("IB/RoCE v1") => GidKind::Infiniband,
        _ if link_layer == LinkLayer::Infiniband => GidKind::Infiniband,
        _ => GidKind::Unknown,
    };
    (kind, read("ndevs").and_then(|interface| is_up(interface.trim())))
}

/// Whether a network interface is up; `None` if it is not in this network namespace.
fn is_up(interface: &str) -> Option<bool> {
    let folder = Path::new("/sys/class/net").join(interface);
    match std::fs::read_to_string(folder.join("operstate")).ok()?.trim() {
        "up" => Some(true),
        // Interfaces without a notion of it, such as dummies: whether they were switched on.
        "unknown" => {
            let flags = std::fs::read_to_string(folder.join("flags")).ok()?;
            let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).ok()?;
            Some(flags & 1 != 0)
        }
        _ => Some(false),
    }
}

/// Makes reading a descriptor never wait. Whether that was possible.
pub(crate) fn unblock(fd: c_int) -> bool {
    // SAFETY: two calls with numbers only, on a descriptor of the library's.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
    }
}
