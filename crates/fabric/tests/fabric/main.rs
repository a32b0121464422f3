//! Ranks with everything beneath them: the coordinator, nodes, shared memory, processes.

mod counted;
mod devices;
mod liveness;
mod lossy;
mod messages;
mod onesided;
mod recovery;
mod windows;
mod world;
