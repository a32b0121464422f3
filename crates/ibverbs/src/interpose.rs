//! Questions about device files that a driver would have made. There are none, and programs which look for them before they
//! use a device (UCX does) find them here, if the library is loaded before the C library (`LD_PRELOAD`).
//!
//! Each question goes to the C library first; only where that finds nothing, and only about the files of this library's
//! devices, another answer is given.
#![cfg(all(target_os = "linux", not(test)))]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::config::Config;

/// A function of the library that comes after this one, looked up once.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// NULL if there is none: it is an old name.
    fn get(&self) -> *mut c_void {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: the name ends with zero.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Ordering::Relaxed);
        }
        found
    }
}

/// Whether a path is the file of one of the devices.
///
/// # Safety
/// `path` is NULL or a text that ends with zero.
unsafe fn is_device(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let Some(number) = unsafe { CStr::from_ptr(path) }.to_bytes().strip_prefix(b"/dev/infiniband/uverbs") else {
        return false;
    };
    let [digit @ b'0'..=b'9'] = number else { return false };
    Config::get().is_ok_and(|config| digit - b'0' < config.devices)
}

/// The answer about a path: the C library's, or else that of a device.
///
/// # Safety
/// As [`is_device`].
unsafe fn answer(path: *const c_char, real: c_int, device: impl FnOnce()) -> c_int {
    // SAFETY: the caller's promise.
    if real == 0 || !unsafe { is_device(path) } {
        return real;
    }
    device();
    0
}

/// The kind of file that a driver makes, which everybody may use.
const KIND: libc::mode_t = libc::S_IFCHR | 0o666;

/// Defines a function that asks the next one of its name, and then answers for devices.
macro_rules! interposed {
    ($($(#[$meta:meta])* fn $name:ident[$($before:ident: $type:ty)?]($path:ident, $($after:ident: $other:ty),*) then [$($out:ident)?];)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// As the C library's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($before: $type,)? $path: *const c_char, $($after: $other),*) -> c_int {
                static NEXT: Next = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => Next::new(name),
                    Err(_) => unreachable!(),
                };
                type Function = unsafe extern "C" fn($($type,)? *const c_char, $($other),*) -> c_int;
                let next = NEXT.get();
                let real = if next.is_null() {
                    crate::error::set_errno(libc::ENOSYS);
                    -1
                } else {
                    // SAFETY: the C library's function of this name has this type.
                    let next = unsafe { transmute::<*mut c_void, Function>(next) };
                    // SAFETY: the caller's promises.
                    unsafe { next($($before,)? $path, $($after),*) }
                };
                // SAFETY: the caller's promises: a text, and a structure to be written.
                unsafe {
                    answer($path, real, || {
                        $(
                            *$out = std::mem::zeroed();
                            (*$out).st_mode = KIND;
                        )?
                    })
                }
            }
        )*
    };
}

interposed! {
    /// Whether a file can be used.
    fn access[](path, mode: c_int) then [];
    /// What a file is.
    fn stat[](path, to: *mut libc::stat) then [to];
    /// What a file is.
    fn stat64[](path, to: *mut libc::stat64) then [to];
    /// What a file is, by the name that it had before glibc 2.33.
    fn __xstat[version: c_int](path, to: *mut libc::stat) then [to];
    /// What a file is, by the name that it had before glibc 2.33.
    fn __xstat64[version: c_int](path, to: *mut libc::stat64) then [to];
}
