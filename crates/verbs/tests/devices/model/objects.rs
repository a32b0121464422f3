//! The objects of the model, as programs hold them.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use fulmen_memory::Region;
use fulmen_verbs::{
    Access, AsyncEvent, Claim, Completion, CompletionChannel, CompletionQueue, MemoryRegion, PostError,
    ProtectionDomain, QueuePair, QueuePairInit, QueuePairLimits, QueuePairState, RecvRequest, SendRequest, Transition,
    VerbsError, check_post_recv, check_post_send,
};

use super::wire::{Entry, Pair, Registration, World};
use super::{Bug, Shared, Teller, tell};

pub type Events = Arc<(Mutex<u32>, Condvar)>;

#[derive(Default)]
pub struct Channel {
    pub events: Events,
}

impl CompletionChannel for Channel {
    fn wait(&self, timeout: Duration) -> Result<bool, VerbsError> {
        let (count, bell) = &*self.events;
        let count = count.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut count, _) =
            bell.wait_timeout_while(count, timeout, |count| *count == 0).unwrap_or_else(PoisonError::into_inner);
        let some = *count > 0;
        *count = count.saturating_sub(1);
        Ok(some)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A completion queue, as the wire fills it.
pub struct Inbox {
    number: u32,
    events: Option<Events>,
    state: Mutex<InboxState>,
    teller: Arc<Teller>,
    stays_armed: bool,
}

struct InboxState {
    entries: u32,
    notifier: Option<Arc<dyn Fn() + Send + Sync>>,
    completions: VecDeque<Completion>,
    overflowed: bool,
    /// `Some(true)`: for solicited completions only.
    armed: Option<bool>,
    /// Of an event, since the last poll.
    told: bool,
    /// How many completions there are up to the last solicited or failed one.
    loud: usize,
}

impl Inbox {
    pub fn push(&self, completion: Completion, solicited: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.completions.len() >= state.entries as usize {
            if !std::mem::replace(&mut state.overflowed, true) {
                tell(&self.teller, AsyncEvent::CompletionQueueFatal { number: self.number });
            }
            return;
        }
        state.completions.push_back(completion);
        let loud = solicited || !completion.status.is_success();
        if loud {
            state.loud = state.completions.len();
        }
        let wakes = state.armed.is_some_and(|only_solicited| !only_solicited || loud);
        if !wakes {
            return;
        }
        if !self.stays_armed {
            state.armed = None;
        }
        state.told = true;
        if let Some(notifier) = &state.notifier {
            notifier();
        } else if let Some(events) = &self.events {
            *events.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            events.1.notify_one();
        }
    }
}

pub struct Queue {
    pub inbox: Arc<Inbox>,
    shared: Arc<Shared>,
    _claim: Claim,
}

impl Queue {
    pub fn new(shared: &Arc<Shared>, entries: u32, events: Option<Events>) -> Result<Queue, VerbsError> {
        let claim = shared.queues.take()?;
        let state = InboxState {
            entries,
            notifier: None,
            completions: VecDeque::new(),
            overflowed: false,
            armed: None,
            told: false,
            loud: 0,
        };
        let number = shared.world().fresh();
        let (teller, stays_armed) = (shared.teller.clone(), shared.has(Bug::StaysArmed));
        let inbox = Inbox { number, events, state: Mutex::new(state), teller, stays_armed };
        Ok(Queue { inbox: Arc::new(inbox), shared: shared.clone(), _claim: claim })
    }
}

impl CompletionQueue for Queue {
    fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        let mut state = self.inbox.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.overflowed {
            return Err(VerbsError::Overflow { entries: state.entries });
        }
        state.told = false;
        let count = into.len().min(state.completions.len());
        state.loud = state.loud.saturating_sub(count);
        for (slot, completion) in into.iter_mut().zip(state.completions.drain(..count)) {
            *slot = completion;
        }
        Ok(count)
    }

