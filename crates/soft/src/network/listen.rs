//! The side that is called. The network's thread accepts; a thread for each connection hears what it wants, and ends soon.
//!
//! Nobody is believed. Until a connection has said a whole, correct request (over a sealed one: which takes the authority), it
//! is *unproven*, has 10 s for that, and is one of a few. When there are too many of them, a newcomer is not turned away, since
//! it may be the one that matters: the address that has the most of them loses its oldest. So whoever floods from one address
//! drives itself out.

use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_reach::spawn_without_signals;
use fulmen_trust::Opening;
use fulmen_trust::Progress as Handshake;

use super::hello::{Answer, Preamble, Request, VERSION, Verdict, Wish};
use super::line::{Line, PROTOCOL, left, read_some};
use super::{Network, PeerEnd, Stream, dial, socket};
use crate::device::lock;

/// How long a connection has for its next request, and an unproven one for all that comes before its first.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection that is refused has to read why.
const FAREWELL: Duration = Duration::from_secs(1);
/// Connections that have not shown yet that a device is behind them.
pub(super) const MOST_UNPROVEN: usize = 128;
/// Connections of devices that are asking. Further ones are told to try again.
const MOST_ASKING: usize = 512;
/// Connections that the system keeps until they are accepted.
const BACKLOG: i32 = 1024;
/// Pause after the system had no descriptor or memory for a connection.
const SHORT_OF_MEANS: Duration = Duration::from_millis(20);
/// How often connections are looked after.
const TICK: Duration = Duration::from_secs(1);

pub(super) fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// The network's thread.
pub(super) fn run(network: &Arc<Network>) {
    let mut looked_after = Instant::now();
    loop {
        let tidy = network.tidy();
        let tick = (!network.watch.is_empty()).then_some(TICK);
        let woken = network.watch.sleep(tidy.into_iter().chain(tick).min());
        if network.stopped.load(Ordering::SeqCst) {
            return;
        }
        if woken.sockets {
            network.watch.sweep();
        }
        if woken.listener {
            accept(network);
        }
        if looked_after.elapsed() >= TICK {
            looked_after = Instant::now();
            network.watch.look_after();
        }
    }
}

fn accept(network: &Arc<Network>) {
    // Others have their turn even in a flood.
    for _ in 0..MOST_UNPROVEN {
        match network.listener.accept() {
            Ok((tcp, from)) => admit(network, tcp, from),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // It was gone before it was accepted.
            Err(error) if is_of_one(&error) => {}
            Err(error) => {
                tracing::warn!(address = %network.address, %error, "a connection of a peer cannot be accepted now");
                thread::sleep(SHORT_OF_MEANS);
                return;
            }
        }
    }
}

/// Whether an error is that of one connection, not of this process.
fn is_of_one(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    let gone = [Kind::ConnectionAborted, Kind::ConnectionReset, Kind::Interrupted, Kind::HostUnreachable];
    gone.contains(&error.kind())
        || matches!(error.kind(), Kind::NetworkUnreachable | Kind::NetworkDown | Kind::TimedOut)
}

fn admit(network: &Arc<Network>, tcp: TcpStream, from: SocketAddr) {
    let entered = socket::tune(&tcp).and_then(|()| network.crowd.enter(from.ip(), &tcp));
    let guest = match entered {
        Ok(guest) => guest,
        Err(error) => {
            tracing::debug!(%from, %error, "a connection was dropped");
            return;
        }
    };
    let served = network.clone();
    let started = spawn_without_signals("fulmen-soft-ask", move || {
        let guest = guest;
        if let Err(why) = served.serve(tcp, &guest) {
            tracing::debug!(%from, %why, "a connection came to nothing");
        }
    });
    if let Err(error) = started {
        tracing::warn!(%error, "no thread for a connection of a peer");
    }
}

