//! A few machines work as one.
//!
//! A program is started as several ranks, by `fulmen run -n 4 -- PROGRAM`; each calls [`init`] and gets the [`Group`] of
//! all of them:
//!
//! ```no_run
//! use fulmen::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let group = fulmen::init()?;
//! let mut data = group.alloc::<f32>(1024)?; // registered: peers reach it without copies
//! data.fill(group.rank() as f32);
//! group.all_reduce(&mut data, ReduceOp::Sum)?; // the same bits on all ranks
//! # Ok(())
//! # }
//! ```
//!
//! Started by itself, a program is a group of one.
//!
//! # When a process dies
//!
//! Every operation of every other rank ends with an error that names the dead one, within seconds; a process that is stopped,
//! or whose machine hangs, is taken for dead after 10 s of silence. Then the ranks that are left go on without it
//! ([`Group::shrink`]), or wait for it to be started again ([`Group::rejoin`]): it just calls [`init`].
//!
//! ```no_run
//! use fulmen::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # fn work(group: &Group, step: &mut u64) -> Result<(), CollectiveError> { group.barrier() }
//! let mut group = fulmen::init()?;
//! let mut step = 0;
//! // Begins with an agreement on the step, and returns when all steps are done.
//! while let Err(error) = work(&group, &mut step) {
//!     eprintln!("{error}");
//!     group = group.rejoin()?; // or shrink
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Buffers stay. A rank that was only stopped, and is continued when the others have gone on, gets an error too
//! ([`CollectiveError::Partitioned`]); what it writes late reaches no memory that is in use. `examples/recover.rs` is a whole program.
//!
//! # Several hosts
//!
//! Ranks of one host map one another's memory. Those of several talk over the RDMA devices of their machines; where one of them has none
//! that works, over TCP, sealed: also where RDMA was to be expected, which is then a warning in the log and in the record, told by
//! [`Fabric::fallback`], and an error if `FULMEN_REQUIRE=rdma` is set. [`Fabric::rail`] tells what the link to a rank runs over.
//!
//! # The environment
//!
//! `FULMEN_TIMEOUT` (the deadline of operations in seconds, 60 by default), `FULMEN_POOL` (the size of the memory for buffers, such
//! as `4G`; 1 GiB by default, of which only what is used takes memory), `FULMEN_PROFILE` (the device profile over which ranks talk
//! instead of shared memory), `FULMEN_DEVICE` (the machine's own device that they use instead, by name, or `any` that works, or
//! `tcp`; what the host's agent owns is used through it), `FULMEN_STATE` (the directory of that agent's state, if it is not the
//! user's), `FULMEN_ADDRESS` (the IP address of this host by which others reach it; else that of the connection to the
//! coordinator), `FULMEN_TRUSTED_RAIL` (`1`: what goes by TCP is not sealed), `FULMEN_REQUIRE` (`rdma`: no TCP),
//! `FULMEN_HOST_ID` (on which host a process is: ranks that say different things talk as between hosts),
//! `FULMEN_LINKS` (a link file by which operations that go by messages choose their algorithm),
//! `FULMEN_VERIFY_DATA` (`1`: everything that ranks send one another carries a checksum), `FULMEN_SILENCE` (how long a rank may be
//! stopped until it counts as lost, 10 s by default); [`launch`] lists what launchers set: `fulmen run`, and others that are read
//! as well.
#![forbid(unsafe_code)]

mod choose;
mod init;
mod machine;
mod network;

pub use choose::TCP;
pub use fulmen_cluster::sync;
pub use fulmen_collectives::{
    Algorithm, Buffer, CollectiveError, Complex64, DType, Data, Element, Group, Handle, Order, Outgoing, ReduceOp,
    Unsupported,
};
pub use fulmen_fabric::{
    Batch, Cables, Fabric, FabricError, FabricOptions, LinkKind, Loss, PollPolicy, Remote, RemoteKey, Rights, Shared,
    launch,
};
pub use half::{bf16, f16};
pub use init::{InitError, Options, init};
pub use machine::MachineError;
pub use network::Network;

/// What most programs need.
pub mod prelude {
    pub use crate::{Buffer, CollectiveError, Data, Element, Group, Handle, Order, ReduceOp};
}

/// The pieces that [`init`] puts together, for programs that meet in another way.
pub mod parts {
    pub use fulmen_attach as attach;
    pub use fulmen_collectives as collectives;
    pub use fulmen_fabric as fabric;
    pub use fulmen_gpu as gpu;
    pub use fulmen_kernels as kernels;
    pub use fulmen_memory as memory;
    pub use fulmen_reach as reach;
    pub use fulmen_soft as soft;
    pub use fulmen_system as system;
    pub use fulmen_verbs as verbs;
}
