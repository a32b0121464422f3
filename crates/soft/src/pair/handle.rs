//! Queue pairs as users hold them.

use std::sync::Arc;

use fulmen_verbs::{
    Carrier, Claim, PostError, QueuePair, QueuePairInit, QueuePairLimits, QueuePairState, RecvRequest, SendRequest,
    Transition, VerbsError,
};

use super::Pair;
use super::link::Link;
use super::network::Far;
use crate::completion::Queue;
use crate::device::pair_slot;
use crate::domain::Domain;
use crate::shared::SharedQueue;

/// What users hold of a queue pair. Dropping it destroys the queue pair.
pub(crate) struct PairHandle {
    pair: Arc<Pair>,
    /// Given back with the handle, while threads that look at all queue pairs may still hold this one.
    _claim: Claim,
}

impl PairHandle {
    pub(crate) fn new(
        domain: &Arc<Domain>,
        init: &QueuePairInit,
        send_queue: Arc<Queue>,
        recv_queue: Arc<Queue>,
        shared: Option<Arc<SharedQueue>>,
    ) -> Result<PairHandle, VerbsError> {
        let claim = domain.device.budgets.queue_pairs.take()?;
        Ok(PairHandle { pair: Pair::new(domain, init, send_queue, recv_queue, shared)?, _claim: claim })
    }
}

impl QueuePair for PairHandle {
    fn qp_num(&self) -> u32 {
        self.pair.number
    }

    fn state(&self) -> QueuePairState {
        self.pair.inner().state
    }

    fn limits(&self) -> QueuePairLimits {
        self.pair.limits
    }

    fn is_peer_gone(&self) -> bool {
        let inner = self.pair.inner();
        inner.link.as_ref().is_some_and(|link| !link.is_alive() || link.is_over())
    }

    fn is_dormant(&self) -> bool {
        self.pair.inner().link.as_ref().and_then(Link::far).is_some_and(Far::is_dormant)
    }

    fn carrier(&self) -> Carrier {
        match self.pair.inner().link.as_ref().and_then(Link::far) {
            Some(_) => {
                Carrier::Tcp { sealed: self.pair.domain.device.network.as_ref().is_some_and(|on| on.is_sealed()) }
            }
            None => Carrier::SharedMemory,
        }
    }

    fn modify(&self, transition: &Transition) -> Result<(), VerbsError> {
        self.pair.change(transition)
    }

    fn post_send(&self, requests: &[SendRequest]) -> Result<(), PostError> {
        self.pair.post_sends(requests)
    }

    fn post_recv(&self, requests: &[RecvRequest]) -> Result<(), PostError> {
        self.pair.post_recvs(requests)
    }
}

impl Drop for PairHandle {
    fn drop(&mut self) {
        let pair = &self.pair;
        let device = &pair.domain.device;
        if device.node.is_inherited() {
            return;
        }
        device.directory.clear_pair(pair_slot(pair.number));
        let lingering = {
            let mut inner = pair.inner();
            // The peer learns first that nothing may be read any more; the memory goes after that.
            inner.wire.void();
            inner.state = QueuePairState::Reset;
            pair.unlink(&mut inner);
            inner.sends.clear();
            pair.forget_recvs(&mut inner);
            inner.lingering.take()
        };
        pair.send_queue.detach(pair);
        pair.recv_queue.detach(pair);
        device.remove_pair(pair);
        device.give_slot_back(pair.number);
        if let Some(peer) = lingering {
            device.wait_for(&peer);
        }
    }
}
