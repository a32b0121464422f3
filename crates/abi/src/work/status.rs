//! What a worker writes.

use super::{NAME, WORK_CLAIMS_SHIFT, WORK_ERROR_SHIFT, WORK_STATE_MASK, WorkItem, WorkState};
use crate::check;
use crate::error::{AbiError, Field};
use crate::error_code::ErrorCode;
use crate::party;

/// What the state word says: all of it changes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkWord {
    /// Where the work stands.
    pub state: WorkState,
    /// How often the record was claimed, in earlier uses too.
    pub claims: u32,
    /// Why it failed; only with [`WorkState::Done`].
    pub error: Option<ErrorCode>,
}

/// Where work stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkStatus {
    /// The state word.
    pub word: WorkWord,
    /// Who claimed it last; `None` if nobody has, and until that worker has written its lease.
    pub claim: Option<WorkClaim>,
}

/// A worker's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkClaim {
    /// The worker's node.
    pub node: u32,
    /// When the claim ends, unless the worker moves it on: nanoseconds since 1970, as in a [`Lease`](crate::Lease).
    pub deadline_ns: u64,
}

/// Bits of the error in a state word.
const ERROR_MASK: u32 = u32::MAX >> WORK_ERROR_SHIFT;

impl WorkWord {
    /// As it stands in memory.
    #[must_use]
    pub fn word(self) -> u64 {
        let error = u64::from(ErrorCode::write(self.error));
        u64::from(self.claims) << WORK_CLAIMS_SHIFT | error << WORK_ERROR_SHIFT | self.state.word()
    }

    /// What a word says.
    ///
    /// # Errors
    /// [`AbiError::Unknown`] for a state or an error that means nothing, [`AbiError::NotZero`] for an error before the
    /// end.
    pub fn from_word(word: u64) -> Result<WorkWord, AbiError> {
        let state = word & u64::from(WORK_STATE_MASK);
        let state = check::code(NAME, "state", state, WorkState::from_word)?;
        let error = ErrorCode::read(NAME, (word >> WORK_ERROR_SHIFT) as u32 & ERROR_MASK)?;
        if error.is_some() && state != WorkState::Done {
            return Err(AbiError::NotZero { field: Field { of: NAME, name: "error" } });
        }
        Ok(WorkWord { state, claims: (word >> WORK_CLAIMS_SHIFT) as u32, error })
    }
}

impl WorkClaim {
    /// The word `lease_id` of the claim with this number.
    #[must_use]
    pub fn lease_id(self, claims: u32) -> u64 {
        u64::from(claims) << WORK_CLAIMS_SHIFT | u64::from(self.node)
    }
}

impl WorkItem {
    /// Where the work stands.
    ///
    /// # Errors
    /// What is wrong with it; [`AbiError::Missing`] for a claim that nobody made.
    pub fn status(&self) -> Result<WorkStatus, AbiError> {
        check::zero(NAME, "reserved", &self.reserved)?;
        let word = WorkWord::from_word(self.state)?;
        if self.attempts(&word)? == 0 && word.state == WorkState::Claimed {
            return Err(AbiError::Missing { field: Field { of: NAME, name: "state (its claims)" } });
        }
        Ok(WorkStatus { word, claim: self.claim(&word)? })
    }

    /// Writes what is the worker's. In shared memory the lease's deadline comes before its id, and the state is changed
    /// by compare-and-swap.
    ///
    /// # Errors
    /// Whatever [`WorkItem::status`] would refuse; [`AbiError::NotZero`] for a lease without a claim. The record is as
    /// before.
    pub fn set_status(&mut self, status: &WorkStatus) -> Result<(), AbiError> {
        let WorkStatus { word, claim } = status;
        if claim.is_some() && self.attempts(word)? == 0 {
            return Err(AbiError::NotZero { field: Field { of: NAME, name: "lease_id" } });
        }
        let record = WorkItem {
            state: word.word(),
            lease_id: claim.map_or(0, |claim| claim.lease_id(word.claims)),
            lease_deadline_ns: claim.map_or(0, |claim| claim.deadline_ns),
            ..*self
        };
        record.status()?;
        *self = record;
        Ok(())
    }

    /// How often this work was claimed when its state word was this.
    ///
    /// # Errors
    /// [`AbiError::TooLarge`] if there were more claims before this work than there are in all.
    pub fn attempts(&self, word: &WorkWord) -> Result<u32, AbiError> {
        check::at_most(NAME, "claims_before", self.claims_before.into(), word.claims.into())?;
        Ok(word.claims - self.claims_before)
    }

    /// The lease of the last claim. That of an earlier one means nothing any more.
    fn claim(&self, word: &WorkWord) -> Result<Option<WorkClaim>, AbiError> {
        if self.attempts(word)? == 0 || (self.lease_id >> WORK_CLAIMS_SHIFT) as u32 != word.claims {
            return Ok(None);
        }
        let node = party::node(NAME, "lease_id", self.lease_id as u32)?;
        Ok(Some(WorkClaim { node, deadline_ns: self.lease_deadline_ns }))
    }
}
