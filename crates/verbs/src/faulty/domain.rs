//! Protection domains and shared receive queues of a faulty device.

use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use fulmen_memory::Region;

use super::pair::FaultyPair;
use super::plan::{Fault, KillMode};
use super::queue::FaultyQueue;
use super::{Core, lock};
use crate::{
    Access, AddressHandle, AddressPath, CompletionQueue, DmaBufRegistration, MemoryRegion, Pieces, PostError,
    ProtectionDomain, QueuePair, QueuePairInit, RecvRequest, SharedReceiveQueue, VerbsError,
};

pub(super) struct FaultyDomain {
    pub(super) inner: Arc<dyn ProtectionDomain>,
    pub(super) core: Arc<Core>,
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
        let shared = match &init.srq {
            None => None,
            Some(srq) => {
                let own = srq.as_any().downcast_ref::<FaultySrq>();
                Some(own.ok_or_else(|| self.core.foreign("shared receive queue"))?)
            }
        };
        let mut below = QueuePairInit {
            send_cq: send.inner(),
            recv_cq: recv.inner(),
            srq: shared.map(|srq| srq.inner.clone()),
            ..init.clone()
        };
        if !self.core.plan.odds(Fault::Duplicate).is_never() {
            let depth = below.limits.send_depth.saturating_mul(2);
            below.limits.send_depth = depth.min(self.core.info.limits.queue_depth);
        }
        let inner = self.inner.create_qp(&below)?;
        let mut pairs = lock(&self.core.pairs);
        pairs.retain(|pair| pair.strong_count() > 0);
        pairs.push(Arc::downgrade(&inner));
        drop(pairs);
        let ordinal = self.core.pairs_made.fetch_add(1, Ordering::Relaxed);
        let shared = shared.map(|srq| srq.books.clone());
        Ok(Arc::new(FaultyPair::new(inner, init, self.core.clone(), ordinal, [send, recv], shared)))
    }

    fn create_srq(&self, depth: u32, pieces: u32) -> Result<Arc<dyn SharedReceiveQueue>, VerbsError> {
        self.core.check_alive("create_srq")?;
        let inner = self.inner.create_srq(depth, pieces)?;
        Ok(Arc::new(FaultySrq { inner, books: Arc::default(), core: self.core.clone() }))
    }

    fn create_ah(&self, path: &AddressPath) -> Result<Arc<dyn AddressHandle>, VerbsError> {
        self.core.check_alive("create_ah")?;
        self.inner.create_ah(path)
    }
}

/// Requests of a shared receive queue, until one of its queue pairs completes them.
#[derive(Default)]
pub(super) struct SharedBooks {
    next: u64,
    posted: HashMap<u64, Posted>,
}

/// A request of a shared receive queue.
pub(super) struct Posted {
    pub(super) wr_id: u64,
    pub(super) pieces: Pieces,
}

/// Tells the requests of a shared receive queue from those of queue pairs.
const SHARED: u64 = 1 << 63;

impl SharedBooks {
    fn add(&mut self, request: &RecvRequest) -> u64 {
        let token = SHARED | self.next;
        self.next += 1;
        self.posted.insert(token, Posted { wr_id: request.wr_id, pieces: request.pieces.clone() });
        token
    }

    /// The request that the device below knows by this number, if it is one of these.
    pub(super) fn take(&mut self, token: u64) -> Option<Posted> {
        self.posted.remove(&token)
    }
}

/// A shared receive queue whose requests complete through faulty queue pairs.
struct FaultySrq {
    inner: Arc<dyn SharedReceiveQueue>,
    books: Arc<Mutex<SharedBooks>>,
    core: Arc<Core>,
}

impl FaultySrq {
    fn post_one(&self, request: &RecvRequest) -> Result<(), VerbsError> {
        match self.core.note_post() {
            None => {}
            Some(KillMode::FailsEverything) => return Err(self.core.error("post_srq_recv")),
            Some(KillMode::Silent) => return Ok(()),
        }
        // Noted first: it may complete before the post returns.
        let token = lock(&self.books).add(request);
        let below = RecvRequest { wr_id: token, pieces: request.pieces.clone() };
        self.inner.post_recv(&[below]).map_err(|error| {
            lock(&self.books).take(token);
            error.cause
        })
    }
}

impl SharedReceiveQueue for FaultySrq {
    fn post_recv(&self, requests: &[RecvRequest]) -> Result<(), PostError> {
        for (index, request) in requests.iter().enumerate() {
            self.post_one(request).map_err(|cause| PostError { index, cause })?;
        }
        Ok(())
    }

    fn arm_limit(&self, limit: u32) -> Result<(), VerbsError> {
        self.core.check_alive("modify_srq")?;
        self.inner.arm_limit(limit)
    }

    fn limit(&self) -> u32 {
        self.inner.limit()
    }

    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn pieces(&self) -> u32 {
        self.inner.pieces()
    }

    fn number(&self) -> u32 {
        self.inner.number()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
