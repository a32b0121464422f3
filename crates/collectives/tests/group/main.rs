//! Collectives among ranks that are threads of this process.

mod failures;
mod reference;
mod world;
