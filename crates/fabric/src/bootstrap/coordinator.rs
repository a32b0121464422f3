//! The coordinator: one thread that serves all connections of one world.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::message::{Failure, LossCause, LostRank, Refusal, ToCoordinator};
use super::peer::{Heard, Peer, Stage};
use super::secret::{Nonces, Secret, SecretError, random};
use super::wire::Frame;
use super::world::{Violation, World};
use super::{GREETING_TIMEOUT, Heartbeat, MAX_RANKS};

/// How long the coordinator accepts nothing after the system refused it a connection, for want of descriptors mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The most connections that are accepted before those that are there have their turn.
const ACCEPT_TURN: usize = 64;
/// The most connections without a seat, beyond one for each rank.
const SPARE_CONNECTIONS: usize = 16;

/// A coordinator that has its address and does not serve yet. Ranks that come meanwhile wait.
#[derive(Debug)]
pub struct Coordinator {
    listener: TcpListener,
    address: SocketAddr,
    size: u32,
    generation: u64,
    secret: Secret,
    nonces: Nonces,
    options: Options,
}

/// Told about everything that happens in a coordinator's world.
pub type OnEvent = Arc<dyn Fn(&Event) + Send + Sync>;

/// How a coordinator serves.
#[derive(Clone)]
pub struct Options {
    /// How long a connection may take to greet, prove itself and ask for its seat; [`GREETING_TIMEOUT`] by default.
    pub greeting: Duration,
    /// How connections that stopped without hanging up are found.
    pub heartbeat: Heartbeat,
    /// Called on the coordinator's thread: it serves nobody until the call returns.
    pub on_event: Option<OnEvent>,
}

/// What happens in a coordinator's world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A rank took its seat.
    Joined {
        /// Its rank.
        rank: u32,
        /// Its process id.
        pid: u32,
    },
    /// All seats are taken.
    Complete,
    /// A connection was refused; the others are served on.
    Refused {
        /// Where it came from.
        from: SocketAddr,
        /// Why.
        refusal: Refusal,
    },
    /// A rank's connection ended without a goodbye.
    Lost(LostRank),
    /// A rank said goodbye.
    Left {
        /// Its rank.
        rank: u32,
    },
    /// The world can finish no further round.
    Failed(Failure),
}

/// Why a coordinator could not take its address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The world's size is impossible.
    #[error("a world of {0} ranks is impossible: choose 1 to {max}", max = MAX_RANKS)]
    Size(u32),
    /// The address is not on this host.
    #[error("{0} is not a loopback address: a coordinator serves one host, use 127.0.0.1 or [::1]")]
    NotLoopback(SocketAddr),
    /// Another process has the port.
    #[error("port {port} of {ip} is in use: choose another one, or 0 for any free port", port = .0.port(), ip = .0.ip())]
    PortInUse(SocketAddr),
    /// The system refuses the port to this user.
    #[error("port {port} of {ip} is not allowed to this user: choose one above 1023, or 0 for any free port", port = .0.port(), ip = .0.ip())]
    NotAllowed(SocketAddr),
    /// The heartbeat's times are impossible.
    #[error(
        "a heartbeat every {every:?} that is lost after {silence:?} is impossible: silence must be longer, and the beat at least 1 ms"
    )]
    Heartbeat {
        /// How often.
        every: Duration,
        /// How long a silence.
        silence: Duration,
    },
    /// No randomness.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Anything else.
    #[error("cannot listen on {address}: {cause}")]
    System {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        cause: String,
    },
}

/// Why a coordinator could not begin to serve.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the coordinator's thread ({0}): check the limits on processes and open files")]
pub struct ServeError(#[from] io::Error);

impl Coordinator {
    /// Takes an address for a world of `size` ranks. Port 0 takes any free port; [`Coordinator::local_addr`] tells which.
    pub fn bind(address: SocketAddr, size: u32, secret: Secret, options: Options) -> Result<Coordinator, BindError> {
        if !(1..=MAX_RANKS).contains(&size) {
            return Err(BindError::Size(size));
        }
        if !address.ip().is_loopback() {
            return Err(BindError::NotLoopback(address));
        }
        let Heartbeat { every, silence } = options.heartbeat;
        if every < Duration::from_millis(1) || silence <= every {
            return Err(BindError::Heartbeat { every, silence });
        }
        let generation = u64::from_le_bytes(random()?);
        let nonces = Nonces::new()?;
        let system = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => BindError::PortInUse(address),
            io::ErrorKind::PermissionDenied => BindError::NotAllowed(address),
            _ => BindError::System { address, cause: error.to_string() },
        };
        let listener = TcpListener::bind(address).map_err(system)?;
        listener.set_nonblocking(true).map_err(system)?;
        let address = listener.local_addr().map_err(system)?;
        Ok(Coordinator { listener, address, size, generation, secret, nonces, options })
    }

    /// Where ranks find it.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The generation that it chose for its world.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Begins to serve, on a thread of its own, until the result is dropped.
    pub fn serve(self) -> Result<Serving, ServeError> {
        let (stop, stopped) = UnixStream::pair()?;
        let address = self.address;
        let generation = self.generation;
        let server = Server {
            world: World::new(self.size, self.generation),
            listener: self.listener,
            secret: self.secret,
            nonces: self.nonces,
            options: self.options,
            peers: BTreeMap::new(),
            next_id: 0,
            by_rank: vec![None; self.size as usize],
            accept_after: None,
        };
        let thread = thread::Builder::new().name("fulmen-coord".into()).spawn(move || server.run(&stopped))?;
        Ok(Serving { address, generation, stop, thread: Some(thread) })
    }
}

