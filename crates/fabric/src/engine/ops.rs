//! Operations of a link, in slots that are used again.

use fulmen_memory::Exposed;

use super::frame::Status;
use super::onesided::{At, Atomic, Counter};
use super::{OpError, Place};

/// An operation on a link. Its number also names it to the peer; numbers are not used again soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId(u64);

impl OpId {
    fn new(index: usize, generation: u32) -> OpId {
        OpId((u64::from(generation) << 32) | index as u64)
    }

    fn index(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn to_u64(self) -> u64 {
        self.0
    }

    pub(super) fn from_u64(number: u64) -> OpId {
        OpId(number)
    }
}

/// Where a message's bytes come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Memory that goes out in frames, whoever moves the link on.
    Memory(Exposed),
    /// Registered memory that the peer can reach (at `place`, where the rendezvous is [`Mapped`](super::Rendezvous)) or
    /// that a device can send. At least one byte.
    Offered {
        /// The bytes.
        memory: Exposed,
        /// Where the peer finds them.
        place: Place,
    },
    /// So many bytes of plain memory of a thread that waits: they go out in frames while it moves the link on.
    Lent(u64),
    /// Bytes of its own.
    Bytes(Box<[u8]>),
}

impl Source {
    pub(super) fn len(&self) -> u64 {
        match self {
            Source::Memory(memory) | Source::Offered { memory, .. } => memory.len() as u64,
            Source::Lent(len) => *len,
            Source::Bytes(bytes) => bytes.len() as u64,
        }
    }
}

/// Where a message's bytes go.
#[derive(Clone, Debug)]
pub enum Target {
    /// Memory that is written, whoever moves the link on.
    Memory {
        /// The bytes.
        memory: Exposed,
        /// Whether a device can receive into it. Without meaning where the rendezvous is mapped.
        direct: bool,
    },
    /// So many bytes of plain memory of a thread that waits.
    Lent(u64),
}

impl Target {
    pub(super) fn room(&self) -> u64 {
        match self {
            Target::Memory { memory, .. } => memory.len() as u64,
            Target::Lent(len) => *len,
        }
    }
}

#[derive(Debug)]
pub(super) enum Op {
    Free,
    Send(Send),
    Recv(Recv),
    Atomic(AtomicOp),
    Done(Result<u64, OpError>),
}

/// Bytes that go to the peer.
#[derive(Debug)]
pub(super) struct Send {
    pub purpose: SendFor,
    pub source: Source,
    pub phase: SendPhase,
}

