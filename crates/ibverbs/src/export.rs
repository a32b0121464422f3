//! How functions are exported: under the names and versions of the library that this one stands in for, and so that no
//! panic crosses into C.

use std::ffi::{c_char, c_int, c_uint};
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::set_errno;
use crate::pollable;

/// What a function gives back when it broke down inside: nothing is known about the state of what it was asked for.
pub(crate) trait Broken {
    fn broken() -> Self;
}

impl<T> Broken for *mut T {
    fn broken() -> Self {
        set_errno(libc::EIO);
        std::ptr::null_mut()
    }
}

impl Broken for *const c_char {
    fn broken() -> Self {
        c"unknown".as_ptr()
    }
}

impl Broken for c_int {
    fn broken() -> Self {
        set_errno(libc::EIO);
        libc::EIO
    }
}

impl Broken for isize {
    fn broken() -> Self {
        -(libc::EIO as isize)
    }
}

/// The calls that give lengths and offsets are those of sockets.
impl Broken for i64 {
    fn broken() -> Self {
        set_errno(libc::EIO);
        -1
    }
}

impl Broken for usize {
    fn broken() -> Self {
        set_errno(libc::EIO);
        usize::MAX
    }
}

impl Broken for c_uint {
    fn broken() -> Self {
        0
    }
}

impl Broken for u64 {
    fn broken() -> Self {
        0
    }
}

impl Broken for u8 {
    fn broken() -> Self {
        0
    }
}

impl Broken for u16 {
    fn broken() -> Self {
        0
    }
}

impl Broken for () {
    fn broken() -> Self {}
}

/// Runs the body of a function that C called: a panic is logged, and becomes what `broken` gives.
#[inline]
pub(crate) fn guard_with<T>(name: &'static str, broken: impl FnOnce() -> T, body: impl FnOnce() -> T) -> T {
    // What a panic leaves behind is looked at through locks and atomics alone.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(_) => {
            tracing::error!("{name} broke down inside: this is a bug of Fulmen, and the line before says where");
            broken()
        }
    }
}

/// The same, where the type says what comes back: NULL, EIO.
#[inline]
pub(crate) fn guard<T: Broken>(name: &'static str, body: impl FnOnce() -> T) -> T {
    guard_with(name, T::broken, body)
}

/// Runs a function that C called and that waits: tries, waits until the descriptor can be read, and tries again.
///
/// `attempt` gives what the function returns once there is something. A wait that failed is -1, and `errno` says why.
///
/// A thread can be cancelled while it waits, as in the C library's own calls. Then it leaves these frames without
/// destructors, which is why nothing that has one is alive meanwhile: `attempt` is `Copy`.
#[inline]
pub(crate) fn waiting(name: &'static str, fd: RawFd, attempt: impl Fn() -> Option<c_int> + Copy) -> c_int {
    loop {
        if let Some(result) = guard_with(name, || Some(c_int::from(-1)), attempt) {
            return result;
        }
        if let Some(errno) = pollable::wait(fd) {
            set_errno(errno);
            return -1;
        }
    }
}

/// Exports functions: `export! { "IBVERBS_1.1" fn ibv_name(argument: type) -> type { … } }`.
///
/// On Linux the symbol gets that version as its default. (The crate is compiled as one unit for that reason: the
/// assembler gives versions to symbols of its own unit only.)
macro_rules! export {
    ($($(#[$meta:meta])* $version:literal fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// As its manual page says: pointers are valid for what the call does with them.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
                $crate::export::guard(stringify!($name), || $body)
            }
            $crate::export::version!($name $version);
        )*
    };
}

/// Exports functions that wait, whose bodies are calls of [`waiting`]: a thread may be cancelled in them.
macro_rules! export_waiting {
    ($($(#[$meta:meta])* $version:literal fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> c_int $body:block)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// As its manual page says: pointers are valid for what the call does with them.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int $body
            $crate::export::version!($name $version);
        )*
    };
}

/// Gives an exported symbol its version.
macro_rules! version {
    ($name:ident $version:literal) => {
        #[cfg(all(target_os = "linux", not(test)))]
        std::arch::global_asm!(concat!(".symver ", stringify!($name), ", ", stringify!($name), "@@@", $version));
    };
}

pub(crate) use {export, export_waiting, version};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_down_inside_is_an_error_outside() {
        let broken = || -> c_int { panic!("as a test wants it") };
        assert_eq!(guard("ibv_test", broken), libc::EIO);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EIO));
        assert!(guard("ibv_test", || -> *mut c_int { panic!("as a test wants it") }).is_null());
        assert_eq!(guard_with("ibv_test", || -1, broken), -1);
        assert_eq!(guard("ibv_test", || 7), 7);
    }
}
