//! Error numbers, and reasons in the log.

use std::ffi::c_int;

use fulmen_soft::Profile;
use fulmen_verbs::VerbsError;

use crate::config::Config;
use crate::lint;

/// The calls whose failures have numbers of their own on some device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Opening a device.
    Open,
    /// A question: of a device, a port, a table, a queue.
    Query,
    /// Making a protection domain.
    AllocPd,
    /// Registering memory.
    RegisterMemory,
    /// Making a completion queue, or changing its size.
    CreateCq,
    /// Making a completion channel.
    CreateChannel,
    /// Making a shared receive queue, or changing it.
    CreateSrq,
    /// Making an address handle.
    CreateAh,
    /// Making a queue pair.
    CreateQp,
    /// Changing a queue pair's state to INIT, or to another for which there is no other word here.
    Modify,
    /// Changing a queue pair's state to RTR.
    ModifyToReceive,
    /// Posting.
    Post,
    /// Anything else.
    Other,
}

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the address is the calling thread's own number.
    unsafe { *errno_place() = number }
}

#[cfg(target_os = "linux")]
unsafe fn errno_place() -> *mut c_int {
    // SAFETY: it has no conditions.
    unsafe { libc::__errno_location() }
}

#[cfg(target_os = "macos")]
unsafe fn errno_place() -> *mut c_int {
    // SAFETY: it has no conditions.
    unsafe { libc::__error() }
}

/// The number of an error, as devices of this profile give it: always positive.
pub(crate) fn errno_of(profile: Profile, error: &VerbsError, call: Call) -> c_int {
    match profile {
        Profile::Thunderbolt => lint::errno_of(error, call),
        Profile::Infiniband => linux_errno(error, call),
    }
}

/// As the manual pages and Linux drivers have them.
pub(crate) fn linux_errno(error: &VerbsError, call: Call) -> c_int {
    match error {
        VerbsError::QueueFull { .. } => libc::ENOMEM,
        VerbsError::Limit { .. } => match call {
            // "The device has no more of them" against "this one cannot be so large".
            Call::AllocPd | Call::RegisterMemory => libc::ENOMEM,
            _ => libc::EINVAL,
        },
        VerbsError::Unsupported { .. } | VerbsError::NoSuchKind { .. } => libc::EOPNOTSUPP,
        VerbsError::Unreachable { .. } => libc::ETIMEDOUT,
        VerbsError::System { .. } => libc::EIO,
        VerbsError::Overflow { .. } => libc::EOVERFLOW,
        _ => libc::EINVAL,
    }
}

/// Logs why a call failed, sets `errno`, and gives the number.
pub(crate) fn fail(profile: Profile, name: &str, call: Call, error: &VerbsError) -> c_int {
    if let Some(lint) = lint::get() {
        lint.refused(name, error);
    }
    refuse(name, errno_of(profile, error, call), error)
}

/// Logs why a call failed for a reason of this library, sets `errno`, and gives the number.
pub(crate) fn refuse(name: &str, number: c_int, reason: impl std::fmt::Display) -> c_int {
    let number = match Config::get() {
        Ok(config) if config.profile == Profile::Thunderbolt => lint::number(number),
        _ => number,
    };
    tracing::info!(errno = number, "{name} failed: {reason}");
    set_errno(number);
    number
}

/// The same for calls that give NULL.
pub(crate) fn refuse_null<T>(name: &str, number: c_int, reason: impl std::fmt::Display) -> *mut T {
    refuse(name, number, reason);
    std::ptr::null_mut()
}
