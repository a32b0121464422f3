use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::pair::{Books, Side};
use super::{Core, lock};
use crate::{AsyncEvent, Completion, CompletionChannel, CompletionQueue, VerbsError};

/// How long a parked thread lets a completion wait that this device withholds or makes up itself.
const STEP: Duration = Duration::from_millis(1);

/// A completion queue that hands out what the device below says, and what the plan makes of it.
pub(crate) struct FaultyQueue {
    shared: Arc<QueueShared>,
}

pub(crate) struct QueueShared {
    inner: Arc<dyn CompletionQueue>,
    core: Arc<Core>,
    entries: AtomicU32,
    state: Mutex<QueueState>,
    notifier: OnceLock<Notifier>,
}

/// What hears of events in place of a channel.
struct Notifier {
    call: Mutex<Arc<dyn Fn() + Send + Sync>>,
    /// The device below told of an event.
    rung: Arc<AtomicBool>,
}

#[derive(Default)]
struct QueueState {
    ready: VecDeque<Completion>,
    overflowed: bool,
    /// `Some(true)`: for solicited completions only.
    armed: Option<bool>,
    /// Of an event, since the last poll.
    told: bool,
    /// The device below told of a solicited completion, which may not have come through here yet.
    next_is_loud: bool,
    /// Events for the channel that it has not told.
    events: u32,
    users: Vec<(Weak<Mutex<Books>>, Side)>,
}

impl FaultyQueue {
    pub(super) fn new(inner: Arc<dyn CompletionQueue>, entries: u32, core: &Arc<Core>) -> FaultyQueue {
        let (entries, state, notifier) = (AtomicU32::new(entries), Mutex::default(), OnceLock::new());
        FaultyQueue { shared: Arc::new(QueueShared { inner, core: core.clone(), entries, state, notifier }) }
    }

    pub(super) fn is_of(&self, core: &Arc<Core>) -> bool {
        Arc::ptr_eq(&self.shared.core, core)
    }

    pub(super) fn share(&self) -> Arc<QueueShared> {
        self.shared.clone()
    }
}

impl QueueShared {
    pub(super) fn inner(&self) -> Arc<dyn CompletionQueue> {
        self.inner.clone()
    }

    /// From now on, one side of a queue pair completes here.
    pub(super) fn add_user(&self, books: &Arc<Mutex<Books>>, side: Side) {
        let mut state = lock(&self.state);
        state.users.retain(|(books, _)| books.strong_count() > 0);
        state.users.push((Arc::downgrade(books), side));
    }

    /// Takes everything from the device below, and moves on what is due.
    fn pump(&self, state: &mut QueueState) -> Result<(), VerbsError> {
        let users: Vec<_> = state.users.iter().filter_map(|(books, side)| Some((books.upgrade()?, *side))).collect();
        let nothing = Completion::BLANK;
        let mut room = [nothing; 32];
        loop {
            let count = self.inner.poll(&mut room)?;
            for completion in &room[..count] {
                // Those of a queue pair that is gone are forgotten.
                if let Some((books, _)) = users.iter().find(|(books, _)| lock(books).qp_num == completion.qp_num) {
                    lock(books).note(completion);
                }
            }
            if count < room.len() {
                break;
            }
        }
        for (books, side) in &users {
            lock(books).release(*side, &mut |completion| {
                if state.ready.len() >= self.entries.load(Ordering::Relaxed) as usize {
                    if !std::mem::replace(&mut state.overflowed, true) {
                        self.core.tell(AsyncEvent::CompletionQueueFatal { number: self.inner.number() });
                    }
                    return;
                }
                let loud = std::mem::take(&mut state.next_is_loud) || !completion.status.is_success();
                if state.armed.is_some_and(|only_solicited| !only_solicited || loud) {
                    state.armed = None;
                    state.told = true;
                    state.events += 1;
                }
                state.ready.push_back(completion);
            });
        }
        if let Some(notifier) = self.notifier.get() {
            let call = lock(&notifier.call);
            (0..std::mem::take(&mut state.events)).for_each(|_| call());
        }
        Ok(())
    }

    /// Has the notifier hear of what is due.
    pub(super) fn tick(&self) -> Result<(), VerbsError> {
        if self.notifier.get().is_some_and(|notifier| notifier.rung.swap(false, Ordering::AcqRel)) {
            self.note_event_below();
        }
        self.take_event()?;
        Ok(())
    }

    /// Takes one event, if there is one.
    fn take_event(&self) -> Result<bool, VerbsError> {
        let mut state = lock(&self.state);
        self.pump(&mut state)?;
        let some = state.events > 0;
        state.events = state.events.saturating_sub(1);
        if let Some(solicited_only) = state.armed {
            self.inner.request_notify(solicited_only)?;
        }
        Ok(some)
    }

