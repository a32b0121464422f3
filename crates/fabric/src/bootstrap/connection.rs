//! A rank's connection to the coordinator: how it comes about, what is written to it, how it ends.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::coordinator::Serving;
use super::error::JoinError;
use super::greeting::{self, GreetError, left};
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
/// The shortest time that the system lets a write take.
const AT_ONCE: Duration = Duration::from_millis(1);

/// What leads ranks to the coordinator: dropped before it.
pub(super) type Beside = Box<dyn Send>;

/// The connection of one process. All its sessions share it; the last one ends it.
pub(super) struct Connection {
    pub stream: TcpStream,
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
    pub fn new(stream: TcpStream, launched: u32) -> Connection {
        Connection {
            stream,
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
            self.write_queued(&mut begun, || left(end))
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
            // Where the connection has ended, its reader tells of that.
            if self.write_queued(&mut begun, || Ok(AT_ONCE)).is_err() {
                return;
            }
        }
    }

    /// Writes what is queued. What is left of it stays begun.
    fn write_queued(&self, begun: &mut Vec<u8>, patience: impl Fn() -> io::Result<Duration>) -> io::Result<()> {
        begun.append(&mut lock(&self.queued));
        while !begun.is_empty() {
            let count = self.write_some(begun, patience()?)?;
            begun.drain(..count);
        }
        Ok(())
    }

    fn write_piece(&self, piece: &[u8], end: Instant) -> io::Result<()> {
        let mut rest = piece;
        while !rest.is_empty() {
            let count = self.write_some(rest, left(end)?)?;
            rest = &rest[count..];
        }
        Ok(())
    }

    fn write_some(&self, bytes: &[u8], patience: Duration) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(patience))?;
        match (&self.stream).write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::ErrorKind::TimedOut.into()),
            written => written,
        }
    }

    /// Ends the connection, and so its reader.
    pub fn shut_down(&self) {
        // It may have ended before.
        let _ = self.stream.shutdown(Shutdown::Both);
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
        let _ = self.stream.shutdown(Shutdown::Write);
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
    pub stream: TcpStream,
    pub decoder: Decoder,
    pub answer: ToRank,
}

/// Reaches the coordinator and asks for a seat, again and again until `end` while nobody answers and `is_meant` says that it is
/// still the one to reach.
pub(super) fn connect(config: &JoinConfig, end: Instant, is_meant: &dyn Fn() -> bool) -> Result<Admitted, JoinError> {
    let JoinConfig { coordinator, deadline: waited, .. } = *config;
    let mut pause = FIRST_PAUSE;
    let mut cause = String::from("there was no time to try");
    loop {
        let Ok(rest) = left(end) else { return Err(JoinError::Unreachable { coordinator, waited, cause }) };
        match attempt(config, rest, end) {
            Ok(admitted) => return Ok(admitted),
            Err(GreetError::Io(error)) => cause = error.to_string(),
            Err(GreetError::Foreign(first)) => return Err(JoinError::ForeignProtocol { coordinator, first }),
            Err(GreetError::Version(theirs)) => {
                return Err(JoinError::Version { ours: super::PROTOCOL_VERSION, theirs });
            }
            Err(GreetError::WrongSecret) => return Err(JoinError::WrongSecret(coordinator)),
            Err(GreetError::NoRandomness(error)) => return Err(JoinError::System(error.to_string())),
        }
        if !is_meant() {
            return Err(JoinError::Unreachable { coordinator, waited, cause });
        }
        thread::sleep(pause.min(end.saturating_duration_since(Instant::now())));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn attempt(config: &JoinConfig, rest: Duration, end: Instant) -> Result<Admitted, GreetError> {
    let mut stream = TcpStream::connect_timeout(&config.coordinator, rest)?;
    // A port that nobody listens on can be given to the very connection that looks for it, which then meets itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
    }
    stream.set_nodelay(true)?;
    greeting::greet(&mut stream, &config.secret, end)?;
    let join =
        ToCoordinator::Join { rank: config.rank, size: config.size, pid: std::process::id(), pids: process::pids() };
    stream.write_all(&head(&join, 0))?;
    let mut decoder = Decoder::new(FROM_COORDINATOR);
    let frame = loop {
        if let Some(frame) = decoder.next().map_err(io::Error::other)? {
            break frame;
        }
        // Byte by byte is slow and exact: what follows this frame stays for the reader.
        let mut byte = [0];
        greeting::read_exact(&mut stream, &mut byte, end)?;
        decoder.push(&byte);
    };
    let answer = frame.message().map_err(io::Error::other)?;
    Ok(Admitted { stream, decoder, answer })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn what_is_queued_waits_for_nobody_and_goes_first() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let connection = Connection::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap(), 0);
        let (mut peer, _) = listener.accept().unwrap();
        let end = Instant::now() + Duration::from_secs(60);
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
            match connection.write_some(&full, AT_ONCE) {
                Ok(count) => filled += count,
                Err(error) => break assert_eq!(error.kind(), io::ErrorKind::TimedOut),
            }
        }
        connection.queue(b"6");
        thread::scope(|scope| {
            let reads = scope.spawn(move || {
                let mut all = Vec::new();
                peer.read_to_end(&mut all).unwrap();
                all
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
