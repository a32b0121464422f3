//! Fixed layouts that programs, GPUs and other languages share with Fulmen through registered memory.
//!
//! Whoever can write 64-bit words can ask for something: a GPU or a program of any language fills a record, and its
//! state word says that it is there. Whoever serves it answers in the same record.
//!
//! | record | bytes | asks for |
//! |---|--:|---|
//! | [`RdmaBuffer`] | 64 | nothing: it names memory that a node shares, and is part of the others |
//! | [`WorkItem`] | 512 | one run of a kernel or function, by whichever node claims it |
//! | [`SpawnRequest`] | 4096 | a process on a node: its output and its exit code come back |
//! | [`ShareRequest`] | 32 | that records in one's memory be served by this host's agent |
//! | [`NetworkRequest`] | 512 | one operation of a TCP or UDP socket, by a gateway |
//!
//! The same definitions in C are `include/fulmen_abi.h`, which [`header()`] writes; [`layout`] describes them for other
//! languages.
//!
//! # Rules of the records
//!
//! 1. Words are little endian and lie at multiples of their size; a record lies at a multiple of 8 (better of 64: what
//!    one side writes while the other side writes, too, lies in other lines).
//! 2. A record begins with its magic number and [`VERSION`]. Another version is another layout, and is refused.
//! 3. Memory of zeros is a free record. Words and bits without a meaning are zero, or the record is refused.
//! 4. The state word says whose turn it is. Each change has one [`Writer`]; where several could do it, they do it by
//!    compare-and-swap, and one wins. The state is stored with *release* after everything that it speaks of, and loaded
//!    with *acquire* before that is read. Over a network: a put of the record, and when that has ended, a put of the
//!    state; or a put with a counter, which adds 1 to the state (from 0, free, to 1, written).
//! 5. Other words that are written while somebody reads them are single words of 64 bits, each with one writer.
//! 6. What others wrote is hostile until it is checked: copy the record to memory that nobody else writes, and decode
//!    the copy. Decoding never panics, allocates nothing, and bounds all that it gives.
//!
//! ```
//! use fulmen_abi::{Command, Origin, Spawn, SpawnRequest, SpawnText, Strings, Target};
//!
//! let command = Command { args: Strings::new(&["uname", "-a"]), env: Strings::EMPTY, cwd: Some("/tmp") };
//! let asked = Spawn::new(7, Origin { node: 3, generation: 1 }, Target::Gateway, SpawnText::Inline(command));
//! let record = SpawnRequest::encode(&asked)?;
//!
//! // Elsewhere, when the state word says so.
//! let copy = SpawnRequest::from_bytes(record.as_bytes())?;
//! let SpawnText::Inline(command) = copy.decode()?.text else { panic!("it fits in") };
//! assert!(command.args.iter().eq(["uname", "-a"]));
//! # Ok::<(), fulmen_abi::AbiError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

// First: the others use its macros.
#[macro_use]
pub mod layout;

mod buffer;
mod check;
mod error;
mod error_code;
mod header;
mod network;
mod party;
mod ring;
mod share;
mod spawn;
mod work;

pub use buffer::{BUFFER_MAGIC, Buffer, RdmaBuffer, Rights};
pub use error::{AbiError, Field};
pub use error_code::ErrorCode;
pub use header::{Header, header};
pub use network::{
    AddressFamily, Endpoint, HOST_MAX, HOST_ROOM, NETWORK_MAGIC, Network, NetworkAction, NetworkOperation,
    NetworkOutcome, NetworkRequest, NetworkState, NetworkStatus, Protocol,
};
pub use party::{Lease, NODE_ANY, NODE_GATEWAY, NODE_MAX, Origin, Target, VERSION, Writer};
pub use ring::{Pieces, Ring};
pub use share::{SHARE_MAGIC, SHARE_RECORDS_MAX, ShareAnswer, ShareRequest};
pub use spawn::{
    Command, Exit, ExitKind, Limits, SPAWN_MAGIC, Spawn, SpawnControl, SpawnFlags, SpawnOutcome, SpawnRequest,
    SpawnState, SpawnStatus, SpawnText, Strings, TEXT_MAX, TEXT_ROOM, TextCounts,
};
pub use work::{
    ARGUMENTS_ROOM, Arguments, Counter, WORK_CLAIMS_SHIFT, WORK_ERROR_SHIFT, WORK_MAGIC, WORK_STATE_MASK, Work,
    WorkClaim, WorkItem, WorkKind, WorkState, WorkStatus, WorkWord,
};

/// The layouts are memory of this machine as they are: nothing swaps bytes.
const _: () = assert!(cfg!(target_endian = "little"), "Fulmen's layouts are little endian");
