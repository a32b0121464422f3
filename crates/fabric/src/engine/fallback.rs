//! When the channel of large moves is of no use any more: what it did not bring comes in frames.
//!
//! Whichever end finds that bytes are missing or wrong gives the channel up. It sees to it first that no device writes into
//! its memory any more, and tells the peer (Forsake), which does the same. From then on, each end asks for the messages that
//! it was to receive over the channel in fragments, and for all later ones. The sender waits to be asked: the receiver alone
//! knows what has come.

use super::link::{Control, Link};
use super::ops::{Op, OpId, Recv, RecvPhase, Send, SendPhase};

/// What became of the channel of large moves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fallback {
    /// This end has given it up.
    given_up: bool,
    /// The peer has.
    forsaken: bool,
    /// A frame is to go out, whichever.
    pub nudged: bool,
}

impl Fallback {
    /// Whether grants are no longer followed: the peer that made them will ask for fragments instead.
    pub(super) fn ignores_grants(&self) -> bool {
        self.given_up || self.forsaken
    }
}

impl Link {
    /// Whether the peer has given the channel of [`Posting`](super::Posting)s up and this end has not. The driver then
    /// destroys its end, and says [`Link::give_up_moves`], before it asks for anything else.
    #[must_use]
    pub fn is_forsaken(&self) -> bool {
        self.fallback.forsaken && !self.fallback.given_up
    }

    /// The channel of [`Posting`](super::Posting)s is of no use, and no device has a hand in any memory through it any more.
    /// What it did not bring comes in frames, and all that would have gone over it from now on.
    pub fn give_up_moves(&mut self) {
        if self.fallback.given_up || self.severed {
            return;
        }
        self.fallback.given_up = true;
        self.control.push_back(Control::Forsake);
        self.withdraw_sends();
        for op in self.ops.ids() {
            if let Op::Recv(Recv { phase: phase @ RecvPhase::Granted { .. }, asked, .. }) = self.ops.get(op) {
                let RecvPhase::Granted { peer_op, len, .. } = *phase else { unreachable!("it was looked at") };
                *phase = RecvPhase::Filling { got: 0, total: len };
                *asked = true;
                self.control.push_back(Control::Cts { op: peer_op, to: op, granted: 0, stream: true });
            }
        }
    }

    /// Whether large messages go over a channel of their own.
    pub(super) fn has_moves(&self) -> bool {
        !self.fallback.given_up
    }

    pub(super) fn on_forsake(&mut self) -> Result<(), super::ProtocolError> {
        if !self.config.rendezvous.is_by_device() {
            return Err(super::ProtocolError::Malformed { what: "a Forsake where nothing is given up" });
        }
        self.fallback.forsaken = true;
        self.withdraw_sends();
        Ok(())
    }

    /// Sends that the peer had granted are offers again. Those that have come end: the driver lets go of their memory.
    fn withdraw_sends(&mut self) {
        self.postings.clear();
        for op in self.ops.ids() {
            let Op::Send(Send { phase: phase @ SendPhase::Moving { .. }, source, .. }) = self.ops.get(op) else {
                continue;
            };
            let SendPhase::Moving { fin, .. } = *phase else { unreachable!("it was looked at") };
            match fin {
                Some(status) => {
                    let outcome = status.outcome(source.len());
                    self.finish(op, outcome);
                }
                None => *phase = SendPhase::Offered,
            }
        }
    }

    /// Whether a device is at work on this send, or the peer has not said that all of it has come.
    #[must_use]
    pub fn is_moving(&self, op: OpId) -> bool {
        self.ops.is_live(op) && matches!(self.ops.peek(op), Op::Send(Send { phase: SendPhase::Moving { .. }, .. }))
    }

    /// Has some frame go out soon, whichever: its acknowledgement says that the peer is there.
    pub fn nudge(&mut self) {
        self.fallback.nudged = true;
    }
}
