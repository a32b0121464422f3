//! Messages of a rank to itself: what it sends is kept until it receives it.
//!
//! They match as those between ranks do. Nothing moves by itself: a send puts the message where the oldest receive of its tag that waits
//! finds it, or where the next one looks first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use fulmen_memory::Exposed;

use crate::engine::{LABEL, OpError};
use crate::messages::RECV;
use crate::{Fabric, FabricError};

/// A receive that has begun and was not told its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ticket(u64);

#[derive(Default)]
pub(crate) struct Own(Mutex<Mailbox>);

#[derive(Default)]
struct Mailbox {
    next: u64,
    /// By tag without its label, what is kept or who waits. Neither is ever there beside the other.
    queues: HashMap<u64, Queue>,
    /// What receives get that have not looked yet.
    met: HashMap<Ticket, Letter>,
}

enum Queue {
    Kept(VecDeque<Letter>),
    Asked(VecDeque<Ask>),
}

/// A message.
struct Letter {
    tag: u64,
    bytes: Vec<u8>,
}

struct Ask {
    ticket: Ticket,
    /// Nobody looks for the outcome: where the message goes when it comes.
    alone: Option<Target>,
}

/// Where a message is received, and as what.
struct Target {
    tag: u64,
    into: Exposed,
}

impl Letter {
    /// Gives its bytes to a receive of this tag that has so much room.
    fn open(&self, tag: u64, room: usize, put: impl FnOnce(&[u8])) -> Result<u64, OpError> {
        let len = self.bytes.len() as u64;
        if self.tag != tag {
            return Err(OpError::Mislabelled { label: (self.tag >> LABEL.trailing_zeros()) as u8 });
        }
        if self.bytes.len() > room {
            return Err(OpError::Truncated { len, room: room as u64 });
        }
        put(&self.bytes);
        Ok(len)
    }
}

impl Target {
    fn take(&self, letter: &Letter) {
        // Nobody wants to know how it went.
        let _ = letter.open(self.tag, self.into.len(), |bytes| self.into.write(0, bytes));
    }
}

impl Own {
    fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message. Whether a receive waited for it.
    fn give(&self, tag: u64, bytes: Vec<u8>) -> bool {
        let (mut mailbox, letter) = (self.mailbox(), Letter { tag, bytes });
        let Mailbox { queues, met, .. } = &mut *mailbox;
        match queues.entry(tag & !LABEL).or_insert_with(|| Queue::Kept(VecDeque::new())) {
            Queue::Kept(kept) => {
                kept.push_back(letter);
                return false;
            }
            Queue::Asked(asked) => {
                let ask = asked.pop_front().expect("a queue without anything is not kept");
                if asked.is_empty() {
                    queues.remove(&(tag & !LABEL));
                }
                match ask.alone {
                    Some(target) => target.take(&letter),
                    None => _ = met.insert(ask.ticket, letter),
                }
            }
        }
        true
    }

    /// Begins a receive.
    pub(crate) fn ask(&self, tag: u64) -> Ticket {
        let mut mailbox = self.mailbox();
        let ticket = Ticket(mailbox.next);
        mailbox.next += 1;
        let Mailbox { queues, met, .. } = &mut *mailbox;
        match queues.entry(tag & !LABEL).or_insert_with(|| Queue::Asked(VecDeque::new())) {
            Queue::Asked(asked) => asked.push_back(Ask { ticket, alone: None }),
            Queue::Kept(kept) => {
                met.insert(ticket, kept.pop_front().expect("a queue without anything is not kept"));
                if kept.is_empty() {
                    queues.remove(&(tag & !LABEL));
                }
            }
        }
        ticket
    }

    pub(crate) fn is_met(&self, ticket: Ticket) -> bool {
        self.mailbox().met.contains_key(&ticket)
    }

    /// The outcome of a receive, if its message has come.
    pub(crate) fn poll(
        &self,
        ticket: Ticket,
        (tag, room): (u64, usize),
        put: impl FnOnce(&[u8]),
    ) -> Poll<Result<u64, OpError>> {
        let letter = self.mailbox().met.remove(&ticket);
        letter.map_or(Poll::Pending, |letter| Poll::Ready(letter.open(tag, room, put)))
    }

    /// Gives up a receive that waits: the next one of its tag takes its place.
    fn cancel(&self, ticket: Ticket, tag: u64) {
        let mut mailbox = self.mailbox();
        if let Some(Queue::Asked(asked)) = mailbox.queues.get_mut(&(tag & !LABEL)) {
            asked.retain(|ask| ask.ticket != ticket);
            if asked.is_empty() {
                mailbox.queues.remove(&(tag & !LABEL));
            }
        }
    }

