//! What operations of a link cost, reckoned before any device is there.
//!
//! - [`Wire`]: what goes over a link's device for one operation. Its numbers come from the plan by which links run and from
//!   the sizes of the frames' own headers; a test counts what a fabric posts to its devices and compares.
//! - [`Cable`], [`Host`]: how long that takes, if a device is as fast as is said.
//!
//! All of it is pure arithmetic: no device, no clock. Times are in microseconds, lengths in bytes, rates in bytes a
//! microsecond (1 GB/s is 1000).

mod time;
mod wire;

pub use time::{Cable, Cost, Host};
pub use wire::{Leg, Load, Operation, Steps, Toward, Wire};
