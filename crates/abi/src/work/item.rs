//! What a requester asks for, and how it stands in memory.

use core::num::{NonZeroU32, NonZeroU64};

use super::{ARGUMENTS_ROOM, NAME, WORK_MAGIC, WorkItem, WorkKind, WorkState, WorkWord};
use crate::buffer::{Buffer, RdmaBuffer, Rights};
use crate::check;
use crate::error::{AbiError, Field};
use crate::party::{Origin, Target, VERSION};

/// Work that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work<'a> {
    /// The requester's number for it.
    pub id: u64,
    /// The requester.
    pub origin: Origin,
    /// Who may claim it.
    pub target: Target,
    /// What does it.
    pub kind: WorkKind,
    /// Which kernel or function: the number under which it was registered.
    pub kernel: u64,
    /// How often it may be claimed.
    pub max_attempts: Option<NonZeroU32>,
    /// Claims of the record's earlier uses, as its state word has it; 0 in new memory.
    pub claims_before: u32,
    /// What it gets.
    pub arguments: Arguments<'a>,
    /// Where its result goes.
    pub result: Option<Buffer>,
    /// What tells of its end.
    pub counter: Option<Counter>,
}

/// What a kernel or function gets, or where that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arguments<'a> {
    /// In the record: up to [`ARGUMENTS_ROOM`] bytes.
    Inline(&'a [u8]),
    /// In shared memory.
    Buffer(Buffer),
}

/// A word in shared memory that is added to at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its 8 bytes, at a multiple of 8.
    pub word: Buffer,
    /// What is added.
    pub add: NonZeroU64,
}

impl WorkItem {
    /// The record, free: it is written to shared memory as it is, and then its state.
    ///
    /// # Errors
    /// [`AbiError::TooLarge`] for arguments that do not fit in, and whatever [`WorkItem::decode`] would refuse.
    pub fn encode(work: &Work<'_>) -> Result<WorkItem, AbiError> {
        let mut record = WorkItem {
            magic: WORK_MAGIC,
            version: VERSION,
            id: work.id,
            source_node: work.origin.node,
            target_node: work.target.write(NAME)?,
            generation: work.origin.generation,
            kind: work.kind.word(),
            kernel: work.kernel,
            max_attempts: work.max_attempts.map_or(0, NonZeroU32::get),
            claims_before: work.claims_before,
            state: WorkWord { state: WorkState::Free, claims: work.claims_before, error: None }.word(),
            result_buffer: RdmaBuffer::of_any(work.result.as_ref()),
            counter_buffer: RdmaBuffer::of_any(work.counter.as_ref().map(|counter| &counter.word)),
            counter_add: work.counter.as_ref().map_or(0, |counter| counter.add.get()),
            ..WorkItem::ZERO
        };
        match &work.arguments {
            Arguments::Inline(bytes) => {
                check::at_most(NAME, "arguments_len", bytes.len() as u64, ARGUMENTS_ROOM as u64)?;
                record.arguments[..bytes.len()].copy_from_slice(bytes);
                record.arguments_len = bytes.len() as u32;
            }
            Arguments::Buffer(buffer) => record.arguments_buffer = RdmaBuffer::of(buffer),
        }
        record.decode()?;
        Ok(record)
    }

    /// What is asked for. What the worker writes is not looked at: [`WorkItem::status`] does that.
    ///
    /// # Errors
    /// What is wrong with the record; a worker answers it with [`ErrorCode::InvalidRequest`](crate::ErrorCode).
    pub fn decode(&self) -> Result<Work<'_>, AbiError> {
        check::head(NAME, WORK_MAGIC, self.magic, self.version)?;
        WorkWord::from_word(self.state)?;
        Ok(Work {
            id: self.id,
            origin: Origin::read(NAME, self.source_node, self.generation)?,
            target: Target::read(NAME, self.target_node)?,
            kind: check::code(NAME, "kind", self.kind, WorkKind::from_word)?,
            kernel: self.kernel,
            max_attempts: NonZeroU32::new(self.max_attempts),
            claims_before: self.claims_before,
            arguments: self.decode_arguments()?,
            result: self.result_buffer.part_of("WorkItem.result_buffer", self.generation, Rights::WRITE)?,
            counter: self.decode_counter()?,
        })
    }

    fn decode_arguments(&self) -> Result<Arguments<'_>, AbiError> {
        let buffer = self.arguments_buffer.part_of("WorkItem.arguments_buffer", self.generation, Rights::READ)?;
        if let Some(buffer) = buffer {
            check::zero(NAME, "arguments_len", &[self.arguments_len])?;
            return Ok(Arguments::Buffer(buffer));
        }
        check::at_most(NAME, "arguments_len", self.arguments_len.into(), ARGUMENTS_ROOM as u64)?;
        Ok(Arguments::Inline(&self.arguments[..self.arguments_len as usize]))
    }

    fn decode_counter(&self) -> Result<Option<Counter>, AbiError> {
        const BUFFER: Field = Field { of: NAME, name: "counter_buffer" };
        let buffer = self.counter_buffer.part_of("WorkItem.counter_buffer", self.generation, Rights::ATOMIC)?;
        match (buffer, NonZeroU64::new(self.counter_add)) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(AbiError::Missing { field: BUFFER }),
            (Some(_), None) => Err(AbiError::Missing { field: Field { of: NAME, name: "counter_add" } }),
            (Some(word), Some(add)) if word.len == 8 && word.offset.is_multiple_of(8) => {
                Ok(Some(Counter { word, add }))
            }
            _ => Err(AbiError::Malformed { field: BUFFER, why: "a counter is 8 bytes at a multiple of 8" }),
        }
    }
}
