//! Hosts on one machine, and cables between them that delay, lose and break: a bed for tests, and nothing else; and how much
//! tests do ([`Tier`]) and may have ([`raise_descriptors`], [`reserve_port`]), which works anywhere.
//!
//! A *host* is a network namespace with a hostname of its own. Processes of two hosts share files and nothing of the network:
//! no address, no port, no abstract socket. Fulmen takes them for processes of different hosts, since its host id is made of
//! the namespace.
//!
//! A *net* joins hosts:
//!
//! | net | made of | what it can do |
//! |---|---|---|
//! | [`Bed::cable`] | two hosts and a wire in user space | everything that [`Link`] says, changed while it runs |
//! | [`Bed::switch`] | any number of them | the same from each host to each other one; partition and heal |
//! | [`Bed::direct`] | two hosts and a veth pair, or more and a bridge | nothing: it is fast, for measuring |
//!
//! The wire is a thread of the test that moves frames between TAP devices, since kernels do not all have `netem`, and one that
//! has decides by its own dice. What becomes of the frame of a number is a function of the seed, the direction and that number, so
//! that a test can say how many are lost. Each frame is counted ([`Counts`]): tests hold counts against settings, not clocks.
//!
//! ```no_run
//! # #[cfg(target_os = "linux")] {
//! use std::time::Duration;
//! use fulmen_testbed::{Bed, Link};
//!
//! let Some(bed) = Bed::or_skip("a greeting over a bad cable") else { return };
//! let (a, b) = (bed.host("a"), bed.host("b"));
//! let cable = bed.cable(&a, &b, Link::new().delay(Duration::from_millis(5)).loss(0.01).seed(7));
//! let listener = b.run(|| std::net::TcpListener::bind((cable.address(&b), 7000))).unwrap();
//! let status = a.command("some-client").arg(listener.local_addr().unwrap().to_string()).status();
//! cable.block(&a, &b);
//! # }
//! ```
//!
//! [`Child`] is the test's own program in another role, and a process that can be killed. [`Ssh`] starts ssh's server on hosts,
//! with keys of the test's own, and [`Etcd`] servers of etcd on the machine itself.
//!
//! # Nothing stays behind
//!
//! Nothing here has a name that outlives it. Namespaces are held by descriptors of the test's process and by the processes in
//! them, and devices live in namespaces. When a [`Bed`] is dropped, also by a panic, whatever runs in its hosts is killed,
//! daemons included. When the test's process is killed, a small guard process for each host, which waits at the end of a pipe,
//! does the same and ends.
//!
//! # Needs
//!
//! Linux, root, `/dev/net/tun` and the programs `ip`, `sh` and `find`; [`Bed::skip_reason`] says what is missing. Being a tool
//! of tests, it panics where something cannot be done, with a message that says what and why. Its `unsafe` is in one module:
//! making namespaces and TAP devices, and what a child does before it becomes its program.

#[cfg(target_os = "linux")]
mod bed;
#[cfg(target_os = "linux")]
mod child;
mod descriptors;
#[cfg(target_os = "linux")]
mod etcd;
#[cfg(target_os = "linux")]
mod guard;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod link;
#[cfg(target_os = "linux")]
mod net;
mod ports;
#[cfg(target_os = "linux")]
mod processes;
#[cfg(target_os = "linux")]
mod sshd;
#[cfg(target_os = "linux")]
mod sys;
mod tier;
#[cfg(target_os = "linux")]
mod wire;

#[cfg(target_os = "linux")]
pub use bed::{Bed, BedError};
#[cfg(target_os = "linux")]
pub use child::{Child, Parent};
pub use descriptors::raise_descriptors;
#[cfg(target_os = "linux")]
pub use etcd::Etcd;
#[cfg(target_os = "linux")]
pub use host::Host;
#[cfg(target_os = "linux")]
pub use link::{Counts, Link};
#[cfg(target_os = "linux")]
pub use net::Net;
pub use ports::reserve_port;
#[cfg(target_os = "linux")]
pub use sshd::Ssh;
pub use tier::{Tier, by_tier, is_full};
