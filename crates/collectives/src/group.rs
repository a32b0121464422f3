//! What a group is, how it begins and goes on after a loss, and how a call of it runs.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fulmen_fabric::{Fabric, LostRank, OpName, Regroup, What};
use fulmen_kernels::{Element, Source, Stores};

use crate::call::Call;
use crate::deadline::Deadline;
use crate::messages::Messages;
use crate::p2p::Tags;
use crate::parts::{Parts, digest};
use crate::plan::{Algorithm, Order};
use crate::request::{How, Input, Output, Request};
use crate::started::Started;
use crate::team::Team;
use crate::windows::{Ongoing, Progress, Windows};
use crate::{Buffer, CollectiveError};

/// All ranks of a fabric, or [some](Group::split), for operations that all of them take part in. A clone is another handle to the
/// same group.
///
/// All ranks call the same operations in the same order, on data of the same type and length. One collective operation of
/// a group runs at a time: a second thread's waits for the first's. Data is a [`Buffer`] or plain memory; ranks may
/// differ in that.
///
/// When a rank is lost, every operation ends with an error on every rank, and [`Group::shrink`] or [`Group::rejoin`] gives the
/// group that goes on.
#[derive(Clone)]
pub struct Group {
    shared: Arc<Shared>,
    deadline: Duration,
    how: How,
}

struct Shared {
    team: Team,
    /// By rank, the rank of the launch.
    members: Vec<u32>,
    path: Path,
    kind: GroupKind,
    tags: Tags,
    /// Its number in this rank's record.
    recorded: u32,
    state: Mutex<State>,
    started: Started,
    /// Called by the fabric as long as the group is there.
    _on_end: Arc<OnEnd>,
}

type OnEnd = dyn Fn(&str) + Send + Sync;

/// What tells a group from others.
#[derive(Clone, Copy)]
pub(crate) struct GroupKind {
    /// The same on all ranks, and all but certainly no other group's of any two of them. Those of groups of all ranks are even.
    pub(crate) number: u64,
    /// It goes by messages also where ranks map one another's memory, and so do groups that are split off.
    pub(crate) apart: bool,
}

pub(crate) enum Path {
    Alone,
    Windows(Windows),
    Messages(Messages),
}

struct State {
    /// Calls begun.
    sequence: u64,
    progress: Progress,
    /// The first failure.
    failed: Option<Arc<str>>,
}

impl Group {
    /// The group of all ranks of a fabric. Collective: every rank calls it, and forms several groups in the same order.
    /// Groups do not disturb one another: a message ([`Group::send`]) is received by the group that sent it. Those of the first group are the
    /// fabric's own.
    ///
    /// Operations end within the fabric's timeout; [`Group::with_deadline`] chooses another.
    ///
    /// # Errors
    /// [`CollectiveError::Fabric`] if the ranks cannot map one another's memory, or a pool has no room for what is under
    /// way. When one rank fails, all do.
    pub fn new(fabric: Fabric) -> Result<Group, CollectiveError> {
        let (team, kind) = (Team::all(&fabric), GroupKind { number: 2 * fabric.number_group(), apart: false });
        if team.size() == 1 {
            return Ok(Group::over(team, Path::Alone, kind, fabric.timeout(), None));
        }
        if !fabric.has_windows() {
            return Group::over_messages(team, kind);
        }
        let timeout = fabric.timeout();
        let mut deadline = Deadline::new(timeout);
        let windows = fabric.window(Windows::LEN, deadline.left()).map_err(CollectiveError::from);
        let windows = windows.and_then(|window| Windows::new(team.clone(), window, &mut deadline));
        let path = Path::Windows(fabric.agree("group", windows, timeout)?);
        Ok(Group::over(team, path, kind, timeout, None))
    }

    /// A group whose operations go by messages alone, also where ranks map one another's memory: to measure and to test that
    /// path on one host. Otherwise as [`Group::new`].
    ///
    /// # Errors
    /// [`CollectiveError::Fabric`] if the pool has no room for what is under way. When one rank fails, all do.
    pub fn by_messages(fabric: Fabric) -> Result<Group, CollectiveError> {
        let (team, kind) = (Team::all(&fabric), GroupKind { number: 2 * fabric.number_group(), apart: true });
        if team.size() == 1 {
            return Ok(Group::over(team, Path::Alone, kind, fabric.timeout(), None));
        }
        Group::over_messages(team, kind)
    }

