use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use fulmen_memory::Region;
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::{Core, FRAMES_A_TURN};
use crate::platform;
use crate::socket::{Inbox, Received, send};
use crate::wire::{FRAME, Frame, Unreadable};
use crate::{NodeAddress, Refusal};

/// How long a new connection may stay silent.
const GREETING: Duration = Duration::from_secs(30);

/// Whether a peer has said who it is.
#[derive(Clone, Copy)]
enum Greeting {
    /// Until when it has to.
    Due(Instant),
    From(NodeAddress),
}

/// A connection that a peer opened.
pub(super) struct Incoming {
    socket: OwnedFd,
    inbox: Inbox,
    peer: Greeting,
    /// A reply that found no room. Nothing is read until it is out, so that a peer that does not listen holds up
    /// itself alone.
    unsent: Option<([u8; FRAME], Option<Region>)>,
}

impl Incoming {
    pub(super) fn new(socket: OwnedFd) -> Incoming {
        Incoming { socket, inbox: Inbox::new(), peer: Greeting::Due(Instant::now() + GREETING), unsent: None }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn greeting_due(&self) -> Option<Instant> {
        match self.peer {
            Greeting::Due(until) => Some(until),
            Greeting::From(_) => None,
        }
    }

    pub(super) fn awaited(&self) -> PollFlags {
        let next = if self.unsent.is_some() { PollFlags::OUT } else { PollFlags::IN };
        next | platform::HANG_UP
    }

    /// Reads and answers; false if the connection is of no use any more. `hung_up`: the peer will say nothing more.
    pub(super) fn serve(&mut self, core: &Core, hung_up: bool) -> bool {
        // A peer that hung up and takes no answer would be ready for ever, and is not waited for.
        self.talk(core) && !(hung_up && self.unsent.is_some())
    }

    fn talk(&mut self, core: &Core) -> bool {
        if let Some((frame, region)) = self.unsent.take()
            && !self.answer(frame, region)
        {
            return false;
        }
        for _ in 0..FRAMES_A_TURN {
            if self.unsent.is_some() {
                break;
            }
            let bytes = match self.inbox.receive(&self.socket) {
                Received::Frame(bytes, _) => bytes,
                Received::Nothing => break,
                Received::End => return false,
            };
            let hello = Frame::Hello(*core.address()).to_bytes();
            let answered = match (Frame::from_bytes(&bytes), self.peer) {
                (Ok(Frame::Hello(peer)), Greeting::Due(_)) => {
                    if peer.host_id() != core.address().host_id() {
                        return false;
                    }
                    self.peer = Greeting::From(peer);
                    self.answer(hello, None)
                }
                (Ok(Frame::Map { request, key }), Greeting::From(_)) => self.hand_over(core, request, key),
                (Ok(Frame::Notice { a, b }), Greeting::From(peer)) => {
                    core.notice(&peer, a, b);
                    true
                }
                (Err(Unreadable::Version(_)), Greeting::Due(_)) => {
                    // The greeting tells the peer which version is spoken here.
                    self.answer(hello, None);
                    return false;
                }
                (Ok(_) | Err(_), _) => return false,
            };
            if !answered {
                return false;
            }
        }
        true
    }

    fn hand_over(&mut self, core: &Core, request: u64, key: u64) -> bool {
        match core.shared(key) {
            Some(region) => {
                let frame = Frame::Mapped { request, len: region.len() as u64 };
                self.answer(frame.to_bytes(), Some(region))
            }
            None => self.refuse(request, Refusal::UnknownKey),
        }
    }

    fn refuse(&mut self, request: u64, reason: Refusal) -> bool {
        self.answer(Frame::Refused { request, reason }.to_bytes(), None)
    }

    /// Sends a frame, now or when there is room.
    fn answer(&mut self, frame: [u8; FRAME], region: Option<Region>) -> bool {
        loop {
            let descriptor = region.as_ref().and_then(Region::fd);
            match send(&self.socket, &frame, descriptor) {
                Ok(()) => return true,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.unsent = Some((frame, region));
                    return true;
                }
                // Too many descriptors of this user are on their way.
                Err(Errno::TOOMANYREFS) => {
                    let Ok(Frame::Mapped { request, .. }) = Frame::from_bytes(&frame) else { return false };
                    return self.refuse(request, Refusal::Descriptors);
                }
                Err(_) => return false,
            }
        }
    }
}
