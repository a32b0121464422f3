//! The thread that passes the ranks' output on.
//!
//! It is a thread of its own so that a reader who lets the command's output wait holds up the ranks, as it should, but not the
//! launcher, which has signals and time limits to serve. The launcher's own messages go through it too, for the same reason.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::lines::Lines;
use crate::output::{Stream, message};

/// Bytes that are read at once.
const CHUNK: usize = 1 << 16;

/// Most bytes that are still read from one stream when all ranks are over. Everything they wrote is in the pipe by then, and
/// no pipe holds more than this by default; a stranger who keeps a pipe open and writes on is not waited for.
const REST: usize = 1 << 20;

/// Takes whole lines of a rank. After an error it is asked no more, and the rank's next write fails as on a closed pipe.
pub type Reader = Box<dyn FnMut(&[u8]) -> io::Result<()> + Send>;

/// Where lines go.
pub enum Target {
    /// To a stream of this command.
    Stream(Stream),
    /// To a part of this program.
    Reader(Reader),
}

/// One stream of one rank: where its bytes come from and go.
pub struct Source {
    /// The read end of the rank's pipe.
    pub pipe: PipeReader,
    /// Cuts and labels.
    pub lines: Lines,
    /// Who takes it.
    pub to: Target,
    /// Its end will come, and is waited for: a bridge writes it, which passes on what another host still sends.
    pub awaited: bool,
}

/// The running relay.
pub struct Relay {
    /// Sources that the thread has not seen yet.
    added: Arc<Mutex<Vec<Source>>>,
    messages: Option<PipeWriter>,
    ended: PipeReader,
    thread: thread::JoinHandle<io::Result<()>>,
}

impl Relay {
    /// Starts to pass on what `sources` give.
    pub fn start(sources: Vec<Source>) -> io::Result<Relay> {
        let (pipe, messages) = io::pipe()?;
        // A launcher that waited for its messages to be read could be held up by the reader of standard error after all.
        rustix::fs::fcntl_setfl(&messages, rustix::fs::OFlags::NONBLOCK)?;
        let (ended, end) = io::pipe()?;
        let added = Arc::new(Mutex::new(sources));
        let sources = added.clone();
        let thread = thread::Builder::new().name("output".to_string()).spawn(move || {
            let result = relay(pipe, &sources);
            drop(end);
            result
        })?;
        Ok(Relay { added, messages: Some(messages), ended, thread })
    }

    /// Passes on what these give too, and shows a message first.
    pub fn add(&mut self, text: &str, sources: impl IntoIterator<Item = Source>) {
        self.added.lock().unwrap_or_else(PoisonError::into_inner).extend(sources);
        // The message wakes the thread. One that cannot be told now has other messages to read, and wakes for those.
        self.say(text);
    }

    /// Shows a message of the launcher, between the ranks' lines.
    pub fn say(&mut self, text: &str) {
        if let Some(pipe) = &mut self.messages {
            // A relay that is gone, or stuck behind thousands of messages, has nobody who would read this one.
            let _ = pipe.write_all(message(text).as_bytes());
        }
    }

    /// Has the relay pass on what the pipes still hold and end. When it has, [`Relay::ended`] is readable.
    pub fn finish(&mut self) {
        self.messages = None;
    }

    /// Readable when the relay has ended.
    pub fn ended(&self) -> &PipeReader {
        &self.ended
    }

    /// The first error in writing standard output or standard error, if it was another than a reader that went away.
    pub fn result(self) -> io::Result<()> {
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the output thread has failed")))
    }
}

/// What the relay's thread works with.
struct Worker {
    buffer: Vec<u8>,
    out: Vec<u8>,
    /// The streams that cannot be written any more.
    closed: Vec<Stream>,
    result: io::Result<()>,
}

/// Passes on until the launcher's messages have ended; then what is left in the ranks' pipes.
fn relay(mut messages: PipeReader, added: &Mutex<Vec<Source>>) -> io::Result<()> {
    let take = |sources: &mut Vec<Source>| sources.append(&mut added.lock().unwrap_or_else(PoisonError::into_inner));
    let mut sources = Vec::new();
    let mut worker = Worker { buffer: vec![0; CHUNK], out: Vec::new(), closed: Vec::new(), result: Ok(()) };
    loop {
        take(&mut sources);
        let pipes = || sources.iter().map(|source| &source.pipe);
        let ready = readable(pipes().chain([&messages]), None)?;
        for index in (0..sources.len()).rev().filter(|&index| ready[index]) {
            if !worker.pass_on(&mut sources[index]) {
                sources.remove(index);
            }
        }
        // Dropping their pipes tells the ranks that nobody reads them, as it would without a launcher between.
        sources.retain(|source| !matches!(&source.to, Target::Stream(to) if worker.closed.contains(to)));
        if ready.last() == Some(&true) {
            match messages.read(&mut worker.buffer)? {
                0 => break,
                count => {
                    worker.out.extend_from_slice(&worker.buffer[..count]);
                    worker.write(&mut Target::Stream(Stream::Err));
                }
            }
        }
    }
    take(&mut sources);
    while sources.iter().any(|source| source.awaited) {
        let awaited = || sources.iter().filter(|source| source.awaited);
        let ready = readable(awaited().map(|source| &source.pipe), None)?;
        let mut ready = ready.into_iter();
        for source in sources.iter_mut().filter(|source| source.awaited) {
            if ready.next() == Some(true) {
                source.awaited = worker.pass_on(source);
            }
        }
    }
    for source in &mut sources {
        let mut rest = REST / CHUNK;
        while rest > 0 && readable([&source.pipe].into_iter(), Some(&Timespec::default()))? == [true] {
            rest -= 1;
            if !worker.pass_on(source) {
                break;
            }
        }
        source.lines.finish(&mut worker.out);
        worker.write(&mut source.to);
    }
    worker.result
}

impl Worker {
    /// Reads once from a readable source and writes the lines that are whole. `false` when the source has ended, or its own
    /// reader wants no more.
    fn pass_on(&mut self, source: &mut Source) -> bool {
        let count = match source.pipe.read(&mut self.buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return true,
            Err(_) => 0,
        };
        if count == 0 {
            source.lines.finish(&mut self.out);
        } else {
            source.lines.push(&self.buffer[..count], &mut self.out);
        }
        self.write(&mut source.to) && count > 0
    }

    /// `false` when a reader wants no more.
    fn write(&mut self, to: &mut Target) -> bool {
        let written = match to {
            _ if self.out.is_empty() => Ok(()),
            Target::Stream(stream) if self.closed.contains(stream) => Ok(()),
            Target::Stream(stream) => stream.write_all(&self.out).inspect_err(|_| self.closed.push(*stream)),
            Target::Reader(reader) => reader(&self.out),
        };
        self.out.clear();
        self.out.shrink_to(2 * CHUNK);
        let Err(error) = written else { return true };
        if error.kind() != io::ErrorKind::BrokenPipe && self.result.is_ok() {
            self.result = Err(error);
        }
        matches!(to, Target::Stream(_))
    }
}

/// Waits until one of the pipes can be read or has ended, and says which.
fn readable<'a>(pipes: impl Iterator<Item = &'a PipeReader>, timeout: Option<&Timespec>) -> io::Result<Vec<bool>> {
    let mut fds: Vec<PollFd<'_>> = pipes.map(|pipe| PollFd::new(pipe, PollFlags::IN)).collect();
    loop {
        match poll(&mut fds, timeout) {
            Ok(_) => return Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
