//! Operations that go on by themselves: sends, receives, and one-sided ones.

use std::fmt;
use std::task::Poll;
use std::time::Duration;

use fulmen_memory::Exposed;

use crate::driver::device::RdmaId;
use crate::engine::{Lent, OpId};
use crate::lanes::Lane;
use crate::messages::RECV;
use crate::own::Ticket;
use crate::{Fabric, FabricError, OpName, Running};

/// A send or receive that goes on by itself. It owns handles to its memory until it has ended.
///
/// Dropping it lets it end unobserved: its memory comes back when it has.
#[must_use = "wait for it, or its outcome is never known"]
pub struct Operation {
    fabric: Fabric,
    rank: u32,
    name: OpName,
    running: Running,
    state: State,
}

/// How far an operation is.
enum State {
    /// On the link to its rank.
    Link(OpId),
    /// With the device of the link to its rank.
    Device(RdmaId),
    /// A receive of this tag from the rank itself.
    Own(Ticket, u64, Exposed),
    /// It has ended, with this value.
    Ended(u64),
    /// The outcome was told.
    Told,
}

impl Operation {
    fn of(fabric: &Fabric, (rank, name): (u32, OpName), state: State) -> Operation {
        Operation { fabric: fabric.clone(), rank, name, running: Running::NONE, state }
    }

    pub(crate) fn on_link(fabric: &Fabric, rank: u32, name: OpName, op: OpId) -> Operation {
        Operation::of(fabric, (rank, name), State::Link(op))
    }

    /// A receive of this tag from the rank itself.
    pub(crate) fn from_own(fabric: &Fabric, ticket: Ticket, tag: u64, into: &Exposed) -> Operation {
        Operation::of(fabric, (fabric.rank(), RECV), State::Own(ticket, tag, into.clone()))
    }

    /// One that has ended already.
    pub(crate) fn ended(fabric: &Fabric, rank: u32, name: OpName, value: u64) -> Operation {
        Operation::of(fabric, (rank, name), State::Ended(value))
    }

    /// The recorder is told how it ends.
    pub(crate) fn recorded(self, running: Running) -> Operation {
        let mut operation = self;
        operation.running = running;
        operation
    }

    pub(crate) fn on_device(fabric: &Fabric, rank: u32, name: OpName, op: RdmaId) -> Operation {
        Operation::of(fabric, (rank, name), State::Device(op))
    }

    /// Whether it is known to have ended, so that [`Operation::test`] has its outcome. Does not move it on, unlike that: whoever
    /// looks at many operations [does it for all of them](Fabric::wait_on_links).
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let lane = || self.fabric.inner.lanes.lock(self.rank).expect("the lane on which the operation was started");
        match &self.state {
            State::Link(op) => lane().link.is_done(*op),
            State::Device(op) => {
                let Lane { link, wire, .. } = &mut *lane();
                // With its wire, it is over.
                wire.rdma().is_none_or(|rdma| rdma.is_done(*op, link))
            }
            State::Own(ticket, ..) => self.fabric.inner.own.is_met(*ticket),
            State::Ended(_) | State::Told => true,
        }
    }

    /// Whether it has ended, and how: the bytes of the message, of a put or of a get, or the word that an atomic found.
    /// Moves it on, for which it may wait up to 0.1 s for a peer to hand over memory that is not mapped yet.
    ///
    /// # Errors
    /// As [`Fabric::send`], [`Fabric::recv`] and [`Remote`](crate::Remote)'s operations, but without a deadline.
    ///
    /// # Panics
    /// If the outcome was told before.
    pub fn test(&mut self) -> Option<Result<u64, FabricError>> {
        let outcome = match &mut self.state {
            State::Link(op) => match self.fabric.poll_op(self.rank, *op, &mut Lent::Nothing, None) {
                Poll::Pending => return None,
                Poll::Ready(outcome) => self.fabric.told(self.name, self.rank, outcome),
            },
            State::Device(op) => match self.fabric.test_rdma(self.name, self.rank, *op) {
                Poll::Pending => return None,
                Poll::Ready(outcome) => outcome,
            },
            State::Own(ticket, tag, into) => {
                let put = |bytes: &[u8]| into.write(0, bytes);
                match self.fabric.inner.own.poll(*ticket, (*tag, into.len()), put) {
                    Poll::Pending => return None,
                    Poll::Ready(outcome) => self.fabric.told(self.name, self.rank, outcome),
                }
            }
            State::Ended(value) => Ok(*value),
            State::Told => panic!("an operation tells its outcome once"),
        };
        self.state = State::Told;
        self.fabric.inner.recorder.end(self.running, outcome.is_ok());
        Some(outcome)
    }

    /// Waits for its end, which [`Operation::test`] describes. At the deadline it is given up.
    ///
    /// # Errors
    /// As [`Fabric::send`], [`Fabric::recv`] and [`Remote`](crate::Remote)'s operations.
    ///
    /// # Panics
    /// If [`Operation::test`] told the outcome before.
    pub fn wait(mut self, timeout: Duration) -> Result<u64, FabricError> {
        let outcome = match std::mem::replace(&mut self.state, State::Told) {
            State::Link(op) => self.fabric.finish(self.name, self.rank, op, timeout, &mut Lent::Nothing),
            State::Device(op) => self.fabric.finish_rdma(self.name, self.rank, op, timeout),
            State::Own(ticket, tag, into) => {
                self.fabric.finish_own(ticket, (tag, into.len()), timeout, |bytes| into.write(0, bytes))
            }
            State::Ended(value) => Ok(value),
            State::Told => panic!("an operation tells its outcome once"),
        };
        self.fabric.inner.recorder.ended(self.running, outcome)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if !matches!(self.state, State::Told) {
            self.fabric.inner.recorder.let_go(self.running);
        }
        match &self.state {
            State::Link(op) => {
                if let Some(mut lane) = self.fabric.inner.lanes.lock(self.rank) {
                    lane.link.detach(*op);
                }
            }
            State::Device(op) => self.fabric.detach_rdma(self.rank, *op),
            State::Own(ticket, tag, into) => self.fabric.inner.own.detach(*ticket, *tag, into),
            State::Ended(_) | State::Told => {}
        }
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("name", &self.name).field("rank", &self.rank).finish_non_exhaustive()
    }
}
