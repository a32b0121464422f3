//! Reductions.
#[cfg(target_arch = "x86_64")]
mod avx2;
mod dtype;
mod element;
mod halves;
mod lane;
mod level;
mod op;
mod reduce;
mod stores;
mod sweep;

pub use dtype::{DType, UnknownDType, UnknownDTypeCode};
pub use element::{Complex64, Element, as_bytes};
pub use op::{ReduceOp, UnknownOp, UnknownOpCode, Unsupported};
pub use reduce::{ReduceError, reduce_into, reduce_raw, reduce_raw_with};
pub use stores::Stores;
