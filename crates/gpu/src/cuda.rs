use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

use fulmen_memory::{Exposed, Region};

use crate::CudaError;
use crate::driver::{Attribute, Context, Driver, SUCCESS};
use crate::memory::{CudaRegistration, DmaBuf, pinned};

/// A GPU, as the CUDA driver tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gpu {
    /// Its name, such as `NVIDIA H200`.
    pub name: String,
    /// Where it sits, such as `0000:1b:00.0`.
    pub pci: String,
    /// Its memory in bytes.
    pub memory: u64,
    /// The version of CUDA that the driver is of: major and minor.
    pub cuda: (u32, u32),
    /// Whether it sees registered host memory at the addresses that the processors use.
    pub unified_addressing: bool,
    /// Whether its memory can be exported as a dma-buf. NVIDIA's open kernel modules have it.
    pub dma_buf: bool,
    /// Whether its atomics and the processors' on host memory see each other.
    pub host_atomics: bool,
}

/// NVIDIA's driver. Clones are handles to the same.
///
/// A GPU's primary context is retained when something is first asked of the GPU, and released with the last handle and the
/// last memory that came of it.
#[derive(Clone)]
pub struct Cuda {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) driver: Driver,
    gpus: Vec<Gpu>,
    /// A line for each GPU: its handle, and its context once that is retained.
    devices: Vec<(c_int, Mutex<Retained>)>,
}

/// A GPU's primary context, or null.
struct Retained(Context);

// SAFETY: a context may be made current on any thread, by several at once, and released on any.
unsafe impl Send for Retained {}

impl Drop for Inner {
    fn drop(&mut self) {
        for (device, retained) in &self.devices {
            if !retained.lock().unwrap_or_else(PoisonError::into_inner).0.is_null() {
                // SAFETY: it was retained once, and everything that was made in it is gone. A driver that is shutting
                // down refuses.
                unsafe { (self.driver.release)(*device) };
            }
        }
    }
}

impl Cuda {
    /// Opens the machine's driver, `libcuda.so.1`, and looks at its GPUs.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`] and [`CudaError::NoGpu`] on a machine without, [`CudaError::OtherSystem`] on macOS,
    /// [`CudaError::MissingSymbol`] for a driver that is too old, and what the driver refuses.
    pub fn open() -> Result<Cuda, CudaError> {
        Cuda::open_at(Path::new("libcuda.so.1"))
    }

    /// Opens the driver's library at a path.
    ///
    /// # Errors
    /// As [`Cuda::open`].
    pub fn open_at(path: &Path) -> Result<Cuda, CudaError> {
        let driver = Driver::open(path)?;
        let mut count = 0;
        // SAFETY: the pointer is to a local.
        driver.check("cuDeviceGetCount", unsafe { (driver.device_count)(&raw mut count) })?;
        let mut version = 0;
        // SAFETY: as above.
        driver.check("cuDriverGetVersion", unsafe { (driver.version)(&raw mut version) })?;
        let (mut gpus, mut devices) = (Vec::new(), Vec::new());
        for ordinal in 0..count {
            let mut device = 0;
            // SAFETY: as above.
            driver.check("cuDeviceGet", unsafe { (driver.device)(&raw mut device, ordinal) })?;
            gpus.push(describe(&driver, device, version)?);
            devices.push((device, Mutex::new(Retained(null_mut()))));
        }
        if gpus.is_empty() {
            return Err(CudaError::NoGpu);
        }
        Ok(Cuda { inner: Arc::new(Inner { driver, gpus, devices }) })
    }

    /// The GPUs, in the driver's order.
    #[must_use]
    pub fn gpus(&self) -> &[Gpu] {
        &self.inner.gpus
    }

    /// A region of host memory that the driver has pinned (`cuMemHostAlloc`), which every GPU sees: `len` bytes, rounded
    /// up to whole pages, zeroed.
    ///
    /// # Errors
    /// [`CudaError::Region`] for zero bytes, and what the driver refuses.
    pub fn pinned(&self, len: usize) -> Result<Region, CudaError> {
        pinned(&self.inner, len)
    }

    /// Registers a region, so that every GPU works on it where it is (`cuMemHostRegister`), until what comes back is
    /// dropped. It pins the region's memory.
    ///
    /// # Errors
    /// What the driver refuses: memory that is registered already, kinds of memory that it does not take.
    pub fn register(&self, region: &Region) -> Result<CudaRegistration, CudaError> {
        CudaRegistration::new(&self.inner, region)
    }

    /// Memory of a GPU, exported as a dma-buf: `len` bytes, rounded up to whole pages, zeroed.
    ///
    /// # Errors
    /// [`CudaError::UnknownGpu`], [`CudaError::Unsupported`] for a GPU whose driver exports none,
    /// [`CudaError::MissingSymbol`] for a driver before CUDA 11.7, and what the driver refuses.
    pub fn dma_buf(&self, gpu: usize, len: usize) -> Result<DmaBuf, CudaError> {
        DmaBuf::new(&self.inner, gpu, len)
    }

