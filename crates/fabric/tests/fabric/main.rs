//! Ranks with everything beneath them: the coordinator, nodes, shared memory, processes.

mod devices;
mod liveness;
mod lossy;
mod messages;
mod windows;
mod world;
