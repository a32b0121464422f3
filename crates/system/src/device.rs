//! A device: opened, asked for what it can do, and the parent of all that is made from it.

mod open;

use std::ffi::{c_int, c_uint};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use fulmen_verbs::{
    Access, Budget, CompletionChannel, CompletionQueue, Device, DeviceInfo, GidEntry, LinkLayer, Mtu, PortInfo,
    PortState, ProtectionDomain, VerbsError,
};

use crate::completion::{Channel, ChannelHandle, Queue, QueueHandle, own_channel};
use crate::domain::{Domain, DomainHandle, flags};
use crate::ffi::number;
use crate::inflight::PAIR_NUMBERS;
use crate::library::{last_errno, set_errno_zero};
use crate::{Attributes, Library, PortSpeed, Transport, errno, ffi, gid};

pub(crate) use open::open;

/// A device of the machine, opened.
pub struct SystemDevice {
    core: Arc<Core>,
}

pub(crate) struct Budgets {
    pub(crate) protection_domains: Budget,
    pub(crate) completion_queues: Budget,
    pub(crate) memory_regions: Budget,
    pub(crate) queue_pairs: Budget,
}

/// What everything made from a device keeps.
pub(crate) struct Core {
    pub(crate) library: Arc<Library>,
    pub(crate) context: NonNull<ffi::Context>,
    pub(crate) info: DeviceInfo,
    pub(crate) budgets: Budgets,
    attributes: Attributes,
    /// Rights without which the device registers nothing.
    extra_rights: Access,
    gone: AtomicBool,
    /// Whether events about the device can be read without waiting.
    events: bool,
    pairs: AtomicU32,
}

// SAFETY: the library's calls on a context and what is made from it may be made by any thread at any time; what is not
// (closing, destroying) is done by the last owner.
unsafe impl Send for Core {}
// SAFETY: as above.
unsafe impl Sync for Core {}

impl Drop for Core {
    fn drop(&mut self) {
        // SAFETY: everything made from the context kept this object, and is gone.
        let returned = unsafe { (self.library.calls.close_device)(self.context.as_ptr()) };
        if returned != 0 {
            tracing::warn!(
                device = self.info.name,
                "ibv_close_device failed: {}",
                self.reason("ibv_close_device", returned)
            );
        }
    }
}

impl Core {
    pub(crate) fn foreign(&self, what: &'static str) -> VerbsError {
        VerbsError::Foreign { what, device: self.info.name.clone() }
    }

    /// A failure of a call, by the error number that it returned or left behind.
    pub(crate) fn failed(&self, call: &'static str, errno: i32) -> VerbsError {
        VerbsError::System { device: self.info.name.clone(), call, cause: self.reason(call, errno) }
    }

    fn reason(&self, call: &'static str, errno: i32) -> String {
        match self.is_gone() {
            true => "the device is gone: look at cable, driver and the system's log, then open it again".to_owned(),
            false => errno::explain(call, errno),
        }
    }

    /// The rights as the library writes them, with those that the device wants beside.
    pub(crate) fn flags(&self, access: Access) -> c_int {
        let mut extra = self.extra_rights;
        // No peer may write where this process may not.
        extra.set(Access::REMOTE_WRITE, extra.contains(Access::REMOTE_WRITE) && access.contains(Access::LOCAL_WRITE));
        flags(access | extra)
    }

    /// The rights of a queue pair, with those that the device wants beside.
    pub(crate) fn pair_flags(&self, access: Access) -> c_uint {
        (access | self.extra_rights).bits()
    }

    /// The operations of the data path.
    #[inline]
    pub(crate) fn ops(&self) -> &ffi::ContextOps {
        // SAFETY: the context lives as long as this object, and its operations do not change after it was opened.
        unsafe { &(*self.context.as_ptr()).ops }
    }

    /// Makes something by a call that gives null on failure and leaves the reason behind.
    pub(crate) fn make<T>(&self, call: &'static str, make: impl FnOnce() -> *mut T) -> Result<NonNull<T>, VerbsError> {
        set_errno_zero();
        NonNull::new(make()).ok_or_else(|| self.failed(call, last_errno()))
    }

