use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{CompletionQueue, Gid, Mtu, SharedReceiveQueue};

bitflags::bitflags! {
    /// What may be done to registered memory, and through a queue pair.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// The device may write it for this process: RECV, READ, atomics' old values.
        const LOCAL_WRITE = 1;
        /// Peers may WRITE it. Needs [`Access::LOCAL_WRITE`].
        const REMOTE_WRITE = 2;
        /// Peers may READ it.
        const REMOTE_READ = 4;
        /// Peers may use atomics on it. Needs [`Access::LOCAL_WRITE`].
        const REMOTE_ATOMIC = 8;
    }
}

/// The transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueuePairKind {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagram: each SEND says where it goes, and fits into one transmission unit.
    Ud,
}

impl fmt::Display for QueuePairKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueuePairKind::Rc => "RC",
            QueuePairKind::Uc => "UC",
            QueuePairKind::Ud => "UD",
        })
    }
}

/// What the bytes of a connected queue pair go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Carrier {
    /// What the device itself drives: a cable, a switch.
    Hardware,
    /// Memory that both processes map.
    SharedMemory,
    /// A TCP connection between two hosts.
    Tcp {
        /// Whether nobody in between can read or change them (TLS).
        sealed: bool,
    },
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Carrier::Hardware => "hardware",
            Carrier::SharedMemory => "shared memory",
            Carrier::Tcp { sealed: true } => "sealed TCP",
            Carrier::Tcp { sealed: false } => "plain TCP",
        })
    }
}

/// The states of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueuePairState {
    /// Newly made: nothing can be posted.
    Reset,
    /// RECVs can be posted, nothing arrives.
    Init,
    /// Ready to receive.
    ReadyToReceive,
    /// Ready to send.
    ReadyToSend,
    /// What was posted goes out, nothing new does.
    SendDrain,
    /// Something failed or the program said so: everything posted is flushed.
    Error,
}

impl fmt::Display for QueuePairState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueuePairState::Reset => "RESET",
            QueuePairState::Init => "INIT",
            QueuePairState::ReadyToReceive => "RTR",
            QueuePairState::ReadyToSend => "RTS",
            QueuePairState::SendDrain => "SQD",
            QueuePairState::Error => "ERR",
        })
    }
}

/// The limits of one queue pair, as asked for; a device may give more, and says what it gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairLimits {
    /// Depth of the send queue (requests, or frames: [`crate::DeviceLimits::frame`]).
    pub send_depth: u32,
    /// Depth of the receive queue (requests, or frames: [`crate::DeviceLimits::frame`]).
    pub recv_depth: u32,
    /// Scatter/gather elements of a SEND, WRITE, READ.
    pub send_pieces: u32,
    /// Scatter elements of a RECV.
    pub recv_pieces: u32,
    /// Bytes that a request can carry inline.
    pub inline_bytes: u32,
}

/// What a queue pair is made of.
#[derive(Clone)]
pub struct QueuePairInit {
    /// Its transport service.
    pub kind: QueuePairKind,
    /// Where sends complete.
    pub send_cq: Arc<dyn CompletionQueue>,
    /// Where receives complete; may be the same.
    pub recv_cq: Arc<dyn CompletionQueue>,
    /// Its limits.
    pub limits: QueuePairLimits,
    /// Every send request completes visibly, whether it asks or not.
    pub signal_all: bool,
    /// Where its RECVs come from, instead of a receive queue of its own.
    pub srq: Option<Arc<dyn SharedReceiveQueue>>,
}

/// An acknowledgement time-out as the field encodes it: 4.096 µs × 2^n, 0 for none; n at most 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckTimeout(pub u8);

impl AckTimeout {
    /// How long it is; `None` means for ever.
    #[must_use]
    pub fn duration(self) -> Option<Duration> {
        (self.0 != 0).then(|| Duration::from_nanos(4096 << u32::from(self.0.min(31))))
    }
}

/// How long a sender waits after a receiver was not ready, as the field encodes it (0 to 31).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(pub u8);

