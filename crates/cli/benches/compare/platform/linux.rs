use std::{io, os::fd::OwnedFd};

use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    process::{PTracer, Signal, set_parent_process_death_signal, set_ptracer},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

/// The processors that this process may use.
pub fn allowed_processors() -> Vec<usize> {
    let set = sched_getaffinity(None).expect("the own affinity can be read");
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Binds the calling thread, and the processes that it starts, to these processors.
pub fn pin(processors: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    processors.iter().for_each(|&cpu| set.set(cpu));
    Ok(sched_setaffinity(None, &set)?)
}

/// The kernel ends this process when the thread that started it ends.
pub fn end_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// An unnamed file of zeroes that child processes inherit.
pub fn shared_file(bytes: u64) -> io::Result<OwnedFd> {
    let file = memfd_create("floor", MemfdFlags::empty())?;
    ftruncate(&file, bytes)?;
    Ok(file)
}

/// Lets other processes of the user read this one's memory, where the kernel asks for that.
pub fn allow_reads() {
    // A kernel that knows no such permission needs none; whether reading works is tried before it is used.
    let _ = set_ptracer(PTracer::Any);
}

/// Copies `bytes` bytes at `from` in process `pid` to `to`.
///
/// # Safety
/// `to` has room for them, and nobody else uses that room now.
pub unsafe fn read_process(pid: u32, from: usize, to: *mut u8, bytes: usize) -> io::Result<()> {
    let local = libc::iovec { iov_base: to.cast(), iov_len: bytes };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(from), iov_len: bytes };
    // SAFETY: the caller vouches for the local room; the kernel checks the remote address.
    match unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) } {
        -1 => Err(io::Error::last_os_error()),
        read if read as usize == bytes => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
