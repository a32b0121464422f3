use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::pair::{Books, Side};
use super::{Core, lock};
use crate::{Completion, CompletionChannel, CompletionOpcode, CompletionQueue, CompletionStatus, VerbsError};

/// How long a parked thread lets a completion wait that this device withholds or makes up itself.
const STEP: Duration = Duration::from_millis(1);

/// A completion queue that hands out what the device below says, and what the plan makes of it.
pub(crate) struct FaultyQueue {
    shared: Arc<QueueShared>,
}

pub(crate) struct QueueShared {
    inner: Arc<dyn CompletionQueue>,
    core: Arc<Core>,
    entries: u32,
    state: Mutex<QueueState>,
}

#[derive(Default)]
struct QueueState {
    ready: VecDeque<Completion>,
    overflowed: bool,
    /// `Some(true)`: for solicited completions only.
    armed: Option<bool>,
    /// The device below told of a solicited completion, which may not have come through here yet.
    next_is_loud: bool,
    /// Events for the channel that it has not told.
    events: u32,
    users: Vec<(Weak<Mutex<Books>>, Side)>,
}

impl FaultyQueue {
    pub(super) fn new(inner: Arc<dyn CompletionQueue>, entries: u32, core: &Arc<Core>) -> FaultyQueue {
        let state = Mutex::default();
        FaultyQueue { shared: Arc::new(QueueShared { inner, core: core.clone(), entries, state }) }
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
        let nothing = Completion {
            wr_id: 0,
            status: CompletionStatus::General,
            opcode: CompletionOpcode::Send,
            byte_len: 0,
            imm: None,
            qp_num: 0,
        };
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
                if state.ready.len() == self.entries as usize {
                    state.overflowed = true;
                    return;
                }
                let loud = std::mem::take(&mut state.next_is_loud) || !completion.status.is_success();
                if state.armed.is_some_and(|only_solicited| !only_solicited || loud) {
                    state.armed = None;
                    state.events += 1;
                }
                state.ready.push_back(completion);
            });
        }
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
            return Err(VerbsError::Overflow { entries: self.shared.entries });
        }
        let count = into.len().min(state.ready.len());
        for (slot, completion) in into.iter_mut().zip(state.ready.drain(..count)) {
            *slot = completion;
        }
        Ok(count)
    }

    fn request_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        // What came before does not count, and the device below says whether there is a channel at all.
        let mut state = lock(&self.shared.state);
        self.shared.pump(&mut state)?;
        let solicited_only = solicited_only && state.armed != Some(false);
        self.shared.inner.request_notify(solicited_only)?;
        state.armed = Some(solicited_only);
        Ok(())
    }

    fn entries(&self) -> u32 {
        self.shared.entries
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