    /// Has a GPU write `byte` to all of the memory, in place, and waits until it has: host memory that is registered or
    /// pinned.
    ///
    /// # Errors
    /// [`CudaError::UnknownGpu`], [`CudaError::ReadOnly`], and what the driver refuses, such as memory that is not
    /// registered.
    pub fn fill(&self, gpu: usize, memory: &Exposed, byte: u8) -> Result<(), CudaError> {
        if !memory.region().is_writable() {
            return Err(CudaError::ReadOnly);
        }
        if memory.is_empty() {
            return Ok(());
        }
        self.inner.within(gpu, |driver| {
            let mut at = 0;
            // SAFETY: the address is one of this process that the driver looks up; the pointer is to a local.
            let status = unsafe { (driver.host_device_pointer)(&raw mut at, memory.as_ptr().cast(), 0) };
            driver.check("cuMemHostGetDevicePointer", status)?;
            // SAFETY: the handle keeps the bytes where they are, all of them exposed, so that anybody may write them. The
            // driver refuses a range that is not registered.
            driver.check("cuMemsetD8", unsafe { (driver.fill)(at, byte, memory.len()) })?;
            driver.synchronize()
        })
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").field("gpus", &self.inner.gpus).finish_non_exhaustive()
    }
}

impl Driver {
    /// Waits for all that was asked of the current context.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: it waits, no more.
        self.check("cuCtxSynchronize", unsafe { (self.synchronize)() })
    }
}

impl Inner {
    pub(crate) fn gpu(&self, gpu: usize) -> Result<&Gpu, CudaError> {
        self.gpus.get(gpu).ok_or(CudaError::UnknownGpu { gpu, known: self.gpus.len() })
    }

    /// Runs `work` with the GPU's context as the thread's current one, and puts back what was.
    pub(crate) fn within<T>(
        &self,
        gpu: usize,
        work: impl FnOnce(&Driver) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        let driver = &self.driver;
        let context = self.context(gpu)?;
        // SAFETY: the context is retained as long as this lives.
        driver.check("cuCtxPushCurrent", unsafe { (driver.push)(context) })?;
        let _pop = Pop(driver);
        work(driver)
    }

    fn context(&self, gpu: usize) -> Result<Context, CudaError> {
        let known = self.devices.len();
        let (device, retained) = self.devices.get(gpu).ok_or(CudaError::UnknownGpu { gpu, known })?;
        let mut retained = retained.lock().unwrap_or_else(PoisonError::into_inner);
        if retained.0.is_null() {
            let mut context = null_mut();
            // SAFETY: the handle is the driver's own, and the pointer is to a local.
            let status = unsafe { (self.driver.retain)(&raw mut context, *device) };
            self.driver.check("cuDevicePrimaryCtxRetain", status)?;
            retained.0 = context;
        }
        Ok(retained.0)
    }
}

struct Pop<'a>(&'a Driver);

impl Drop for Pop<'_> {
    fn drop(&mut self) {
        let mut popped = null_mut();
        // SAFETY: what was pushed on this thread is popped on it; the pointer is to a local.
        unsafe { (self.0.pop)(&raw mut popped) };
    }
}

fn describe(driver: &Driver, device: c_int, version: c_int) -> Result<Gpu, CudaError> {
    let mut memory = 0;
    // SAFETY: the pointer is to a local.
    driver.check("cuDeviceTotalMem", unsafe { (driver.device_memory)(&raw mut memory, device) })?;
    let version = version.unsigned_abs();
    Ok(Gpu {
        name: text("cuDeviceGetName", driver, driver.device_name, device)?,
        pci: text("cuDeviceGetPCIBusId", driver, driver.device_bus, device)?,
        memory: memory as u64,
        cuda: (version / 1000, version % 1000 / 10),
        unified_addressing: driver.attribute(device, Attribute::UnifiedAddressing),
        dma_buf: driver.attribute(device, Attribute::DmaBuf),
        host_atomics: driver.attribute(device, Attribute::HostNativeAtomics),
    })
}

fn text(
    call: &'static str,
    driver: &Driver,
    ask: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
    device: c_int,
) -> Result<String, CudaError> {
    let mut buffer = [0_u8; 256];
    // SAFETY: the driver writes at most as many bytes as it is told, one less here, so that a zero follows.
    let status = unsafe { ask(buffer.as_mut_ptr().cast(), buffer.len() as c_int - 1, device) };
    if status != SUCCESS {
        driver.check(call, status)?;
    }
    let text = CStr::from_bytes_until_nul(&buffer).expect("the last byte was left zero");
    Ok(text.to_string_lossy().into_owned())
}
