//! Large messages: straight from one rank's registered memory into another's, in chunks.
//!
//! The receiver posts RECVs for the chunks of its messages, one message after the other, and grants what it has posted.
//! The sender sends granted chunks in the order of the grants, so that each meets its own RECV.
//!
//! # Where the device promises nothing
//!
//! Chunks are the message's bytes and nothing else, so that they can carry no seal. Over UC a chunk may be lost, come twice or
//! come damaged; each after it then meets another one's RECV. A message has only come when all of its RECVs have completed, of
//! which its sender hears by a frame. What is found out:
//!
//! - *With `verify_data`*: everything. The offer tells the checksum of the message, which its receiver compares with what
//!   has come before it says anything. Nothing wrong is delivered.
//! - *Without it, on devices with immediate data*: a lost or repeated chunk, since chunks carry their numbers. A damaged one
//!   is not.
//! - *Without both* (Thunderbolt): a lost chunk whose place no other one took, by the time in which nothing comes, and a
//!   chunk of another length. Not found out is damage, and a chunk that was lost or repeated while chunks of the same
//!   length came after it: these bytes are delivered as if they were right.
//!
//! What is found out is put right: both ends give their queue pairs for moves up, after which no chunk can land any more, and
//! all messages that have not come go in frames, as do later ones ([`Link::give_up_moves`]). It is logged once a link.

use std::collections::VecDeque;
use std::sync::Arc;

use fulmen_memory::Exposed;
use fulmen_verbs::{Completion, Piece, PostError, QueuePair, RecvRequest, SendOp, SendRequest};

use super::full::Fullness;
use super::hub::{Berth, Work};
use super::memory::Registered;
use super::plan::Plan;
use crate::engine::{Link, OpId, Posting};

/// A message that comes.
struct Coming {
    op: OpId,
    /// Gone when all its RECVs are posted: the device has it then.
    memory: Option<Exposed>,
    len: u64,
    posted: u64,
    landed: u64,
}

/// A part of a message that goes.
struct Going {
    op: OpId,
    memory: Exposed,
    at: u64,
    end: u64,
}

/// A chunk that was sent.
struct Sent {
    op: OpId,
    upto: u64,
}

/// Why a move cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum MoveError {
    #[error("{0}")]
    Post(#[from] PostError),
    #[error("memory of a message is not registered")]
    NotRegistered,
    #[error("the bytes of a message came out of order")]
    Order,
    #[error("a corrupted message: its checksum is wrong")]
    Corrupted,
}

/// The moves of one link, both ways.
pub(super) struct Moves {
    registered: Arc<Registered>,
    berth: Berth,
    chunk: u64,
    chunks: u64,
    immediate: bool,
    coming: VecDeque<Coming>,
    /// RECVs that are posted together.
    batch: Vec<RecvRequest>,
    /// Messages at the front of `coming` whose RECVs are all posted.
    whole: usize,
    /// RECVs that were posted, and those that have completed.
    posted: u64,
    received: u64,
    going: VecDeque<Going>,
    /// Chunks that are on their way, oldest first.
    flying: VecDeque<Sent>,
    sent: u64,
    bytes: u64,
    /// Messages of which the peer has not said that they have come, oldest first.
    unlanded: VecDeque<OpId>,
    /// How often something was sent, was done being sent, or has come.
    stirs: u64,
    fullness: Fullness,
}

impl Moves {
    pub(super) fn new(registered: Arc<Registered>, berth: Berth, plan: &Plan) -> Moves {
        Moves {
            registered,
            berth,
            chunk: plan.chunk,
            chunks: plan.chunks.into(),
            immediate: plan.immediate,
            coming: VecDeque::new(),
            batch: Vec::with_capacity(plan.chunks as usize),
            whole: 0,
            posted: 0,
            received: 0,
            going: VecDeque::new(),
            flying: VecDeque::with_capacity(plan.chunks as usize),
            sent: 0,
            bytes: 0,
            unlanded: VecDeque::new(),
            stirs: 0,
            fullness: Fullness::default(),
        }
    }

    /// Something that changes with everything that goes on, as long as the peer has still to say that messages have come.
    pub(super) fn pending(&mut self, link: &Link) -> Option<u64> {
        while self.unlanded.pop_front_if(|op| !link.is_moving(*op)).is_some() {
            self.stirs += 1;
        }
        (!self.unlanded.is_empty()).then_some(self.stirs)
    }

