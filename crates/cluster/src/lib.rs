//! What the ranks of a group share beyond data, and what stays up on a node when programs do not.
//!
//! [`sync`]: locks, guarded values and barriers on one-sided operations, right also when a holder dies or is late.
//! `agent`, with the feature of that name: the agent of a node, which starts processes for programs of its host and of others,
//! and `registry`, what the agents of a cluster agree on.
#![forbid(unsafe_code)]

#[cfg(feature = "agent")]
pub mod agent;
#[cfg(feature = "agent")]
pub mod registry;
pub mod sync;
