//! Collectives among ranks that are threads of this process.

mod failures;
mod messages;
mod reference;
mod world;
