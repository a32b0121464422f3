//! Error numbers of Darwin, which programs for Apple's librdma look at. On other systems some of them mean something
//! else: the drop-in gives the number that the hardware was reported to give.

use std::ffi::c_int;

use fulmen_verbs::VerbsError;

use crate::error::Call;

pub(super) const EIO: c_int = 5;
pub(super) const ENOMEM: c_int = 12;
pub(super) const EBUSY: c_int = 16;
pub(super) const EINVAL: c_int = 22;
pub(super) const ETIMEDOUT: c_int = 60;
pub(super) const ENODATA: c_int = 96;
pub(super) const EOPNOTSUPP: c_int = 102;

/// The number of an error, as Apple's hardware gives it: positive. Where nobody reported one, it is the one that suits.
pub(crate) fn errno_of(error: &VerbsError, call: Call) -> c_int {
    match error {
        VerbsError::NoSuchKind { .. } => EOPNOTSUPP,
        VerbsError::Unsupported { .. } if call == Call::Post => EINVAL,
        VerbsError::Unsupported { .. } => EOPNOTSUPP,
        // The eleventh queue pair; the hundred-and-first registration.
        VerbsError::Limit { what: "queue pairs", .. } => EBUSY,
        VerbsError::Limit { what: "registrations" | "completion queues", .. } => ENOMEM,
        VerbsError::Limit { what: "protection domains", .. } => ENODATA,
        VerbsError::QueueFull { .. } => ENOMEM,
        VerbsError::Unreachable { .. } => ETIMEDOUT,
        VerbsError::Stale { .. } => EBUSY,
        VerbsError::System { .. } => EIO,
        _ => EINVAL,
    }
}

/// The number that Darwin has for what this system calls `errno`. Those that are its own already stay.
pub(crate) fn number(errno: c_int) -> c_int {
    match errno {
        libc::EOPNOTSUPP => EOPNOTSUPP,
        libc::ETIMEDOUT => ETIMEDOUT,
        same => same,
    }
}
