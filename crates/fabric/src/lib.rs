//! How the ranks of a program meet and talk.
//!
//! - [`bootstrap`]: ranks meet at a coordinator, prove that they belong together, exchange blobs and watch one another.
//! - [`launch`]: what the environment of a process says about its rank.
//! - [`Fabric`]: the ranks, connected.
//! - [`Fabric::send`], [`Fabric::recv`]: tagged messages; [`Operation`]: those that go on by themselves.
//! - [`Window`]: memory of every rank that all ranks map.
//! - [`Fabric::share`], [`Fabric::remote`]: memory of a rank on which others work while it does something else.
//! - [`Fabric::regroup`]: going on without ranks that were lost, or with others in their place.
//! - [`model`]: what operations cost over a device, reckoned beforehand.
//! - [`recorder`]: what this rank did last, for `fulmen trace`.
//! - [`Fabric::wait`]: waiting with a deadline and an eye on the peers.
#![forbid(unsafe_code)]

pub mod bootstrap;
mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod driver;
pub mod engine;
mod error;
mod fabric;
mod handshake;
mod hosts;
mod lanes;
pub mod launch;
mod liveness;
mod map;
mod messages;
pub mod model;
mod muster;
mod onesided;
mod operation;
mod options;
mod own;
mod probe;
mod processors;
mod progress;
mod providers;
pub mod recorder;
mod regroup;
mod start;
mod taking;
#[cfg(test)]
mod tests;
mod topology;
mod wait;
mod window;

pub use bootstrap::{
    Coordinator, JoinConfig, JoinError, LossCause, LostRank, Regroup, RegroupError, Secret, Session, SessionError,
};
pub use driver::device::{DeviceError, Need, Needs, RailEnd, RailInfo, RailState, RailStatus, needs, usable};
pub use driver::relay::Relayed;
pub use engine::{LABEL as TAG_LABEL, Rights};
pub use error::{FabricError, LinkKind, Loss, OpName};
pub use fabric::Fabric;
pub use hosts::{Hosts, Means};
pub use launch::{Dialect, Launch, LaunchError};
pub use liveness::On;
pub use map::RegionRef;
pub use muster::Muster;
pub use onesided::{Batch, InvalidKey, Remote, RemoteKey, Shared};
pub use operation::Operation;
pub use options::{DEFAULT_POOL, DEFAULT_SILENCE, DEFAULT_TIMEOUT, FabricOptions, Flow, OptionsError, PollPolicy};
pub use probe::RailProbe;
pub use processors::unbind_thread;
pub use providers::{Cables, Providers, Tcp};
pub use recorder::{Action, Recorder, Running, What};
pub use regroup::RecoveryError;
pub use start::StartError;
pub use topology::{TopologyError, Wiring};
pub use window::{Window, WindowPart};
