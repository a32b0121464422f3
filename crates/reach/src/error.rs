use std::fmt;
use std::io;
use std::time::Duration;

use fulmen_memory::RegionError;
use rustix::io::Errno;

use crate::NodeAddress;

/// Why a peer's memory cannot be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReachError {
    /// The bytes are no address of a node.
    #[error("these bytes are no address of a node: another version of Fulmen made them")]
    Address,
    /// The peer runs on another host.
    #[error("{peer} is on another host, whose memory cannot be mapped: use a device")]
    OtherHost {
        /// The peer.
        peer: NodeAddress,
    },
    /// The peer has ended.
    #[error("{} is gone: nobody answers for its node any more", process(*pid))]
    Gone {
        /// The peer's process.
        pid: u32,
    },
    /// The peer answered that it will not.
    #[error("{} refused: {reason}", process(*pid))]
    Refused {
        /// The peer's process.
        pid: u32,
        /// Why.
        reason: Refusal,
    },
    /// The peer did not answer in time. It may be stopped or busy; it has not ended.
    #[error("{} did not {action} within {waited:?}: it lives, but is stopped or overloaded", process(*pid))]
    TimedOut {
        /// The peer's process.
        pid: u32,
        /// What was asked for.
        action: &'static str,
        /// The deadline that was given.
        waited: Duration,
    },
    /// The peer belongs to another user.
    #[error("{} runs as user {user}: run all processes as one user", process(*pid))]
    OtherUser {
        /// The peer's process.
        pid: u32,
        /// Its user.
        user: u32,
    },
    /// The peer speaks another version of the protocol.
    #[error("{} speaks version {theirs} of the protocol and this one {ours}: run one version of Fulmen", process(*pid))]
    Version {
        /// The peer's process.
        pid: u32,
        /// Its version.
        theirs: u16,
        /// The version spoken here.
        ours: u16,
    },
    /// The peer sent what the protocol does not know.
    #[error("{} sent bytes that are no part of the protocol: it is no node of Fulmen", process(*pid))]
    Foreign {
        /// The peer's process.
        pid: u32,
    },
    /// The region has no descriptor that could be handed over.
    #[error("the region cannot be shared, since it was not made by `Region::alloc`: allocate shared memory there")]
    NotShareable,
    /// This process has too many open descriptors.
    #[error("no descriptor left to {action} ({cause}): raise the limit (`ulimit -n`)")]
    Descriptors {
        /// What was being done.
        action: &'static str,
        /// What the system said.
        cause: io::Error,
    },
    /// The memory was handed over and cannot be mapped.
    #[error("cannot map the memory of {}: {cause}", process(*pid))]
    Memory {
        /// The peer's process.
        pid: u32,
        /// Why.
        #[source]
        cause: RegionError,
    },
    /// The system refused for another reason.
    #[error("cannot {action}: {cause}")]
    System {
        /// What was being done.
        action: &'static str,
        /// What the system said.
        cause: io::Error,
    },
}

/// Why a peer refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It shares nothing under this key, or does so no more.
    #[error("it shares no region under this key")]
    UnknownKey,
    /// It serves as many connections as it can.
    #[error("it serves as many connections as it can: end some processes")]
    Busy,
    /// The system would not pass the descriptor on.
    #[error("its system passes no more descriptors on: raise the limit (`ulimit -n`)")]
    Descriptors,
}

/// A process in words; 0 is one whose number is not known.
pub(crate) fn process(pid: u32) -> impl fmt::Display {
    fmt::from_fn(move |f| if pid == 0 { f.write_str("a process") } else { write!(f, "process {pid}") })
}

/// Names what was being done when the system refused.
pub(crate) trait System<T> {
    fn system(self, action: &'static str) -> Result<T, ReachError>;
}

impl<T, E: Into<io::Error>> System<T> for Result<T, E> {
    fn system(self, action: &'static str) -> Result<T, ReachError> {
        self.map_err(|cause| {
            let cause = cause.into();
            match Errno::from_io_error(&cause) {
                Some(Errno::MFILE | Errno::NFILE) => ReachError::Descriptors { action, cause },
                _ => ReachError::System { action, cause },
            }
        })
    }
}
