//! What can go wrong in a collective operation.

use std::sync::Arc;
use std::time::Duration;

use fulmen_fabric::{FabricError, OpName, RecoveryError, RegroupError};
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
    #[error(
        "the group is unusable since an operation failed ({cause}): go on by shrink or rejoin, or start all ranks again"
    )]
    Poisoned {
        /// The first failure that this rank knows of.
        cause: Arc<str>,
    },
    /// A peer was lost, the deadline passed, or memory is short. The group is poisoned.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// This rank is on the side that may not go on: the others may, or nobody knows whether they do. Ranks are named as they
    /// were launched. It may ask again: to shrink, once it is known that the others have ended, or to rejoin.
    #[error(
        "ranks {with:?} are cut off from ranks {without:?}, which may go on without them: end here, or rejoin when all are reached again"
    )]
    Partitioned {
        /// The ranks on this side.
        with: Vec<u32>,
        /// The ranks on the other side, and those of which it is not known that they have ended.
        without: Vec<u32>,
    },
    /// There is no new group: ranks did not come, or could not connect. Unless the error says that this rank was replaced or
    /// that the group was superseded, the ranks may try again with the same group.
    #[error("{operation}: {cause}")]
    Recovery {
        /// The operation: `shrink` or `rejoin`.
        operation: OpName,
        /// Why.
        cause: Arc<RecoveryError>,
    },
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
    /// Calls that were [started](crate::Group::start) before, and after which this one comes, do not end: perhaps they wait for it. Nothing was
    /// done.
    #[error(
        "{operation}: waited {waited:.1?} for a call that was started before, and none has ended: have no started call wait for a later one"
    )]
    Behind {
        /// The operation.
        operation: OpName,
        /// How long no call has ended.
        waited: Duration,
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
    pub(crate) fn recovery(operation: OpName, cause: RecoveryError) -> CollectiveError {
        match cause {
            RecoveryError::Regroup(RegroupError::Partitioned { with, without }) => {
                CollectiveError::Partitioned { with, without }
            }
            cause => CollectiveError::Recovery { operation, cause: Arc::new(cause) },
        }
    }

    pub(crate) fn invalid(operation: OpName, problem: impl Into<String>) -> CollectiveError {
        CollectiveError::Invalid { operation, problem: problem.into() }
    }
}
