//! The group of all ranks, and its operations.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fulmen_fabric::{Fabric, LostRank, OpName, Regroup, What};
use fulmen_kernels::{DType, Element, ReduceOp, Source, Stores, ValuesMut};

use crate::call::{Call, Kind};
use crate::deadline::Deadline;
use crate::messages::Messages;
use crate::request::{Input, Output, Request};
use crate::windows::{Ongoing, Progress, Windows};
use crate::{Buffer, CollectiveError, Data};

/// All ranks of a fabric, for operations that all of them take part in. A clone is another handle to the same group.
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
}

struct Shared {
    fabric: Fabric,
    path: Path,
    /// Its number in this rank's record.
    recorded: u32,
    state: Mutex<State>,
    /// Called by the fabric as long as the group is there.
    _on_end: Arc<OnEnd>,
}

type OnEnd = dyn Fn(&str) + Send + Sync;

enum Path {
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
    /// Groups do not disturb one another; messages between two ranks ([`Group::send`]) are those of the fabric, whatever
    /// group they are sent by.
    ///
    /// Operations end within the fabric's timeout; [`Group::with_deadline`] chooses another.
    ///
    /// # Errors
    /// [`CollectiveError::Fabric`] if the ranks cannot map one another's memory, or a pool has no room for what is under
    /// way. When one rank fails, all do.
    pub fn new(fabric: Fabric) -> Result<Group, CollectiveError> {
        let deadline = fabric.timeout();
        let path = if fabric.size() == 1 {
            Path::Alone
        } else if fabric.has_windows() {
            let windows = Windows::new(&fabric, &mut Deadline::new(deadline));
            Path::Windows(fabric.agree("group", windows, deadline)?)
        } else {
            Path::Messages(fabric.agree("group", Messages::new(&fabric), deadline)?)
        };
        Ok(Group::over(fabric, path))
    }

    /// A group whose operations go by messages, also where ranks map one another's memory: to measure and to test that
    /// path on one host. Otherwise as [`Group::new`].
    ///
    /// # Errors
    /// [`CollectiveError::Fabric`] if the pool has no room for what is under way. When one rank fails, all do.
    pub fn by_messages(fabric: Fabric) -> Result<Group, CollectiveError> {
        let path = if fabric.size() == 1 {
            Path::Alone
        } else {
            Path::Messages(fabric.agree("group", Messages::new(&fabric), fabric.timeout())?)
        };
        Ok(Group::over(fabric, path))
    }

