//! The way to one device: found on first use, by the device's thread, and kept while it is used.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fulmen_reach::ReachError;
use fulmen_reach::ring::Reservation;

use super::message::HEADER;
use super::wire::OwnWire;
use super::{Notice, message::Header};
use crate::device::{DeviceCore, lock};
use crate::remote::Remote;

/// How long messages wait for a receiver that is looked for; they are lost after that, which is how datagrams fail.
const SEEK_PATIENCE: Duration = Duration::from_secs(10);
/// How long the device's thread waits for one answer of a peer before it looks at its other work.
const ANSWER_PATIENCE: Duration = Duration::from_millis(100);
/// How often a peer that is not there is looked for. One that has just ended may be taken for alive the first time.
const TRIES: u32 = 4;
/// Pause before the second look; each later one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// How long messages are lost at once after nobody was found.
const NOBODY_FOR: Duration = Duration::from_secs(1);
/// How long a message waits for room while the receiver, which lives, takes nothing. Further ones are lost at once until
/// there is room.
const FULL_PATIENCE: Duration = Duration::from_secs(5);

/// The way to one device.
pub(crate) struct Route {
    node: fulmen_reach::NodeAddress,
    index: u32,
    state: Mutex<State>,
    /// Messages that were lost on the way.
    pub(super) lost: AtomicU64,
}

enum State {
    /// Nobody has looked for the receiver yet.
    Unknown,
    /// The device's thread looks for it, and messages wait until this time.
    Sought(Instant),
    /// The receiver was told and will attach; messages wait until this time.
    Offered(Outgoing, Instant),
    Open(Outgoing),
    /// There was nobody. Messages are lost until this time.
    Nobody(Instant),
}

struct Outgoing {
    wire: OwnWire,
    remote: Arc<Remote>,
    /// Since when there is no room.
    full_since: Option<Instant>,
    /// A message was lost for want of room: others are not kept waiting.
    lossy: bool,
}

/// What became of a message.
pub(super) enum Pushed {
    /// It is on its way.
    Sent,
    /// Nobody will get it.
    Lost,
    /// It cannot go out now: whoever holds it tries again, at this time at the latest.
    Later(Instant),
}

/// What became of a look for a receiver.
pub(super) enum Sought {
    /// There is nothing more to do.
    Done,
    /// It is to be tried again.
    Again(Instant),
}

impl Route {
    pub(super) fn new(node: fulmen_reach::NodeAddress, index: u32) -> Route {
        Route { node, index, state: Mutex::new(State::Unknown), lost: AtomicU64::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Puts a message of `len` bytes, which `fill` writes, on its way.
    pub(super) fn push(
        self: &Arc<Route>,
        device: &DeviceCore,
        header: &Header,
        len: usize,
        fill: impl FnOnce(&mut Reservation<'_>),
    ) -> Pushed {
        let mut state = self.state();
        self.settle(&mut state, device);
        let pushed = match &mut *state {
            State::Sought(until) | State::Offered(_, until) => Pushed::Later(*until),
            State::Unknown | State::Nobody(_) => Pushed::Lost,
            State::Open(outgoing) => match outgoing.push(header, len, fill) {
                Some(pushed) => pushed,
                None => {
                    // The receiver broke the ring.
                    *state = State::Nobody(Instant::now() + NOBODY_FOR);
                    Pushed::Lost
                }
            },
        };
        if let Pushed::Lost = pushed {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        pushed
    }

    /// Brings the state up to date: `Open`, being looked for, or `Nobody` with time left.
    fn settle(self: &Arc<Route>, state: &mut State, device: &DeviceCore) {
        if let State::Open(outgoing) = &*state {
            if outgoing.remote.is_open() {
                return;
            }
            // Another process may have its address by now.
            *state = State::Unknown;
        }
        if let State::Offered(outgoing, _) = state
            && outgoing.wire.is_attached()
        {
            let State::Offered(outgoing, _) = std::mem::replace(state, State::Unknown) else { return };
            *state = State::Open(outgoing);
            return;
        }
        let now = Instant::now();
        match *state {
            State::Sought(until) | State::Offered(_, until) if now >= until => *state = State::Nobody(now + NOBODY_FOR),
            State::Offered(ref outgoing, _) if !outgoing.remote.is_open() => *state = State::Nobody(now + NOBODY_FOR),
            State::Nobody(until) if now < until => {}
            State::Unknown | State::Nobody(_) => {
                *state = State::Sought(now + SEEK_PATIENCE);
                device.datagrams.seek(self.clone());
                device.progress.kick();
            }
            State::Sought(_) | State::Offered(..) | State::Open(_) => {}
        }
    }

    /// Looks for the receiver; `tried` so often in vain. For the device's thread.
    pub(super) fn seek(&self, device: &DeviceCore, tried: u32) -> Sought {
        let State::Sought(until) = *self.state() else { return Sought::Done };
        let now = Instant::now();
        if now >= until {
            return self.found_nobody();
        }
        let cause = match self.offer(device) {
            Ok(outgoing) => {
                *self.state() = State::Offered(outgoing, until);
                return Sought::Done;
            }
            Err(cause) => cause,
        };
        // A stopped peer is not dead.
        let stopped = matches!(cause.downcast_ref(), Some(ReachError::TimedOut { .. }));
        if !stopped && tried + 1 >= TRIES {
            return self.found_nobody();
        }
        Sought::Again(Instant::now() + FIRST_PAUSE * (1 << tried.min(8)))
    }

    fn offer(&self, device: &DeviceCore) -> Result<Outgoing, crate::wire::Cause> {
        let remote = device.remote(self.node, self.index, Instant::now() + ANSWER_PATIENCE)?;
        let wire = OwnWire::new(&device.node)?;
        let notice = Notice { from: device.index, to: self.index, share: wire.share() };
        let (a, b) = notice.to_numbers();
        remote.peer.notify(a, b, ANSWER_PATIENCE)?;
        Ok(Outgoing { wire, remote, full_since: None, lossy: false })
    }

    fn found_nobody(&self) -> Sought {
        *self.state() = State::Nobody(Instant::now() + NOBODY_FOR);
        Sought::Done
    }

    /// Lets go of a receiver that is gone.
    pub(super) fn look_after(&self) {
        let mut state = self.state();
        if let State::Open(outgoing) | State::Offered(outgoing, _) = &*state
            && !outgoing.remote.is_open()
        {
            *state = State::Unknown;
        }
    }
}

impl Outgoing {
    /// `None` if the ring is broken.
    fn push(&mut self, header: &Header, len: usize, fill: impl FnOnce(&mut Reservation<'_>)) -> Option<Pushed> {
        let mut room = self.wire.ring.reserve(HEADER + len).ok()?;
        if room.is_none() {
            // Announced first, so that the receiver that makes room from here on tells.
            self.wire.set_waiting(true);
            room = self.wire.ring.reserve(HEADER + len).ok()?;
        }
        let Some(mut frame) = room else {
            if self.lossy {
                return Some(Pushed::Lost);
            }
            let now = Instant::now();
            let until = *self.full_since.get_or_insert(now) + FULL_PATIENCE;
            self.lossy = now >= until;
            return Some(if self.lossy { Pushed::Lost } else { Pushed::Later(until) });
        };
        frame.write(&header.to_bytes());
        fill(&mut frame);
        frame.publish();
        if self.full_since.take().is_some() || self.lossy {
            self.lossy = false;
            self.wire.set_waiting(false);
        }
        self.remote.wake();
        Some(Pushed::Sent)
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        // The receiver takes what is left, and lets go.
        self.wire.leave();
        self.remote.wake();
    }
}
