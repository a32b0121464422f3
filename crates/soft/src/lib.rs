//! A user-space RDMA device: between processes of one user on one host through shared memory, and between hosts over TCP.
//!
//! It needs no hardware, no driver and no rights. Each process opens its own [`SoftDevice`] on its
//! [`Node`](fulmen_reach::Node). Queue pairs of different processes (or of one) connect by GID, LID and number, as on every
//! RDMA device. A [`Profile`] sets limits and rules.
//!
//! Without [`NetworkOptions`], a device's GID says which node of this host it is, and nobody else can reach it. With them, it
//! listens at an IP address and a TCP port, which are its GID and LID. One device does both then: queue pairs of devices that
//! are on one host connect through shared memory, all others over one TCP connection for each pair of them. Datagrams stay
//! within a host.
//!
//! # How it works on a host
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
//! - Memory that cannot be mapped, such as a program allocates, is registered all the same (*plain* memory). The system
//!   copies from and to it for WRITE, READ and very long SENDs (`process_vm_readv` and `process_vm_writev`), after a random
//!   word in the peer's own memory has proven which process it is. Where the system refuses that
//!   ([`process_vm_check`]), and for atomics always, the owner's process is asked through the rings: it looks the key up in
//!   its private table, and answers in a second ring, which the asking side can always empty.
//! - Datagrams go through one ring for each pair of devices, whichever queue pairs they are between. It is made on the
//!   first message to a device, by both devices' threads.
//! - Whoever polls a completion queue drives the queue pairs that complete into it. When the program computes or sleeps,
//!   the device's own thread takes over: it is parked while nothing happens, and peers ring its doorbell.
//!
//! # How it works between hosts
//! Of two queue pairs, the one with the smaller address opens the connection; the other one asks whether there is such a queue
//! pair, so that both sides' way to RTR fails clearly if it cannot work. Connections are sealed with TLS, or plain where the
//! network is declared to be trusted. Whoever polls a completion queue reads and writes the sockets of its queue pairs; while
//! nobody does, the device's thread is woken for them. A connection that ends is a peer that is gone. A peer's host that
//! vanishes is noticed within about 10 s.
//!
//! # Memory and processes
//! Registered memory is written by peers, so its owner has to know when they are done. The end of a registration and of a
//! connection (ERR, RESET, the end of the queue pair) waits for a peer that is just in the middle of a WRITE, READ or
//! atomic; it starts no other. The wait ends after 2 s: a peer that was stopped in between and goes on later still does
//! the rest of that one operation, on its own mapping of the region. Who stops processes for longer gives such memory up
//! by dropping its region, whose pages are never anybody else's while the peer maps them.
//! With plain memory, a peer that was stopped for so long just before the system's call still writes what it was about to:
//! the call itself cannot be stopped.
//!
//! A forked child has no use of its parent's devices: what would change them is refused, and what it drops stays as it
//! is. It must not poll, nor post, nor ask them for anything: a lock that another thread held when it was forked is never free in it.
//!
//! What a peer writes is read once, checked and then used: a hostile or half-dead peer can break its own connections
//! only. See [`Profile`] for what the two profiles promise.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod addressing;
mod completion;
mod datagrams;
mod device;
mod directory;
mod domain;
mod favourite;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod layout;
mod network;
#[cfg(test)]
mod numbered;
mod options;
mod pair;
mod patience;
mod profile;
mod progress;
mod registrations;
mod remote;
mod rest;
mod shared;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(test), allow(dead_code, reason = "tests use more of it"))]
mod sides;
#[allow(unsafe_code)]
mod vm;
mod wire;

pub use device::{OpenError, SoftDevice};
pub use network::scout::{Scout, ScoutError};
pub use options::{Addressing, NetworkOptions, SoftOptions};
pub use profile::{Profile, UnknownProfile};
pub use vm::process_vm_check;

#[cfg(test)]
mod tests;
