//! Opening a device and finding out what it can do.

use std::ffi::c_int;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use fulmen_memory::{ChunkRule, Region, page_size};
use fulmen_verbs::{Access, Budget, Capabilities, DeviceInfo, DeviceLimits};

use super::{Budgets, Core, SystemDevice};
use crate::domain::flags;
use crate::ffi::number;
use crate::library::{last_errno, set_errno_zero};
use crate::{Attributes, FoundDevice, Library, OpenError, Transport, errno, ffi, platform};

/// Apple's frames: the depths of its queues count them, and a SEND and its RECV cover equally many.
const FRAME: u32 = 4096;
/// Frames of one message over Thunderbolt.
const MOST_FRAMES: u32 = 4095;
/// Inline bytes that are asked for at most.
const INLINE: u32 = 256;

/// Opens a device of a list that is still there.
pub(crate) fn open(
    library: &Arc<Library>,
    device: NonNull<ffi::Device>,
    found: &FoundDevice,
) -> Result<Arc<SystemDevice>, OpenError> {
    if !library.is_another()
        && let Some(path) = platform::forbidden_file(&found.name)
    {
        return Err(forbidden(&found.name, Some(path)));
    }
    set_errno_zero();
    // SAFETY: the device is in a list that is still there.
    let context = unsafe { (library.calls.open_device)(device.as_ptr()) };
    let Some(context) = NonNull::new(context) else {
        return Err(refused(library, &found.name, last_errno()));
    };
    let bare = Bare { library, context, name: &found.name };
    let asked = ask(&bare, found.transport);
    let Asked { attributes, limits, capabilities, extra_rights } = match asked {
        Ok(asked) => asked,
        Err(error) => {
            // SAFETY: the context is open, and nothing made from it is left.
            unsafe { (library.calls.close_device)(context.as_ptr()) };
            return Err(error);
        }
    };
    let name = &found.name;
    let budgets = Budgets {
        protection_domains: Budget::new(name, "protection domains", limits.protection_domains.into()),
        completion_queues: Budget::new(name, "completion queues", limits.completion_queues.into()),
        memory_regions: Budget::new(name, "registrations", limits.memory_regions.into()),
        queue_pairs: Budget::new(name, "queue pairs", limits.queue_pairs.into()),
    };
    let info = DeviceInfo { name: name.clone(), provider: "system", ports: attributes.ports, limits, capabilities };
    let core = Core {
        library: library.clone(),
        context,
        info,
        budgets,
        attributes,
        extra_rights,
        gone: AtomicBool::new(false),
        events: can_read_events(&bare),
        pairs: AtomicU32::new(1),
    };
    Ok(Arc::new(SystemDevice { core: Arc::new(core) }))
}

fn forbidden(name: &str, path: Option<PathBuf>) -> OpenError {
    OpenError::Permission { device: name.to_owned(), path, way_out: platform::ALLOW }
}

fn refused(library: &Library, name: &str, errno: i32) -> OpenError {
    const EPERM: i32 = 1;
    const EACCES: i32 = 13;
    let call = "ibv_open_device";
    if let EPERM | EACCES = errno {
        return forbidden(name, platform::device_file(name));
    }
    if let Some((cause, way_out)) = platform::no_device_files(library.is_another()) {
        return OpenError::SwitchedOff { cause, way_out };
    }
    OpenError::Call { device: name.to_owned(), call, errno, cause: errno::explain(call, errno) }
}

fn can_read_events(bare: &Bare) -> bool {
    let calls = &bare.library.calls;
    if !platform::HAS_EVENTS || calls.get_async_event.is_none() || calls.ack_async_event.is_none() {
        return false;
    }
    // SAFETY: the context is open.
    let fd = unsafe { (*bare.context.as_ptr()).async_fd };
    // The standard streams are no descriptors of a device.
    fd > 2 && platform::unblock(fd)
}

/// An open context that nobody owns yet.
struct Bare<'a> {
    library: &'a Library,
    context: NonNull<ffi::Context>,
    name: &'a str,
}

impl Bare<'_> {
    fn failed(&self, call: &'static str, errno: i32) -> OpenError {
        let errno = errno::positive(errno);
        OpenError::Call { device: self.name.to_owned(), call, errno, cause: errno::explain(call, errno) }
    }
}

/// What a device says and shows of itself.
struct Asked {
    attributes: Attributes,
    limits: DeviceLimits,
    capabilities: Capabilities,
    extra_rights: Access,
}