    fn over(fabric: Fabric, path: Path) -> Group {
        let deadline = fabric.timeout();
        let state = Mutex::new(State { sequence: 0, progress: Progress::default(), failed: None });
        let recorded = fabric.recorder().formed_group(fabric.size());
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| {
            let shared = shared.clone();
            // Waits for the operation that is under way, which works on the memory of peers.
            let on_end: Arc<OnEnd> = Arc::new(move |why| {
                if let Some(shared) = shared.upgrade() {
                    shared.state().failed.get_or_insert_with(|| why.into());
                }
            });
            fabric.on_end(Arc::downgrade(&on_end));
            Shared { fabric, path, recorded, state, _on_end: on_end }
        });
        Group { shared, deadline }
    }

    /// The group of the ranks that are left after some were lost. Collective among them: all that get an error call it.
    ///
    /// From the first call on, operations of this group, and of all others of the same fabric, end on all ranks, with an
    /// error that names the first cause. The ranks agree on who is left, are numbered anew in their old order
    /// ([`Group::members`] says who they were), and connect anew. This group and its clones are of no use then; buffers can be
    /// used on. Which operations had succeeded on which ranks before, programs must agree on by themselves.
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
        let by_messages = matches!(self.shared.path, Path::Messages(_));
        self.regroup_until(operation, how, by_messages, end)
    }

    fn regroup_until(
        &self,
        operation: OpName,
        how: Regroup,
        by_messages: bool,
        mut end: Deadline,
    ) -> Result<Group, CollectiveError> {
        let mut before = self.shared.fabric.clone();
        loop {
            let fabric =
                before.regroup(how, end.left()).map_err(|cause| CollectiveError::recovery(operation, cause))?;
            let group = if by_messages { Group::by_messages(fabric.clone()) } else { Group::new(fabric.clone()) };
            match group {
                Ok(group) => return Ok(group.with_deadline(self.deadline)),
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
        self.shared.fabric.members()
    }

    /// The ranks, as they were launched, that were lost between the group before and this one: the same on all ranks.
    #[must_use]
    pub fn failed(&self) -> &[LostRank] {
        self.shared.fabric.failed()
    }

    /// This rank, from 0.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.shared.fabric.rank()
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.shared.fabric.size()
    }

    /// What connects the ranks.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.shared.fabric
    }

    /// How long an operation may take before it fails with [`FabricError::TimedOut`](fulmen_fabric::FabricError).
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The same group, with another deadline for operations that are called on this handle.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Group {
        Group { shared: self.shared.clone(), deadline }
    }

    /// Registered memory for `count` elements, all of them zero.
    ///
    /// # Errors
    /// [`CollectiveError::Fabric`] if the pool has no room (`FULMEN_POOL` sets its size).
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Buffer<T>, CollectiveError> {
        let bytes = count.checked_mul(size_of::<T>()).ok_or_else(|| {
            CollectiveError::invalid("alloc", format!("{count} {} are more than there is memory", T::DTYPE))
        })?;
        Ok(Buffer::new(self.shared.fabric.alloc(bytes)?))
    }

    /// Combines the ranks' `data`, element by element in rank order; all ranks get the result, in place.
    ///
    /// # Errors
    /// [`CollectiveError::Mismatch`], [`CollectiveError::Poisoned`], [`CollectiveError::Fabric`] (a lost rank, the
    /// deadline), and [`CollectiveError::Unsupported`] for minima and maxima of complex numbers. When it fails, what
    /// `data` holds is unspecified.
    pub fn all_reduce<D: Data + ?Sized>(&self, data: &mut D, op: ReduceOp) -> Result<(), CollectiveError> {
        op.supports(D::Element::DTYPE)?;
        let output = data.output();
        let count = elements::<D::Element>(output.bytes());
        self.run(Kind::AllReduce, D::Element::DTYPE, op, 0, count, None, output)
    }

    /// [`Group::all_reduce`] of `from`, into `to`. Both have the same length.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`] if the lengths differ.
    pub fn all_reduce_into<S, D>(&self, from: &S, to: &mut D, op: ReduceOp) -> Result<(), CollectiveError>
    where
        S: Data + ?Sized,
        D: Data<Element = S::Element> + ?Sized,
    {
        op.supports(D::Element::DTYPE)?;
        let (input, output) = (from.input(), to.output());
        let count = elements::<D::Element>(input.bytes());
        require("all_reduce", count == elements::<D::Element>(output.bytes()), || {
            let has = elements::<D::Element>(output.bytes());
            format!("the output has {has} elements and the input {count}: give both the same length")
        })?;
        self.run(Kind::AllReduce, D::Element::DTYPE, op, 0, count, Some(input), output)
    }

    /// Gives all ranks the vectors of all ranks, one after the other in rank order. `to` is as long as all of them.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`] if `to` is not `size` times as long as `from`.
    pub fn all_gather<S, D>(&self, from: &S, to: &mut D) -> Result<(), CollectiveError>
    where
        S: Data + ?Sized,
        D: Data<Element = S::Element> + ?Sized,
    {
        let (input, output) = (from.input(), to.output());
        let count = elements::<D::Element>(input.bytes());
        self.require_all("all_gather", "output", elements::<D::Element>(output.bytes()), "input", count)?;
        self.run(Kind::AllGather, D::Element::DTYPE, ReduceOp::Sum, 0, count, Some(input), output)
    }

    /// [`Group::all_gather`] in place: each rank's part of `data` is the one of its rank.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`] if the ranks cannot have parts of the same length.
    pub fn all_gather_in_place<D: Data + ?Sized>(&self, data: &mut D) -> Result<(), CollectiveError> {
        let output = data.output();
        let count = self.part("all_gather", elements::<D::Element>(output.bytes()))?;
        self.run(Kind::AllGather, D::Element::DTYPE, ReduceOp::Sum, 0, count, None, output)
    }

    /// Combines the ranks' `from`, element by element in rank order, and gives each rank its part of the result: the
    /// first `to.len()` elements to rank 0, and so on.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`] if `from` is not `size` times as long as `to`.
    pub fn reduce_scatter<S, D>(&self, from: &S, to: &mut D, op: ReduceOp) -> Result<(), CollectiveError>
    where
        S: Data + ?Sized,
        D: Data<Element = S::Element> + ?Sized,
    {
        op.supports(D::Element::DTYPE)?;
        let (input, output) = (from.input(), to.output());
        let count = elements::<D::Element>(output.bytes());
        self.require_all("reduce_scatter", "input", elements::<D::Element>(input.bytes()), "output", count)?;
        self.run(Kind::ReduceScatter, D::Element::DTYPE, op, 0, count, Some(input), output)
    }

    /// [`Group::reduce_scatter`] in place. Returns which elements of `data` this rank's part of the result are; what the
    /// others hold then is unspecified.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`] if the ranks cannot have parts of the same length.
    pub fn reduce_scatter_in_place<D: Data + ?Sized>(
        &self,
        data: &mut D,
        op: ReduceOp,
    ) -> Result<Range<usize>, CollectiveError> {
        op.supports(D::Element::DTYPE)?;
        let output = data.output();
        let count = self.part("reduce_scatter", elements::<D::Element>(output.bytes()))?;
        self.run(Kind::ReduceScatter, D::Element::DTYPE, op, 0, count, None, output)?;
        let start = self.rank() as usize * count;
        Ok(start..start + count)
    }

    /// Gives all ranks what `data` holds on rank `root`.
    ///
    /// # Errors
    /// As [`Group::all_reduce`], and [`CollectiveError::Invalid`] if there is no such rank.
    pub fn broadcast<D: Data + ?Sized>(&self, data: &mut D, root: u32) -> Result<(), CollectiveError> {
        self.check_rank("broadcast", root)?;
        let output = data.output();
        let count = elements::<D::Element>(output.bytes());
        self.run(Kind::Broadcast, D::Element::DTYPE, ReduceOp::Sum, root, count, None, output)
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// [`CollectiveError::Mismatch`], [`CollectiveError::Poisoned`], [`CollectiveError::Fabric`].
    pub fn barrier(&self) -> Result<(), CollectiveError> {
        let output = Output::Plain(ValuesMut::new::<u8>(&mut []));
        self.run(Kind::Barrier, DType::U8, ReduceOp::Sum, 0, 0, None, output)
    }

    #[allow(clippy::too_many_arguments, reason = "what a call consists of, from the operations above only")]
    fn run(
        &self,
        kind: Kind,
        dtype: DType,
        op: ReduceOp,
        root: u32,
        count: usize,
        input: Option<Input<'_>>,
        output: Output<'_>,
    ) -> Result<(), CollectiveError> {
        let call = Call { kind, dtype, op, root, count: count as u64 };
        let (rank, size) = (self.rank(), self.size());
        let mut request = Request { call, rank, size, input, output };
        let shared = &*self.shared;
        let mut state = shared.state();
        if let Some(cause) = &state.failed {
            return Err(CollectiveError::Poisoned { cause: cause.clone() });
        }
        state.sequence += 1;
        let State { sequence, progress, failed } = &mut *state;
        let mut deadline = Deadline::new(self.deadline);
        let mut ongoing = Ongoing::new(kind.name(), *sequence, &mut deadline);
        let recorder = shared.fabric.recorder();
        let running = recorder.begin(What {
            action: kind.action(),
            group: shared.recorded,
            sequence: *sequence,
            peer: (kind == Kind::Broadcast).then_some(root),
            bytes: call.bytes() as u64,
            started: false,
            composed: matches!(shared.path, Path::Messages(_)),
        });
        // Should this thread panic, the group is of no use any more.
        let mut fate = Fate { shared, sequence: *sequence, failed, over: false };
        let done = match &shared.path {
            Path::Alone => {
                request.complete(0..call.bytes(), Stores::Cached, |_, _| Source::Target);
                Ok(())
            }
            Path::Windows(windows) => windows.run(&mut request, &mut ongoing, progress),
            Path::Messages(messages) => messages.run(&mut request, &mut ongoing),
        };
        fate.over = true;
        recorder.end(running, done.is_ok());
        if let Err(error) = &done {
            fate.fail(error);
            recorder.failed(kind.name(), shared.recorded, &error.to_string());
        }
        done
    }

    fn check_rank(&self, operation: OpName, rank: u32) -> Result<(), CollectiveError> {
        let size = self.size();
        require(operation, rank < size, || format!("there is no rank {rank}: name one below {size}"))
    }

    fn require_all(
        &self,
        operation: OpName,
        whole: &str,
        has: usize,
        part: &str,
        count: usize,
    ) -> Result<(), CollectiveError> {
        let size = self.size() as usize;
        require(operation, count.checked_mul(size) == Some(has), || {
            format!(
                "the {whole} has {has} elements and the {part} {count}: for {size} ranks, give it {size} times as many"
            )
        })
    }

    /// The length of a rank's part of `count` elements.
    fn part(&self, operation: OpName, count: usize) -> Result<usize, CollectiveError> {
        let size = self.size() as usize;
        require(operation, count.is_multiple_of(size), || {
            format!("{count} elements are no equal parts for {size} ranks: give a multiple of {size}")
        })?;
        Ok(count / size)
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
        let cause: Arc<str> = match error {
            CollectiveError::Poisoned { cause } => cause.clone(),
            other => other.to_string().into(),
        };
        self.poison(cause);
    }

    fn poison(&mut self, cause: Arc<str>) {
        tracing::debug!(call = self.sequence, %cause, "the group is poisoned");
        match &self.shared.path {
            Path::Alone => {}
            Path::Windows(windows) => windows.poison(self.sequence, &cause),
            Path::Messages(messages) => messages.poison(self.sequence, &cause),
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
            self.poison(CAUSE.into());
            self.shared.fabric.recorder().failed("group", self.shared.recorded, CAUSE);
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("rank", &self.rank()).field("size", &self.size()).finish_non_exhaustive()
    }
}

fn elements<T>(bytes: &[u8]) -> usize {
    bytes.len() / size_of::<T>()
}

fn require(operation: OpName, holds: bool, problem: impl FnOnce() -> String) -> Result<(), CollectiveError> {
    if holds { Ok(()) } else { Err(CollectiveError::invalid(operation, problem())) }
}
