use fulmen_verbs::{GidError, QueuePairState, VerbsError};

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
    /// A queue pair does not connect.
    #[error(
        "queue pair {qp} of {device} does not connect with queue pair {peer_qp} of rank {peer}'s {peer_device} (going to {state}): {cause}"
    )]
    Connect {
        /// The device here.
        device: String,
        /// The queue pair here.
        qp: u32,
        /// The other rank.
        peer: u32,
        /// Its device.
        peer_device: String,
        /// Its queue pair.
        peer_qp: u32,
        /// The state that the queue pair here was to go to.
        state: QueuePairState,
        /// Why it did not.
        cause: Box<VerbsError>,
    },
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

/// How many ranks would fit, where the need grows with the other ranks.
fn most_ranks(limit: u64, needed: u64, ranks: u32) -> u64 {
    let each = needed / u64::from(ranks.max(2) - 1);
    1 + limit / each.max(1)
}