fn ask(bare: &Bare, transport: Transport) -> Result<Asked, OpenError> {
    let calls = &bare.library.calls;
    // SAFETY: numbers and bytes alone, for which zero is a value.
    let mut raw: ffi::DeviceAttr = unsafe { std::mem::zeroed() };
    // SAFETY: the context is open, and the place is there.
    let returned = unsafe { (calls.query_device)(bare.context.as_ptr(), &mut raw) };
    if returned != 0 {
        return Err(bare.failed("ibv_query_device", returned));
    }
    let mut attributes = Attributes::of(&raw, transport);
    let mut message_bytes: u64 = 1 << 31;
    for port in 1..=attributes.ports {
        // SAFETY: numbers alone, for which zero is a value.
        let mut attr: ffi::PortAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the place larger than what is written.
        let returned = unsafe { (calls.query_port)(bare.context.as_ptr(), port, &mut attr) };
        if returned != 0 {
            continue;
        }
        if attr.max_msg_sz > 0 {
            message_bytes = message_bytes.min(attr.max_msg_sz.into());
        }
        // Either says it. It is decided here, once, for all that depends on it.
        if attr.link_layer == number::LINK_LAYER_THUNDERBOLT {
            attributes.transport = Transport::Thunderbolt;
        }
    }
    let thunderbolt = attributes.transport == Transport::Thunderbolt;
    let trial = Trial::new(bare)?;
    let (rc, uc, inline) = if thunderbolt {
        // It was never seen to have RC: that it has is believed of a queue pair only, and not of a device that is busy.
        let rc = trial.queue_pair(number::QPT_RC, 0) == Tried::Made;
        (rc, trial.has_queue_pairs(number::QPT_UC, 0), 0)
    } else {
        let (rc, inline) = trial.inline_of(number::QPT_RC, INLINE);
        match trial.has_queue_pairs(number::QPT_UC, inline) {
            true => (rc, true, inline),
            false if rc => (rc, trial.has_queue_pairs(number::QPT_UC, 0), inline),
            false => {
                let (uc, inline) = trial.inline_of(number::QPT_UC, INLINE);
                (rc, uc, inline)
            }
        }
    };
    let dma_buf = trial.registers_dma_bufs();
    let extra_rights = if thunderbolt { trial.extra_rights() } else { Access::empty() };
    drop(trial);
    let reads = raw.max_qp_rd_atom.min(match raw.max_qp_init_rd_atom {
        // Some devices do not say.
        0 => raw.max_qp_rd_atom,
        some => some,
    });
    let max_len = (raw.max_mr_size > 0 && raw.max_mr_size < 1 << 47).then_some(raw.max_mr_size);
    let mut limits = DeviceLimits {
        queue_pairs: count(raw.max_qp, 10),
        completion_queues: count(raw.max_cq, 10),
        completion_entries: count(raw.max_cqe, MOST_FRAMES),
        memory_regions: count(raw.max_mr, 100),
        protection_domains: count(raw.max_pd, 6),
        queue_depth: count(raw.max_qp_wr, MOST_FRAMES),
        pieces: count(raw.max_sge, 1),
        inline_bytes: if thunderbolt { 0 } else { inline },
        message_bytes,
        frame: None,
        registration: ChunkRule { boundary: None, max_len },
        reads_in_flight: u8::try_from(reads.clamp(0, 255)).unwrap_or(u8::MAX),
    };
    if thunderbolt {
        limits.queue_pairs = limits.queue_pairs.min(10);
        limits.memory_regions = limits.memory_regions.min(100);
        limits.queue_depth = limits.queue_depth.min(MOST_FRAMES);
        limits.pieces = 1;
        limits.message_bytes = limits.message_bytes.min(u64::from(MOST_FRAMES) * u64::from(FRAME));
        limits.frame = Some(FRAME);
        limits.registration.boundary = Some(1 << 32);
        limits.reads_in_flight = 0;
    }
    let capabilities = Capabilities {
        rc,
        uc,
        ud: false,
        srq: false,
        write: !thunderbolt,
        read: !thunderbolt,
        atomics: !thunderbolt && raw.atomic_cap != number::ATOMIC_NONE,
        atomics_with_cpu: !thunderbolt && raw.atomic_cap == number::ATOMIC_GLOB,
        immediate: !thunderbolt,
        holds_sends: thunderbolt,
        acknowledges: rc,
        reports_dead_peers: rc,
        dma_buf,
    };
    Ok(Asked { attributes, limits, capabilities, extra_rights })
}

/// A limit that a device states, or a cautious one if it states none.
fn count(stated: c_int, otherwise: u32) -> u32 {
    u32::try_from(stated).ok().filter(|count| *count > 0).unwrap_or(otherwise)
}

/// What became of a queue pair that was tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tried {
    Made,
    /// Others have them all.
    Exhausted,
    Refused,
}

/// A domain and a completion queue, to try queue pairs with.
struct Trial<'a> {
    bare: &'a Bare<'a>,
    domain: NonNull<ffi::Pd>,
    queue: NonNull<ffi::Cq>,
}

