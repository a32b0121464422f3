//! Hosts and nets are what they were asked to be, and leave nothing.
#![cfg(target_os = "linux")]

#[path = "bed/common.rs"]
mod common;
#[path = "bed/ends.rs"]
mod ends;
#[path = "bed/hosts.rs"]
mod hosts;
#[path = "bed/wires.rs"]
mod wires;
