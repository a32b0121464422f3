//! One-sided operations: `put`, `get`, `fetch_add`, `compare_swap` on memory that another rank shares.
//!
//! A rank [shares](Fabric::share) memory and sends the [key](RemoteKey) to whom it likes; those work on it
//! ([`Fabric::remote`]) while its owner does something else. Key, rights and bounds of each operation are checked by the
//! tables that the owner alone writes: over a link by the owner, over devices by the owner's device, and on mapped memory by
//! the rank that asks, which reads the owner's tables, since no one else takes part. There the ranks of a host trust one another
//! to do so. A key is refused from the moment that its share has ended, and no key is ever given out twice.
//!
//! # What is where when an operation has ended
//!
//! A put has landed: whoever reads the owner's memory after that, the owner or another rank, sees it. A get has brought all
//! its bytes. Operations that are under way at the same time take effect in any order; [`Fabric::fence`] keeps those before
//! it before those after it, and [`Fabric::flush`] waits for those before it. [`Remote::put_counted`] adds to a word when
//! all bytes of the put have landed, for owners that wait ([`Shared::wait_counter`]).
//!
//! Bytes that two ranks write at the same time are those of either, in any mixture. Words are for that:
//!
//! # One executor for each word
//!
//! Atomic operations on a share may go different ways, but all are atomic for the processors of the owner's host: they are
//! each word's one executor.
//!
//! - where ranks map one another's memory, each operation is an instruction of the rank that asks for it;
//! - where devices have atomics, they do them, if the owner's says that its atomics are also atomic with those of the
//!   owner's processors (`Capabilities::atomics_with_cpu`);
//! - elsewhere the owner's progress thread executes them, also while the owner's program computes: where the owner's device
//!   has no such atomics, and for each rank whose own device has none, or has given them up. That mixes with what the owner's
//!   device does for others, since both are atomic for the owner's processors.
//!
//! The owner itself may use atomics on its words too ([`Exposed::atomic_u64`](fulmen_memory::Exposed::atomic_u64)).

mod batch;
mod hazard;
mod key;
mod link;
mod owner;
mod remote;
mod shared;
mod table;

use std::sync::atomic;
use std::time::Duration;

use fulmen_memory::Exposed;

pub use batch::Batch;
pub use key::{InvalidKey, RemoteKey};
pub(crate) use owner::{Direct, Kept, OneSided};
pub use remote::Remote;
pub use shared::Shared;
pub(crate) use table::LEN as AREA;

use crate::engine::Rights;
use crate::{Fabric, FabricError, OpName};

impl Fabric {
    /// Lets other ranks work on this memory, as far as these rights go, until the share is [closed](Shared::close) or
    /// dropped. Not collective: it talks to nobody.
    ///
    /// # Errors
    /// [`FabricError::TooManyShares`], [`FabricError::NotPermitted`] for rights to write memory that is mapped read-only,
    /// and [`FabricError::Reach`] and [`FabricError::NoRandom`] if the system refuses.
    pub fn share(&self, memory: &Exposed, rights: Rights) -> Result<Shared, FabricError> {
        const OP: OpName = "share";
        self.inner.check_goes_on(OP)?;
        self.inner.lanes.sweep();
        let key = self.inner.onesided.share(OP, memory, rights)?;
        if self.inner.onesided.serves() {
            self.inner.progress.need();
        }
        Ok(Shared { fabric: self.clone(), key, memory: memory.clone() })
    }

    /// The memory that `rank`, which may be this one, shares under this key. Where ranks map one another's memory, it is
    /// mapped now, which takes the peer's answer (at most 30 s) unless it lies in the peer's [pool](Fabric::pool).
    ///
    /// # Errors
    /// [`FabricError::NoSuchRank`], [`FabricError::NoSuchKey`] for a key that is not of that rank and generation, or
    /// whose share is seen to have ended, [`FabricError::PeerLost`], and [`FabricError::Reach`] if the memory cannot be mapped.
    pub fn remote(&self, rank: u32, key: &RemoteKey) -> Result<Remote, FabricError> {
        Remote::open(self, rank, key)
    }

    /// Waits until all one-sided operations on a rank's memory that this rank has started so far have taken effect.
    ///
    /// # Errors
    /// [`FabricError::NoSuchRank`], [`FabricError::PeerLost`] and [`FabricError::TimedOut`].
    pub fn flush(&self, rank: u32, timeout: Duration) -> Result<(), FabricError> {
        const OP: OpName = "flush";
        self.check_one_sided(OP, rank)?;
        // What works on mapped memory has taken effect when it returns.
        atomic::fence(atomic::Ordering::SeqCst);
        self.flush_link(OP, rank, timeout)
    }

    /// One-sided operations on a rank's memory that this rank starts later take effect after those that it has started
    /// before. It waits for those (within the [fabric's timeout](Fabric::timeout)) where devices do some of them, or where
    /// ranks map one another's memory and some of it cannot be mapped; and nowhere else.
    ///
    /// # Errors
    /// [`FabricError::NoSuchRank`], [`FabricError::PeerLost`] and [`FabricError::TimedOut`].
    pub fn fence(&self, rank: u32) -> Result<(), FabricError> {
        const OP: OpName = "fence";
        self.check_one_sided(OP, rank)?;
        atomic::fence(atomic::Ordering::SeqCst);
        self.fence_link(OP, rank)
    }

    /// Refuses a rank that is none, or lost.
    #[inline]
    fn check_one_sided(&self, op: OpName, rank: u32) -> Result<(), FabricError> {
        if rank >= self.size() {
            return Err(FabricError::NoSuchRank { op, rank, size: self.size() });
        }
        self.check_alive(op, rank)
    }
}

/// Whether a 64-bit word can lie at an offset of a rank's memory.
#[inline]
fn check_word(op: OpName, rank: u32, memory: &Exposed, offset: u64) -> Result<(), FabricError> {
    let region = memory.len() as u64;
    if offset.checked_add(8).is_none_or(|end| end > region) {
        return Err(FabricError::OutOfBounds { op, rank, offset, len: 8, region });
    }
    // Regions start at a page in every process that maps them.
    if !(memory.addr() as u64 + offset).is_multiple_of(8) {
        return Err(FabricError::Misaligned { op, rank, offset });
    }
    Ok(())
}
