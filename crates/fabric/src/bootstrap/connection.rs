//! A rank's connection to the coordinator: how it comes about, what is written to it, how it ends.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::error::JoinError;
use super::greeting::{self, GreetError, left};
use super::message::{FROM_COORDINATOR, ToCoordinator, ToRank};
use super::reader::Shared;
use super::session::JoinConfig;
use super::wire::{Decoder, head};

/// The pause after the first attempt to reach the coordinator; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How long a goodbye waits for the coordinator to take notice.
const FAREWELL: Duration = Duration::from_secs(2);

/// The connection of one process. All its sessions share it; the last one ends it.
pub(super) struct Connection {
    pub stream: TcpStream,
    /// The rank that this process was launched as.
    pub launched: u32,
    writing: Mutex<()>,
    /// How often a new generation was asked for.
    attempts: AtomicU64,
    reader: Mutex<Option<JoinHandle<()>>>,
}

impl Connection {
    pub fn new(stream: TcpStream, launched: u32) -> Connection {
        let (writing, reader) = (Mutex::new(()), Mutex::new(None));
        Connection { stream, launched, writing, attempts: AtomicU64::new(0), reader }
    }

    /// The thread that reads it.
    pub fn set_reader(&self, reader: JoinHandle<()>) {
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(reader);
    }

    /// The number of the next attempt to form a generation, from 1.
    pub fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Writes all pieces until `end`. After [`io::ErrorKind::TimedOut`], half a frame may be on the way: nothing can follow it,
    /// so the connection is over.
    pub fn write(&self, pieces: &[&[u8]], end: Instant) -> io::Result<()> {
        let result = {
            let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
            pieces.iter().try_for_each(|piece| self.write_piece(piece, end))
        };
        if matches!(&result, Err(error) if error.kind() == io::ErrorKind::TimedOut) {
            self.shut_down();
        }
        result
    }

    fn write_piece(&self, piece: &[u8], end: Instant) -> io::Result<()> {
        let mut rest = piece;
        while !rest.is_empty() {
            self.stream.set_write_timeout(Some(left(end)?))?;
            match (&self.stream).write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends the connection, and so its reader.
    pub fn shut_down(&self) {
        // It may have ended before.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Says goodbye unless this thread panics, and waits for the reader to end.
    pub fn leave(&self, shared: &Shared) {
        let Some(reader) = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
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
    }
}

/// A connection whose two sides know each other, and what the coordinator said to the rank that asked for its seat.
pub(super) struct Admitted {
    pub stream: TcpStream,
    pub decoder: Decoder,
    pub answer: ToRank,
}

/// Reaches the coordinator and asks for a seat, again and again until `end` while nobody answers.
pub(super) fn connect(config: &JoinConfig, end: Instant) -> Result<Admitted, JoinError> {
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
    let join = ToCoordinator::Join { rank: config.rank, size: config.size, pid: std::process::id() };
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
