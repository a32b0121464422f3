//! How the ranks of a program meet and talk.
//!
//! - [`bootstrap`]: ranks meet at a coordinator, prove that they belong together, exchange blobs and watch one another.
//! - [`launch`]: what the environment of a process says about its rank.
#![forbid(unsafe_code)]

pub mod bootstrap;
pub mod launch;

pub use bootstrap::{Coordinator, JoinConfig, JoinError, LossCause, LostRank, Secret, Session, SessionError};
pub use launch::{Launch, LaunchError};
