//! What the ranks of a group share beyond data, and what stays up on a node when programs do not.
//!
//! [`sync`]: locks, guarded values and barriers on one-sided operations, right also when a holder dies or is late.
//! `agent`, with the feature of that name: the agent of a node, which starts processes for the programs of its host.
#![forbid(unsafe_code)]

#[cfg(feature = "agent")]
pub mod agent;
pub mod sync;
