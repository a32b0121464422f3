//! What a gateway writes.

use core::net::SocketAddr;
use core::num::NonZeroU64;

use super::name::{self, RESULT, Words};
use super::{NAME, NetworkRequest, NetworkState};
use crate::check;
use crate::error::{AbiError, Field};
use crate::error_code::ErrorCode;
use crate::party;

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkStatus {
    /// Its state.
    pub state: NetworkState,
    /// The gateway that took it.
    pub serving_node: u32,
    /// How it ended: there if and only if the state is [`NetworkState::Done`].
    pub outcome: Option<NetworkOutcome>,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkOutcome {
    /// Why it failed.
    pub error: Option<ErrorCode>,
    /// The system's number for the error, or 0; 0 without an error.
    pub os_error: i32,
    /// The socket that was opened; none with an error.
    pub handle: Option<NonZeroU64>,
    /// Bytes that were sent or came; at most those of the buffer.
    pub len: u64,
    /// The address: of the other end, of the sender of a datagram, or where a socket listens.
    pub address: Option<SocketAddr>,
}

impl NetworkRequest {
    /// Where the operation stands.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn status(&self) -> Result<NetworkStatus, AbiError> {
        let state = check::code(NAME, "state", self.state, NetworkState::from_word)?;
        Ok(NetworkStatus {
            state,
            serving_node: party::node(NAME, "serving_node", self.serving_node)?,
            // Before that, its words may be there in part.
            outcome: if state == NetworkState::Done { Some(self.outcome()?) } else { None },
        })
    }

    /// Writes what is the gateway's. In shared memory, the state comes last.
    ///
    /// # Errors
    /// Whatever [`NetworkRequest::status`] would refuse; [`AbiError::NotZero`] for an outcome before the end, and
    /// [`AbiError::Missing`] for none then. The record is as before.
    pub fn set_status(&mut self, status: &NetworkStatus) -> Result<(), AbiError> {
        let mut record = NetworkRequest { state: status.state.word(), serving_node: status.serving_node, ..*self };
        let outcome = match (status.outcome, status.state) {
            (Some(outcome), NetworkState::Done) => outcome,
            (None, NetworkState::Done) => {
                return Err(AbiError::Missing { field: Field { of: NAME, name: "error" } });
            }
            (Some(_), _) => return Err(AbiError::NotZero { field: Field { of: NAME, name: "error" } }),
            (None, _) => NetworkOutcome { error: None, os_error: 0, handle: None, len: 0, address: None },
        };
        record.error = ErrorCode::write(outcome.error);
        record.os_error = outcome.os_error;
        record.result_handle = outcome.handle.map_or(0, NonZeroU64::get);
        record.result_len = outcome.len;
        (record.result_family, record.result_address, record.result_port, record.result_scope_id) =
            name::write(outcome.address.as_ref(), &RESULT)?;
        record.status()?;
        *self = record;
        Ok(())
    }

    fn outcome(&self) -> Result<NetworkOutcome, AbiError> {
        let error = ErrorCode::read(NAME, self.error)?;
        let field = |name| Field { of: NAME, name };
        match error {
            None if self.os_error != 0 => return Err(AbiError::NotZero { field: field("os_error") }),
            Some(_) => check::zero(NAME, "result_handle", &[self.result_handle])?,
            None => {}
        }
        // Without a buffer there are no bytes. What else is wrong with the buffer, `decode` says.
        check::at_most(NAME, "result_len", self.result_len, self.data_buffer.len)?;
        let words = Words {
            family: self.result_family,
            address: &self.result_address,
            port: self.result_port,
            scope_id: self.result_scope_id,
            names: &RESULT,
        };
        Ok(NetworkOutcome {
            error,
            os_error: self.os_error,
            handle: NonZeroU64::new(self.result_handle),
            len: self.result_len,
            address: words.socket_address()?,
        })
    }
}
