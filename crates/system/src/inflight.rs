//! The requests that a device has: what they were, and handles to their memory.
//!
//! A ring for each queue of a queue pair. Whoever posts writes at its head, and whoever polls the completion queue takes
//! from its tail; both are one thread at a time, by locks that the other side does not take.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

use fulmen_verbs::{CompletionOpcode, Pieces};

/// Bits of a request's number that the device carries: enough that a late completion is never taken for a new one.
const NUMBER_BITS: u32 = 40;
const NUMBERS: u64 = (1 << NUMBER_BITS) - 1;
/// The largest number of a queue pair; numbers have 23 bits.
pub(crate) const PAIR_NUMBERS: u32 = (1 << 23) - 1;
/// Tells receives from sends.
const RECV: u64 = 1 << 63;

/// What comes back with a completion: which queue of which queue pair, and which of its requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag(pub(crate) u64);

impl Tag {
    pub(crate) fn queue(self) -> u64 {
        self.0 & !NUMBERS
    }
}

/// A request that the device has.
pub(crate) struct Request {
    pub(crate) wr_id: u64,
    /// Kept until the request has ended.
    pub(crate) pieces: Pieces,
    pub(crate) opcode: CompletionOpcode,
    /// Bytes that it names.
    pub(crate) bytes: u32,
    /// What it takes of the queue's depth.
    pub(crate) depth: u32,
    /// Whether its success is told.
    pub(crate) visible: bool,
}

/// What a completion needs to know of its request.
pub(crate) struct Ended {
    pub(crate) wr_id: u64,
    pub(crate) opcode: CompletionOpcode,
    pub(crate) bytes: u32,
    pub(crate) visible: bool,
}

pub(crate) struct InFlight {
    /// The tag of its request 0.
    queue: u64,
    slots: Box<[UnsafeCell<Option<Request>>]>,
    depth: u64,
    /// Requests that were posted; written by the poster.
    head: AtomicU64,
    /// Requests that have ended; written by the poller.
    tail: AtomicU64,
    /// Depth taken by all that were posted; written by the poster.
    taken: AtomicU64,
    /// Depth given back by all that have ended; written by the poller.
    given_back: AtomicU64,
}

// SAFETY: a slot is touched by the poster while it lies outside of tail..head, and by the poller while it lies inside;
// head and tail are published with release and read with acquire, and each is written by one side only. The callers of
// the unsafe methods promise that there is one poster and one poller at a time.
unsafe impl Sync for InFlight {}
// SAFETY: the requests themselves can be sent.
unsafe impl Send for InFlight {}

impl InFlight {
    /// Room for requests of `depth` together.
    pub(crate) fn new(pair: u32, recv: bool, depth: u32) -> InFlight {
        let queue = u64::from(pair & PAIR_NUMBERS) << NUMBER_BITS | if recv { RECV } else { 0 };
        let slots = (0..depth.max(1).next_power_of_two()).map(|_| UnsafeCell::new(None)).collect();
        InFlight {
            queue,
            slots,
            depth: depth.into(),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            given_back: AtomicU64::new(0),
        }
    }

    /// What the tags of all its requests have in common.
    pub(crate) fn queue(&self) -> u64 {
        self.queue
    }

    fn slot(&self, number: u64) -> *mut Option<Request> {
        self.slots[number as usize & (self.slots.len() - 1)].get()
    }

    /// Whether requests that take `depth` fit.
    pub(crate) fn has_room(&self, depth: u64) -> bool {
        // Acquire pairs with the poller's release: what it gave back is free to be written.
        let used = self.taken.load(Ordering::Relaxed) - self.given_back.load(Ordering::Acquire);
        let count = self.head.load(Ordering::Relaxed) - self.tail.load(Ordering::Acquire);
        used + depth <= self.depth && count < self.slots.len() as u64
    }

    /// Notes a request before the device is told of it.
    ///
    /// # Safety
    /// The caller is the only poster, and has asked for room.
    pub(crate) unsafe fn push(&self, request: Request) -> Tag {
        let number = self.head.load(Ordering::Relaxed);
        let depth = request.depth;
        // SAFETY: there is room, so the slot is not between tail and head: it is the poster's, which is the caller.
        unsafe { *self.slot(number) = Some(request) };
        self.taken.store(self.taken.load(Ordering::Relaxed) + u64::from(depth), Ordering::Relaxed);
        self.head.store(number + 1, Ordering::Release);
        Tag(self.queue | number & NUMBERS)
    }

