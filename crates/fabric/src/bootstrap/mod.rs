//! Ranks meet at a coordinator.
//!
//! A [`Coordinator`] serves one world of a fixed number of ranks over TCP. Each rank opens one [`Session`] with it. Both
//! sides show that they hold the same [`Secret`], and seal the connection with it, before anything that they say is parsed
//! ([`fulmen_trust`]); then the rank takes its seat, and [`Session::join`] returns once every seat is taken. The coordinator chooses a random generation, the same for all.
//!
//! On a session, ranks exchange blobs ([`Session::all_gather`]) and meet ([`Session::barrier`]). The connection stays open as
//! a liveness signal: when a rank's connection ends without a goodbye, all others are told at once.
//!
//! ```
//! use std::time::Duration;
//! use fulmen_fabric::bootstrap::{Coordinator, JoinConfig, Options, Secret, Session};
//!
//! let secret = Secret::generate()?;
//! let coordinator = Coordinator::bind("127.0.0.1:0".parse()?, 2, secret.clone(), Options::default())?.serve()?;
//! let join = |rank| JoinConfig {
//!     coordinator: coordinator.local_addr(),
//!     rank,
//!     size: 2,
//!     secret: secret.clone(),
//!     deadline: Duration::from_secs(60),
//! };
//! // Each rank is a process of its own as a rule.
//! let (zero, one) = (join(0), join(1));
//! let other = std::thread::spawn(move || Session::join(&one).unwrap().all_gather(b"one", one.deadline));
//! let blobs = Session::join(&zero)?.all_gather(b"zero", zero.deadline)?;
//! assert_eq!(blobs, [&b"zero"[..], b"one"]);
//! # assert_eq!(other.join().unwrap().unwrap(), blobs);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Generations
//!
//! The ranks of a world form a *generation*, with a random number of its own. The first one has all ranks. When a rank is lost,
//! no further round of the generation ends; the ranks that live call [`Session::regroup`] and get the session of the next one:
//!
//! - [`Regroup::Survivors`]: of those that live, under new numbers ([`Session::members`] says which ranks of the launch they
//!   are).
//! - [`Regroup::Everybody`]: of all ranks of the launch, once a process has come for each lost one. It comes through
//!   [`Session::join`], with the number of the lost rank, and waits there.
//!
//! The coordinator decides, so there is one answer for all: members, [failed ranks](Session::failed), number. Nobody takes
//! part in two generations: what is under way of an old one is dropped, by its number on the way to the coordinator and
//! by its place in the stream on the way from it.
//!
//! A rank that lost its connection may live. Its process is watched by a descriptor (Linux; by its number on macOS): where it is
//! known to have ended, it counts no more. For that, the rank must be on the coordinator's host and their processes see each
//! other's numbers, which each rank says when it joins (`FULMEN_HOST_ID` can say otherwise of its host): a number of another
//! host means nothing here. So of two halves of a world on two hosts, the greater goes on. All others that may live (stopped for longer than the silence, hung up, cut off) are counted, and ranks
//! that are not the majority of themselves and those get [`RegroupError::Partitioned`]. Only members of the last generation
//! count: those that it left behind can form none without the coordinator.
//!
//! | what happens to a rank | what it finds |
//! |---|---|
//! | it is stopped for longer than the silence, then continued | it is among the lost ([`Session::on_lost`]); its connection stands, so it may come back with everybody |
//! | what connects it with others breaks | it or they report that; the smaller side gets `Partitioned` |
//! | its connection to the coordinator breaks | [`SessionError::CoordinatorLost`], or the loss of the rank that serves it; it may join anew |
//! | another process has its seat by now | [`RegroupError::Replaced`] |
//!
//! # The bytes
//!
//! All integers are little-endian. A greeting of fixed size opens the connection, plain, so that another version and another
//! protocol are named as such. In its first 8 bytes it is the same in every version:
//!
//! | from | bytes |
//! |---|---|
//! | rank | `FULM`, version (u16), 0 (u16), 0 (32 bytes, which older versions wait for) |
//! | coordinator | `FULM`, version (u16), verdict (u16), 0 (32 bytes) |
//!
//! Then both are in the middle of a handshake of TLS 1.3, the rank as the client: each shows a certificate of the authority that
//! follows from the secret. The version is part of the handshake (as `fulmen-control/5`), so that whoever changes the plain one
//! on the way gains nothing.
//!
//! Frames follow: length of the message (u32), length of the body (u32), the message in postcard, the body as it is. Both
//! lengths are checked against the limits of the connection's state before a byte of the frame is stored.
//!
//! # A coordinator in a rank's process
//!
//! Where no launcher serves the coordinator, rank 0 does ([`launch`](crate::launch)), and the world ends with its process:
//! others learn of that by their connections' end and count rank 0 as lost; [`Session::regroup`] fails for them with
//! [`RegroupError::CoordinatorLost`]. When rank 0 only leaves, its process waits up to 10 s for the others to leave, too.
//!
//! # Bounds
//!
//! | what | bound |
//! |---|---|
//! | ranks of a world | [`MAX_RANKS`] |
//! | a blob of an all-gather | [`MAX_BLOB`] |
//! | time for a connection to greet, show who it is and take its seat | [`GREETING_TIMEOUT`] |
//! | connections at once without a seat | size + 16; the oldest makes way |
//! | silence of a connection | [`Heartbeat`], 10 s by default (`fulmen run --silence`), with heartbeats every 2 s |
//! | time for a process to end after its connection closed | 1 s; then it counts as one that may live |
//! | ranks with broken connections among which the largest whole set is found for certain | 16 |
//!
//! A process that ends, in whatever way, is noticed at once: the kernel hangs up for it. Heartbeats only find a connection
//! whose other end stopped without hanging up.

mod ask;
mod connection;
mod coordinator;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod greeting;
mod message;
mod peer;
mod process;
mod reader;
mod secret;
mod server;
mod session;
#[cfg(test)]
mod tests;
mod wire;
pub mod world;

use std::time::Duration;

pub use ask::{AskError, version_of};
pub use coordinator::{BindError, Coordinator, Event, OnEvent, Options, ServeError, Serving};
pub use error::{JoinError, RegroupError, SessionError};
pub use message::{Failure, Formed, LossCause, LostRank, NotFormed, Refusal, Regroup, Round, ToCoordinator, ToRank};
pub use secret::{Secret, SecretError};
pub use session::{JoinConfig, Session};

/// The version of the protocol that this build speaks.
pub const PROTOCOL_VERSION: u16 = 5;

/// The most ranks that a world can have.
pub const MAX_RANKS: u32 = 4096;

/// The longest blob, in bytes, that a rank can give to an all-gather: 16 MiB.
pub const MAX_BLOB: usize = 16 << 20;

/// How long a connection may take to greet the coordinator, show who it is and ask for its seat, unless [`Options`] say
/// otherwise.
pub const GREETING_TIMEOUT: Duration = Duration::from_secs(10);

/// How a connection that stopped without hanging up is found. The coordinator's setting holds for the whole world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// How often the coordinator asks each rank for a sign of life. At least 1 ms.
    pub every: Duration,
    /// How long either side may be silent before it counts as lost. Time in which the judging process itself did not run
    /// does not count.
    pub silence: Duration,
}

impl Default for Heartbeat {
    /// Every 2 s, lost after 10 s: a starved machine must not be taken for a dead one.
    fn default() -> Heartbeat {
        Heartbeat { every: Duration::from_secs(2), silence: Duration::from_secs(10) }
    }
}
