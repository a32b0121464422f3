use crate::{QueuePairKind, QueuePairState};

/// Why a device refused a call.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerbsError {
    /// More was asked for than the device has.
    #[error("{device} allows {limit} {what}, and {asked} were asked for")]
    Limit {
        /// The device.
        device: String,
        /// What is limited, in the plural, with its unit.
        what: &'static str,
        /// What was asked for.
        asked: u64,
        /// What there is.
        limit: u64,
    },
    /// The device cannot do this at all.
    #[error("{device} has no {what}")]
    Unsupported {
        /// The device.
        device: String,
        /// What it lacks.
        what: &'static str,
    },
    /// The device has no queue pairs of this kind.
    #[error("{device} has no {kind} queue pairs: use another kind")]
    NoSuchKind {
        /// The device.
        device: String,
        /// The kind.
        kind: QueuePairKind,
    },
    /// An argument makes no sense.
    #[error("{what}: {problem}")]
    Invalid {
        /// The argument.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The queue pair is in the wrong state.
    #[error("queue pair {qp_num} is in state {state}, and {action} needs {needed}")]
    State {
        /// The queue pair.
        qp_num: u32,
        /// Its state.
        state: QueuePairState,
        /// What was asked for.
        action: &'static str,
        /// The states in which that is possible.
        needed: &'static str,
    },
    /// The queue has no room.
    #[error("the {queue} queue of queue pair {qp_num} holds {depth} and is full: poll for completions first")]
    QueueFull {
        /// Send or receive.
        queue: &'static str,
        /// The queue pair.
        qp_num: u32,
        /// Its depth.
        depth: u32,
    },
    /// A completion queue received more than it holds; what came after that is lost.
    #[error("a completion queue of {entries} entries overflowed: make it as large as the queues that complete into it")]
    Overflow {
        /// Its entries.
        entries: u32,
    },
    /// The object belongs to another device or domain.
    #[error("{what} belongs to another device: use objects of {device} alone")]
    Foreign {
        /// What.
        what: &'static str,
        /// The device that was asked.
        device: String,
    },
    /// The peer cannot be reached.
    #[error("queue pair {qp_num} cannot reach {peer}: {cause}")]
    Unreachable {
        /// The queue pair.
        qp_num: u32,
        /// The peer's address.
        peer: String,
        /// Why.
        cause: String,
    },
    /// The peer's queue pair is still that of an earlier connection.
    #[error("queue pair {qp_num} cannot be connected to queue pair {remote_qp} of {peer}, which {problem}")]
    Stale {
        /// The queue pair.
        qp_num: u32,
        /// The peer's address.
        peer: String,
        /// The peer's queue pair.
        remote_qp: u32,
        /// How it is, and the way out.
        problem: String,
    },
    /// The system refused.
    #[error("{device}: {call} failed: {cause}")]
    System {
        /// The device.
        device: String,
        /// What was called.
        call: &'static str,
        /// Why, in the system's words and ours.
        cause: String,
    },
}

/// Why a list of requests was not posted whole. Those before `index` were posted.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[error("request {index} was not posted: {cause}")]
pub struct PostError {
    /// The first request that was refused.
    pub index: usize,
    /// Why.
    #[source]
    pub cause: VerbsError,
}