/// Why they go.
#[derive(Clone, Copy, Debug)]
pub(super) enum SendFor {
    Message {
        tag: u64,
    },
    Put(Put),
    /// The peer got them: this is its operation.
    Served {
        to: u64,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Put {
    pub to: At,
    pub then: Option<Counter>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendPhase {
    /// In the queue: frames go out from `sent` on. To the peer's operation, if it asked for them.
    Streaming { sent: u64, to: Option<u64> },
    /// In the queue: the offer is still to be sent.
    Offering,
    /// The offer is out.
    Offered,
    /// The peer has granted so many bytes of its memory, for the device to fill, and the device is done with `sent` of
    /// this end's. It ends when both are all and the peer has said how.
    Moving { granted: u64, sent: u64, fin: Option<Status> },
    /// In the queue: the peer is to learn that no more fragments come. With that it `ends`, or else with the answer.
    Aborting { sent: u64, total: u64, to: Option<u64>, ends: bool },
    /// All bytes of a put have gone out: with its request and right behind it, or later.
    Unanswered { in_order: bool },
}

/// Bytes that come from the peer.
#[derive(Debug)]
pub(super) struct Recv {
    pub purpose: RecvFor,
    pub target: Target,
    pub phase: RecvPhase,
    /// Bytes that wait for the thread that lends the target, from `drained` on.
    pub stash: Vec<u8>,
    pub drained: u64,
    /// This end asked for the bytes, so that they do not count as kept: no credit is withheld for them, and answers go on.
    pub asked: bool,
}

/// Why they come.
#[derive(Debug)]
pub(super) enum RecvFor {
    Message {
        tag: u64,
    },
    Get(Get),
    /// The peer puts them here.
    Served(ServedPut),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Get {
    pub from: At,
}

#[derive(Debug)]
pub(super) struct ServedPut {
    /// The peer's operation.
    pub to: u64,
    pub then: Option<Growth>,
}

/// A word that is added to when all bytes of a put have landed.
#[derive(Clone, Debug)]
pub(super) struct Growth {
    pub word: Exposed,
    pub add: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecvPhase {
    /// Waits for a message of its tag.
    Posted,
    /// A get whose request is still to be sent.
    Asking,
    /// A get whose request is out, of so many bytes. `given_up`: nobody wants them any more.
    Asked { len: u64, given_up: bool },
    /// Its message comes in fragments.
    Filling { got: u64, total: u64 },
    /// Its message is to be copied out of the peer's memory. `taken`: somebody is at it.
    Copying { peer_op: u64, place: Place, len: u64, taken: bool },
    /// The device receives into its target.
    Granted { peer_op: u64, granted: u64, len: u64, checksum: u32 },
    /// It was given up; the rest of its message is dropped when it comes.
    Discarding { got: u64, total: u64 },
}

#[derive(Debug)]
pub(super) struct AtomicOp {
    pub at: At,
    pub atomic: Atomic,
    /// The request is out.
    pub sent: bool,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    detached: bool,
    op: Op,
}

/// All operations of a link.
#[derive(Debug, Default)]
pub(super) struct Ops {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// How many have ended, wrapping.
    ended: u32,
}

/// What a number of the peer's means here.
pub(super) enum Named<'a> {
    Live(OpId, &'a mut Op),
    /// Its slot has another one by now.
    Stale,
    /// It never was.
    Unknown,
}

impl Ops {
    pub(super) fn add(&mut self, op: Op) -> OpId {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index];
            slot.detached = false;
            slot.op = op;
            return OpId::new(index, slot.generation);
        }
        self.slots.push(Slot { generation: 1, detached: false, op });
        OpId::new(self.slots.len() - 1, 1)
    }

    /// # Panics
    /// If the operation's outcome was taken or it was detached: the id is a caller's own.
    #[track_caller]
    pub(super) fn get(&mut self, id: OpId) -> &mut Op {
        let slot = &mut self.slots[id.index()];
        assert!(slot.generation == id.generation(), "an operation is used after its end");
        &mut slot.op
    }

    #[track_caller]
    pub(super) fn peek(&self, id: OpId) -> &Op {
        let slot = &self.slots[id.index()];
        assert!(slot.generation == id.generation(), "an operation is used after its end");
        &slot.op
    }

    pub(super) fn is_live(&self, id: OpId) -> bool {
        self.slots.get(id.index()).is_some_and(|slot| slot.generation == id.generation())
    }

    /// The operation that the peer means.
    pub(super) fn named(&mut self, number: u64) -> Named<'_> {
        let id = OpId::from_u64(number);
        match self.slots.get_mut(id.index()) {
            Some(slot) if slot.generation == id.generation() => Named::Live(id, &mut slot.op),
            // Generations wrap, so that no order of them tells more.
            Some(_) => Named::Stale,
            None => Named::Unknown,
        }
    }

    /// Ends an operation. One that nobody waits for is gone.
    pub(super) fn finish(&mut self, id: OpId, outcome: Result<u64, OpError>) {
        self.ended = self.ended.wrapping_add(1);
        let slot = &mut self.slots[id.index()];
        slot.op = Op::Done(outcome);
        if slot.detached {
            self.remove(id);
        }
    }

    /// Nobody asks for the outcome any more.
    pub(super) fn detach(&mut self, id: OpId) {
        let slot = &mut self.slots[id.index()];
        slot.detached = true;
        if let Op::Done(_) = slot.op {
            self.remove(id);
        }
    }

    pub(super) fn remove(&mut self, id: OpId) {
        let slot = &mut self.slots[id.index()];
        slot.op = Op::Free;
        slot.generation = slot.generation.checked_add(1).unwrap_or(1);
        self.free.push(id.index());
    }

    pub(super) fn ids(&self) -> Vec<OpId> {
        let live = self.slots.iter().enumerate().filter(|(_, slot)| !matches!(slot.op, Op::Free));
        live.map(|(index, slot)| OpId::new(index, slot.generation)).collect()
    }

    pub(super) fn ended(&self) -> u32 {
        self.ended
    }

    /// Whether there is none, nor an outcome that was not told.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// How many have not ended.
    pub(super) fn unfinished(&self) -> usize {
        self.slots.iter().filter(|slot| !matches!(slot.op, Op::Free | Op::Done(_))).count()
    }

    /// How many sends have not ended.
    pub(super) fn sending(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot.op, Op::Send(_))).count()
    }
}
