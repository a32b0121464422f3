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
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use fulmen_memory::RegionError;

use crate::bootstrap::{LostRank, Regroup, RegroupError, Session, SessionError};
use crate::fabric::{self, Inner, Started};
use crate::liveness::Fate;
use crate::{Fabric, StartError, clock};

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
    /// Held by the thread that ends it.
    ending: Mutex<()>,
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
    /// Should a rank be lost meanwhile, it is left behind, too. Returns within `timeout`, and up to the options' timeout and
    /// 20 s more in which ranks connect.
    ///
    /// # Errors
    /// [`RecoveryError`]. After [`RecoveryError::Regroup`], the ranks may call it again on this fabric, except where it says
    /// that this rank is replaced or superseded.
    pub fn regroup(&self, how: Regroup, timeout: Duration) -> Result<Fabric, RecoveryError> {
        let inner = &*self.inner;
        let deadline = clock::after(timeout);
        let mut session = inner.regroup_from(&inner.session, how, deadline)?;
        inner.retire();
        let mut kept = Some(&inner.pool);
        loop {
            if kept.is_some() && !session.may_live().is_empty() {
                inner.pool.take_back().map_err(RecoveryError::Memory)?;
                inner.pool.restore();
                kept = None;
            }
            let started = fabric::ready(&session, inner.options.timeout, Ok(()))
                .and_then(|()| Fabric::connect(&session, &inner.options, &inner.providers, kept));
            match started {
                Ok(started) => {
                    // All have retired the old generation, and the others are dead: nobody writes any more.
                    inner.pool.restore();
                    return Ok(self.succeed(session, started));
                }
                Err(error) if is_loss(&session, &error) && Instant::now() < deadline => {
                    tracing::debug!(%error, "a rank was lost while the new generation began");
                    session = session.regroup(how, clock::until(deadline))?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn succeed(&self, session: Session, started: Started) -> Fabric {
        Fabric::new(session, started, self.inner.providers.clone(), self.inner.options.clone())
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
    fn regroup_from(&self, session: &Session, how: Regroup, deadline: Instant) -> Result<Session, RegroupError> {
        // The others are told by the coordinator.
        self.lanes.life.end(Fate::Ended);
        session.regroup(how, clock::until(deadline))
    }

    /// Ends this generation here. See the [module](self). Once: a second thread waits for the first.
    fn retire(&self) {
        let _ending = lock(&self.retirement.ending);
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
        self.onesided.retire(|rank| life.loss(rank).is_none());
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

/// Whether a start failed because a rank was lost, so that another attempt without it may succeed.
fn is_loss(session: &Session, error: &StartError) -> bool {
    session.lost().is_some() || matches!(error, StartError::Session(SessionError::Regrouping { .. }))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
