//! The driver's entry points, by the names and layouts of its interface (`cuda.h`). Only those that are used.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr::null;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::CudaError;
use crate::error::way_out;

/// `CUcontext`.
pub(crate) type Context = *mut c_void;
/// `CUdeviceptr`.
pub(crate) type DevicePointer = u64;

/// `CUresult`.
pub(crate) const SUCCESS: c_int = 0;
const ERROR_NO_DEVICE: c_int = 100;

/// `CUdevice_attribute`.
#[derive(Clone, Copy)]
pub(crate) enum Attribute {
    UnifiedAddressing = 41,
    HostNativeAtomics = 86,
    DmaBuf = 124,
}

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`; the flags of registrations have the same values.
pub(crate) const PORTABLE_AND_MAPPED: c_uint = 1 | 2;
/// `CU_MEMHOSTREGISTER_READ_ONLY`.
pub(crate) const READ_ONLY: c_uint = 8;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
pub(crate) const DMA_BUF_FD: c_int = 1;

/// Declares the table of entry points and how it is filled. The first version of CUDA that has one stands before it.
macro_rules! entry_points {
    ($($since:literal $field:ident = $name:ident($($argument:ty),*);)*) => {
        pub(crate) struct Driver {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            /// Of CUDA 11.7: older drivers do everything else.
            pub(crate) export: Option<Export>,
        }

        impl Driver {
            fn load(library: &Library) -> Result<Driver, CudaError> {
                Ok(Driver {
                    $($field: {
                        let name = stringify!($name);
                        // SAFETY: the type is that of the function of this name in the driver's interface, which keeps
                        // the names and types that it has published.
                        let symbol = unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> c_int>(name) };
                        *symbol.map_err(|_| CudaError::MissingSymbol { name, since: $since })?
                    },)*
                    // SAFETY: as above.
                    export: unsafe { library.get::<Export>("cuMemGetHandleForAddressRange") }.ok().map(|symbol| *symbol),
                })
            }
        }
    };
}

/// `cuMemGetHandleForAddressRange`.
type Export = unsafe extern "C" fn(*mut c_void, DevicePointer, usize, c_int, u64) -> c_int;

entry_points! {
    "2.0" init = cuInit(c_uint);
    "6.0" error_name = cuGetErrorName(c_int, *mut *const c_char);
    "6.0" error_text = cuGetErrorString(c_int, *mut *const c_char);
    "2.2" version = cuDriverGetVersion(*mut c_int);
    "2.0" device_count = cuDeviceGetCount(*mut c_int);
    "2.0" device = cuDeviceGet(*mut c_int, c_int);
    "2.0" device_name = cuDeviceGetName(*mut c_char, c_int, c_int);
    "4.1" device_bus = cuDeviceGetPCIBusId(*mut c_char, c_int, c_int);
    "3.2" device_memory = cuDeviceTotalMem_v2(*mut usize, c_int);
    "2.0" device_attribute = cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    "7.0" retain = cuDevicePrimaryCtxRetain(*mut Context, c_int);
    "11.0" release = cuDevicePrimaryCtxRelease_v2(c_int);
    "4.0" push = cuCtxPushCurrent_v2(Context);
    "4.0" pop = cuCtxPopCurrent_v2(*mut Context);
    "2.0" synchronize = cuCtxSynchronize();
    "2.2" host_alloc = cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    "2.0" host_free = cuMemFreeHost(*mut c_void);
    "6.5" host_register = cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    "4.0" host_unregister = cuMemHostUnregister(*mut c_void);
    "3.2" host_device_pointer = cuMemHostGetDevicePointer_v2(*mut DevicePointer, *mut c_void, c_uint);
    "3.2" alloc = cuMemAlloc_v2(*mut DevicePointer, usize);
    "3.2" free = cuMemFree_v2(DevicePointer);
    "3.2" fill = cuMemsetD8_v2(DevicePointer, u8, usize);
    "3.2" copy_in = cuMemcpyHtoD_v2(DevicePointer, *const c_void, usize);
    "3.2" copy_out = cuMemcpyDtoH_v2(*mut c_void, DevicePointer, usize);
}

impl Driver {
    /// Opens the driver's library and starts the driver.
    pub(crate) fn open(path: &Path) -> Result<Driver, CudaError> {
        if cfg!(target_os = "macos") {
            return Err(CudaError::OtherSystem);
        }
        // SAFETY: the driver's library may be loaded at any time; whoever names another one answers for it.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| CudaError::NoDriver { cause: loader_said(path, &error) })?;
        let driver = Driver::load(&library)?;
        // The driver has threads and handlers of its own: it stays.
        std::mem::forget(library);
        // SAFETY: no flags are defined.
        match unsafe { (driver.init)(0) } {
            ERROR_NO_DEVICE => Err(CudaError::NoGpu),
            status => driver.check("cuInit", status).map(|()| driver),
        }
    }

    /// Turns what a call returned into an error with the driver's own words.
    pub(crate) fn check(&self, call: &'static str, status: c_int) -> Result<(), CudaError> {
        if status == SUCCESS {
            return Ok(());
        }
        let words = |ask: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut words = null();
            // SAFETY: the pointer is to a local; what comes back is a string that is never freed, or null.
            let known = unsafe { ask(status, &raw mut words) };
            let known = known == SUCCESS && !words.is_null();
            // SAFETY: as above.
            known.then(|| unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
        };
        let name = words(self.error_name).unwrap_or_else(|| format!("result {status}"));
        let text = words(self.error_text).unwrap_or_else(|| "the driver has no words for it".to_owned());
        Err(CudaError::Call { call, status, name, text, way_out: way_out(status) })
    }

    pub(crate) fn attribute(&self, device: c_int, attribute: Attribute) -> bool {
        let mut value = 0;
        // SAFETY: the pointer is to a local. A driver that does not know an attribute says so, and has not the thing.
        let status = unsafe { (self.device_attribute)(&raw mut value, attribute as c_int, device) };
        status == SUCCESS && value != 0
    }
}

/// The loader's words, which lie behind the error's own.
fn loader_said(path: &Path, error: &libloading::Error) -> String {
    let words = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    let name = path.display().to_string();
    if words.contains(&name) { words } else { format!("{name}: {words}") }
}
