//! Collectives among ranks that are threads of this process.

mod ahead;
mod algorithms;
#[path = "../../../fabric/tests/fabric/counting.rs"]
mod counting;
mod failures;
mod hosts;
mod lists;
mod messages;
mod model;
mod parts;
mod planned;
mod ranks;
mod reference;
mod split;
mod staged;
mod started;
mod world;
