//! What the system offers to keep hold of processes, where systems differ.

use std::io;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub use linux::{adopt_orphans, children, die_with_parent, ignored_signals, own_program, recorders};

#[cfg(not(target_os = "linux"))]
mod macos;
#[cfg(not(target_os = "linux"))]
pub use macos::{adopt_orphans, children, die_with_parent, ignored_signals, own_program, recorders};

/// Kills the children that came to this process because a supervisor was killed: all but `strangers`. Says how many are left,
/// of which some may have come meanwhile; they are killed by the next call.
pub fn kill_orphans(strangers: &[Pid]) -> io::Result<usize> {
    let orphans =
        || -> io::Result<Vec<Pid>> { Ok(children()?.into_iter().filter(|pid| !strangers.contains(pid)).collect()) };
    let mut killed = orphans()?;
    // Each is a child that was not waited for, so no number can belong to another process.
    for &orphan in &killed {
        let _ = kill_process(orphan, Signal::KILL);
    }
    killed.retain(|&orphan| matches!(waitpid(Some(orphan), WaitOptions::NOHANG), Ok(None)));
    Ok(if killed.is_empty() { orphans()?.len() } else { killed.len() })
}

/// A process that writes its record when it gets SIGUSR1.
pub struct Recorder {
    /// Its rank.
    pub rank: u32,
    /// Where it writes.
    pub directory: std::path::PathBuf,
    /// What is told to write; it names this process and no other that gets its number later.
    #[cfg(target_os = "linux")]
    process: std::os::fd::OwnedFd,
}

impl Recorder {
    /// Tells it to write.
    pub fn ask(&self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        rustix::process::pidfd_send_signal(&self.process, Signal::USR1)?;
        Ok(())
    }
}
