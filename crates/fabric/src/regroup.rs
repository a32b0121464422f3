//! Going on after ranks were lost: the end of one generation and the start of the next.
//!
//! The node and the devices stay open, and the memory of the pool stays where it is. Everything else of the old generation
//! is *retired* before anything of the new one is made: links are severed, queue pairs destroyed and registrations given
//! back, since a device may have few of them; nobody can map what this rank shared; the progress thread ends. Handles to the
//! old generation may live on. What they do fails at once, with the first cause of the end.
//!
//! A rank that was left behind *alive* (stopped, or cut off) still maps this rank's pool, and may be in the middle of writing to
//! it whenever it goes on. Where there may be one, the pool is [taken back](fulmen_memory::Pool::take_back): blocks stay as they are, as memory
//! of this process alone, and the new generation has a new pool. Where all that were left behind have ended, the pool serves
//! on, with all its blocks. Ranks of the new generation have retired the old one before anybody works in the new one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use fulmen_memory::RegionError;

use crate::bootstrap::{LostRank, Regroup, RegroupError, Session, SessionError};
use crate::fabric::Inner;
use crate::hosts::Means;
use crate::lanes::Lanes;
use crate::liveness::Fate;
use crate::start::Started;
use crate::{Fabric, Hosts, StartError, clock, muster};

/// Why there is no new generation here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoveryError {
    /// The ranks did not agree on one.
    #[error(transparent)]
    Regroup(#[from] RegroupError),
    /// They agreed, and could not connect.
    #[error("the ranks of the new generation did not connect: {0}")]
    Start(#[from] StartError),
    /// A rank that was left behind may still write to this rank's memory, and that could not be prevented.
    #[error(
        "this rank's memory cannot be kept from a rank that was left behind and may still run ({0}): end this process"
    )]
    Memory(#[source] RegionError),
}

/// Called once, when a generation ends here, with the reason.
type OnEnd = dyn Fn(&str) + Send + Sync;

/// How far the end of a generation has come.
#[derive(Default)]
pub(crate) struct Retirement {
    over: AtomicBool,
    /// A rank that goes on may still write to this rank's memory.
    written: AtomicBool,
    /// The pool has been taken back.
    taken_back: AtomicBool,
    /// Held by the thread that regroups: the session of the newest generation, where its ranks did not connect. The next
    /// attempt begins there. Until then, and until the fabric goes, this rank is a member of it.
    newest: Mutex<Option<Session>>,
    on_end: Mutex<Vec<Weak<OnEnd>>>,
}

impl Retirement {
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

impl Fabric {
    /// The rank of the launch of each rank of this generation: in the first one, the same numbers.
    #[must_use]
    pub fn members(&self) -> &[u32] {
        self.inner.session.members()
    }

    /// The ranks, as they were launched, that were lost between the generation before and this one: the same on all
    /// ranks.
    #[must_use]
    pub fn failed(&self) -> &[LostRank] {
        self.inner.session.failed()
    }