    /// The group of all ranks, by messages.
    fn over_messages(team: Team, kind: GroupKind) -> Result<Group, CollectiveError> {
        let (fabric, timeout) = (team.fabric.clone(), team.fabric.timeout());
        let mut deadline = Deadline::new(timeout);
        let placement = if kind.apart { None } else { team.placement() };
        let nearby = placement.map(|placement| {
            let window = fabric.window_nearby(Windows::LEN, deadline.left())?;
            team.nearby(placement, window, &mut deadline)
        });
        let messages = nearby.transpose().and_then(|nearby| Messages::new(team.clone(), kind.number, nearby));
        let path = Path::Messages(fabric.agree("group", messages, deadline.left())?);
        Ok(Group::over(team, path, kind, timeout, None))
    }

    /// `split_off` says by which call of which group, as the recorder numbers it; `None` for a group of all ranks.
    pub(crate) fn over(
        team: Team,
        path: Path,
        kind: GroupKind,
        deadline: Duration,
        split_off: Option<(u32, u64)>,
    ) -> Group {
        let fabric = team.fabric.clone();
        let members = team.ranks().iter().map(|rank| fabric.members()[*rank as usize]).collect();
        let state = Mutex::new(State { sequence: 0, progress: Progress::default(), failed: None });
        let recorded = match split_off {
            None => fabric.recorder().formed_group(team.size() as u32),
            Some((group, call)) => fabric.recorder().split_group(team.ranks(), group, call),
        };
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| {
            let shared = shared.clone();
            // Waits for the operation that is under way, which works on the memory of peers.
            let on_end: Arc<OnEnd> = Arc::new(move |why| {
                if let Some(shared) = shared.upgrade() {
                    shared.state().failed.get_or_insert_with(|| why.into());
                }
            });
            fabric.on_end(Arc::downgrade(&on_end));
            Shared {
                team,
                members,
                path,
                kind,
                tags: Tags::of(kind.number),
                recorded,
                state,
                started: Started::default(),
                _on_end: on_end,
            }
        });
        Group { shared, deadline, how: How::default() }
    }

    /// The group of the ranks that are left after some were lost. Collective among them: all that get an error call it.
    ///
    /// From the first call on, operations of this group, and of all others of the same fabric, end on all ranks, with an
    /// error that names the first cause. The ranks agree on who is left, are numbered anew in their old order
    /// ([`Group::members`] says who they were), and connect anew. This group and its clones are of no use then; buffers can be
    /// used on. Which operations had succeeded on which ranks before, programs must agree on by themselves. Of a group that was
    /// [split off](Group::split), too, it gives the one of all ranks.
    ///
    /// Returns within the deadline, and up to 20 s and twice the fabric's timeout more in which ranks connect.
    ///
    /// # Errors
    /// [`CollectiveError::Partitioned`] if this rank is not on the side that goes on, and [`CollectiveError::Recovery`].
    pub fn shrink(&self) -> Result<Group, CollectiveError> {
        self.regroup("shrink", Regroup::Survivors)
    }

    /// The group of all ranks that were launched, with processes that were started again in the place of those that were
    /// lost: these call `fulmen::init()`, and the ranks that are left call this. Otherwise as [`Group::shrink`], also when the
    /// group has shrunk before. Waits for all ranks, until the deadline.
    ///
    /// # Errors
    /// As [`Group::shrink`].
    pub fn rejoin(&self) -> Result<Group, CollectiveError> {
        self.regroup("rejoin", Regroup::Everybody)
    }

    fn regroup(&self, operation: OpName, how: Regroup) -> Result<Group, CollectiveError> {
        let end = Deadline::new(self.deadline);
        self.regroup_until(operation, how, end)
    }

    fn regroup_until(&self, operation: OpName, how: Regroup, mut end: Deadline) -> Result<Group, CollectiveError> {
        let mut before = self.shared.team.fabric.clone();
        loop {
            let fabric =
                before.regroup(how, end.left()).map_err(|cause| CollectiveError::recovery(operation, cause))?;
            let group =
                if self.shared.kind.apart { Group::by_messages(fabric.clone()) } else { Group::new(fabric.clone()) };
            match group {
                Ok(group) => return Ok(Group { deadline: self.deadline, how: self.how, ..group }),
                // Once more without the rank that was lost in between.
                Err(error) if fabric.lost().is_some() && !end.left().is_zero() => {
                    tracing::debug!(%error, "a rank was lost while the new group was formed");
                    before = fabric;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The rank of the launch of each rank of this group: in the first group, the same numbers.
    #[must_use]
    pub fn members(&self) -> &[u32] {
        &self.shared.members
    }

    /// The ranks, as they were launched, that were lost between the group before and this one: the same on all ranks.
    #[must_use]
    pub fn failed(&self) -> &[LostRank] {
        self.shared.team.fabric.failed()
    }

    /// This rank, from 0.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.shared.team.rank() as u32
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.shared.team.size() as u32
    }

    /// A rank of this group, as the fabric knows it: another number only in groups that were
    /// [split off](Group::split). Errors of links ([`FabricError`](fulmen_fabric::FabricError)) name ranks by these.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    #[track_caller]
    pub fn in_fabric(&self, rank: u32) -> u32 {
        self.shared.team.in_fabric(rank as usize)
    }

    /// Its number in this rank's record.
    pub(crate) fn recorded(&self) -> u32 {
        self.shared.recorded
    }

    pub(crate) fn team(&self) -> &Team {
        &self.shared.team
    }

    pub(crate) fn tags(&self) -> Tags {
        self.shared.tags
    }

    pub(crate) fn kind(&self) -> GroupKind {
        self.shared.kind
    }

    /// What groups that this one is split into by this call are: each rank is in one of them at most.
    pub(crate) fn kind_of_parts(&self, sequence: u64) -> GroupKind {
        let GroupKind { number, apart } = self.shared.kind;
        GroupKind { number: digest(&[number as usize, sequence as usize]) | 1, apart }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.shared.path
    }

    /// What connects the ranks.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.shared.team.fabric
    }

    /// How long an operation may take before it fails with [`FabricError::TimedOut`](fulmen_fabric::FabricError).
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The same group, with another deadline for operations that are called on this handle.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Group {
        Group { deadline, ..self.clone() }
    }

    /// The same group, whose operations that are called on this handle may combine contributions in this order. All ranks give the
    /// same. The default is [`Order::Ranks`].
    #[must_use]
    pub fn with_order(&self, order: Order) -> Group {
        Group { how: How { order, ..self.how }, ..self.clone() }
    }

    /// The same group, whose operations that are called on this handle go by this algorithm, where it can do them and ranks talk by
    /// messages; `None` has the planner choose again. To measure, and to test. All ranks give the same.
    ///
    /// All-reduces fail with [`CollectiveError::Invalid`] if the algorithm cannot do them in the [order](Group::with_order) that
    /// is asked for.
    #[must_use]
    pub fn with_algorithm(&self, algorithm: Option<Algorithm>) -> Group {
        Group { how: How { algorithm, ..self.how }, ..self.clone() }
    }

    /// The same group, whose collective operations that are called on this handle carry a tag: ranks that call with different ones get
    /// [`CollectiveError::Mismatch`]. Without, calls of the same shape are told apart by their order alone, so that ranks which make two
    /// of them in different orders get the results of one for those of the other. The default is 0. ([Messages](Group::send) have tags of
    /// their own.)
    #[must_use]
    pub fn with_tag(&self, tag: u16) -> Group {
        Group { how: How { tag, ..self.how }, ..self.clone() }
    }

    /// Registered memory for `count` elements, all of them zero.
    ///
    /// # Errors
    /// [`CollectiveError::Fabric`] if the pool has no room (`FULMEN_POOL` sets its size).
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Buffer<T>, CollectiveError> {
        let bytes = count.checked_mul(size_of::<T>()).ok_or_else(|| {
            CollectiveError::invalid("alloc", format!("{count} {} are more than there is memory", T::DTYPE))
        })?;
        Ok(Buffer::new(self.shared.team.fabric.alloc(bytes)?))
    }

    pub(crate) fn started(&self) -> &Started {
        &self.shared.started
    }

    /// Runs one call to its end, and says which one of the group it was.
    // Inlined, so that the request is put together where it stays: what was written in small parts is slow to copy.
    #[inline(always)]
    pub(crate) fn run(
        &self,
        call: Call,
        parts: Parts,
        input: Option<Input<'_>>,
        output: Output<'_>,
    ) -> Result<u64, CollectiveError> {
        let call = Call { tag: self.how.tag, ..call };
        let (rank, size) = (self.rank(), self.size());
        self.run_request(&mut Request { call, rank, size, parts, input, output, kept: false, how: self.how })
    }

    fn run_request(&self, request: &mut Request<'_>) -> Result<u64, CollectiveError> {
        let kind = request.call.kind;
        let (span, root) = (request.span(), request.call.root as usize);
        let shared = &*self.shared;
        if let Path::Messages(messages) = &shared.path {
            request.call.algorithm = Some(messages.plan(request)?);
        }
        if !shared.started.settle(self.deadline) {
            return Err(CollectiveError::Behind { operation: kind.name(), waited: self.deadline });
        }
        let mut state = shared.state();
        if let Some(cause) = &state.failed {
            return Err(CollectiveError::Poisoned { cause: cause.clone() });
        }
        state.sequence += 1;
        let State { sequence, progress, failed } = &mut *state;
        let mut deadline = Deadline::new(self.deadline);
        let recorder = shared.team.fabric.recorder();
        let begin = || {
            recorder.begin(What {
                action: kind.action(),
                group: shared.recorded,
                sequence: *sequence,
                peer: kind.has_root().then(|| shared.team.in_fabric(root)),
                bytes: span as u64,
                started: shared.started.is_here(),
                composed: matches!(shared.path, Path::Messages(_)),
            })
        };
        let mut ongoing = Ongoing::new(kind.name(), *sequence, &mut deadline, &begin);
        // Should this thread panic, the group is of no use any more.
        let mut fate = Fate { shared, sequence: *sequence, failed, over: false };
        let done = match &shared.path {
            Path::Alone => {
                request.complete(0..span, Stores::Cached, |_, _| Source::Target);
                Ok(())
            }
            Path::Windows(windows) => windows.run(request, &mut ongoing, progress),
            Path::Messages(messages) => {
                let _ = ongoing.begun();
                messages.run(request, &mut ongoing, progress)
            }
        };
        fate.over = true;
        recorder.end(ongoing.begun(), done.is_ok());
        if let Err(error) = &done {
            fate.fail(error);
            recorder.failed(kind.name(), shared.recorded, &error.to_string());
        }
        done.map(|()| *sequence)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What becomes of the group after a call.
struct Fate<'a> {
    shared: &'a Shared,
    sequence: u64,
    failed: &'a mut Option<Arc<str>>,
    over: bool,
}

impl Fate<'_> {
    /// Poisons the group, here and on the peers.
    fn fail(&mut self, error: &CollectiveError) {
        match error {
            // It says which rank failed first.
            CollectiveError::Poisoned { cause } => self.poison(cause.clone(), cause),
            other => self.fail_first(other.to_string().into()),
        }
    }

    /// This rank fails, and not since another one has.
    fn fail_first(&mut self, cause: Arc<str>) {
        let told = format!("rank {}: {cause}", self.shared.team.rank());
        self.poison(cause, &told);
    }

    fn poison(&mut self, cause: Arc<str>, told: &str) {
        tracing::debug!(call = self.sequence, %cause, "the group is poisoned");
        match &self.shared.path {
            Path::Alone => {}
            Path::Windows(windows) => windows.poison(self.sequence, told),
            Path::Messages(messages) => messages.poison(self.sequence, told),
        }
        *self.failed = Some(cause);
    }
}

#[cfg(test)]
impl Group {
    /// What the group does by windows, and how many calls it has begun.
    pub(crate) fn windows(&self) -> (&Windows, u64) {
        let Path::Windows(windows) = &self.shared.path else { panic!("the group has no windows") };
        (windows, self.shared.state.lock().unwrap().sequence)
    }
}

impl Drop for Fate<'_> {
    fn drop(&mut self) {
        if !self.over {
            const CAUSE: &str = "a thread panicked in an operation";
            self.fail_first(CAUSE.into());
            self.shared.team.fabric.recorder().failed("group", self.shared.recorded, CAUSE);
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("rank", &self.rank()).field("size", &self.size()).finish_non_exhaustive()
    }
}
