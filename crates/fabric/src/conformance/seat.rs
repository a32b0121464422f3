//! A world of threads, and each rank's place in it.

use std::net::SocketAddr;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_memory::{Exposed, Region};

use super::case::{Case, Failure, Need, Outcome, ensure};
use super::{At, Bench, PATIENCE};
use crate::bootstrap::{Heartbeat, Options, Serving};
use crate::{Coordinator, Fabric, FabricOptions, JoinConfig, Regroup, Secret, Session};

/// A thread that a busy machine does not run for some seconds is not to be taken for a dead rank.
const SILENCE: Duration = Duration::from_secs(600);

/// Plays a case on a world of its own.
pub(super) fn play(bench: &dyn Bench, case: &Case) -> Outcome {
    if case.ranks > bench.most_ranks() {
        return Err(Failure::Missing(format!("world of {} ranks", case.ranks)));
    }
    let options = bench.options(case.options());
    for need in case.needs {
        match need {
            Need::Windows if !options.windows || (1..case.ranks).any(|rank| bench.host(rank) != bench.host(0)) => {
                return Err(Failure::Missing("windows".into()));
            }
            Need::Windows => {}
        }
    }
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(format!("no world to test with: {error}"));
    let secret = Secret::generate().map_err(|error| failed(&error))?;
    let mut coordinator = None;
    bench.at(At::Meeting, &mut || coordinator = Some(serve(bench, case.ranks, &secret)));
    let coordinator = coordinator.expect("the bench does the work").map_err(|error| failed(&error))?;
    let meeting = Meeting::new(case.ranks);
    thread::scope(|scope| {
        for rank in 0..case.ranks {
            let config = JoinConfig {
                coordinator: coordinator.local_addr(),
                rank,
                size: case.ranks,
                secret: secret.clone(),
                deadline: PATIENCE,
            };
            let (meeting, options) = (&meeting, options.clone());
            let work = move || {
                // What a rank does is caught here, so that its fabric goes before anybody else is waited for.
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    let (launch, options) = (config.clone(), options.clone());
                    let mut seat = Seat { fabric: None, rank, size: case.ranks, launch, bench, options, meeting };
                    seat.join()?;
                    // The first failure is noted before the fabric goes, which makes others fail.
                    let outcome = (case.run)(&mut seat).and_then(|()| seat.finish());
                    meeting.note(rank, &outcome);
                    outcome
                }));
                let outcome =
                    outcome.unwrap_or_else(|panic| Err(Failure::Failed(format!("panicked: {}", words(&*panic)))));
                meeting.note(rank, &outcome);
            };
            scope.spawn(move || bench.at(At::Rank(rank), &mut { work }));
        }
    });
    meeting.verdict()
}

fn serve(bench: &dyn Bench, ranks: u32, secret: &Secret) -> Result<Serving, String> {
    let address = SocketAddr::from((bench.meets_at(), 0));
    let heartbeat = Heartbeat { every: Duration::from_secs(2), silence: SILENCE };
    let coordinator = Coordinator::bind(address, ranks, secret.clone(), Options { heartbeat, ..Options::default() });
    coordinator.map_err(|error| error.to_string())?.serve().map_err(|error| error.to_string())
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without words".to_string())
}

/// One rank of a case's world.
pub(super) struct Seat<'a> {
    /// None once it has left.
    fabric: Option<Fabric>,
    pub rank: u32,
    pub size: u32,
    launch: JoinConfig,
    bench: &'a dyn Bench,
    options: FabricOptions,
    meeting: &'a Meeting,
}

impl Deref for Seat<'_> {
    type Target = Fabric;

    fn deref(&self) -> &Fabric {
        self.fabric.as_ref().expect("a rank that has left does nothing more")
    }
}

