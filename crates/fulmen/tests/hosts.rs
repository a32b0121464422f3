//! Ranks on several hosts, over networks that are slow, bad, parted and healed: each host is a network namespace, each rank this
//! test's own executable, started again in one.
#![cfg(target_os = "linux")]

#[path = "hosts/failures.rs"]
mod failures;
#[path = "hosts/networks.rs"]
mod networks;
#[path = "hosts/onesided.rs"]
mod onesided;
#[path = "hosts/paths.rs"]
mod paths;
#[path = "hosts/program.rs"]
mod program;
#[path = "hosts/world.rs"]
mod world;