    fn request_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        let mut state = self.inbox.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.inbox.events.is_none() && state.notifier.is_none() {
            let problem = "it has no channel: make it with one".to_string();
            return Err(VerbsError::Invalid { what: "notification of a completion queue", problem });
        }
        state.armed = Some(solicited_only && state.armed != Some(false));
        let waiting = if state.armed == Some(true) { state.loud } else { state.completions.len() };
        let waits = !state.told && waiting > 0;
        if let Some(notifier) = state.notifier.clone().filter(|_| waits) {
            state.armed = None;
            state.told = true;
            drop(state);
            notifier();
        }
        Ok(())
    }

    fn entries(&self) -> u32 {
        self.inbox.state.lock().unwrap_or_else(PoisonError::into_inner).entries
    }

    fn set_notifier(&self, notifier: Arc<dyn Fn() + Send + Sync>) -> Result<(), VerbsError> {
        self.inbox.state.lock().unwrap_or_else(PoisonError::into_inner).notifier = Some(notifier);
        Ok(())
    }

    fn resize(&self, entries: u32) -> Result<(), VerbsError> {
        self.shared.info.check_completion_queue(entries)?;
        let mut state = self.inbox.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.completions.len() > entries as usize && !self.shared.has(Bug::ShrinksTooFar) {
            let problem = format!("{} completions wait", state.completions.len());
            return Err(VerbsError::Invalid { what: "completion queue", problem });
        }
        state.entries = entries;
        Ok(())
    }

    fn number(&self) -> u32 {
        self.inbox.number
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

pub struct Domain {
    shared: Arc<Shared>,
    id: Arc<(u32, Claim)>,
}

impl Domain {
    pub fn new(shared: &Arc<Shared>) -> Result<Arc<Domain>, VerbsError> {
        let claim = shared.domains.take()?;
        let id = shared.world().fresh();
        Ok(Arc::new(Domain { shared: shared.clone(), id: Arc::new((id, claim)) }))
    }
}

impl ProtectionDomain for Domain {
    fn register(
        &self,
        region: &Region,
        range: Range<usize>,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        self.shared.info.check_registration(region, &range, access)?;
        let claim = self.shared.registrations.take()?;
        let mut world = self.shared.world();
        let (lkey, rkey) = (world.fresh(), world.fresh());
        let registration = Registration { domain: self.id.0, region: region.clone(), range: range.clone(), access };
        world.registrations.insert(lkey, registration.clone());
        world.registrations.insert(rkey, registration);
        let (shared, domain) = (self.shared.clone(), self.id.clone());
        let region = region.clone();
        drop(world);
        Ok(Arc::new(Registered { shared, region, range, access, lkey, rkey, _claim: claim, _domain: domain }))
    }

    fn create_qp(&self, init: &QueuePairInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        self.shared.info.check_queue_pair(init.kind, &init.limits)?;
        let inbox = |queue: &Arc<dyn CompletionQueue>| {
            let own = queue.as_any().downcast_ref::<Queue>();
            let own = own.filter(|queue| Arc::ptr_eq(&queue.shared, &self.shared));
            let foreign = || VerbsError::Foreign { what: "completion queue", device: self.shared.info.name.clone() };
            own.map(|queue| queue.inbox.clone()).ok_or_else(foreign)
        };
        let (send, recv) = (inbox(&init.send_cq)?, inbox(&init.recv_cq)?);
        let claim = self.shared.queue_pairs.take()?;
        let mut world = self.shared.world();
        let number = world.fresh();
        let pair = Pair::new(init, self.id.0, self.shared.clone(), send, recv);
        world.pairs.insert(number, pair);
        if self.shared.has(Bug::LeaksQueuePairs) {
            std::mem::forget(claim);
            let claim = self.shared.domains.take_many(0)?;
            return Ok(Arc::new(Connected::new(self, init, number, claim)));
        }
        Ok(Arc::new(Connected::new(self, init, number, claim)))
    }
}

struct Registered {
    shared: Arc<Shared>,
    region: Region,
    range: Range<usize>,
    access: Access,
    lkey: u32,
    rkey: u32,
    _claim: Claim,
    _domain: Arc<(u32, Claim)>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.shared.has(Bug::StaleKeys) {
            return;
        }
        let mut world = self.shared.world();
        let gone = [world.registrations.remove(&self.lkey), world.registrations.remove(&self.rkey)];
        drop(world);
        drop(gone);
    }
}

impl MemoryRegion for Registered {
    fn region(&self) -> &Region {
        &self.region
    }

    fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    fn access(&self) -> Access {
        self.access
    }

    fn lkey(&self) -> u32 {
        self.lkey
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }
}

