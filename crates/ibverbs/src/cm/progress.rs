//! What the other end says, and what it leaves unsaid.

use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::endpoint::{ANSWER, ARRIVAL, Endpoint, Phase, REJECT_CONSUMER, REJECT_NO_SERVICE, REJECT_TIMEOUT, State};
use super::ffi::*;
use super::frame::{Frame, Kind};
use super::port::{self, Received};
use super::service::Service;

/// How long the thread rests where the process has no descriptors left to accept with.
const REST: Duration = Duration::from_millis(10);

impl Endpoint {
    /// Something came over the socket.
    pub(super) fn progress(self: &Arc<Self>) {
        let mut state = self.lock();
        if state.phase == Phase::Listening {
            self.accept_all(&state);
            return;
        }
        loop {
            let Some(socket) = &state.socket else { return };
            match port::receive(socket) {
                Received::Nothing => return,
                Received::End => return self.lost(&mut state),
                Received::Frame(frame) => self.said(&mut state, frame),
                Received::Bad(error) => {
                    tracing::warn!(%error, peer = ?state.peer, "what came over a connection's socket is refused");
                    return self.lost(&mut state);
                }
            }
        }
    }

    fn accept_all(self: &Arc<Self>, state: &State) {
        let (Some(socket), Some(channel)) = (&state.socket, &state.channel) else { return };
        loop {
            let arrived = match port::accept(socket.as_fd()) {
                Ok(arrived) => arrived,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be accepted");
                    std::thread::sleep(REST);
                    return;
                }
            };
            if !port::is_own(&arrived).unwrap_or(false) {
                tracing::warn!(local = ?state.local, "a process of another user connected, and is refused");
                continue;
            }
            // Locked after who listens, against the order: nobody else knows it yet.
            let newcomer = Endpoint::arriving(self, channel.clone(), arrived);
            let mut state = newcomer.lock();
            let Ok(service) = Service::get() else { return };
            if let Err(error) = service.watch(&newcomer, &mut state) {
                tracing::warn!(%error, "a connection cannot be watched");
            } else {
                service.set_deadline(&mut state, Some(Instant::now() + ARRIVAL));
            }
        }
    }

    /// A frame came.
    fn said(self: &Arc<Self>, state: &mut State, frame: Box<Frame>) {
        match (state.phase, frame.kind) {
            (Phase::Arriving, Kind::Request | Kind::DatagramRequest) => self.requested(state, frame),
            (Phase::Connecting, Kind::Reply) if !self.space.is_datagram() => {
                state.phase = Phase::Replied;
                state.responder_resources = frame.initiator_depth;
                state.initiator_depth = frame.responder_resources;
                state.rnr_retry_count = frame.rnr_retry_count;
                state.theirs = Some(frame.clone());
                set_deadline(state, None);
                self.raise(state, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, Some(frame));
            }
            (Phase::Connecting, Kind::DatagramReply) if self.space.is_datagram() => {
                set_deadline(state, None);
                if frame.reason == 0 {
                    state.phase = Phase::Established;
                    state.theirs = Some(frame.clone());
                    self.raise(state, RDMA_CM_EVENT_ESTABLISHED, 0, Some(frame));
                } else {
                    self.close(state);
                    let status = i32::try_from(frame.reason).unwrap_or(i32::MAX);
                    self.raise(state, RDMA_CM_EVENT_UNREACHABLE, status, Some(frame));
                }
            }
            (Phase::Connecting | Phase::Requested | Phase::Accepted | Phase::Replied, Kind::Reject) => {
                self.close(state);
                // 0 would mean that all is well.
                let status = i32::try_from(frame.reason).ok().filter(|it| *it != 0).unwrap_or(REJECT_CONSUMER);
                self.raise(state, RDMA_CM_EVENT_REJECTED, status, Some(frame));
            }
            (Phase::Accepted, Kind::Ready) => {
                state.phase = Phase::Established;
                set_deadline(state, None);
                self.raise(state, RDMA_CM_EVENT_ESTABLISHED, 0, None);
            }
            // The program learnt it earlier, by `rdma_notify`.
            (Phase::Established, Kind::Ready) => {}
            (Phase::Established | Phase::Accepted | Phase::Replied, Kind::Disconnect) => {
                if let Some(socket) = &state.socket {
                    // Who asked may have gone.
                    let _ = port::send(socket, &Frame::new(Kind::Disconnected));
                }
                self.ended(state, 0);
            }
            // Both ends asked at once, or one was answered.
            (Phase::Disconnecting, Kind::Disconnect | Kind::Disconnected) => self.ended(state, 0),
            // It was under way when this end gave up.
            (Phase::Disconnecting, Kind::Ready) => {}
            (phase, kind) => {
                tracing::warn!(?phase, ?kind, peer = ?state.peer, "the other end says what makes no sense now");
                self.lost(state);
            }
        }
    }

    /// The first frame of one that connected.
    fn requested(self: &Arc<Self>, state: &mut State, frame: Box<Frame>) {
        let wanted = if self.space.is_datagram() { Kind::DatagramRequest } else { Kind::Request };
        let Some(listener) = self.listener.as_ref().and_then(Weak::upgrade).filter(|_| frame.kind == wanted) else {
            return self.close(state);
        };
        // One port serves all addresses of the host; who listens at one of them is not asked for another.
        let listens_there = {
            let listener = listener.lock();
            let local = listener.local.map(|local| super::address::plain(local.ip()));
            local.is_some_and(|ip| ip.is_unspecified() || ip == super::address::plain(frame.destination.ip()))
        };
        state.local = Some(frame.destination);
        state.peer = Some(frame.source);
        state.responder_resources = frame.initiator_depth;
        state.initiator_depth = frame.responder_resources;
        state.retry_count = frame.retry_count;
        state.rnr_retry_count = frame.rnr_retry_count;
        state.theirs = Some(frame.clone());
        state.phase = Phase::Requested;
        set_deadline(state, None);
        if !listens_there {
            self.turn_away(state, REJECT_NO_SERVICE);
        } else if !listener.announce(self, frame) {
            self.turn_away(state, REJECT_CONSUMER);
        }
    }

    /// Refuses a request of which the program never hears.
    fn turn_away(&self, state: &mut State, reason: i32) {
        let datagram = self.space.is_datagram();
        let mut frame = Frame::new(if datagram { Kind::DatagramReply } else { Kind::Reject });
        frame.reason = match (datagram, reason) {
            (false, reason) => reason.unsigned_abs(),
            (true, REJECT_NO_SERVICE) => super::endpoint::DATAGRAM_UNSUPPORTED.unsigned_abs(),
            (true, _) => super::endpoint::DATAGRAM_REJECT.unsigned_abs(),
        };
        if let Some(socket) = &state.socket {
            let _ = port::send(socket, &frame);
        }
        self.close(state);
    }

    /// The other end hung up, or says what cannot be understood.
    fn lost(self: &Arc<Self>, state: &mut State) {
        match state.phase {
            // The process died, or destroyed its end without a word. Here it was no word of a queue pair that is ready.
            Phase::Connecting => self.refused(state, REJECT_CONSUMER),
            // Datagrams need nobody who waits for a request's end.
            _ if self.space.is_datagram() => match state.phase {
                Phase::Established | Phase::Requested => self.unwatch(state),
                _ => self.close(state),
            },
            Phase::Requested | Phase::Accepted | Phase::Replied => self.refused(state, REJECT_TIMEOUT),
            Phase::Established | Phase::Disconnecting => self.ended(state, 0),
            _ => self.close(state),
        }
    }

    /// Keeps everything as it is, but waits for the socket no more.
    fn unwatch(&self, state: &mut State) {
        if let Some(key) = state.watched.take()
            && let Ok(service) = Service::get()
        {
            service.forget(key, state.socket.as_ref());
        }
    }

    /// Something may have taken too long.
    pub(super) fn overdue(self: &Arc<Self>, now: Instant) {
        let mut state = self.lock();
        let state = &mut *state;
        if state.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        state.deadline = None;
        match state.phase {
            Phase::Connecting if state.unsent.is_some() => {
                // A new try is watched for what it becomes.
                self.unwatch(state);
                if let Err(error) = self.ask(state) {
                    self.close(state);
                    self.raise(state, RDMA_CM_EVENT_UNREACHABLE, -error.raw_os_error(), None);
                }
            }
            Phase::Connecting | Phase::Accepted => {
                tracing::warn!(peer = ?state.peer, "no answer within {ANSWER:?}");
                self.close(state);
                self.raise(state, RDMA_CM_EVENT_UNREACHABLE, -Errno::TIMEDOUT.raw_os_error(), None);
            }
            Phase::Disconnecting => self.ended(state, -Errno::TIMEDOUT.raw_os_error()),
            Phase::Closed => {
                self.close(state);
                self.raise(state, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, None);
            }
            _ => self.close(state),
        }
    }
}

fn set_deadline(state: &mut State, deadline: Option<Instant>) {
    match Service::get() {
        Ok(service) => service.set_deadline(state, deadline),
        Err(_) => state.deadline = deadline,
    }
}
