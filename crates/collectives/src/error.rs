//! What can go wrong in a collective operation.

use std::sync::Arc;

use fulmen_fabric::{FabricError, OpName};
use fulmen_kernels::{DType, Unsupported};

/// Why a collective operation failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// Ranks called different operations, or the same one on different data. The group is poisoned.
    #[error(
        "{operation}: call {sequence} of the group is {theirs} on rank {rank} and {mine} here: call it alike on all ranks"
    )]
    Mismatch {
        /// The operation that was called here.
        operation: OpName,
        /// Which call of the group it was, from 1.
        sequence: u64,
        /// What was called here.
        mine: String,
        /// What `rank` called.
        theirs: String,
        /// The first rank that differs.
        rank: u32,
    },
    /// An earlier operation of the group failed, or this one did on another rank. Data is not to be trusted; nothing more
    /// can be done with the group.
    #[error("the group is unusable since an operation failed ({cause}): start all ranks again")]
    Poisoned {
        /// The first failure that this rank knows of.
        cause: Arc<str>,
    },
    /// A peer was lost, the deadline passed, or memory is short. The group is poisoned.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A message has elements of another type than its receive. Nothing of it was written; the group stays usable.
    #[error("recv: rank {rank} sent {theirs} with tag {tag} and {mine} is received: send and receive the same type")]
    Mistyped {
        /// The sender.
        rank: u32,
        /// The tag.
        tag: u64,
        /// The type that was to be received.
        mine: DType,
        /// The type that was sent.
        theirs: String,
    },
    /// The reduction has no meaning for the type. Nothing was done; the group stays usable.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The arguments contradict one another. Nothing was done; the group stays usable.
    #[error("{operation}: {problem}")]
    Invalid {
        /// The operation.
        operation: OpName,
        /// What is wrong, and what would be right.
        problem: String,
    },
}

impl CollectiveError {
    pub(crate) fn invalid(operation: OpName, problem: impl Into<String>) -> CollectiveError {
        CollectiveError::Invalid { operation, problem: problem.into() }
    }
}