/// A coordinator at work. Dropping it closes all connections: ranks that still need it are told that it was lost.
#[derive(Debug)]
pub struct Serving {
    address: SocketAddr,
    generation: u64,
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Where ranks find it.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The generation that it chose for its world.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // The thread looks at its end of the pair in every turn and waits for nothing else, save an event's callback.
        let _ = self.stop.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

struct Server {
    world: World,
    listener: TcpListener,
    secret: Secret,
    nonces: Nonces,
    options: Options,
    /// By number in order of arrival, so that the first without a seat is the oldest.
    peers: BTreeMap<u64, Peer>,
    next_id: u64,
    by_rank: Vec<Option<u64>>,
    accept_after: Option<Instant>,
}

impl Server {
    fn run(mut self, stopped: &UnixStream) {
        let mut scratch = vec![0; 64 << 10];
        let mut last = Instant::now();
        loop {
            let Some((accept, ready)) = self.wait(stopped) else { return };
            let now = Instant::now();
            if accept {
                self.accept(now);
            }
            for id in ready {
                self.serve_peer(id, now, &mut scratch);
                self.deliver();
            }
            self.look_at_clock(now, now - last);
            self.deliver();
            last = now;
        }
    }

    /// Waits for something to do; `None` is the end.
    fn wait(&mut self, stopped: &UnixStream) -> Option<(bool, Vec<u64>)> {
        let now = Instant::now();
        let mut timeout = self.options.heartbeat.every;
        let unseated = self.peers.values().filter(|peer| peer.rank().is_none()).map(|peer| peer.until);
        for until in unseated.chain(self.accept_after) {
            timeout = timeout.min(until.saturating_duration_since(now));
        }
        // Rounded up, so that a time that has almost come does not turn the wait into a spin.
        let timeout = timeout + Duration::from_millis(1);
        let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };

        let listen = if self.accept_after.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![PollFd::new(stopped, PollFlags::IN), PollFd::new(&self.listener, listen)];
        for peer in self.peers.values() {
            let write = if peer.wants_to_write() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(&peer.stream, PollFlags::IN | write));
        }
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) => {}
            Err(Errno::INTR) => return Some((false, Vec::new())),
            Err(error) => {
                tracing::error!(%error, "the coordinator cannot wait for its connections and ends");
                return None;
            }
        }
        if !fds[0].revents().is_empty() {
            return None;
        }
        let accept = !fds[1].revents().is_empty();
        let ready = fds[2..].iter().zip(self.peers.keys()).filter(|(fd, _)| !fd.revents().is_empty());
        Some((accept, ready.map(|(_, id)| *id).collect()))
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPT_TURN {
            match self.listener.accept() {
                Ok((stream, address)) => {
                    self.make_room();
                    match Peer::new(stream, address, now + self.options.greeting) {
                        Ok(peer) => {
                            self.peers.insert(self.next_id, peer);
                            self.next_id += 1;
                        }
                        Err(error) => tracing::debug!(%address, %error, "a connection ended before it began"),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                Err(error) => {
                    tracing::warn!(%error, "the coordinator cannot accept connections for a moment");
                    self.accept_after = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// The oldest connection without a seat makes way: a rank takes its seat in moments, so it is the least likely to be one.
    fn make_room(&mut self) {
        let unseated = self.peers.iter().filter(|(_, peer)| peer.rank().is_none());
        let (count, oldest) = unseated.fold((0, None), |(count, oldest), (id, _)| (count + 1, oldest.or(Some(*id))));
        if count >= self.by_rank.len() + SPARE_CONNECTIONS
            && let Some(id) = oldest
        {
            self.give_up_on(id);
        }
    }

    fn give_up_on(&mut self, id: u64) {
        if let Some(peer) = self.peers.remove(&id)
            && !matches!(peer.stage, Stage::Draining)
        {
            self.tell(Event::Refused { from: peer.address, refusal: Refusal::TooSlow });
        }
    }

    fn serve_peer(&mut self, id: u64, now: Instant, scratch: &mut [u8]) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.flush();
        match peer.hear(&self.secret, &mut self.nonces, scratch) {
            Heard::Frames(frames) => {
                self.act_on(id, frames, now);
            }
            Heard::Refused(refusal) => self.refuse(id, refusal, now),
            Heard::Ended(frames, cause) => {
                // A goodbye among the frames makes the end a good one.
                if self.act_on(id, frames, now) {
                    self.end(id, cause);
                }
            }
        }
    }

    /// Acts on what a peer said; `false` if it is gone or refused afterwards.
    fn act_on(&mut self, id: u64, frames: Vec<Frame>, now: Instant) -> bool {
        for frame in frames {
            let Some(peer) = self.peers.get(&id) else { return false };
            let message = frame.message::<ToCoordinator>();
            let Some(rank) = peer.rank() else {
                match message {
                    Ok(ToCoordinator::Join { rank, size, pid }) => self.join(id, rank, size, pid, now),
                    Ok(_) => self.refuse(id, Refusal::Violation("it did not ask for a seat".into()), now),
                    Err(error) => self.refuse(id, Refusal::Violation(error.to_string()), now),
                }
                continue;
            };
            let done = match message {
                Ok(ToCoordinator::Contribute { number, round }) => {
                    self.world.contribute(rank, number, round, frame.body)
                }
                Ok(ToCoordinator::GiveUp { number }) => self.world.give_up(rank, number),
                Ok(ToCoordinator::Pong) => Ok(()),
                Ok(ToCoordinator::Goodbye) => {
                    self.world.leave(rank);
                    self.by_rank[rank as usize] = None;
                    self.peers.remove(&id);
                    return false;
                }
                Ok(ToCoordinator::Join { .. }) => Err(Violation("asked for a second seat")),
                Err(_) => Err(Violation("sent a message that cannot be read")),
            };
            if let Err(Violation(what)) = done {
                self.end(id, LossCause::Violation(what.into()));
                return false;
            }
        }
        self.peers.contains_key(&id)
    }

    fn join(&mut self, id: u64, rank: u32, size: u32, pid: u32, now: Instant) {
        let silence_ms = self.options.heartbeat.silence.as_millis() as u64;
        match self.world.join(rank, size, pid, silence_ms) {
            Ok(()) => {
                self.by_rank[rank as usize] = Some(id);
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.seat(rank);
                }
            }
            Err(refusal) => self.refuse(id, refusal, now),
        }
    }

    fn refuse(&mut self, id: u64, refusal: Refusal, now: Instant) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.refuse(&refusal, now);
            let from = peer.address;
            self.tell(Event::Refused { from, refusal });
        }
    }

    fn end(&mut self, id: u64, cause: LossCause) {
        if let Some(peer) = self.peers.remove(&id)
            && let Some(rank) = peer.rank()
        {
            self.by_rank[rank as usize] = None;
            self.world.lose(rank, cause);
        }
    }

    fn look_at_clock(&mut self, now: Instant, step: Duration) {
        if self.accept_after.is_some_and(|after| after <= now) {
            self.accept_after = None;
        }
        let Heartbeat { every, silence } = self.options.heartbeat;
        // Time in which this process did not run is nobody's silence.
        let step = step.min(every);
        let (mut late, mut silent) = (Vec::new(), Vec::new());
        for (id, peer) in &mut self.peers {
            if peer.rank().is_none() {
                if peer.until <= now {
                    late.push(*id);
                }
                continue;
            }
            peer.silent += step;
            if peer.silent >= silence {
                silent.push((*id, peer.silent.as_millis() as u64));
            } else if peer.silent >= every && !peer.pinged {
                peer.ping();
            }
        }
        for id in late {
            self.give_up_on(id);
        }
        for (id, ms) in silent {
            self.end(id, LossCause::Silent(ms));
        }
    }

    /// Hands out what the world wants to say.
    fn deliver(&mut self) {
        let mut touched = Vec::new();
        for (rank, bytes) in std::mem::take(&mut self.world.outbox) {
            if let Some(id) = self.by_rank[rank as usize]
                && let Some(peer) = self.peers.get_mut(&id)
            {
                peer.send(bytes);
                touched.push(id);
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for id in touched {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.flush();
            }
        }
        for event in std::mem::take(&mut self.world.events) {
            self.tell(event);
        }
    }

    fn tell(&self, event: Event) {
        match &event {
            Event::Refused { from, refusal } => tracing::warn!(%from, %refusal, "the coordinator refused a connection"),
            Event::Lost(lost) => tracing::warn!(%lost, "a rank was lost"),
            Event::Failed(failure) => tracing::warn!(%failure, "the world failed"),
            other => tracing::debug!(event = ?other, "the coordinator's world changed"),
        }
        if let Some(on_event) = &self.options.on_event {
            on_event(&event);
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options { greeting: GREETING_TIMEOUT, heartbeat: Heartbeat::default(), on_event: None }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = self.on_event.is_some();
        f.debug_struct("Options")
            .field("greeting", &self.greeting)
            .field("heartbeat", &self.heartbeat)
            .field("on_event", &told)
            .finish()
    }
}