    /// Takes the last `count` requests back, which the device has refused.
    ///
    /// # Safety
    /// The caller is the only poster, has pushed them, and the device has none of them.
    pub(crate) unsafe fn take_back(&self, count: u64) {
        let head = self.head.load(Ordering::Relaxed);
        for number in head - count..head {
            // SAFETY: no completion comes for what the device never had, so that no poller touches the slot.
            if let Some(request) = unsafe { (*self.slot(number)).take() } {
                let taken = self.taken.load(Ordering::Relaxed) - u64::from(request.depth);
                self.taken.store(taken, Ordering::Relaxed);
            }
        }
        self.head.store(head - count, Ordering::Release);
    }

    /// Ends the request of this tag and all before it, and lets go of their memory. `None` if it ended before, such as
    /// by a reset.
    ///
    /// # Safety
    /// The caller is the only poller, and the device has let go of all these requests.
    pub(crate) unsafe fn end(&self, tag: Tag) -> Option<Ended> {
        let tail = self.tail.load(Ordering::Relaxed);
        let head = self.head.load(Ordering::Acquire);
        let ahead = (tag.0 & NUMBERS).wrapping_sub(tail) & NUMBERS;
        if ahead >= head - tail {
            return None;
        }
        // SAFETY: the caller's promise, and the request lies between tail and head.
        unsafe { self.end_up_to(tail + ahead + 1) }
    }

    /// Ends all requests without completions.
    ///
    /// # Safety
    /// The caller is the only poller, nobody posts, and the device has let go of all requests.
    pub(crate) unsafe fn end_all(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.end_up_to(self.head.load(Ordering::Acquire)) };
    }

    /// Ends requests from the tail up to `end`, and gives the last one.
    unsafe fn end_up_to(&self, end: u64) -> Option<Ended> {
        let mut last = None;
        let mut depth = 0;
        for number in self.tail.load(Ordering::Relaxed)..end {
            // SAFETY: between tail and head, slots are the poller's, which is the caller.
            if let Some(request) = unsafe { (*self.slot(number)).take() } {
                depth += u64::from(request.depth);
                let Request { wr_id, pieces, opcode, bytes, visible, .. } = request;
                drop(pieces);
                last = Some(Ended { wr_id, opcode, bytes, visible });
            }
        }
        self.tail.store(end, Ordering::Release);
        self.given_back.store(self.given_back.load(Ordering::Relaxed) + depth, Ordering::Release);
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(wr_id: u64, depth: u32) -> Request {
        let (pieces, opcode) = (Pieces::new(), CompletionOpcode::Send);
        Request { wr_id, pieces, opcode, bytes: 0, depth, visible: true }
    }

    #[test]
    fn requests_end_in_order_with_those_before_them() {
        let ring = InFlight::new(7, false, 4);
        // SAFETY: one thread does everything.
        unsafe {
            for round in 0..100 {
                let tags: Vec<Tag> = (0..4).map(|wr_id| ring.push(request(round * 4 + wr_id, 1))).collect();
                assert!(!ring.has_room(1));
                assert!(tags.iter().all(|tag| tag.queue() == ring.queue()));
                assert_eq!(ring.end(tags[2]).expect("in flight").wr_id, round * 4 + 2);
                assert!(ring.end(tags[1]).is_none() && ring.end(tags[2]).is_none(), "both have ended");
                assert!(ring.has_room(3) && !ring.has_room(4));
                assert_eq!(ring.end(tags[3]).expect("in flight").wr_id, round * 4 + 3);
            }
        }
    }

    #[test]
    fn refused_requests_are_taken_back() {
        let ring = InFlight::new(1, true, 8);
        // SAFETY: one thread does everything.
        unsafe {
            let first = ring.push(request(1, 2));
            let second = ring.push(request(2, 6));
            assert!(!ring.has_room(1));
            ring.take_back(1);
            assert!(ring.has_room(6) && !ring.has_room(7));
            assert!(ring.end(second).is_none());
            assert_eq!(ring.end(first).expect("in flight").wr_id, 1);
            ring.push(request(3, 1));
            ring.end_all();
            assert!(ring.has_room(8));
        }
    }

    #[test]
    fn queues_are_told_apart() {
        let queues = [(1, false), (1, true), (2, false), (2, true)];
        let mut tags: Vec<u64> = queues.iter().map(|(pair, recv)| InFlight::new(*pair, *recv, 1).queue()).collect();
        tags.sort_unstable();
        tags.dedup();
        assert_eq!(tags.len(), 4);
    }
}
