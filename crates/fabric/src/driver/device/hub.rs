//! The completion queues of a rank, one for each device in use, and where its threads park.
//!
//! All links over a device complete into its queue. Whoever polls it deals the completions out to the links' *inboxes*, in
//! order, of which each rail of a link has its own; the thread that moves a link on takes them from there.
//!
//! Over one device, of the threads that park, one waits on the queue's channel: the *lookout*. The others wait on a doorbell,
//! which the lookout rings when it returns, whatever the reason, so that the next one takes its place. Nobody can wait on
//! several channels at once, nor on one and the doorbell: over several devices, and where other ranks ring, too, all threads wait on the
//! doorbell. Devices ring it themselves, or [`Watch`]es do for those that tell channels alone.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_reach::Doorbell;
use fulmen_verbs::{Completion, CompletionChannel, CompletionQueue};

use super::watch::Watch;
use crate::driver::{Broken, Parker};

/// The longest that somebody may still be parked on a channel when the hub closes: for 50 ms at a time.
const LOOKOUT: Duration = Duration::from_secs(2);

/// Completions that are taken out of the queue at a time.
const BATCH: usize = 32;

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
    /// The number of a request: the `index`th place of this kind on a rail.
    pub(super) fn number(self, berth: Berth, index: u32) -> u64 {
        let Berth { peer, rail } = berth;
        u64::from(self as u8) << 56 | u64::from(peer & 0xffff) << 40 | u64::from(rail) << 32 | u64::from(index)
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

/// Whose requests they are: the rail of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Berth {
    /// 16 bits.
    pub peer: u32,
    pub rail: u8,
}

impl Berth {
    fn of(number: u64) -> Berth {
        Berth { peer: (number >> 40 & 0xffff) as u32, rail: (number >> 32 & 0xff) as u8 }
    }
}

/// Completions of one rail.
struct Inbox {
    /// The queue into which the rail's requests complete.
    queue: usize,
    /// How many there are, to be looked at without the lock.
    count: AtomicUsize,
    list: Mutex<VecDeque<Completion>>,
}

struct Dealer {
    batch: [Completion; BATCH],
    /// Gone when the hub is closed.
    queue: Option<Arc<dyn CompletionQueue>>,
}

/// The queue of one device.
struct Queue {
    /// Gone when the hub is closed.
    channel: Mutex<Option<Arc<dyn CompletionChannel>>>,
    /// Held from taking completions to their being dealt out, which keeps them in order.
    dealer: Mutex<Dealer>,
    /// Why nothing completes any more.
    failed: Arc<OnceLock<String>>,
}

impl Queue {
    fn fail(&self, cause: String) {
        // The first cause stays.
        let _ = self.failed.set(cause);
    }

    /// Asks for an event: false if nothing comes here any more.
    fn ask(&self) -> bool {
        match lock(&self.dealer).queue.as_ref().map(|queue| queue.request_notify(false)) {
            Some(Ok(())) => return true,
            Some(Err(cause)) => self.fail(cause.to_string()),
            // Nobody waits long for what has ended.
            None => thread::yield_now(),
        }
        false
    }
}

/// See the [module](self).
pub(crate) struct Hub {
    queues: Vec<Queue>,
    /// By rank and rail.
    inboxes: Vec<Vec<Inbox>>,
    /// All threads wait on the bell, which all ring for whom anything may have come.
    rung_by_all: bool,
    lookout: AtomicBool,
    bell: Doorbell,
    /// Where nobody waits on channels, and devices do not ring.
    watches: Mutex<Vec<Watch>>,
}

/// A queue and the channel that tells of it.
pub(super) type Told = (Arc<dyn CompletionQueue>, Arc<dyn CompletionChannel>);

impl Hub {
    /// `links` are, by rank and rail, the queue into which a rail completes and the most that can be in its inbox; `rung` says whether
    /// others ring the bell.
    ///
    /// # Errors
    /// The system gives no thread to watch the queues, where that takes one.
    pub(super) fn new(
        queues: Vec<Told>,
        links: &[Vec<(usize, usize)>],
        bell: Doorbell,
        rung: bool,
    ) -> std::io::Result<Hub> {
        let inbox = |rail: &(usize, usize)| {
            let list = Mutex::new(VecDeque::with_capacity(rail.1));
            Inbox { queue: rail.0, count: AtomicUsize::new(0), list }
        };
        let rung_by_all = rung || queues.len() > 1;
        let mut watches = Vec::new();
        let mut queue = |(queue, channel): Told| {
            let failed = Arc::new(OnceLock::new());
            let ring = bell.clone();
            if rung_by_all && queue.set_notifier(Arc::new(move || ring.notify())).is_err() {
                watches.push(Watch::start(channel.clone(), bell.clone(), failed.clone())?);
            }
            let dealer = Mutex::new(Dealer { batch: [Completion::BLANK; BATCH], queue: Some(queue) });
            Ok(Queue { channel: Mutex::new(Some(channel)), dealer, failed })
        };
        Ok(Hub {
            queues: queues.into_iter().map(&mut queue).collect::<std::io::Result<_>>()?,
            inboxes: links.iter().map(|rails| rails.iter().map(inbox).collect()).collect(),
            rung_by_all,
            lookout: AtomicBool::new(false),
            bell,
            watches: Mutex::new(watches),
        })
    }

