//! What carries a fabric: memory that ranks share, devices, or other ranks.

mod check;
pub(crate) mod device;
pub(crate) mod reach;
pub(crate) mod relay;

use std::task::Poll;
use std::time::{Duration, Instant};

use fulmen_memory::Exposed;

use crate::engine::{Landing, Lent, Link, OpId, PREFIX, Source, Target};

/// Where the threads of a rank park.
pub(crate) trait Parker: Send + Sync {
    /// Parks until this rank is rung, at most for `timeout`; may return early. From before the call of `awake` on no ring
    /// is missed; if it returns true, the thread does not park.
    fn park(&self, timeout: Duration, awake: &mut dyn FnMut() -> bool);

    /// Wakes all threads of this rank that are parked.
    fn wake(&self);

    /// Sees what has come, for every wire of this rank.
    fn look(&self) {}

    /// Lets go of what belongs to a device, for good. Threads may be parked; they and later ones return early.
    fn close(&self) {}
}

/// What a frame of [`Link::eager`] brings.
#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    Bytes(&'a [u8]),
    Memory(&'a Exposed),
}

impl Payload<'_> {
    #[inline]
    pub(crate) fn len(self) -> usize {
        match self {
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Memory(memory) => memory.len(),
        }
    }
}

/// Which of the frames that have come are taken, where they can stay: what nobody has asked for yet would have to be copied twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// All.
    All,
    /// As many as it takes to end this operation, for which the caller asks.
    For(OpId),
    /// None.
    Nothing,
}

impl Takes {
    /// The operation for which the caller asks.
    pub(crate) fn own(self) -> Option<OpId> {
        if let Takes::For(op) = self { Some(op) } else { None }
    }
}

/// One end of what carries the frames of one link. Its methods are called with the link locked, by whichever thread of
/// this rank waits; they never wait themselves.
pub(crate) trait Wire: Send {
    /// Sees what has come, if nothing was seen that has not been taken: to be called before [`Wire::pump`], or
    /// [`Parker::look`] for all wires.
    fn look(&self) {}

    /// Whether something was seen that has not been taken, or may have come without being seen.
    fn has_come(&self) -> bool {
        true
    }

    /// Moves the link on as far as it goes now: hands it the frames that were seen to have come, sends those that are to go, and
    /// makes the moves that the link [posts](Link::next_posting). Wakes the peer if it sent something. True if anything moved.
    ///
    /// # Errors
    /// What broke: the link is severed then.
    fn pump(&mut self, link: &mut Link, lent: &mut Lent<'_>, takes: Takes) -> Result<bool, Broken>;

    /// Takes the next frame by way of [`Link::take`], without a look at anything else: `None` if that is not to be had so, but by way of
    /// [`Wire::pump`]; pending while none has come. Only while the link [takes](Link::takes).
    ///
    /// # Errors
    /// As [`Wire::pump`].
    fn take(&mut self, _link: &mut Link, _tag: u64, _into: &mut Landing<'_>) -> Result<Poll<Option<usize>>, Broken> {
        Ok(Poll::Ready(None))
    }

    /// Whether the last such call, of either, left frames where they came.
    fn has_left(&self) -> bool {
        false
    }

    /// Sends a frame of this link's [`Link::eager`] and wakes the peer; false if there is no room now.
    ///
    /// # Errors
    /// What broke.
    fn push(&mut self, link: &Link, header: &[u8; PREFIX], payload: Payload<'_>) -> Result<bool, Broken>;

    /// How this memory is best sent.
    fn source(&self, memory: Exposed) -> Source;

    /// How this memory is best received into.
    fn target(&self, memory: Exposed) -> Target;

    /// Whether all frames that were sent have gone out: then none is lost if the wire goes.
    fn is_idle(&self) -> bool {
        true
    }

    /// Whether it is known that the peer has let its end go, so that it acknowledges nothing any more. `false` also where that
    /// cannot be known.
    fn is_peer_gone(&self) -> bool {
        false
    }

    /// Whether nothing was ever carried, so that what would carry it is not even open, nor would tell of the peer's end.
    fn is_dormant(&self) -> bool {
        false
    }

    /// The link is about to end: has the peer acknowledge all frames that were sent, and those that still are, soon.
    fn end(&mut self, _link: &mut Link) {}

    /// When it is to be pumped at the latest although nothing comes: something is to be sent again, or answered, then.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Whether the peer relies on answers of this rank at any time, so that somebody has to listen always.
    fn is_demanding(&self) -> bool {
        false
    }

    /// Whether the peer has severed its end, and so no longer keeps the memory that it offered: what was copied out of
    /// it before the call is only good if this is false.
    fn is_given_up(&self) -> bool {
        false
    }

    /// The rails over which it goes, where it goes over devices.
    fn rails(&self) -> Vec<device::RailStatus> {
        Vec::new()
    }

    /// Has large messages to this rank come over this one of its rails only, or over all again.
    fn restrict(&mut self, _rail: Option<usize>) {}

    /// What a device does for one-sided operations, if it does something.
    fn rdma(&mut self) -> Option<&mut device::Rdma> {
        None
    }

    /// Lets go of all memory, for good, and lets the peer see it: said before the link is severed, whose operations then
    /// give theirs back.
    fn sever(&mut self) {}
}

/// What takes the place of a wire when its generation has ended: all that the wire held is gone.
pub(crate) struct Retired;

impl Wire for Retired {
    fn pump(&mut self, _link: &mut Link, _lent: &mut Lent<'_>, _takes: Takes) -> Result<bool, Broken> {
        Ok(false)
    }

    fn push(&mut self, _link: &Link, _header: &[u8; PREFIX], _payload: Payload<'_>) -> Result<bool, Broken> {
        Ok(false)
    }

    fn source(&self, memory: Exposed) -> Source {
        Source::Memory(memory)
    }

    fn target(&self, memory: Exposed) -> Target {
        Target::Memory { memory, direct: false }
    }

    /// A copy that was under way when the generation ended brought anything.
    fn is_given_up(&self) -> bool {
        true
    }
}

/// Why a wire is of no use any more.
#[derive(Debug)]
pub(crate) struct Broken(pub String);

impl<E: std::error::Error> From<E> for Broken {
    fn from(error: E) -> Broken {
        Broken(error.to_string())
    }
}
