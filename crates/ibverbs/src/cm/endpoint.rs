//! One end of a connection, or of what may become one: what it knows, and what its program asked for.
//!
//! What the other end says is in `progress.rs`; both lock the same state. Where two endpoints are locked at once, the
//! newcomer is locked before who listens.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::channel::{Channel, Raised};
use super::ffi::*;
use super::frame::{Frame, Kind};
use super::port::{self, PortSpace};
use super::service::Service;

/// How long an answer may take: what InfiniBand's retries come to. A program that is stopped for longer is unreachable.
pub(super) const ANSWER: Duration = Duration::from_secs(60);
/// How long one that connected may take to say what it wants. A library says it at once.
pub(super) const ARRIVAL: Duration = Duration::from_secs(10);
/// When to try again where too many connect at once.
pub(super) const RETRY: Duration = Duration::from_millis(5);
/// How long it is tried to connect where nobody listens. Asking takes milliseconds on a fabric and microseconds here, and
/// there are programs that listen again a moment after they were asked to.
pub(super) const GRACE: Duration = Duration::from_secs(1);
/// How long a connection that ended is remembered. Nothing is under way here that would have to run out.
pub(super) const TIMEWAIT: Duration = Duration::from_secs(1);
/// Requests to connect that wait where the program sets no limit.
const BACKLOG: u32 = 1024;

/// Why a request is refused, in InfiniBand's numbers: the other end did not answer, or went away.
pub(super) const REJECT_TIMEOUT: i32 = 4;
/// Nobody listens there.
pub(super) const REJECT_NO_SERVICE: i32 = 8;
/// The program said no.
pub(super) const REJECT_CONSUMER: i32 = 28;
/// The program said that it does not like the options of enhanced connection establishment.
pub(super) const REJECT_OPTIONS: i32 = 35;
/// Status of an answer about datagrams: nobody takes them there.
pub(super) const DATAGRAM_UNSUPPORTED: i32 = 1;
/// The program said no.
pub(super) const DATAGRAM_REJECT: i32 = 2;

/// How far an endpoint has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Listening,
    /// It asked.
    Connecting,
    /// It asked and was accepted; its queue pair is not ready yet.
    Replied,
    /// It connected, but has not said what it wants.
    Arriving,
    /// It was asked.
    Requested,
    /// It was asked and accepted; the other queue pair is not ready yet.
    Accepted,
    Established,
    Disconnecting,
    /// It was connected, or would have been.
    Closed,
}

/// One end.
#[derive(Debug)]
pub(super) struct Endpoint {
    state: Mutex<State>,
    /// Events that the program was given, and those that it gave back.
    tally: Mutex<(u64, u64)>,
    acknowledged: Condvar,
    pub(super) space: PortSpace,
    /// Who listens, of an endpoint that came in.
    pub(super) listener: Option<Weak<Endpoint>>,
}

/// What changes.
#[derive(Debug)]
pub(super) struct State {
    /// Where events go; none once the program has destroyed the endpoint.
    pub(super) channel: Option<Arc<Channel>>,
    /// The address of the program's identifier, once there is one.
    pub(super) id: usize,
    pub(super) phase: Phase,
    /// Its number at the thread that waits for it.
    pub(super) watched: Option<u64>,
    pub(super) socket: Option<OwnedFd>,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    /// What the other end said last of itself.
    pub(super) theirs: Option<Box<Frame>>,
    /// What is asked, until it could be sent.
    pub(super) unsent: Option<Box<Frame>>,
    /// When it is no more tried to connect where nobody listens.
    pub(super) give_up: Option<Instant>,
    /// When something must have happened.
    pub(super) deadline: Option<Instant>,
    /// The first packet's number of its own queue pair.
    pub(super) psn: u32,
    /// What the queue pair grants and takes of READs and atomics, as far as that is agreed.
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    /// Requests that may wait at who listens, and those that do.
    backlog: u32,
    pub(super) waiting: u32,
    pub(super) reuse_address: bool,
}

impl Endpoint {
    pub(super) fn new(space: PortSpace, channel: Option<Arc<Channel>>) -> Arc<Endpoint> {
        Arc::new(Endpoint::with(space, channel, Phase::Idle, None))
    }

