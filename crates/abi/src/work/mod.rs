//! Work that a node is to do.

mod item;
mod record;
mod status;

pub use item::{Arguments, Counter, Work};
pub use record::{
    ARGUMENTS_ROOM, WORK_CLAIMS_SHIFT, WORK_ERROR_SHIFT, WORK_MAGIC, WORK_STATE_MASK, WorkItem, WorkKind, WorkState,
};
pub use status::{WorkClaim, WorkStatus, WorkWord};

pub(crate) use record::CONSTANTS;

/// As errors call the record.
const NAME: &str = "WorkItem";
