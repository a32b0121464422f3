//! Completion queues, and the channels on which threads wait for them.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fulmen_verbs::{AsyncEvent, Claim, Completion, CompletionChannel, CompletionQueue, VerbsError};

use crate::device::DeviceCore;
use crate::favourite::Favourite;
use crate::pair::Pair;
use crate::progress::Waiting;

/// After so many polls in a row that found nothing, whoever is to send may need this processor.
const POLLS_TO_YIELD: u32 = 100;

/// What the next completion does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Armed {
    No,
    ForSolicited,
    ForAny,
}

type Notifier = Arc<dyn Fn() + Send + Sync>;

struct Inner {
    list: VecDeque<Completion>,
    /// How many completions of the list there are up to the last one that is solicited or failed.
    urgent: usize,
    entries: usize,
    armed: Armed,
    /// There was an event since the last poll.
    told: bool,
    overflowed: bool,
    /// Called in place of the channel.
    notifier: Option<Notifier>,
    /// While an event is armed, nobody knows who sleeps until the notifier is called: the device's thread is in charge.
    waiting: Option<Waiting>,
}

/// A completion queue. It keeps the queue pairs that complete into it, which leave when their handle is dropped.
pub(crate) struct Queue {
    pub(crate) device: Arc<DeviceCore>,
    number: u32,
    inner: Mutex<Inner>,
    /// Length of the list, to be looked at without the lock.
    ready: AtomicUsize,
    /// Polls in a row that found nothing. Threads that race lose counts, which does not matter.
    empty_polls: AtomicU32,
    pairs: Mutex<Vec<Arc<Pair>>>,
    favourite: Mutex<Favourite>,
    /// Datagram queue pairs that complete into it.
    datagrams: AtomicUsize,
    channel: Option<Arc<Channel>>,
    _claim: Claim,
}

impl Queue {
    pub(crate) fn new(
        device: &Arc<DeviceCore>,
        entries: u32,
        channel: Option<Arc<Channel>>,
    ) -> Result<Queue, VerbsError> {
        let claim = device.budgets.completion_queues.take()?;
        let entries = entries as usize;
        let inner = Inner {
            // What is seldom filled is not reserved whole.
            list: VecDeque::with_capacity(entries.min(4096)),
            urgent: 0,
            entries,
            armed: Armed::No,
            told: false,
            overflowed: false,
            notifier: None,
            waiting: None,
        };
        Ok(Queue {
            device: device.clone(),
            number: device.next_number(),
            inner: Mutex::new(inner),
            ready: AtomicUsize::new(0),
            empty_polls: AtomicU32::new(0),
            pairs: Mutex::default(),
            favourite: Mutex::default(),
            datagrams: AtomicUsize::new(0),
            channel,
            _claim: claim,
        })
    }

    pub(crate) fn attach(&self, pair: &Arc<Pair>) {
        let mut pairs = self.pairs();
        if !pairs.iter().any(|known| Arc::ptr_eq(known, pair)) {
            pairs.push(pair.clone());
        }
    }

    pub(crate) fn detach(&self, pair: &Arc<Pair>) {
        self.pairs().retain(|known| !Arc::ptr_eq(known, pair));
    }

    /// Counts a datagram queue pair in: whoever polls takes datagrams, too.
    pub(crate) fn attach_datagrams(&self) {
        self.datagrams.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn detach_datagrams(&self) {
        self.datagrams.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn push(&self, completion: Completion, solicited: bool) {
        let mut inner = self.inner();
        let mut overflows = false;
        let urgent = solicited || !completion.status.is_success();
        if inner.list.len() >= inner.entries {
            overflows = !inner.overflowed;
            inner.overflowed = true;
        } else {
            inner.list.push_back(completion);
            if urgent {
                inner.urgent = inner.list.len();
            }
            self.ready.store(inner.list.len(), Ordering::Release);
        }
        let due = match inner.armed {
            Armed::No => false,
            Armed::ForSolicited => urgent,
            Armed::ForAny => true,
        };
        if due {
            inner.armed = Armed::No;
            inner.told = true;
            let (notifier, waiting) = (inner.notifier.clone(), inner.waiting.take());
            drop(inner);
            drop(waiting);
            match (notifier, &self.channel) {
                (Some(notifier), _) => notifier(),
                (None, Some(channel)) => channel.announce(),
                (None, None) => {}
            }
        } else {
            drop(inner);
        }
        if overflows {
            self.device.tell(AsyncEvent::CompletionQueueFatal { number: self.number });
        }
    }

    /// Does whatever can be done for its queue pairs.
    fn drive_pairs(&self) {
        let pairs = self.pairs();
        let Some(network) = &self.device.network else {
            pairs.iter().for_each(|pair| _ = pair.drive_awake());
            return;
        };
        let mut favourite = self.favourite.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pair) = favourite.place().and_then(|place| pairs.get(place))
            && !favourite.was_tried(pair.drive_on_suspicion())
        {
            return;
        }
        network.sweep();
        for (place, pair) in pairs.iter().enumerate() {
            if pair.drive_awake() {
                favourite.brought(place);
            }
        }
    }

    fn take(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        let mut inner = self.inner();
        if inner.overflowed {
            return Err(VerbsError::Overflow { entries: inner.entries as u32 });
        }
        let count = into.len().min(inner.list.len());
        for (place, completion) in into.iter_mut().zip(inner.list.drain(..count)) {
            *place = completion;
        }
        inner.urgent = inner.urgent.saturating_sub(count);
        inner.told = false;
        self.ready.store(inner.list.len(), Ordering::Release);
        drop(inner);
        if count > 0 {
            self.empty_polls.store(0, Ordering::Relaxed);
        } else {
            self.note_empty_poll();
        }
        Ok(count)
    }

    /// Lets others run now and then: where there is one processor for both sides, nothing comes before the other one
    /// had its turn.
    fn note_empty_poll(&self) {
        let empty = self.empty_polls.load(Ordering::Relaxed) + 1;
        if empty < POLLS_TO_YIELD {
            self.empty_polls.store(empty, Ordering::Relaxed);
        } else {
            self.empty_polls.store(0, Ordering::Relaxed);
            std::thread::yield_now();
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pairs(&self) -> MutexGuard<'_, Vec<Arc<Pair>>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn rely_on_thread(&mut self, device: &DeviceCore) {
        if self.armed != Armed::No && self.notifier.is_some() && self.waiting.is_none() {
            self.waiting = Some(device.progress.wait_for_events());
        }
    }
}

/// What users hold of a completion queue.
pub(crate) struct QueueHandle(pub(crate) Arc<Queue>);

impl CompletionQueue for QueueHandle {
    fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        let queue = &self.0;
        queue.device.progress.note_poll();
        if queue.ready.load(Ordering::Acquire) < into.len() {
            queue.drive_pairs();
            if queue.datagrams.load(Ordering::Relaxed) > 0 {
                queue.device.datagrams.drive();
            }
        }
        queue.take(into)
    }

    fn request_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        let queue = &self.0;
        let asked = if solicited_only { Armed::ForSolicited } else { Armed::ForAny };
        let mut inner = queue.inner();
        if inner.notifier.is_none() && queue.channel.is_none() {
            let problem = "it has no channel: make it with one, or give it a notifier".to_owned();
            return Err(VerbsError::Invalid { what: "completion queue", problem });
        }
        inner.armed = inner.armed.max(asked);
        // A notifier hears of what came since the last poll. Who has not polled since the last event is about to.
        let waits = if inner.armed == Armed::ForAny { inner.list.len() } else { inner.urgent };
        if let Some(notifier) = inner.notifier.clone().filter(|_| waits > 0 && !inner.told) {
            inner.armed = Armed::No;
            inner.told = true;
            let waiting = inner.waiting.take();
            drop(inner);
            drop(waiting);
            notifier();
            return Ok(());
        }
        inner.rely_on_thread(&queue.device);
        Ok(())
    }

