//! Frames of other ranks' links, which this link carries a part of their way.
//!
//! They are opaque here: a `Carried` frame says between which ranks they go and how many hops they may still take. They
//! have a queue of their own, in turn with all else that can wait. Their credits are given back as soon as they are read,
//! whatever else is kept, and the last credits of the link are theirs, too: so whoever reads all that comes never holds
//! up what others send through it.

use std::collections::VecDeque;

use super::ProtocolError;
use super::frame::{Incoming, Kind, PREFIX};
use super::link::Link;
use super::outgoing::{Body, Outgoing, Step};

/// A frame between two ranks, on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The rank that sent it.
    pub source: u16,
    /// The rank to which it goes.
    pub destination: u16,
    /// How many more ranks may pass it on.
    pub hops: u8,
    /// What it is, sealed by the source.
    pub bytes: Vec<u8>,
}

impl Carried {
    fn word(&self) -> u64 {
        u64::from(self.source) | u64::from(self.destination) << 16 | u64::from(self.hops) << 32
    }
}

/// What a link carries for others.
#[derive(Debug, Default)]
pub(super) struct Carriage {
    /// To go, oldest first.
    out: VecDeque<Carried>,
    /// Come, oldest first.
    come: VecDeque<Carried>,
    /// Memory of frames that have gone.
    spare: Vec<Vec<u8>>,
}

impl Carriage {
    pub(super) fn is_idle(&self) -> bool {
        self.out.is_empty()
    }
}

impl Link {
    /// From now on, frames of others are carried. They are refused before.
    pub fn carry_for_others(&mut self) {
        self.carriage.get_or_insert_default();
    }

    /// Bytes of the longest frame of others.
    #[must_use]
    pub fn longest_carried(&self) -> usize {
        self.config.frame - PREFIX
    }

    /// A frame of others is to go over this link.
    ///
    /// # Panics
    /// If the link carries none, or none so long.
    pub fn carry(&mut self, frame: Carried) {
        assert!(frame.bytes.len() <= self.longest_carried(), "a frame too long to be carried");
        self.carriage.as_mut().expect("a link that carries frames of others").out.push_back(frame);
    }

    /// How many frames of others are still to go.
    #[must_use]
    pub fn carrying(&self) -> usize {
        self.carriage.as_ref().map_or(0, |carriage| carriage.out.len())
    }

    /// The next frame of others that has come. To be asked until there is none, each time after frames were received: there
    /// are never more than credits.
    pub fn next_carried(&mut self) -> Option<Carried> {
        self.carriage.as_mut()?.come.pop_front()
    }

    /// Memory of a frame of others that has gone, or was taken, for another one.
    pub fn spare_carried(&mut self) -> Option<Vec<u8>> {
        self.carriage.as_mut()?.spare.pop()
    }

    /// Memory for frames that come.
    pub fn lend_carried(&mut self, memory: Vec<u8>) {
        if let Some(carriage) = &mut self.carriage {
            carriage.spare.push(memory);
        }
    }

    /// The next frame of others.
    pub(super) fn carried_frame(&mut self) -> Option<Outgoing> {
        let frame = self.carriage.as_ref()?.out.front()?;
        let word = frame.word();
        self.one.pack_bytes(&frame.bytes);
        Some(self.frame(Kind::Carried, 0, word, &(), Body::Packed, Step::Carried))
    }

    /// It has gone.
    pub(super) fn carried_sent(&mut self) {
        if let Some(carriage) = &mut self.carriage
            && let Some(frame) = carriage.out.pop_front()
        {
            carriage.spare.push(frame.bytes);
        }
    }

    pub(super) fn on_carried(&mut self, word: u64, frame: &(impl Incoming + ?Sized)) -> Result<(), ProtocolError> {
        let carriage = self.carriage.as_mut().ok_or(ProtocolError::Malformed { what: "a frame for others" })?;
        if word >> 40 != 0 {
            return Err(ProtocolError::Malformed { what: "where a frame for others goes" });
        }
        let mut bytes = carriage.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.resize(frame.len() - PREFIX, 0);
        frame.read(PREFIX, &mut bytes);
        let (source, destination, hops) = (word as u16, (word >> 16) as u16, (word >> 32) as u8);
        carriage.come.push_back(Carried { source, destination, hops, bytes });
        Ok(())
    }
}
