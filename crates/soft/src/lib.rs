//! A user-space RDMA device between processes of one user on one host.
//!
//! It needs no hardware, no driver and no rights. Each process opens its own [`SoftDevice`] on its
//! [`Node`](fulmen_reach::Node); the device's GID says which node it is, so that queue pairs of different processes (or
//! of one) connect by GID and number, as on every RDMA device. A [`Profile`] sets limits and rules.
//!
//! # How it works
//! Queues, completion queues and keys are private to their process. Shared memory carries, for each queue pair, one ring
//! of outgoing messages and a few words that acknowledge the incoming ones, and for each device one table of
//! registrations. There is no lock in shared memory, and each shared word has one writer, so that a process that is
//! killed at any point leaves nothing half done that another one waits for.
//!
//! - Small messages travel in the ring. Of longer ones the ring carries the place, and the *receiver* copies once, out
//!   of the sender's mapped region into its RECV. A receiver alone writes its memory for SENDs, so that a sender that is
//!   stopped or late can never write memory that was used again meanwhile.
//! - WRITE, READ and atomics are done by their initiator on the target's mapped region. The target's processor has no
//!   part in them.
//! - Whoever polls a completion queue drives the queue pairs that complete into it. When the program computes or sleeps,
//!   the device's own thread takes over: it is parked while nothing happens, and peers ring its doorbell.
//!
//! Registered memory is written by peers, so its owner has to know when they are done. The end of a registration and of a
//! connection (ERR, RESET, the end of the queue pair) waits for a peer that is just in the middle of a WRITE, READ or
//! atomic; it starts no other. The wait ends after 2 s: a peer that was stopped in between and goes on later still does
//! the rest of that one operation, on its own mapping of the region. Who stops processes for longer gives such memory up
//! by dropping its region, whose pages are never anybody else's while the peer maps them.
//!
//! What a peer writes is read once, checked and then used: a hostile or half-dead peer can break its own connections
//! only. See [`Profile`] for what the two profiles promise.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod completion;
mod device;
mod directory;
mod domain;
mod layout;
mod pair;
mod profile;
mod progress;
mod registrations;
mod remote;
mod wire;

pub use device::{OpenError, SoftDevice};
pub use profile::{Profile, UnknownProfile};

#[cfg(test)]
mod tests;
