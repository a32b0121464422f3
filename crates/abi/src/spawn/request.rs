//! What a requester asks for, and how it stands in memory.

use core::num::{NonZeroU32, NonZeroU64};

use super::{Command, NAME, SPAWN_MAGIC, SpawnFlags, SpawnRequest, SpawnState, TEXT_MAX, TEXT_ROOM, TextCounts};
use crate::buffer::{Buffer, RdmaBuffer, Rights};
use crate::check;
use crate::error::{AbiError, Field};
use crate::party::{Lease, Origin, Target, VERSION};

/// A process that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spawn<'a> {
    /// The requester's number for it.
    pub id: u64,
    /// The requester.
    pub origin: Origin,
    /// Where it is to run.
    pub target: Target,
    /// How long the request is good.
    pub lease: Option<Lease>,
    /// How it is run; [`SpawnFlags::STDIN`] if and only if there is a ring for it.
    pub flags: SpawnFlags,
    /// What it may use.
    pub limits: Limits,
    /// Milliseconds after which it is ended.
    pub timeout_ms: Option<NonZeroU64>,
    /// Milliseconds between SIGTERM and SIGKILL when it is ended.
    pub grace_ms: u64,
    /// What it is told.
    pub text: SpawnText<'a>,
    /// The ring of standard input.
    pub stdin: Option<Buffer>,
    /// The ring of standard output.
    pub stdout: Option<Buffer>,
    /// The ring of standard error.
    pub stderr: Option<Buffer>,
}

/// What a process may use at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Memory, in bytes.
    pub memory_bytes: Option<NonZeroU64>,
    /// Processors, in thousandths of one.
    pub cpu_milli: Option<NonZeroU32>,
}

/// What a process is told, or where that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnText<'a> {
    /// In the record.
    Inline(Command<'a>),
    /// In shared memory, for more than [`TEXT_ROOM`] bytes: what [`Command::write`] wrote and [`Command::parse`] reads.
    Buffer {
        /// The whole text, of [`TEXT_MAX`] bytes at most.
        buffer: Buffer,
        /// Its strings.
        counts: TextCounts,
    },
}

impl<'a> Spawn<'a> {
    /// A process without lease, flags, limits and streams, and with a grace of 3 s.
    #[must_use]
    pub fn new(id: u64, origin: Origin, target: Target, text: SpawnText<'a>) -> Spawn<'a> {
        Spawn {
            id,
            origin,
            target,
            lease: None,
            flags: SpawnFlags::empty(),
            limits: Limits::default(),
            timeout_ms: None,
            grace_ms: 3000,
            text,
            stdin: None,
            stdout: None,
            stderr: None,
        }
    }
}

impl SpawnRequest {
    /// The record, free: it is written to shared memory as it is, and then its state.
    ///
    /// # Errors
    /// [`AbiError::TooLarge`] for text that does not fit in, [`AbiError::Nul`] for a NUL in a string, and whatever
    /// [`SpawnRequest::decode`] would refuse.
    pub fn encode(spawn: &Spawn<'_>) -> Result<SpawnRequest, AbiError> {
        let (lease_id, lease_deadline_ns) = Lease::write(spawn.lease);
        let mut record = SpawnRequest {
            magic: SPAWN_MAGIC,
            version: VERSION,
            id: spawn.id,
            source_node: spawn.origin.node,
            target_node: spawn.target.write(NAME)?,
            generation: spawn.origin.generation,
            lease_id,
            lease_deadline_ns,
            flags: spawn.flags.bits(),
            cpu_milli: spawn.limits.cpu_milli.map_or(0, NonZeroU32::get),
            memory_bytes: spawn.limits.memory_bytes.map_or(0, NonZeroU64::get),
            timeout_ms: spawn.timeout_ms.map_or(0, NonZeroU64::get),
            grace_ms: spawn.grace_ms,
            stdin_buffer: RdmaBuffer::of_any(spawn.stdin.as_ref()),
            stdout_buffer: RdmaBuffer::of_any(spawn.stdout.as_ref()),
            stderr_buffer: RdmaBuffer::of_any(spawn.stderr.as_ref()),
            ..SpawnRequest::ZERO
        };
        let (counts, text_len) = match &spawn.text {
            SpawnText::Inline(command) => (command.counts()?, command.write(&mut record.text)? as u64),
            SpawnText::Buffer { buffer, counts } => {
                record.text_buffer = RdmaBuffer::of(buffer);
                (*counts, buffer.len)
            }
        };
        check::at_most(NAME, "text_len", text_len, TEXT_MAX as u64)?;
        record.text_len = text_len as u32;
        record.arg_count = counts.args;
        record.env_count = counts.env;
        record.cwd_count = counts.cwd.into();
        record.decode()?;
        Ok(record)
    }

