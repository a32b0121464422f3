//! Protection domains and what is registered in them.

use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use fulmen_memory::{Region, page_size};
use fulmen_verbs::{
    Access, Claim, DmaBufRegistration, MemoryRegion, ProtectionDomain, QueuePair, QueuePairInit, VerbsError,
    check_access,
};

use crate::completion::own_queue;
use crate::device::Core;
use crate::pair::Pair;
use crate::{errno, ffi};

/// A protection domain.
pub(crate) struct Domain {
    pub(crate) core: Arc<Core>,
    pub(crate) raw: NonNull<ffi::Pd>,
    _claim: Claim,
}

// SAFETY: calls on a domain may be made by any thread at any time.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(crate) fn new(core: &Arc<Core>) -> Result<Domain, VerbsError> {
        let claim = core.budgets.protection_domains.take()?;
        // SAFETY: the context is open.
        let raw = core.make("ibv_alloc_pd", || unsafe { (core.library.calls.alloc_pd)(core.context.as_ptr()) })?;
        Ok(Domain { core: core.clone(), raw, _claim: claim })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: everything made in the domain kept this object, and is gone.
        let returned = unsafe { (self.core.library.calls.dealloc_pd)(self.raw.as_ptr()) };
        if returned != 0 {
            tracing::warn!("{}", self.core.failed("ibv_dealloc_pd", returned));
        }
    }
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
        let core = &self.0.core;
        core.info.check_registration(region, &range, access)?;
        let claim = core.budgets.memory_regions.take()?;
        let call = if access.contains(Access::LOCAL_WRITE) { "ibv_reg_mr" } else { errno::TO_REGISTER_FOR_READING };
        // Devices take addresses, and no pointers of this program.
        let first = std::ptr::without_provenance_mut(region.addr() + range.start);
        // SAFETY: the bytes lie in the region, which the registration keeps mapped.
        let raw = core.make(call, || unsafe {
            (core.library.calls.reg_mr)(self.0.raw.as_ptr(), first, range.len(), core.flags(access))
        })?;
        let mr = Mr { domain: self.0.clone(), raw, _claim: claim };
        Ok(Arc::new(Registered { mr: Some(mr), region: region.clone(), range, access }))
    }

    fn register_dma_buf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Box<dyn DmaBufRegistration>, VerbsError> {
        let core = &self.0.core;
        let Some(register) = core.library.calls.reg_dmabuf_mr.filter(|_| core.info.capabilities.dma_buf) else {
            return Err(VerbsError::Unsupported { device: core.info.name.clone(), what: "dma-buf registrations" });
        };
        check_access(access)?;
        // The kernel wants the place in the buffer and the address of requests, which begin at 0, to be as far from the
        // beginning of a page, and says no more than EINVAL.
        let page = page_size() as u64;
        if !offset.is_multiple_of(page) {
            let problem =
                format!("offset {offset} is not a multiple of a page of {page} bytes: register from a page on");
            return Err(VerbsError::Invalid { what: "dma-buf registration", problem });
        }
        let claim = core.budgets.memory_regions.take()?;
        // SAFETY: the kernel takes its own reference to the buffer; no memory of this process is named.
        let raw = core.make("ibv_reg_dmabuf_mr", || unsafe {
            register(self.0.raw.as_ptr(), offset, len, 0, fd.as_raw_fd(), core.flags(access))
        })?;
        Ok(Box::new(RegisteredDmaBuf(Mr { domain: self.0.clone(), raw, _claim: claim })))
    }

    fn create_qp(&self, init: &QueuePairInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        let core = &self.0.core;
        core.info.check_queue_pair(init.kind, &init.limits)?;
        if init.srq.is_some() {
            return Err(VerbsError::Unsupported { device: core.info.name.clone(), what: "shared receive queues" });
        }
        let send_queue = own_queue(core, &init.send_cq)?;
        let recv_queue = own_queue(core, &init.recv_cq)?;
        Ok(Arc::new(Pair::new(&self.0, init, send_queue, recv_queue)?))
    }
}

/// The rights as the library writes them: bit by bit the same.
pub(crate) fn flags(access: Access) -> c_int {
    access.bits() as c_int
}

/// A registration of the library's.
struct Mr {
    domain: Arc<Domain>,
    raw: NonNull<ffi::Mr>,
    _claim: Claim,
}

// SAFETY: only its keys are read, which do not change, until the last owner ends it.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    fn lkey(&self) -> u32 {
        // SAFETY: it lives as long as this object.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    fn rkey(&self) -> u32 {
        // SAFETY: it lives as long as this object.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// Ends it; whether the device let go.
    fn end(&mut self) -> bool {
        // SAFETY: it is ended once, by its last owner.
        let returned = unsafe { (self.domain.core.library.calls.dereg_mr)(self.raw.as_ptr()) };
        if returned != 0 {
            tracing::error!("{}", self.domain.core.failed("ibv_dereg_mr", returned));
        }
        returned == 0
    }
}

/// Registered memory of this process.
struct Registered {
    /// There until the end.
    mr: Option<Mr>,
    region: Region,
    range: Range<usize>,
    access: Access,
}

impl Registered {
    fn mr(&self) -> &Mr {
        self.mr.as_ref().expect("a registration is there until it is dropped")
    }
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
        self.mr().lkey()
    }

    fn rkey(&self) -> u32 {
        self.mr().rkey()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Some(mut mr) = self.mr.take() else { return };
        if !mr.end() {
            // The device may still write there: the memory must never become anything else.
            std::mem::forget((mr, self.region.clone()));
        }
    }
}

struct RegisteredDmaBuf(Mr);

impl DmaBufRegistration for RegisteredDmaBuf {
    fn lkey(&self) -> u32 {
        self.0.lkey()
    }

    fn rkey(&self) -> u32 {
        self.0.rkey()
    }
}

impl Drop for RegisteredDmaBuf {
    fn drop(&mut self) {
        self.0.end();
    }
}
