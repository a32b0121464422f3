//! What can go wrong between ranks.

use std::fmt;
use std::time::Duration;

use fulmen_memory::{PoolError, RegionError};
use fulmen_reach::ReachError;

use crate::Rights;
use crate::bootstrap::{LossCause, SessionError};

/// The name of an operation, as errors show it: `recv`, `all_reduce`.
pub type OpName = &'static str;

/// What connects two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkKind {
    /// Memory that both ranks map.
    SharedMemory,
    /// An RDMA device.
    Device,
    /// A device in software, by TCP between hosts.
    Tcp,
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkKind::SharedMemory => "shared memory",
            LinkKind::Device => "device",
            LinkKind::Tcp => "TCP",
        })
    }
}

/// How a rank was lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// Its process ended: its end of the connection between the two processes hung up.
    #[error("its process ended")]
    Ended,
    /// It closed its fabric.
    #[error("it has left")]
    Left,
    /// The coordinator lost it.
    #[error("{0}")]
    Session(LossCause),
    /// It has ended its end of the link, and no longer reads or keeps what this rank relies on: it took this rank for lost
    /// (a process that was stopped for long is), found the link broken, or left before this rank took its messages.
    #[error("it has given up the link to this rank")]
    GaveUp,
    /// It has asked for a new generation of ranks ([`Fabric::regroup`](crate::Fabric::regroup)), and takes no part in this
    /// one any more.
    #[error("it has asked for a new generation of ranks: do so here, too (shrink or rejoin)")]
    Regroups,
    /// It sent what the protocol does not allow, or the link to it failed.
    #[error("the link broke: {0}")]
    Broken(String),
}

