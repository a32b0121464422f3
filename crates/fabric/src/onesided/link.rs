//! One-sided operations over links, which the owner's end of the link executes.

use std::task::Poll;
use std::time::Duration;

use fulmen_memory::Exposed;

use super::Remote;
use super::batch::Request;
use super::remote::{COMPARE_SWAP, FETCH_ADD, GET, PUT};
use crate::engine::{self, At, Atomic, Counter, Lent, OpId, Source, Target};
use crate::{Fabric, FabricError, OpName, Operation, clock};

/// The word that a put counts in, and how much.
type Count<'a> = Option<(&'a Remote, u64, u64)>;

/// Plain bytes up to which a put takes a copy with it, so that any thread can send it.
const COPIED: usize = 256;

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
        let op = self.begin_put(offset, data, count)?;
        self.fabric.finish(PUT, self.rank, op, timeout, &mut Lent::Nothing).map(drop)
    }

    pub(super) fn link_put_bytes(&self, offset: u64, data: &[u8], timeout: Duration) -> Result<(), FabricError> {
        let mut lane = self.fabric.lane(PUT, self.rank)?;
        if data.len() <= COPIED {
            let op = lane.link.put(self.at(offset), Source::Bytes(data.into()), None);
            drop(lane);
            return self.fabric.finish(PUT, self.rank, op, timeout, &mut Lent::Nothing).map(drop);
        }
        let op = lane.link.put(self.at(offset), Source::Lent(data.len() as u64), None);
        drop(lane);
        self.fabric.finish(PUT, self.rank, op.clone(), timeout, &mut Lent::Source(op, data)).map(drop)
    }

    pub(super) fn link_get(&self, offset: u64, into: &Exposed, timeout: Duration) -> Result<(), FabricError> {
        let op = self.begin_get(offset, into)?;
        self.fabric.finish(GET, self.rank, op, timeout, &mut Lent::Nothing).map(drop)
    }

    pub(super) fn link_get_bytes(&self, offset: u64, into: &mut [u8], timeout: Duration) -> Result<(), FabricError> {
        let mut lane = self.fabric.lane(GET, self.rank)?;
        let op = lane.link.get(self.at(offset), Target::Lent(into.len() as u64));
        drop(lane);
        self.fabric.finish(GET, self.rank, op.clone(), timeout, &mut Lent::Target(op, into)).map(drop)
    }

    pub(super) fn link_atomic(
        &self,
        name: OpName,
        offset: u64,
        atomic: Atomic,
        timeout: Duration,
    ) -> Result<u64, FabricError> {
        let op = self.begin_atomic(name, offset, atomic)?;
        self.fabric.finish(name, self.rank, op, timeout, &mut Lent::Nothing)
    }

    pub(super) fn link_start_put(
        &self,
        offset: u64,
        data: &Exposed,
        count: Count<'_>,
    ) -> Result<Operation, FabricError> {
        let op = self.begin_put(offset, data, count)?;
        Ok(self.fabric.go_on(PUT, self.rank, op))
    }

    pub(super) fn link_start_get(&self, offset: u64, into: &Exposed) -> Result<Operation, FabricError> {
        let op = self.begin_get(offset, into)?;
        Ok(self.fabric.go_on(GET, self.rank, op))
    }

    pub(super) fn link_start_atomic(
        &self,
        name: OpName,
        offset: u64,
        atomic: Atomic,
    ) -> Result<Operation, FabricError> {
        let op = self.begin_atomic(name, offset, atomic)?;
        Ok(self.fabric.go_on(name, self.rank, op))
    }

    fn begin_put(&self, offset: u64, data: &Exposed, count: Count<'_>) -> Result<OpId, FabricError> {
        let mut lane = self.fabric.lane(PUT, self.rank)?;
        let then = count.map(|(counter, offset, add)| Counter { at: counter.at(offset), add });
        let source = lane.wire.source(data.clone());
        Ok(lane.link.put(self.at(offset), source, then))
    }

    fn begin_get(&self, offset: u64, into: &Exposed) -> Result<OpId, FabricError> {
        let mut lane = self.fabric.lane(GET, self.rank)?;
        let target = lane.wire.target(into.clone());
        Ok(lane.link.get(self.at(offset), target))
    }

    fn begin_atomic(&self, name: OpName, offset: u64, atomic: Atomic) -> Result<OpId, FabricError> {
        let mut lane = self.fabric.lane(name, self.rank)?;
        Ok(lane.link.atomic(self.at(offset), atomic))
    }

    /// Posts a batch, and gives what each operation gave.
    pub(super) fn link_batch(
        &self,
        requests: Vec<Request>,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u64>, FabricError> {
        let until = clock::after(timeout);
        let names: Vec<OpName> = requests.iter().map(Request::name).collect();
        let mut lane = self.fabric.lane(PUT, self.rank)?;
        let translate = |request| match request {
            Request::Put { offset, from, len } => {
                engine::Request::Put { at: self.at(offset), bytes: bytes[from..from + len].into(), then: None }
            }
            Request::Get { offset, into } => engine::Request::Get { at: self.at(offset), into: lane.wire.target(into) },
            Request::FetchAdd { offset, add } => {
                engine::Request::Atomic { at: self.at(offset), atomic: Atomic::FetchAdd(add) }
            }
            Request::CompareSwap { offset, expect, new } => {
                engine::Request::Atomic { at: self.at(offset), atomic: Atomic::CompareSwap { expect, new } }
            }
        };
        let requests = requests.into_iter().map(translate).collect();
        let ops = lane.link.batch(requests);
        drop(lane);
        let mut values = Vec::with_capacity(ops.len());
        let mut failed = None;
        for (op, name) in ops.into_iter().zip(names) {
            match self.fabric.finish(name, self.rank, op, clock::until(until), &mut Lent::Nothing) {
                Ok(value) => values.push(value),
                // The others have begun, and end too.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(values), Err)
    }
}

impl Request {
    pub(super) fn name(&self) -> OpName {
        match self {
            Request::Put { .. } => PUT,
            Request::Get { .. } => GET,
            Request::FetchAdd { .. } => FETCH_ADD,
            Request::CompareSwap { .. } => COMPARE_SWAP,
        }
    }
}

impl Fabric {
    /// Waits until all operations of the link have ended.
    pub(super) fn flush_link(&self, op: OpName, rank: u32, timeout: Duration) -> Result<(), FabricError> {
        let lanes = &self.inner.lanes;
        let quiet = || match lanes.lock(rank) {
            Some(lane) => {
                let (_, lane) = lanes.pump(rank, lane, &mut Lent::Nothing, None, None);
                lane.link.is_quiet()
            }
            None => true,
        };
        if lanes.lock(rank).is_none_or(|lane| lane.link.is_quiet()) {
            return Ok(());
        }
        self.wait(op, &[rank], timeout, || if quiet() { Poll::Ready(()) } else { Poll::Pending })
    }
}
