//! The shared memory through which the datagrams of one device go to another one.
//!
//! The sending device makes it and writes all of it but two words, which the receiving device writes: how far it has read
//! the ring, and that it is there.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use fulmen_memory::{Exposed, Region};
use fulmen_reach::ring::{Consumer, Producer};
use fulmen_reach::{Node, ShareKey};

use crate::layout::RING;
use crate::layout::datagrams as at;
use crate::wire::Cause;

/// The wire that this device writes. Dropping it tells the receiver that nothing more comes.
pub(super) struct OwnWire {
    node: Node,
    share: ShareKey,
    words: Exposed,
    pub(super) ring: Producer,
}

impl OwnWire {
    pub(super) fn new(node: &Node) -> Result<OwnWire, Cause> {
        let region = Region::alloc(at::SIZE)?;
        let words = region.expose()?;
        let ring = Producer::new(words.slice(at::RING_AT..at::SIZE), RING)?;
        words.atomic_u64(at::MAGIC).store(at::THIS_MAGIC, Release);
        let share = node.share(&region)?;
        Ok(OwnWire { node: node.clone(), share, words, ring })
    }

    pub(super) fn share(&self) -> ShareKey {
        self.share
    }

    #[cfg(test)]
    pub(super) fn words(&self) -> &Exposed {
        &self.words
    }

    /// Whether the receiver has it mapped.
    pub(super) fn is_attached(&self) -> bool {
        self.words.atomic_u64(at::ATTACHED).load(Acquire) != 0
    }

    /// Says whether a message waits for room. What the receiver frees after this is seen by whoever looks after it, or the
    /// receiver sees this.
    pub(super) fn set_waiting(&self, waiting: bool) {
        self.words.atomic_u64(at::WAITING).store(waiting.into(), SeqCst);
        fence(SeqCst);
    }

    /// Says that nothing comes after what is in the ring.
    pub(super) fn leave(&self) {
        // A forked child leaves its parent's wire alone.
        if !self.node.is_inherited() {
            self.words.atomic_u64(at::STATE).store(at::GONE, Release);
        }
    }
}

impl Drop for OwnWire {
    fn drop(&mut self) {
        self.leave();
        // The lock that this takes may be held for ever in a forked child.
        if !self.node.is_inherited() {
            self.node.unshare(self.share);
        }
    }
}

/// A sender's wire. Its words are the sender's to write, at any time and with any value.
pub(super) struct PeerWire {
    words: Exposed,
    pub(super) ring: Consumer,
}

impl PeerWire {
    pub(super) fn open(region: &Region) -> Result<PeerWire, Cause> {
        if region.len() != at::SIZE {
            return Err(format!("its shared memory has {} bytes and not {}", region.len(), at::SIZE).into());
        }
        let words = region.expose()?;
        if words.atomic_u64(at::MAGIC).load(Acquire) != at::THIS_MAGIC {
            return Err("its shared memory is no datagram wire: it was made by another version".into());
        }
        let ring = Consumer::new(words.slice(at::RING_AT..at::SIZE), RING)?;
        Ok(PeerWire { words, ring })
    }

    /// Says that messages are taken from now on.
    pub(super) fn attach(&self) {
        self.words.atomic_u64(at::ATTACHED).store(1, Release);
    }

    /// Whether nothing comes after what is in the ring.
    pub(super) fn is_gone(&self) -> bool {
        self.words.atomic_u64(at::STATE).load(Acquire) == at::GONE
    }

    /// Whether the sender waits for room, after some was made.
    pub(super) fn is_waited_for(&self) -> bool {
        fence(SeqCst);
        self.words.atomic_u64(at::WAITING).load(Relaxed) != 0
    }
}