impl Seat<'_> {
    /// Waits until all ranks have called it as often as this one, without any help of the fabric.
    pub(super) fn meet(&self) -> Outcome {
        self.meeting.meet(self.rank)
    }

    /// The other rank of two.
    pub(super) fn other(&self) -> u32 {
        1 - self.rank
    }

    /// All ranks but this one.
    pub(super) fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let rank = self.rank;
        (0..self.size).filter(move |other| *other != rank)
    }

    /// Memory out of the pool.
    pub(super) fn pooled(&self, len: usize) -> Outcome<Exposed> {
        Ok(self.alloc(len)?.into_exposed())
    }

    /// Says goodbye.
    pub(super) fn leave(&mut self) {
        self.fabric = None;
    }

    /// Goes without a word, as a process does that is killed: its connection to the coordinator ends and nothing that
    /// others send is taken any more.
    pub(super) fn drop_dead(&mut self) {
        if let Some(fabric) = self.fabric.take() {
            fabric.inner.session.hang_up();
            for rank in 0..self.size {
                if let Some(mut lane) = fabric.inner.lanes.lock(rank) {
                    lane.sever();
                }
            }
        }
    }

    /// Whether it has left or died.
    pub(super) fn is_gone(&self) -> bool {
        self.fabric.is_none()
    }

    /// Joins the world as its launch says; after a death, as a process does that is started again.
    pub(super) fn join(&mut self) -> Outcome {
        let session =
            Session::join(&self.launch).map_err(|error| Failure::Failed(format!("the ranks did not meet: {error}")))?;
        let providers = self.bench.providers(self.launch.rank).map_err(Failure::Failed)?;
        let options = FabricOptions { host: self.bench.host(self.launch.rank), ..self.options.clone() };
        self.sit(Fabric::start(session, options, providers)?);
        Ok(())
    }

    /// Goes on in a new generation, in which the rank may be another number.
    pub(super) fn regroup(&mut self, how: Regroup) -> Outcome {
        let next = Fabric::regroup(self, how, PATIENCE)?;
        self.sit(next);
        Ok(())
    }

    fn sit(&mut self, fabric: Fabric) {
        (self.rank, self.size) = (fabric.rank(), fabric.size());
        self.fabric = Some(fabric);
    }

    /// What every rank that has not left sees at the end of a case: all memory comes back to the pool.
    fn finish(&mut self) -> Outcome {
        // Nobody goes while an operation of another rank is under way.
        self.meet()?;
        if let Some(fabric) = &self.fabric {
            let in_use = || fabric.pool().stats().blocks;
            let end = Instant::now() + PATIENCE;
            while in_use() > 0 && Instant::now() < end {
                thread::sleep(Duration::from_millis(1));
            }
            ensure!(in_use() == 0, "{} blocks of its pool are still in use at the end", in_use());
        }
        self.meet()
    }
}

/// Waits until `ready`, for which nothing but others has to do anything.
pub(super) fn await_true(what: &str, mut ready: impl FnMut() -> bool) -> Outcome {
    let end = Instant::now() + PATIENCE;
    while !ready() {
        ensure!(Instant::now() < end, "waited {} s for {what}", PATIENCE.as_secs());
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// Memory that no carrier knows.
pub(super) fn private(len: usize) -> Outcome<Exposed> {
    Ok(Region::alloc(len.max(1))?.expose()?.slice(0..len))
}

/// Where ranks wait for one another, and where the first failure ends everybody's waiting.
struct Meeting {
    size: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    here: u32,
    round: u64,
    failure: Option<Failure>,
}

impl Meeting {
    fn new(size: u32) -> Meeting {
        Meeting { size, state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meet(&self, rank: u32) -> Outcome {
        let mut state = self.lock();
        state.here += 1;
        if state.here == self.size {
            state.here = 0;
            state.round += 1;
            self.changed.notify_all();
            return Ok(());
        }
        let round = state.round;
        let waiting = |state: &mut State| state.round == round && state.failure.is_none();
        // Twice as long as any wait of the others.
        let waited = self.changed.wait_timeout_while(state, 2 * PATIENCE, waiting);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match &state.failure {
            Some(failure) => Err(failure.clone()),
            None => {
                ensure!(state.round != round, "rank {rank} waited in vain for the others");
                Ok(())
            }
        }
    }

    fn note(&self, rank: u32, outcome: &Outcome) {
        let Err(failure) = outcome else { return };
        let mut state = self.lock();
        state.failure.get_or_insert_with(|| match failure {
            Failure::Failed(how) => Failure::Failed(format!("rank {rank}: {how}")),
            missing => missing.clone(),
        });
        self.changed.notify_all();
    }

    fn verdict(&self) -> Outcome {
        self.lock().failure.clone().map_or(Ok(()), Err)
    }
}