/// Why an operation between ranks did not finish.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// A rank that the operation depends on was lost.
    #[error("{op}: rank {rank} was lost ({link}): {cause}; see its output")]
    PeerLost {
        /// The lost rank.
        rank: u32,
        /// What connected it.
        link: LinkKind,
        /// The operation.
        op: OpName,
        /// How it was lost.
        cause: Loss,
    },
    /// The deadline passed.
    #[error("{op}: waited {waited:.1?} for {} ({link}): see what they do, or wait longer (FULMEN_TIMEOUT)", Ranks(.missing))]
    TimedOut {
        /// The operation.
        op: OpName,
        /// What connects them.
        link: LinkKind,
        /// How long it waited.
        waited: Duration,
        /// The ranks that it waited for.
        missing: Vec<u32>,
    },
    /// The message was longer than the memory that was to receive it. Nothing beyond that memory was written.
    #[error(
        "{op}: the message from rank {rank} ({link}) has {len} bytes and the receive takes {room}: receive into at least {len} bytes"
    )]
    Truncated {
        /// The operation.
        op: OpName,
        /// The sender.
        rank: u32,
        /// What connects it.
        link: LinkKind,
        /// Bytes of the message.
        len: u64,
        /// Bytes that the receive takes.
        room: u64,
    },
    /// The message is of another kind than the receive asked for. Nothing of it was written.
    #[error("{op}: the message from rank {rank} ({link}) has the label {label}: send and receive the same kind")]
    Mislabelled {
        /// The operation.
        op: OpName,
        /// The sender.
        rank: u32,
        /// What connects it.
        link: LinkKind,
        /// The label in the message's tag.
        label: u8,
    },
    /// The receiver asked for a shorter message, or one of another kind.
    #[error(
        "{op}: rank {rank} ({link}) receives something else than this message of {len} bytes: let both agree on type and length"
    )]
    Refused {
        /// The operation.
        op: OpName,
        /// The receiver.
        rank: u32,
        /// What connects it.
        link: LinkKind,
        /// Bytes of the message.
        len: u64,
    },
    /// The sender gave up in the middle of the message.
    #[error("{op}: rank {rank} ({link}) gave up sending this message: see its output")]
    Cancelled {
        /// The operation.
        op: OpName,
        /// The sender.
        rank: u32,
        /// What connects it.
        link: LinkKind,
    },
    /// The receiver copied the bytes of a message out of the sender's memory, and they were not those whose checksum the
    /// sender had made when it offered them (`FabricOptions::verify_data`). The link goes on; what the receive's memory holds
    /// is undefined.
    #[error(
        "{op}: the bytes of this message to or from rank {rank} ({link}) changed on their way: write no memory while it is sent; if nobody did, suspect the host's memory"
    )]
    Changed {
        /// The operation.
        op: OpName,
        /// The other rank.
        rank: u32,
        /// What connects it.
        link: LinkKind,
    },
    /// There is no such rank to talk to.
    #[error("{op}: rank {rank} is no other rank of {size}: name one from 0 to {}, and not this one", .size - 1)]
    NoSuchRank {
        /// The operation.
        op: OpName,
        /// The rank that was named.
        rank: u32,
        /// The number of ranks.
        size: u32,
    },
    /// Nothing carries messages to the rank.
    #[error("{op}: nothing connects this rank with rank {rank}: turn windows on, or give the fabric a device")]
    NoLink {
        /// The operation.
        op: OpName,
        /// The rank.
        rank: u32,
    },
    /// The link has no such rail, or it is not up now.
    #[error("{op}: the link to rank {rank} has {rails} rails, and number {rail}, from 0, is none of them or is not up")]
    NoSuchRail {
        /// The operation.
        op: OpName,
        /// The peer.
        rank: u32,
        /// The rail that was asked for.
        rail: usize,
        /// How many there are.
        rails: usize,
    },
    /// Ranks do not map one another's memory here.
    #[error(
        "{op}: ranks do not map one another's memory in this world (a device profile is set, or they are on several hosts)"
    )]
    NoWindows {
        /// The operation.
        op: OpName,
    },
    /// Bytes do not all lie in the memory of which they are to be a part.
    #[error("{op}: {len} bytes at {offset} do not lie in the {region} bytes of rank {rank}'s memory")]
    OutOfBounds {
        /// The operation.
        op: OpName,
        /// The rank.
        rank: u32,
        /// Where the bytes should start.
        offset: u64,
        /// How many there should be.
        len: u64,
        /// Bytes of the region.
        region: u64,
    },
    /// The key names no memory that the rank shares.
    #[error("{op}: rank {rank} shares no memory under this key: it is another rank's, or the share has ended")]
    NoSuchKey {
        /// The operation.
        op: OpName,
        /// The rank.
        rank: u32,
    },
    /// The memory was shared without the right to do this.
    #[error("{op}: rank {rank}'s memory does not allow {}: share it with this right", RightNames(*.need))]
    NotPermitted {
        /// The operation.
        op: OpName,
        /// The rank whose memory it is.
        rank: u32,
        /// What was needed.
        need: Rights,
    },
    /// Atomics need words at multiples of 8 bytes.
    #[error("{op}: no 64-bit word of rank {rank}'s memory lies at {offset}: atomics need multiples of 8 bytes")]
    Misaligned {
        /// The operation.
        op: OpName,
        /// The rank.
        rank: u32,
        /// Where the word should be.
        offset: u64,
    },
    /// This rank shares as much memory as it can.
    #[error("{op}: a rank shares at most {most} pieces of memory at a time: close some, or share larger ones")]
    TooManyShares {
        /// The operation.
        op: OpName,
        /// How many there can be.
        most: usize,
    },
    /// The system gives no random bytes.
    #[error("{op}: no random bytes for a key: {cause}")]
    NoRandom {
        /// The operation.
        op: OpName,
        /// What the system said.
        cause: getrandom::Error,
    },
    /// Ranks called a collective operation with different arguments.
    #[error("{op}: rank {rank} asked for {theirs} and this rank for {ours}: call it alike on all ranks")]
    Mismatch {
        /// The operation.
        op: OpName,
        /// The rank that differs.
        rank: u32,
        /// What this rank asked for.
        ours: String,
        /// What it asked for.
        theirs: String,
    },
    /// A rank could not do its part of a collective operation.
    #[error("{op}: rank {rank} failed: {problem}")]
    PeerFailed {
        /// The operation.
        op: OpName,
        /// The rank.
        rank: u32,
        /// What it said.
        problem: String,
    },
    /// A peer's memory could not be mapped, or this rank's not shared.
    #[error("{op}: no memory of rank {rank}: {cause}")]
    Reach {
        /// The operation.
        op: OpName,
        /// The rank.
        rank: u32,
        /// Why.
        cause: std::sync::Arc<ReachError>,
    },
    /// There is no memory for it.
    #[error("{op}: {cause}")]
    Memory {
        /// The operation.
        op: OpName,
        /// Why.
        cause: std::sync::Arc<RegionError>,
    },
    /// The pool has no room.
    #[error("{op}: {cause} (FULMEN_POOL sets the pool's size)")]
    Pool {
        /// The operation.
        op: OpName,
        /// Why.
        cause: std::sync::Arc<PoolError>,
    },
    /// This rank has gone on to another generation, and no rank was lost before.
    #[error("{op}: this generation of ranks has ended: use what the regrouping returned")]
    Ended {
        /// The operation.
        op: OpName,
    },
    /// Ranks could not agree through the coordinator.
    #[error("{op}: {cause}")]
    Session {
        /// The operation.
        op: OpName,
        /// Why.
        cause: SessionError,
    },
}

/// Rights in an error's text.
struct RightNames(Rights);

impl fmt::Display for RightNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(Rights::READ, "reading"), (Rights::WRITE, "writing"), (Rights::ATOMIC, "atomics")];
        let named = names.into_iter().filter(|(right, _)| self.0.contains(*right));
        for (index, (_, name)) in named.enumerate() {
            write!(f, "{}{name}", if index == 0 { "" } else { " and " })?;
        }
        Ok(())
    }
}

/// Ranks in an error's text.
pub(crate) struct Ranks<'a>(pub &'a [u32]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 16;
        f.write_str(if self.0.len() == 1 { "rank " } else { "ranks " })?;
        for (index, rank) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{rank}", if index == 0 { "" } else { ", " })?;
        }
        match self.0.len().checked_sub(SHOWN) {
            Some(more @ 1..) => write!(f, " and {more} more"),
            _ => Ok(()),
        }
    }
}
