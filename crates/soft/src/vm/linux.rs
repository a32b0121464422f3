//! The calls of Linux.

use std::io;

/// Bytes of one process: this one's or another's.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Range(libc::iovec);

// SAFETY: it is two numbers. Who uses them answers for them.
unsafe impl Send for Range {}

impl Range {
    pub(super) fn new(addr: u64, len: usize) -> Range {
        Range(libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(addr as usize), iov_len: len })
    }
}

/// Bytes of this process that are read into.
pub(super) fn own_bytes_mut(bytes: &mut [u8]) -> Range {
    Range(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() })
}

type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

/// Reads all of `from` in process `pid` into `into`.
///
/// # Safety
/// `into` is memory of this process that is writable during the call and has no references.
pub(super) unsafe fn read(pid: u32, into: &mut [Range], from: &mut [Range]) -> io::Result<()> {
    // SAFETY: as the caller promises.
    unsafe { all(libc::process_vm_readv, pid, into, from) }
}

/// Writes all of `from` to `to` in process `pid`.
///
/// # Safety
/// `from` is memory of this process that is readable during the call.
pub(super) unsafe fn write(pid: u32, from: &mut [Range], to: &mut [Range]) -> io::Result<()> {
    // SAFETY: as the caller promises.
    unsafe { all(libc::process_vm_writev, pid, from, to) }
}

/// Calls until all is copied: one call copies 2 GiB at most. Both lists are used up.
///
/// # Safety
/// `own` is memory of this process that fits the call.
unsafe fn all(call: Call, pid: u32, own: &mut [Range], there: &mut [Range]) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let (mut own, mut there) = (own, there);
    loop {
        (own, there) = (without_empty(own), without_empty(there));
        if own.is_empty() || there.is_empty() {
            return Ok(());
        }
        // SAFETY: the lists are slices of `iovec`s, since `Range` is nothing else; what they name in this process fits the
        // call as this function's caller promises, and what they name in the other one is checked by the system.
        let copied = unsafe {
            call(
                pid,
                own.as_ptr().cast::<libc::iovec>(),
                own.len() as libc::c_ulong,
                there.as_ptr().cast::<libc::iovec>(),
                there.len() as libc::c_ulong,
                0,
            )
        };
        match usize::try_from(copied) {
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            // If it ended early, at a page that is not there, then the next call says so.
            Ok(copied) => {
                skip(own, copied);
                skip(there, copied);
            }
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.raw_os_error() != Some(libc::EINTR) {
                    return Err(error);
                }
            }
        }
    }
}

fn without_empty(ranges: &mut [Range]) -> &mut [Range] {
    let empty = ranges.iter().take_while(|range| range.0.iov_len == 0).count();
    &mut ranges[empty..]
}

fn skip(ranges: &mut [Range], mut bytes: usize) {
    for range in ranges {
        let here = bytes.min(range.0.iov_len);
        range.0.iov_base = range.0.iov_base.wrapping_byte_add(here);
        range.0.iov_len -= here;
        bytes -= here;
    }
}

/// Whether an error is about the memory that was named, and not about the process.
pub(super) fn is_about_memory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EFAULT | libc::ENOMEM))
}

/// Whether an error says that there is no such process, or that it is ending.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}

/// Which policy is behind a refusal, and what allows it.
pub(super) fn why(error: &io::Error) -> &'static str {
    if error.raw_os_error() == Some(libc::ENOSYS) {
        return " (the system has no process_vm_readv, or a seccomp filter hides it)";
    }
    if error.raw_os_error() != Some(libc::EPERM) {
        return "";
    }
    match std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").as_deref().map(str::trim) {
        Ok("2" | "3") => " (Yama: kernel.yama.ptrace_scope forbids it to users)",
        Ok("1") => " (Yama: kernel.yama.ptrace_scope is 1, and the process did not give leave)",
        _ => " (a container's seccomp filter, another user, or a process that cannot be dumped)",
    }
}

pub(super) fn invite() {
    // SAFETY: a call without pointers, about this process only. Where Yama is not built in it fails, and nothing asks for
    // leave then.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}
