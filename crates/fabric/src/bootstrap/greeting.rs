//! The greeting: fixed bytes, plain, before which and without which nothing else is parsed. It only tells versions and other
//! protocols apart; who the other side is, the seal shows that follows.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use fulmen_trust::{Protocol, TrustError};

use super::PROTOCOL_VERSION;
use super::message::Refusal;

/// What the seal is for. Its number is [`PROTOCOL_VERSION`]: the greeting can be changed on the way, this cannot.
pub(super) const CONTROL: Protocol = Protocol(b"fulmen-control/5");

pub(super) const MAGIC: &[u8; 4] = b"FULM";
/// Magic, version, verdict: the same in every version.
const HEAD: usize = 8;
/// The head, and 32 bytes that say nothing since version 4. Older versions wait for as many before they look at any.
pub(super) const HELLO: usize = 40;

pub(super) const GO_ON: u16 = 0;
pub(super) const OTHER_VERSION: u16 = 1;

/// One side's hello.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub version: u16,
    pub verdict: u16,
}

impl Hello {
    /// This build's.
    pub fn ours(verdict: u16) -> Hello {
        Hello { version: PROTOCOL_VERSION, verdict }
    }

    pub fn to_bytes(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..6].copy_from_slice(&self.version.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.verdict.to_le_bytes());
        bytes
    }

    /// `None` if the bytes are another protocol's.
    fn from_head(bytes: &[u8; HEAD]) -> Option<Hello> {
        let [b'F', b'U', b'L', b'M', v0, v1, w0, w1] = *bytes else { return None };
        Some(Hello { version: u16::from_le_bytes([v0, v1]), verdict: u16::from_le_bytes([w0, w1]) })
    }
}

/// A rank's hello at the coordinator, as far as it has come.
#[derive(Default)]
pub(super) struct Greeting {
    bytes: Vec<u8>,
}

impl Greeting {
    /// How many bytes are missing. Those after them belong to the seal.
    pub fn missing(&self) -> usize {
        HELLO - self.bytes.len()
    }

    /// Takes bytes, at most those that are missing; true once the hello is whole. What cannot be one is refused at the first
    /// byte that shows it, since another protocol may say less than a hello.
    pub fn push(&mut self, bytes: &[u8]) -> Result<bool, Refusal> {
        self.bytes.extend_from_slice(bytes);
        if !self.bytes.starts_with(&MAGIC[..self.bytes.len().min(MAGIC.len())]) && self.bytes.len() >= MAGIC.len() {
            return Err(Refusal::ForeignProtocol(excerpt(&self.bytes)));
        }
        if let Some(Hello { version, .. }) = self.bytes.first_chunk().and_then(Hello::from_head)
            && version != PROTOCOL_VERSION
        {
            return Err(Refusal::Version { rank: version, coordinator: PROTOCOL_VERSION });
        }
        Ok(self.bytes.len() >= HELLO)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The first bytes of another protocol, fit for one line of an error.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(16)].escape_ascii().to_string()
}

#[derive(Debug)]
pub(super) enum GreetError {
    /// The connection ended or broke; trying again can help.
    Io(io::Error),
    Foreign(String),
    Version(u16),
    /// The seal, for another reason than the connection's end.
    Trust(TrustError),
}

impl From<io::Error> for GreetError {
    fn from(error: io::Error) -> GreetError {
        let is_broken = TrustError::behind(&error).is_none_or(TrustError::is_broken);
        match error.downcast::<TrustError>() {
            Ok(error) if !is_broken => GreetError::Trust(error),
            Ok(error) => GreetError::Io(io::Error::other(error)),
            Err(error) => GreetError::Io(error),
        }
    }
}

impl From<TrustError> for GreetError {
    fn from(error: TrustError) -> GreetError {
        GreetError::from(io::Error::from(error))
    }
}

/// The rank's side. Returns once both sides have said that they speak the same version.
pub(super) fn greet(stream: &mut TcpStream, deadline: Instant) -> Result<(), GreetError> {
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(&Hello::ours(GO_ON).to_bytes())?;

    let mut head = [0; HEAD];
    // Another protocol may say less than a hello, so its first bytes decide.
    let (first, rest) = head.split_at_mut(MAGIC.len());
    read_exact(stream, first, deadline)?;
    if first != MAGIC {
        return Err(GreetError::Foreign(excerpt(first)));
    }
    read_exact(stream, rest, deadline)?;
    let Some(theirs) = Hello::from_head(&head) else { return Err(GreetError::Foreign(excerpt(&head))) };
    if theirs.version != PROTOCOL_VERSION || theirs.verdict == OTHER_VERSION {
        return Err(GreetError::Version(theirs.version));
    }
    Ok(read_exact(stream, &mut [0; HELLO - HEAD], deadline)?)
}

/// What is left until `deadline`; a time-out if nothing is.
pub(super) fn left(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::new(io::ErrorKind::TimedOut, "the deadline passed")),
        left => Ok(left),
    }
}

/// Fills `into` until `deadline`, however slowly the bytes come.
pub(super) fn read_exact(stream: &mut TcpStream, into: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < into.len() {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut into[filled..]) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer came"));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Says what comes of bytes that are cut into pieces of this length.
    fn hear(bytes: &[u8], cut: usize) -> Result<bool, Refusal> {
        let mut greeting = Greeting::default();
        let mut whole = false;
        for piece in bytes.chunks(cut) {
            let piece = &piece[..piece.len().min(greeting.missing())];
            whole = greeting.push(piece)?;
        }
        Ok(whole)
    }

    #[test]
    fn the_seal_and_the_greeting_have_one_version() {
        assert_eq!(CONTROL.0, format!("fulmen-control/{PROTOCOL_VERSION}").as_bytes());
    }

    proptest! {
        #[test]
        fn a_hello_is_heard_however_it_is_cut(cut in 1usize..50, version in any::<u16>(), missing in 0usize..=HELLO) {
            let bytes = Hello { version, verdict: GO_ON }.to_bytes();
            let bytes = &bytes[..HELLO - missing];
            let heard = hear(bytes, cut);
            if version != PROTOCOL_VERSION && bytes.len() >= HEAD {
                prop_assert_eq!(heard, Err(Refusal::Version { rank: version, coordinator: PROTOCOL_VERSION }));
            } else {
                prop_assert_eq!(heard, Ok(missing == 0));
            }
        }

        #[test]
        fn whatever_a_stranger_says_is_at_most_a_hello(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 1usize..50) {
            match hear(&bytes, cut) {
                Ok(whole) => prop_assert_eq!(whole, bytes.len() >= HELLO),
                Err(Refusal::ForeignProtocol(first)) => prop_assert!(!first.contains('\n') && first.len() <= 64),
                Err(refusal) => prop_assert!(matches!(refusal, Refusal::Version { .. }), "{}", refusal),
            }
        }
    }
}