    /// The channel below had an event. It alone knows which completions are solicited. The one that it means may have
    /// been handed out already, or be withheld still: one event too many is better than a thread that sleeps for ever.
    fn note_event_below(&self) {
        let mut state = lock(&self.state);
        if state.armed == Some(true) {
            state.armed = None;
            state.told = true;
            state.events += 1;
            state.next_is_loud = true;
        }
    }
}

impl CompletionQueue for FaultyQueue {
    fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        let mut state = lock(&self.shared.state);
        self.shared.pump(&mut state)?;
        if state.overflowed {
            return Err(VerbsError::Overflow { entries: self.entries() });
        }
        state.told = false;
        let count = into.len().min(state.ready.len());
        for (slot, completion) in into.iter_mut().zip(state.ready.drain(..count)) {
            *slot = completion;
        }
        Ok(count)
    }

    fn request_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        // For a channel, what came before does not count; and the device below says whether there is a channel at all.
        let mut state = lock(&self.shared.state);
        self.shared.pump(&mut state)?;
        let solicited_only = solicited_only && state.armed != Some(false);
        self.shared.inner.request_notify(solicited_only)?;
        state.armed = Some(solicited_only);
        // A notifier hears of what came since the last poll. What of that is solicited is not known here: one call too
        // many is better than a thread that sleeps for ever.
        let waits = !state.told && !state.ready.is_empty();
        if let Some(notifier) = self.shared.notifier.get().filter(|_| waits) {
            state.armed = None;
            state.told = true;
            // What the device below told of has come, too.
            notifier.rung.store(false, Ordering::Release);
            lock(&notifier.call)();
        }
        Ok(())
    }

    fn set_notifier(&self, notifier: Arc<dyn Fn() + Send + Sync>) -> Result<(), VerbsError> {
        let shared = &self.shared;
        if let Some(known) = shared.notifier.get() {
            *lock(&known.call) = notifier;
            return Ok(());
        }
        let rung = Arc::new(AtomicBool::new(false));
        let ring = rung.clone();
        // It must not call the queue, whose lock this thread may hold: the next tick looks.
        shared.inner.set_notifier(Arc::new(move || ring.store(true, Ordering::Release)))?;
        if shared.notifier.set(Notifier { call: Mutex::new(notifier), rung }).is_ok() {
            let mut notified = lock(&shared.core.notified);
            notified.retain(|queue| queue.strong_count() > 0);
            notified.push(Arc::downgrade(shared));
        }
        Ok(())
    }

    fn resize(&self, entries: u32) -> Result<(), VerbsError> {
        let shared = &self.shared;
        shared.core.check_alive("resize_cq")?;
        shared.core.info.check_completion_queue(entries)?;
        let mut state = lock(&shared.state);
        shared.pump(&mut state)?;
        if state.ready.len() > entries as usize {
            let problem = format!("{} completions wait, and {entries} were asked for: poll first", state.ready.len());
            return Err(VerbsError::Invalid { what: "completion queue", problem });
        }
        shared.inner.resize(super::room(entries, &shared.core.info))?;
        shared.entries.store(entries, Ordering::Relaxed);
        Ok(())
    }

    fn number(&self) -> u32 {
        self.shared.inner.number()
    }

    fn entries(&self) -> u32 {
        self.shared.entries.load(Ordering::Relaxed)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A channel that also tells about completions that the device below knows nothing of.
pub(crate) struct FaultyChannel {
    inner: Arc<dyn CompletionChannel>,
    queues: Mutex<Vec<Weak<QueueShared>>>,
}

impl FaultyChannel {
    pub(super) fn new(inner: Arc<dyn CompletionChannel>) -> FaultyChannel {
        FaultyChannel { inner, queues: Mutex::default() }
    }

    pub(super) fn inner(&self) -> &Arc<dyn CompletionChannel> {
        &self.inner
    }

    pub(super) fn watch(&self, queue: &FaultyQueue) {
        lock(&self.queues).push(Arc::downgrade(&queue.shared));
    }
}

impl CompletionChannel for FaultyChannel {
    fn wait(&self, timeout: Duration) -> Result<bool, VerbsError> {
        let start = Instant::now();
        loop {
            let queues: Vec<_> = lock(&self.queues).iter().filter_map(Weak::upgrade).collect();
            for queue in &queues {
                if queue.take_event()? {
                    return Ok(true);
                }
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            if self.inner.wait(left.min(STEP))? {
                queues.iter().for_each(|queue| queue.note_event_below());
            }
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
