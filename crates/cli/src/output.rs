//! Writing to standard output and standard error.

use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

/// One of the command's two standard streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl Stream {
    /// Writes all of `bytes` as one piece that no other writer of this process interrupts. Unlike std's, it also works on a
    /// descriptor that somebody else has made non-blocking. It waits for as long as the reader takes.
    pub fn write_all(self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Out => {
                let mut lock = io::stdout().lock();
                lock.flush()?;
                write_all(rustix::stdio::stdout(), bytes)
            }
            Stream::Err => {
                let _lock = io::stderr().lock();
                write_all(rustix::stdio::stderr(), bytes)
            }
        }
    }
}

fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => match rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The exit code when whoever read the output went away: that of a program that SIGPIPE ended, in a shell.
pub const NOBODY_LISTENS: u8 = 141;

/// Writes to standard output; `false` when nobody reads it any more.
pub fn show(text: &str) -> io::Result<bool> {
    match Stream::Out.write_all(text.as_bytes()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Prints all that a command has to say, and gives its exit code.
pub fn print(text: &str) -> anyhow::Result<ExitCode> {
    let heard = show(text).map_err(|error| anyhow::anyhow!("the output is not complete: {error}"))?;
    Ok(if heard { ExitCode::SUCCESS } else { ExitCode::from(NOBODY_LISTENS) })
}

/// How the command's own messages look: one line, whatever the names in it are made of.
pub fn message(text: &str) -> String {
    let mut line = String::from("fulmen: ");
    for character in text.chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line.push('\n');
    line
}

/// Prints one message on standard error.
pub fn say(text: &str) {
    // There is nowhere left to complain to when standard error is gone.
    let _ = Stream::Err.write_all(message(text).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_and_commands_no_terminal() {
        assert_eq!(message("no `a\nb\x1b[2J\u{9b}é`"), "fulmen: no `a\\nb\\u{1b}[2J\\u{9b}é`\n");
    }
}
