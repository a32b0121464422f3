//! The completion queue of a rank, and where its threads park.
//!
//! All links complete into one queue. Whoever polls it deals the completions out to the links' *inboxes*, in order; the
//! thread that moves a link on takes them from there.
//!
//! Of the threads that park, one waits on the queue's channel: the *lookout*. The others wait on a doorbell, which the
//! lookout rings when it returns, whatever the reason, so that the next one takes its place.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_reach::Doorbell;
use fulmen_verbs::{Completion, CompletionChannel, CompletionOpcode, CompletionQueue, CompletionStatus};

use crate::driver::{Broken, Parker};

/// The longest that a lookout may still be parked when the hub closes: threads park for 50 ms at a time.
const LOOKOUT: Duration = Duration::from_secs(2);

/// Completions that are taken out of the queue at a time.
const BATCH: usize = 32;

const NONE: Completion = Completion {
    wr_id: 0,
    status: CompletionStatus::General,
    opcode: CompletionOpcode::Send,
    byte_len: 0,
    imm: None,
    qp_num: 0,
};

/// What a request was posted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Work {
    FrameIn = 1,
    FrameOut = 2,
    ChunkIn = 3,
    ChunkOut = 4,
    Rdma = 5,
}

impl Work {
    /// The number of a request: the `index`th place of this kind on the link with `peer` (24 bits).
    pub(super) fn number(self, peer: u32, index: u32) -> u64 {
        u64::from(self as u8) << 56 | u64::from(peer & 0xff_ffff) << 32 | u64::from(index)
    }

    /// What a request's number says: the work and its place.
    pub(super) fn of(number: u64) -> Option<(Work, u32)> {
        let work = match number >> 56 {
            1 => Work::FrameIn,
            2 => Work::FrameOut,
            3 => Work::ChunkIn,
            4 => Work::ChunkOut,
            5 => Work::Rdma,
            _ => return None,
        };
        Some((work, number as u32))
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Work::FrameIn => "the RECV of a frame",
            Work::FrameOut => "the SEND of a frame",
            Work::ChunkIn => "the RECV of a message's bytes",
            Work::ChunkOut => "the SEND of a message's bytes",
            Work::Rdma => "a one-sided operation",
        }
    }
}

fn peer_of(number: u64) -> usize {
    (number >> 32 & 0xff_ffff) as usize
}

/// Completions of one link.
struct Inbox {
    /// How many there are, to be looked at without the lock.
    count: AtomicUsize,
    list: Mutex<VecDeque<Completion>>,
}

struct Dealer {
    batch: [Completion; BATCH],
    /// Gone when the hub is closed.
    queue: Option<Arc<dyn CompletionQueue>>,
}

/// See the [module](self).
pub(crate) struct Hub {
    /// Gone when the hub is closed.
    channel: Mutex<Option<Arc<dyn CompletionChannel>>>,
    /// Held from taking completions to their being dealt out, which keeps them in order.
    dealer: Mutex<Dealer>,
    /// By rank.
    inboxes: Vec<Inbox>,
    lookout: AtomicBool,
    bell: Doorbell,
    /// Why nothing completes any more.
    failed: OnceLock<String>,
}

impl Hub {
    /// `entries` is the most that can be in each inbox.
    pub(super) fn new(
        queue: Arc<dyn CompletionQueue>,
        channel: Arc<dyn CompletionChannel>,
        bell: Doorbell,
        ranks: u32,
        entries: usize,
    ) -> Hub {
        let inbox = |_| Inbox { count: AtomicUsize::new(0), list: Mutex::new(VecDeque::with_capacity(entries)) };
        Hub {
            channel: Mutex::new(Some(channel)),
            dealer: Mutex::new(Dealer { batch: [NONE; BATCH], queue: Some(queue) }),
            inboxes: (0..ranks).map(inbox).collect(),
            lookout: AtomicBool::new(false),
            bell,
            failed: OnceLock::new(),
        }
    }

