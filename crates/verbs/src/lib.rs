//! The vocabulary of RDMA, in the field's own names, and the traits that a device implements.
//!
//! Hardware and software devices look alike from here: a [`Device`] has [`ProtectionDomain`]s, in which memory is
//! registered ([`MemoryRegion`]) and [`QueuePair`]s are made; what was posted ends as a [`Completion`] in a
//! [`CompletionQueue`], which a thread polls or, through a [`CompletionChannel`], parks on. What a device can do is
//! asked ([`Device::info`]), never guessed from its name, and what it cannot do is refused here, before a driver would
//! refuse it with a bare errno.
//!
//! Requests own handles to the memory that they name ([`Piece`]), and a device keeps them until the request has
//! completed or its queue pair is gone. Posting is safe for that reason: no slice of that memory can exist meanwhile.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod budget;
mod check;
mod completion;
#[cfg(feature = "conformance")]
pub mod conformance;
mod device;
mod error;
mod faulty;
mod gid;
mod limits;
mod queue_pair;
mod request;

pub use budget::{Budget, Claim};
pub use check::{check_access, check_post_recv, check_post_send, check_transition};
pub use completion::{Completion, CompletionOpcode, CompletionStatus, Origin};
pub use device::{
    AddressHandle, AsyncEvent, CompletionChannel, CompletionQueue, Device, DmaBufRegistration, MemoryRegion,
    ProtectionDomain, QueuePair, SharedReceiveQueue,
};
pub use error::{PostError, VerbsError};
pub use faulty::{CablePull, FaultPlan, FaultSpecError, Faulty, Injected, Kill, KillMode, Odds};
pub use gid::{Gid, GidEntry, GidError, GidKind, select_gid};
pub use limits::{Capabilities, DeviceInfo, DeviceLimits, LinkLayer, Mtu, PortInfo, PortState};
pub use queue_pair::{
    Access, AckTimeout, AddressPath, Carrier, Path, QueuePairInit, QueuePairKind, QueuePairLimits, QueuePairState,
    RnrTimer, Transition,
};
pub use request::{Destination, Piece, Pieces, RecvRequest, RemoteAddr, SendOp, SendRequest};