impl RnrTimer {
    /// How long it is (InfiniBand specification, table of RNR NAK timer encodings).
    #[must_use]
    pub fn duration(self) -> Duration {
        const HUNDREDTHS_OF_MS: [u32; 32] = [
            65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
            4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
        ];
        Duration::from_micros(u64::from(HUNDREDTHS_OF_MS[usize::from(self.0 & 31)]) * 10)
    }
}

/// Where a queue pair's peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The peer's address, out of its GID table.
    pub remote_gid: Gid,
    /// The address of the peer's port within the subnet ([`PortInfo::lid`](crate::PortInfo::lid)); 0 but on InfiniBand.
    pub remote_lid: u16,
    /// The index of this side's own address, in its GID table.
    pub local_gid_index: u8,
    /// The peer's queue pair.
    pub remote_qp: u32,
    /// The transmission unit: the smaller of both sides'.
    pub mtu: Mtu,
}

/// Where the messages of an address handle go: a port, of which each message names the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPath {
    /// This side's port, from 1.
    pub port: u8,
    /// The peer's address, out of its GID table; all zero where the LID alone says where it is.
    pub remote_gid: Gid,
    /// The address of the peer's port within the subnet ([`PortInfo::lid`](crate::PortInfo::lid)); 0 but on InfiniBand.
    pub remote_lid: u16,
    /// The index of this side's own address, in its GID table.
    pub local_gid_index: u8,
}

/// A change of a queue pair's state, with the attributes that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// Back to the beginning: everything posted is forgotten, without completions.
    Reset,
    /// RESET → INIT.
    Init {
        /// The port, from 1.
        port: u8,
        /// What peers may do through this queue pair.
        access: Access,
    },
    /// INIT → RTR.
    ReadyToReceive {
        /// The peer.
        path: Path,
        /// The first sequence number expected (24 bits).
        recv_psn: u32,
        /// READs and atomics that the peer may have in flight here.
        reads_served: u8,
        /// How long a peer waits when no RECV is posted here.
        min_rnr_timer: RnrTimer,
    },
    /// RTR → RTS.
    ReadyToSend {
        /// The first sequence number sent (24 bits).
        send_psn: u32,
        /// How long an acknowledgement may take.
        timeout: AckTimeout,
        /// How often a request is sent again (0 to 7).
        retries: u8,
        /// How often a request is sent again to a receiver that was not ready (0 to 6; 7: for ever).
        rnr_retries: u8,
        /// READs and atomics in flight from here.
        reads_in_flight: u8,
    },
    /// RESET → INIT of a datagram queue pair.
    DatagramInit {
        /// The port, from 1.
        port: u8,
        /// Messages that bring another key are not taken.
        qkey: u32,
    },
    /// INIT → RTR of a datagram queue pair.
    DatagramReceive,
    /// RTR → RTS of a datagram queue pair.
    DatagramSend {
        /// The first sequence number sent (24 bits).
        send_psn: u32,
    },
    /// RTS → SQD.
    SendDrain,
    /// Any state → ERR: everything posted completes with a flush error.
    Error,
}

impl Transition {
    /// The state that it leads to.
    #[must_use]
    pub fn target(&self) -> QueuePairState {
        match self {
            Transition::Reset => QueuePairState::Reset,
            Transition::Init { .. } | Transition::DatagramInit { .. } => QueuePairState::Init,
            Transition::ReadyToReceive { .. } | Transition::DatagramReceive => QueuePairState::ReadyToReceive,
            Transition::ReadyToSend { .. } | Transition::DatagramSend { .. } => QueuePairState::ReadyToSend,
            Transition::SendDrain => QueuePairState::SendDrain,
            Transition::Error => QueuePairState::Error,
        }
    }

    /// Whether a queue pair in state `from` may make it.
    #[must_use]
    pub fn is_legal_from(&self, from: QueuePairState) -> bool {
        use QueuePairState as S;
        match self.target() {
            S::Reset | S::Error => true,
            S::Init => matches!(from, S::Reset | S::Init),
            S::ReadyToReceive => from == S::Init,
            S::ReadyToSend => matches!(from, S::ReadyToReceive | S::ReadyToSend | S::SendDrain),
            S::SendDrain => matches!(from, S::ReadyToSend | S::SendDrain),
        }
    }
}
