//! Many ranks in one process, on a virtual clock and a virtual network with faults, checked against a model.
//!
//! The links are the fabric's own: [`Link`](fulmen_fabric::engine::Link) and, where the carrier promises nothing,
//! [`Reliable`](fulmen_fabric::engine::Reliable). What is virtual is time, the wire, and the programs: a run is a list of
//! [choices](Choice) drawn from a seed, so that the same seed gives the same run, event by event, which its
//! [digest](Run::digest) proves. When a promise is broken, [`shorten`] looks for a short list of choices that breaks it as
//! well.
#![forbid(unsafe_code)]

mod book;
mod drive;
mod end;
mod faults;
mod messages;
mod network;
mod operations;
mod random;
mod remote;
mod report;
mod run;
mod schedule;
mod share;
mod shorten;
mod world;

pub use faults::{Faults, FaultsError};
#[cfg(feature = "planted-bugs")]
pub use fulmen_fabric::engine::Planted;
pub use network::Carrier;
pub use report::{Broken, Counts, Failure, Run, Told};
pub use run::{MAX_NODES, Options, OptionsError, run};
pub use schedule::{Choice, Keep, KeepError};
pub use shorten::{Shortest, shorten};
