//! Messages under way to and from the peers.

use std::task::Poll;

use fulmen_fabric::{FabricError, Operation};
use fulmen_memory::Exposed;

use super::{HEADER, Half, Messages};
use crate::CollectiveError;
use crate::windows::Ongoing;

/// See the [module](self).
pub(super) struct Exchange<'a> {
    messages: &'a Messages,
    pub(super) half: Half,
    tag: u64,
    pending: Vec<Pending>,
    /// By rank, bytes that came.
    lens: Vec<usize>,
    /// From whom something else came than expected: how many bytes, and how many it should have been.
    other: Option<(usize, usize, usize)>,
}

struct Pending {
    operation: Operation,
    peer: usize,
    /// Of a receive, the bytes that are to come.
    expected: Option<usize>,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(messages: &'a Messages, tag: u64, half: Half) -> Exchange<'a> {
        let lens = vec![0; messages.size];
        Exchange {
            messages,
            half,
            tag: messages.tag | tag,
            pending: Vec::with_capacity(2 * messages.size),
            lens,
            other: None,
        }
    }

    /// Receives into the peer's segment. Before any send, so that no two ranks wait for one another.
    pub(super) fn recv(&mut self, peer: usize, len: usize) -> Result<(), FabricError> {
        let at = self.messages.at(self.half, peer);
        self.recv_into(peer, &self.messages.incoming.slice(at..at + len))
    }

    /// Receives a header, and what comes with it into the peer's segment: as much as any call may send.
    pub(super) fn recv_first(&mut self, peer: usize) -> Result<(), FabricError> {
        let at = self.messages.at(self.half, peer);
        self.recv_into(peer, &self.messages.incoming.slice(at - HEADER..at + self.messages.segment))
    }

    /// Receives into this memory.
    pub(super) fn recv_into(&mut self, peer: usize, into: &Exposed) -> Result<(), FabricError> {
        let operation = self.messages.team.fabric.start_recv(self.messages.team.in_fabric(peer), self.tag, into)?;
        self.pending.push(Pending { operation, peer, expected: Some(into.len()) });
        Ok(())
    }

    /// Sends the first bytes of a segment, which is this peer's or all ranks'.
    pub(super) fn send(&mut self, peer: usize, segment: usize, len: usize) -> Result<(), FabricError> {
        let at = self.messages.at(self.half, segment);
        self.send_from(peer, &self.messages.outgoing.slice(at..at + len))
    }

    /// Sends them with the header of the call before them.
    pub(super) fn send_first(
        &mut self,
        peer: usize,
        segment: usize,
        len: usize,
        header: [u8; HEADER],
    ) -> Result<(), FabricError> {
        let at = self.messages.at(self.half, segment);
        self.messages.outgoing.write(at - HEADER, &header);
        self.send_from(peer, &self.messages.outgoing.slice(at - HEADER..at + len))
    }

    /// Sends this memory.
    pub(super) fn send_from(&mut self, peer: usize, data: &Exposed) -> Result<(), FabricError> {
        let operation = self.messages.team.fabric.start_send(self.messages.team.in_fabric(peer), self.tag, data)?;
        self.pending.push(Pending { operation, peer, expected: None });
        Ok(())
    }

    /// Has what goes of another exchange go in this one.
    pub(super) fn adopt(&mut self, mut other: Exchange<'_>) {
        self.pending.append(&mut other.pending);
    }

    /// Waits until everything has come, of the lengths that were expected. What goes goes on.
    pub(super) fn receive_all_exact(&mut self, ongoing: &mut Ongoing<'_>) -> Result<(), CollectiveError> {
        self.receive_all(ongoing)?;
        match self.other {
            None => Ok(()),
            Some((peer, came, expected)) => Err(disagreed(ongoing, self.messages.team.in_fabric(peer), came, expected)),
        }
    }

    /// Waits until everything has come. Returns the lengths of what came, by rank. What goes goes on.
    pub(super) fn receive_all(&mut self, ongoing: &mut Ongoing<'_>) -> Result<&[usize], CollectiveError> {
        self.wait(ongoing, |pending| pending.expected.is_some())?;
        Ok(&self.lens)
    }

    /// Waits until everything has come and gone.
    pub(super) fn finish(mut self, ongoing: &mut Ongoing<'_>) -> Result<(), CollectiveError> {
        self.wait(ongoing, |_| true)
    }

    /// Waits until everything has come, and returns the bytes that came from a rank. What goes goes on.
    pub(super) fn receive(&mut self, peer: usize, ongoing: &mut Ongoing<'_>) -> Result<usize, CollectiveError> {
        Ok(self.receive_all(ongoing)?[peer])
    }

    /// Waits until nothing is pending of what `awaited` chooses.
    fn wait(&mut self, ongoing: &mut Ongoing<'_>, awaited: fn(&Pending) -> bool) -> Result<(), CollectiveError> {
        loop {
            // A peer that has done its part may leave while others are waited for.
            let awaited = self.pending.iter().filter(|pending| awaited(pending));
            let mut ranks: Vec<u32> = awaited.map(|pending| self.messages.team.in_fabric(pending.peer)).collect();
            if ranks.is_empty() {
                return Ok(());
            }
            ranks.dedup();
            let fabric = self.messages.team.fabric.clone();
            let moved = fabric.wait_on_links(ongoing.operation, ranks.as_slice(), ongoing.deadline.left(), || {
                match self.look() {
                    Ok(false) => {}
                    Ok(true) => return Poll::Ready(Ok(())),
                    Err(error) => return Poll::Ready(Err(error)),
                }
                self.messages
                    .check_poison(ongoing.sequence)
                    .map_or_else(|error| Poll::Ready(Err(error)), |()| Poll::Pending)
            });
            match moved {
                Ok(Ok(())) => {}
                Err(FabricError::PeerLost { .. }) if self.forget_sends() => {}
                Err(lost) => return Err(lost.into()),
                Ok(Err(failed)) => return Err(failed),
            }
        }
    }

    /// Gives up what is being sent to ranks that were lost and from which nothing is to come; false if there is nothing to
    /// give up.
    ///
    /// A rank leaves when it has received all that it waits for, which its peers may hear of later than of its leaving. If
    /// it died instead, that changes nothing in what the others receive, and the next call fails.
    fn forget_sends(&mut self) -> bool {
        let before = self.pending.len();
        let needed: Vec<usize> =
            self.pending.iter().filter(|pending| pending.expected.is_some()).map(|pending| pending.peer).collect();
        let team = &self.messages.team;
        let lives = |peer| team.fabric.loss(team.in_fabric(peer)).is_none();
        self.pending.retain(|pending| needed.contains(&pending.peer) || lives(pending.peer));
        self.pending.len() < before
    }

    /// Takes the outcomes there are: whether something has ended.
    fn look(&mut self) -> Result<bool, CollectiveError> {
        let before = self.pending.len();
        let mut at = 0;
        while at < self.pending.len() {
            let Pending { operation, peer, expected } = &mut self.pending[at];
            let outcome = if operation.has_ended() { operation.test() } else { None };
            let Some(outcome) = outcome else {
                at += 1;
                continue;
            };
            match (outcome, *expected) {
                (Ok(len), Some(expected)) => {
                    let len = len as usize;
                    self.lens[*peer] = len;
                    if len != expected {
                        self.other = Some((*peer, len, expected));
                    }
                }
                (Ok(_), None) => {}
                // As in `forget_sends`.
                (Err(FabricError::PeerLost { .. }), None) => {}
                (Err(error), _) => return Err(error.into()),
            }
            self.pending.swap_remove(at);
        }
        Ok(self.pending.len() < before)
    }
}

/// A rank that called the same has sent something else.
fn disagreed(ongoing: &Ongoing<'_>, rank: u32, came: usize, expected: usize) -> CollectiveError {
    let problem = format!("it sent {came} bytes where {expected} were agreed on");
    FabricError::PeerFailed { op: ongoing.operation, rank, problem }.into()
}
