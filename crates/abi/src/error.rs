//! Why a record is refused.

use core::fmt;

use crate::{Rights, VERSION};

/// Where in a record something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// The record; of an [`RdmaBuffer`](crate::RdmaBuffer) in another record, that record's field.
    pub of: &'static str,
    /// The field's name.
    pub name: &'static str,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.of, self.name)
    }
}

/// Why a record is refused: which field, and what is wrong there. No value of the caller's text and no key is in it, so
/// that it can be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AbiError {
    /// Other than a record's bytes.
    #[error("{given} bytes are no {record}, which has {needed}")]
    Size {
        /// The record's type.
        record: &'static str,
        /// How many there are.
        given: usize,
        /// How many there must be.
        needed: usize,
    },
    /// It is another record, or none.
    #[error(
        "what begins with {found:#010x} is no {record}: write its magic number first, and look whether the place is right"
    )]
    Magic {
        /// The record that it should be; of an [`RdmaBuffer`](crate::RdmaBuffer) in another record, that record's
        /// field.
        record: &'static str,
        /// What stands there.
        found: u32,
    },
    /// It has the layout of another release.
    #[error(
        "{record} has the layout of version {found}, and this is version {VERSION}: build both sides from the same release"
    )]
    Version {
        /// The record, as in [`AbiError::Magic`].
        record: &'static str,
        /// What stands there.
        found: u32,
    },
    /// A number or a bit that means nothing.
    #[error("{field} is {value:#x}, which means nothing in version {VERSION}")]
    Unknown {
        /// Where.
        field: Field,
        /// The number; of flags, those that mean nothing.
        value: u64,
    },
    /// A word that has no meaning, or none here.
    #[error("{field} has no meaning here and must be zero")]
    NotZero {
        /// Where.
        field: Field,
    },
    /// Something that must be there.
    #[error("{field} is needed here and is missing")]
    Missing {
        /// Where.
        field: Field,
    },
    /// A number beyond its bound.
    #[error("{field} is {value}, and {max} is the most")]
    TooLarge {
        /// Where.
        field: Field,
        /// The number.
        value: u64,
        /// Its bound.
        max: u64,
    },
    /// Bytes that must be text are no UTF-8.
    #[error("{field} is no UTF-8 from byte {at} on")]
    NotUtf8 {
        /// Where.
        field: Field,
        /// Bytes before the first that is wrong.
        at: usize,
    },
    /// A string with a NUL in it, which would end there.
    #[error("{field} has a string with a NUL in it")]
    Nul {
        /// Where.
        field: Field,
    },
    /// Text that does not end with a NUL.
    #[error("{field} does not end with a NUL, as each of its strings must")]
    Unterminated {
        /// Where.
        field: Field,
    },
    /// Other strings than their counts say.
    #[error("{field} has {found} strings, and the counts say {counted}")]
    Count {
        /// Where.
        field: Field,
        /// NULs in the text.
        found: u64,
        /// The sum of the counts.
        counted: u64,
    },
    /// A string that is not of the kind that belongs there.
    #[error("{field}: {why}")]
    Malformed {
        /// Where.
        field: Field,
        /// What it must be.
        why: &'static str,
    },
    /// A part of shared memory that goes beyond its end.
    #[error("{field} goes beyond the end of the region ({region_len} bytes)")]
    OutOfBounds {
        /// Where.
        field: Field,
        /// The region's bytes.
        region_len: u64,
    },
    /// Shared memory that may not be used as it is to be used.
    #[error("{field} lacks the right {needed:?}: it has {given:?}")]
    Rights {
        /// Where.
        field: Field,
        /// What is needed.
        needed: Rights,
        /// What there is.
        given: Rights,
    },
    /// Shared memory of another generation than the request, which is not there any more.
    #[error("{field} is {found}, and the request's is {expected}: share the memory again")]
    Stale {
        /// Where.
        field: Field,
        /// The memory's generation.
        found: u64,
        /// The request's.
        expected: u64,
    },
    /// Two streams in the same memory.
    #[error("{field} lies in the same memory as {other}")]
    Overlap {
        /// Where.
        field: Field,
        /// And where.
        other: Field,
    },
    /// Counters of a ring that cannot both be right.
    #[error("{written} bytes written and {read} read is impossible in a ring of {len}")]
    Counters {
        /// Of the one who writes.
        written: u64,
        /// Of the one who reads.
        read: u64,
        /// The ring's bytes.
        len: u64,
    },
}
