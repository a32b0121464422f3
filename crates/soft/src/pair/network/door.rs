//! What peers on other hosts are told of a queue pair that they ask for.

use fulmen_verbs::QueuePairState;

use super::super::Pair;
use crate::device::DeviceCore;
use crate::network::{Door, End, Verdict};

impl Door for DeviceCore {
    fn knock(&self, from: &End, number: u32) -> Verdict {
        self.pair(number).map_or(Verdict::NoSuchPair, |pair| pair.knock(from))
    }
}

impl Pair {
    fn knock(&self, from: &End) -> Verdict {
        if from.kind != self.kind {
            return Verdict::OtherKind;
        }
        let inner = self.inner();
        match (&inner.link, inner.state) {
            (Some(link), _) if !link.far().is_some_and(|far| far.peer == *from) => Verdict::Taken,
            (None, QueuePairState::Error) => Verdict::InError,
            _ => Verdict::Welcome { incarnation: inner.wire.incarnation },
        }
    }
}