    /// Goes on in a new generation: with the ranks that are left ([`Regroup::Survivors`]), or with all ranks of the launch, where
    /// processes that were started again take the places of those that ended ([`Regroup::Everybody`]). Collective among the
    /// ranks of this generation that are not lost; [`Session::regroup`] says who is in.
    ///
    /// From its call on, operations of this generation end on all ranks, also those that only involve ranks which are
    /// not lost: with [`PeerLost`](crate::FabricError::PeerLost), which names the first cause. When it returns, all of this
    /// fabric is gone but for the handles to it, and the memory that they hold: nobody maps or registers it. Blocks of its
    /// pool can be used on. If a rank was left behind that may still run, they are plain memory to the new fabric, which has
    /// another pool; memory of windows that handles still hold may be written by that rank at any time.
    ///
    /// Should a rank be lost meanwhile, or not be able to start, it is left behind, too. Returns within `timeout`, and up to the
    /// options' timeout and 20 s more in which ranks connect.
    ///
    /// # Errors
    /// [`RecoveryError`]. After [`RecoveryError::Regroup`], the ranks may call it again on this fabric, except where it says
    /// that this rank is replaced or superseded; and after [`RecoveryError::Start`] where that says that another rank was
    /// lost, left or could not start. A rank that could not start itself has left: the others go on without it.
    pub fn regroup(&self, how: Regroup, timeout: Duration) -> Result<Fabric, RecoveryError> {
        let inner = &*self.inner;
        let retirement = &inner.retirement;
        let deadline = clock::after(timeout);
        let mut newest = match retirement.newest.try_lock() {
            Ok(newest) => newest,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(RegroupError::Busy.into()),
        };
        inner.stop_here(deadline);
        loop {
            let session = newest.as_ref().unwrap_or(&inner.session).regroup(how, clock::until(deadline))?;
            inner.retire();
            let is_written = !session.may_live().is_empty() || retirement.written.load(Ordering::Relaxed);
            if is_written && !retirement.taken_back.load(Ordering::Relaxed) {
                inner.pool.take_back().map_err(RecoveryError::Memory)?;
                inner.pool.restore();
                retirement.taken_back.store(true, Ordering::Relaxed);
            }
            let kept = Some(&inner.pool).filter(|_| !retirement.taken_back.load(Ordering::Relaxed));
            // What links run over stays as it is: this is for processes that have just joined.
            let means = Means::of(&inner.providers);
            let started = Hosts::exchange(&session, Some(means), &inner.options)
                .map_err(StartError::Session)
                .and_then(|hosts| muster::ready(&session, inner.options.timeout, Ok(hosts)))
                .and_then(|hosts| {
                    let started = Fabric::connect(&session, &inner.options, &inner.providers, &hosts, kept)?;
                    Ok((started, hosts))
                });
            match started {
                Ok((started, hosts)) => {
                    // All have retired the old generation, and the others are dead: nobody writes any more.
                    inner.pool.restore();
                    return Ok(self.succeed(session, started, hosts));
                }
                Err(error) if is_loss(&session, &error) => {
                    tracing::debug!(%error, "a rank was lost while the new generation began");
                    *newest = Some(session);
                    if Instant::now() >= deadline {
                        return Err(error.into());
                    }
                }
                // The cause is here: with its session, this rank leaves, and the others go on.
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn succeed(&self, session: Session, started: Started, hosts: Hosts) -> Fabric {
        Fabric::new(session, started, self.inner.providers.clone(), self.inner.options.clone(), hosts)
    }

    /// Has a callback called once, when this generation ends here, with the reason; at once, if it has. It is called by
    /// [`Fabric::regroup`], after all waits have been told to end, for as long as its owner keeps it; it may wait for them.
    pub fn on_end(&self, callback: Weak<OnEnd>) {
        let retirement = &self.inner.retirement;
        let mut on_end = lock(&retirement.on_end);
        if !retirement.is_over() {
            on_end.retain(|callback| callback.strong_count() > 0);
            on_end.push(callback);
            return;
        }
        drop(on_end);
        if let Some(callback) = callback.upgrade() {
            callback(&self.inner.reason());
        }
    }
}

impl Inner {
    /// Ends all waits of this rank. The others are told by the coordinator, as soon as this rank asks.
    fn stop_here(&self, deadline: Instant) {
        let Lanes { life, parker, .. } = &*self.lanes;
        // Who goes on is decided by who reaches whom: what has broken here is said before this rank asks.
        self.lanes.pump_each();
        // Where nobody is lost, a call that is over here is so at the peers when what was sent to them has arrived.
        let end = deadline.min(clock::after(self.options.farewell));
        self.lanes.end();
        while life.count() == 0 && self.lanes.is_leaving() && Instant::now() < end {
            parker.park(Duration::from_millis(10), &mut || self.lanes.pump_all());
        }
        life.end(Fate::Ended);
    }

    /// Ends this generation here. See the [module](self). Once; by the thread that regroups.
    fn retire(&self) {
        if self.retirement.is_over() {
            return;
        }
        self.progress.stop();
        // Before memory goes: a callback waits for the threads that work on that of peers.
        self.retirement.over.store(true, Ordering::Release);
        let callbacks = std::mem::take(&mut *lock(&self.retirement.on_end));
        let reason = self.reason();
        for callback in callbacks.iter().filter_map(Weak::upgrade) {
            callback(&reason);
        }
        let life = &self.lanes.life;
        let is_written = self.onesided.retire(|rank| life.loss(rank).is_none());
        self.retirement.written.store(is_written, Ordering::Relaxed);
        self.lanes.retire();
        self.lanes.sweep();
        if let Some(neighbours) = &self.neighbours {
            neighbours.retire();
        }
    }

    /// Why this generation has ended.
    fn reason(&self) -> String {
        match self.check_goes_on("regroup") {
            Err(cause) => format!("this generation of ranks has ended: {cause}"),
            Ok(()) => "this generation of ranks has ended".to_owned(),
        }
    }
}

/// Whether a start failed because of a rank that was lost or has left, so that another attempt without it may succeed. A
/// rank that could not start leaves.
fn is_loss(session: &Session, error: &StartError) -> bool {
    let gone = |cause: &SessionError| matches!(cause, SessionError::Regrouping { .. } | SessionError::PeerLeft { .. });
    match error {
        StartError::PeerFailed { .. } => true,
        StartError::Session(cause) if gone(cause) => true,
        _ => session.lost().is_some(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
