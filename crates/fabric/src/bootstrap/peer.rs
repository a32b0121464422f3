//! One connection as the coordinator sees it: its stage, its bytes in and out, its silence.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_trust::{Identity, Opening, Progress, Sealed, TrustError};

use super::PROTOCOL_VERSION;
use super::greeting::{CONTROL, GO_ON, Greeting, HELLO, Hello, OTHER_VERSION};
use super::message::{ADMISSION, LossCause, Refusal, SEATED, ToRank};
use super::wire::{Decoder, Frame, FrameError, Shared, head};

/// How long a refused connection may take to read its refusal. Closing at once could take the refusal back: bytes that
/// nobody read turn a close into a reset.
const DRAIN: Duration = Duration::from_secs(2);
/// The most bytes that are read from one connection before the others have their turn.
const TURN: usize = 1 << 20;

pub(super) struct Peer {
    channel: Channel,
    pub address: SocketAddr,
    pub stage: Stage,
    /// When a connection without a seat must have gone on, or gone.
    pub until: Instant,
    greeting: Greeting,
    decoder: Decoder,
    outgoing: VecDeque<Shared>,
    /// How much of the first of `outgoing` the seal has taken.
    sent: usize,
    /// The seal keeps bytes that the connection has not taken.
    unsent: bool,
    /// Nothing can be sent any more. What is still to be read decides how the connection ended.
    mute: bool,
    /// The connection took no more bytes. When it takes some again, the other side has read: a sign of life.
    stalled: bool,
    pub silent: Duration,
    pub pinged: bool,
}

/// What carries the bytes.
enum Channel {
    /// Before the seal, and where there is none.
    Plain(TcpStream),
    Opening(Opening),
    Sealed(Sealed),
}

#[derive(Clone, Copy)]
pub(super) enum Stage {
    Hello,
    Seal,
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
            channel: Channel::Plain(stream),
            address,
            stage: Stage::Hello,
            until,
            greeting: Greeting::default(),
            decoder: Decoder::new(ADMISSION),
            outgoing: VecDeque::new(),
            sent: 0,
            unsent: false,
            mute: false,
            stalled: false,
            silent: Duration::ZERO,
            pinged: false,
        })
    }

    /// The socket, to watch it.
    pub fn tcp(&self) -> &TcpStream {
        match &self.channel {
            Channel::Plain(stream) => stream,
            Channel::Opening(opening) => opening.tcp(),
            Channel::Sealed(sealed) => sealed.tcp(),
        }
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

    /// Whether there is something to hear of which the socket does not tell.
    pub fn has_more(&self) -> bool {
        match &self.channel {
            Channel::Sealed(sealed) => !matches!(self.stage, Stage::Draining) && sealed.has_plaintext(),
            Channel::Plain(_) | Channel::Opening(_) => false,
        }
    }

    pub fn wants_to_write(&self) -> bool {
        match &self.channel {
            Channel::Plain(_) => false,
            Channel::Opening(opening) => opening.wants_to_write(),
            Channel::Sealed(_) => !self.mute && (self.unsent || !self.outgoing.is_empty()),
        }
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
        if self.outgoing.is_empty() && !self.unsent {
            self.send(Arc::new(head(&ToRank::Ping, 0)));
            self.flush();
        }
    }

    /// Sends what the connection takes now.
    pub fn flush(&mut self) {
        let Channel::Sealed(sealed) = &self.channel else { return };
        if self.mute {
            return;
        }
        let before = sealed.sent();
        let flushed = push(sealed, &mut self.outgoing, &mut self.sent);
        if sealed.sent() != before && std::mem::take(&mut self.stalled) {
            (self.silent, self.pinged) = (Duration::ZERO, false);
        }
        match flushed {
            Ok(true) if matches!(self.stage, Stage::Draining) => {
                sealed.finish();
                self.mute = true;
            }
            Ok(all) => (self.unsent, self.stalled) = (!all, !all),
            Err(_) => {
                self.mute = true;
                self.outgoing.clear();
            }
        }
    }

    /// Says why the connection is refused, then listens only for its end.
    pub fn refuse(&mut self, refusal: &Refusal, now: Instant) {
        match (&self.channel, refusal) {
            (Channel::Plain(stream), Refusal::ForeignProtocol(_)) => {
                answer(stream, &foreign_answer(self.greeting.bytes()))
            }
            (Channel::Plain(stream), Refusal::Version { .. }) => answer(stream, &Hello::ours(OTHER_VERSION).to_bytes()),
            // What was wrong with the seal, its alert has said.
            (Channel::Plain(stream), _) => answer(stream, &[]),
            (Channel::Opening(_), _) => {}
            (Channel::Sealed(_), refusal) => self.send(Arc::new(head(&ToRank::Refused(refusal.clone()), 0))),
        }
        self.stage = Stage::Draining;
        self.until = now + DRAIN;
        self.flush();
    }

    /// Reads what is there, one turn's worth.
    pub fn hear(mut self, identity: &Identity, scratch: &mut [u8]) -> (Peer, Heard) {
        if let Channel::Plain(stream) = self.channel {
            match self.stage {
                Stage::Hello => match greet(&stream, &mut self.greeting) {
                    Ok(true) => {
                        self.stage = Stage::Seal;
                        self.channel = Channel::Opening(identity.begin_accept(stream, CONTROL));
                    }
                    Ok(false) => {
                        self.channel = Channel::Plain(stream);
                        return (self, Heard::Frames(Vec::new()));
                    }
                    Err(heard) => {
                        self.channel = Channel::Plain(stream);
                        return (self, heard);
                    }
                },
                _ => self.channel = Channel::Plain(stream),
            }
        }
        if let Channel::Opening(opening) = self.channel {
            match opening.advance() {
                Progress::Open(sealed) => {
                    self.stage = Stage::Admission;
                    self.channel = Channel::Sealed(sealed);
                }
                Progress::Waits(opening) => {
                    self.channel = Channel::Opening(opening);
                    return (self, Heard::Frames(Vec::new()));
                }
                Progress::Failed(error, stream) => {
                    self.channel = Channel::Plain(stream);
                    return (self, unsealed(&error));
                }
            }
        }
        let heard = match (&self.channel, self.stage) {
            (_, Stage::Draining) => listen_to_end(self.tcp(), scratch),
            _ => self.listen(scratch),
        };
        (self, heard)
    }

    fn listen(&mut self, scratch: &mut [u8]) -> Heard {
        let mut frames = Vec::new();
        let mut turn = 0;
        while turn < TURN {
            let Channel::Sealed(sealed) = &self.channel else { break };
            let count = match sealed.try_read(scratch) {
                Ok(0) => return Heard::Ended(frames, LossCause::Closed),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Heard::Ended(frames, cause(&error)),
            };
            turn += count;
            (self.silent, self.pinged) = (Duration::ZERO, false);
            self.decoder.push(&scratch[..count]);
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
            Stage::Seated { .. } => {
                while let Some(frame) = self.decoder.next()? {
                    frames.push(frame);
                }
            }
            _ => frames.extend(self.decoder.next()?),
        }
        Ok(())
    }
}

