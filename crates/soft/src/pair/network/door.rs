//! What peers on other hosts are told of a queue pair that they ask for.

use fulmen_verbs::QueuePairState;

use super::super::link::Link;
use super::super::{Inner, Pair};
use super::far::{AWAITED_OPENING, Far};
use crate::device::DeviceCore;
use crate::network::{Door, End, Verdict};

impl Door for DeviceCore {
    fn knock(&self, from: &End, number: u32) -> Verdict {
        self.pair(number).map_or(Verdict::NoSuchPair, |pair| pair.knock(from))
    }

    fn rouse(&self, number: u32, incarnation: u64) -> bool {
        self.pair(number).is_some_and(|pair| pair.inner().wire.incarnation == incarnation)
    }
}

impl Pair {
    fn knock(&self, from: &End) -> Verdict {
        if from.kind != self.kind {
            return Verdict::OtherKind;
        }
        let mut inner = self.inner();
        match (&inner.link, inner.state) {
            (Some(link), _) if !link.far().is_some_and(|far| far.is_peer(from)) => return Verdict::Taken,
            (None, QueuePairState::Error) => return Verdict::InError,
            _ => {}
        }
        // Who asks has something to send, and waits for this end to open the connection.
        inner.called = Some(from.named());
        self.answer_call(&mut inner);
        Verdict::Welcome { incarnation: inner.wire.incarnation }
    }

    /// Opens the connection for a peer that has asked for it, once this queue pair is connected to it.
    pub(super) fn answer_call(&self, inner: &mut Inner) {
        if let Some(Link::Far(far)) = &mut inner.link
            && inner.called == Some(far.peer.named())
            && far.own.named().dials(&far.peer.named())
        {
            self.open_far(far);
        }
    }

    /// Opens the connection, unless that was begun before.
    pub(super) fn open_far(&self, far: &mut Far) {
        if far.is_dormant()
            && let Some(network) = &self.domain.device.network
        {
            far.wake_up();
            network.meet_later(far.own, far.peer.named(), AWAITED_OPENING);
        }
    }
}
