//! Protection domains: those of the software device, but for their queue pairs.

use std::ops::Range;
use std::sync::Arc;

use fulmen_memory::Region;
use fulmen_verbs::{
    Access, CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, QueuePairInit, QueuePairKind, VerbsError,
};

use super::Core;
use super::pair::AttachedPair;
use super::queue::AttachedQueue;

pub(super) struct AttachedDomain {
    pub(super) inner: Arc<dyn ProtectionDomain>,
    pub(super) core: Arc<Core>,
}

impl ProtectionDomain for AttachedDomain {
    fn register(
        &self,
        region: &Region,
        range: Range<usize>,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        self.inner.register(region, range, access)
    }

    fn create_qp(&self, init: &QueuePairInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        self.core.info.check_queue_pair(init.kind, &init.limits)?;
        if init.srq.is_some() {
            return Err(VerbsError::Unsupported { device: self.core.info.name.clone(), what: "shared receive queues" });
        }
        let own = |queue: &Arc<dyn CompletionQueue>| {
            let own = queue.as_any().downcast_ref::<AttachedQueue>();
            let own = own.filter(|queue| Arc::ptr_eq(&queue.core, &self.core));
            own.map(|queue| queue.inner.clone()).ok_or_else(|| self.core.foreign("completion queue"))
        };
        // To the owner: it keeps what it has taken, and tells whether it is there.
        let below = QueuePairInit {
            kind: QueuePairKind::Rc,
            send_cq: own(&init.send_cq)?,
            recv_cq: own(&init.recv_cq)?,
            ..init.clone()
        };
        Ok(Arc::new(AttachedPair::new(self.core.clone(), self.inner.create_qp(&below)?)?))
    }
}
