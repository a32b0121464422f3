//! Operations that all ranks of a [`Group`] take part in.
//!
//! # What they promise
//!
//! - **The same bits.** Elements are combined in rank order, whatever path the bytes take: on every rank, in every run,
//!   a result is that of [`fulmen_kernels`]' reduction of the ranks' vectors from rank 0 up. `f16` and `bf16` are rounded
//!   once, after the last rank. (A program may [allow another order](Order::Any).)
//! - **The same operation.** Ranks compare what they call (operation, type, lengths, reduction, root) before a byte of data
//!   is used: ranks that differ get [`CollectiveError::Mismatch`] or find the group poisoned, and no rank gets a wrong
//!   result. Calls that agree in all of it are told apart by their order, or by a [tag](Group::with_tag). A rank that had no need of
//!   another one hears of it by its next call.
//! - **No needless waits.** An operation returns when this rank has what it asked for and its data may be used again. Where ranks map one
//!   another's memory, whoever only gives (the root of a broadcast, all others in a gathering) most often waits for nobody, some calls in a row.
//!   Only of [`Group::barrier`] it is promised that all have come.
//! - **An end.** Every operation ends within the group's [deadline](Group::with_deadline), and in under 2 s when a rank that
//!   it needs dies. A group in which an operation failed is *poisoned*: each later operation returns
//!   [`CollectiveError::Poisoned`] with the first cause at once.
//! - **Memory of one's own.** When an operation has returned, no peer reads what its data held or writes to it.
//!
//! # Paths
//!
//! | where ranks map one another's memory (windows) | |
//! |---|---|
//! | up to 40 bytes | in the line that announces the operation |
//! | less than 10 KiB (all-reduces of more than 4 ranks: less the more there are), or up to 16 KiB where ranks share processors | through a slot of each rank's window, or, where they do not, from 3 KiB on straight out of a [`Buffer`] that is not written meanwhile; every rank computes for itself |
//! | more, from and to a [`Buffer`] | straight out of the peers' memory, and into it |
//! | more, plain memory on any rank | in pieces through the ranks' windows, pipelined; of long all-reduces, each rank reduces its share for all |
//!
//! Elsewhere everything goes by messages, as the [planner](plan) chooses.
//!
//! Calls can be [started](Group::start), messages [too](Group::start_send), and groups [split](Group::split).
#![forbid(unsafe_code)]

mod blocks;
mod buffer;
mod by_counts;
mod call;
mod deadline;
mod error;
mod group;
mod handle;
mod lists;
mod messages;
mod operations;
mod p2p;
mod parts;
pub mod plan;
mod request;
mod split;
mod started;
mod team;
mod transfers;
mod windows;

#[cfg(test)]
#[path = "../tests/group/ranks.rs"]
mod ranks;

pub use blocks::Blocks;
pub use buffer::{Buffer, Data, Outgoing};
pub use error::CollectiveError;
pub use fulmen_kernels::{Complex64, DType, Element, ReduceOp, Unsupported};
pub use group::Group;
pub use handle::Handle;
pub use plan::{Algorithm, Order};
