//! What comes from other devices.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fulmen_reach::{NodeAddress, ReachError, Refusal};
use fulmen_verbs::Gid;

use super::message::{HEADER, Header};
use super::receive::{Body, Taken};
use super::wire::PeerWire;
use super::{Counts, Datagrams, MOST_SENDERS, Notice};
use crate::device::DeviceCore;
use crate::remote::Remote;
use crate::wire::Cause;

/// How long a sender that gave notice is asked for its wire.
const ATTACH_PATIENCE: Duration = Duration::from_secs(10);
/// How long the device's thread waits for one answer before it looks at its other work.
const ANSWER_PATIENCE: Duration = Duration::from_millis(100);
/// Pause after the first answer that did not come; each later one is twice as long, to a limit.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Messages taken of one sender before others have their turn.
const MESSAGES_A_TURN: usize = 64;

/// A sender that gave notice and is not attached to yet.
pub(super) struct Attach {
    from: NodeAddress,
    notice: Notice,
    until: Instant,
    tried: u32,
}

/// What became of an attempt to attach to a sender.
pub(super) enum Attached {
    Yes(Incoming),
    /// It is to be tried again at this time.
    Again(Attach, Instant),
    No,
}

impl Attach {
    pub(super) fn new(from: NodeAddress, notice: Notice) -> Attach {
        Attach { from, notice, until: Instant::now() + ATTACH_PATIENCE, tried: 0 }
    }

    pub(super) fn is_of_same_device(&self, other: &Attach) -> bool {
        self.from == other.from && self.notice.from == other.notice.from
    }

    /// Connects back to the sender, which proves who it is, and maps its wire. For the device's thread.
    pub(super) fn attach(mut self, device: &DeviceCore) -> Attached {
        let cause = match self.open(device) {
            Ok(incoming) => return Attached::Yes(incoming),
            Err(cause) => cause,
        };
        // It took the wire back.
        let gone = matches!(cause.downcast_ref(), Some(ReachError::Refused { reason: Refusal::UnknownKey, .. }));
        let now = Instant::now();
        if gone || now >= self.until {
            return Attached::No;
        }
        self.tried += 1;
        let again = now + FIRST_PAUSE * (1 << self.tried.min(8));
        Attached::Again(self, again)
    }

    fn open(&self, device: &DeviceCore) -> Result<Incoming, Cause> {
        let until = Instant::now() + ANSWER_PATIENCE;
        let remote = device.remote(self.from, self.notice.from, until)?;
        let region = remote.peer.map(self.notice.share, until.saturating_duration_since(Instant::now()))?;
        let wire = PeerWire::open(&region)?;
        let options = &device.options;
        let lid = options.addressing.lid(&self.from, self.notice.from);
        let gids = options.addressing.gids(&self.from, self.notice.from, options.profile);
        wire.attach();
        // Its messages wait for this.
        remote.wake();
        Ok(Incoming { notice: self.notice, remote, wire, lid, gids })
    }
}

/// Senders that are to be attached to, and when: one for each device that gave notice.
#[derive(Default)]
pub(super) struct Attaching(VecDeque<(Attach, Instant)>);

impl Attaching {
    /// Adds a sender that has just given notice. Those that gave notice before cannot shut it out.
    pub(super) fn note(&mut self, sender: Attach) {
        // A device has one wire to another one. There is nothing in an earlier one that was not attached to.
        self.0.retain(|(other, _)| !other.is_of_same_device(&sender));
        if self.0.len() == MOST_SENDERS {
            self.0.pop_front();
        }
        self.0.push_back((sender, Instant::now()));
    }

    pub(super) fn next(&mut self) -> Option<(Attach, Instant)> {
        self.0.pop_front()
    }

    /// Puts a sender back, which is to be looked for at this time, unless its device gave notice of another wire.
    pub(super) fn again(&mut self, sender: Attach, at: Instant) {
        if self.0.len() < MOST_SENDERS && !self.0.iter().any(|(other, _)| other.is_of_same_device(&sender)) {
            self.0.push_back((sender, at));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A sender.
pub(super) struct Incoming {
    pub(super) notice: Notice,
    remote: Arc<Remote>,
    wire: PeerWire,
    lid: u16,
    gids: Vec<Gid>,
}

/// What a look at a sender's wire brought.
pub(super) struct Look {
    pub(super) worked: bool,
    /// The sender is gone, and all that it left was taken.
    pub(super) over: bool,
    /// When the first message of it is lost, if its queue pair does not take it.
    pub(super) next: Option<Instant>,
}

impl Incoming {
    /// Takes what has come.
    pub(super) fn look(&mut self, datagrams: &Datagrams) -> Look {
        // Whoever is gone before nothing is found has left nothing.
        let gone = self.wire.is_gone() || !self.remote.is_open();
        let mut look = Look { worked: false, over: false, next: None };
        for _ in 0..MESSAGES_A_TURN {
            match self.take_one(datagrams) {
                Ok(Taken::Yes) => look.worked = true,
                Ok(Taken::Later(until)) => {
                    look.next = Some(until);
                    break;
                }
                Ok(Taken::Nothing) => {
                    look.over = gone;
                    break;
                }
                // The sender broke its ring: nothing in it means anything.
                Err(()) => {
                    look.over = true;
                    break;
                }
            }
        }
        if look.worked && self.wire.is_waited_for() {
            self.remote.wake();
        }
        look
    }

    fn take_one(&mut self, datagrams: &Datagrams) -> Result<Taken, ()> {
        let Some(frame) = self.wire.ring.peek().map_err(|_| ())? else { return Ok(Taken::Nothing) };
        let mut bytes = [0; HEADER];
        let header = if frame.len() < HEADER {
            None
        } else {
            frame.read(0, &mut bytes);
            Header::from_bytes(bytes, frame.len())
        };
        let taken = match header {
            Some(header) => {
                let grh = header.grh(frame.len() - HEADER, &self.gids);
                datagrams.deliver(&header, self.lid, grh, Body::Frame(&frame))
            }
            None => {
                Counts::add(&datagrams.counts.damaged);
                Taken::Yes
            }
        };
        if let Taken::Yes = taken {
            frame.release();
        }
        Ok(taken)
    }
}

impl Datagrams {
    /// Hands a message to its queue pair, or drops it.
    fn deliver(&self, header: &Header, lid: u16, grh: Option<[u8; super::message::GRH]>, body: Body<'_, '_>) -> Taken {
        match self.pairs().get(&header.to) {
            Some(pair) => pair.take_in(header, lid, grh, body, &self.counts),
            None => {
                self.counts.no_pair.fetch_add(1, Ordering::Relaxed);
                Taken::Yes
            }
        }
    }
}
