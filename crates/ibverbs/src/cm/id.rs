//! Identifiers and event channels, as the program holds them.

use std::cell::UnsafeCell;
use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::channel::Channel;
use super::endpoint::Endpoint;
use super::events;
use super::ffi::*;
use super::port::PortSpace;
use super::{address, devices, refuse, refuse_null};
use crate::export::export;
use crate::ffi::*;

/// An event channel of the program.
#[repr(C)]
pub(super) struct EventChannel {
    c: rdma_event_channel,
    pub(super) channel: Arc<Channel>,
}

impl EventChannel {
    fn open() -> Result<*mut rdma_event_channel, Errno> {
        let channel = Arc::new(Channel::new()?);
        let c = rdma_event_channel { fd: channel.descriptor().as_raw_fd() };
        Ok(Box::into_raw(Box::new(EventChannel { c, channel })).cast())
    }

    /// What the program's pointer points to.
    ///
    /// # Safety
    /// It came from [`EventChannel::open`] and was not destroyed.
    pub(super) unsafe fn of<'a>(channel: *mut rdma_event_channel) -> &'a EventChannel {
        // SAFETY: the caller's promise; the structure starts with the program's part.
        unsafe { &*channel.cast::<EventChannel>() }
    }

    /// # Safety
    /// As [`EventChannel::of`], and this is the last use of it.
    unsafe fn destroy(channel: *mut rdma_event_channel) {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(channel.cast::<EventChannel>()) });
    }
}

/// An identifier of the program.
#[repr(C)]
pub(super) struct Id {
    /// The program reads it, and writes `context` and others as it likes, while no call of this library runs.
    c: UnsafeCell<rdma_cm_id>,
    pub(super) endpoint: Arc<Endpoint>,
    own: Mutex<Own>,
}

/// What the program does not see.
pub(super) struct Own {
    /// Calls wait for their own events, on a channel of the identifier's own.
    pub(super) sync: bool,
    /// What queue pairs of requests to connect are made of, of one that listens by [`rdma_create_ep`].
    ///
    /// [`rdma_create_ep`]: super::endpoints::rdma_create_ep
    pub(super) template: Option<Template>,
    /// Private data for a connect that brings none.
    pub(super) connect: Vec<u8>,
    /// The queue pair could not be made ready: what the peer says after that is of no interest.
    pub(super) connect_failed: bool,
    pub(super) ack_timeout: Option<u8>,
    pub(super) type_of_service: u8,
    pub(super) local_ece: (u32, u32),
    pub(super) remote_ece: (u32, u32),
    /// The route, to which `route.path_rec` points.
    path: Option<Box<ibv_sa_path_rec>>,
}

/// Attributes of queue pairs to be made.
#[derive(Clone, Copy)]
pub(super) struct Template {
    pub(super) pd: *mut ibv_pd,
    pub(super) attributes: ibv_qp_init_attr,
}

impl Id {
    /// A new one, which reports to `channel`; to a channel of its own if that is null.
    pub(super) fn create(
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        ps: rdma_port_space,
        qp_type: ibv_qp_type,
    ) -> Result<*mut rdma_cm_id, Errno> {
        let space = PortSpace::of(ps).ok_or(Errno::PROTONOSUPPORT)?;
        let sync = channel.is_null();
        let channel = if sync { EventChannel::open()? } else { channel };
        // SAFETY: it was made just now, or is the caller's.
        let queue = unsafe { EventChannel::of(channel) }.channel.clone();
        let id = Id::wrap(Endpoint::new(space, Some(queue)), channel, context, ps, qp_type);
        // SAFETY: it was made just now.
        unsafe { Id::of(id) }.own().sync = sync;
        Ok(id)
    }

