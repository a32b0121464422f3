//! One TCP connection of two queue pairs, plain or sealed. It never waits.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, OnceLock};

use fulmen_memory::Exposed;

use super::error::Ended;
use super::line::Line;
use super::socket;
use super::watch::{Token, Watch};
use crate::rest::Rest;

/// What is sent.
pub(crate) enum Out<'a> {
    Bytes(&'a [u8]),
    /// Registered memory: it goes as it is, without a copy on the way to the system.
    Memory {
        memory: &'a Exposed,
        at: usize,
        len: usize,
    },
}

/// Where what comes is put.
pub(crate) enum Room<'a> {
    Bytes(&'a mut [u8]),
    /// Registered memory: the system puts it there.
    Memory {
        memory: &'a Exposed,
        at: usize,
        len: usize,
    },
}

/// Pieces that go in one call. Of longer lists the rest is for the next one.
pub(super) const MOST_PIECES: usize = 64;
/// Bytes that are sealed, or opened, at once on their way from or to registered memory: two of TLS's largest records.
const SEALED_AT_ONCE: usize = 32 << 10;

/// There may be something to be read.
const READABLE: u32 = 1;
/// There may be room to write.
const WRITABLE: u32 = 2;
/// The peer sends no more, or the connection broke: the system tells this once.
const HUNG_UP: u32 = 4;

/// What the watch and the owner of a connection share.
pub(super) struct Core {
    pub(super) line: Line,
    flags: AtomicU32,
    /// Why this side ended it.
    why: OnceLock<String>,
    /// Of the queue pair whose it is.
    rest: OnceLock<Arc<Rest>>,
}

impl Core {
    /// The system told of this since it was told last.
    pub(super) fn tell(&self, readable: bool, writable: bool, hung_up: bool) {
        let flags = [(readable || hung_up, READABLE), (writable || hung_up, WRITABLE), (hung_up, HUNG_UP)];
        let flags = flags.into_iter().filter(|(told, _)| *told).fold(0, |all, (_, flag)| all | flag);
        self.flags.fetch_or(flags, Ordering::SeqCst);
        // If it has no queue pair yet, that looks at the flags before it rests.
        fence(Ordering::SeqCst);
        if let Some(rest) = self.rest.get() {
            rest.end();
        }
    }

    /// Ends the connection from another thread than its owner's, who is told why.
    pub(super) fn give_up(&self, why: String) {
        // The first reason stands.
        let _ = self.why.set(why);
        let _ = self.line.tcp().shutdown(Shutdown::Both);
    }

    fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::SeqCst) & flag != 0
    }

    /// Before a call of the system: what it tells from now on is new.
    fn clear(&self, flag: u32) {
        self.flags.fetch_and(!flag, Ordering::SeqCst);
    }

    fn set(&self, flag: u32) {
        self.flags.fetch_or(flag, Ordering::Release);
    }
}

/// A connection. Its end is told by [`Ended`]; dropping it ends it at once.
pub(crate) struct Stream {
    core: Arc<Core>,
    watch: Arc<Watch>,
    token: Token,
    peer: SocketAddr,
    /// The process that opened it: a child that was forked leaves it alone.
    process: u32,
    /// What is sealed together.
    copy: Vec<u8>,
}

impl Stream {
    /// Takes over a connection whose two sides have agreed. It is watched from now on.
    pub(super) fn new(line: Line, peer: SocketAddr, watch: &Arc<Watch>) -> io::Result<Stream> {
        let sealed = matches!(line, Line::Sealed(_));
        socket::suit_path(line.tcp());
        let flags = AtomicU32::new(READABLE | WRITABLE);
        let core = Arc::new(Core { line, flags, why: OnceLock::new(), rest: OnceLock::new() });
        let token = watch.add(&core)?;
        let copy = Vec::with_capacity(if sealed { SEALED_AT_ONCE } else { 0 });
        Ok(Stream { core, watch: watch.clone(), token, peer, process: std::process::id(), copy })
    }

    /// Ends this rest whenever it is told of something.
    pub(crate) fn end_rest(&self, of: &Arc<Rest>) {
        // A connection has one queue pair.
        let _ = self.core.rest.set(of.clone());
        fence(Ordering::SeqCst);
    }

