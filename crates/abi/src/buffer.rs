//! Memory that a node shares.

use core::fmt;

use crate::check;
use crate::error::{AbiError, Field};
use crate::party::{self, VERSION};

constants! {
    "For `fulmen_rdma_buffer`."
    /// Its magic number: FBUF.
    pub const BUFFER_MAGIC: u32 = u32::from_le_bytes(*b"FBUF"), "FULMEN_BUFFER_MAGIC";
}

flags! {
    /// What others may do to shared memory.
    pub struct Rights, "FULMEN_RIGHT" {
        /// Get it.
        READ = 1,
        /// Put into it.
        WRITE = 2,
        /// Use its 64-bit words by atomics, and as counters of puts.
        ATOMIC = 4,
    }
}

layout! {
    /// Names a part of memory that a node shares. Whoever has it can do what its rights say until the share ends: it
    /// goes to those who are to work on the memory, and to nobody else. All zero is no buffer. It is written with the
    /// record that it is part of, by the same side.
    ///
    /// It has what a remote key of one-sided operations has, but for the keys of the owner's devices: what devices do
    /// by themselves, they do with the whole key.
    pub struct RdmaBuffer, "fulmen_rdma_buffer", 64 {
        /// `FULMEN_BUFFER_MAGIC`.
        0 magic: u32,
        /// `FULMEN_ABI_VERSION`.
        4 version: u32,
        /// Of the owner's world. The same as that of the record it is part of.
        8 generation: u64,
        /// The owner: its number, also called its rank.
        16 node: u32,
        /// The line of the owner's exports.
        20 slot: u32,
        /// What stands there: a secret, which cannot be guessed.
        24 tag: u64,
        /// Bytes that the share has in all.
        32 region_len: u64,
        /// Where this part begins: bytes from the beginning of the share.
        40 offset: u64,
        /// Bytes of this part; at least 1.
        48 len: u64,
        /// Bits of `FULMEN_RIGHT_`; at least one.
        56 rights: u32,
        /// Zero.
        60 reserved: u32,
    }
}

/// A part of memory that a node shares.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// The owner.
    pub node: u32,
    /// Of the owner's world.
    pub generation: u64,
    /// The line of the owner's exports.
    pub slot: u32,
    /// What stands there: a secret.
    pub tag: u64,
    /// Bytes that the share has in all.
    pub region_len: u64,
    /// Bytes of the share before this part.
    pub offset: u64,
    /// Bytes of this part; at least 1.
    pub len: u64,
    /// What may be done to it; something at least.
    pub rights: Rights,
}

const NAME: &str = "RdmaBuffer";

impl RdmaBuffer {
    /// The record of a buffer.
    ///
    /// # Errors
    /// Whatever [`RdmaBuffer::decode`] would refuse.
    pub fn encode(buffer: &Buffer) -> Result<RdmaBuffer, AbiError> {
        let record = RdmaBuffer::of(buffer);
        record.decode()?;
        Ok(record)
    }

    /// The buffer that the record names.
    ///
    /// # Errors
    /// [`AbiError::Magic`] also for no buffer (all zero); [`AbiError::OutOfBounds`] for a part that goes beyond its
    /// share; [`AbiError::Missing`] without bytes or rights.
    pub fn decode(&self) -> Result<Buffer, AbiError> {
        self.decode_as(NAME)
    }

    /// Unchecked: the record that this is part of will be.
    pub(crate) fn of(buffer: &Buffer) -> RdmaBuffer {
        RdmaBuffer {
            magic: BUFFER_MAGIC,
            version: VERSION,
            generation: buffer.generation,
            node: buffer.node,
            slot: buffer.slot,
            tag: buffer.tag,
            region_len: buffer.region_len,
            offset: buffer.offset,
            len: buffer.len,
            rights: buffer.rights.bits(),
            reserved: 0,
        }
    }

    pub(crate) fn of_any(buffer: Option<&Buffer>) -> RdmaBuffer {
        buffer.map_or(RdmaBuffer::ZERO, RdmaBuffer::of)
    }

    /// As a field of a request: of its generation, with these rights, or no buffer.
    pub(crate) fn part_of(
        &self,
        field: &'static str,
        generation: u64,
        needed: Rights,
    ) -> Result<Option<Buffer>, AbiError> {
        if *self == RdmaBuffer::ZERO {
            return Ok(None);
        }
        let buffer = self.decode_as(field)?;
        if buffer.generation != generation {
            let field = Field { of: field, name: "generation" };
            return Err(AbiError::Stale { field, found: buffer.generation, expected: generation });
        }
        if !buffer.rights.contains(needed) {
            return Err(AbiError::Rights { field: Field { of: field, name: "rights" }, needed, given: buffer.rights });
        }
        Ok(Some(buffer))
    }

    fn decode_as(&self, of: &'static str) -> Result<Buffer, AbiError> {
        check::head(of, BUFFER_MAGIC, self.magic, self.version)?;
        check::zero(of, "reserved", &[self.reserved])?;
        let node = party::node(of, "node", self.node)?;
        let rights = Rights::from_bits_truncate(self.rights);
        check::zero_bits(of, "rights", self.rights & !rights.bits())?;
        for (name, missing) in [("len", self.len == 0), ("rights", rights.is_empty())] {
            if missing {
                return Err(AbiError::Missing { field: Field { of, name } });
            }
        }
        // A sum that no 64 bits hold is beyond the end, too.
        if self.offset.checked_add(self.len).is_none_or(|end| end > self.region_len) {
            return Err(AbiError::OutOfBounds { field: Field { of, name: "len" }, region_len: self.region_len });
        }
        Ok(Buffer {
            node,
            generation: self.generation,
            slot: self.slot,
            tag: self.tag,
            region_len: self.region_len,
            offset: self.offset,
            len: self.len,
            rights,
        })
    }
}

impl Buffer {
    /// Whether the two have a byte in common.
    #[must_use]
    pub fn overlaps(&self, other: &Buffer) -> bool {
        let share = |buffer: &Buffer| (buffer.node, buffer.generation, buffer.slot, buffer.tag);
        let end = |buffer: &Buffer| buffer.offset.saturating_add(buffer.len);
        share(self) == share(other) && self.offset < end(other) && other.offset < end(self)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The rest is a secret.
        f.debug_struct("Buffer")
            .field("node", &self.node)
            .field("offset", &self.offset)
            .field("len", &self.len)
            .field("rights", &self.rights)
            .finish_non_exhaustive()
    }
}
