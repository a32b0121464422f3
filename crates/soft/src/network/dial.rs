//! The side that opens connections: to ask, and for data.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::error::{Failure, Unreached};
use super::hello::{Answer, Preamble, Request, VERSION, Verdict, Wish};
use super::line::{Line, PROTOCOL, read_some};
use super::socket::{self, DialError};
use super::{End, Met, Network, PeerEnd, Place, Stream};

/// Pause before a queue pair is asked about again that cannot be connected to yet; twice as long each time,
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// up to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// How often a connection is opened anew that the other side closed before it said anything: it may have been too many.
const TRIES: u32 = 3;

impl Network {
    /// Where the device at `peer` is, by its own word.
    pub(super) fn ask_place(&self, peer: SocketAddr, until: Instant) -> Result<Place, Unreached> {
        match self.ask_whereabouts(peer, until)? {
            answer if answer.host != self.host => Ok(Place::There),
            Answer { node, .. } => node.map(Place::Here).ok_or(Unreached::Garbled(peer)),
        }
    }

    /// What the device that goes by `peer` says of where it is.
    pub(super) fn ask_whereabouts(&self, peer: SocketAddr, until: Instant) -> Result<Answer, Unreached> {
        let mut pause = Pause::until(until);
        let mut talk = self.call(peer, until)?;
        loop {
            let answer = talk.ask(self.request(Wish::Place), until)?;
            match answer.verdict {
                Verdict::Busy if pause.take() => {}
                Verdict::Busy => return Err(Unreached::Busy(peer)),
                Verdict::OtherProfile => return Err(Unreached::OtherProfile(peer)),
                Verdict::Welcome { .. } => return Ok(answer),
                _ => return Err(Unreached::Garbled(peer)),
            }
        }
    }

    /// See [`Network::meet`].
    pub(super) fn dial_for(&self, own: &End, peer: &PeerEnd, until: Instant) -> Result<Met, Failure> {
        let (device, number) = (peer.device, peer.number);
        let dials = own.named().dials(peer);
        let wish = match dials {
            true => Wish::Data { from: *own, number },
            false => Wish::Ask { from: *own, number },
        };
        let mut pause = Pause::until(until);
        let mut talk = self.call(device, until)?;
        let mut last = None;
        loop {
            // The deadline may pass in the middle of asking again.
            let verdict = match (talk.ask(self.request(wish), until), last) {
                (Err(Unreached::Silent { .. }), Some(last)) => last,
                (answer, _) => answer?.verdict,
            };
            last = Some(verdict);
            match verdict {
                Verdict::Welcome { incarnation } => {
                    let peer = End { device, number, incarnation, kind: own.kind };
                    let stream = dials.then(|| Stream::new(talk.line, device, &self.watch)).transpose();
                    let stream = stream.map_err(|cause| Unreached::Socket { peer: device, cause })?;
                    return Ok(Met { peer, stream });
                }
                Verdict::OtherProfile => return Err(Unreached::OtherProfile(device).into()),
                Verdict::NoSuchPair => return Err(Unreached::NoSuchPair { peer: device, number }.into()),
                Verdict::OtherKind => return Err(Unreached::OtherKind { peer: device, number }.into()),
                // It has to be reset, which may be on its way.
                Verdict::InError | Verdict::Taken | Verdict::Busy if pause.take() => {}
                Verdict::InError => return Err(Failure::Stale("is in the error state")),
                Verdict::Taken => return Err(Failure::Stale("is connected to another one")),
                Verdict::Busy => return Err(Unreached::Busy(device).into()),
            }
        }
    }

    fn request(&self, wish: Wish) -> Request {
        Request { profile: self.profile.code() as u8, host: self.host, device: self.address, wish }
    }

    /// Opens a connection to the device at `peer`.
    fn call(&self, peer: SocketAddr, until: Instant) -> Result<Talk, Unreached> {
        let mut pause = Pause::until(until);
        for _ in 1..TRIES {
            match self.call_once(peer, until) {
                Err(Unreached::Closed { .. }) if pause.take() => {}
                called => return called,
            }
        }
        self.call_once(peer, until)
    }