impl<'a> Trial<'a> {
    fn new(bare: &'a Bare<'a>) -> Result<Trial<'a>, OpenError> {
        let calls = &bare.library.calls;
        set_errno_zero();
        // SAFETY: the context is open.
        let Some(domain) = NonNull::new(unsafe { (calls.alloc_pd)(bare.context.as_ptr()) }) else {
            return Err(bare.failed("ibv_alloc_pd", last_errno()));
        };
        let (none, no_channel) = (std::ptr::null_mut(), std::ptr::null_mut());
        set_errno_zero();
        // SAFETY: the context is open; a queue without a channel and without a context of ours is asked for.
        let queue = unsafe { (calls.create_cq)(bare.context.as_ptr(), 1, none, no_channel, 0) };
        match NonNull::new(queue) {
            Some(queue) => Ok(Trial { bare, domain, queue }),
            None => {
                let error = bare.failed("ibv_create_cq", last_errno());
                // SAFETY: nothing was made in the domain.
                unsafe { (calls.dealloc_pd)(domain.as_ptr()) };
                Err(error)
            }
        }
    }

    fn queue_pair(&self, kind: u32, inline: u32) -> Tried {
        let calls = &self.bare.library.calls;
        let cap =
            ffi::QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: inline };
        let (none, srq, queue) = (std::ptr::null_mut(), std::ptr::null_mut(), self.queue.as_ptr());
        let mut init = ffi::QpInitAttr {
            qp_context: none,
            send_cq: queue,
            recv_cq: queue,
            srq,
            cap,
            qp_type: kind,
            sq_sig_all: 0,
        };
        set_errno_zero();
        // SAFETY: domain and queue are this object's own, and the attributes are whole.
        let pair = unsafe { (calls.create_qp)(self.domain.as_ptr(), &mut init) };
        if pair.is_null() {
            return if is_exhausted(last_errno()) { Tried::Exhausted } else { Tried::Refused };
        }
        // SAFETY: it was made above, and nobody else knows it.
        unsafe { (calls.destroy_qp)(pair) };
        Tried::Made
    }

    /// Whether there are queue pairs of this kind. Used up is not the same as not there.
    fn has_queue_pairs(&self, kind: u32, inline: u32) -> bool {
        self.queue_pair(kind, inline) != Tried::Refused
    }

    /// Whether there are queue pairs of this kind, and how many inline bytes they take, of so many at most.
    fn inline_of(&self, kind: u32, most: u32) -> (bool, u32) {
        let sizes = [most, most / 2, most / 4, most / 8, 0];
        sizes.into_iter().find(|inline| self.has_queue_pairs(kind, *inline)).map_or((false, 0), |inline| (true, inline))
    }

    /// Rights that each registration has to ask for beside its own. Some systems refuse LOCAL_WRITE alone; peers get
    /// nothing by the others, since they have no operations that would use them.
    fn extra_rights(&self) -> Access {
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let Ok(page) = Region::alloc(page_size()) else { return Access::empty() };
        match self.registers(&page, Access::LOCAL_WRITE) || !self.registers(&page, Access::LOCAL_WRITE | remote) {
            true => Access::empty(),
            false => remote,
        }
    }

    fn registers(&self, region: &Region, access: Access) -> bool {
        let calls = &self.bare.library.calls;
        let first = std::ptr::without_provenance_mut(region.addr());
        // SAFETY: the bytes are mapped until after the registration has ended.
        let made = unsafe { (calls.reg_mr)(self.domain.as_ptr(), first, region.len(), flags(access)) };
        if made.is_null() {
            return false;
        }
        // SAFETY: it was made above, and nobody else knows it.
        if unsafe { (calls.dereg_mr)(made) } != 0 {
            // The device still has the memory.
            std::mem::forget(region.clone());
        }
        true
    }

    /// Asked with a descriptor that is none: a driver that registers dma-bufs looks for it, another says that it cannot.
    fn registers_dma_bufs(&self) -> bool {
        const EBADF: i32 = 9;
        let Some(register) = self.bare.library.calls.reg_dmabuf_mr.filter(|_| platform::HAS_DMA_BUFS) else {
            return false;
        };
        set_errno_zero();
        // SAFETY: the domain is this object's own. No memory is named.
        let made = unsafe { register(self.domain.as_ptr(), 0, 4096, 0, -1, 0) };
        if made.is_null() {
            return last_errno() == EBADF;
        }
        // SAFETY: it was made above.
        unsafe { (self.bare.library.calls.dereg_mr)(made) };
        true
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        let calls = &self.bare.library.calls;
        // SAFETY: both are this object's own, and what was made with them is destroyed.
        unsafe {
            (calls.destroy_cq)(self.queue.as_ptr());
            (calls.dealloc_pd)(self.domain.as_ptr());
        }
    }
}

/// Whether a refusal means that others have it all: EAGAIN, ENOMEM, EBUSY, ENOSPC.
fn is_exhausted(errno: i32) -> bool {
    matches!(errno, 11 | 12 | 16 | 28 | 35)
}