    /// One for an endpoint, which learns of it.
    pub(super) fn wrap(
        endpoint: Arc<Endpoint>,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        ps: rdma_port_space,
        qp_type: ibv_qp_type,
    ) -> *mut rdma_cm_id {
        // SAFETY: numbers, addresses of sockets and pointers, all of which may be zero.
        let mut c: rdma_cm_id = unsafe { std::mem::zeroed() };
        (c.channel, c.context, c.ps, c.qp_type) = (channel, context, ps, qp_type);
        let own = Own {
            sync: false,
            template: None,
            connect: Vec::new(),
            connect_failed: false,
            ack_timeout: None,
            type_of_service: 0,
            local_ece: (0, 0),
            remote_ece: (0, 0),
            path: None,
        };
        let id = Box::new(Id { c: UnsafeCell::new(c), endpoint: endpoint.clone(), own: Mutex::new(own) });
        let id = Box::into_raw(id).cast::<rdma_cm_id>();
        live().insert(id.addr());
        endpoint.lock().id = id.expose_provenance();
        id
    }

    /// What the program's pointer points to; if it is no identifier, or no more one, that is logged, and `errno` set.
    ///
    /// Programs that clean up after an error are seen to go on with identifiers that they destroyed.
    ///
    /// # Safety
    /// Nobody destroys it meanwhile.
    pub(super) unsafe fn find<'a>(name: &str, id: *mut rdma_cm_id) -> Option<&'a Id> {
        if live().contains(&id.addr()) {
            // SAFETY: an identifier lives there.
            return Some(unsafe { Id::of(id) });
        }
        refuse(name, Errno::INVAL, format_args!("{id:p} is no identifier, or one that was destroyed"));
        None
    }

    /// What a pointer to an identifier points to.
    ///
    /// # Safety
    /// It came from [`Id::wrap`] and was not destroyed.
    pub(super) unsafe fn of<'a>(id: *mut rdma_cm_id) -> &'a Id {
        // SAFETY: the caller's promise; the structure starts with the program's part.
        unsafe { &*id.cast::<Id>() }
    }

    /// The program's part.
    pub(super) fn c(&self) -> *mut rdma_cm_id {
        self.c.get()
    }

    pub(super) fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_datagram(&self) -> bool {
        // SAFETY: the program does not write while a call runs.
        unsafe { (*self.c()).qp_type == IBV_QPT_UD }
    }

    /// Shows the program the addresses.
    pub(super) fn show_addresses(&self) {
        let (local, peer) = {
            let state = self.endpoint.lock();
            (state.local, state.peer)
        };
        // SAFETY: the program does not read while a call runs.
        let route = unsafe { &mut (*self.c()).route.addr };
        if let Some(local) = local {
            route.src_storage = address::to_c(&local).0;
        }
        if let Some(peer) = peer {
            route.dst_storage = address::to_c(&peer).0;
        }
    }

    /// Gives the identifier the device, which the program sees from now on.
    pub(super) fn attach(&self) -> Result<(), Errno> {
        let device = devices::first()?;
        // SAFETY: the program does not read while a call runs.
        unsafe {
            (*self.c()).verbs = device.context;
            (*self.c()).port_num = devices::PORT;
            (*self.c()).route.addr.addr.sgid = device.port()?.gid;
            // The default partition, in network byte order.
            (*self.c()).route.addr.addr.pkey = u16::MAX;
        }
        Ok(())
    }

    /// Reports to a channel of its own from now on, on which its calls wait.
    pub(super) fn become_sync(&self) -> Result<(), Errno> {
        let channel = EventChannel::open()?;
        // SAFETY: it was made just now.
        self.endpoint.migrate(unsafe { EventChannel::of(channel) }.channel.clone());
        // SAFETY: the program does not read while a call runs.
        unsafe { (*self.c()).channel = channel };
        self.own().sync = true;
        Ok(())
    }

    /// Shows the program the way to the peer, as far as it is known: before the peer has answered, that it is this host.
    pub(super) fn show_route(&self) -> Result<(), Errno> {
        let port = devices::first()?.port()?;
        let theirs = self.endpoint.lock().theirs.clone();
        let dgid = theirs.as_ref().map_or(port.gid, |theirs| ibv_gid { raw: theirs.gid });
        let mut own = self.own();
        let path = Box::new(ibv_sa_path_rec {
            dgid,
            sgid: port.gid,
            dlid: theirs.as_ref().map_or(port.lid, |theirs| theirs.lid).to_be(),
            slid: port.lid.to_be(),
            raw_traffic: 0,
            flow_label: 0,
            hop_limit: u8::from(port.lid == 0),
            traffic_class: own.type_of_service,
            reversible: 1,
            numb_path: 1,
            pkey: u16::MAX,
            sl: 0,
            // Exactly this one.
            mtu_selector: 2,
            mtu: port.mtu,
            rate_selector: 2,
            rate: IBV_RATE_100_GBPS as u8,
            packet_life_time_selector: 2,
            packet_life_time: 0,
            preference: 0,
        });
        let path = own.path.insert(path);
        // SAFETY: the program does not read while a call runs; the record lives until the identifier is destroyed or
        // shows another.
        unsafe {
            (*self.c()).route.addr.addr.dgid = dgid;
            (*self.c()).route.path_rec = &raw mut **path;
            (*self.c()).route.num_paths = 1;
        }
        Ok(())
    }
}

