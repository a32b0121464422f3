//! Linux tells about itself in files.

use rustix::process::{Resource, getrlimit};

use super::super::ask::Asker;
use super::super::devices::Lock;
use super::super::report::Check;
use super::super::root::Root;

const NAME: &str = "rdma";
/// Kernels before it lack a call that Fulmen relies on (`pidfd_open`).
const OLDEST: (u32, u32) = (5, 3);
/// `CAP_IPC_LOCK`: the limit on locked memory does not hold.
const MAY_LOCK: u32 = 14;

/// The operating system and its version.
pub fn system(name: &'static str, version: Option<(u32, u32)>, release: &str, machine: &str) -> Check {
    let sentence = format!("Linux {release} on {machine}");
    match version {
        Some(version) if version >= OLDEST => Check::ok(name, sentence),
        _ => {
            Check::failure(name, format!("{sentence} is older than Fulmen needs"), "update the kernel to 5.3 or later")
        }
    }
}

/// The bridge that an interface is in.
pub fn bridge_of(root: &Root, _asker: &Asker, interface: &str) -> Option<String> {
    let place = format!("/sys/class/net/{interface}");
    let is_in_one = root.has(&format!("{place}/brport"));
    is_in_one.then(|| root.link(&format!("{place}/master")).unwrap_or_else(|| "a bridge".to_owned()))
}

/// How much memory this process may lock.
pub fn lock_limit(root: &Root) -> Lock {
    let capabilities = root.field("/proc/self/status", "CapEff");
    let capabilities = capabilities.and_then(|mask| u64::from_str_radix(&mask, 16).ok()).unwrap_or(0);
    if capabilities & (1 << MAY_LOCK) != 0 && in_first_namespace(root) {
        return Lock::Privileged;
    }
    getrlimit(Resource::Memlock).current.map_or(Lock::None, Lock::Limited)
}

/// Whether this process's capabilities are the machine's, and not only those of a user namespace (a rootless container): the
/// kernel asks for the former when memory is locked. A kernel without user namespaces has no such file.
fn in_first_namespace(root: &Root) -> bool {
    root.read("/proc/self/uid_map").is_none_or(|map| map.split_whitespace().eq(["0", "0", "4294967295"]))
}

/// Whether the kernel lets programs use RDMA devices.
pub fn switched_on(root: &Root, _asker: &Asker) -> Check {
    let devices = root.list("/sys/class/infiniband");
    let verbs = root.has("/sys/class/infiniband_verbs") || root.has("/sys/module/ib_uverbs");
    let nodes: Vec<String> =
        root.list("/dev/infiniband").into_iter().filter(|name| name.starts_with("uverbs")).collect();
    match (devices.as_slice(), verbs, nodes.as_slice()) {
        ([], false, _) => Check::warning(
            NAME,
            "the kernel has no RDMA: no device in /sys/class/infiniband, and ib_uverbs is not loaded; ranks of one host need \
             none, and ranks of several talk by TCP, which is slower",
            "load your adapter's driver (`modprobe mlx5_ib`) and `modprobe ib_uverbs`; where there is no adapter, `rdma link \
             add rxe0 type rxe netdev eth0` makes a device of a network interface",
        ),
        ([], true, _) => Check::warning(
            NAME,
            "ib_uverbs is loaded, but the kernel has no RDMA device (/sys/class/infiniband is empty)",
            "load your adapter's driver (`modprobe mlx5_ib`), or make a device of a network interface: `rdma link add rxe0 \
             type rxe netdev eth0`",
        ),
        (devices, false, _) => Check::failure(
            NAME,
            format!(
                "the kernel has {}, but ib_uverbs is not loaded, so that no program can use it",
                devices.join(", ")
            ),
            "modprobe ib_uverbs",
        ),
        (devices, true, []) => Check::failure(
            NAME,
            format!("the kernel has {}, but there is no /dev/infiniband/uverbsN to use it by", devices.join(", ")),
            "let udev make the files (`udevadm trigger`); into a container they are handed with `--device /dev/infiniband`",
        ),
        (devices, true, nodes) => Check::ok(
            NAME,
            format!("ib_uverbs is loaded: {} by /dev/infiniband/{}", devices.join(", "), nodes.join(", ")),
        ),
    }
}