    /// Takes what has completed out of the queue and gives it to the links: whether there was anything.
    pub(crate) fn deal(&self) -> bool {
        let mut dealer = lock(&self.dealer);
        let Dealer { batch, queue: Some(queue) } = &mut *dealer else { return false };
        let mut any = false;
        loop {
            match queue.poll(&mut batch[..]) {
                Ok(count) => {
                    for completion in &batch[..count] {
                        self.give(completion);
                    }
                    any |= count > 0;
                    if count < BATCH {
                        return any;
                    }
                }
                Err(cause) => {
                    self.fail(cause.to_string());
                    return true;
                }
            }
        }
    }

    fn give(&self, completion: &Completion) {
        match self.inboxes.get(peer_of(completion.wr_id)) {
            Some(inbox) => {
                let mut list = lock(&inbox.list);
                list.push_back(*completion);
                inbox.count.store(list.len(), Ordering::Release);
            }
            None => self.fail(format!("a completion of the unknown request {}", completion.wr_id)),
        }
    }

    fn fail(&self, cause: String) {
        // The first cause stays.
        let _ = self.failed.set(cause);
    }

    /// Whether the link with `peer` has something to take, or no link ever will.
    #[inline]
    pub(crate) fn has_work(&self, peer: u32) -> bool {
        self.inboxes[peer as usize].count.load(Ordering::Acquire) > 0 || self.failed.get().is_some()
    }

    /// Exchanges a link's inbox for an empty list.
    pub(super) fn take(&self, peer: u32, empty: &mut VecDeque<Completion>) -> Result<(), Broken> {
        let inbox = &self.inboxes[peer as usize];
        if inbox.count.load(Ordering::Acquire) > 0 {
            let mut list = lock(&inbox.list);
            std::mem::swap(&mut *list, empty);
            inbox.count.store(0, Ordering::Release);
        } else if let Some(cause) = self.failed.get() {
            return Err(Broken(cause.clone()));
        }
        Ok(())
    }

    /// Parks as the lookout.
    fn look_out(&self, timeout: Duration, awake: &mut dyn FnMut() -> bool) {
        // In this order: what completes before the request is found by dealing, what completes after it makes an event.
        let notify = |queue: &Arc<dyn CompletionQueue>| queue.request_notify(false);
        if let Err(cause) = lock(&self.dealer).queue.as_ref().map_or(Ok(()), notify) {
            self.fail(cause.to_string());
            return;
        }
        if self.deal() || awake() {
            return;
        }
        let Some(channel) = lock(&self.channel).clone() else {
            // Nobody waits long for what has ended.
            thread::yield_now();
            return;
        };
        match channel.wait(timeout) {
            Ok(true) => {
                self.deal();
            }
            Ok(false) => {}
            Err(cause) => self.fail(cause.to_string()),
        }
    }
}

impl Parker for Hub {
    /// A wake that is no completion reaches the lookout only at the end of its time.
    fn park(&self, timeout: Duration, awake: &mut dyn FnMut() -> bool) {
        if self.lookout.swap(true, Ordering::AcqRel) {
            let listener = self.bell.listen();
            // The lookout may have left before it could see that this thread listens.
            if self.lookout.load(Ordering::Acquire) && !awake() {
                listener.wait(timeout);
            }
            return;
        }
        self.look_out(timeout, awake);
        self.lookout.store(false, Ordering::Release);
        self.bell.notify();
    }

    fn wake(&self) {
        self.bell.notify();
    }

    /// Waits for the lookout, which has the channel in its hands for as long as it is parked.
    fn close(&self) {
        lock(&self.dealer).queue = None;
        let channel = lock(&self.channel).take();
        let end = Instant::now() + LOOKOUT;
        while channel.as_ref().is_some_and(|channel| Arc::strong_count(channel) > 1) && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
