//! A device that goes wrong on purpose, on a schedule that a seed repeats.

mod cable;
mod domain;
mod pair;
mod plan;
mod queue;
mod spec;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use crate::{
    AsyncEvent, CompletionChannel, CompletionQueue, Device, DeviceInfo, GidEntry, PortInfo, PortState,
    ProtectionDomain, QueuePair, Transition, VerbsError,
};

pub use plan::{CablePull, FaultPlan, Injected, Kill, KillMode, Odds};
pub use spec::FaultSpecError;

use cable::{Cable, Look};
use domain::FaultyDomain;
use plan::Fault;
use queue::{FaultyChannel, FaultyQueue, QueueShared};

/// The decorated completion queue is made larger by so much: it sees silent sends and duplicates, too.
const EXTRA_ENTRIES: u32 = 4096;

/// A decorator over any device, that injects faults as a [`FaultPlan`] says and is otherwise like the device below.
///
/// It acts on what is posted and on the completions that are handed out, and keeps to the rules of the transport
/// service: completions of a queue stay in order, a reliable connection never loses, repeats or damages anything
/// silently (a dropped request fails with `RetryExceeded`, and those behind it are flushed), and an unreliable one may
/// do all of that.
pub struct Faulty {
    inner: Arc<dyn Device>,
    core: Arc<Core>,
}

/// What all objects of one faulty device share.
pub(crate) struct Core {
    plan: FaultPlan,
    info: DeviceInfo,
    injected: [AtomicU64; Fault::COUNT],
    /// How often each fault could have happened.
    chances: [AtomicU64; Fault::COUNT],
    posted: AtomicU64,
    pairs_made: AtomicU64,
    dead: AtomicBool,
    cable: Cable,
    pairs: Mutex<Vec<Weak<dyn QueuePair>>>,
    /// Queues whose events a notifier hears of.
    notified: Mutex<Vec<Weak<QueueShared>>>,
    on_event: Mutex<Option<Arc<OnEvent>>>,
}

type OnEvent = dyn Fn(AsyncEvent) + Send + Sync;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Books are consistent between any two statements that could panic: a device below that panics has failed a test.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The entries of a completion queue of the device below.
fn room(entries: u32, info: &DeviceInfo) -> u32 {
    entries.saturating_add(EXTRA_ENTRIES).min(info.limits.completion_entries)
}

impl Core {
    /// Whether this fault happens to a request that it could happen to.
    fn decides(&self, fault: Fault, pair: u64, request: u64) -> bool {
        let nth = self.chances[fault as usize].fetch_add(1, Ordering::Relaxed) + 1;
        self.plan.strikes(fault, pair, request, nth)
    }

    /// Whether this fault happens to a request, and counts it if so.
    fn strikes(&self, fault: Fault, pair: u64, request: u64) -> bool {
        let strikes = self.decides(fault, pair, request);
        if strikes {
            self.count(fault);
        }
        strikes
    }

