//! Ranks with everything beneath them: the coordinator, nodes, shared memory, processes.

mod devices;
mod liveness;
mod messages;
mod recovery;
mod windows;
mod world;
