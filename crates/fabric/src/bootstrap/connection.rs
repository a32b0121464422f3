//! A rank's connection to the coordinator: how it comes about, what is written to it, how it ends.

use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fulmen_trust::{Identity, Sealed, TrustError};

use super::coordinator::Serving;
use super::error::JoinError;
use super::greeting::{self, CONTROL, GreetError, left};
use super::message::{FROM_COORDINATOR, ToCoordinator, ToRank};
use super::process;
use super::reader::Shared;
use super::session::JoinConfig;
use super::wire::{Decoder, head};

/// The pause after the first attempt to reach the coordinator; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How long a goodbye waits for the coordinator to take notice.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long the process that serves the coordinator waits for the other ranks to leave before it does.
const LINGER: Duration = Duration::from_secs(10);

/// What leads ranks to the coordinator: dropped before it.
pub(super) type Beside = Box<dyn Send>;

/// The connection of one process. All its sessions share it; the last one ends it.
pub(super) struct Connection {
    pub stream: Sealed,
    /// By what this process is known.
    pub identity: Identity,
    /// The rank that this process was launched as.
    pub launched: u32,
    /// Held by the thread that writes: what was queued, and is not written to its end.
    writing: Mutex<Vec<u8>>,
    /// What goes before everything that is written later, for threads that cannot wait.
    queued: Mutex<Vec<u8>>,
    /// How often a new generation was asked for.
    attempts: AtomicU64,
    reader: Mutex<Option<JoinHandle<()>>>,
    /// The coordinator, where this process serves it.
    serving: Mutex<Option<(Serving, Beside)>>,
    /// The connection's end is this process's own doing.
    leaving: AtomicBool,
}

impl Connection {
    pub fn new(stream: Sealed, identity: Identity, launched: u32) -> Connection {
        Connection {
            stream,
            identity,
            launched,
            writing: Mutex::default(),
            queued: Mutex::default(),
            attempts: AtomicU64::new(0),
            reader: Mutex::default(),
            serving: Mutex::default(),
            leaving: AtomicBool::new(false),
        }
    }

    /// The thread that reads it.
    pub fn set_reader(&self, reader: JoinHandle<()>) {
        *lock(&self.reader) = Some(reader);
    }

    /// The coordinator that ends with this connection.
    pub fn keep(&self, serving: Serving, beside: Beside) {
        *lock(&self.serving) = Some((serving, beside));
    }

    /// Whether this process ends the connection.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// The number of the next attempt to form a generation, from 1.
    pub fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Writes all pieces until `end`. After [`io::ErrorKind::TimedOut`], half a frame may be on the way: nothing can follow it,
    /// so the connection is over.
    pub fn write(&self, pieces: &[&[u8]], end: Instant) -> io::Result<()> {
        let result = {
            let mut begun = lock(&self.writing);
            begun.append(&mut lock(&self.queued));
            let before = std::mem::take(&mut *begun);
            self.write_piece(&before, end)
                .and_then(|()| pieces.iter().try_for_each(|piece| self.write_piece(piece, end)))
        };
        if matches!(&result, Err(error) if error.kind() == io::ErrorKind::TimedOut) {
            self.shut_down();
        }
        self.send_queued();
        result
    }

    /// Has a frame written before all that are written from now on. It does not wait: where the connection is busy or takes
    /// no bytes, whoever writes next, and be it the answer to a sign of life, sees to it.
    pub fn queue(&self, frame: &[u8]) {
        lock(&self.queued).extend_from_slice(frame);
        self.send_queued();
    }

