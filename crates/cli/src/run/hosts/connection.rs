//! The ssh process that leads to one host: what goes in, what comes out, what it says, and its end.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;

use super::protocol::{self, Incoming};

/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;
/// Bytes of ssh's words that are kept.
const MOST_WORDS: usize = 4 << 10;
/// How long ssh may take to end once all is said.
const END: Duration = Duration::from_secs(5);
/// How often it is looked whether it has.
const LOOK: Duration = Duration::from_millis(5);

/// A connection to one host.
pub struct Connection {
    child: Child,
    to: Option<ChildStdin>,
    from: Option<ChildStdout>,
    words: Option<ChildStderr>,
    out: Vec<u8>,
    /// How many bytes of it are with the system.
    sent: usize,
    /// What came over standard output.
    pub incoming: Incoming,
    /// What came over standard error, the last of it.
    said: Vec<u8>,
}

/// What was read of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    /// Something or nothing.
    Some,
    /// It has ended.
    End,
}

impl Connection {
    /// Starts a program like ssh with these arguments.
    pub fn start(program: &OsString, args: &[OsString]) -> io::Result<Connection> {
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A signal that is typed at the terminal reaches the ranks through the launcher, and once.
            .process_group(0)
            .spawn()?;
        let (to, from, words) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let made = [to.as_ref().map(AsFd::as_fd), from.as_ref().map(AsFd::as_fd), words.as_ref().map(AsFd::as_fd)];
        let ready = made.into_iter().flatten().try_for_each(never_block);
        let mut connection = Connection {
            child,
            to,
            from,
            words,
            out: Vec::new(),
            sent: 0,
            incoming: Incoming::default(),
            said: Vec::new(),
        };
        match ready {
            Ok(()) => Ok(connection),
            Err(error) => {
                connection.kill();
                Err(error)
            }
        }
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Says something, as soon as there is room.
    pub fn say(&mut self, message: &impl Serialize) {
        protocol::push(message, &mut self.out);
        self.flush();
    }

    /// Hands to the system what it takes. A reader that is gone is noticed by the end of what it says.
    pub fn flush(&mut self) {
        while let Some(to) = &mut self.to
            && self.sent < self.out.len()
        {
            match to.write(&self.out[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.to = None,
            }
        }
        if self.sent == self.out.len() || self.to.is_none() {
            self.out.clear();
            self.sent = 0;
        } else if self.sent > CHUNK {
            self.out.drain(..std::mem::take(&mut self.sent));
        }
    }

    /// Whether something waits to be sent.
    pub fn is_full(&self) -> bool {
        self.sent < self.out.len()
    }

    /// What to wait for: what it says, its words, and room for what is to be sent.
    pub fn fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        fds.extend(self.from.as_ref().map(|from| PollFd::new(from, PollFlags::IN)));
        fds.extend(self.words.as_ref().map(|words| PollFd::new(words, PollFlags::IN)));
        fds.extend(self.to.as_ref().filter(|_| self.is_full()).map(|to| PollFd::new(to, PollFlags::OUT)));
    }

    /// Reads what has come, without waiting.
    pub fn read(&mut self) -> Took {
        let mut buffer = [0; CHUNK];
        match take(&mut self.from, &mut buffer) {
            Some(count) => {
                self.incoming.push(&buffer[..count]);
                Took::Some
            }
            None => Took::End,
        }
    }

    /// Reads what ssh, or a program on the host, has said on standard error, without waiting.
    pub fn read_words(&mut self) -> Vec<u8> {
        let mut buffer = [0; CHUNK];
        let count = take(&mut self.words, &mut buffer).unwrap_or(0);
        self.said.extend_from_slice(&buffer[..count]);
        let too_many = self.said.len().saturating_sub(MOST_WORDS);
        self.said.drain(..too_many);
        buffer[..count].to_vec()
    }

    /// All that it has said on standard error so far, and nothing of it again.
    pub fn take_words(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.said)
    }

    /// The last lines that it has said on standard error, as one.
    pub fn last_words(&mut self) -> String {
        const LINES: usize = 3;
        while !self.read_words().is_empty() {}
        let text = String::from_utf8_lossy(&self.said);
        let mut lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let lines = lines.split_off(lines.len().saturating_sub(LINES));
        lines.iter().map(|line| line.strip_prefix("fulmen: ").unwrap_or(line)).collect::<Vec<_>>().join("; ")
    }

    /// Says no more, and waits for its end; `None` if it had to be killed.
    pub fn end(&mut self) -> Option<ExitStatus> {
        self.flush();
        self.to = None;
        let end = Instant::now() + END;
        while Instant::now() < end {
            self.read_words();
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) => thread::sleep(LOOK),
                Err(_) => break,
            }
        }
        self.kill();
        None
    }

    /// Ends it at once, with all that it has started in its group.
    pub fn kill(&mut self) {
        // Its number is its own as long as nobody has waited for it.
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process_group(self.pid(), Signal::KILL);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Has reads and writes of a descriptor return instead of waiting.
pub fn never_block(fd: impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(&fd)?;
    Ok(fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?)
}

/// Reads once; 0 bytes if there are none. `None` if the stream has ended; then it is closed.
fn take(stream: &mut Option<impl Read>, buffer: &mut [u8]) -> Option<usize> {
    match stream.as_mut()?.read(buffer) {
        Ok(count @ 1..) => Some(count),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Some(0),
        _ => {
            *stream = None;
            None
        }
    }
}
