use std::{io, os::fd::OwnedFd};

use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    process::{Signal, set_parent_process_death_signal},
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
