//! Receive queues that queue pairs share.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use fulmen_verbs::{AsyncEvent, PostError, QueuePairLimits, RecvRequest, SharedReceiveQueue, VerbsError};

use crate::device::lock;
use crate::domain::Domain;

/// Who takes RECVs out of a shared queue.
pub(crate) trait Fed: Send + Sync {
    /// There are RECVs again: takes what waits for them. Called with no lock held.
    fn feed(&self);
}

pub(crate) struct SharedQueue {
    domain: Arc<Domain>,
    number: u32,
    depth: u32,
    pieces: u32,
    inner: Mutex<Inner>,
}

/// Its lock is taken with a queue pair's lock held, and never the other way round.
#[derive(Default)]
struct Inner {
    requests: VecDeque<RecvRequest>,
    /// 0: none is armed.
    limit: u32,
    /// Those who found none, in the order in which they did.
    hungry: VecDeque<Weak<dyn Fed>>,
}

impl SharedQueue {
    fn new(domain: &Arc<Domain>, depth: u32, pieces: u32) -> Result<SharedQueue, VerbsError> {
        let info = &domain.device.info;
        if !info.capabilities.srq {
            return Err(VerbsError::Unsupported { device: info.name.clone(), what: "shared receive queues" });
        }
        info.check_limit("requests in a shared receive queue", depth.into(), info.limits.queue_depth.into())?;
        info.check_limit("pieces in a receive request", pieces.into(), info.limits.pieces.into())?;
        if depth == 0 {
            let problem = "it needs room for at least one request".to_owned();
            return Err(VerbsError::Invalid { what: "shared receive queue", problem });
        }
        Ok(SharedQueue {
            domain: domain.clone(),
            number: domain.device.next_number(),
            depth,
            pieces: pieces.max(1),
            inner: Mutex::default(),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// The oldest request. If there is none, `who` is fed once there is, which `hungry` remembers until then.
    pub(crate) fn take(&self, who: &Weak<impl Fed + 'static>, hungry: &mut bool) -> Option<RecvRequest> {
        let mut inner = self.inner();
        let Some(request) = inner.requests.pop_front() else {
            if !*hungry {
                inner.hungry.push_back(who.clone());
                *hungry = true;
            }
            return None;
        };
        let low = inner.is_low();
        drop(inner);
        self.tell_low(low);
        Some(request)
    }

    /// Puts a request back, of which nothing came.
    pub(crate) fn give_back(&self, request: RecvRequest) {
        self.inner().requests.push_front(request);
        // Others may wait for it, whose locks cannot be had here.
        self.domain.device.progress.kick();
    }

    fn tell_low(&self, low: bool) {
        if low {
            self.domain.device.tell(AsyncEvent::SharedReceiveLimit { number: self.number });
        }
    }

    fn queue(&self, inner: &mut Inner, request: &RecvRequest) -> Result<(), VerbsError> {
        let (recv_depth, recv_pieces) = (self.depth, self.pieces);
        let given = QueuePairLimits { send_depth: 0, recv_depth, send_pieces: 0, recv_pieces, inline_bytes: 0 };
        self.domain.device.info.check_recv(&given, request)?;
        if inner.requests.len() >= self.depth as usize {
            return Err(VerbsError::QueueFull { queue: "shared receive", qp_num: 0, depth: self.depth });
        }
        inner.requests.push_back(request.clone());
        Ok(())
    }

    /// The next one who found nothing, if there is something now.
    fn next_hungry(&self) -> Option<Arc<dyn Fed>> {
        let mut inner = self.inner();
        while !inner.requests.is_empty() {
            let who = inner.hungry.pop_front()?.upgrade();
            if who.is_some() {
                return who;
            }
        }
        None
    }
}

impl Inner {
    /// Whether the limit that was armed is reached, which is told once.
    fn is_low(&mut self) -> bool {
        let low = self.requests.len() < self.limit as usize;
        if low {
            self.limit = 0;
        }
        low
    }
}

/// What users hold of a shared receive queue.
struct SharedHandle(Arc<SharedQueue>);

/// Makes a shared receive queue in a domain.
pub(crate) fn create(domain: &Arc<Domain>, depth: u32, pieces: u32) -> Result<Arc<dyn SharedReceiveQueue>, VerbsError> {
    Ok(Arc::new(SharedHandle(Arc::new(SharedQueue::new(domain, depth, pieces)?))))
}

/// The shared receive queue behind a user's handle, if it was made in this domain.
pub(crate) fn own(domain: &Domain, queue: &Arc<dyn SharedReceiveQueue>) -> Result<Arc<SharedQueue>, VerbsError> {
    let device = &domain.device;
    let own = queue.as_any().downcast_ref::<SharedHandle>().filter(|own| Arc::ptr_eq(&own.0.domain.device, device));
    let Some(SharedHandle(own)) = own else { return Err(device.foreign("the shared receive queue")) };
    if own.domain.number != domain.number {
        let problem = "it was made in another protection domain than the queue pair".to_owned();
        return Err(VerbsError::Invalid { what: "shared receive queue", problem });
    }
    Ok(own.clone())
}

impl SharedReceiveQueue for SharedHandle {
    fn post_recv(&self, requests: &[RecvRequest]) -> Result<(), PostError> {
        let queue = &self.0;
        let mut inner = queue.inner();
        let mut result = Ok(());
        for (index, request) in requests.iter().enumerate() {
            if let Err(cause) = queue.queue(&mut inner, request) {
                result = Err(PostError { index, cause });
                break;
            }
        }
        drop(inner);
        // Messages may wait for this, and nobody else may look.
        while let Some(hungry) = queue.next_hungry() {
            hungry.feed();
        }
        result
    }

    fn arm_limit(&self, limit: u32) -> Result<(), VerbsError> {
        let queue = &self.0;
        let what = "requests in the limit of this shared receive queue";
        queue.domain.device.info.check_limit(what, limit.into(), queue.depth.into())?;
        let mut inner = queue.inner();
        inner.limit = limit;
        let low = inner.is_low();
        drop(inner);
        queue.tell_low(low);
        Ok(())
    }

    fn limit(&self) -> u32 {
        self.0.inner().limit
    }

    fn depth(&self) -> u32 {
        self.0.depth
    }

    fn pieces(&self) -> u32 {
        self.0.pieces
    }

    fn number(&self) -> u32 {
        self.0.number
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
