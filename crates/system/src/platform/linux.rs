//! What is Linux's own: where the library is, and how RDMA is switched on.

use std::ffi::{OsString, c_int};
use std::path::{Path, PathBuf};

use fulmen_verbs::{GidKind, LinkLayer};

/// Looked for where the loader looks.
pub(crate) const LIBRARY: &str = "libibverbs.so.1";
pub(crate) const INSTALL: &str = "install it (package libibverbs1 with ibverbs-providers, or rdma-core)";
pub(crate) const NO_DEVICES: &str =
    "plug one in, load its driver, or add Soft-RoCE (`rdma link add rxe0 type rxe netdev …`)";

/// What to do where a call is not permitted.
pub(crate) const NOT_PERMITTED: &str =
    "not permitted: allow this user the files /dev/infiniband/uverbs*, by a udev rule or a group";

const INSTALL_DRIVERS: &str = "install its drivers (package ibverbs-providers, or rdma-core), of the library's version";
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

/// Where the kernel lists the devices that programs can open, each with the name that it has elsewhere.
const CLASS: &str = "/sys/class/infiniband_verbs";

/// The devices of the kernel in this folder: their names, and those of their files.
fn kernel_devices(class: &Path) -> Vec<(String, OsString)> {
    let entries = std::fs::read_dir(class).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let name = std::fs::read_to_string(entry.path().join("ibdev")).ok()?;
        Some((name.trim().to_owned(), entry.file_name()))
    });
    let mut named: Vec<_> = named.collect();
    named.sort();
    named
}

/// The names of the devices that the kernel has, if any, of which the library lists none; and the way out.
pub(crate) fn undriven_devices() -> Option<(Vec<String>, &'static str)> {
    // Devices of another network namespace are in the first folder only.
    let here = |name: &String| Path::new("/sys/class/infiniband").join(name).exists();
    let names: Vec<_> = kernel_devices(Path::new(CLASS)).into_iter().map(|(name, _)| name).filter(here).collect();
    (!names.is_empty()).then_some((names, INSTALL_DRIVERS))
}

/// The file that opening this device opens, or the folder of all.
pub(crate) fn device_file(device: &str) -> Option<PathBuf> {
    let found = kernel_devices(Path::new(CLASS)).into_iter().find(|(name, _)| name == device);
    let folder = Path::new("/dev/infiniband");
    Some(found.map_or_else(|| folder.to_owned(), |(_, file)| folder.join(file)))
}

/// The device's file, if this user may not open it. The library's own error number does not say so: after a refusal it
/// looks for the file at another place, and leaves behind what happened there.
pub(crate) fn forbidden_file(device: &str) -> Option<PathBuf> {
    device_file(device).filter(|path| !path.is_dir() && is_forbidden(path))
}

/// Whether this user may not read and write a file. Opening it is the only way to know: the rights of a container to
/// devices are not in the file's mode.
fn is_forbidden(path: &Path) -> bool {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(path);
    opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

pub(crate) const ALLOW: &str = "allow it by a udev rule or its group";

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_may_not_be_written_is_forbidden() {
        // Refused to everybody, the superuser, too.
        assert!(is_forbidden(Path::new("/proc/sys/kernel/osrelease")));
        assert!(!is_forbidden(Path::new("/dev/null")) && !is_forbidden(Path::new("/nowhere/uverbs0")));
        assert_eq!(forbidden_file("a device that nobody has"), None);
    }

    #[test]
    fn the_kernels_devices_have_the_names_that_they_have_elsewhere() {
        let class = tempfile::tempdir().expect("a folder");
        assert!(kernel_devices(class.path()).is_empty() && kernel_devices(Path::new("/nowhere")).is_empty());
        for (file, name) in [("uverbs1", "mlx5_1\n"), ("uverbs0", "mlx5_0\n")] {
            std::fs::create_dir(class.path().join(file)).expect("a folder");
            std::fs::write(class.path().join(file).join("ibdev"), name).expect("it is written");
        }
        std::fs::write(class.path().join("abi_version"), "6\n").expect("it is written");
        let expected = [("mlx5_0".to_owned(), "uverbs0".into()), ("mlx5_1".to_owned(), "uverbs1".into())];
        assert_eq!(kernel_devices(class.path()), expected);
    }
}
