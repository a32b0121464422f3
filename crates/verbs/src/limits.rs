use std::fmt;

use fulmen_memory::ChunkRule;

use crate::QueuePairKind;

/// What a device is and can do.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Its name, as the system gives it; it may change over a reboot.
    pub name: String,
    /// Who provides it: a word such as `soft`, for people.
    pub provider: &'static str,
    /// How many ports it has; they are numbered from 1.
    pub ports: u8,
    /// Its limits.
    pub limits: DeviceLimits,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// A device's limits. Fulmen refuses what exceeds one before the device is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Queue pairs of one process.
    pub queue_pairs: u32,
    /// Completion queues of one process.
    pub completion_queues: u32,
    /// Entries of one completion queue.
    pub completion_entries: u32,
    /// Registrations of one process.
    pub memory_regions: u32,
    /// Protection domains of one process.
    pub protection_domains: u32,
    /// Depth of a send or receive queue: requests, or frames of [`DeviceLimits::frame`] bytes where that is set.
    pub queue_depth: u32,
    /// Scatter/gather elements of one request.
    pub pieces: u32,
    /// Bytes that a request can carry inline.
    pub inline_bytes: u32,
    /// Bytes of one message.
    pub message_bytes: u64,
    /// Where set, the depth of a queue counts frames of so many bytes, and a SEND and its RECV must cover the same
    /// number of them.
    pub frame: Option<u32>,
    /// How one registration is limited.
    pub registration: ChunkRule,
    /// READs and atomics in flight on one queue pair, in either role.
    pub reads_in_flight: u8,
}

impl DeviceLimits {
    /// What a request of `bytes` bytes takes of a queue's depth.
    #[must_use]
    pub fn depth_of(&self, bytes: u64) -> u64 {
        self.frame.map_or(1, |frame| bytes.div_ceil(u64::from(frame)).max(1))
    }
}

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Reliable connected queue pairs.
    pub rc: bool,
    /// Unreliable connected queue pairs.
    pub uc: bool,
    /// Unreliable datagram queue pairs, and address handles.
    pub ud: bool,
    /// Shared receive queues.
    pub srq: bool,
    /// RDMA WRITE.
    pub write: bool,
    /// RDMA READ.
    pub read: bool,
    /// 8-byte fetch-and-add and compare-and-swap.
    pub atomics: bool,
    /// Its atomics are also atomic with those of the owner's processors, so that one word may see both.
    pub atomics_with_cpu: bool,
    /// 32 bits of immediate data with SEND and WRITE.
    pub immediate: bool,
    /// On UC, a SEND waits until the peer has posted a RECV, instead of being lost.
    pub holds_sends: bool,
    /// A completed SEND tells that the message was delivered (on RC).
    pub acknowledges: bool,
    /// A dead peer is told by a failed completion; otherwise there is silence.
    pub reports_dead_peers: bool,
    /// It registers memory of other devices, by the descriptor of a dma-buf.
    pub dma_buf: bool,
}

impl Capabilities {
    /// Whether the device has queue pairs of this kind.
    #[must_use]
    pub fn has(&self, kind: QueuePairKind) -> bool {
        match kind {
            QueuePairKind::Rc => self.rc,
            QueuePairKind::Uc => self.uc,
            QueuePairKind::Ud => self.ud,
        }
    }
}

/// A path's maximum transmission unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl Mtu {
    /// Its size in bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            Mtu::B256 => 256,
            Mtu::B512 => 512,
            Mtu::B1024 => 1024,
            Mtu::B2048 => 2048,
            Mtu::B4096 => 4096,
        }
    }
}

/// What a port speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// InfiniBand.
    Infiniband,
    /// Ethernet: RoCE.
    Ethernet,
    /// Thunderbolt.
    Thunderbolt,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkLayer::Infiniband => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
            LinkLayer::Thunderbolt => "Thunderbolt",
        })
    }
}

/// Whether a port can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortState {
    /// No cable, or switched off.
    Down,
    /// The link is coming up.
    Initializing,
    /// Configured, not yet active.
    Armed,
    /// Ready for traffic.
    Active,
}

/// One port of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it can be used.
    pub state: PortState,
    /// What it speaks.
    pub link_layer: LinkLayer,
    /// The largest transmission unit that it can use now.
    pub active_mtu: Mtu,
    /// How many entries its GID table has.
    pub gid_entries: u16,
    /// On InfiniBand the address by which switches find it, given by the subnet manager; elsewhere 0.
    pub lid: u16,
}