    fn inbox(&self, berth: Berth) -> Option<&Inbox> {
        self.inboxes.get(berth.peer as usize)?.get(usize::from(berth.rail))
    }

    /// Takes what has completed out of the queue of a rail and gives it to the links: whether there was anything.
    pub(super) fn deal(&self, berth: Berth) -> bool {
        self.inbox(berth).is_some_and(|inbox| self.deal_from(&self.queues[inbox.queue]))
    }

    fn deal_all(&self) -> bool {
        self.queues.iter().fold(false, |any, queue| self.deal_from(queue) | any)
    }

    fn deal_from(&self, from: &Queue) -> bool {
        let mut dealer = lock(&from.dealer);
        let Dealer { batch, queue: Some(queue) } = &mut *dealer else { return false };
        let mut any = false;
        loop {
            match queue.poll(&mut batch[..]) {
                Ok(count) => {
                    for completion in &batch[..count] {
                        self.give(from, completion);
                    }
                    any |= count > 0;
                    if count < BATCH {
                        return any;
                    }
                }
                Err(cause) => {
                    from.fail(cause.to_string());
                    return true;
                }
            }
        }
    }

    fn give(&self, from: &Queue, completion: &Completion) {
        match self.inbox(Berth::of(completion.wr_id)) {
            Some(inbox) => {
                let mut list = lock(&inbox.list);
                list.push_back(*completion);
                inbox.count.store(list.len(), Ordering::Release);
            }
            None => from.fail(format!("a completion of the unknown request {}", completion.wr_id)),
        }
    }

    /// Whether a rail has something to take, or never will.
    #[inline]
    pub(super) fn has_work(&self, berth: Berth) -> bool {
        let Some(inbox) = self.inbox(berth) else { return false };
        inbox.count.load(Ordering::Acquire) > 0 || self.queues[inbox.queue].failed.get().is_some()
    }

    /// Exchanges a rail's inbox for an empty list.
    pub(super) fn take(&self, berth: Berth, empty: &mut VecDeque<Completion>) -> Result<(), Broken> {
        let Some(inbox) = self.inbox(berth) else { return Ok(()) };
        if inbox.count.load(Ordering::Acquire) > 0 {
            let mut list = lock(&inbox.list);
            std::mem::swap(&mut *list, empty);
            inbox.count.store(0, Ordering::Release);
        } else if let Some(cause) = self.queues[inbox.queue].failed.get() {
            return Err(Broken(cause.clone()));
        }
        Ok(())
    }

    /// Parks as the lookout of the only queue.
    fn look_out(&self, queue: &Queue, timeout: Duration, awake: &mut dyn FnMut() -> bool) {
        // In this order: what completes before the request is found by dealing, what completes after it makes an event.
        if !queue.ask() || self.deal_from(queue) || awake() {
            return;
        }
        let Some(channel) = lock(&queue.channel).clone() else { return };
        match channel.wait(timeout) {
            Ok(true) => {
                self.deal_from(queue);
            }
            Ok(false) => {}
            Err(cause) => queue.fail(cause.to_string()),
        }
    }

    /// Parks where watches ring the bell.
    fn listen(&self, timeout: Duration, awake: &mut dyn FnMut() -> bool) {
        let listener = self.bell.listen();
        // In this order, as for the lookout; all that follows the events is announced to the listener.
        let asked = self.queues.iter().fold(true, |asked, queue| queue.ask() & asked);
        if !asked || self.deal_all() || awake() {
            return;
        }
        listener.wait(timeout);
        self.deal_all();
    }
}

impl Parker for Hub {
    fn look(&self) {
        self.deal_all();
    }

    /// A wake that is no completion reaches the lookout only at the end of its time.
    fn park(&self, timeout: Duration, awake: &mut dyn FnMut() -> bool) {
        let (false, [queue]) = (self.rung_by_all, &self.queues[..]) else { return self.listen(timeout, awake) };
        if self.lookout.swap(true, Ordering::AcqRel) {
            let listener = self.bell.listen();
            // The lookout may have left before it could see that this thread listens.
            if self.lookout.load(Ordering::Acquire) && !awake() {
                listener.wait(timeout);
            }
            return;
        }
        self.look_out(queue, timeout, awake);
        self.lookout.store(false, Ordering::Release);
        self.bell.notify();
    }

    fn wake(&self) {
        self.bell.notify();
    }

    /// Waits for whoever has a channel in its hands for as long as it is parked.
    fn close(&self) {
        let watches = std::mem::take(&mut *lock(&self.watches));
        watches.iter().for_each(Watch::stop);
        drop(watches);
        let channels: Vec<_> = self
            .queues
            .iter()
            .filter_map(|queue| {
                lock(&queue.dealer).queue = None;
                lock(&queue.channel).take()
            })
            .collect();
        let end = Instant::now() + LOOKOUT;
        while channels.iter().any(|channel| Arc::strong_count(channel) > 1) && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
