//! Links over memory that ranks share.
//!
//! Each rank has one *control region*, which all others map. It begins with the rank's doorbell; then come as many rings
//! as there are ranks, by the rank that writes into them. A ring has room for all frames that credits allow.

use std::sync::Arc;
use std::time::Duration;

use fulmen_memory::{Exposed, page_size};
use fulmen_reach::Doorbell;
use fulmen_reach::ring::{Consumer, INLINE, Layout, Producer, RingError};

use super::{Broken, Parker, Wire};
use crate::engine::{Body, Config, Lent, Link, PREFIX, Place, Rendezvous, Source, Target};
use crate::map::Neighbours;
use crate::options::Flow;

/// Where the doorbell is in a control region.
const DOORBELL: usize = 0;
/// Where the rings begin: two cache lines on, since processors fetch them in pairs.
const RINGS: usize = 128;
/// Bytes of a ring's slot, and of its head word.
const SLOT: usize = 64;

/// How a link over shared memory is set up.
pub(crate) fn config(flow: &Flow) -> Config {
    let Flow { frame, credits, unexpected, .. } = *flow;
    Config { frame: frame as usize, credits, unexpected, rendezvous: Rendezvous::Mapped }
}

/// A ring for the frames that credits allow, and the short Credit frames that need none.
fn ring(flow: &Flow) -> Layout {
    let config = config(flow);
    let per_frame = (config.frame + SLOT - INLINE).div_ceil(SLOT) * SLOT;
    let credits = usize::from(config.credits);
    Layout::new(credits * per_frame + (config.receive_buffers() - credits) * SLOT)
}

/// Bytes of a control region.
pub(crate) fn control_len(size: u32, flow: &Flow) -> usize {
    (RINGS + size as usize * ring(flow).size()).next_multiple_of(page_size())
}

/// The doorbell of a control region.
pub(crate) fn doorbell(control: &Exposed) -> Doorbell {
    Doorbell::at(control, DOORBELL)
}

impl Parker for Doorbell {
    fn park(&self, timeout: Duration, awake: &mut dyn FnMut() -> bool) {
        let listener = self.listen();
        if !awake() {
            listener.wait(timeout);
        }
    }

    fn wake(&self) {
        self.notify();
    }
}

/// Two rings and the peer's doorbell.
pub(crate) struct ReachWire {
    incoming: Consumer,
    outgoing: Producer,
    bell: Doorbell,
    neighbours: Arc<Neighbours>,
    rendezvous: usize,
}

impl ReachWire {
    /// The wire between `rank`, whose control region is `own`, and `peer`, whose is `theirs`.
    pub(crate) fn new(
        (rank, own): (u32, &Exposed),
        (peer, theirs): (u32, &Exposed),
        flow: &Flow,
        neighbours: Arc<Neighbours>,
    ) -> Result<ReachWire, RingError> {
        let size = ring(flow).size();
        let ring = |control: &Exposed, writer: u32| {
            let at = RINGS + writer as usize * size;
            control.slice(at..at + size)
        };
        Ok(ReachWire {
            incoming: Consumer::new(ring(own, peer))?,
            outgoing: Producer::new(ring(theirs, rank))?,
            bell: doorbell(theirs),
            neighbours,
            rendezvous: usize::try_from(flow.rendezvous).unwrap_or(usize::MAX),
        })
    }
}

impl Wire for ReachWire {
    #[inline]
    fn pump(&mut self, link: &mut Link, lent: &mut Lent<'_>) -> Result<bool, Broken> {
        let mut moved = false;
        while let Some(frame) = self.incoming.peek()? {
            link.receive(&frame, lent)?;
            frame.release();
            moved = true;
        }
        while let Some(frame) = link.transmit(lent) {
            let header = frame.header.as_bytes();
            let body = match &frame.body {
                Body::Empty => 0,
                Body::Memory(_, range) | Body::Lent(_, range) => range.len(),
            };
            let Some(mut room) = self.outgoing.reserve(header.len() + body)? else { break };
            room.write(header);
            match &frame.body {
                Body::Empty => {}
                Body::Memory(op, range) => room.copy_from(&link.memory(*op).slice(range.clone())),
                Body::Lent(op, range) => room.write(&lent.source(*op).expect("the lender is here")[range.clone()]),
            }
            room.publish();
            link.transmitted(&frame);
            // At once, so that the peer takes the first frames while the next are made.
            self.bell.notify();
            moved = true;
        }
        Ok(moved)
    }

    #[inline]
    fn push(&mut self, header: &[u8; PREFIX], payload: &[u8]) -> Result<bool, Broken> {
        let pushed = self.outgoing.try_push(&[header, payload])?;
        if pushed {
            self.bell.notify();
        }
        Ok(pushed)
    }

    fn source(&self, memory: Exposed) -> Source {
        let place = (memory.len() >= self.rendezvous).then(|| self.neighbours.reference(&memory)).flatten();
        match place {
            Some(at) => Source::Offered { memory, place: Place { key: at.key, offset: at.offset } },
            None => Source::Memory(memory),
        }
    }

    fn target(&self, memory: Exposed) -> Target {
        Target::Memory { memory, direct: false }
    }
}