    /// The peer's device.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Sends some of `pieces`, one after the other, and returns how many bytes. Fewer than all (0, too) means that no more
    /// goes now; whoever watches is told when it goes on.
    pub(crate) fn send(&mut self, pieces: &[Out<'_>]) -> Result<usize, Ended> {
        if !self.core.has(WRITABLE) {
            return Ok(0);
        }
        self.core.clear(WRITABLE);
        let pieces = &pieces[..pieces.len().min(MOST_PIECES)];
        let sent = match &self.core.line {
            Line::Plain(tcp) => self.outcome(socket::send(tcp, pieces))?,
            Line::Sealed(_) => self.seal(pieces)?,
        };
        if sent == pieces.iter().map(Out::len).sum::<usize>() {
            self.core.set(WRITABLE);
        }
        Ok(sent)
    }

    /// Receives into `pieces`, one after the other, what is there, and returns how many bytes. 0: nothing is there now.
    pub(crate) fn receive(&mut self, pieces: &mut [Room<'_>]) -> Result<usize, Ended> {
        let most = pieces.len().min(MOST_PIECES);
        let pieces = &mut pieces[..most];
        let room = pieces.iter().map(Room::len).sum::<usize>();
        if room == 0 {
            return Ok(0);
        }
        self.core.clear(READABLE);
        let received = match &self.core.line {
            Line::Plain(tcp) => socket::receive(tcp, pieces),
            Line::Sealed(_) => self.open(pieces),
        };
        let received = match received {
            Ok(0) => Err(self.ended(Ended::in_order())),
            received => self.outcome(received),
        };
        // A plain socket that filled less has no more, but for its end, of which the system may have told already. (What
        // is sealed comes in records, so only an empty look tells.)
        let emptied = match (&received, &self.core.line) {
            (Ok(0), _) => true,
            (Ok(received), Line::Plain(_)) => *received < room && !self.core.has(HUNG_UP),
            _ => false,
        };
        if !emptied {
            self.core.set(READABLE);
        }
        received
    }

    /// Gives the system what was taken and kept; true if it has all of it.
    pub(crate) fn flush(&mut self) -> Result<bool, Ended> {
        match &self.core.line {
            Line::Plain(_) => Ok(true),
            Line::Sealed(sealed) => sealed.try_flush().map_err(|error| self.ended(Ended::of(&error))),
        }
    }

    /// Has the next look try to receive, though nothing was told.
    pub(crate) fn suspect(&self) {
        self.core.set(READABLE);
    }

    /// False if there was nothing to be received when the set was [swept](super::Network::sweep) last.
    #[inline]
    pub(crate) fn is_readable(&self) -> bool {
        self.core.has(READABLE) || matches!(&self.core.line, Line::Sealed(sealed) if sealed.has_plaintext())
    }

    pub(crate) fn is_sealed(&self) -> bool {
        matches!(self.core.line, Line::Sealed(_))
    }

    #[cfg(test)]
    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    /// Says that nothing more is sent. What the system has still goes.
    pub(super) fn end_sending(&mut self) {
        match &self.core.line {
            Line::Plain(tcp) => {
                // It may have ended before.
                let _ = tcp.shutdown(Shutdown::Write);
            }
            Line::Sealed(sealed) => sealed.finish(),
        }
    }

    fn seal(&mut self, pieces: &[Out<'_>]) -> Result<usize, Ended> {
        let Line::Sealed(sealed) = &self.core.line else { unreachable!("asked by the caller") };
        let mut taken = 0;
        loop {
            // Small pieces become one record.
            self.copy.clear();
            let mut before = taken;
            for piece in pieces {
                let count = piece.len().saturating_sub(before).min(SEALED_AT_ONCE - self.copy.len());
                piece.append(before.min(piece.len()), count, &mut self.copy);
                before = before.saturating_sub(piece.len());
            }
            let took = match sealed.try_write(&self.copy) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => return Err(self.ended(Ended::of(&error))),
            };
            taken += took;
            let more = self.copy.len() == SEALED_AT_ONCE || took < self.copy.len();
            if took == SEALED_AT_ONCE {
                continue;
            }
            // What is kept after this goes with the next call, or with `flush`. The socket is full then, so that whoever
            // watches is told when it goes on.
            let flushed = sealed.try_flush().map_err(|error| self.ended(Ended::of(&error)))?;
            if !flushed || !more {
                return Ok(taken);
            }
        }
    }

    fn open(&mut self, pieces: &mut [Room<'_>]) -> io::Result<usize> {
        let Line::Sealed(sealed) = &self.core.line else { unreachable!("asked by the caller") };
        let mut received = 0;
        for piece in pieces {
            let mut at = 0;
            while at < piece.len() {
                let want = (piece.len() - at).min(SEALED_AT_ONCE);
                let read = match piece {
                    Room::Bytes(bytes) => sealed.try_read(&mut bytes[at..at + want]),
                    Room::Memory { memory, at: start, .. } => {
                        self.copy.resize(want, 0);
                        sealed.try_read(&mut self.copy).inspect(|count| memory.write(*start + at, &self.copy[..*count]))
                    }
                };
                match read {
                    // The end, or an error, is told again by the next call.
                    Ok(0) | Err(_) if received > 0 => return Ok(received),
                    Ok(count) if count > 0 => (at, received) = (at + count, received + count),
                    ended => return ended,
                }
            }
        }
        Ok(received)
    }

    /// Bytes, or the end; nothing at the moment is 0 bytes.
    fn outcome(&self, result: io::Result<usize>) -> Result<usize, Ended> {
        match result {
            Ok(count) => Ok(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            // The system has no memory for it now, and does not tell when it has.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM)) => {
                self.core.set(READABLE | WRITABLE);
                Ok(0)
            }
            Err(error) => Err(self.ended(Ended::of(&error))),
        }
    }

    fn ended(&self, seen: Ended) -> Ended {
        self.core.why.get().map_or(seen, |why| Ended(why.clone()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The parent's connection goes on.
            return;
        }
        self.watch.remove(self.token, self.core.line.tcp());
        match &self.core.line {
            // A child that was forked may keep the socket open.
            Line::Plain(tcp) => {
                let _ = tcp.shutdown(Shutdown::Both);
            }
            Line::Sealed(sealed) => sealed.shut_down(),
        }
    }
}

impl Out<'_> {
    fn len(&self) -> usize {
        match self {
            Out::Bytes(bytes) => bytes.len(),
            Out::Memory { len, .. } => *len,
        }
    }

    /// Appends `count` bytes from `at` on.
    fn append(&self, at: usize, count: usize, to: &mut Vec<u8>) {
        match self {
            Out::Bytes(bytes) => to.extend_from_slice(&bytes[at..at + count]),
            Out::Memory { memory, at: start, .. } => {
                let end = to.len();
                to.resize(end + count, 0);
                memory.read(start + at, &mut to[end..]);
            }
        }
    }
}

impl Room<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Room::Bytes(bytes) => bytes.len(),
            Room::Memory { len, .. } => *len,
        }
    }
}
