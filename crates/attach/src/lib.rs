//! A device that one process owns and others use: where a device has few queue pairs, or leaks what a killed process had of it, one
//! process that stays up holds it, and programs come and go.
//!
//! The owner ([`Owner`]) opens the device once. To each owner at the other end of a cable it has one *trunk*: a few queue pairs, which
//! carry the messages of all programs. A program opens an [`Attached`] device, which is a [`Device`](fulmen_verbs::Device) like others: UC
//! queue pairs with SEND and RECV, as many as there is memory for, none of them the hardware's. Its queue pairs end in the owner, by
//! the shared memory of the software device, so that nothing of the hardware is lost when the program is killed, and what the
//! hardware asks of its users (equal frames, 100 registrations, nothing across 4 GiB) is the owner's business alone.
//!
//! ```text
//! program ══ shared memory ══ owner ══ trunk, over the device ══ owner ══ shared memory ══ program
//! ```
//!
//! A message is copied twice more than on the device itself: into the owner's memory at one end, out of it at the other. It is
//! held there until a RECV takes it; a queue pair has [`WINDOW`] messages on their way at most, beyond which its
//! SENDs wait, so that one that takes nothing does not hold up others. Between programs of one owner it takes no trunk.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod inside;
mod owner;
mod place;
mod program;
mod wire;

pub use owner::{Desk, DeviceStatus, Far, Owner, OwnerError};
pub use place::{STATE, default_state, here, socket};
pub use program::{AttachError, Attached, offered};
pub use wire::{LONGEST_MESSAGE, WINDOW};
