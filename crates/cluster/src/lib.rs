//! What the ranks of a group share beyond data.
//!
//! [`sync`]: locks, guarded values and barriers on one-sided operations, right also when a holder dies or is late.
#![forbid(unsafe_code)]

pub mod sync;
