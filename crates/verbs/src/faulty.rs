//! A device that goes wrong on purpose, on a schedule that a seed repeats.

mod pair;
mod plan;
mod queue;

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fulmen_memory::Region;

use crate::{
    Access, CompletionChannel, CompletionQueue, Device, DeviceInfo, DmaBufRegistration, GidEntry, MemoryRegion,
    PortInfo, ProtectionDomain, QueuePair, QueuePairInit, Transition, VerbsError,
};

pub use plan::{FaultPlan, Injected, Kill, KillMode, Odds};

use pair::FaultyPair;
use plan::Fault;
use queue::{FaultyChannel, FaultyQueue};

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
    posted: AtomicU64,
    pairs_made: AtomicU64,
    dead: AtomicBool,
    pairs: Mutex<Vec<Weak<dyn QueuePair>>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Books are consistent between any two statements that could panic: a device below that panics has failed a test.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    /// Whether this fault happens to a request, and counts it if so.
    fn strikes(&self, fault: Fault, pair: u64, request: u64) -> bool {
        let strikes = self.plan.strikes(fault, pair, request);
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

    /// Counts a request; the one that the plan names, and all after it, find the device dead.
    fn note_post(&self) -> Option<KillMode> {
        let number = self.posted.fetch_add(1, Ordering::Relaxed);
        if self.plan.kill.is_some_and(|kill| number >= kill.at_request) && !self.dead.swap(true, Ordering::AcqRel) {
            // The device below answers no peer any more.
            let pairs = std::mem::take(&mut *lock(&self.pairs));
            for pair in pairs.iter().filter_map(Weak::upgrade) {
                // A queue pair that refuses to go to ERR answers nobody anyway.
                let _ = pair.modify(&Transition::Error);
            }
        }
        self.killed()
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
            posted: AtomicU64::new(0),
            pairs_made: AtomicU64::new(0),
            dead: AtomicBool::new(false),
            pairs: Mutex::new(Vec::new()),
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
        self.inner.port(number)
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
        let room = entries.saturating_add(EXTRA_ENTRIES).min(self.core.info.limits.completion_entries);
        let inner = self.inner.create_cq(room, channel.map(FaultyChannel::inner))?;
        let queue = FaultyQueue::new(inner, entries, &self.core);
        if let Some(channel) = channel {
            channel.watch(&queue);
        }
        Ok(Arc::new(queue))
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        self.core.check_alive("create_channel")?;
        Ok(Arc::new(FaultyChannel::new(self.inner.create_channel()?)))
    }
}

struct FaultyDomain {
    inner: Arc<dyn ProtectionDomain>,
    core: Arc<Core>,
}

impl ProtectionDomain for FaultyDomain {
    fn register(
        &self,
        region: &Region,
        range: Range<usize>,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        self.core.check_alive("register")?;
        self.inner.register(region, range, access)
    }

    fn register_dma_buf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Box<dyn DmaBufRegistration>, VerbsError> {
        self.core.check_alive("register_dma_buf")?;
        self.inner.register_dma_buf(fd, offset, len, access)
    }

    fn create_qp(&self, init: &QueuePairInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        self.core.check_alive("create_qp")?;
        self.core.info.check_queue_pair(init.kind, &init.limits)?;
        let queue = |queue: &Arc<dyn CompletionQueue>| {
            let own = queue.as_any().downcast_ref::<FaultyQueue>().filter(|queue| queue.is_of(&self.core));
            own.map(FaultyQueue::share).ok_or_else(|| self.core.foreign("completion queue"))
        };
        let (send, recv) = (queue(&init.send_cq)?, queue(&init.recv_cq)?);
        let mut below = QueuePairInit { send_cq: send.inner(), recv_cq: recv.inner(), ..init.clone() };
        if self.core.plan.odds(Fault::Duplicate) != Odds::NEVER {
            let depth = below.limits.send_depth.saturating_mul(2);
            below.limits.send_depth = depth.min(self.core.info.limits.queue_depth);
        }
        let inner = self.inner.create_qp(&below)?;
        let mut pairs = lock(&self.core.pairs);
        pairs.retain(|pair| pair.strong_count() > 0);
        pairs.push(Arc::downgrade(&inner));
        drop(pairs);
        let ordinal = self.core.pairs_made.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(FaultyPair::new(inner, init, self.core.clone(), ordinal, [send, recv])))
    }
}