    fn entries(&self) -> u32 {
        self.0.inner().entries as u32
    }

    fn set_notifier(&self, notifier: Notifier) -> Result<(), VerbsError> {
        let mut inner = self.0.inner();
        let last = inner.notifier.replace(notifier);
        inner.rely_on_thread(&self.0.device);
        drop(inner);
        // What it owns may call the queue when it goes.
        drop(last);
        Ok(())
    }

    fn resize(&self, entries: u32) -> Result<(), VerbsError> {
        self.0.device.info.check_completion_queue(entries)?;
        let mut inner = self.0.inner();
        let waiting = inner.list.len();
        if waiting > entries as usize {
            let problem = format!("{waiting} completions wait, which is more than {entries}: poll first");
            return Err(VerbsError::Invalid { what: "completion queue", problem });
        }
        inner.entries = entries as usize;
        Ok(())
    }

    fn number(&self) -> u32 {
        self.0.number
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A completion channel: events that were not taken yet.
pub(crate) struct Channel {
    device: Arc<DeviceCore>,
    events: Mutex<u64>,
    changed: Condvar,
}

impl Channel {
    pub(crate) fn new(device: &Arc<DeviceCore>) -> Channel {
        Channel { device: device.clone(), events: Mutex::new(0), changed: Condvar::new() }
    }

    fn announce(&self) {
        *self.events() += 1;
        self.changed.notify_one();
    }

    fn take(&self) -> bool {
        let mut events = self.events();
        let some = *events > 0;
        *events -= u64::from(some);
        some
    }

    fn events(&self) -> MutexGuard<'_, u64> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What users hold of a channel.
pub(crate) struct ChannelHandle(pub(crate) Arc<Channel>);

impl CompletionChannel for ChannelHandle {
    fn wait(&self, timeout: Duration) -> Result<bool, VerbsError> {
        const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
        let channel = &self.0;
        if channel.take() {
            return Ok(true);
        }
        // From here on the device's thread drives what this thread does not poll.
        let _waiting = channel.device.progress.wait_for_events();
        let until = Instant::now() + timeout.min(LONGEST);
        let mut events = channel.events();
        while *events == 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            (events, _) = channel.changed.wait_timeout(events, left).unwrap_or_else(PoisonError::into_inner);
        }
        *events -= 1;
        Ok(true)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The queue behind a user's handle, if this device made it.
pub(crate) fn own_queue(device: &Arc<DeviceCore>, queue: &Arc<dyn CompletionQueue>) -> Result<Arc<Queue>, VerbsError> {
    let own = queue.as_any().downcast_ref::<QueueHandle>().filter(|own| Arc::ptr_eq(&own.0.device, device));
    own.map(|own| own.0.clone()).ok_or_else(|| device.foreign("the completion queue"))
}

/// The channel behind a user's handle, if this device made it.
pub(crate) fn own_channel(
    device: &Arc<DeviceCore>,
    channel: &Arc<dyn CompletionChannel>,
) -> Result<Arc<Channel>, VerbsError> {
    let own = channel.as_any().downcast_ref::<ChannelHandle>().filter(|own| Arc::ptr_eq(&own.0.device, device));
    own.map(|own| own.0.clone()).ok_or_else(|| device.foreign("the completion channel"))
}
