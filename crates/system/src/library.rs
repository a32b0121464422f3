//! The verbs library, opened at run time.

mod symbols;

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};

use crate::device::{self, SystemDevice};
use crate::{OpenError, Transport, errno, ffi, platform};

pub(crate) use symbols::Calls;
pub use symbols::Symbol;

/// Names another library than the machine's own.
const VARIABLE: &str = "FULMEN_VERBS_LIBRARY";

/// The verbs library, opened. It is never closed again: its drivers keep threads and thread-local state.
pub struct Library {
    path: PathBuf,
    pub(crate) calls: Calls,
    present: Vec<Symbol>,
}

/// A device of the machine, as the library lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDevice {
    /// Its name, which may change over a reboot.
    pub name: String,
    /// What its queue pairs run over.
    pub transport: Transport,
    /// The node's own number, as the device gives it; 0 if it gives none.
    pub node_guid: u64,
}

impl Library {
    /// Opens what `FULMEN_VERBS_LIBRARY` names (a path), else the machine's own library: `libibverbs.so.1` on Linux,
    /// `/usr/lib/librdma.dylib` on macOS.
    ///
    /// # Errors
    /// [`OpenError::NoLibrary`] and [`OpenError::MissingSymbol`].
    pub fn open() -> Result<Arc<Library>, OpenError> {
        match std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
            Some(path) => Library::open_at(Path::new(&path)),
            None => Library::open_at(Path::new(platform::LIBRARY)),
        }
    }

    /// Opens the library at this path. A bare name is looked for where the system's loader looks.
    ///
    /// # Errors
    /// [`OpenError::NoLibrary`] and [`OpenError::MissingSymbol`].
    pub fn open_at(path: &Path) -> Result<Arc<Library>, OpenError> {
        // SAFETY: the library's initializers run. It is the one that the user named or the system's own; whoever runs
        // this program trusts either. All its symbols are bound now, so that none is found missing in the middle of
        // something.
        let loaded = unsafe { Loaded::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|cause| {
            let cause = one_line(&innermost(&cause));
            OpenError::NoLibrary { path: path.to_owned(), cause, way_out: platform::INSTALL }
        })?;
        // Never closed: forgetting the handle keeps it mapped, whatever happens to what is made here.
        let loaded = std::mem::ManuallyDrop::new(loaded);
        let (calls, present) = symbols::load(&loaded, path)?;
        Ok(Arc::new(Library { path: path.to_owned(), calls, present }))
    }

    /// What was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every entry point that Fulmen knows: those that it needs, and optional ones.
    #[must_use]
    pub fn symbols(&self) -> Vec<Symbol> {
        self.present.clone()
    }

    /// The devices of the machine, in the library's order, without opening them.
    ///
    /// # Errors
    /// [`OpenError::NoDevices`], [`OpenError::NoDriver`], [`OpenError::SwitchedOff`] and [`OpenError::Call`].
    pub fn devices(&self) -> Result<Vec<FoundDevice>, OpenError> {
        let list = self.list()?;
        Ok(list.iter().map(|device| self.found(device)).collect())
    }

    /// Opens a device and finds out what it can do: tiny queue pairs of both kinds are made and destroyed again.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_device(self: &Arc<Self>, name: &str) -> Result<Arc<SystemDevice>, OpenError> {
        let list = self.list()?;
        let found: Vec<_> = list.iter().map(|device| (device, self.found(device))).collect();
        let Some((device, found)) = found.iter().find(|(_, found)| found.name == name) else {
            let known = found.into_iter().map(|(_, found)| found.name).collect();
            return Err(OpenError::UnknownDevice { name: name.to_owned(), known });
        };
        if found.transport == Transport::Iwarp {
            return Err(OpenError::Iwarp { name: name.to_owned() });
        }
        device::open(self, *device, found)
    }

    /// Whether it is not the machine's own: another has devices of which the system's files say nothing.
    pub(crate) fn is_another(&self) -> bool {
        self.path != Path::new(platform::LIBRARY)
    }

    /// The library's own list, which has to be freed after the last device of it was opened.
    fn list(&self) -> Result<DeviceList<'_>, OpenError> {
        let mut count = 0;
        set_errno_zero();
        // SAFETY: the call of that name takes a place for the length, which is there, and gives a list or null.
        let first = unsafe { (self.calls.get_device_list)(&mut count) };
        let Some(first) = NonNull::new(first) else {
            let errno = last_errno();
            if errno == 0 {
                return Err(self.nothing_listed());
            }
            return Err(match platform::switched_off(errno, self.is_another()) {
                Some((cause, way_out)) => OpenError::SwitchedOff { cause, way_out },
                None => self.failed("ibv_get_device_list", errno),
            });
        };
        let list = DeviceList { library: self, first, count: usize::try_from(count).unwrap_or(0) };
        if list.count > 0 {
            return Ok(list);
        }
        Err(self.nothing_listed())
    }

    /// Why a list is empty.
    fn nothing_listed(&self) -> OpenError {
        if let Some((cause, way_out)) = platform::switched_off(0, self.is_another()) {
            return OpenError::SwitchedOff { cause, way_out };
        }
        // The system's devices are those of its own library.
        match platform::undriven_devices().filter(|_| !self.is_another()) {
            Some((devices, way_out)) => OpenError::NoDriver { devices, way_out },
            None => OpenError::NoDevices { way_out: platform::NO_DEVICES },
        }
    }

    fn found(&self, device: NonNull<ffi::Device>) -> FoundDevice {
        // SAFETY: the device is in a list that is still there; its name is a string that lives as long, and the prefix
        // of the structure has been the same in all versions.
        let (name, node_guid, node, transport) = unsafe {
            let name = (self.calls.get_device_name)(device.as_ptr());
            let name = if name.is_null() { String::new() } else { CStr::from_ptr(name).to_string_lossy().into_owned() };
            let guid = (self.calls.get_device_guid)(device.as_ptr());
            let device = device.as_ptr();
            (name, u64::from_be(guid), (*device).node_type, (*device).transport_type)
        };
        FoundDevice { name, transport: Transport::of(node, transport), node_guid }
    }

    fn failed(&self, call: &'static str, errno: i32) -> OpenError {
        OpenError::Call { device: self.path.display().to_string(), call, errno, cause: errno::explain(call, errno) }
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A list of devices, freed on drop.
struct DeviceList<'a> {
    library: &'a Library,
    first: NonNull<*mut ffi::Device>,
    count: usize,
}

impl DeviceList<'_> {
    fn iter(&self) -> impl Iterator<Item = NonNull<ffi::Device>> + '_ {
        // SAFETY: the library says that so many pointers stand there, and they stay until the list is freed.
        let list = unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) };
        list.iter().filter_map(|device| NonNull::new(*device))
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        // SAFETY: the list came from the call that this one belongs to, and nobody uses it any more.
        unsafe { (self.library.calls.free_device_list)(self.first.as_ptr()) };
    }
}

/// The error number that the last call left on this thread.
pub(crate) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Calls that fail without saying why must not be given the reason of an earlier one.
pub(crate) fn set_errno_zero() {
    platform::set_errno_zero();
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