    /// What is asked for. What the two sides write later is not looked at, but for the lease's deadline:
    /// [`SpawnRequest::control`] and [`SpawnRequest::status`] do that.
    ///
    /// # Errors
    /// What is wrong with the record; an agent answers it with [`ErrorCode::InvalidRequest`](crate::ErrorCode).
    pub fn decode(&self) -> Result<Spawn<'_>, AbiError> {
        check::head(NAME, SPAWN_MAGIC, self.magic, self.version)?;
        check::zero(NAME, "reserved", &self.reserved)?;
        check::zero(NAME, "reserved_requester", &self.reserved_requester)?;
        check::code(NAME, "state", self.state, SpawnState::from_word)?;
        let flags = SpawnFlags::from_bits_truncate(self.flags);
        check::zero_bits(NAME, "flags", self.flags & !flags.bits())?;
        let ring = |buffer: &RdmaBuffer, field, needed| buffer.part_of(field, self.generation, needed);
        let stdin = ring(&self.stdin_buffer, "SpawnRequest.stdin_buffer", Rights::READ)?;
        let stdout = ring(&self.stdout_buffer, "SpawnRequest.stdout_buffer", Rights::WRITE)?;
        let stderr = ring(&self.stderr_buffer, "SpawnRequest.stderr_buffer", Rights::WRITE)?;
        match (flags.contains(SpawnFlags::STDIN), stdin.is_some()) {
            (true, false) => return Err(AbiError::Missing { field: Field { of: NAME, name: "stdin_buffer" } }),
            (false, true) => return Err(AbiError::NotZero { field: Field { of: NAME, name: "stdin_buffer" } }),
            _ => {}
        }
        apart([("stdin_buffer", stdin), ("stdout_buffer", stdout), ("stderr_buffer", stderr)])?;
        Ok(Spawn {
            id: self.id,
            origin: Origin::read(NAME, self.source_node, self.generation)?,
            target: Target::read(NAME, self.target_node)?,
            lease: Lease::read(NAME, self.lease_id, self.lease_deadline_ns)?,
            flags,
            limits: Limits {
                memory_bytes: NonZeroU64::new(self.memory_bytes),
                cpu_milli: NonZeroU32::new(self.cpu_milli),
            },
            timeout_ms: NonZeroU64::new(self.timeout_ms),
            grace_ms: self.grace_ms,
            text: self.decode_text()?,
            stdin,
            stdout,
            stderr,
        })
    }

    fn decode_text(&self) -> Result<SpawnText<'_>, AbiError> {
        let counts = TextCounts {
            args: self.arg_count,
            env: self.env_count,
            cwd: check::truth(NAME, "cwd_count", self.cwd_count)?,
        };
        if counts.args == 0 {
            return Err(AbiError::Missing { field: Field { of: NAME, name: "arg_count" } });
        }
        let len = u64::from(self.text_len);
        // Each string has a NUL at least.
        for (name, count) in [("arg_count", counts.args), ("env_count", counts.env)] {
            check::at_most(NAME, name, count.into(), len)?;
        }
        let Some(buffer) = self.text_buffer.part_of("SpawnRequest.text_buffer", self.generation, Rights::READ)? else {
            check::at_most(NAME, "text_len", len, TEXT_ROOM as u64)?;
            return Command::parse(&self.text[..self.text_len as usize], counts).map(SpawnText::Inline);
        };
        check::at_most(NAME, "text_len", len, TEXT_MAX as u64)?;
        if buffer.len != len {
            let field = Field { of: NAME, name: "text_len" };
            return Err(AbiError::Malformed { field, why: "it must be the length of text_buffer" });
        }
        Ok(SpawnText::Buffer { buffer, counts })
    }
}

/// Streams have memory of their own.
fn apart(rings: [(&'static str, Option<Buffer>); 3]) -> Result<(), AbiError> {
    for (index, (other, one)) in rings.iter().enumerate() {
        for (name, two) in &rings[index + 1..] {
            if let (Some(one), Some(two)) = (one, two)
                && one.overlaps(two)
            {
                let field = |name| Field { of: NAME, name };
                return Err(AbiError::Overlap { field: field(name), other: field(other) });
            }
        }
    }
    Ok(())
}
