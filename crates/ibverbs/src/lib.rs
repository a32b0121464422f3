//! A drop-in `libibverbs.so.1` and `librdmacm.so.1` (`librdma.dylib` on macOS): the calls of the C libraries, over the
//! user-space device, so that programs that know nothing of Fulmen run on it unmodified.
//!
//! The environment says which device it is: see [`config`]. Errors go to `errno` and to what the calls return, as their
//! manual pages say; the reason is logged (`FULMEN_LOG`).
#![warn(missing_docs)]

mod aliasing;
pub mod cm;
pub mod config;
mod context;
mod data;
mod device;
mod domain;
pub mod error;
mod events;
mod export;
mod faults;
pub mod ffi;
mod fork;
mod host;
mod interpose;
mod lint;
mod log;
mod mapped;
mod memory;
mod pollable;
mod private;
mod query;
mod rates;
mod refused;
mod registration;
mod strings;
mod sysfs;
mod thunderbolt;
mod users;
