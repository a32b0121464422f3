//! Ranks with everything beneath them: the coordinator, nodes, shared memory, processes.

mod bundles;
mod counted;
mod counting;
mod devices;
mod full;
mod hosts;
mod liveness;
mod lossy;
mod messages;
mod onesided;
mod rails;
mod recovery;
mod relay;
mod scripted;
mod stepping_out;
mod windows;
mod world;
