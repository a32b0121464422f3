//! What goes over a link's device.

use fulmen_verbs::DeviceInfo;

use crate::FabricOptions;
use crate::driver::device::{DeviceError, Terms, terms};
use crate::engine::lengths;

/// How a link between two equal devices carries operations on registered memory.
///
/// Of plain memory everything goes in frames: `rendezvous` and `framed_get` are [`u64::MAX`] then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Bytes of the longest frame, with what guards it.
    pub frame: u64,
    /// Bytes that guard each frame.
    pub guard: u64,
    /// Bytes of each chunk of a large message but the last.
    pub chunk: u64,
    /// Chunks that can be on their way in a direction.
    pub chunks: u64,
    /// The shortest message or put, in bytes, that goes in chunks.
    pub rendezvous: u64,
    /// Whether puts go in frames however long they are.
    pub framed_puts: bool,
    /// The longest get, in bytes, that is answered in frames.
    pub framed_get: u64,
    /// Frames of messages that can be under way before the other side has made room.
    pub credits: u64,
    /// Frames for which a Credit frame comes back, if nothing else goes back.
    pub credited: u64,
    /// Bytes in which the device counts what a SEND takes, if it counts so.
    pub unit: Option<u32>,
}

/// What is done, between the rank that starts it (here) and another one (there).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A tagged message, for which a receive is posted.
    Message,
    /// A put.
    Put,
    /// A put with a counter.
    PutCounted,
    /// A get.
    Get,
    /// A fetch-add; of 8 bytes, whatever is said.
    FetchAdd,
    /// A compare-swap; of 8 bytes, whatever is said.
    CompareSwap,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 6] = [
        Operation::Message,
        Operation::Put,
        Operation::PutCounted,
        Operation::Get,
        Operation::FetchAdd,
        Operation::CompareSwap,
    ];
}

/// Where something goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toward {
    /// To the rank that started the operation.
    Here,
    /// To the other one.
    There,
}

/// SENDs, of which each may go as soon as the one before: nothing is waited for between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Where they go.
    pub toward: Toward,
    /// Whether they are chunks, which the device carries from memory to memory; else frames, which processors copy.
    pub chunks: bool,
    /// How many there are.
    pub sends: u64,
    /// Their bytes, headers and guards among them.
    pub bytes: u64,
    /// Bytes of the longest.
    pub longest: u64,
    /// How many more there may be, each as long as the first: grants that are told one by one. Nothing waits for them.
    pub spare: u64,
}

/// The legs of an operation: each begins when the one before has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps {
    /// In their order.
    pub legs: Vec<Leg>,
    /// After so many of them the bytes are where they belong; after all of them both ranks know.
    pub delivered: usize,
}

/// What goes one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// SENDs.
    pub sends: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What they take of the device's queue: its frames, or the SENDs if it does not count in frames.
    pub units: u64,
    /// SENDs that may come on top.
    pub spare: u64,
}

impl Steps {
    /// What goes this way, over a wire whose device counts in such units.
    #[must_use]
    pub fn load(&self, toward: Toward, wire: &Wire) -> Load {
        let legs = self.legs.iter().filter(|leg| leg.toward == toward);
        legs.fold(Load::default(), |load, leg| Load {
            sends: load.sends + leg.sends,
            bytes: load.bytes + leg.bytes,
            units: load.units + leg.units(wire.unit),
            spare: load.spare + leg.spare,
        })
    }
}

impl Leg {
    fn one(toward: Toward, bytes: u64) -> Leg {
        Leg { toward, chunks: false, sends: 1, bytes, longest: bytes, spare: 0 }
    }

    /// What these SENDs take of the device's queue. All but the last are equally long.
    fn units(&self, unit: Option<u32>) -> u64 {
        let Some(unit) = unit.map(u64::from) else { return self.sends };
        let last = self.bytes - (self.sends - 1) * self.longest;
        (self.sends - 1) * self.longest.div_ceil(unit) + last.div_ceil(unit).max(1)
    }
}

impl Wire {
    /// How links run between two devices of this kind.
    ///
    /// # Errors
    /// [`DeviceError`] if links cannot run between such devices.
    pub fn new(options: &FabricOptions, info: &DeviceInfo) -> Result<Wire, DeviceError> {
        let Terms { frame, guard, chunk, chunks, engine } = terms(options, info)?;
        Ok(Wire {
            frame,
            guard,
            chunk,
            chunks,
            rendezvous: options.flow.rendezvous.max(1),
            framed_puts: engine.verify,
            framed_get: if engine.verify { u64::MAX } else { engine.framed_get() },
            credits: u64::from(engine.credits - lengths::KEPT_FROM_MESSAGES),
            credited: u64::from(engine.credits / 2),
            unit: info.limits.frame,
        })
    }

