//! One connection as the coordinator sees it: its stage, its bytes in and out, its silence.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::PROTOCOL_VERSION;
use super::greeting::{GO_ON, HELLO, Hello, MAGIC, OTHER_VERSION, PROOF, WRONG_SECRET, answer, excerpt};
use super::message::{ADMISSION, LossCause, Refusal, SEATED, ToRank};
use super::secret::{Nonce, Nonces, Prover, Secret};
use super::wire::{Decoder, Frame, FrameError, Shared, head};

/// How long a refused connection may take to read its refusal. Closing at once could take the refusal back: bytes that
/// nobody read turn a close into a reset.
const DRAIN: Duration = Duration::from_secs(2);
/// The most bytes that are read from one connection before the others have their turn.
const TURN: usize = 1 << 20;

pub(super) struct Peer {
    pub stream: TcpStream,
    pub address: SocketAddr,
    pub stage: Stage,
    /// When a connection without a seat must have gone on, or gone.
    pub until: Instant,
    /// Bytes of the greeting.
    greeting: Vec<u8>,
    decoder: Decoder,
    outgoing: VecDeque<Shared>,
    /// How much of the first of `outgoing` is sent.
    sent: usize,
    /// Nothing can be sent any more. What is still to be read decides how the connection ended.
    mute: bool,
    /// The connection took no more bytes. When it takes some again, the other side has read: a sign of life.
    stalled: bool,
    pub silent: Duration,
    pub pinged: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Stage {
    Hello,
    Proof { rank: Nonce, coordinator: Nonce },
    Admission,
    Seated { pid: u32 },
    Draining,
}

/// What became of a connection when it was read.
pub(super) enum Heard {
    /// Nothing more in this turn.
    Frames(Vec<Frame>),
    Refused(Refusal),
    /// It ended after these frames.
    Ended(Vec<Frame>, LossCause),
}

impl Peer {
    pub fn new(stream: TcpStream, address: SocketAddr, until: Instant) -> io::Result<Peer> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Peer {
            stream,
            address,
            stage: Stage::Hello,
            until,
            greeting: Vec::new(),
            decoder: Decoder::new(ADMISSION),
            outgoing: VecDeque::new(),
            sent: 0,
            mute: false,
            stalled: false,
            silent: Duration::ZERO,
            pinged: false,
        })
    }

    /// The process at the other end, once it is one of the world's.
    pub fn pid(&self) -> Option<u32> {
        match self.stage {
            Stage::Seated { pid } => Some(pid),
            _ => None,
        }
    }

    /// Whether it is one of the world's.
    pub fn is_seated(&self) -> bool {
        self.pid().is_some()
    }

    pub fn wants_to_write(&self) -> bool {
        !self.mute && !self.outgoing.is_empty()
    }

    pub fn seat(&mut self, pid: u32) {
        self.stage = Stage::Seated { pid };
        self.decoder.set_limits(SEATED);
    }

    pub fn send(&mut self, bytes: Shared) {
        if !self.mute {
            self.outgoing.push_back(bytes);
        }
    }

    /// Asks for a sign of life. What waits to be sent is asking enough: it is taken by a living rank only.
    pub fn ping(&mut self) {
        self.pinged = true;
        if self.outgoing.is_empty() {
            self.send(Arc::new(head(&ToRank::Ping, 0)));
            self.flush();
        }
    }

    /// Sends what the connection takes now.
    pub fn flush(&mut self) {
        while let Some(first) = self.outgoing.front() {
            match (&self.stream).write(&first[self.sent..]) {
                Ok(count) if count > 0 => {
                    if std::mem::take(&mut self.stalled) {
                        self.alive();
                    }
                    self.sent += count;
                    if self.outgoing.front().is_some_and(|first| self.sent == first.len()) {
                        self.outgoing.pop_front();
                        self.sent = 0;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stalled = true;
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => {
                    self.mute = true;
                    self.outgoing.clear();
                    return;
                }
            }
        }
        if matches!(self.stage, Stage::Draining) && !self.mute {
            self.mute = true;
            // An error means that the other side is gone, which reading will tell.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    /// Says why the connection is refused, then listens only for its end.
    pub fn refuse(&mut self, refusal: &Refusal, now: Instant) {
        match refusal {
            Refusal::ForeignProtocol(_) => self.send(Arc::new(foreign_answer(&self.greeting))),
            Refusal::Version { .. } => {
                let hello = Hello { version: PROTOCOL_VERSION, verdict: OTHER_VERSION, nonce: [0; 32] };
                self.send(Arc::new(hello.to_bytes().to_vec()));
            }
            Refusal::WrongSecret => self.send(Arc::new(answer(WRONG_SECRET, None).to_vec())),
            other => self.send(Arc::new(head(&ToRank::Refused(other.clone()), 0))),
        }
        self.stage = Stage::Draining;
        self.until = now + DRAIN;
        self.flush();
    }

    /// Reads what is there, one turn's worth.
    pub fn hear(&mut self, secret: &Secret, nonces: &mut Nonces, scratch: &mut [u8]) -> Heard {
        let mut frames = Vec::new();
        let mut turn = 0;
        while turn < TURN {
            let count = match (&self.stream).read(scratch) {
                Ok(0) => return Heard::Ended(frames, LossCause::Closed),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Heard::Ended(frames, LossCause::Broken(error.kind().to_string())),
            };
            turn += count;
            self.alive();
            let bytes = &scratch[..count];
            match self.stage {
                Stage::Draining => continue,
                Stage::Hello | Stage::Proof { .. } => {
                    self.greeting.extend_from_slice(bytes);
                    if let Err(refusal) = self.greet(secret, nonces) {
                        return Heard::Refused(refusal);
                    }
                }
                Stage::Admission | Stage::Seated { .. } => self.decoder.push(bytes),
            }
            if let Err(error) = self.decode(&mut frames) {
                return match self.stage {
                    Stage::Seated { .. } => Heard::Ended(frames, LossCause::Violation(error.to_string())),
                    _ => Heard::Refused(Refusal::Violation(error.to_string())),
                };
            }
            // A rank's limits change with its seat, so a frame that asks for one is looked at before more is read.
            if matches!(self.stage, Stage::Admission) && !frames.is_empty() {
                break;
            }
        }
        Heard::Frames(frames)
    }

    /// One whole frame at most while there is no seat; bytes that came with it wait until it was looked at.
    fn decode(&mut self, frames: &mut Vec<Frame>) -> Result<(), FrameError> {
        match self.stage {
            Stage::Admission => frames.extend(self.decoder.next()?),
            Stage::Seated { .. } => {
                while let Some(frame) = self.decoder.next()? {
                    frames.push(frame);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn greet(&mut self, secret: &Secret, nonces: &mut Nonces) -> Result<(), Refusal> {
        if matches!(self.stage, Stage::Hello) {
            if self.greeting.len() >= MAGIC.len() && !self.greeting.starts_with(MAGIC) {
                return Err(Refusal::ForeignProtocol(excerpt(&self.greeting)));
            }
            let Some((bytes, rest)) = self.greeting.split_first_chunk::<HELLO>() else { return Ok(()) };
            let Some(hello) = Hello::from_bytes(bytes) else {
                return Err(Refusal::ForeignProtocol(excerpt(&self.greeting)));
            };
            if hello.version != PROTOCOL_VERSION {
                return Err(Refusal::Version { rank: hello.version, coordinator: PROTOCOL_VERSION });
            }
            self.greeting = rest.to_vec();
            let nonce = nonces.next();
            self.stage = Stage::Proof { rank: hello.nonce, coordinator: nonce };
            let reply = Hello { version: PROTOCOL_VERSION, verdict: GO_ON, nonce };
            self.send(Arc::new(reply.to_bytes().to_vec()));
            self.flush();
        }
        if let Stage::Proof { rank, coordinator } = self.stage {
            let Some((proof, rest)) = self.greeting.split_first_chunk::<PROOF>() else { return Ok(()) };
            // The comparison of hashes takes the same time wherever they differ.
            if blake3::Hash::from_bytes(*proof) != secret.proof(Prover::Rank, &rank, &coordinator) {
                return Err(Refusal::WrongSecret);
            }
            self.decoder.push(rest);
            self.greeting = Vec::new();
            self.stage = Stage::Admission;
            let ours = secret.proof(Prover::Coordinator, &rank, &coordinator);
            self.send(Arc::new(answer(GO_ON, Some(&ours)).to_vec()));
            self.flush();
        }
        Ok(())
    }

    fn alive(&mut self) {
        self.silent = Duration::ZERO;
        self.pinged = false;
    }
}

/// What another protocol gets to read: a line, dressed for a browser if it looks like one.
fn foreign_answer(first: &[u8]) -> Vec<u8> {
    let line = format!(
        "This is a Fulmen coordinator: it speaks version {PROTOCOL_VERSION} of Fulmen's bootstrap protocol and nothing else.\n"
    );
    let methods: [&[u8]; 7] = [b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"DELE", b"CONN"];
    if !methods.iter().any(|method| first.starts_with(method)) {
        return line.into_bytes();
    }
    let len = line.len();
    format!("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{line}")
        .into_bytes()
}