    fn count(&self, fault: Fault) {
        self.injected[fault as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How the device died, if it has.
    fn killed(&self) -> Option<KillMode> {
        let dead = self.dead.load(Ordering::Acquire);
        self.plan.kill.filter(|_| dead).map(|kill| kill.mode)
    }

    /// Counts a request, and has the faults of the whole device happen that the plan has for it: whether, and how, the
    /// device is dead.
    fn note_post(&self) -> Option<KillMode> {
        let number = self.posted.fetch_add(1, Ordering::Relaxed);
        if self.decides(Fault::KillProcess, 0, number) {
            // It cannot fail: a process may always signal itself. What is left to do, if it did, is to end anyway.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            std::process::abort();
        }
        if let Some(pull) = self.plan.cable.filter(|_| self.decides(Fault::Cable, 0, number)) {
            let until = pull.lasts.map(|lasts| Instant::now() + lasts);
            if self.cable.pull(until) {
                if until.is_none() {
                    self.silence();
                }
                self.tell(AsyncEvent::PortError { port: 1 });
            }
        }
        if let Some(kill) = self.plan.kill.filter(|_| self.decides(Fault::Kill, 0, number))
            && !self.dead.swap(true, Ordering::AcqRel)
        {
            self.silence();
            if kill.mode == KillMode::FailsEverything {
                self.tell(AsyncEvent::DeviceFatal);
            }
        }
        self.killed()
    }

    /// The device below answers no peer any more.
    fn silence(&self) {
        let pairs = std::mem::take(&mut *lock(&self.pairs));
        for pair in pairs.iter().filter_map(Weak::upgrade) {
            // A queue pair that refuses to go to ERR answers nobody anyway.
            let _ = pair.modify(&Transition::Error);
        }
    }

    fn tell(&self, event: AsyncEvent) {
        let callback = lock(&self.on_event).clone();
        if let Some(callback) = callback {
            callback(event);
        }
    }

    /// Looks at the cable, and says when it is back.
    fn cable(&self) -> Look {
        let look = self.cable.look();
        if look == Look::Back {
            self.tell(AsyncEvent::PortActive { port: 1 });
        }
        look
    }

    /// Whether the cable is out now.
    fn is_cut_off(&self) -> bool {
        matches!(self.cable(), Look::Out | Look::Gone)
    }

    fn error(&self, call: &'static str) -> VerbsError {
        let cause = "a fault was injected, as the plan of faults says".to_string();
        VerbsError::System { device: self.info.name.clone(), call, cause }
    }

    fn check_alive(&self, call: &'static str) -> Result<(), VerbsError> {
        match self.killed() {
            Some(KillMode::FailsEverything) => Err(self.error(call)),
            Some(KillMode::Silent) | None => Ok(()),
        }
    }

    fn foreign(&self, what: &'static str) -> VerbsError {
        VerbsError::Foreign { what, device: self.info.name.clone() }
    }
}

impl Faulty {
    /// Decorates a device.
    #[must_use]
    pub fn new(inner: Arc<dyn Device>, plan: FaultPlan) -> Arc<Faulty> {
        let core = Core {
            plan,
            info: inner.info().clone(),
            injected: Default::default(),
            chances: Default::default(),
            posted: AtomicU64::new(0),
            pairs_made: AtomicU64::new(0),
            dead: AtomicBool::new(false),
            cable: Cable::default(),
            pairs: Mutex::default(),
            notified: Mutex::default(),
            on_event: Mutex::default(),
        };
        Arc::new(Faulty { inner, core: Arc::new(core) })
    }

    /// How many faults were injected so far.
    #[must_use]
    pub fn injected(&self) -> Injected {
        let count = |fault: Fault| self.core.injected[fault as usize].load(Ordering::Relaxed);
        Injected {
            dropped: count(Fault::Drop),
            duplicated: count(Fault::Duplicate),
            corrupted: count(Fault::Corrupt),
            delayed: count(Fault::Delay),
            failed_posts: count(Fault::FailPost),
            failed_completions: count(Fault::FailCompletion),
        }
    }

    /// Moves on what time alone moves, and calls the notifiers of completion queues. Whoever uses notifiers calls it
    /// every millisecond or so, from a thread that may wait; channels and polls need it not.
    pub fn tick(&self) {
        self.core.cable();
        let queues: Vec<_> = lock(&self.core.notified).iter().filter_map(Weak::upgrade).collect();
        for queue in queues {
            // What cannot be looked at now is an error that the next poll tells.
            let _ = queue.tick();
        }
    }

    /// Whether the plan has killed the device.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.core.killed().is_some()
    }
}

impl Device for Faulty {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn port(&self, number: u8) -> Result<PortInfo, VerbsError> {
        let port = self.inner.port(number)?;
        Ok(if self.core.is_cut_off() { PortInfo { state: PortState::Down, ..port } } else { port })
    }

    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.inner.gid_table(port)
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        self.core.check_alive("alloc_pd")?;
        Ok(Arc::new(FaultyDomain { inner: self.inner.alloc_pd()?, core: self.core.clone() }))
    }

    fn create_cq(
        &self,
        entries: u32,
        channel: Option<&Arc<dyn CompletionChannel>>,
    ) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        self.core.check_alive("create_cq")?;
        self.core.info.check_completion_queue(entries)?;
        let foreign = || self.core.foreign("completion channel");
        let channel = match channel {
            Some(channel) => Some(channel.as_any().downcast_ref::<FaultyChannel>().ok_or_else(foreign)?),
            None => None,
        };
        let inner = self.inner.create_cq(room(entries, &self.core.info), channel.map(FaultyChannel::inner))?;
        let queue = FaultyQueue::new(inner, entries, &self.core);
        if let Some(channel) = channel {
            channel.watch(&queue);
        }
        Ok(Arc::new(queue))
    }

    fn on_event(&self, callback: Arc<dyn Fn(AsyncEvent) + Send + Sync>) -> Result<(), VerbsError> {
        *lock(&self.core.on_event) = Some(callback.clone());
        match self.inner.on_event(callback) {
            // Its own events are told in any case.
            Ok(()) | Err(VerbsError::Unsupported { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        self.core.check_alive("create_channel")?;
        Ok(Arc::new(FaultyChannel::new(self.inner.create_channel()?)))
    }
}
