//! What the system tells of devices in files.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use crate::error::refuse;
use crate::export::export;

/// Where the system tells of devices: `/sys`, or where `SYSFS_PATH` says.
fn root() -> &'static CStr {
    static ROOT: OnceLock<std::ffi::CString> = OnceLock::new();
    ROOT.get_or_init(|| {
        let path = std::env::var_os("SYSFS_PATH").unwrap_or_else(|| "/sys".into());
        let path = path.as_bytes().strip_suffix(b"/").unwrap_or(path.as_bytes());
        std::ffi::CString::new(path).unwrap_or_else(|_| c"/sys".to_owned())
    })
}

export! {
    /// Where the system tells of devices.
    "IBVERBS_1.0" fn ibv_get_sysfs_path() -> *const c_char {
        root().as_ptr()
    }

    /// Reads a file of a device, without its last line end: its length, or -1.
    "IBVERBS_1.0" fn ibv_read_sysfs_file(dir: *const c_char, file: *const c_char, to: *mut c_char, room: usize) -> c_int {
        // SAFETY: the program's promise: texts that end with zero.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        let path = Path::new(OsStr::from_bytes(dir.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
        // SAFETY: the program's promise: `to` has that much room.
        unsafe { read_into(&path, to, room) }
    }
}

/// # Safety
/// `to` is valid for writes of `room` bytes.
unsafe fn read_into(path: &Path, to: *mut c_char, room: usize) -> c_int {
    let content = match std::fs::read(path) {
        Ok(content) => content,
        Err(error) => {
            refuse("ibv_read_sysfs_file", error.raw_os_error().unwrap_or(libc::EIO), error);
            return -1;
        }
    };
    let text = content.strip_suffix(b"\n").unwrap_or(&content);
    let len = text.len().min(room);
    // SAFETY: the caller's promise; the text does not overlap with it.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, len);
        if len < room {
            *to.add(len) = 0;
        }
    }
    len as c_int
}

/// The same for a file below the directory that the system has for the device, for drivers.
///
/// # Safety
/// A device of the list, a text that ends with zero, and `to` is valid for writes of `room` bytes.
#[cfg(all(target_os = "linux", not(test)))]
pub(crate) unsafe extern "C" fn read_ibdev_sysfs_file(
    to: *mut c_char,
    room: usize,
    device: *mut crate::ffi::ibv_device,
    file: *const c_char,
) -> c_int {
    crate::export::guard_with(
        "ibv_read_ibdev_sysfs_file",
        || -1,
        || {
            // SAFETY: the caller's promises.
            let (dir, file) =
                unsafe { (CStr::from_ptr((&raw const (*device).ibdev_path).cast()), CStr::from_ptr(file)) };
            let path = Path::new(OsStr::from_bytes(dir.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
            // SAFETY: the caller's promise.
            unsafe { read_into(&path, to, room) }
        },
    )
}