impl Network {
    /// Hears what a connection wants, until it is data's or over.
    fn serve(&self, tcp: TcpStream, guest: &Guest) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        let theirs = dial::read_preamble(&tcp, until)?;
        let theirs = theirs.map_err(|said| io::Error::other(format!("it is another protocol: \"{said}\"")))?;
        let own = Preamble { version: VERSION, sealed: self.seal.is_some() };
        let mut line = Line::Plain(tcp);
        // The other side sees what does not fit, too.
        line.write_all(&own.to_bytes(), until)?;
        if theirs != own {
            let Preamble { version, sealed } = theirs;
            tracing::warn!(from = %guest.ip, version, sealed, "a device of another version, or one that seals and this one does not (or the reverse)");
            return farewell(line.tcp());
        }
        if let (Some(identity), Line::Plain(tcp)) = (&self.seal, &line) {
            let opening = identity.begin_accept(tcp.try_clone()?, PROTOCOL);
            line = Line::Sealed(Box::new(self.shake_hands(opening, guest, until)?));
        }
        let mut until = until;
        loop {
            let mut bytes = [0; Request::SIZE];
            line.read_exact(&mut bytes, until)?;
            let request = Request::from_bytes(&bytes).ok_or_else(|| io::Error::other("no device asks this"))?;
            let (room, now) = (guest.prove(), Instant::now());
            until = now + PATIENCE;
            let verdict = if room { self.judge(&request) } else { Verdict::Busy };
            let near = matches!(request.wish, Wish::Place) && request.host == self.host;
            let welcome = matches!(verdict, Verdict::Welcome { .. });
            let node = (near && welcome).then_some(self.node);
            let answer = Answer { verdict, host: self.host, device: self.address, node };
            match (request.wish, verdict) {
                (Wish::Data { from, number }, Verdict::Welcome { incarnation }) => {
                    line.write_all(&answer.to_bytes(), until)?;
                    // From here on it is the queue pairs'.
                    let stream = Stream::new(line, from.device, &self.watch)?;
                    self.admit(from, number, incarnation, stream);
                    return Ok(());
                }
                _ => line.write_all(&answer.to_bytes(), until)?,
            }
        }
    }

    fn judge(&self, request: &Request) -> Verdict {
        if u64::from(request.profile) != self.profile.code() {
            return Verdict::OtherProfile;
        }
        match request.wish {
            Wish::Place => Verdict::Welcome { incarnation: 0 },
            Wish::Ask { from, number } | Wish::Data { from, number } => {
                // Its address decides which side opens the connection: both have to be right about it.
                let data = matches!(request.wish, Wish::Data { .. });
                let own = PeerEnd { device: self.address, number };
                if from.named().dials(&own) != data {
                    return Verdict::NoSuchPair;
                }
                let door = self.door.get().and_then(Weak::upgrade);
                door.map_or(Verdict::NoSuchPair, |door| door.knock(&from, number))
            }
        }
    }

    fn shake_hands(&self, mut opening: Opening, guest: &Guest, until: Instant) -> io::Result<fulmen_trust::Sealed> {
        loop {
            opening = match opening.advance() {
                Handshake::Open(sealed) => return Ok(sealed),
                Handshake::Waits(opening) => opening,
                Handshake::Failed(error, tcp) => {
                    tracing::warn!(from = %guest.ip, %error, "a connection is refused");
                    farewell(&tcp)?;
                    return Err(error.into());
                }
            };
            socket::wait(opening.tcp(), !opening.wants_to_write(), left(until)?)?;
        }
    }
}

/// Lets the other side read what was said last: a socket that is closed while something unread is in it takes that back.
fn farewell(tcp: &TcpStream) -> io::Result<()> {
    tcp.shutdown(Shutdown::Write)?;
    let until = Instant::now() + FAREWELL;
    while read_some(tcp, &mut [0; 4096], until)? > 0 {}
    Ok(())
}

/// Who is being heard.
#[derive(Default, Clone)]
pub(super) struct Crowd(Arc<Mutex<Vec<Heard>>>);

struct Heard {
    id: u64,
    ip: IpAddr,
    /// To end it.
    tcp: TcpStream,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Unproven,
    Asking,
    /// It was ended, and its thread is about to see that.
    SentAway,
}

impl Crowd {
    /// Takes a newcomer in; if there are too many, another one goes.
    fn enter(&self, ip: IpAddr, tcp: &TcpStream) -> io::Result<Guest> {
        let tcp = tcp.try_clone()?;
        let mut heard = lock(&self.0);
        if count(&heard, State::SentAway) >= MOST_UNPROVEN {
            return Err(io::Error::other("too many connections at once"));
        }
        if count(&heard, State::Unproven) >= MOST_UNPROVEN
            && let Some(at) = of_the_most(&heard)
        {
            heard[at].send_away();
        }
        // They are in the order in which they came.
        let id = heard.last().map_or(0, |last| last.id + 1);
        heard.push(Heard { id, ip, tcp, state: State::Unproven });
        Ok(Guest { crowd: self.clone(), id, ip })
    }

    /// Ends all of them.
    pub(super) fn send_away(&self) {
        lock(&self.0).iter_mut().for_each(Heard::send_away);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

impl Heard {
    fn send_away(&mut self) {
        self.state = State::SentAway;
        let _ = self.tcp.shutdown(Shutdown::Both);
    }
}

fn count(heard: &[Heard], state: State) -> usize {
    heard.iter().filter(|one| one.state == state).count()
}

/// The oldest unproven one of the address that has the most of them.
fn of_the_most(heard: &[Heard]) -> Option<usize> {
    let unproven = || heard.iter().enumerate().filter(|(_, one)| one.state == State::Unproven);
    let of = |ip: IpAddr| unproven().filter(|(_, one)| one.ip == ip).count();
    let most = unproven().map(|(_, one)| of(one.ip)).max()?;
    unproven().find(|(_, one)| of(one.ip) == most).map(|(at, _)| at)
}

/// One that is being heard, as long as this lives.
struct Guest {
    crowd: Crowd,
    id: u64,
    ip: IpAddr,
}

impl Guest {
    /// It has shown that it is a device; false if there are too many of them.
    fn prove(&self) -> bool {
        let mut heard = lock(&self.crowd.0);
        let asking = count(&heard, State::Asking);
        let Some(own) = heard.iter_mut().find(|one| one.id == self.id) else { return false };
        if own.state == State::Unproven && asking < MOST_ASKING {
            own.state = State::Asking;
        }
        own.state == State::Asking
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        lock(&self.crowd.0).retain(|one| one.id != self.id);
    }
}
