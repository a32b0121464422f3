//! Receiving a message that is there, or comes soon, without an operation.
//!
//! What is under way on a link has operations, which whoever moves it on may meet. A receive that finds nothing else under way needs none: it
//! looks for its message itself for about a microsecond, and copies it out of its frame. Only then it begins an operation.

use std::sync::MutexGuard;
use std::task::Poll;

use crate::driver::Takes;
use crate::engine::{Landing, Lent};
use crate::lanes::{Lane, Lanes};
use crate::messages::RECV;
use crate::{Fabric, FabricError};

/// Looks for a message in a row, with its lane locked.
const LOOKS: u32 = 32;
/// So many rows of looks; one, where ranks share processors.
const BURSTS: u32 = 16;

impl Fabric {
    /// Receives a message that is there, or comes soon, without an operation, if it is to be had so; else gives the lane.
    #[inline]
    pub(crate) fn take(
        &self,
        from: u32,
        tag: u64,
        into: &mut Landing<'_>,
    ) -> Result<Result<usize, MutexGuard<'_, Lane>>, FabricError> {
        let lanes = &self.inner.lanes;
        let bursts = if self.inner.poll.yields > 0 { 1 } else { BURSTS };
        let mut lane = self.lane(RECV, from)?;
        for _ in 0..bursts {
            match lanes.take(from, &mut lane, tag, into) {
                Poll::Ready(Some(len)) => {
                    if lane.link.has_answers() {
                        // It made room that the peer may wait for. What else has come stays for the next receive.
                        drop(lanes.pump(from, lane, &mut Lent::Nothing, Takes::Nothing, None));
                    }
                    return Ok(Ok(len));
                }
                Poll::Ready(None) => break,
                Poll::Pending => {
                    // Others may have to send something.
                    drop(lane);
                    lane = self.lane(RECV, from)?;
                }
            }
        }
        Ok(Err(lane))
    }
}

impl Lanes {
    /// Receives the next message of a link that has nothing else to do, if it is one of this tag that is there, or comes within some tens of
    /// nanoseconds: how many bytes it has. `None` if that is not to be had so, but by an operation; pending while nothing has come.
    #[inline]
    fn take(&self, rank: u32, lane: &mut Lane, tag: u64, into: &mut Landing<'_>) -> Poll<Option<usize>> {
        // What goes to others may come first.
        if self.switch.is_some() || !lane.link.takes() {
            return Poll::Ready(None);
        }
        self.note_look();
        for _ in 0..LOOKS {
            match lane.wire.take(&mut lane.link, tag, into) {
                Ok(Poll::Pending) => {}
                Ok(Poll::Ready(taken)) => {
                    if taken.is_some() && lane.wire.has_left() {
                        // Whoever found the lane taken did not see it.
                        self.parker.wake();
                    }
                    return Poll::Ready(taken);
                }
                Err(broken) => {
                    self.fail(rank, lane, broken);
                    return Poll::Ready(None);
                }
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::tests::start;

    const LONG: Duration = Duration::from_secs(60);

    /// Of many messages that came before they were asked for, each is copied once: also where the peer is to hear that there is room again.
    #[test]
    fn what_nobody_has_asked_for_yet_stays_where_it_came() {
        let ranks = start(2);
        let [zero, one] = [0, 1].map(|rank: usize| &ranks[rank].0);
        // Credits are given back once half of them are owed.
        let many = usize::from(crate::Flow::default().credits) / 2 + 8;
        for turn in 0..2 {
            for at in 0..many {
                zero.send_bytes(1, 7, &[(turn * many + at) as u8; 5_000], LONG).unwrap();
            }
            for at in 0..many {
                let mut message = [0; 5_000];
                one.recv_bytes(0, 7, &mut message, LONG).unwrap();
                assert_eq!(message, [(turn * many + at) as u8; 5_000]);
                assert!(one.inner.lanes.lock(0).unwrap().link.takes(), "message {at} of turn {turn}");
            }
        }
    }
}
