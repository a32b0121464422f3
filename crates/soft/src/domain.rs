//! Protection domains and memory regions.

use std::ops::Range;
use std::sync::Arc;

use fulmen_memory::Region;
use fulmen_verbs::{Access, Claim, MemoryRegion, ProtectionDomain, QueuePair, QueuePairInit, VerbsError};

use crate::completion::own_queue;
use crate::device::DeviceCore;
use crate::pair::PairHandle;

pub(crate) struct Domain {
    pub(crate) device: Arc<DeviceCore>,
    /// Never used twice by a device.
    pub(crate) number: u64,
    pub(crate) _claim: Claim,
}

/// What users hold of a protection domain.
pub(crate) struct DomainHandle(pub(crate) Arc<Domain>);

impl ProtectionDomain for DomainHandle {
    fn register(
        &self,
        region: &Region,
        range: Range<usize>,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        let device = &self.0.device;
        device.info.check_registration(region, &range, access)?;
        let remote = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC);
        if remote && device.info.capabilities.write && region.fd().is_none() {
            let problem = "peers reach memory made by Region::alloc only: leave out the remote rights".to_owned();
            return Err(VerbsError::Invalid { what: "registration", problem });
        }
        let claim = device.budgets.memory_regions.take()?;
        let added = device.registrations.add(&device.node, &device.directory, region, &range, access, self.0.number);
        let key = match added {
            Ok(Some(key)) => key,
            Ok(None) => {
                let (what, limit) = ("registrations in its life", 1 << 32);
                return Err(VerbsError::Limit { device: device.info.name.clone(), what, asked: limit + 1, limit });
            }
            Err(cause) => return Err(device.system("register", &cause)),
        };
        Ok(Arc::new(Registered { domain: self.0.clone(), region: region.clone(), range, access, key, _claim: claim }))
    }

    fn create_qp(&self, init: &QueuePairInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        let device = &self.0.device;
        device.info.check_queue_pair(init.kind, &init.limits)?;
        let send_cq = own_queue(device, &init.send_cq)?;
        let recv_cq = own_queue(device, &init.recv_cq)?;
        Ok(Arc::new(PairHandle::new(&self.0, init, send_cq, recv_cq)?))
    }
}

/// A registration, which ends when it is dropped.
struct Registered {
    domain: Arc<Domain>,
    region: Region,
    range: Range<usize>,
    access: Access,
    key: u32,
    _claim: Claim,
}

impl MemoryRegion for Registered {
    fn region(&self) -> &Region {
        &self.region
    }

    fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    fn access(&self) -> Access {
        self.access
    }

    fn lkey(&self) -> u32 {
        self.key
    }

    fn rkey(&self) -> u32 {
        self.key
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let device = &self.domain.device;
        device.registrations.remove(&device.node, &device.directory, self.key);
        device.wait_for_peers(self.key);
    }
}