    /// Lets a receive end unobserved.
    pub(crate) fn detach(&self, ticket: Ticket, tag: u64, into: &Exposed) {
        let (mut mailbox, target) = (self.mailbox(), Target { tag, into: into.clone() });
        if let Some(letter) = mailbox.met.remove(&ticket) {
            target.take(&letter);
        } else if let Some(Queue::Asked(asked)) = mailbox.queues.get_mut(&(tag & !LABEL))
            && let Some(ask) = asked.iter_mut().find(|ask| ask.ticket == ticket)
        {
            ask.alone = Some(target);
        }
    }
}

impl Fabric {
    /// Sends to this rank itself, which ends at once, whatever the length.
    pub(crate) fn send_own(&self, tag: u64, bytes: Vec<u8>) -> Result<(), FabricError> {
        self.inner.check_goes_on(crate::messages::SEND)?;
        if self.inner.own.give(tag, bytes) {
            // Another thread of this rank waits for it.
            self.inner.lanes.parker.wake();
        }
        Ok(())
    }

    /// Receives from this rank itself.
    pub(crate) fn recv_own(
        &self,
        tag: u64,
        room: usize,
        timeout: Duration,
        put: impl FnOnce(&[u8]),
    ) -> Result<u64, FabricError> {
        self.inner.check_goes_on(RECV)?;
        let ticket = self.inner.own.ask(tag);
        self.finish_own(ticket, (tag, room), timeout, put)
    }

    /// Waits for the end of a receive, and gives it up at the deadline.
    pub(crate) fn finish_own(
        &self,
        ticket: Ticket,
        (tag, room): (u64, usize),
        timeout: Duration,
        put: impl FnOnce(&[u8]),
    ) -> Result<u64, FabricError> {
        let (own, rank) = (&self.inner.own, self.rank());
        let met = || if own.is_met(ticket) { Poll::Ready(()) } else { Poll::Pending };
        let waited = self.wait(RECV, &[rank], timeout, met);
        if waited.is_err() {
            own.cancel(ticket, tag);
        }
        // It may have come at the last moment.
        match (own.poll(ticket, (tag, room), put), waited) {
            (Poll::Ready(outcome), _) => self.told(RECV, rank, outcome),
            (Poll::Pending, Err(error)) => Err(error),
            (Poll::Pending, Ok(())) => unreachable!("it has met its message"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(own: &Own, ticket: Ticket) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        match own.poll(ticket, (7, 100), |sent| bytes.extend_from_slice(sent)) {
            Poll::Ready(outcome) => {
                assert_eq!(outcome.unwrap(), bytes.len() as u64);
                Some(bytes)
            }
            Poll::Pending => None,
        }
    }

    #[test]
    fn who_asks_first_gets_what_was_sent_first() {
        let own = Own::default();
        assert!(!own.give(7, vec![1]) && !own.give(7, vec![2]) && !own.give(8, vec![9]));
        let tickets: Vec<_> = (0..4).map(|_| own.ask(7)).collect();
        assert!(own.give(7, vec![3]) && own.give(7, vec![4]));
        for (ticket, sent) in tickets.into_iter().zip(1..) {
            assert!(own.is_met(ticket));
            assert_eq!(taken(&own, ticket), Some(vec![sent]));
        }
        let mailbox = own.mailbox();
        assert!(mailbox.met.is_empty() && mailbox.queues.len() == 1, "all but the one of tag 8 is gone");
    }

    #[test]
    fn who_gave_up_takes_nothing_and_who_let_go_does() {
        let own = Own::default();
        let (first, second, third) = (own.ask(7), own.ask(7), own.ask(7));
        own.cancel(first, 7);
        let into = fulmen_memory::Region::alloc(64).unwrap().expose().unwrap();
        own.detach(second, 7, &into);
        for sent in [1, 2] {
            assert!(own.give(7, vec![sent; 3]));
        }
        assert_eq!((taken(&own, first), taken(&own, third)), (None, Some(vec![2; 3])));
        let mut written = [0; 4];
        into.read(0, &mut written);
        assert_eq!(written, [1, 1, 1, 0]);
        // Let go after it has met.
        let ticket = own.ask(7);
        own.give(7, vec![5]);
        own.detach(ticket, 7, &into);
        into.read(0, &mut written);
        assert_eq!(written, [5, 1, 1, 0]);
        assert!(own.mailbox().queues.is_empty() && own.mailbox().met.is_empty());
    }
}