    /// A number for a queue pair, to tell completions apart. None is given out twice, since a completion may be late.
    pub(crate) fn next_pair(&self) -> Result<u32, VerbsError> {
        let next = |number: u32| (number <= PAIR_NUMBERS).then_some(number + 1);
        self.pairs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_err(|_| {
            let (what, limit) = ("queue pairs in its life", u64::from(PAIR_NUMBERS));
            VerbsError::Limit { device: self.info.name.clone(), what, asked: limit + 1, limit }
        })
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Fails once the device is gone.
    pub(crate) fn check_alive(&self, call: &'static str) -> Result<(), VerbsError> {
        if self.is_gone() { Err(self.failed(call, 0)) } else { Ok(()) }
    }

    /// Takes in what the system has to say about the device and its queues, without waiting. A system call.
    pub(crate) fn look_at_events(&self) {
        let calls = &self.library.calls;
        let (true, Some(get), Some(ack)) = (self.events, calls.get_async_event, calls.ack_async_event) else { return };
        loop {
            let mut event = ffi::AsyncEvent { element: std::ptr::null_mut(), event_type: 0 };
            // SAFETY: the context is open, and the event has room. The descriptor does not block.
            if unsafe { get(self.context.as_ptr(), &mut event) } != 0 {
                return;
            }
            match event.event_type {
                number::EVENT_CQ_ERR => {
                    let queue = event.element.cast::<ffi::Cq>();
                    // SAFETY: a queue is destroyed only after all events about it were acknowledged, which this one was
                    // not, and its context is what `Queue` gave it and keeps until then.
                    unsafe { Queue::note_overflow(queue) };
                }
                number::EVENT_DEVICE_FATAL => self.gone.store(true, Ordering::Relaxed),
                other => tracing::debug!(device = self.info.name, event = other, "an event that nothing depends on"),
            }
            // SAFETY: the event came from the call that this one belongs to, and is acknowledged once.
            unsafe { ack(&mut event) };
        }
    }

    /// The descriptor on which events about the device come, if they can be read.
    pub(crate) fn events_fd(&self) -> Option<c_int> {
        // SAFETY: the context is open.
        self.events.then(|| unsafe { (*self.context.as_ptr()).async_fd })
    }

    pub(crate) fn port_attr(&self, number: u8) -> Result<ffi::PortAttr, VerbsError> {
        self.info.check_port(number)?;
        // SAFETY: numbers alone, for which zero is a value. It is larger than what any version of the library writes.
        let mut attr: ffi::PortAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the place large enough.
        let returned = unsafe { (self.library.calls.query_port)(self.context.as_ptr(), number, &mut attr) };
        if returned != 0 { Err(self.failed("ibv_query_port", returned)) } else { Ok(attr) }
    }

    pub(crate) fn link_layer(&self, attr: &ffi::PortAttr) -> LinkLayer {
        match attr.link_layer {
            _ if self.attributes.transport == Transport::Thunderbolt => LinkLayer::Thunderbolt,
            number::LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            _ => LinkLayer::Infiniband,
        }
    }

    /// One entry of a port's GID table, zero if it is empty.
    pub(crate) fn gid(&self, port: u8, index: u8) -> Result<fulmen_verbs::Gid, VerbsError> {
        let mut gid = ffi::Gid { raw: [0; 16] };
        // SAFETY: the context is open, and the place is there.
        let returned =
            unsafe { (self.library.calls.query_gid)(self.context.as_ptr(), port, c_int::from(index), &mut gid) };
        match returned {
            0 => Ok(fulmen_verbs::Gid(gid.raw)),
            -1 => Err(self.failed("ibv_query_gid", last_errno())),
            other => Err(self.failed("ibv_query_gid", other)),
        }
    }
}

impl SystemDevice {
    /// What the device says of itself.
    #[must_use]
    pub fn attributes(&self) -> &Attributes {
        &self.core.attributes
    }

    /// How fast a port is.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if there is no such port, [`VerbsError::System`].
    pub fn port_speed(&self, number: u8) -> Result<PortSpeed, VerbsError> {
        Ok(PortSpeed::of(&self.core.port_attr(number)?))
    }
}

impl Device for SystemDevice {
    fn info(&self) -> &DeviceInfo {
        &self.core.info
    }

    fn port(&self, number: u8) -> Result<PortInfo, VerbsError> {
        let attr = self.core.port_attr(number)?;
        let state = match attr.state {
            number::PORT_INIT => PortState::Initializing,
            number::PORT_ARMED => PortState::Armed,
            number::PORT_ACTIVE => PortState::Active,
            _ => PortState::Down,
        };
        let active_mtu = match attr.active_mtu {
            number::MTU_256 => Mtu::B256,
            number::MTU_512 => Mtu::B512,
            number::MTU_2048 => Mtu::B2048,
            number::MTU_4096 => Mtu::B4096,
            _ => Mtu::B1024,
        };
        let link_layer = self.core.link_layer(&attr);
        let gid_entries = u16::try_from(attr.gid_tbl_len.max(0)).unwrap_or(u16::MAX);
        let lid = if link_layer == LinkLayer::Infiniband { attr.lid } else { 0 };
        Ok(PortInfo { number, state, link_layer, active_mtu, gid_entries, lid })
    }

    fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        gid::table(&self.core, port)
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        Ok(Arc::new(DomainHandle(Arc::new(Domain::new(&self.core)?))))
    }

    fn create_cq(
        &self,
        entries: u32,
        channel: Option<&Arc<dyn CompletionChannel>>,
    ) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        self.core.info.check_completion_queue(entries)?;
        let channel = channel.map(|channel| own_channel(&self.core, channel)).transpose()?;
        Ok(Arc::new(QueueHandle(Arc::new(Queue::new(&self.core, entries, channel)?))))
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        Ok(Arc::new(ChannelHandle(Arc::new(Channel::new(&self.core)?))))
    }
}
