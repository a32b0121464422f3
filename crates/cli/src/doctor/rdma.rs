//! Whether RDMA is switched on in the kernel.

use super::report::Check;
use super::root::Root;

const NAME: &str = "rdma";

/// Whether the kernel lets programs use RDMA devices.
pub fn switched_on(root: &Root) -> Check {
    let devices = root.list("/sys/class/infiniband");
    let verbs = root.has("/sys/class/infiniband_verbs") || root.has("/sys/module/ib_uverbs");
    let nodes: Vec<String> =
        root.list("/dev/infiniband").into_iter().filter(|name| name.starts_with("uverbs")).collect();
    match (devices.as_slice(), verbs, nodes.as_slice()) {
        ([], false, _) => Check::warning(
            NAME,
            "the kernel has no RDMA: no device in /sys/class/infiniband, and ib_uverbs is not loaded; ranks of one host need \
             none, ranks of several do",
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
