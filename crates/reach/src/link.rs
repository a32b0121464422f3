use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::Shutdown;

use crate::error::System;
use crate::wire::{FRAME, Frame, VERSION};
use crate::{NodeAddress, ReachError, Refusal, moment_after, socket};

/// A connection that this process opened. The node's thread reads it; threads that ask write to it and wait.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
    /// Becomes readable when the peer's process ends, where the system tells.
    process: Option<OwnedFd>,
    peer: NodeAddress,
    alive: AtomicBool,
    /// This side ended it, so that the hang-up that follows is no death.
    closed: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ended: Option<Ended>,
    last_request: u64,
    /// Requests whose thread still waits. A reply to any other is dropped, and its descriptor closed.
    replies: HashMap<u64, Option<Reply>>,
}

/// What a peer says to a request.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The region's length and descriptor. None if this process had no descriptor left to receive it.
    Mapped(u64, Option<OwnedFd>),
    Refused(Refusal),
}

/// Why a link is of no use any more.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ended {
    HungUp,
    Foreign,
    Version(u16),
    Refused(Refusal),
}

impl Link {
    pub(crate) fn new(socket: OwnedFd, process: Option<OwnedFd>, peer: NodeAddress) -> Link {
        Link {
            socket,
            process,
            peer,
            alive: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn peer(&self) -> &NodeAddress {
        &self.peer
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What becomes readable when the peer's process ends, where the system tells.
    pub(crate) fn process(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(OwnedFd::as_fd)
    }

    #[inline]
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked left a whole state: each change is one statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the peer's greeting.
    pub(crate) fn wait_until_greeted(&self, deadline: Duration, until: Instant) -> Result<(), ReachError> {
        let mut state = self.state();
        loop {
            if let Some(ended) = state.ended {
                return Err(self.error(ended));
            }
            if self.is_alive() {
                return Ok(());
            }
            state = self.sleep(state, until).ok_or_else(|| self.timed_out("answer a connection", deadline))?;
        }
    }

    /// Asks for something and waits for the reply.
    pub(crate) fn ask(&self, key: u64, deadline: Duration) -> Result<Reply, ReachError> {
        const ACTION: &str = "hand over its memory";
        let until = moment_after(deadline);
        let request = {
            let mut state = self.state();
            state.last_request += 1;
            let request = state.last_request;
            state.replies.insert(request, None);
            request
        };
        // Dropped after the lock's guards below, which is what it needs.
        let asked = Asked { link: self, request };
        let frame = Frame::Map { request, key }.to_bytes();
        let Some(mut state) = self.say(&frame, "ask a peer for its memory", until)? else {
            return Err(self.timed_out(ACTION, deadline));
        };
        loop {
            if let Some(reply) = state.replies.get_mut(&asked.request).and_then(Option::take) {
                return Ok(reply);
            }
            if let Some(ended) = state.ended {
                return Err(self.error(ended));
            }
            let Some(woken) = self.sleep(state, until) else {
                return Err(self.timed_out(ACTION, deadline));
            };
            state = woken;
        }
    }

    /// Sends two numbers. Nobody answers.
    pub(crate) fn notify(&self, a: u64, b: u64, deadline: Duration) -> Result<(), ReachError> {
        let frame = Frame::Notice { a, b }.to_bytes();
        match self.say(&frame, "send a notice to a peer", moment_after(deadline))? {
            Some(_) => Ok(()),
            None => Err(self.timed_out("take a notice", deadline)),
        }
    }

    /// Sends a frame: the lock under which that was done, or `None` if there was no room until `until`.
    fn say(
        &self,
        frame: &[u8; FRAME],
        action: &'static str,
        until: Instant,
    ) -> Result<Option<MutexGuard<'_, State>>, ReachError> {
        loop {
            let state = self.state();
            if let Some(ended) = state.ended {
                return Err(self.error(ended));
            }
            // Sent under the lock, which keeps the frames of several threads apart, and never blocks.
            match socket::send(&self.socket, frame, None) {
                Ok(()) => return Ok(Some(state)),
                // The peer hung up. The node's thread sees it as well, and says it to all.
                Err(Errno::PIPE | Errno::CONNRESET) => return Ok(Some(state)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    drop(state);
                    if !self.wait_for_room(until) {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error).system(action),
            }
        }
    }

    /// Sleeps until the state may have changed; None, and no lock, once `until` has passed.
    fn sleep<'a>(&'a self, state: MutexGuard<'a, State>, until: Instant) -> Option<MutexGuard<'a, State>> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        let (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        Some(state)
    }

    fn wait_for_room(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let left_for_poll = Timespec::try_from(left).expect("a wait is at most a year");
        // Whatever it says: the next attempt to send tells, and the clock.
        let _ = rustix::event::poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&left_for_poll));
        !left.is_zero()
    }

    /// The peer said who it is.
    pub(crate) fn greet(&self) {
        let _state = self.state();
        self.alive.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    pub(crate) fn reply(&self, request: u64, reply: Reply) {
        let mut state = self.state();
        if let Some(place) = state.replies.get_mut(&request) {
            *place = Some(reply);
            self.changed.notify_all();
        }
    }

    /// The connection ended. True if that is the death of a peer that was connected.
    pub(crate) fn end(&self, ended: Ended) -> bool {
        let was_alive = self.alive.swap(false, Ordering::AcqRel);
        let mut state = self.state();
        state.ended = Some(ended);
        self.changed.notify_all();
        was_alive && !self.closed.load(Ordering::Acquire)
    }

    /// Ends the connection from this side. The node's thread sees the hang-up and forgets the link.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // It fails if the other side was faster.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    fn timed_out(&self, action: &'static str, waited: Duration) -> ReachError {
        ReachError::TimedOut { pid: self.peer.pid(), action, waited }
    }

    fn error(&self, ended: Ended) -> ReachError {
        let pid = self.peer.pid();
        match ended {
            Ended::HungUp => ReachError::Gone { pid },
            Ended::Foreign => ReachError::Foreign { pid },
            Ended::Version(theirs) => ReachError::Version { pid, theirs, ours: VERSION },
            Ended::Refused(reason) => ReachError::Refused { pid, reason },
        }
    }
}

/// A request whose reply is waited for.
struct Asked<'a> {
    link: &'a Link,
    request: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.link.state().replies.remove(&self.request);
    }
}