    /// What goes over the wire for one operation on so many bytes of registered memory.
    #[must_use]
    pub fn steps(&self, operation: Operation, bytes: u64) -> Steps {
        use Toward::{Here, There};
        let request = lengths::PREFIX + lengths::REQUEST;
        let control = |toward, len| Leg::one(toward, self.guard + lengths::PREFIX + len);
        let asking = |len| control(There, lengths::REQUEST + len);
        let answer = control(Here, lengths::ANSWER);
        match operation {
            Operation::Message if bytes >= self.rendezvous => {
                let legs = vec![
                    control(There, lengths::RTS),
                    self.grants(Here, bytes),
                    self.in_chunks(There, bytes),
                    control(Here, lengths::FIN),
                ];
                Steps { legs, delivered: 3 }
            }
            Operation::Message => {
                let first = if bytes <= self.room() - lengths::PREFIX { lengths::PREFIX } else { lengths::FRAGMENT };
                Steps { legs: vec![self.in_frames(There, first, bytes)], delivered: 1 }
            }
            Operation::Put | Operation::PutCounted => {
                let counter = if operation == Operation::PutCounted { lengths::COUNTER } else { 0 };
                if bytes >= self.rendezvous && !self.framed_puts {
                    let legs = vec![
                        asking(counter + lengths::PLACE),
                        self.grants(Here, bytes),
                        self.in_chunks(There, bytes),
                        answer,
                    ];
                    return Steps { legs, delivered: 3 };
                }
                Steps { legs: vec![self.in_frames(There, request + counter, bytes), answer], delivered: 1 }
            }
            Operation::Get if bytes == 0 => Steps { legs: vec![asking(0), answer], delivered: 2 },
            Operation::Get if bytes <= self.framed_get => {
                Steps { legs: vec![asking(0), self.in_frames(Here, lengths::FRAGMENT, bytes)], delivered: 2 }
            }
            Operation::Get => {
                let legs = vec![
                    asking(0),
                    control(Here, lengths::RTS),
                    self.grants(There, bytes),
                    self.in_chunks(Here, bytes),
                    control(There, lengths::FIN),
                ];
                Steps { legs, delivered: 4 }
            }
            Operation::FetchAdd => Steps { legs: vec![asking(lengths::ADD), answer], delivered: 2 },
            Operation::CompareSwap => Steps { legs: vec![asking(lengths::SWAP), answer], delivered: 2 },
        }
    }

    /// Bytes of the longest frame without what guards it.
    fn room(&self) -> u64 {
        self.frame - self.guard
    }

    /// Bytes in frames: the first with a header of so many bytes, the others as fragments.
    fn in_frames(&self, toward: Toward, header: u64, bytes: u64) -> Leg {
        let first = bytes.min(self.room() - header);
        let rest = bytes - first;
        let each = self.room() - lengths::FRAGMENT;
        let others = rest.div_ceil(each);
        let sends = 1 + others;
        let bytes = bytes + header + others * lengths::FRAGMENT + sends * self.guard;
        Leg { toward, chunks: false, sends, bytes, longest: bytes.min(self.frame), spare: 0 }
    }

    /// The bytes of a large message, whose receives have been granted.
    fn in_chunks(&self, toward: Toward, bytes: u64) -> Leg {
        let sends = bytes.div_ceil(self.chunk);
        Leg { toward, chunks: true, sends, bytes, longest: bytes.min(self.chunk), spare: 0 }
    }

    /// The grants for them: the first is for as many as can be posted at a time. Where more follow, how many of them one
    /// grant is for is a matter of moments.
    fn grants(&self, toward: Toward, bytes: u64) -> Leg {
        let chunks = bytes.div_ceil(self.chunk);
        let (least, most) = (chunks.div_ceil(self.chunks), 1 + chunks.saturating_sub(self.chunks));
        let each = self.guard + lengths::PREFIX + lengths::CTS;
        Leg { toward, chunks: false, sends: least, bytes: least * each, longest: each, spare: most - least }
    }
}

#[cfg(test)]
#[path = "tests/wire.rs"]
pub(super) mod tests;
