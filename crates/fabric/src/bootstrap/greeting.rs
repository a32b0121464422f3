//! The greeting: fixed bytes, before which and without which nothing else is parsed.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::PROTOCOL_VERSION;
use super::secret::{Nonce, Prover, Secret, SecretError, random};

pub(super) const MAGIC: &[u8; 4] = b"FULM";
/// Magic, version, verdict, nonce.
pub(super) const HELLO: usize = 40;
pub(super) const PROOF: usize = 32;
/// Verdict, proof.
const ANSWER: usize = 2 + PROOF;

pub(super) const GO_ON: u16 = 0;
pub(super) const OTHER_VERSION: u16 = 1;
pub(super) const WRONG_SECRET: u16 = 2;

/// One side's hello. The first 8 bytes are the same in every version.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub version: u16,
    pub verdict: u16,
    pub nonce: Nonce,
}

impl Hello {
    pub fn to_bytes(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..6].copy_from_slice(&self.version.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.verdict.to_le_bytes());
        bytes[8..].copy_from_slice(&self.nonce);
        bytes
    }

    /// `None` if the bytes are another protocol's.
    pub fn from_bytes(bytes: &[u8; HELLO]) -> Option<Hello> {
        let [b'F', b'U', b'L', b'M', v0, v1, w0, w1, ref nonce @ ..] = *bytes else { return None };
        Some(Hello { version: u16::from_le_bytes([v0, v1]), verdict: u16::from_le_bytes([w0, w1]), nonce: *nonce })
    }
}

/// The coordinator's answer to a rank's proof.
pub(super) fn answer(verdict: u16, proof: Option<&blake3::Hash>) -> [u8; ANSWER] {
    let mut bytes = [0; ANSWER];
    bytes[..2].copy_from_slice(&verdict.to_le_bytes());
    if let Some(proof) = proof {
        bytes[2..].copy_from_slice(proof.as_bytes());
    }
    bytes
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
    WrongSecret,
    NoRandomness(SecretError),
}

impl From<io::Error> for GreetError {
    fn from(error: io::Error) -> GreetError {
        GreetError::Io(error)
    }
}

/// The rank's side. Returns once both sides have proved that they hold `secret`.
pub(super) fn greet(stream: &mut TcpStream, secret: &Secret, deadline: Instant) -> Result<(), GreetError> {
    let ours: Nonce = random().map_err(GreetError::NoRandomness)?;
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(&Hello { version: PROTOCOL_VERSION, verdict: GO_ON, nonce: ours }.to_bytes())?;

    let mut bytes = [0; HELLO];
    // Another protocol may say less than a hello, so its first bytes decide.
    let (first, rest) = bytes.split_at_mut(MAGIC.len());
    read_exact(stream, first, deadline)?;
    if first != MAGIC {
        return Err(GreetError::Foreign(excerpt(first)));
    }
    read_exact(stream, rest, deadline)?;
    let Some(theirs) = Hello::from_bytes(&bytes) else { return Err(GreetError::Foreign(excerpt(&bytes))) };
    if theirs.version != PROTOCOL_VERSION || theirs.verdict == OTHER_VERSION {
        return Err(GreetError::Version(theirs.version));
    }

    stream.write_all(secret.proof(Prover::Rank, &ours, &theirs.nonce).as_bytes())?;
    let mut answer = [0; ANSWER];
    read_exact(stream, &mut answer, deadline)?;
    let [v0, v1, proof @ ..] = answer;
    // The comparison of hashes takes the same time wherever they differ.
    let proved = blake3::Hash::from_bytes(proof) == secret.proof(Prover::Coordinator, &ours, &theirs.nonce);
    if u16::from_le_bytes([v0, v1]) != GO_ON || !proved {
        return Err(GreetError::WrongSecret);
    }
    Ok(())
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
