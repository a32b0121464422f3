//! Memory that GPUs and RDMA devices share.

use std::ffi::c_void;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use fulmen_memory::{Region, RegionError, page_size};

use crate::CudaError;
use crate::cuda::Inner;
use crate::driver::{DMA_BUF_FD, DevicePointer, PORTABLE_AND_MAPPED, READ_ONLY};

/// Calls that belong to no GPU in particular are made in the first one's context.
const ANY: usize = 0;

/// `len`, rounded up to whole pages.
fn whole_pages(len: usize) -> Result<usize, RegionError> {
    if len == 0 {
        return Err(RegionError::Empty);
    }
    let whole = len.checked_next_multiple_of(page_size()).filter(|whole| isize::try_from(*whole).is_ok());
    whole.ok_or(RegionError::TooLarge { len, total: isize::MAX as u64 })
}

/// Host memory of the driver's.
struct Pinned {
    cuda: Arc<Inner>,
    start: NonNull<u8>,
}

// SAFETY: the memory is reached through its region alone, and may be freed on any thread.
unsafe impl Send for Pinned {}
// SAFETY: as above; nothing is reached through a shared reference.
unsafe impl Sync for Pinned {}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.cuda.within(ANY, |driver| {
            // SAFETY: the driver allocated it, and it is freed here only.
            driver.check("cuMemFreeHost", unsafe { (driver.host_free)(self.start.as_ptr().cast()) })
        });
    }
}

pub(crate) fn pinned(cuda: &Arc<Inner>, len: usize) -> Result<Region, CudaError> {
    let len = whole_pages(len)?;
    let start = cuda.within(ANY, |driver| {
        let mut start = null_mut();
        // SAFETY: the pointer is to a local.
        let status = unsafe { (driver.host_alloc)(&raw mut start, len, PORTABLE_AND_MAPPED) };
        driver.check("cuMemHostAlloc", status)?;
        Ok(NonNull::new(start.cast::<u8>()).expect("an allocation that succeeded has an address"))
    })?;
    let owner = Pinned { cuda: cuda.clone(), start };
    // SAFETY: `len` bytes were allocated there. What is in them may be from earlier use, and is overwritten.
    unsafe { start.write_bytes(0, len) };
    // SAFETY: the bytes are mapped, readable and writable until the owner is dropped; nobody else knows them.
    Ok(unsafe { Region::adopt(start, len, Box::new(owner)) }?)
}

/// A region on which GPUs can work in place. Dropping it ends the registration; it keeps the region mapped until then.
pub struct CudaRegistration {
    cuda: Arc<Inner>,
    region: Region,
    at: DevicePointer,
}

impl CudaRegistration {
    pub(crate) fn new(cuda: &Arc<Inner>, region: &Region) -> Result<CudaRegistration, CudaError> {
        // A region's mapping ends at a page.
        let len = region.len().next_multiple_of(page_size());
        let start = region.addr() as *mut c_void;
        let flags = if region.is_writable() { PORTABLE_AND_MAPPED } else { PORTABLE_AND_MAPPED | READ_ONLY };
        cuda.within(ANY, |driver| {
            // SAFETY: the range is mapped as long as the region lives, which what is made here keeps. Registering
            // changes none of its bytes, and work on it is asked for elsewhere.
            driver.check("cuMemHostRegister", unsafe { (driver.host_register)(start, len, flags) })
        })?;
        // From here on, dropping it ends the registration.
        let mut registration = CudaRegistration { cuda: cuda.clone(), region: region.clone(), at: 0 };
        registration.at = cuda.within(ANY, |driver| {
            let mut at = 0;
            // SAFETY: the range was just registered, and the pointer is to a local.
            let status = unsafe { (driver.host_device_pointer)(&raw mut at, start, 0) };
            driver.check("cuMemHostGetDevicePointer", status).map(|()| at)
        })?;
        Ok(registration)
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The region's first address for GPUs. It is the processors' own where GPUs have
    /// [unified addressing](crate::Gpu::unified_addressing).
    #[must_use]
    pub fn device_addr(&self) -> u64 {
        self.at
    }
}

impl fmt::Debug for CudaRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaRegistration").field("region", &self.region).field("device_addr", &self.at).finish()
    }
}

impl Drop for CudaRegistration {
    fn drop(&mut self) {
        let _ = self.cuda.within(ANY, |driver| {
            // SAFETY: registered once, and ended here only; the region is still mapped.
            driver.check("cuMemHostUnregister", unsafe { (driver.host_unregister)(self.region.addr() as *mut c_void) })
        });
    }
}

