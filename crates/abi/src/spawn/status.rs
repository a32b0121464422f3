//! What the two sides write while a process runs.

use super::{ExitKind, NAME, SpawnRequest, SpawnState};
use crate::check;
use crate::error::{AbiError, Field};
use crate::error_code::ErrorCode;
use crate::party;

/// What the agent has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpawnStatus {
    /// Where the request stands.
    pub state: SpawnState,
    /// The agent's number for the process; from [`SpawnState::Running`] on.
    pub process_id: u64,
    /// The system's number for it.
    pub pid: u32,
    /// The node that took the request.
    pub serving_node: u32,
    /// Bytes of standard input that the agent has read.
    pub stdin_read: u64,
    /// Bytes of standard output that it has written.
    pub stdout_written: u64,
    /// Bytes of standard error that it has written.
    pub stderr_written: u64,
    /// How it ended: there if and only if the state is [`SpawnState::Done`].
    pub outcome: Option<SpawnOutcome>,
}

/// How a process ended. One of `error` and `exit` is there at least; with both, the agent ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpawnOutcome {
    /// Why it was not started, or was ended.
    pub error: Option<ErrorCode>,
    /// The system's number for the error, or 0; 0 without an error.
    pub os_error: i32,
    /// Its end; `None` if it never ran.
    pub exit: Option<Exit>,
    /// How long it ran, in nanoseconds; 0 if it never did.
    pub ran_ns: u64,
}

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(u8),
    /// By this signal, 1 to 127.
    Signal(u8),
}

/// What the requester writes after the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpawnControl {
    /// When the lease ends; 0 without one.
    pub lease_deadline_ns: u64,
    /// Bytes that it has written to standard input.
    pub stdin_written: u64,
    /// Whether no more will come.
    pub stdin_closed: bool,
    /// Bytes of standard output that it has read.
    pub stdout_read: u64,
    /// Bytes of standard error that it has read.
    pub stderr_read: u64,
    /// Whether the process is to be ended.
    pub cancel: bool,
}

/// The highest number of a signal that a system tells of.
const SIGNAL_MAX: u64 = 127;

impl SpawnRequest {
    /// What the agent has written.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn status(&self) -> Result<SpawnStatus, AbiError> {
        check::zero(NAME, "reserved_signal", &[self.reserved_signal])?;
        check::zero(NAME, "reserved_agent", &[self.reserved_agent])?;
        check::zero(NAME, "reserved_output", &self.reserved_output)?;
        let state = check::code(NAME, "state", self.state, SpawnState::from_word)?;
        Ok(SpawnStatus {
            state,
            process_id: self.process_id,
            pid: self.pid,
            serving_node: party::node(NAME, "serving_node", self.serving_node)?,
            stdin_read: self.stdin_read,
            stdout_written: self.stdout_written,
            stderr_written: self.stderr_written,
            // Before that, its words may be there in part.
            outcome: if state == SpawnState::Done { Some(self.outcome()?) } else { None },
        })
    }

    /// Writes what is the agent's. In shared memory, the state comes last.
    ///
    /// # Errors
    /// Whatever [`SpawnRequest::status`] would refuse; [`AbiError::NotZero`] for an outcome before the end, and
    /// [`AbiError::Missing`] for none then. The record is as before.
    pub fn set_status(&mut self, status: &SpawnStatus) -> Result<(), AbiError> {
        let mut record = SpawnRequest {
            state: status.state.word(),
            process_id: status.process_id,
            pid: status.pid,
            serving_node: status.serving_node,
            error: 0,
            os_error: 0,
            exit_kind: 0,
            exit_code: 0,
            signal: 0,
            ran_ns: 0,
            stdin_read: status.stdin_read,
            stdout_written: status.stdout_written,
            stderr_written: status.stderr_written,
            ..*self
        };
        if let Some(outcome) = &status.outcome {
            if status.state != SpawnState::Done {
                return Err(AbiError::NotZero { field: Field { of: NAME, name: "exit_kind" } });
            }
            record.error = ErrorCode::write(outcome.error);
            record.os_error = outcome.os_error;
            record.ran_ns = outcome.ran_ns;
            match outcome.exit {
                None => {}
                Some(Exit::Code(code)) => {
                    record.exit_kind = ExitKind::Code.word();
                    record.exit_code = code.into();
                }
                Some(Exit::Signal(signal)) => {
                    record.exit_kind = ExitKind::Signal.word();
                    record.signal = signal.into();
                }
            }
        }
        record.status()?;
        *self = record;
        Ok(())
    }

    /// What the requester has written since it asked.
    ///
    /// # Errors
    /// [`AbiError::Unknown`] for words that are neither 0 nor 1 and have to be.
    pub fn control(&self) -> Result<SpawnControl, AbiError> {
        Ok(SpawnControl {
            lease_deadline_ns: self.lease_deadline_ns,
            stdin_written: self.stdin_written,
            stdin_closed: check::truth(NAME, "stdin_closed", self.stdin_closed)?,
            stdout_read: self.stdout_read,
            stderr_read: self.stderr_read,
            cancel: check::truth(NAME, "cancel", self.cancel)?,
        })
    }

    fn outcome(&self) -> Result<SpawnOutcome, AbiError> {
        let error = ErrorCode::read(NAME, self.error)?;
        let kind = check::optional(NAME, "exit_kind", self.exit_kind, ExitKind::from_word)?;
        let not_zero = |name| AbiError::NotZero { field: Field { of: NAME, name } };
        if kind != Some(ExitKind::Code) && self.exit_code != 0 {
            return Err(not_zero("exit_code"));
        }
        if kind != Some(ExitKind::Signal) {
            check::zero(NAME, "signal", &[self.signal])?;
        }
        if error.is_none() && self.os_error != 0 {
            return Err(not_zero("os_error"));
        }
        let exit = match kind {
            None if error.is_none() => {
                return Err(AbiError::Missing { field: Field { of: NAME, name: "exit_kind" } });
            }
            None => {
                check::zero(NAME, "ran_ns", &[self.ran_ns])?;
                None
            }
            Some(ExitKind::Code) => {
                // What is below 0 is far above the bound.
                check::at_most(NAME, "exit_code", u64::from(self.exit_code as u32), u8::MAX.into())?;
                Some(Exit::Code(self.exit_code as u8))
            }
            Some(ExitKind::Signal) => {
                check::at_most(NAME, "signal", self.signal.into(), SIGNAL_MAX)?;
                if self.signal == 0 {
                    return Err(AbiError::Missing { field: Field { of: NAME, name: "signal" } });
                }
                Some(Exit::Signal(self.signal as u8))
            }
        };
        Ok(SpawnOutcome { error, os_error: self.os_error, exit, ran_ns: self.ran_ns })
    }
}
