//! What a program is told of a rail.

use std::fmt;
use std::time::Duration;

use fulmen_verbs::{Carrier, Gid, Mtu, QueuePairKind};

/// One end of a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RailEnd {
    /// The device's name on its host, which may change over a reboot.
    pub device: String,
    /// The port, from 1.
    pub port: u8,
    /// The port's address, by which the other end names it.
    pub gid: Gid,
    /// The address's index in the port's table.
    pub gid_index: u8,
    /// The queue pair (for frames, where a rail has several).
    pub queue_pair: u32,
}

impl fmt::Display for RailEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RailEnd { device, port, gid, gid_index, queue_pair } = self;
        write!(f, "{device} (port {port}, GID {gid} at index {gid_index}, queue pair {queue_pair})")
    }
}

/// What a link over devices runs over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RailInfo {
    /// This rank's end.
    pub here: RailEnd,
    /// The peer's end, as it says.
    pub there: RailEnd,
    /// The transport service: UC where one of both devices has nothing better.
    pub kind: QueuePairKind,
    /// What the device's bytes go over: hardware, or, where it is in software, shared memory or TCP, sealed or not.
    pub carrier: Carrier,
    /// The largest transmission unit of both ends.
    pub mtu: Mtu,
    /// Whether this rank's device does one-sided operations on the peer's memory. Else the peer's end of the link does all.
    pub one_sided: bool,
}

impl fmt::Display for RailInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} to {}", self.kind, self.here, self.there)?;
        match self.carrier {
            Carrier::Hardware => write!(f, ", in units of {} bytes", self.mtu.bytes()),
            carrier => write!(f, ", over {carrier}"),
        }
    }
}

/// How a rail is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RailState {
    /// It carries what there is to carry.
    Up,
    /// It is being made, at the start or anew, or tried.
    Coming,
    /// It has failed. It is made anew soon.
    Down {
        /// Why.
        cause: String,
    },
    /// It has failed so often that it is left alone for a while.
    Out {
        /// Why, the last time.
        cause: String,
        /// How long it is still left alone.
        rest: Duration,
    },
}

/// One rail of a link: what it is, how it is, and what was measured of it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RailStatus {
    /// What it runs over.
    pub info: RailInfo,
    /// How it is.
    pub state: RailState,
    /// Half of the shortest round trip of a few bytes that was seen. Links of one rail do not measure it.
    pub latency: Option<Duration>,
    /// Bytes a second of large messages to this rank, smoothed. Links of one rail do not measure it.
    pub bytes_per_second: Option<f64>,
    /// Bytes that this rank has sent over it.
    pub sent_bytes: u64,
    /// Bytes that came over it.
    pub received_bytes: u64,
    /// How often it has failed.
    pub failures: u64,
}
