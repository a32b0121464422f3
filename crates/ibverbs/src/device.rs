//! The list of devices, and opening them.

use std::ffi::{c_char, c_int};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use fulmen_soft::Profile;

use crate::config::{Config, ConfigError};
use crate::context::Context;
use crate::error::{refuse_null, set_errno};
use crate::events::Events;
use crate::export::export;
use crate::ffi::*;
use crate::{data, host, log, query, refused};

/// A device as programs see it. It stays where it is until the process ends.
#[repr(C)]
struct Listed {
    c: ibv_device,
    /// Drivers' libraries look here for their own mark, to see whether the device is theirs: it is not.
    _mark: [usize; 32],
    index: u8,
}

/// What Apple's library calls the transport and the link layer of Thunderbolt.
pub(crate) const TRANSPORT_THUNDERBOLT: ibv_transport_type = 100;

struct List {
    config: &'static Config,
    /// Programs hold their addresses: it never grows.
    devices: Vec<Listed>,
}

// SAFETY: nothing in it changes after it was made.
unsafe impl Send for List {}
// SAFETY: as above.
unsafe impl Sync for List {}

/// The devices, as the environment wants them; what is wrong with the environment was told on standard error, once.
fn list() -> Option<&'static List> {
    static LIST: OnceLock<Option<List>> = OnceLock::new();
    let made = LIST.get_or_init(|| {
        let complain = |error: &ConfigError| {
            eprintln!("fulmen: {error}");
            None
        };
        let config = match Config::get() {
            Ok(config) => config,
            Err(error) => return complain(error),
        };
        if let Err(error) = log::start(&config.log) {
            return complain(&error);
        }
        let devices =
            (0..config.devices).map(|index| Listed { c: describe(config, index), _mark: [0; 32], index }).collect();
        Some(List { config, devices })
    });
    made.as_ref()
}

fn describe(config: &Config, index: u8) -> ibv_device {
    let name = config.device_name(index);
    let node = format!("uverbs{index}");
    let transport_type = match config.profile {
        Profile::Infiniband => IBV_TRANSPORT_IB,
        Profile::Thunderbolt => TRANSPORT_THUNDERBOLT,
    };
    ibv_device {
        _ops: _ibv_device_ops { _dummy1: 0, _dummy2: 0 },
        node_type: IBV_NODE_CA,
        transport_type,
        name: text(&name),
        dev_name: text(&node),
        dev_path: text(&format!("/sys/class/infiniband_verbs/{node}")),
        ibdev_path: text(&format!("/sys/class/infiniband/{name}")),
    }
}

/// A text as a member of a structure holds it, ended by zero.
pub(crate) fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut member = [0; N];
    // The last one stays zero.
    for (to, from) in member[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    member
}

/// The GUID of device `index`: the same in each process, as that of one adapter is.
pub(crate) fn guid(config: &Config, index: u8) -> u64 {
    // Locally administered, with the middle of an EUI-64 that was made of 48 bits.
    let profile = match config.profile {
        Profile::Infiniband => 0x4d,
        Profile::Thunderbolt => 0x54,
    };
    u64::from_be_bytes([0x02, 0x46, 0x4c, 0xff, 0xfe, profile, 0, index])
}

/// # Safety
/// `device` came from the list.
unsafe fn listed<'a>(device: *mut ibv_device) -> &'a Listed {
    // SAFETY: each device of this library is the first member of a `Listed`, which stays.
    unsafe { &*device.cast::<Listed>() }
}

/// The index of the device of an open context.
pub(crate) fn index_of(context: &Context) -> u8 {
    // SAFETY: the context was opened with a device of the list.
    unsafe { listed((*context.raw()).device) }.index
}