    /// Bytes that were sent.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.bytes
    }

    /// Lets go of all memory: the link is over, and its queue pair gone.
    pub(super) fn clear(&mut self) {
        self.coming.clear();
        self.going.clear();
        self.flying.clear();
        self.unlanded.clear();
        self.whole = 0;
    }

    /// Posts what the link has to move and the queues have room for: whether there was anything.
    pub(super) fn advance(&mut self, pair: &dyn QueuePair, link: &mut Link) -> Result<bool, MoveError> {
        while let Some(posting) = link.next_posting() {
            match posting {
                Posting::Receive { op, memory } => {
                    let len = memory.len() as u64;
                    self.coming.push_back(Coming { op, memory: Some(memory), len, posted: 0, landed: 0 });
                }
                Posting::Send { op, memory, range } => {
                    self.stirs += 1;
                    if self.unlanded.back() != Some(&op) {
                        self.unlanded.push_back(op);
                    }
                    self.going.push_back(Going { op, memory, at: range.start, end: range.end });
                }
                Posting::Part { .. } => unreachable!("parts are of striped links"),
            }
        }
        let receives = self.post_receives(pair, link)?;
        Ok(self.post_sends(pair)? || receives)
    }

    /// As many of a message as there is room for are posted at once: who sends over a device that tells of RECVs is told of all
    /// of them, and does not wait for the next one with the first in its hands.
    fn post_receives(&mut self, pair: &dyn QueuePair, link: &mut Link) -> Result<bool, MoveError> {
        let before = self.posted;
        while let Some(coming) = self.coming.get_mut(self.whole) {
            let room = self.chunks - (self.posted - self.received);
            if let Some(memory) = coming.memory.as_ref().filter(|_| room > 0) {
                let requests = &mut self.batch;
                requests.clear();
                let mut at = coming.posted;
                while at < coming.len && (requests.len() as u64) < room {
                    let end = coming.len.min(at + self.chunk);
                    let piece = piece(&self.registered, memory, at, end)?;
                    let index = self.posted + requests.len() as u64;
                    requests.push(RecvRequest::new(Work::ChunkIn.number(self.berth, index as u32), [piece]));
                    at = end;
                }
                let (mut taken, posted) = (requests.len() as u64, pair.post_recv(requests));
                // The memory of those that were posted is the device's alone; a refused one has none of it.
                requests.clear();
                if let Err(refused) = posted {
                    taken = refused.index as u64;
                    if !self.fullness.passes(&refused, self.posted + taken - self.received, self.berth.peer) {
                        return Err(refused.into());
                    }
                }
                self.posted += taken;
                if taken > 0 {
                    coming.posted = coming.len.min(coming.posted + taken * self.chunk);
                    link.granted(coming.op, coming.posted);
                }
                if coming.posted == coming.len {
                    coming.memory = None;
                }
            }
            if coming.memory.is_some() {
                break;
            }
            self.whole += 1;
        }
        Ok(self.posted > before)
    }

    fn post_sends(&mut self, pair: &dyn QueuePair) -> Result<bool, MoveError> {
        let before = self.sent;
        while (self.flying.len() as u64) < self.chunks {
            let Some(going) = self.going.front_mut() else { break };
            let upto = going.end.min(going.at + self.chunk);
            let piece = piece(&self.registered, &going.memory, going.at, upto)?;
            let imm = self.immediate.then_some(self.sent as u32);
            let number = Work::ChunkOut.number(self.berth, self.sent as u32);
            if let Err(refused) = pair.post_send(&[SendRequest::new(number, SendOp::Send { imm }, [piece])]) {
                if !self.fullness.passes(&refused, self.flying.len() as u64, self.berth.peer) {
                    return Err(refused.into());
                }
                break;
            }
            self.flying.push_back(Sent { op: going.op, upto });
            self.sent += 1;
            self.bytes += upto - going.at;
            going.at = upto;
            if upto == going.end {
                self.going.pop_front();
            }
        }
        Ok(self.sent > before)
    }

    /// A RECV has completed.
    pub(super) fn received(&mut self, index: u32, completion: &Completion, link: &mut Link) -> Result<(), MoveError> {
        let Some(coming) = self.coming.front_mut() else { return Err(MoveError::Order) };
        let len = self.chunk.min(coming.posted - coming.landed);
        let imm = self.immediate.then_some(self.received as u32);
        if index != self.received as u32 || len == 0 || u64::from(completion.byte_len) != len || completion.imm != imm {
            return Err(MoveError::Order);
        }
        self.received += 1;
        coming.landed += len;
        if coming.landed == coming.len {
            let op = coming.op;
            self.coming.pop_front();
            self.whole -= 1;
            if !link.landed(op) {
                return Err(MoveError::Corrupted);
            }
        }
        Ok(())
    }

    /// A SEND has completed.
    pub(super) fn sent(&mut self, index: u32, link: &mut Link) -> Result<(), MoveError> {
        let first = self.sent - self.flying.len() as u64;
        match self.flying.pop_front() {
            Some(Sent { op, upto }) if index == first as u32 => {
                self.stirs += 1;
                link.sent(op, upto);
                Ok(())
            }
            _ => Err(MoveError::Order),
        }
    }
}

pub(super) fn piece(registered: &Registered, memory: &Exposed, start: u64, end: u64) -> Result<Piece, MoveError> {
    let memory = memory.slice(start as usize..end as usize);
    let lkey = registered.key(&memory).ok_or(MoveError::NotRegistered)?;
    Ok(Piece { memory, lkey })
}
