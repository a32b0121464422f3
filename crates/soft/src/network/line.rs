//! A connection in its first moments, when whoever has it waits for the other side, until a deadline.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use fulmen_trust::{Protocol, Sealed};

use super::socket;

/// What is spoken over sealed connections between devices.
pub(super) const PROTOCOL: Protocol = Protocol(b"fulmen-rail/1");

/// A connection. Its socket never waits by itself.
pub(super) enum Line {
    Plain(TcpStream),
    Sealed(Box<Sealed>),
}

impl Line {
    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Line::Plain(tcp) => tcp,
            Line::Sealed(sealed) => sealed.tcp(),
        }
    }

    /// Sends all of `bytes`.
    pub(super) fn write_all(&self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = match self {
                Line::Plain(tcp) => write_some(tcp, bytes, until)?,
                Line::Sealed(sealed) => sealed.write(bytes, left(until)?)?,
            };
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Fills `into`, however slowly the bytes come, and takes no byte more.
    pub(super) fn read_exact(&self, mut into: &mut [u8], until: Instant) -> io::Result<()> {
        while !into.is_empty() {
            let read = match self {
                Line::Plain(tcp) => read_some(tcp, into, until)?,
                Line::Sealed(sealed) => sealed.read(into, left(until)?)?,
            };
            if read == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection"));
            }
            into = &mut into[read..];
        }
        Ok(())
    }
}

/// Waits until there is something, and reads it. 0 is the end.
pub(super) fn read_some(mut tcp: &TcpStream, into: &mut [u8], until: Instant) -> io::Result<usize> {
    loop {
        match tcp.read(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket::wait(tcp, true, left(until)?)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

fn write_some(mut tcp: &TcpStream, bytes: &[u8], until: Instant) -> io::Result<usize> {
    loop {
        match tcp.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket::wait(tcp, false, left(until)?)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            written => return written,
        }
    }
}

/// What is left until `until`; a time-out if nothing is.
pub(super) fn left(until: Instant) -> io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}
