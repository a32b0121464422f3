//! The devices that connections are made on: opened once a process, and kept.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::io::Errno;

use super::refuse_null;
use crate::device::{ibv_free_device_list, ibv_get_device_list, ibv_open_device};
use crate::domain::ibv_alloc_pd;
use crate::export::export;
use crate::ffi::*;
use crate::query::{ibv_query_device, ibv_query_gid, ibv_query_port};

/// Each device has one port.
pub(super) const PORT: u8 = 1;

/// An open device.
pub(super) struct Device {
    pub(super) context: *mut ibv_context,
    /// READs and atomics that a queue pair answers at once, and that it may have under way.
    pub(super) most_responder_resources: u8,
    pub(super) most_initiator_depth: u8,
    /// The domain of queue pairs whose program brings none.
    pd: Mutex<*mut ibv_pd>,
}

// SAFETY: the calls that take a context or a domain may come from any thread, as the manual page of verbs says.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// What a port is known by.
#[derive(Clone, Copy)]
pub(super) struct Port {
    pub(super) lid: u16,
    pub(super) mtu: u8,
    pub(super) gid: ibv_gid,
    pub(super) gid_index: u8,
}

/// All devices.
pub(super) fn all() -> Result<&'static [Device], Errno> {
    static DEVICES: OnceLock<Result<Vec<Device>, Errno>> = OnceLock::new();
    DEVICES.get_or_init(open_all).as_deref().map_err(|error| *error)
}

/// The device of every address of this host: the first.
pub(super) fn first() -> Result<&'static Device, Errno> {
    all()?.first().ok_or(Errno::NODEV)
}

fn open_all() -> Result<Vec<Device>, Errno> {
    let mut count = 0;
    // SAFETY: the count is a place for a number.
    let list = unsafe { ibv_get_device_list(&mut count) };
    if list.is_null() {
        return Err(last_error());
    }
    let mut devices = Vec::new();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has that many devices, which stay while it is not freed.
        let context = unsafe { ibv_open_device(*list.add(index)) };
        if context.is_null() {
            tracing::warn!(index, "a device cannot be opened, and connections do without it");
            continue;
        }
        // SAFETY: numbers, which may be zero.
        let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the place is one for attributes.
        let error = unsafe { ibv_query_device(context, &mut attributes) };
        check(error)?;
        let most = |count: c_int| u8::try_from(count.clamp(0, 255)).expect("it fits now");
        devices.push(Device {
            context,
            most_responder_resources: most(attributes.max_qp_rd_atom),
            most_initiator_depth: most(attributes.max_qp_init_rd_atom),
            pd: Mutex::new(ptr::null_mut()),
        });
    }
    // SAFETY: it came from `ibv_get_device_list`; open devices stay.
    unsafe { ibv_free_device_list(list) };
    Ok(devices)
}

impl Device {
    pub(super) fn port(&self) -> Result<Port, Errno> {
        // The exported call writes the structure's first version alone; the rest stays zero.
        // SAFETY: numbers, which may be zero.
        let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context stays open, and the place is large enough.
        check(unsafe { ibv_query_port(self.context, PORT, (&raw mut attributes).cast()) })?;
        // Where there are no LIDs, programs take index 1, as other libraries do.
        let gid_index = u8::from(attributes.lid == 0 && attributes.gid_tbl_len > 1);
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: as above.
        if unsafe { ibv_query_gid(self.context, PORT, c_int::from(gid_index), &mut gid) } != 0 {
            return Err(last_error());
        }
        Ok(Port { lid: attributes.lid, mtu: u8::try_from(attributes.active_mtu).unwrap_or(0), gid, gid_index })
    }

    /// The domain of queue pairs whose program brings none, made when first needed.
    pub(super) fn domain(&self) -> Result<*mut ibv_pd, Errno> {
        let mut pd = self.pd.lock().unwrap_or_else(PoisonError::into_inner);
        if pd.is_null() {
            // SAFETY: the context stays open.
            *pd = unsafe { ibv_alloc_pd(self.context) };
        }
        if pd.is_null() { Err(last_error()) } else { Ok(*pd) }
    }
}

/// The result of a call of verbs that returns an error number.
pub(super) fn check(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(result.abs())) }
}

/// What a call that returned NULL left in `errno`.
pub(super) fn last_error() -> Errno {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(number) if number > 0 => Errno::from_raw_os_error(number),
        _ => Errno::NODEV,
    }
}

export! {
    /// The contexts of all devices, ended by NULL.
    "RDMACM_1.0" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
        let devices = match all() {
            Ok(devices) => devices,
            Err(error) => return refuse_null("rdma_get_devices", error, "the devices cannot be opened"),
        };
        // SAFETY: room for the contexts and a NULL, which is what `calloc` fills it with.
        let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_context>()) }.cast::<*mut ibv_context>();
        if list.is_null() {
            return list;
        }
        for (index, device) in devices.iter().enumerate() {
            // SAFETY: there is room for all of them.
            unsafe { *list.add(index) = device.context };
        }
        if !num_devices.is_null() {
            // SAFETY: the manual page asks for a place for the count, or none.
            unsafe { *num_devices = c_int::try_from(devices.len()).unwrap_or(c_int::MAX) };
        }
        list
    }

    /// Frees a list of contexts, which stay open.
    "RDMACM_1.0" fn rdma_free_devices(list: *mut *mut ibv_context) -> () {
        // SAFETY: it came from `rdma_get_devices`, or is null.
        unsafe { libc::free(list.cast()) };
    }
}