/// Memory of a GPU that is exported as a dma-buf, for an RDMA device to register.
///
/// The GPU's memory is freed when it is dropped and nobody else holds the dma-buf.
pub struct DmaBuf {
    memory: GpuMemory,
    fd: OwnedFd,
    /// Where the exported range starts.
    at: DevicePointer,
    len: usize,
}

/// The driver hands out memory in pieces of this size, at multiples of it, if it is asked for whole ones.
const PIECE: usize = 2 << 20;

struct GpuMemory {
    cuda: Arc<Inner>,
    gpu: usize,
    at: DevicePointer,
}

impl GpuMemory {
    fn new(cuda: &Arc<Inner>, gpu: usize, len: usize) -> Result<GpuMemory, CudaError> {
        let at = cuda.within(gpu, |driver| {
            let mut at = 0;
            // SAFETY: the pointer is to a local.
            driver.check("cuMemAlloc", unsafe { (driver.alloc)(&raw mut at, len) }).map(|()| at)
        })?;
        Ok(GpuMemory { cuda: cuda.clone(), gpu, at })
    }
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        let _ = self.cuda.within(self.gpu, |driver| {
            // SAFETY: the driver allocated it, and it is freed here only.
            driver.check("cuMemFree", unsafe { (driver.free)(self.at) })
        });
    }
}

impl DmaBuf {
    pub(crate) fn new(cuda: &Arc<Inner>, gpu: usize, len: usize) -> Result<DmaBuf, CudaError> {
        let len = whole_pages(len)?;
        let about = cuda.gpu(gpu)?;
        if !about.dma_buf {
            return Err(CudaError::Unsupported {
                gpu: about.name.clone(),
                what: "export its memory as a dma-buf",
                way_out: "install NVIDIA's open kernel modules, or use pinned host memory",
            });
        }
        let export = cuda
            .driver
            .export
            .ok_or(CudaError::MissingSymbol { name: "cuMemGetHandleForAddressRange", since: "11.7" })?;
        // A page more, should the driver align to less than pages.
        let page = page_size();
        let size = len.checked_add(page).and_then(|size| size.checked_next_multiple_of(PIECE));
        let size = size.ok_or(RegionError::TooLarge { len, total: isize::MAX as u64 })?;
        let memory = GpuMemory::new(cuda, gpu, size)?;
        let at = memory.at.next_multiple_of(page as u64);
        let fd = cuda.within(gpu, |driver| {
            // SAFETY: `len` bytes from `at` lie in the allocation: it has a page more than they need.
            driver.check("cuMemsetD8", unsafe { (driver.fill)(at, 0, len) })?;
            driver.synchronize()?;
            let mut fd: RawFd = -1;
            // SAFETY: as above; the handle of this kind is a descriptor, which is written to a local.
            let status = unsafe { export((&raw mut fd).cast(), at, len, DMA_BUF_FD, 0) };
            driver.check("cuMemGetHandleForAddressRange", status)?;
            // SAFETY: the driver just made this descriptor for nobody else.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        })?;
        Ok(DmaBuf { memory, fd, at, len })
    }

    /// The dma-buf.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Where the memory starts in the dma-buf, in bytes: at its start, since it is whole pages.
    #[must_use]
    pub fn offset(&self) -> u64 {
        0
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: it has at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The memory's first address for its GPU.
    #[must_use]
    pub fn device_addr(&self) -> u64 {
        self.at
    }

    /// Copies bytes into the GPU's memory from offset `offset` and waits until they are there.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`], and what the driver refuses.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        let at = self.range(offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.memory.cuda.within(self.memory.gpu, |driver| {
            // SAFETY: the target lies in the allocation, which anybody may write; the source is a slice.
            driver.check("cuMemcpyHtoD", unsafe { (driver.copy_in)(at, bytes.as_ptr().cast(), bytes.len()) })?;
            driver.synchronize()
        })
    }

    /// Copies bytes out of the GPU's memory from offset `offset`.
    ///
    /// # Errors
    /// As [`DmaBuf::write`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), CudaError> {
        let at = self.range(offset, into.len())?;
        if into.is_empty() {
            return Ok(());
        }
        self.memory.cuda.within(self.memory.gpu, |driver| {
            // SAFETY: the source lies in the allocation, the target is a slice, and the call returns when it is done.
            driver.check("cuMemcpyDtoH", unsafe { (driver.copy_out)(into.as_mut_ptr().cast(), at, into.len()) })
        })
    }

    fn range(&self, offset: usize, len: usize) -> Result<DevicePointer, CudaError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.at + offset as u64),
            _ => Err(CudaError::OutOfBounds { offset, len, size: self.len }),
        }
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaBuf").field("fd", &self.fd).field("len", &self.len).finish_non_exhaustive()
    }
}
