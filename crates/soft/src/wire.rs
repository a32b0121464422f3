//! A queue pair's outgoing shared memory, and the peer's as it is seen from here.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use fulmen_memory::{Exposed, Region};
use fulmen_reach::ring::{Consumer, Producer};
use fulmen_reach::{Node, ShareKey};
use fulmen_verbs::{Access, CompletionStatus, Gid, QueuePairKind};

use crate::layout::wire as at;
use crate::layout::{ANSWERS, RING, WIRE_MAGIC, state};

/// What an own wire cannot be made for.
pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The wire that this side writes. Dropping it tells the peer that the connection is gone.
pub(crate) struct OwnWire {
    node: Node,
    share: ShareKey,
    words: Exposed,
    pub(crate) ring: Producer,
    pub(crate) answers: Producer,
    pub(crate) incarnation: u64,
}

impl OwnWire {
    pub(crate) fn new(node: &Node, number: u32, kind: QueuePairKind) -> Result<OwnWire, Cause> {
        let region = Region::alloc(at::SIZE)?;
        let words = region.expose()?;
        let ring = Producer::new(words.slice(at::RING_AT..at::ANSWERS_AT), RING)?;
        let answers = Producer::new(words.slice(at::ANSWERS_AT..at::SIZE), ANSWERS)?;
        let incarnation = getrandom::u64()?;
        words.atomic_u64(at::INCARNATION).store(incarnation, Relaxed);
        words.atomic_u64(at::NUMBER).store(number.into(), Relaxed);
        words.atomic_u64(at::KIND).store(kind_code(kind), Relaxed);
        words.atomic_u64(at::MAGIC).store(WIRE_MAGIC, Release);
        let share = node.share(&region)?;
        Ok(OwnWire { node: node.clone(), share, words, ring, answers, incarnation })
    }

    pub(crate) fn share(&self) -> ShareKey {
        self.share
    }

    /// Says what peers may do, before they can connect.
    pub(crate) fn set_rights(&self, access: Access, domain: u64) {
        self.words.atomic_u64(at::ACCESS).store(access.bits().into(), Relaxed);
        self.words.atomic_u64(at::DOMAIN).store(domain, Release);
    }

    /// Says by which of its GIDs this side goes, and to which it sends, before it is connected.
    pub(crate) fn set_gids(&self, source: Gid, target: Gid) {
        for (at, gid) in [(at::SOURCE, source), (at::TARGET, target)] {
            for (word, half) in halves(gid).into_iter().enumerate() {
                self.words.atomic_u64(at + 8 * word).store(half, Relaxed);
            }
        }
    }

    /// Says that messages of `partner` are taken from now on, and whether its memory can be copied from here.
    pub(crate) fn connect(&self, partner: u64, not_ready_ns: u64, pulls: bool) {
        self.words.atomic_u64(at::PULLS).store(pulls.into(), Relaxed);
        self.words.atomic_u64(at::NOT_READY_NS).store(not_ready_ns, Relaxed);
        self.words.atomic_u64(at::PARTNER).store(partner, Relaxed);
        self.words.atomic_u64(at::STATE).store(state::CONNECTED, SeqCst);
    }

    /// Says that whatever was posted is void. The peer checks it after it has copied out of this side's memory, so it
    /// is said before that memory is given back.
    pub(crate) fn void(&self) {
        self.words.atomic_u64(at::STATE).store(state::GONE, SeqCst);
        fence(SeqCst);
    }

    /// Says that nothing comes after what is in the ring, which stands: none of it refers to this side's memory.
    pub(crate) fn end(&self) {
        self.words.atomic_u64(at::STATE).store(state::ENDED, SeqCst);
        fence(SeqCst);
    }

    /// Says that so many incoming messages were taken.
    #[inline]
    pub(crate) fn acknowledge(&self, taken: u64) {
        self.words.atomic_u64(at::ACKED).store(taken, Release);
    }

    /// Says that so many RECVs were posted.
    pub(crate) fn grant(&self, posted: u64) {
        self.words.atomic_u64(at::POSTED).store(posted, SeqCst);
    }

    /// Says that incoming message `number` found no RECV.
    pub(crate) fn stall(&self, number: u64) {
        self.words.atomic_u64(at::STALLED).store(number + 1, Release);
    }

    /// Says that there is a RECV for every incoming message that was said to have found none.
    pub(crate) fn unstall(&self) {
        self.words.atomic_u64(at::STALLED).store(0, Release);
    }

    /// Says that incoming message `number` is refused.
    pub(crate) fn refuse(&self, number: u64, status: CompletionStatus) {
        self.words.atomic_u64(at::REFUSED).store((number + 1) << 8 | u64::from(status as u32 as u8), Release);
    }

    /// Says that this side works on the peer's registration `key` until [`OwnWire::work_done`]. Whoever finds the
    /// registration valid after this is waited for when it ends.
    pub(crate) fn work_on(&self, key: u32) {
        self.words.atomic_u64(at::WORKING_ON).store(key.into(), SeqCst);
        fence(SeqCst);
    }

    pub(crate) fn work_done(&self) {
        self.words.atomic_u64(at::WORKING_ON).store(0, Release);
    }
}

impl Drop for OwnWire {
    fn drop(&mut self) {
        if self.node.is_inherited() {
            return;
        }
        self.void();
        self.node.unshare(self.share);
    }
}

/// The peer's wire. Its words are the peer's to write, at any time and with any value.
pub(crate) struct PeerWire {
    words: Exposed,
    pub(crate) incarnation: u64,
}

