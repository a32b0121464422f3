//! Reaching the memory of other processes on this host.
//!
//! A [`Node`] is this process as others of the same user find it. It hands over the regions that were
//! [shared](Node::share), and [connects](Node::connect) to other nodes to [map](Peer::map) theirs and to learn of their
//! deaths. What is mapped is synchronized by the two structures of this crate: a [`Doorbell`] to wait on, and a
//! [`ring`] of frames.
//!
//! Processes of one user are no boundary of security, and yet no byte that another process writes can make this one
//! crash, loop, or touch memory outside: it is checked after it was copied.
#![warn(missing_docs)]

mod address;
mod doorbell;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod hub;
mod link;
mod node;
mod peer;
#[cfg_attr(target_os = "linux", path = "platform/linux.rs")]
#[cfg_attr(target_os = "macos", path = "platform/macos.rs")]
mod platform;
pub mod ring;
mod shared;
mod socket;
mod thread;
mod ticks;
mod wire;

use std::time::{Duration, Instant};

pub use address::{NodeAddress, this_host, this_machine};
pub use doorbell::{Doorbell, Listener};
pub use error::{ReachError, Refusal};
pub use node::{Node, OnNotice, ShareKey};
pub use peer::Peer;
pub use thread::spawn_without_signals;
pub use ticks::Ticks;

/// The moment at which a wait of `time` ends. Longer waits than a year end after a year, so that each has an end.
fn moment_after(time: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + time.min(LONGEST)
}
