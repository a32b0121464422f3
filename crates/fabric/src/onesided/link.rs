//! One-sided operations where memory is not mapped: by the devices of both ends where they have them, else over the link,
//! whose other end executes them.

use std::sync::MutexGuard;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use fulmen_memory::{Block, Exposed};

use super::Remote;
use super::batch;
use super::remote::{COMPARE_SWAP, FETCH_ADD, GET, PUT};
use crate::driver::Takes;
use crate::driver::device::{RdmaId, Request, Verb};
use crate::engine::{At, Atomic, Cancel, Counter, Lent, OpError, OpId, Source, Target};
use crate::lanes::Lane;
use crate::{Action, Fabric, FabricError, OpName, Operation, What, clock};

/// The word that a put counts in, and how much.
type Count<'a> = Option<(&'a Remote, u64, u64)>;

/// Plain bytes up to which a put takes a copy with it, so that any thread can send it.
const COPIED: usize = 256;

/// An operation that has begun.
pub(super) enum Begun {
    Link(OpId),
    Device(RdmaId),
}

impl Remote {
    fn at(&self, offset: u64) -> At {
        At { key: self.tag, offset }
    }

    pub(super) fn link_put(
        &self,
        offset: u64,
        data: &Exposed,
        count: Count<'_>,
        timeout: Duration,
    ) -> Result<(), FabricError> {
        self.recorded(put_action(&count), offset, data.len(), || {
            let begun = self.begin_put(offset, data, count)?;
            self.fabric.finish_begun(PUT, self.rank, begun, timeout).map(drop)
        })
    }

    pub(super) fn link_put_bytes(&self, offset: u64, data: &[u8], timeout: Duration) -> Result<(), FabricError> {
        if let Some(staged) = self.stage(data.len()) {
            staged.write(0, data);
            return self.link_put(offset, &staged, None, timeout);
        }
        self.recorded(Action::Put, offset, data.len(), || {
            let mut lane = self.fabric.lane(PUT, self.rank)?;
            if data.len() <= COPIED {
                let op = lane.link.put(self.at(offset), Source::Bytes(data.into()), None);
                drop(lane);
                return self.fabric.finish(PUT, self.rank, op, timeout, &mut Lent::Nothing).map(drop);
            }
            let op = lane.link.put(self.at(offset), Source::Lent(data.len() as u64), None);
            drop(lane);
            self.fabric.finish(PUT, self.rank, op, timeout, &mut Lent::Source(op, data)).map(drop)
        })
    }

    pub(super) fn link_get(&self, offset: u64, into: &Exposed, timeout: Duration) -> Result<(), FabricError> {
        self.recorded(Action::Get, offset, into.len(), || {
            let begun = self.begin_get(offset, into)?;
            self.fabric.finish_begun(GET, self.rank, begun, timeout).map(drop)
        })
    }

    pub(super) fn link_get_bytes(&self, offset: u64, into: &mut [u8], timeout: Duration) -> Result<(), FabricError> {
        if let Some(staged) = self.stage(into.len()) {
            self.link_get(offset, &staged, timeout)?;
            staged.read(0, into);
            return Ok(());
        }
        self.recorded(Action::Get, offset, into.len(), || {
            let mut lane = self.fabric.lane(GET, self.rank)?;
            let op = lane.link.get(self.at(offset), Target::Lent(into.len() as u64));
            drop(lane);
            self.fabric.finish(GET, self.rank, op, timeout, &mut Lent::Target(op, into)).map(drop)
        })
    }

    /// Memory that the device reaches, for bytes that it does not. None where it has no use for it.
    fn stage(&self, len: usize) -> Option<Exposed> {
        self.device.filter(|_| len > 0)?;
        self.fabric.inner.pool.take(len).ok().map(Block::into_exposed)
    }

    pub(super) fn link_atomic(
        &self,
        name: OpName,
        offset: u64,
        atomic: Atomic,
        timeout: Duration,
    ) -> Result<u64, FabricError> {
        self.recorded(atomic_action(atomic), offset, 8, || {
            let begun = self.begin_atomic(name, offset, atomic)?;
            self.fabric.finish_begun(name, self.rank, begun, timeout)
        })
    }

