//! Ranks with everything beneath them: the coordinator, nodes, shared memory, processes.

mod liveness;
mod messages;
mod windows;
mod world;
