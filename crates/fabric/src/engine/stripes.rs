//! Large moves over several channels, and what the drivers of both ends have to say to one another about them.
//!
//! The receiver's driver chooses where each part of a message comes: it posts a receive there and [grants](Link::grant) the
//! part. What a channel that failed did not bring it grants again, for another one. So the parts that were granted may be more
//! than the message, and their order says nothing; the message has come when the receiver's driver says
//! [`Link::landed`].

use super::frame::{self, GrantBody, Incoming, PREFIX};
use super::incoming::exactly;
use super::link::{Control, Link};
use super::moves::Posting;
use super::ops::{Named, Op, OpId, Recv, RecvPhase, Send, SendPhase, Source};
use super::{ProtocolError, Rendezvous};

/// Words of the peer's driver that this end's has not taken yet: it does so whenever it moves the link on.
const TOLD: usize = 1024;

/// A part of a message, and over what it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its first byte.
    pub offset: u64,
    /// How many there are.
    pub len: u64,
    /// The channel.
    pub rail: u32,
    /// Which of the channels that have had this number.
    pub incarnation: u32,
}

/// A few bytes that mean something to drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    bytes: [u8; Word::MOST],
    len: u8,
}

impl Word {
    /// Bytes of the longest.
    pub const MOST: usize = 64;

    /// These bytes, if they are not too many.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Word> {
        let mut word = Word { bytes: [0; Word::MOST], len: u8::try_from(bytes.len()).ok()? };
        word.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(word)
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Link {
    /// A receive is posted for this part of a message: the peer may send it.
    pub fn grant(&mut self, op: OpId, part: Part) {
        if !self.ops.is_live(op) {
            return;
        }
        let Op::Recv(Recv { phase: RecvPhase::Granted { peer_op, .. }, .. }) = self.ops.get(op) else { return };
        let control = Control::Grant { op: *peer_op, to: op, part };
        self.control.push_back(control);
    }

    /// The device holds the memory of a part of so many bytes no longer.
    ///
    /// # Panics
    /// If no such part was given out.
    pub fn parted(&mut self, op: OpId, len: u64) {
        if !self.ops.is_live(op) {
            return;
        }
        let Op::Send(Send { phase: SendPhase::Moving { granted, sent, fin }, source, .. }) = self.ops.get(op) else {
            return;
        };
        *sent += len;
        assert!(*sent <= *granted, "{sent} bytes are sent of {granted}");
        if let Some(status) = fin.filter(|_| sent == granted) {
            let outcome = status.outcome(source.len());
            self.finish(op, outcome);
        }
    }

    /// Has the peer's driver told something.
    pub fn tell(&mut self, word: Word) {
        if !self.severed {
            self.control.push_back(Control::Tell(word));
        }
    }

    /// What the peer's driver has said next.
    pub fn next_told(&mut self) -> Option<Word> {
        self.told.pop_front()
    }

    pub(super) fn on_grant(&mut self, number: u64, frame: &(impl Incoming + ?Sized)) -> Result<(), ProtocolError> {
        let fields: GrantBody = frame::read(frame, PREFIX, "a Grant")?;
        exactly(frame, PREFIX + size_of::<GrantBody>(), "a Grant")?;
        if self.config.rendezvous != Rendezvous::Striped {
            return Err(ProtocolError::Malformed { what: "a Grant where there is one channel" });
        }
        const WRONG: ProtocolError = ProtocolError::Malformed { what: "the send that a Grant names" };
        let (offset, len) = (fields.offset.get(), fields.len.get());
        let part = Part { offset, len, rail: fields.rail.get(), incarnation: fields.incarnation.get() };
        let Named::Live(op, Op::Send(send)) = self.ops.named(number) else { return Err(WRONG) };
        let Source::Offered { memory, .. } = &send.source else { return Err(WRONG) };
        let (before, sent) = match send.phase {
            SendPhase::Offered if self.fallback.ignores_grants() => return Ok(()),
            SendPhase::Offered => (0, 0),
            SendPhase::Moving { granted, sent, fin: None } => (granted, sent),
            _ => return Err(WRONG),
        };
        let end = offset.checked_add(len).filter(|end| len > 0 && *end <= memory.len() as u64);
        let (Some(end), Some(granted)) = (end, before.checked_add(len)) else {
            return Err(ProtocolError::Malformed { what: "what a Grant grants" });
        };
        let memory = memory.slice(offset as usize..end as usize);
        send.phase = SendPhase::Moving { granted, sent, fin: None };
        self.postings.push_back(Posting::Part { op, memory, part });
        Ok(())
    }

    pub(super) fn on_tell(&mut self, frame: &(impl Incoming + ?Sized)) -> Result<(), ProtocolError> {
        if self.config.rendezvous != Rendezvous::Striped {
            return Err(ProtocolError::Malformed { what: "a Tell where drivers have nothing to say" });
        }
        let mut bytes = [0; Word::MOST];
        let len = frame.len() - PREFIX;
        let too_long = ProtocolError::Malformed { what: "the length of a Tell" };
        let bytes = bytes.get_mut(..len).ok_or(too_long)?;
        frame.read(PREFIX, bytes);
        if self.told.len() >= TOLD {
            return Err(ProtocolError::Malformed { what: "more Tells than anybody has to say" });
        }
        self.told.extend(Word::new(bytes));
        Ok(())
    }
}