    fn call_once(&self, peer: SocketAddr, until: Instant) -> Result<Talk, Unreached> {
        let began = Instant::now();
        let to = self.scoped(peer);
        let tcp = socket::dial(to, self.source(to), until).map_err(|error| match error {
            DialError::Refused => Unreached::Refused(peer),
            DialError::Route(cause) => Unreached::NoRoute { peer, cause },
            DialError::TimedOut => Unreached::TimedOut { peer, waited: began.elapsed() },
            DialError::Socket(cause) => Unreached::Socket { peer, cause },
        })?;
        let talk = |line| Talk { line, peer, began };
        let talking = talk(Line::Plain(tcp));
        let own = Preamble { version: VERSION, sealed: self.seal.is_some() };
        let broken = |cause| talking.broken(cause);
        talking.line.write_all(&own.to_bytes(), until).map_err(broken)?;
        let theirs = read_preamble(talking.line.tcp(), until).map_err(broken)?;
        let theirs = theirs.map_err(|said| Unreached::NotFulmen { peer, said })?;
        if theirs.version != VERSION {
            return Err(Unreached::Version { peer, theirs: theirs.version });
        }
        match (&self.seal, theirs.sealed) {
            (None, true) => Err(Unreached::SealedThere(peer)),
            (Some(_), false) => Err(Unreached::PlainThere(peer)),
            (None, false) => Ok(talking),
            (Some(identity), true) => {
                let Line::Plain(tcp) = talking.line else { unreachable!("made above") };
                match identity.connect(tcp, PROTOCOL, until) {
                    Ok(sealed) => Ok(talk(Line::Sealed(Box::new(sealed)))),
                    Err(cause) => Err(Unreached::Trust { peer, cause: cause.to_string() }),
                }
            }
        }
    }
}

/// Reads the other side's first bytes: a preamble, or what it said instead, fit for one line of an error.
pub(super) fn read_preamble(tcp: &TcpStream, until: Instant) -> io::Result<Result<Preamble, String>> {
    let mut bytes = [0; Preamble::SIZE];
    let mut filled = 0;
    while filled < bytes.len() {
        let read = read_some(tcp, &mut bytes[filled..], until)?;
        filled += read;
        // Another protocol may say less than a preamble and wait, so its first bytes decide.
        if !Preamble::starts(&bytes[..filled]) {
            return Ok(Err(bytes[..filled].escape_ascii().to_string()));
        }
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection"));
        }
    }
    Ok(Preamble::from_bytes(&bytes).ok_or_else(|| bytes.escape_ascii().to_string()))
}

/// A conversation with a device.
struct Talk {
    line: Line,
    peer: SocketAddr,
    began: Instant,
}

impl Talk {
    fn ask(&mut self, request: Request, until: Instant) -> Result<Answer, Unreached> {
        let mut bytes = [0; Answer::SIZE];
        let asked = self.line.write_all(&request.to_bytes(), until);
        asked.and_then(|()| self.line.read_exact(&mut bytes, until)).map_err(|cause| self.broken(cause))?;
        let answer = Answer::from_bytes(&bytes).ok_or(Unreached::Garbled(self.peer))?;
        if answer.device != self.peer {
            return Err(Unreached::Alias { peer: self.peer, named: answer.device });
        }
        Ok(answer)
    }

    fn broken(&self, cause: io::Error) -> Unreached {
        let peer = self.peer;
        match cause.kind() {
            io::ErrorKind::TimedOut => Unreached::Silent { peer, waited: self.began.elapsed() },
            // What the seal says about the other side comes with the first thing that is read.
            io::ErrorKind::InvalidData => Unreached::Trust { peer, cause: cause.to_string() },
            _ => Unreached::Closed { peer, cause },
        }
    }
}

/// Pauses that grow, until a deadline.
struct Pause {
    next: Duration,
    until: Instant,
}

impl Pause {
    fn until(until: Instant) -> Pause {
        Pause { next: FIRST_PAUSE, until }
    }

    /// Waits a little; false if there is no time left.
    fn take(&mut self) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        thread::sleep(self.next.min(left));
        self.next = (self.next * 2).min(LONGEST_PAUSE);
        true
    }
}
