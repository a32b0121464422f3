//! What went wrong, as a number in memory.

use crate::check;
use crate::error::AbiError;

codes! {
    /// Why a request failed, as whoever serves it writes it; 0 if nothing did. `os_error` beside it is the system's own
    /// number (errno) if it has one, else 0: other systems number errors in other ways, so it is for people.
    pub enum ErrorCode: u32, "FULMEN_ERROR" {
        /// The record was refused: it breaks a rule of its layout.
        InvalidRequest "INVALID_REQUEST" = 1,
        /// It is right, and this node does not do it.
        Unsupported "UNSUPPORTED" = 2,
        /// The node's rules, or the system's, do not allow it.
        PermissionDenied "PERMISSION_DENIED" = 3,
        /// The node that it is for is not there.
        NoSuchNode "NO_SUCH_NODE" = 4,
        /// It is of a generation that is over.
        StaleGeneration "STALE_GENERATION" = 5,
        /// The requester went away, or did not renew its lease.
        LeaseExpired "LEASE_EXPIRED" = 6,
        /// The requester cancelled it.
        Cancelled "CANCELLED" = 7,
        /// Its time was over.
        TimedOut "TIMED_OUT" = 8,
        /// There is no such program, directory, kernel or host name.
        NotFound "NOT_FOUND" = 9,
        /// Memory, processes, sockets or other means are used up.
        ResourceExhausted "RESOURCE_EXHAUSTED" = 10,
        /// Memory that the request refers to cannot be read or written.
        BufferUnreachable "BUFFER_UNREACHABLE" = 11,
        /// The node that served it was lost; it may have been done or not.
        NodeLost "NODE_LOST" = 12,
        /// As many workers as may have tried it, and none ended it.
        TooManyAttempts "TOO_MANY_ATTEMPTS" = 13,
        /// What served it ended.
        Shutdown "SHUTDOWN" = 14,
        /// The handle is of nothing that is open, or of something that cannot do this.
        BadHandle "BAD_HANDLE" = 15,
        /// The address is in use, or is none of this node's.
        AddressUnavailable "ADDRESS_UNAVAILABLE" = 16,
        /// Nobody listens there.
        ConnectionRefused "CONNECTION_REFUSED" = 17,
        /// The other end broke the connection.
        ConnectionReset "CONNECTION_RESET" = 18,
        /// No way leads to that host.
        Unreachable "UNREACHABLE" = 19,
        /// The datagram was longer than the buffer; the rest of it is lost.
        Truncated "TRUNCATED" = 20,
        /// Anything else; `os_error` may say more.
        Failed "FAILED" = 21,
    }
}

impl ErrorCode {
    /// What the word says, where 0 is no error.
    pub(crate) fn read(of: &'static str, word: u32) -> Result<Option<ErrorCode>, AbiError> {
        check::optional(of, "error", word, ErrorCode::from_word)
    }

    /// As it stands in memory.
    pub(crate) fn write(error: Option<ErrorCode>) -> u32 {
        error.map_or(0, ErrorCode::word)
    }
}
