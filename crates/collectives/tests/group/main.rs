//! Collectives among ranks that are threads of this process.

mod failures;
mod messages;
mod ranks;
mod reference;
mod world;
