//! `fulmen doctor` on machines that are broken on purpose: by a library without hardware, by files that look like `/proc`,
//! `/sys` and `/dev`, by limits, and by what stands at the coordinator's address.

#![forbid(unsafe_code)]

mod address;
mod devices;
#[path = "../../../system/tests/fake/mod.rs"]
mod fake;
mod gpu;
mod healthy;
mod hostile;
mod library;
mod limits;
mod setup;
mod system;
