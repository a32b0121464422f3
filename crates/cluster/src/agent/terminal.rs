//! Pseudo-terminals: what a process has for a terminal, and the agent's end of it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_setfd, ioctl_fionbio};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::api::Size;

/// The side that a process sees. As long as it is open here, the terminal is there also while no process has it.
pub(super) struct Terminal(OwnedFd);

impl Terminal {
    /// A new terminal, and its other end, which does not block: what is written there is typed, and what processes write is read there.
    /// It hangs up when the end and all that were made from it are closed.
    pub(super) fn open(size: Size) -> io::Result<(Terminal, OwnedFd)> {
        // At once, as others may be started meanwhile. Not every system can do this.
        #[cfg(target_os = "linux")]
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        #[cfg(not(target_os = "linux"))]
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let end = openpt(flags)?;
        fcntl_setfd(&end, FdFlags::CLOEXEC)?;
        grantpt(&end)?;
        unlockpt(&end)?;
        let path = ptsname(&end, Vec::new())?;
        let terminal = rustix::fs::open(path, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
        ioctl_fionbio(&end, true)?;
        let terminal = Terminal(terminal);
        terminal.resize(size)?;
        Ok((terminal, end))
    }

    /// The processes that are in its foreground hear of it.
    pub(super) fn resize(&self, Size { rows, cols }: Size) -> io::Result<()> {
        Ok(tcsetwinsize(&self.0, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 })?)
    }

    /// For a process.
    pub(super) fn give(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }
}
