//! What the system offers to keep hold of processes, where systems differ.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub use linux::{adopt_orphans, children, die_with_parent, ignored_signals, own_program, recorders};

#[cfg(not(target_os = "linux"))]
mod macos;
#[cfg(not(target_os = "linux"))]
pub use macos::{adopt_orphans, children, die_with_parent, ignored_signals, own_program, recorders};

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
    pub fn ask(&self) -> std::io::Result<()> {
        #[cfg(target_os = "linux")]
        rustix::process::pidfd_send_signal(&self.process, rustix::process::Signal::USR1)?;
        Ok(())
    }
}
