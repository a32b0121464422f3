//! TLS over a socket that does not wait: records in and out, and the bytes in them.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use rustls::Connection;

use crate::error::TrustError;
use crate::socket::{Quiet, receive};

/// How much is read from the socket at first: a handshake, or a record of a few small messages.
const FIRST_READ: usize = 4 << 10;
/// How much is read at once of a stream that never ends.
const LARGEST_READ: usize = 256 << 10;
/// How many bytes, sealed, wait for the socket at most before no more are taken. One record more may come on top.
const KEPT: usize = 128 << 10;
/// How many of the first bytes are kept for an error.
const EXCERPT: usize = 16;
/// TLS's records of a handshake and of an alert, whose version begins with 3.
const RECORDS: [[u8; 2]; 2] = [[22, 3], [21, 3]];

pub(crate) struct Channel {
    tls: Connection,
    /// What came over the socket and was not looked at: `raw[from..to]`.
    raw: Vec<u8>,
    from: usize,
    to: usize,
    /// What came was wrong. It stays so.
    failed: bool,
    /// Decrypted bytes may not have been read.
    undelivered: bool,
    /// The first bytes that came, until the handshake is over.
    first: Vec<u8>,
    /// How many bytes the socket has taken.
    sent: u64,
    protocol: &'static [u8],
}

impl Channel {
    pub fn new(mut tls: Connection, protocol: &'static [u8]) -> Channel {
        tls.set_buffer_limit(Some(KEPT));
        Channel {
            tls,
            raw: vec![0; FIRST_READ],
            from: 0,
            to: 0,
            failed: false,
            undelivered: false,
            first: Vec::new(),
            sent: 0,
            protocol,
        }
    }

    pub fn tls(&self) -> &Connection {
        &self.tls
    }

    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether decrypted bytes may be had without the socket.
    pub fn has_more(&self) -> bool {
        self.undelivered || self.has_raw()
    }

    fn has_raw(&self) -> bool {
        self.from < self.to
    }

    /// Takes the handshake as far as it goes now; true once it is over and all of it is sent.
    pub fn shake_hands(&mut self, tcp: &TcpStream) -> Result<bool, TrustError> {
        loop {
            let flushed = self.flush(tcp)?;
            if !self.tls.is_handshaking() {
                self.check_protocol()?;
                self.first = Vec::new();
                return Ok(flushed);
            }
            if !self.has_raw() {
                match self.fill(tcp) {
                    Ok(0) => return Err(TrustError::Closed),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(error.into()),
                }
                self.check_first()?;
            }
            if let Err(error) = self.digest() {
                // What is wrong is told to the other end, if it can be.
                let _ = self.flush(tcp);
                return Err(error);
            }
        }
    }

    /// Something that is no TLS at all is named by what it says.
    fn check_first(&mut self) -> Result<(), TrustError> {
        let room = EXCERPT - self.first.len();
        self.first.extend_from_slice(&self.raw[self.from..self.to.min(self.from + room)]);
        let is_tls = RECORDS.iter().any(|record| {
            let len = self.first.len().min(record.len());
            self.first[..len] == record[..len]
        });
        if is_tls { Ok(()) } else { Err(TrustError::NotTls { first: self.first.escape_ascii().to_string() }) }
    }

    /// An end that names no protocol is none that this one talks to.
    fn check_protocol(&self) -> Result<(), TrustError> {
        if self.tls.alpn_protocol() == Some(self.protocol) {
            Ok(())
        } else {
            Err(TrustError::other_protocol(self.protocol))
        }
    }

    /// Reads bytes; 0 is the end in order.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there are none now, [`io::ErrorKind::UnexpectedEof`] if the stream ended without a word.
    pub fn read(&mut self, tcp: &TcpStream, into: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        loop {
            match self.tls.reader().read(&mut into[count..]) {
                Ok(0) => return Ok(count),
                Ok(more) => {
                    count += more;
                    if count == into.len() {
                        return Ok(count);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.undelivered = false,
                Err(error) => return if count > 0 { Ok(count) } else { Err(error) },
            }
            if !self.has_raw() && !self.failed {
                if count > 0 {
                    return Ok(count);
                }
                if self.fill(tcp)? == 0 {
                    // From here on, reading says how it ended.
                    self.tls.read_tls(&mut io::empty())?;
                    continue;
                }
            }
            if let Err(error) = self.digest() {
                let _ = self.flush(tcp);
                // What was good before it is not lost; the error stays.
                return if count > 0 { Ok(count) } else { Err(error.into()) };
            }
            if self.tls.wants_write() {
                // The keys may have to be renewed; if the socket takes nothing now, the next write sees to it.
                let _ = self.flush(tcp);
            }
        }
    }

    /// Takes bytes to be sent, as many as it has room for.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if it has none now.
    pub fn write(&mut self, tcp: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let mut taken = 0;
        loop {
            let count = self.tls.writer().write(&bytes[taken..])?;
            taken += count;
            if taken == bytes.len() {
                return Ok(taken);
            }
            // It is full. What has been taken cannot be given back, so an error is told by the next call.
            match self.flush(tcp) {
                Ok(true) => {}
                Ok(false) if taken == 0 => return Err(io::ErrorKind::WouldBlock.into()),
                Err(error) if taken == 0 => return Err(error),
                Ok(false) | Err(_) => return Ok(taken),
            }
        }
    }

    /// Sends what the socket takes; true if that is all there is.
    pub fn flush(&mut self, tcp: &TcpStream) -> io::Result<bool> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Quiet(tcp)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Nothing is sent after this but that there is nothing more.
    pub fn end(&mut self) {
        self.tls.send_close_notify();
    }

    fn fill(&mut self, tcp: &TcpStream) -> io::Result<usize> {
        if self.to == self.raw.len() && self.raw.len() < LARGEST_READ {
            // It was filled to its end the last time.
            self.raw.resize(self.raw.len() * 2, 0);
        }
        let count = receive(tcp, &mut self.raw)?;
        (self.from, self.to) = (0, count);
        Ok(count)
    }

    /// Decrypts some of what has come.
    fn digest(&mut self) -> Result<(), TrustError> {
        if !self.failed {
            let count = self.tls.read_tls(&mut &self.raw[self.from..self.to])?;
            // After the other end has said that nothing follows, nothing is taken.
            self.from = if count == 0 { self.to } else { self.from + count };
        }
        let state = self.tls.process_new_packets().map_err(|error| {
            self.failed = true;
            TrustError::from_tls(error, self.protocol)
        })?;
        self.undelivered = state.plaintext_bytes_to_read() > 0;
        Ok(())
    }
}