    pub(super) fn link_start_put(
        &self,
        offset: u64,
        data: &Exposed,
        count: Count<'_>,
    ) -> Result<Operation, FabricError> {
        let begun = self.begin_put(offset, data, count)?;
        Ok(self.go_on(PUT, put_action(&count), offset, data.len(), begun))
    }

    pub(super) fn link_start_get(&self, offset: u64, into: &Exposed) -> Result<Operation, FabricError> {
        let begun = self.begin_get(offset, into)?;
        Ok(self.go_on(GET, Action::Get, offset, into.len(), begun))
    }

    pub(super) fn link_start_atomic(
        &self,
        name: OpName,
        offset: u64,
        atomic: Atomic,
    ) -> Result<Operation, FabricError> {
        let begun = self.begin_atomic(name, offset, atomic)?;
        Ok(self.go_on(name, atomic_action(atomic), offset, 8, begun))
    }

    /// Notes an operation from its beginning to its end.
    fn recorded<T>(
        &self,
        action: Action,
        offset: u64,
        len: usize,
        work: impl FnOnce() -> Result<T, FabricError>,
    ) -> Result<T, FabricError> {
        let recorder = &self.fabric.inner.recorder;
        let running = recorder.begin(What::of(action, self.rank, offset, len));
        recorder.ended(running, work())
    }

    /// Has an operation that has begun go on by itself.
    fn go_on(&self, name: OpName, action: Action, offset: u64, len: usize, begun: Begun) -> Operation {
        let running = self.fabric.inner.recorder.begin(What::of(action, self.rank, offset, len).started());
        self.fabric.go_on_begun(name, self.rank, begun).recorded(running)
    }

    fn begin_put(&self, offset: u64, data: &Exposed, count: Count<'_>) -> Result<Begun, FabricError> {
        let mut lane = self.fabric.lane(PUT, self.rank)?;
        Ok(self.put_on(&mut lane, offset, data, count))
    }

    fn put_on(&self, lane: &mut Lane, offset: u64, data: &Exposed, count: Count<'_>) -> Begun {
        let then = count.map(|(counter, at, add)| Counter { at: counter.at(at), add });
        // Both words of the owner have to say that its device can do it.
        let counts = match count {
            None => Some(None),
            Some((counter, at, add)) => counter
                .device
                .filter(|device| device.verbs().contains(super::Rights::ATOMIC) && device.at(at).addr.is_multiple_of(8))
                .map(|device| Some((device.at(at), add))),
        };
        let verb = counts.map(|count| Verb::Put { data: data.clone(), count });
        if let Some(begun) = verb.and_then(|verb| self.on_device(lane, verb, offset, then)) {
            return begun;
        }
        let source = lane.wire.source(data.clone());
        Begun::Link(lane.link.put(self.at(offset), source, then))
    }

    fn begin_get(&self, offset: u64, into: &Exposed) -> Result<Begun, FabricError> {
        let mut lane = self.fabric.lane(GET, self.rank)?;
        Ok(self.get_on(&mut lane, offset, into))
    }

    fn get_on(&self, lane: &mut Lane, offset: u64, into: &Exposed) -> Begun {
        let verb = Verb::Get { into: into.clone() };
        self.on_device(lane, verb, offset, None).unwrap_or_else(|| {
            let target = lane.wire.target(into.clone());
            Begun::Link(lane.link.get(self.at(offset), target))
        })
    }

    fn begin_atomic(&self, name: OpName, offset: u64, atomic: Atomic) -> Result<Begun, FabricError> {
        let mut lane = self.fabric.lane(name, self.rank)?;
        Ok(self.atomic_on(&mut lane, offset, atomic))
    }

    fn atomic_on(&self, lane: &mut Lane, offset: u64, atomic: Atomic) -> Begun {
        let begun = self.on_device(lane, Verb::Atomic(atomic), offset, None);
        begun.unwrap_or_else(|| Begun::Link(lane.link.atomic(self.at(offset), atomic)))
    }

