//! Protection domains and memory regions.

use std::ops::Range;
use std::sync::Arc;

use fulmen_memory::{Exposed, Region};
use fulmen_verbs::{
    Access, AddressHandle, AddressPath, Claim, MemoryRegion, ProtectionDomain, QueuePair, QueuePairInit, QueuePairKind,
    SharedReceiveQueue, VerbsError,
};

use crate::completion::own_queue;
use crate::datagrams;
use crate::device::DeviceCore;
use crate::pair::PairHandle;
use crate::registrations::Registration;
use crate::wire::Cause;
use crate::{shared, vm};

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
        let mut served = None;
        if region.fd().is_none() {
            if device.options.process_vm {
                vm::invite();
            }
            if remote && device.info.capabilities.write {
                // What peers cannot map may be reached by this process for them, whole.
                served = Some(region.expose().map_err(|cause| VerbsError::Invalid {
                    what: "registration",
                    problem: format!("peers cannot map this memory, and it is not exposed: {cause}"),
                })?);
            }
        } else if remote && device.info.capabilities.write && device.network.is_some() {
            served = Some(alias(region).map_err(|cause| device.system("register", &cause))?);
        }
        let claim = device.budgets.memory_regions.take()?;
        let registration = Registration { region, range: range.clone(), access, domain: self.0.number, served };
        let added = device.registrations.add(&device.node, &device.directory, registration);
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
        let shared = init.srq.as_ref().map(|queue| shared::own(&self.0, queue)).transpose()?;
        let send_cq = own_queue(device, &init.send_cq)?;
        let recv_cq = own_queue(device, &init.recv_cq)?;
        if init.kind == QueuePairKind::Ud {
            return datagrams::create_pair(&self.0, init, send_cq, recv_cq, shared);
        }
        Ok(Arc::new(PairHandle::new(&self.0, init, send_cq, recv_cq, shared)?))
    }

    fn create_srq(&self, depth: u32, pieces: u32) -> Result<Arc<dyn SharedReceiveQueue>, VerbsError> {
        shared::create(&self.0, depth, pieces)
    }

    fn create_ah(&self, path: &AddressPath) -> Result<Arc<dyn AddressHandle>, VerbsError> {
        datagrams::create_address(&self.0, path)
    }
}

/// The bytes of a region that peers may write, at other addresses: this process works on them for peers of other hosts as
/// peers of this host do, whichever blocks a pool has cut out of the region.
fn alias(region: &Region) -> Result<Exposed, Cause> {
    let Some(fd) = region.fd() else { return Err("it cannot be mapped twice".into()) };
    Ok(Region::from_fd(fd.try_clone_to_owned()?, region.len())?.expose()?)
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
        if device.node.is_inherited() {
            return;
        }
        device.registrations.remove(&device.node, &device.directory, self.key);
        device.wait_for_peers(self.key);
    }
}
