//! A connection whose two ends know each other.

use std::fmt;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::socket::wait;

/// One connection, sealed. The socket never waits; only [`Sealed::read`] and [`Sealed::write`] do, and they hold nothing
/// meanwhile that others need, so that one thread reads while others write.
///
/// Writes of several threads do not mix within one call, but may between two of a message. A connection that has failed stays
/// failed. What is at fault, if it is the seal, [`TrustError::behind`](crate::TrustError::behind) an error tells.
pub struct Sealed {
    tcp: TcpStream,
    peer: String,
    channel: Mutex<Channel>,
}

impl Sealed {
    pub(crate) fn new(tcp: TcpStream, channel: Channel, peer: String) -> Sealed {
        Sealed { tcp, peer, channel: Mutex::new(channel) }
    }

    /// The name in the other end's certificate: a help for people, since whoever holds the secret can take any.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Reads what has come, at least a byte; waits for it until `wait` has passed. 0 is the end in order (or no room in `into`).
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if nothing came; [`io::ErrorKind::UnexpectedEof`] if the connection ended without a word,
    /// as that of a process that was killed; [`io::ErrorKind::InvalidData`] for what does not belong to this connection.
    pub fn read(&self, into: &mut [u8], wait: Duration) -> io::Result<usize> {
        let end = after(wait);
        loop {
            match self.try_read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(true, false, end)?,
                read => return read,
            }
        }
    }

    /// Sends some of `bytes`, at least one, and returns how many once the system has them, and all that was taken before.
    /// Waits for that until `wait` has passed.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if the other end takes nothing. Some bytes may have been taken then and may yet be sent, and
    /// nobody knows how many: nothing sensible can follow. Other errors are the connection's end.
    pub fn write(&self, bytes: &[u8], wait: Duration) -> io::Result<usize> {
        let end = after(wait);
        let mut taken = 0;
        loop {
            if taken == 0 {
                match self.try_write(bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    written => taken = written?,
                }
            }
            if self.try_flush()? && (taken > 0 || bytes.is_empty()) {
                return Ok(taken);
            }
            self.wait(false, true, end)?;
        }
    }

    /// Reads what is there. 0 is the end in order (or no room in `into`).
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if nothing is; others as [`Sealed::read`].
    pub fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        self.lock().read(&self.tcp, into)
    }

    /// Takes what it can keep of `bytes`, and returns how many that are. The system has them only once [`Sealed::try_flush`]
    /// says so: several small pieces go with one call of it.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if it keeps about 128 KiB already, which the system does not take.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().write(&self.tcp, bytes)
    }

    /// Sends what it keeps; true if the system has all of it, false if it takes no more now.
    ///
    /// # Errors
    /// The connection's end.
    pub fn try_flush(&self) -> io::Result<bool> {
        self.lock().flush(&self.tcp)
    }

    /// Whether bytes of the other end wait in memory, so that reading helps although the socket may have nothing. It can be
    /// true for a beginning, of which reading makes nothing; then it is false.
    #[must_use]
    pub fn has_plaintext(&self) -> bool {
        self.lock().has_more()
    }

    /// How many bytes the system has taken, sealed. While this grows, the other end takes what is sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.lock().sent()
    }

    /// The socket: to watch it, or to ask it. Reading or writing it ends the connection's sense.
    #[must_use]
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Says that nothing more is sent; what is kept goes before that, if the system takes it now. The other end can still
    /// send.
    pub fn finish(&self) {
        let mut channel = self.lock();
        channel.end();
        // An error means that the other end is gone, which reading tells.
        let _ = channel.flush(&self.tcp);
        let _ = self.tcp.shutdown(Shutdown::Write);
    }

    /// Ends the connection. Threads that wait for it return.
    pub fn shut_down(&self) {
        if let Ok(mut channel) = self.channel.try_lock() {
            channel.end();
            let _ = channel.flush(&self.tcp);
        }
        // It may have ended before.
        let _ = self.tcp.shutdown(Shutdown::Both);
    }

    fn wait(&self, read: bool, write: bool, end: Instant) -> io::Result<()> {
        wait(&self.tcp, read, write, end)
    }

    fn lock(&self) -> MutexGuard<'_, Channel> {
        // A panic within leaves a connection whose records do not fit, which the other end refuses.
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The moment when `wait` has passed. A year from now where the clock cannot count as far as the caller would wait.
fn after(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or(now + Duration::from_secs(365 * 24 * 3600))
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed").field("tcp", &self.tcp).field("peer", &self.peer).finish_non_exhaustive()
    }
}