    /// Gives an operation to the device, if both ends' devices do it.
    fn on_device(&self, lane: &mut Lane, verb: Verb, offset: u64, then: Option<Counter>) -> Option<Begun> {
        let device = self.device?;
        let rdma = lane.wire.rdma()?;
        let request = Request { verb, remote: device.at(offset), at: self.at(offset), then };
        let own = request.needs() - if then.is_some() { super::Rights::ATOMIC } else { super::Rights::empty() };
        if lane.link.is_severed() || !device.verbs().contains(own) || !rdma.takes(&request) {
            return None;
        }
        Some(Begun::Device(rdma.start(request)))
    }

    /// Posts a batch, and gives what each operation gave.
    pub(super) fn link_batch(
        &self,
        requests: Vec<batch::Request>,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u64>, FabricError> {
        let (first, len) = batch::extent(&requests);
        self.recorded(Action::Batch, first, len, || self.post_batch(requests, bytes, timeout))
    }

    fn post_batch(
        &self,
        requests: Vec<batch::Request>,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u64>, FabricError> {
        let until = clock::after(timeout);
        let staged = self.stage(bytes.len()).inspect(|staged| staged.write(0, bytes));
        let mut lane = self.fabric.lane(PUT, self.rank)?;
        let begin = |request: batch::Request| {
            let name = request.name();
            let begun = match request {
                batch::Request::Put { offset, from, len } => match &staged {
                    Some(staged) => self.put_on(&mut lane, offset, &staged.slice(from..from + len), None),
                    None => {
                        let source = Source::Bytes(bytes[from..from + len].into());
                        Begun::Link(lane.link.put(self.at(offset), source, None))
                    }
                },
                batch::Request::Get { offset, into } => self.get_on(&mut lane, offset, &into),
                batch::Request::FetchAdd { offset, add } => self.atomic_on(&mut lane, offset, Atomic::FetchAdd(add)),
                batch::Request::CompareSwap { offset, expect, new } => {
                    self.atomic_on(&mut lane, offset, Atomic::CompareSwap { expect, new })
                }
            };
            (name, begun)
        };
        let begun: Vec<_> = requests.into_iter().map(begin).collect();
        drop(lane);
        let mut values = Vec::with_capacity(begun.len());
        let mut failed = None;
        for (name, begun) in begun {
            match self.fabric.finish_begun(name, self.rank, begun, clock::until(until)) {
                Ok(value) => values.push(value),
                // The others have begun, and end too.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(values), Err)
    }
}

impl batch::Request {
    pub(super) fn name(&self) -> OpName {
        match self {
            batch::Request::Put { .. } => PUT,
            batch::Request::Get { .. } => GET,
            batch::Request::FetchAdd { .. } => FETCH_ADD,
            batch::Request::CompareSwap { .. } => COMPARE_SWAP,
        }
    }
}

fn put_action(count: &Count<'_>) -> Action {
    if count.is_some() { Action::PutCounted } else { Action::Put }
}

fn atomic_action(atomic: Atomic) -> Action {
    match atomic {
        Atomic::FetchAdd(_) => Action::FetchAdd,
        Atomic::CompareSwap { .. } => Action::CompareSwap,
    }
}

/// The outcome of an operation of a device.
fn poll_rdma(lane: &mut Lane, op: RdmaId) -> Poll<Result<u64, OpError>> {
    let Lane { link, wire, .. } = lane;
    // With its wire, an operation is over.
    wire.rdma().map_or(Poll::Ready(Err(OpError::Severed)), |rdma| rdma.poll(op, link))
}

impl Fabric {
    fn finish_begun(&self, name: OpName, rank: u32, begun: Begun, timeout: Duration) -> Result<u64, FabricError> {
        match begun {
            Begun::Link(op) => self.finish(name, rank, op, timeout, &mut Lent::Nothing),
            Begun::Device(op) => self.finish_rdma(name, rank, op, timeout),
        }
    }

    fn go_on_begun(&self, name: OpName, rank: u32, begun: Begun) -> Operation {
        match begun {
            Begun::Link(op) => self.go_on(name, rank, op, true),
            Begun::Device(op) => {
                if let Some(lane) = self.inner.lanes.lock(rank) {
                    drop(self.pump_lane(rank, lane));
                }
                self.inner.progress.need();
                Operation::on_device(self, rank, name, op)
            }
        }
    }

    fn pump_lane<'a>(&'a self, rank: u32, lane: MutexGuard<'a, Lane>) -> MutexGuard<'a, Lane> {
        self.inner.lanes.pump(rank, lane, &mut Lent::Nothing, Takes::All, None).1
    }

    /// Moves the lane on and looks whether an operation of a device has ended.
    pub(crate) fn test_rdma(&self, name: OpName, rank: u32, op: RdmaId) -> Poll<Result<u64, FabricError>> {
        let lane = self.inner.lanes.lock(rank).expect("the lane on which the operation was started");
        let mut lane = self.pump_lane(rank, lane);
        let outcome = poll_rdma(&mut lane, op);
        drop(lane);
        outcome.map(|outcome| self.told(name, rank, outcome))
    }

    /// Waits for the end of an operation of a device. At the deadline it is given up: what the device is at goes on, and keeps
    /// its memory.
    pub(crate) fn finish_rdma(
        &self,
        name: OpName,
        rank: u32,
        op: RdmaId,
        timeout: Duration,
    ) -> Result<u64, FabricError> {
        let outcome = self.wait(name, &[rank], timeout, || self.test_rdma(name, rank, op));
        outcome.unwrap_or_else(|error| {
            if let Poll::Ready(outcome) = self.test_rdma(name, rank, op) {
                return outcome;
            }
            // It may have ended at the last moment.
            self.cancel_rdma(rank, op).map_or(Err(error), |outcome| self.told(name, rank, outcome))
        })
    }

    /// Gives an operation up: its outcome, if it has ended.
    fn cancel_rdma(&self, rank: u32, op: RdmaId) -> Option<Result<u64, OpError>> {
        while let Some(mut lane) = self.inner.lanes.lock(rank) {
            let Lane { link, wire, .. } = &mut *lane;
            let Some(rdma) = wire.rdma() else { break };
            match rdma.cancel(op, link) {
                Cancel::Released => {
                    drop(lane);
                    // Somebody may wait for all operations to end.
                    self.inner.lanes.parker.wake();
                    return None;
                }
                Cancel::Copying => {
                    drop(lane);
                    thread::yield_now();
                }
                Cancel::Finished => match rdma.poll(op, link) {
                    Poll::Ready(outcome) => return Some(outcome),
                    Poll::Pending => break,
                },
                Cancel::Busy => {
                    rdma.detach(op, link);
                    break;
                }
            }
        }
        self.inner.progress.need();
        None
    }

    pub(crate) fn detach_rdma(&self, rank: u32, op: RdmaId) {
        if let Some(mut lane) = self.inner.lanes.lock(rank) {
            let Lane { link, wire, .. } = &mut *lane;
            if let Some(rdma) = wire.rdma() {
                rdma.detach(op, link);
            }
        }
        self.inner.progress.need();
    }

    /// Keeps later operations of the link behind earlier ones.
    pub(super) fn fence_link(&self, op: OpName, rank: u32) -> Result<(), FabricError> {
        let Some(mut lane) = self.inner.lanes.lock(rank) else { return Ok(()) };
        if lane.wire.rdma().is_none() && !self.inner.maps(rank) {
            lane.link.fence();
            return Ok(());
        }
        drop(lane);
        // Links know nothing of the order of devices, or of what this rank does with mapped memory.
        self.flush_link(op, rank, self.timeout())
    }

    /// Waits until all operations of the link have ended that were started before.
    pub(super) fn flush_link(&self, op: OpName, rank: u32, timeout: Duration) -> Result<(), FabricError> {
        let lanes = &self.inner.lanes;
        let Some(mut lane) = lanes.lock(rank) else { return Ok(()) };
        if lane.is_quiet() {
            return Ok(());
        }
        let mut open = lane.open();
        drop(lane);
        let mut ended = || lanes.lock(rank).is_none_or(|lane| self.pump_lane(rank, lane).have_ended(&mut open));
        let recorder = &self.inner.recorder;
        let running = recorder.begin(What::of(Action::Flush, rank, 0, 0));
        let waited = self.wait(op, &[rank], timeout, || if ended() { Poll::Ready(()) } else { Poll::Pending });
        recorder.ended(running, waited)
    }
}