fn open(device: *mut ibv_device) -> *mut ibv_context {
    let Some(list) = list() else {
        return refuse_null("ibv_open_device", libc::EINVAL, "the environment makes no sense");
    };
    // SAFETY: the program's promise that the device is of the list.
    let index = unsafe { listed(device) }.index;
    let host = match host::get(list.config) {
        Ok(host) => host,
        Err(error) => {
            // Without a device the program can only say that there is none: the reason is worth a line.
            tracing::error!("ibv_open_device failed: {error}");
            set_errno(libc::ENODEV);
            return null_mut();
        }
    };
    let events = match Events::new() {
        Ok(events) => events,
        Err(error) => {
            return refuse_null("ibv_open_device", error.raw_os_error().unwrap_or(libc::EMFILE), error);
        }
    };
    let opened = host.attach(index.into(), &events);
    // SAFETY: all members are numbers, addresses that may be NULL, and optional functions.
    let mut c: verbs_context = unsafe { std::mem::zeroed() };
    c.sz = size_of::<verbs_context>();
    c.context.device = device;
    // There is no driver behind it to which commands could go.
    c.context.cmd_fd = -1;
    c.context.async_fd = events.fd();
    c.context.num_comp_vectors = 1;
    // SAFETY: memory of a mutex that nobody uses yet.
    unsafe { libc::pthread_mutex_init(&raw mut c.context.mutex, null()) };
    c.context.abi_compat = VERBS_ABI_IS_EXTENDED as *mut _;
    refused::install(&mut c);
    query::install(&mut c);
    data::install(&mut c);
    let context = Box::leak(Context::new(c, opened, list.config, events));
    context.raw()
}

export! {
    /// The devices, in an array that ends with NULL.
    "IBVERBS_1.1" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
        let count = |count: usize| if !num_devices.is_null() {
            // SAFETY: the program's promise: NULL, or the address of a number.
            unsafe { *num_devices = count as c_int }
        };
        count(0);
        let Some(list) = list() else {
            return refuse_null("ibv_get_device_list", libc::EINVAL, "the environment makes no sense");
        };
        let devices = &list.devices;
        // SAFETY: it has no conditions; what it gives is looked at below.
        let array: *mut *mut ibv_device = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) }.cast();
        if array.is_null() {
            set_errno(libc::ENOMEM);
            return array;
        }
        for (place, device) in devices.iter().enumerate() {
            // SAFETY: there is room for one more than there are devices.
            unsafe { *array.add(place) = (&raw const device.c).cast_mut() };
        }
        count(devices.len());
        array
    }

    /// Frees the array. Devices stay where they are.
    "IBVERBS_1.1" fn ibv_free_device_list(list: *mut *mut ibv_device) -> () {
        // SAFETY: `ibv_get_device_list` got it from `calloc`.
        unsafe { libc::free(list.cast()) }
    }

    /// A device's name.
    "IBVERBS_1.1" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
        // SAFETY: the program's promise; the name ends with zero.
        unsafe { (&raw const (*device).name).cast() }
    }

    /// A device's number.
    "IBVERBS_1.9" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
        // SAFETY: the program's promise.
        unsafe { listed(device) }.index.into()
    }

    /// A device's GUID, in network byte order.
    "IBVERBS_1.1" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
        match list() {
            // SAFETY: the program's promise.
            Some(list) => guid(list.config, unsafe { listed(device) }.index).to_be(),
            None => 0,
        }
    }

    /// Opens a device.
    "IBVERBS_1.1" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
        if device.is_null() {
            return refuse_null("ibv_open_device", libc::ENODEV, "there is no device at NULL");
        }
        open(device)
    }

    /// Closes a device.
    "IBVERBS_1.1" fn ibv_close_device(context: *mut ibv_context) -> c_int {
        // SAFETY: the program's promise: it uses the context no more.
        let context = unsafe { Context::take(context) };
        let left = context.users.count();
        if left > 0 {
            tracing::info!("ibv_close_device: {left} objects of the device were not destroyed");
            // They go on referring to it.
            Box::leak(context);
        }
        0
    }
}