struct Connected {
    shared: Arc<Shared>,
    number: u32,
    limits: QueuePairLimits,
    init: QueuePairInit,
    _claim: Claim,
    _domain: Arc<(u32, Claim)>,
}

impl Connected {
    fn new(domain: &Domain, init: &QueuePairInit, number: u32, claim: Claim) -> Connected {
        let (shared, domain) = (domain.shared.clone(), domain.id.clone());
        Connected { shared, number, limits: init.limits, init: init.clone(), _claim: claim, _domain: domain }
    }

    fn with<T>(&self, action: impl FnOnce(&mut World) -> T) -> T {
        action(&mut self.shared.world())
    }

    fn full(&self, queue: &'static str, depth: u32) -> VerbsError {
        VerbsError::QueueFull { queue, qp_num: self.number, depth }
    }

    fn post_one(&self, world: &mut World, request: &SendRequest) -> Result<(), VerbsError> {
        let pair = world.pairs.get_mut(&self.number).expect("made with the handle");
        check_post_send(self.number, pair.state)?;
        let depth = self.shared.info.check_send(self.init.kind, &self.limits, request)?;
        let used: u64 = pair.sends.iter().map(|entry| entry.depth).sum();
        let more = u64::from(self.shared.has(Bug::DeepQueue));
        if used + depth > u64::from(self.limits.send_depth) + more {
            return Err(self.full("send", self.limits.send_depth));
        }
        let mut request = request.clone();
        request.signaled |= self.init.signal_all || self.shared.has(Bug::SignalsAll);
        let inline = request.inline && !self.shared.has(Bug::LateInline);
        let held = pair.state == QueuePairState::SendDrain;
        pair.sends.push_back(Entry::new(request, inline, depth, held));
        world.progress();
        Ok(())
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let gone = self.with(|world| {
            let gone = world.pairs.remove(&self.number);
            world.progress();
            gone
        });
        // Outside of the lock: it holds handles to memory.
        drop(gone);
    }
}

impl QueuePair for Connected {
    fn qp_num(&self) -> u32 {
        self.number
    }

    fn state(&self) -> QueuePairState {
        self.with(|world| world.pairs[&self.number].state)
    }

    fn limits(&self) -> QueuePairLimits {
        self.limits
    }

    fn modify(&self, transition: &Transition) -> Result<(), VerbsError> {
        if self.shared.has(Bug::AnyTransition) && matches!(transition, Transition::SendDrain) {
            self.with(|world| world.pairs.get_mut(&self.number).expect("made").state = QueuePairState::SendDrain);
            return Ok(());
        }
        if let Transition::ReadyToReceive { path, .. } = transition
            && path.local_gid_index != 0
        {
            let problem = format!("the table has no entry {}", path.local_gid_index);
            return Err(VerbsError::Invalid { what: "local_gid_index", problem });
        }
        self.with(|world| {
            self.shared.info.check_transition(self.number, world.pairs[&self.number].state, transition)?;
            world.change(self.number, transition);
            world.progress();
            Ok(())
        })
    }

    fn post_send(&self, requests: &[SendRequest]) -> Result<(), PostError> {
        self.with(|world| {
            let posted = requests.iter().enumerate();
            let mut posted = posted.map(|(index, request)| (index, self.post_one(world, request)));
            posted.try_for_each(|(index, done)| done.map_err(|cause| PostError { index, cause }))
        })
    }

    fn post_recv(&self, requests: &[RecvRequest]) -> Result<(), PostError> {
        self.with(|world| {
            for (index, request) in requests.iter().enumerate() {
                let pair = world.pairs.get_mut(&self.number).expect("made with the handle");
                let posted = check_post_recv(self.number, pair.state).and_then(|()| {
                    let depth = self.shared.info.check_recv(&self.limits, request)?;
                    let used: u64 =
                        pair.recvs.iter().map(|queued| self.shared.info.limits.depth_of(queued.bytes())).sum();
                    let more = u64::from(self.shared.has(Bug::DeepQueue));
                    if used + depth > u64::from(self.limits.recv_depth) + more {
                        return Err(self.full("receive", self.limits.recv_depth));
                    }
                    pair.recvs.push_back(request.clone());
                    Ok(())
                });
                posted.map_err(|cause| PostError { index, cause })?;
                world.progress();
            }
            Ok(())
        })
    }
}
