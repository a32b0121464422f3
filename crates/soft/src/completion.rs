//! Completion queues, and the channels on which threads wait for them.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fulmen_verbs::{Budget, Claim, Completion, CompletionChannel, CompletionQueue, VerbsError};

use crate::device::DeviceCore;
use crate::pair::Pair;

/// What the next completion does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Armed {
    No,
    ForSolicited,
    ForAny,
}

struct Inner {
    list: VecDeque<Completion>,
    armed: Armed,
    overflowed: bool,
}

/// A completion queue. It keeps the queue pairs that complete into it, which leave when their handle is dropped.
pub(crate) struct Queue {
    device: Arc<DeviceCore>,
    entries: usize,
    inner: Mutex<Inner>,
    /// Length of the list, to be looked at without the lock.
    ready: AtomicUsize,
    pairs: Mutex<Vec<Arc<Pair>>>,
    channel: Option<Arc<Channel>>,
    _claim: Claim,
}

impl Queue {
    pub(crate) fn new(
        device: &Arc<DeviceCore>,
        entries: u32,
        channel: Option<Arc<Channel>>,
        budget: &Budget,
    ) -> Result<Queue, VerbsError> {
        let claim = budget.take()?;
        let entries = entries as usize;
        // What is seldom filled is not reserved whole.
        let list = VecDeque::with_capacity(entries.min(4096));
        Ok(Queue {
            device: device.clone(),
            entries,
            inner: Mutex::new(Inner { list, armed: Armed::No, overflowed: false }),
            ready: AtomicUsize::new(0),
            pairs: Mutex::default(),
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

    pub(crate) fn push(&self, completion: Completion, solicited: bool) {
        let mut inner = self.inner();
        if inner.list.len() >= self.entries {
            inner.overflowed = true;
        } else {
            inner.list.push_back(completion);
            self.ready.store(inner.list.len(), Ordering::Release);
        }
        let due = match inner.armed {
            Armed::No => false,
            Armed::ForSolicited => solicited || !completion.status.is_success(),
            Armed::ForAny => true,
        };
        if due {
            inner.armed = Armed::No;
            drop(inner);
            if let Some(channel) = &self.channel {
                channel.announce();
            }
        }
    }

    fn take(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        let mut inner = self.inner();
        if inner.overflowed {
            return Err(VerbsError::Overflow { entries: self.entries as u32 });
        }
        let count = into.len().min(inner.list.len());
        for (place, completion) in into.iter_mut().zip(inner.list.drain(..count)) {
            *place = completion;
        }
        self.ready.store(inner.list.len(), Ordering::Release);
        Ok(count)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pairs(&self) -> MutexGuard<'_, Vec<Arc<Pair>>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What users hold of a completion queue.
pub(crate) struct QueueHandle(pub(crate) Arc<Queue>);

impl CompletionQueue for QueueHandle {
    fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        let queue = &self.0;
        queue.device.progress.note_poll();
        if queue.ready.load(Ordering::Acquire) < into.len() {
            for pair in queue.pairs().iter() {
                pair.drive(false);
            }
        }
        queue.take(into)
    }

    fn request_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        if self.0.channel.is_none() {
            let problem = "it has no channel: make it with one".to_owned();
            return Err(VerbsError::Invalid { what: "completion queue", problem });
        }
        let asked = if solicited_only { Armed::ForSolicited } else { Armed::ForAny };
        let mut inner = self.0.inner();
        inner.armed = inner.armed.max(asked);
        Ok(())
    }

    fn entries(&self) -> u32 {
        self.0.entries as u32
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
