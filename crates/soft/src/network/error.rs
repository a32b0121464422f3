//! Why a device of another host cannot be reached, and why a connection is over.

use std::net::SocketAddr;
use std::time::Duration;
use std::{fmt, io};

use fulmen_verbs::Gid;

use super::hello::VERSION;

/// Why nothing could be agreed on with the device at an address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreached {
    #[error(
        "a device of the network goes by its IP address as GID and its TCP port as LID, and {gid} with LID {lid} is none"
    )]
    Address { gid: Gid, lid: u16 },
    #[error("nobody listens at {0}: its program is not there (any more), or this is the address of another one")]
    Refused(SocketAddr),
    #[error("there is no route to {peer}: {cause}")]
    NoRoute { peer: SocketAddr, cause: io::Error },
    #[error(
        "the host of {peer} did not answer for {waited:.1?}: is it up, and does a firewall drop what goes to this port?"
    )]
    TimedOut { peer: SocketAddr, waited: Duration },
    #[error(
        "{peer} took the connection and then said nothing for {waited:.1?}: its process is stopped, or it is no device"
    )]
    Silent { peer: SocketAddr, waited: Duration },
    #[error("{peer} is not a Fulmen device: it answered \"{said}\"")]
    NotFulmen { peer: SocketAddr, said: String },
    #[error(
        "{peer} speaks version {theirs} of this protocol, and this side version {VERSION}: use one release of Fulmen on all hosts"
    )]
    Version { peer: SocketAddr, theirs: u16 },
    #[error(
        "{0} seals its connections, and this side does not: give both the run's authority, or declare the network trusted for both"
    )]
    SealedThere(SocketAddr),
    #[error(
        "{0} does not seal its connections, and this side does: give both the run's authority, or declare the network trusted for both"
    )]
    PlainThere(SocketAddr),
    #[error("{peer} could not be trusted: {cause}")]
    Trust { peer: SocketAddr, cause: String },
    #[error("the device at {0} has another profile: open both with the same")]
    OtherProfile(SocketAddr),
    #[error("the device at {peer} has no queue pair {number}")]
    NoSuchPair { peer: SocketAddr, number: u32 },
    #[error("queue pair {number} of the device at {peer} is of another kind")]
    OtherKind { peer: SocketAddr, number: u32 },
    #[error("the device at {peer} goes by {named}: use that address, by which others know it")]
    Alias { peer: SocketAddr, named: SocketAddr },
    #[error("the device at {0} has more connections to answer than it can: try again")]
    Busy(SocketAddr),
    #[error("{peer} ended the conversation: {cause}")]
    Closed { peer: SocketAddr, cause: io::Error },
    #[error("{0} says what no device says: is something between this host and it?")]
    Garbled(SocketAddr),
    #[error("no socket for a connection to {peer}: {cause}")]
    Socket { peer: SocketAddr, cause: io::Error },
}

/// Why two queue pairs did not meet.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The peer's is that of an earlier connection, and stayed it until the deadline.
    Stale(&'static str),
    Unreached(Unreached),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Stale(problem) => write!(f, "the peer's queue pair {problem}"),
            Failure::Unreached(cause) => cause.fmt(f),
        }
    }
}

impl From<Unreached> for Failure {
    fn from(cause: Unreached) -> Failure {
        Failure::Unreached(cause)
    }
}

/// A connection is over, for this reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Ended(pub(crate) String);

impl Ended {
    pub(super) fn in_order() -> Ended {
        Ended("the peer closed the connection".to_owned())
    }

    pub(super) fn of(error: &io::Error) -> Ended {
        Ended(match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => {
                "the peer's process ended, or closed the connection in the middle of something".to_owned()
            }
            io::ErrorKind::TimedOut => {
                "nothing came back from the peer's host: it is off, or the network is".to_owned()
            }
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => {
                format!("the peer's host can no longer be reached: {error}")
            }
            _ => format!("the connection broke: {error}"),
        })
    }
}
