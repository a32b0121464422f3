//! macOS: no adoption of orphans and no death with the parent. Process groups and the watched socket do what they can: the
//! group of a rank is killed when its program ends or the launcher dies, a process that left the group is out of reach.

use std::io;
use std::path::PathBuf;

use rustix::process::Pid;

use super::Recorder;

/// Orphans go to the system's first process: `false`.
pub fn adopt_orphans() -> io::Result<bool> {
    Ok(false)
}

/// Nothing here ends a process with its parent.
pub fn die_with_parent() -> io::Result<()> {
    Ok(())
}

/// No orphan is adopted, so there is none to list.
pub fn children() -> io::Result<Vec<Pid>> {
    Ok(Vec::new())
}

/// There is no safe way to ask; every signal is taken as not ignored.
pub fn ignored_signals() -> u64 {
    0
}

/// The file to execute to run this program again.
pub fn own_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

/// A process's threads have no names here that others could read, so nobody can be told to write for sure.
pub fn recorders(_launcher: Pid) -> io::Result<Vec<Recorder>> {
    Ok(Vec::new())
}
