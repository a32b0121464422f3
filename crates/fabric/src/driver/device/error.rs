use fulmen_verbs::{GidError, QueuePairKind, QueuePairState, VerbsError};

use super::info::RailEnd;
use crate::TopologyError;

/// Why devices do not connect the ranks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is none.
    #[error("there is no device to connect the ranks: give one, or turn windows on")]
    None,
    /// No device can be used.
    #[error("no device can be used: {}", .problems.join("; "))]
    Unusable {
        /// Why not, for each.
        problems: Vec<String>,
    },
    /// There are more ranks than the device connects.
    #[error(
        "{device} allows {limit} {what}, and {ranks} ranks need {needed} on each of them: start at most {} ranks, or give a device that allows more", most_ranks(*.limit, *.needed, *.ranks)
    )]
    TooManyRanks {
        /// The device.
        device: String,
        /// What is limited, in the plural.
        what: &'static str,
        /// What there is.
        limit: u64,
        /// What is needed.
        needed: u64,
        /// How many ranks there are.
        ranks: u32,
    },
    /// A link needs longer queues.
    #[error(
        "a link needs room for {needed} frames in a queue, and {device} has room for {limit}: lower the credits of links"
    )]
    Depth {
        /// The device.
        device: String,
        /// What is needed.
        needed: u64,
        /// What there is.
        limit: u64,
    },
    /// The memory takes more registrations than the device has.
    #[error("{device} allows {limit} registrations, and the pool needs {needed}: make it smaller (FULMEN_POOL)")]
    Registrations {
        /// The device.
        device: String,
        /// What is needed.
        needed: u64,
        /// What there is.
        limit: u64,
    },
    /// Both ends have devices, but no kind of queue pair in common.
    #[error(
        "rank {peer}'s {theirs} and this rank's {ours} have no kind of queue pair in common: give devices of one kind"
    )]
    Kinds {
        /// The device here.
        ours: String,
        /// The other rank.
        peer: u32,
        /// Its device.
        theirs: String,
    },
    /// Another rank's queue pairs belong to another run.
    #[error("rank {peer}'s queue pairs belong to another run of the program: stop what is left of it")]
    Generation {
        /// The other rank.
        peer: u32,
    },
    /// A call failed.
    #[error("{device}: cannot {what}: {cause}")]
    Call {
        /// The device.
        device: String,
        /// What was to be done.
        what: &'static str,
        /// Why it was not.
        cause: Box<VerbsError>,
    },
    /// A queue takes nothing.
    #[error(
        "{device} says that the receive queue for rank {peer} is full, and nothing is posted to it: end other programs that use the device, or give another one"
    )]
    Full {
        /// The device.
        device: String,
        /// The other rank.
        peer: u32,
    },
    /// A queue pair does not connect.
    #[error("{here} does not connect with rank {peer}'s {there}, going to {state}: {cause}")]
    Connect {
        /// The end here.
        here: Box<RailEnd>,
        /// The other rank.
        peer: u32,
        /// Its end.
        there: Box<RailEnd>,
        /// The state that the queue pair here was to go to.
        state: QueuePairState,
        /// Why it did not.
        cause: Box<VerbsError>,
    },
    /// A device has not what it says.
    #[error(
        "{device} says that it has {kind} queue pairs, and refuses to make one for the link with rank {peer}: update its driver, or give another device"
    )]
    Refuses {
        /// The device.
        device: String,
        /// The kind.
        kind: QueuePairKind,
        /// The other rank.
        peer: u32,
    },
    /// What another rank says of its device cannot be.
    #[error("rank {peer}'s {device} (port {port}) cannot be connected with: {problem}")]
    Told {
        /// The other rank.
        peer: u32,
        /// Its device.
        device: String,
        /// The port.
        port: u8,
        /// What is wrong.
        problem: String,
    },
    /// Another rank named a device of which it said nothing.
    #[error("rank {peer} names a device of which it says nothing: build all ranks from one release")]
    Unsaid {
        /// The other rank.
        peer: u32,
    },
    /// The cables name a device that this rank has not.
    #[error(
        "{device} is to lead to rank {peer}, and this rank has no such device ({}): correct the list of cables",
        if .known.is_empty() { "it has none".to_owned() } else { format!("it has {}", .known.join(", ")) }
    )]
    UnknownCable {
        /// The name.
        device: String,
        /// The other rank.
        peer: u32,
        /// The names of the devices that there are.
        known: Vec<String>,
    },
    /// The cables that are named do not connect the ranks.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// No device that leads to a rank can be used.
    #[error("no cable to rank {peer} can be used: {}", .problems.join("; "))]
    DeadCable {
        /// The other rank.
        peer: u32,
        /// Why not, for each.
        problems: Vec<String>,
    },
    /// No cable between two ranks can be used at both ends.
    #[error(
        "no cable to rank {peer} can be used at both ends (here {}, there {}, in the order of the list): list them in one order, and see to those that are missing",
        .ours.join(" and "), .theirs.join(" and ")
    )]
    NoCommonCable {
        /// The other rank.
        peer: u32,
        /// The devices that can be used here; `none` for others.
        ours: Vec<String>,
        /// The same there.
        theirs: Vec<String>,
    },
    /// There is no thread to wait on a device's channel.
    #[error("no thread to wait on the channel of a device: {0}")]
    Thread(std::io::Error),
    /// There is no memory for frames.
    #[error("no memory for frames: {0}")]
    Memory(String),
    /// The system gave no random numbers.
    #[error("the system gave no random numbers: {0}")]
    Random(getrandom::Error),
}

/// Why a port of a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum PortError {
    #[error("{device} cannot be asked about port {port}: {cause}")]
    Unknown { device: String, port: u8, cause: VerbsError },
    #[error("port {port} of {device} is not active: connect its cable")]
    Inactive { device: String, port: u8 },
    #[error("port {port} of {device}: {cause}")]
    Gid { device: String, port: u8, cause: GidError },
    #[error("{device} has neither RC nor UC queue pairs")]
    NoPairs { device: String },
    #[error("{device} has no ports")]
    NoPorts { device: String },
}

impl PortError {
    /// Whether it may be different in a moment.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, PortError::Inactive { .. } | PortError::Gid { .. })
    }
}

/// How many ranks would fit, where the need grows with the other ranks.
fn most_ranks(limit: u64, needed: u64, ranks: u32) -> u64 {
    let each = needed / u64::from(ranks.max(2) - 1);
    1 + limit / each.max(1)
}

/// Why a call did not do what it was to do.
pub(super) fn call<'a>(device: &'a str, what: &'static str) -> impl Fn(VerbsError) -> DeviceError + 'a {
    move |cause| DeviceError::Call { device: device.to_owned(), what, cause: Box::new(cause) }
}