/// The addresses of all identifiers.
fn live() -> MutexGuard<'static, HashSet<usize>> {
    static LIVE: LazyLock<Mutex<HashSet<usize>>> = LazyLock::new(Mutex::default);
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends an identifier, after its events came back.
///
/// # Safety
/// As [`Id::of`], and this is the last use of it.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    let this = unsafe { Id::of(id) };
    live().remove(&id.addr());
    this.endpoint.destroy();
    // SAFETY: as above; an event that a synchronous call left is the library's to give back.
    unsafe {
        events::acknowledge((*this.c()).event);
        (*this.c()).event = ptr::null_mut();
    }
    this.endpoint.wait_acknowledged();
    let sync = this.own().sync;
    // SAFETY: the caller's promise: nobody uses it any more. A synchronous identifier's channel is its own.
    unsafe {
        let channel = (*this.c()).channel;
        drop(Box::from_raw(id.cast::<Id>()));
        if sync {
            EventChannel::destroy(channel);
        }
    }
}

export! {
    /// Makes an event channel.
    "RDMACM_1.0" fn rdma_create_event_channel() -> *mut rdma_event_channel {
        EventChannel::open().unwrap_or_else(|error| refuse_null("rdma_create_event_channel", error, "no room for a channel"))
    }

    /// Ends an event channel, after the identifiers that report to it.
    "RDMACM_1.0" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) -> () {
        if !channel.is_null() {
            // SAFETY: the manual page asks for a channel that nobody uses any more.
            unsafe { EventChannel::destroy(channel) };
        }
    }

    /// Makes an identifier, which is synchronous without a channel.
    "RDMACM_1.0" fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        ps: rdma_port_space,
    ) -> c_int {
        let qp_type = if ps == RDMA_PS_TCP { IBV_QPT_RC } else { IBV_QPT_UD };
        match Id::create(channel, context, ps, qp_type) {
            Ok(made) => {
                // SAFETY: the manual page asks for a place for the result.
                unsafe { *id = made };
                0
            }
            Err(error) => refuse("rdma_create_id", error, format_args!("port space {ps:#x}")),
        }
    }

    /// Ends an identifier, after all its events were acknowledged.
    "RDMACM_1.0" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
        // SAFETY: the manual page asks for an identifier that nobody uses any more.
        unsafe {
            if Id::find("rdma_destroy_id", id).is_none() {
                return -1;
            }
            destroy(id);
        }
        0
    }

    /// Has an identifier report to another channel, or become synchronous.
    "RDMACM_1.0" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
        // SAFETY: the manual page asks for an identifier and a channel or none.
        let Some(this) = (unsafe { Id::find("rdma_migrate_id", id) }) else { return -1 };
        let sync = channel.is_null();
        let target = match if sync { EventChannel::open() } else { Ok(channel) } {
            Ok(target) => target,
            Err(error) => return refuse("rdma_migrate_id", error, "no room for a channel"),
        };
        // SAFETY: as above.
        this.endpoint.migrate(unsafe { EventChannel::of(target) }.channel.clone());
        // What was taken from the old channel counts there.
        // SAFETY: the program uses the identifier in no other call meanwhile.
        unsafe {
            if this.own().sync {
                events::acknowledge((*this.c()).event);
                (*this.c()).event = ptr::null_mut();
            }
            this.endpoint.wait_acknowledged();
            let before = std::mem::replace(&mut (*this.c()).channel, target);
            if std::mem::replace(&mut this.own().sync, sync) {
                EventChannel::destroy(before);
            }
        }
        0
    }
}
