//! What a process reads and writes: pipes, or a terminal.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::fs::{OFlags, fcntl_setfl};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::api::SpawnRequest;
use super::terminal::Terminal;

/// Where the agent reads what a process writes.
pub(super) enum Output {
    Pipe(pipe::Receiver),
    /// The end of a terminal, which is read as a pipe is.
    Terminal(pipe::Receiver),
}

impl Output {
    /// Adds what is there, once something is; nothing, or an error, when nobody can write any more.
    pub(super) async fn read(&mut self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Output::Pipe(pipe) => pipe.read_buf(bytes).await,
            // It may give less than it has, so that only its own word says that it has no more.
            Output::Terminal(end) => loop {
                end.readable().await?;
                match end.try_read_buf(bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => return read,
                }
            },
        }
    }

    /// Adds what is there now.
    pub(super) fn try_read(&mut self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Output::Pipe(from) | Output::Terminal(from) => from.try_read_buf(bytes),
        }
    }
}

/// The agent's ends.
pub(super) struct Ours {
    pub(super) stdin: Option<pipe::Sender>,
    pub(super) stdout: Output,
    /// A terminal has but one stream.
    pub(super) stderr: Option<Output>,
    pub(super) terminal: Option<Terminal>,
}

/// The process's ends.
pub(super) struct Theirs {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

/// Where there is nothing to read. It is opened once.
fn nothing() -> io::Result<OwnedFd> {
    static NOTHING: OnceLock<OwnedFd> = OnceLock::new();
    match NOTHING.get() {
        Some(open) => open.try_clone(),
        None => {
            let open: OwnedFd = File::open("/dev/null")?.into();
            let own = open.try_clone()?;
            // If another thread was faster, its own serves as well.
            let _ = NOTHING.set(open);
            Ok(own)
        }
    }
}

/// Makes what is asked for.
pub(super) fn open(request: &SpawnRequest) -> io::Result<(Ours, Theirs)> {
    if let Some(size) = request.tty {
        let (terminal, end) = Terminal::open(size)?;
        let theirs = Theirs { stdin: terminal.give()?, stdout: terminal.give()?, stderr: terminal.give()? };
        let typed = request.stdin.then(|| end.try_clone().and_then(pipe::Sender::from_owned_fd_unchecked));
        let (stdin, stdout) = (typed.transpose()?, Output::Terminal(pipe::Receiver::from_owned_fd_unchecked(end)?));
        return Ok((Ours { stdin, stdout, stderr: None, terminal: Some(terminal) }, theirs));
    }
    let output = || -> io::Result<(Output, OwnedFd)> {
        let (reader, writer) = io::pipe()?;
        // What it is need not be asked.
        fcntl_setfl(&reader, OFlags::NONBLOCK)?;
        Ok((Output::Pipe(pipe::Receiver::from_owned_fd_unchecked(reader.into())?), writer.into()))
    };
    let (stdin, their_stdin) = if request.stdin {
        let (reader, writer) = io::pipe()?;
        (Some(pipe::Sender::from_owned_fd(writer.into())?), reader.into())
    } else {
        (None, nothing()?)
    };
    let ((stdout, their_stdout), (stderr, their_stderr)) = (output()?, output()?);
    let ours = Ours { stdin, stdout, stderr: Some(stderr), terminal: None };
    Ok((ours, Theirs { stdin: their_stdin, stdout: their_stdout, stderr: their_stderr }))
}