    /// One that came in over this socket.
    pub(super) fn arriving(listener: &Arc<Endpoint>, channel: Arc<Channel>, socket: OwnedFd) -> Arc<Endpoint> {
        let endpoint = Endpoint::with(listener.space, Some(channel), Phase::Arriving, Some(Arc::downgrade(listener)));
        endpoint.lock().socket = Some(socket);
        Arc::new(endpoint)
    }

    fn with(
        space: PortSpace,
        channel: Option<Arc<Channel>>,
        phase: Phase,
        listener: Option<Weak<Endpoint>>,
    ) -> Endpoint {
        let state = State {
            channel,
            id: 0,
            phase,
            watched: None,
            socket: None,
            local: None,
            peer: None,
            theirs: None,
            unsent: None,
            give_up: None,
            deadline: None,
            psn: random() & super::frame::MASK_24,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            backlog: BACKLOG,
            waiting: 0,
            reuse_address: false,
        };
        Endpoint { state: Mutex::new(state), tally: Mutex::default(), acknowledged: Condvar::new(), space, listener }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a local address, and some port if it names none.
    ///
    /// # Errors
    /// `INVAL` if it has one, `ADDRINUSE`.
    pub(super) fn bind(&self, mut address: SocketAddr) -> Result<(), Errno> {
        let mut state = self.lock();
        if state.phase != Phase::Idle {
            return Err(Errno::INVAL);
        }
        if address.port() == 0 {
            let (socket, port) = port::bind_any(self.space, random())?;
            address.set_port(port);
            state.socket = Some(socket);
        } else if !state.reuse_address {
            state.socket = Some(port::bind(self.space, address.port())?);
        }
        // A port that may be shared is taken by the one that listens.
        state.local = Some(address);
        state.phase = Phase::Bound;
        Ok(())
    }

    /// Lets others connect.
    ///
    /// # Errors
    /// `INVAL` if it is connected or has a peer, `ADDRINUSE` if a shared port has a listener.
    pub(super) fn listen(self: &Arc<Self>, backlog: i32) -> Result<(), Errno> {
        let mut state = self.lock();
        let Some(local) = state.local.filter(|_| state.phase == Phase::Bound) else { return Err(Errno::INVAL) };
        let socket = match state.socket.take() {
            Some(socket) => socket,
            None => port::bind(self.space, local.port())?,
        };
        port::listen(&socket)?;
        state.socket = Some(socket);
        state.backlog = u32::try_from(backlog).ok().filter(|wish| (1..BACKLOG).contains(wish)).unwrap_or(BACKLOG);
        state.phase = Phase::Listening;
        Service::get()?.watch(self, &mut state)
    }

    /// Asks the peer. The answer is an event, and so is that there is none.
    ///
    /// # Errors
    /// Whatever the system says, except that nobody listens.
    pub(super) fn connect(self: &Arc<Self>, frame: Frame) -> Result<(), Errno> {
        let mut state = self.lock();
        if state.phase != Phase::RouteResolved {
            return Err(Errno::INVAL);
        }
        if state.socket.is_none() {
            state.socket = Some(port::nameless()?);
        }
        state.phase = Phase::Connecting;
        state.unsent = Some(Box::new(frame));
        state.give_up = Some(Instant::now() + GRACE);
        let asked = self.ask(&mut state);
        if asked.is_err() {
            state.phase = Phase::RouteResolved;
            state.unsent = None;
        }
        asked
    }

    /// Connects and sends what is unsent, or sees to it that this is tried again.
    pub(super) fn ask(self: &Arc<Self>, state: &mut State) -> Result<(), Errno> {
        let service = Service::get()?;
        let (Some(socket), Some(peer), Some(frame)) = (&state.socket, state.peer, &state.unsent) else {
            return Err(Errno::INVAL);
        };
        match port::connect(socket, self.space, peer.port()).and_then(|()| port::send(socket, frame)) {
            Ok(()) => {
                state.unsent = None;
                service.watch(self, state)?;
                service.set_deadline(state, Some(Instant::now() + ANSWER));
            }
            Err(error) if error == Errno::AGAIN || error == Errno::CONNREFUSED && still_patient(state) => {
                service.watch(self, state)?;
                service.set_deadline(state, Some(Instant::now() + RETRY));
            }
            // Who accepted and went away at once has refused, too.
            Err(Errno::CONNREFUSED | Errno::PIPE | Errno::CONNRESET) => self.refused(state, REJECT_NO_SERVICE),
            Err(Errno::PERM) => {
                tracing::warn!(%peer, "a process of another user has this port: it is no peer");
                self.refused(state, REJECT_NO_SERVICE);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Nobody listens, or the other end went away before it answered.
    pub(super) fn refused(self: &Arc<Self>, state: &mut State, reason: i32) {
        state.unsent = None;
        self.close(state);
        if !self.space.is_datagram() {
            self.raise(state, RDMA_CM_EVENT_REJECTED, reason, None);
        } else if reason == REJECT_NO_SERVICE {
            self.raise(state, RDMA_CM_EVENT_UNREACHABLE, DATAGRAM_UNSUPPORTED, None);
        } else {
            self.raise(state, RDMA_CM_EVENT_UNREACHABLE, DATAGRAM_REJECT, None);
        }
    }

    /// Accepts a request, for connections: until the other end is ready, nothing is established.
    ///
    /// # Errors
    /// `INVAL` if there is no request, `CONNRESET` if the other end has gone.
    pub(super) fn accept(&self, frame: &Frame) -> Result<(), Errno> {
        let mut state = self.lock();
        let Some(socket) = state.socket.as_ref().filter(|_| state.phase == Phase::Requested) else {
            return Err(if state.phase == Phase::Closed { Errno::CONNRESET } else { Errno::INVAL });
        };
        port::send(socket, frame).map_err(gone)?;
        if self.space.is_datagram() {
            state.phase = Phase::Established;
            Service::get()?.set_deadline(&mut state, None);
        } else {
            state.phase = Phase::Accepted;
            Service::get()?.set_deadline(&mut state, Some(Instant::now() + ANSWER));
        }
        Ok(())
    }

    /// Says no to a request.
    ///
    /// # Errors
    /// `INVAL` if there is none.
    pub(super) fn reject(&self, reason: i32, private: Vec<u8>) -> Result<(), Errno> {
        let mut state = self.lock();
        let Some(socket) = state.socket.as_ref().filter(|_| matches!(state.phase, Phase::Requested | Phase::Replied))
        else {
            // It withdrew its request.
            return if state.phase == Phase::Closed { Ok(()) } else { Err(Errno::INVAL) };
        };
        let mut frame = Frame::new(if self.space.is_datagram() { Kind::DatagramReply } else { Kind::Reject });
        frame.reason = reason.unsigned_abs();
        frame.private = private;
        // If nobody is there to hear it, that is as good.
        let _ = port::send(socket, &frame);
        self.close(&mut state);
        Ok(())
    }

    /// Tells the other end that the queue pair is ready.
    ///
    /// # Errors
    /// `INVAL` if it was not accepted, `CONNRESET` if the other end has gone.
    pub(super) fn ready(&self) -> Result<(), Errno> {
        let mut state = self.lock();
        let Some(socket) = state.socket.as_ref().filter(|_| state.phase == Phase::Replied) else {
            return Err(if state.phase == Phase::Closed { Errno::CONNRESET } else { Errno::INVAL });
        };
        port::send(socket, &Frame::new(Kind::Ready)).map_err(gone)?;
        state.phase = Phase::Established;
        Ok(())
    }

    /// A message arrived at the queue pair: the other end is ready, whatever became of its word.
    pub(super) fn establish_early(self: &Arc<Self>) -> Result<(), Errno> {
        let mut state = self.lock();
        match state.phase {
            Phase::Accepted => {
                state.phase = Phase::Established;
                Service::get()?.set_deadline(&mut state, None);
                self.raise(&mut state, RDMA_CM_EVENT_ESTABLISHED, 0, None);
                Ok(())
            }
            Phase::Established => Err(Errno::ISCONN),
            _ => Err(Errno::INVAL),
        }
    }

    /// Ends a connection.
    ///
    /// # Errors
    /// `INVAL` if it never came to one.
    pub(super) fn disconnect(self: &Arc<Self>) -> Result<(), Errno> {
        let mut state = self.lock();
        match state.phase {
            Phase::Established | Phase::Accepted | Phase::Replied if !self.space.is_datagram() => {
                let socket = state.socket.as_ref().ok_or(Errno::INVAL)?;
                if port::send(socket, &Frame::new(Kind::Disconnect)).is_ok() {
                    state.phase = Phase::Disconnecting;
                    Service::get()?.set_deadline(&mut state, Some(Instant::now() + ANSWER));
                } else {
                    self.ended(&mut state, 0);
                }
                Ok(())
            }
            // The other end, or an earlier call, was faster.
            Phase::Closed | Phase::Disconnecting => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }

    /// The connection is over.
    pub(super) fn ended(self: &Arc<Self>, state: &mut State, status: i32) {
        self.close(state);
        self.raise(state, RDMA_CM_EVENT_DISCONNECTED, status, None);
        if let Ok(service) = Service::get()
            && service.watch(self, state).is_ok()
        {
            service.set_deadline(state, Some(Instant::now() + TIMEWAIT));
        }
    }

    /// Hangs up. The port is free after this.
    pub(super) fn close(&self, state: &mut State) {
        if let Some(key) = state.watched.take()
            && let Ok(service) = Service::get()
        {
            service.forget(key, state.socket.as_ref());
        }
        state.deadline = None;
        state.socket = None;
        state.phase = Phase::Closed;
    }

    /// The program needs it no more: nothing is reported after this.
    pub(super) fn destroy(self: &Arc<Self>) {
        let channel = {
            let mut state = self.lock();
            if state.phase == Phase::Requested {
                // Rather than a hang-up, which would do: the other end learns that the program said no.
                let kind = if self.space.is_datagram() { Kind::DatagramReply } else { Kind::Reject };
                let mut frame = Frame::new(kind);
                let reason = if self.space.is_datagram() { DATAGRAM_REJECT } else { REJECT_CONSUMER };
                frame.reason = reason.unsigned_abs();
                if let Some(socket) = &state.socket {
                    let _ = port::send(socket, &frame);
                }
            }
            self.close(&mut state);
            state.id = 0;
            state.channel.take()
        };
        let Some(channel) = channel else { return };
        for raised in channel.withdraw(self) {
            if let Some(newcomer) = raised.newcomer {
                newcomer.destroy();
            }
        }
    }

    /// Reports to another channel from now on, also what waits in the old one.
    pub(super) fn migrate(self: &Arc<Self>, to: Arc<Channel>) {
        let Some(from) = self.lock().channel.replace(to.clone()) else { return };
        for raised in from.withdraw(self) {
            let newcomer = raised.newcomer.clone();
            to.push(raised);
            if let Some(newcomer) = newcomer {
                newcomer.migrate(to.clone());
            }
        }
    }

    /// Reports something.
    pub(super) fn raise(
        self: &Arc<Self>,
        state: &mut State,
        event: rdma_cm_event_type,
        status: i32,
        frame: Option<Box<Frame>>,
    ) {
        if let Some(channel) = &state.channel {
            channel.push(Raised { frame, ..Raised::new(self, event, status) });
        }
    }

    /// Reports a request to connect to who listens, unless that one has enough of them.
    pub(super) fn announce(self: &Arc<Self>, newcomer: &Arc<Endpoint>, frame: Box<Frame>) -> bool {
        let mut state = self.lock();
        let room = state.phase == Phase::Listening && state.waiting < state.backlog;
        let Some(channel) = state.channel.clone().filter(|_| room) else { return false };
        state.waiting += 1;
        let newcomer = Some(newcomer.clone());
        channel.push(Raised { frame: Some(frame), newcomer, ..Raised::new(self, RDMA_CM_EVENT_CONNECT_REQUEST, 0) });
        true
    }

    /// An event was given to the program. Called while the event's channel is locked.
    pub(super) fn count_reported(&self) {
        self.tally().0 += 1;
    }

    /// The program gave an event back.
    pub(super) fn count_acknowledged(&self) {
        self.tally().1 += 1;
        self.acknowledged.notify_all();
    }

    /// Waits until every event that the program was given came back.
    pub(super) fn wait_acknowledged(&self) {
        let tally = self.tally();
        drop(
            self.acknowledged
                .wait_while(tally, |(reported, acknowledged)| acknowledged < reported)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    fn tally(&self) -> MutexGuard<'_, (u64, u64)> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn still_patient(state: &State) -> bool {
    state.give_up.is_some_and(|moment| Instant::now() < moment)
}

fn gone(error: Errno) -> Errno {
    if error == Errno::PIPE { Errno::CONNRESET } else { error }
}

/// A number that nobody can foretell, so that packets of an earlier connection are not taken for its own.
pub(super) fn random() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let hash = std::hash::RandomState::new().build_hasher().finish();
    // Either half is as good.
    hash as u32
}
