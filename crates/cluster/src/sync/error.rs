use std::time::Duration;

use fulmen_collectives::CollectiveError;
use fulmen_fabric::{FabricError, OpName};

/// Why a lock, a guarded value or a barrier could not do what it was asked for.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// The deadline passed while another rank held the lock.
    #[error("acquire: rank {holder} held the lock for all of {waited:.1?}: see what it does, or wait longer")]
    Held {
        /// The rank that held it last.
        holder: u32,
        /// How long this rank waited.
        waited: Duration,
    },
    /// The lease ran out and another rank has taken the lock, or had it and released it.
    #[error(
        "{op}: the lock was lost: its lease of {lease:?} ran out before it was renewed; undo what was done under it, or \
         renew more often"
    )]
    Lost {
        /// The operation.
        op: OpName,
        /// The lease.
        lease: Duration,
    },
    /// The value has a length of its own.
    #[error("write: {len} bytes do not fit a guarded value of {size}: give {size}")]
    Length {
        /// Bytes that were given.
        len: usize,
        /// Bytes of the value.
        size: usize,
    },
    /// What was asked for makes no sense.
    #[error("{op}: {problem}")]
    Invalid {
        /// The operation.
        op: OpName,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// The ranks could not set it up together.
    #[error(transparent)]
    Group(#[from] CollectiveError),
    /// The home is lost, or another rank that a barrier waits for.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}