    /// Sends what is queued, unless another thread writes: that one looks here when it is done.
    fn send_queued(&self) {
        while !lock(&self.queued).is_empty() {
            let mut begun = match self.writing.try_lock() {
                Ok(begun) => begun,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            begun.append(&mut lock(&self.queued));
            // Where the connection has ended, its reader tells of that.
            if self.begin(&mut begun).is_err() {
                return;
            }
        }
    }

    /// Sends what can be sent without waiting. What is left of it stays begun.
    fn begin(&self, begun: &mut Vec<u8>) -> io::Result<()> {
        while !begun.is_empty() {
            let count = self.stream.try_write(begun)?;
            begun.drain(..count);
        }
        self.stream.try_flush().map(drop)
    }

    fn write_piece(&self, piece: &[u8], end: Instant) -> io::Result<()> {
        let mut rest = piece;
        while !rest.is_empty() {
            rest = &rest[self.stream.write(rest, left(end)?)?..];
        }
        Ok(())
    }

    /// Ends the connection, and so its reader.
    pub fn shut_down(&self) {
        self.stream.shut_down();
    }

    /// Says goodbye unless this thread panics, and waits for the reader to end.
    pub fn leave(&self, shared: &Shared) {
        let Some(reader) = lock(&self.reader).take() else { return };
        self.leaving.store(true, Ordering::Relaxed);
        let end = Instant::now() + FAREWELL;
        let on_reader = reader.thread().id() == thread::current().id();
        if !thread::panicking() {
            let _ = self.write(&[&head(&ToCoordinator::Goodbye, 0)], end);
        }
        // Closing with bytes unread would reset the connection and could take the goodbye back, so the coordinator ends it.
        self.stream.finish();
        if !on_reader {
            shared.wait_for_reader(end);
        }
        self.shut_down();
        if !on_reader {
            let _ = reader.join();
        }
        let Some((serving, beside)) = lock(&self.serving).take() else { return };
        // Whoever comes from now on looks for the next world.
        drop(beside);
        if !thread::panicking() && !serving.wait_until_empty(LINGER) {
            tracing::warn!("rank {} ends, and the coordinator with it, while other ranks go on", self.launched);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is in them is whole between any two statements that could panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection whose two sides know each other, and what the coordinator said to the rank that asked for its seat.
pub(super) struct Admitted {
    pub stream: Sealed,
    pub identity: Identity,
    pub decoder: Decoder,
    pub answer: ToRank,
}

/// Reaches the coordinator and asks for a seat, again and again until `end` while nobody answers and `is_meant` says that it is
/// still the one to reach.
pub(super) fn connect(config: &JoinConfig, end: Instant, is_meant: &dyn Fn() -> bool) -> Result<Admitted, JoinError> {
    let JoinConfig { coordinator, deadline: waited, .. } = *config;
    let host = rustix::system::uname();
    let name = format!("rank {}, pid {} on {}", config.rank, std::process::id(), host.nodename().to_string_lossy());
    let identity = config.secret.authority().and_then(|authority| authority.identity(&name));
    let identity = identity.map_err(|error| JoinError::System(error.to_string()))?;
    let mut pause = FIRST_PAUSE;
    let mut cause = String::from("there was no time to try");
    loop {
        let Ok(rest) = left(end) else { return Err(JoinError::Unreachable { coordinator, waited, cause }) };
        match attempt(config, &identity, rest, end) {
            Ok((stream, decoder, answer)) => return Ok(Admitted { stream, identity, decoder, answer }),
            Err(GreetError::Io(error)) => cause = error.to_string(),
            Err(GreetError::Foreign(first) | GreetError::Trust(TrustError::NotTls { first })) => {
                return Err(JoinError::ForeignProtocol { coordinator, first });
            }
            Err(GreetError::Version(theirs)) => {
                return Err(JoinError::Version { ours: super::PROTOCOL_VERSION, theirs });
            }
            Err(GreetError::Trust(error)) if error.is_stranger() => return Err(JoinError::WrongSecret(coordinator)),
            Err(GreetError::Trust(error)) => {
                return Err(JoinError::Unsealed { coordinator, cause: error.to_string() });
            }
        }
        if !is_meant() {
            return Err(JoinError::Unreachable { coordinator, waited, cause });
        }
        thread::sleep(pause.min(end.saturating_duration_since(Instant::now())));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn attempt(
    config: &JoinConfig,
    identity: &Identity,
    rest: Duration,
    end: Instant,
) -> Result<(Sealed, Decoder, ToRank), GreetError> {
    let mut stream = TcpStream::connect_timeout(&config.coordinator, rest)?;
    // A port that nobody listens on can be given to the very connection that looks for it, which then meets itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
    }
    greeting::greet(&mut stream, end)?;
    let stream = identity.connect(stream, CONTROL, end)?;
    let join =
        ToCoordinator::Join { rank: config.rank, size: config.size, pid: std::process::id(), pids: process::pids() };
    let join = head(&join, 0);
    let mut rest = &join[..];
    while !rest.is_empty() {
        rest = &rest[stream.write(rest, left(end)?)?..];
    }
    let mut decoder = Decoder::new(FROM_COORDINATOR);
    let frame = loop {
        if let Some(frame) = decoder.next().map_err(io::Error::other)? {
            break frame;
        }
        let mut bytes = [0; 256];
        match stream.read(&mut bytes, left(end)?)? {
            0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed").into()),
            // What follows this frame stays in the decoder for the reader.
            count => decoder.push(&bytes[..count]),
        }
    };
    let answer = frame.message().map_err(io::Error::other)?;
    Ok((stream, decoder, answer))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::bootstrap::Secret;

    #[test]
    fn what_is_queued_waits_for_nobody_and_goes_first() {
        let end = Instant::now() + Duration::from_secs(60);
        let identity = Secret::generate().unwrap().authority().unwrap().identity("both").unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        let (stream, peer) = thread::scope(|scope| {
            let peer = scope.spawn(|| identity.accept(accepted, CONTROL, end).unwrap());
            (identity.connect(stream, CONTROL, end).unwrap(), peer.join().unwrap())
        });
        let connection = Connection::new(stream, identity, 0);
        connection.queue(b"1");
        // Another thread writes.
        let writing = connection.writing.lock().unwrap();
        connection.queue(b"2");
        drop(writing);
        connection.write(&[b"3", b"4"], end).unwrap();
        // The peer takes no bytes.
        let mut filled = 0;
        let full = vec![b'5'; 1 << 20];
        loop {
            match connection.stream.try_write(&full) {
                Ok(count) => filled += count,
                Err(error) => break assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        connection.queue(b"6");
        thread::scope(|scope| {
            let reads = scope.spawn(move || {
                let mut all = Vec::new();
                let mut piece = vec![0; 1 << 16];
                loop {
                    match peer.read(&mut piece, Duration::from_secs(60)).unwrap() {
                        0 => return all,
                        count => all.extend_from_slice(&piece[..count]),
                    }
                }
            });
            connection.write(&[b"7"], end).unwrap();
            connection.shut_down();
            let all = reads.join().unwrap();
            assert_eq!(all[..4], *b"1234");
            assert!(all[4..4 + filled].iter().all(|byte| *byte == b'5'));
            assert_eq!(all[4 + filled..], *b"67");
        });
    }
}