/// Hands to the seal what it takes, and to the system what that takes; true if nothing is left.
fn push(sealed: &Sealed, outgoing: &mut VecDeque<Shared>, sent: &mut usize) -> io::Result<bool> {
    while let Some(first) = outgoing.front() {
        match sealed.try_write(&first[*sent..]) {
            Ok(count) => *sent += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        if *sent == first.len() {
            outgoing.pop_front();
            *sent = 0;
        }
    }
    sealed.try_flush()
}

/// Hears a hello, and not a byte more; true once it was answered.
fn greet(mut stream: &TcpStream, greeting: &mut Greeting) -> Result<bool, Heard> {
    let ended = |cause| Heard::Ended(Vec::new(), cause);
    let mut bytes = [0; HELLO];
    loop {
        let missing = greeting.missing();
        let count = match stream.read(&mut bytes[..missing]) {
            Ok(0) => return Err(ended(LossCause::Closed)),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(ended(cause(&error))),
        };
        if greeting.push(&bytes[..count]).map_err(Heard::Refused)? {
            // A connection that has taken nothing yet has room for this.
            return match stream.write(&Hello::ours(GO_ON).to_bytes()) {
                Ok(HELLO) => Ok(true),
                _ => Err(ended(LossCause::Broken("it takes no bytes".into()))),
            };
        }
    }
}

/// Answers a connection that is refused in the plain. It has taken nothing yet, so that there is room.
fn answer(mut stream: &TcpStream, bytes: &[u8]) {
    // An error means that the other side is gone, which reading will tell.
    let _ = stream.write(bytes);
    let _ = stream.shutdown(Shutdown::Write);
}

/// Reads on, so that the other side reads what it was told.
fn listen_to_end(mut stream: &TcpStream, scratch: &mut [u8]) -> Heard {
    let mut turn = 0;
    while turn < TURN {
        match stream.read(scratch) {
            Ok(0) => return Heard::Ended(Vec::new(), LossCause::Closed),
            Ok(count) => turn += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Heard::Ended(Vec::new(), cause(&error)),
        }
    }
    Heard::Frames(Vec::new())
}

/// What becomes of a connection that could not be sealed.
fn unsealed(error: &TrustError) -> Heard {
    if error.is_stranger() {
        Heard::Refused(Refusal::WrongSecret)
    } else if error.is_broken() {
        Heard::Ended(Vec::new(), LossCause::Closed)
    } else {
        Heard::Refused(Refusal::Violation(error.to_string()))
    }
}

/// How a connection ended.
fn cause(error: &io::Error) -> LossCause {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => LossCause::Closed,
        _ if TrustError::behind(error).is_some() => LossCause::Violation(error.to_string()),
        kind => LossCause::Broken(kind.to_string()),
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
