//! The layout of requests and answers: see the table in [`frame`](super::super::frame).

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{At, Atomic, Counter};
use crate::engine::exports::Rights;
use crate::engine::{OpError, ProtocolError};

/// A counter follows.
pub(crate) const COUNTED: u8 = 1;
/// The put's bytes go on in other frames.
pub(crate) const FIRST: u8 = 2;
/// The put's bytes are offered: their place follows.
pub(crate) const OFFERED: u8 = 4;
/// The get takes an offer.
pub(crate) const DIRECT: u8 = 8;
/// In an answer's code: it is the counter that the owner refuses.
const OF_COUNTER: u8 = 0x80;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Verb {
    Put = 1,
    Get = 2,
    FetchAdd = 3,
    CompareSwap = 4,
}

impl Verb {
    pub(super) fn parse(byte: u8) -> Result<Verb, ProtocolError> {
        Ok(match byte {
            1 => Verb::Put,
            2 => Verb::Get,
            3 => Verb::FetchAdd,
            4 => Verb::CompareSwap,
            _ => return Err(ProtocolError::Malformed { what: "what a request asks for" }),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RequestBody {
    pub verb: u8,
    pub flags: u8,
    pub op: U64,
    pub key: U64,
    pub offset: U64,
    pub len: U64,
}

impl RequestBody {
    pub(super) fn new(verb: Verb, flags: u8, op: u64, at: At, len: u64) -> RequestBody {
        let (key, offset) = (at.key.into(), at.offset.into());
        RequestBody { verb: verb as u8, flags, op: op.into(), key, offset, len: len.into() }
    }

    pub(super) fn at(&self) -> At {
        At { key: self.key.get(), offset: self.offset.get() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CounterBody {
    key: U64,
    offset: U64,
    add: U64,
}

impl From<Counter> for CounterBody {
    fn from(Counter { at, add }: Counter) -> CounterBody {
        CounterBody { key: at.key.into(), offset: at.offset.into(), add: add.into() }
    }
}

impl From<CounterBody> for Counter {
    fn from(body: CounterBody) -> Counter {
        Counter { at: At { key: body.key.get(), offset: body.offset.get() }, add: body.add.get() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct PlaceBody {
    pub key: U64,
    pub offset: U64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SwapBody {
    pub expect: U64,
    pub new: U64,
}

/// An answer, and its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Answer {
    pub op: U64,
    /// What came of the request.
    pub code: u8,
    /// The old value of a word; the bytes that the memory has, if it is out of bounds.
    pub value: U64,
}

/// The codes of answers.
mod code {
    pub(super) const DONE: u8 = 0;
    pub(super) const NO_SUCH_KEY: u8 = 1;
    pub(super) const OUT_OF_BOUNDS: u8 = 2;
    pub(super) const NOT_PERMITTED: u8 = 3;
    pub(super) const MISALIGNED: u8 = 4;
    pub(super) const CANCELLED: u8 = 5;
    pub(super) const UNREACHABLE: u8 = 6;
}

/// Who an owner's refusal is about: what the request asked for, or its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    Request,
    Counter,
}

impl Answer {
    pub(super) fn new(op: u64, outcome: Result<u64, (About, OpError)>) -> Answer {
        let (code, value) = match outcome {
            Ok(value) => (code::DONE, value),
            Err((about, error)) => {
                let (code, value) = match error {
                    OpError::NoSuchKey => (code::NO_SUCH_KEY, 0),
                    OpError::OutOfBounds { size, .. } => (code::OUT_OF_BOUNDS, size),
                    OpError::NotPermitted { .. } => (code::NOT_PERMITTED, 0),
                    OpError::Misaligned { .. } => (code::MISALIGNED, 0),
                    OpError::Unreachable => (code::UNREACHABLE, 0),
                    _ => (code::CANCELLED, 0),
                };
                (if about == About::Counter { code | OF_COUNTER } else { code }, value)
            }
        };
        Answer { op: op.into(), code, value: value.into() }
    }

    /// What it says to a request of this kind.
    pub(super) fn outcome(&self, asked: &Asked) -> Result<Result<u64, OpError>, ProtocolError> {
        const WRONG: ProtocolError = ProtocolError::Malformed { what: "the code of an answer" };
        let (at, len, need) = match (self.code & OF_COUNTER, asked.then) {
            (0, _) => (asked.at, asked.len, asked.need),
            (_, Some(counter)) if self.code & !OF_COUNTER != code::DONE => (counter.at, 8, Rights::ATOMIC),
            _ => return Err(WRONG),
        };
        let offset = at.offset;
        Ok(match self.code & !OF_COUNTER {
            code::DONE => Ok(self.value.get()),
            code::NO_SUCH_KEY => Err(OpError::NoSuchKey),
            code::OUT_OF_BOUNDS => Err(OpError::OutOfBounds { offset, len, size: self.value.get() }),
            code::NOT_PERMITTED => Err(OpError::NotPermitted { need }),
            code::MISALIGNED => Err(OpError::Misaligned { offset }),
            code::CANCELLED => Err(OpError::Cancelled),
            code::UNREACHABLE => Err(OpError::Unreachable),
            _ => return Err(WRONG),
        })
    }
}

/// What was asked for: the other half of what a refusal says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub at: At,
    pub len: u64,
    pub need: Rights,
    pub then: Option<Counter>,
}

impl Atomic {
    pub(super) fn verb(&self) -> Verb {
        match self {
            Atomic::FetchAdd(_) => Verb::FetchAdd,
            Atomic::CompareSwap { .. } => Verb::CompareSwap,
        }
    }
}
