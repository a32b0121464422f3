//! What a connected queue pair has of its peer: words and rings in shared memory, or a connection to another host.
//!
//! Both sides of a queue pair tell each other the same things over either, so that queues, completions, flushing and
//! clocks are one code.

use std::sync::Arc;

use fulmen_reach::ring::Consumer;
use fulmen_verbs::CompletionStatus;

use super::network::Far;
use crate::remote::Remote;
use crate::wire::PeerWire;

pub(super) enum Link {
    /// The peer is on this host.
    Near(Box<Near>),
    /// It is on another one.
    Far(Box<Far>),
}

/// A peer on this host.
pub(super) struct Near {
    pub(super) remote: Arc<Remote>,
    pub(super) wire: PeerWire,
    pub(super) ring: Consumer,
    /// What the peer brings that it was asked for.
    pub(super) answers: Consumer,
}

impl Link {
    /// Whether the peer's process is there, as far as anybody knows.
    #[inline]
    pub(super) fn is_alive(&self) -> bool {
        match self {
            Link::Near(near) => near.remote.is_alive(),
            Link::Far(far) => far.is_alive(),
        }
    }

    /// Whether the peer takes messages of this queue pair, whose incarnation is `own`.
    #[inline]
    pub(super) fn takes(&self, own: u64) -> bool {
        match self {
            Link::Near(near) => near.wire.takes(own),
            Link::Far(far) => far.takes(),
        }
    }

    /// Whether the peer may yet say that it takes messages.
    pub(super) fn is_awaited(&self) -> bool {
        match self {
            Link::Near(_) => false,
            Link::Far(far) => far.is_awaited(),
        }
    }

    /// Whether the peer is in error, or further than that.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Link::Near(near) => near.wire.is_over(),
            Link::Far(far) => far.is_over(),
        }
    }

    /// Whether what the peer says is about messages of this queue pair.
    #[inline]
    pub(super) fn answers(&self, own: u64) -> bool {
        match self {
            Link::Near(near) => near.wire.answers(own),
            Link::Far(_) => true,
        }
    }

    /// How many messages are done as far as their sender is concerned.
    #[inline]
    pub(super) fn acked(&self) -> u64 {
        match self {
            Link::Near(near) => near.wire.acked(),
            Link::Far(far) => far.acked(),
        }
    }

    /// The message that the peer refuses, and why.
    #[inline]
    pub(super) fn refused(&self) -> Option<(u64, CompletionStatus)> {
        match self {
            Link::Near(near) => near.wire.refused(),
            Link::Far(far) => far.refused(),
        }
    }

    /// The message for which the peer has no RECV, after `sent` messages.
    pub(super) fn stalled(&self, sent: u64) -> Option<u64> {
        match self {
            Link::Near(near) => near.wire.stalled(),
            Link::Far(far) => far.is_stalled().then_some(sent),
        }
    }

    /// How long to wait for a RECV, in nanoseconds.
    pub(super) fn not_ready_ns(&self) -> u64 {
        match self {
            Link::Near(near) => near.wire.not_ready_ns(),
            Link::Far(far) => far.not_ready_ns(),
        }
    }

    /// Wakes the peer, if only this side does: what comes over a connection wakes it by itself.
    #[inline]
    pub(super) fn wake(&self) {
        if let Link::Near(near) = self {
            near.remote.wake();
        }
    }

    #[cfg(test)]
    pub(super) fn near(&mut self) -> &mut Near {
        match self {
            Link::Near(near) => near,
            Link::Far(_) => panic!("the peer is on another host"),
        }
    }

    pub(super) fn far(&self) -> Option<&Far> {
        match self {
            Link::Near(_) => None,
            Link::Far(far) => Some(far),
        }
    }
}