impl PeerWire {
    /// The wire of queue pair `number`, its ring and its answers, or what is wrong with it.
    pub(crate) fn open(
        region: &Region,
        number: u32,
        kind: QueuePairKind,
        incarnation: u64,
    ) -> Result<(PeerWire, Consumer, Consumer), Cause> {
        if region.len() != at::SIZE {
            return Err(format!("its shared memory has {} bytes and not {}", region.len(), at::SIZE).into());
        }
        let words = region.expose()?;
        let word = |at| words.atomic_u64(at).load(Acquire);
        if word(at::MAGIC) != WIRE_MAGIC
            || word(at::NUMBER) != u64::from(number)
            || word(at::INCARNATION) != incarnation
        {
            return Err("its shared memory is not that of this queue pair: it was made by another version".into());
        }
        if word(at::KIND) != kind_code(kind) {
            return Err(format!("it is no {kind} queue pair").into());
        }
        let ring = Consumer::new(words.slice(at::RING_AT..at::ANSWERS_AT), RING)?;
        let answers = Consumer::new(words.slice(at::ANSWERS_AT..at::SIZE), ANSWERS)?;
        Ok((PeerWire { words, incarnation }, ring, answers))
    }

    /// Whether the peer takes messages of `partner`.
    #[inline]
    pub(crate) fn takes(&self, partner: u64) -> bool {
        self.words.atomic_u64(at::STATE).load(Acquire) == state::CONNECTED && self.answers(partner)
    }

    /// Whether the peer's acknowledgements are about messages of `partner`.
    #[inline]
    pub(crate) fn answers(&self, partner: u64) -> bool {
        self.words.atomic_u64(at::PARTNER).load(Relaxed) == partner
    }

    /// Whether the peer, which takes messages of this side, copies out of this side's memory.
    pub(crate) fn pulls(&self) -> bool {
        self.words.atomic_u64(at::PULLS).load(Relaxed) == 1
    }

    /// Whether the peer, if it is connected to `partner` already, goes by `source` and sends to `target`.
    pub(crate) fn agrees(&self, partner: u64, source: Gid, target: Gid) -> bool {
        let says = |at: usize, gid| {
            let words = [0, 8].map(|word| self.words.atomic_u64(at + word).load(Relaxed));
            words == halves(gid)
        };
        !self.takes(partner) || says(at::SOURCE, source) && says(at::TARGET, target)
    }

    /// Whether the peer is connected, or was, to another queue pair than `partner`.
    pub(crate) fn is_taken(&self, partner: u64) -> bool {
        ![0, partner].contains(&self.words.atomic_u64(at::PARTNER).load(Relaxed))
    }

    /// Whether what the peer had posted is void.
    pub(crate) fn is_void(&self) -> bool {
        // What was copied out of the peer's memory before this was read before this.
        fence(SeqCst);
        self.words.atomic_u64(at::STATE).load(SeqCst) == state::GONE
    }

    /// Whether the peer is in error, or further than that.
    pub(crate) fn is_over(&self) -> bool {
        [state::GONE, state::ENDED].contains(&self.words.atomic_u64(at::STATE).load(SeqCst))
    }

    /// How many messages the peer says it has taken.
    #[inline]
    pub(crate) fn acked(&self) -> u64 {
        self.words.atomic_u64(at::ACKED).load(Acquire)
    }

    /// How many RECVs the peer says it has posted.
    #[inline]
    pub(crate) fn granted(&self) -> u64 {
        self.words.atomic_u64(at::POSTED).load(Acquire)
    }

    /// The message for which the peer has no RECV.
    pub(crate) fn stalled(&self) -> Option<u64> {
        self.words.atomic_u64(at::STALLED).load(Acquire).checked_sub(1)
    }

    /// The message that the peer refuses, and why.
    #[inline]
    pub(crate) fn refused(&self) -> Option<(u64, CompletionStatus)> {
        let word = self.words.atomic_u64(at::REFUSED).load(Acquire);
        let number = (word >> 8).checked_sub(1)?;
        let status = match word as u8 {
            code if code == CompletionStatus::RemoteInvalidRequest as u8 => CompletionStatus::RemoteInvalidRequest,
            code if code == CompletionStatus::RemoteAccess as u8 => CompletionStatus::RemoteAccess,
            _ => CompletionStatus::RemoteOperation,
        };
        Some((number, status))
    }

    pub(crate) fn not_ready_ns(&self) -> u64 {
        self.words.atomic_u64(at::NOT_READY_NS).load(Relaxed)
    }

    pub(crate) fn access(&self) -> Access {
        Access::from_bits_truncate(self.words.atomic_u64(at::ACCESS).load(Relaxed) as u32)
    }

    pub(crate) fn domain(&self) -> u64 {
        self.words.atomic_u64(at::DOMAIN).load(Relaxed)
    }

    /// Whether the peer says that it works on a registration of this process at the moment.
    pub(crate) fn works(&self) -> bool {
        self.words.atomic_u64(at::WORKING_ON).load(SeqCst) != 0
    }

    /// Whether the peer says that it works on this process's registration `key` at the moment.
    pub(crate) fn works_on(&self, key: u32) -> bool {
        self.words.atomic_u64(at::WORKING_ON).load(SeqCst) == u64::from(key)
    }
}

fn halves(gid: Gid) -> [u64; 2] {
    let [high, low] = [&gid.0[..8], &gid.0[8..]];
    [high, low].map(|half| u64::from_be_bytes(half.try_into().expect("eight bytes")))
}

fn kind_code(kind: QueuePairKind) -> u64 {
    match kind {
        QueuePairKind::Rc => 1,
        QueuePairKind::Uc => 2,
        QueuePairKind::Ud => 3,
    }
}
