//! Completion queues, and the channels on which threads wait for them.

use std::any::Any;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fulmen_verbs::{
    Claim, Completion, CompletionChannel, CompletionOpcode, CompletionQueue, CompletionStatus, VerbsError,
};

use crate::device::Core;
use crate::ffi::{self, number};
use crate::inflight::{InFlight, Tag};
use crate::library::last_errno;

/// Completions that are taken from the device at a time.
const BATCH: usize = 16;
/// After so many polls in a row that found nothing, the system is asked whether the queue and the device still stand.
const IDLE_POLLS: u32 = 4096;

/// What the library keeps for a queue, so that events about it find it.
struct Flags {
    overflowed: AtomicBool,
}

/// A completion queue.
pub(crate) struct Queue {
    pub(crate) core: Arc<Core>,
    pub(crate) raw: NonNull<ffi::Cq>,
    flags: Box<Flags>,
    entries: u32,
    poll: ffi::PollCq,
    request: ffi::ReqNotifyCq,
    /// The queues whose requests complete here, in the order of their tags. Whoever holds the lock is their poller.
    attached: Mutex<Vec<Arc<InFlight>>>,
    idle: AtomicU32,
    /// What a poll returned that failed after others had given completions; 0 if there is none to tell.
    failed_later: AtomicI32,
    channel: Option<Arc<Channel>>,
    _claim: Claim,
}

// SAFETY: calls on a completion queue may be made by any thread at any time.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    pub(crate) fn new(core: &Arc<Core>, entries: u32, channel: Option<Arc<Channel>>) -> Result<Queue, VerbsError> {
        let claim = core.budgets.completion_queues.take()?;
        let (Some(poll), Some(request)) = (core.ops().poll_cq, core.ops().req_notify_cq) else {
            return Err(VerbsError::Unsupported { device: core.info.name.clone(), what: "completion queues" });
        };
        let flags = Box::new(Flags { overflowed: AtomicBool::new(false) });
        let own = std::ptr::from_ref(&*flags).cast_mut().cast();
        let raw_channel = channel.as_ref().map_or(std::ptr::null_mut(), |channel| channel.raw.as_ptr());
        let count = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: context and channel are open, and the queue keeps both and its own flags.
        let raw = core.make("ibv_create_cq", || unsafe {
            (core.library.calls.create_cq)(core.context.as_ptr(), count, own, raw_channel, 0)
        })?;
        // SAFETY: it was just made.
        let entries = unsafe { (*raw.as_ptr()).cqe };
        Ok(Queue {
            core: core.clone(),
            raw,
            flags,
            entries: u32::try_from(entries).unwrap_or(count as u32),
            poll,
            request,
            attached: Mutex::default(),
            idle: AtomicU32::new(0),
            failed_later: AtomicI32::new(0),
            channel,
            _claim: claim,
        })
    }

    /// Notes that a queue of this device has lost completions.
    ///
    /// # Safety
    /// The queue was made by [`Queue::new`], and is not destroyed meanwhile.
    pub(crate) unsafe fn note_overflow(queue: *mut ffi::Cq) {
        // SAFETY: the caller's promise. Queues that were made to try something have no flags.
        let flags = unsafe { (*queue).cq_context.cast::<Flags>().as_ref() };
        if let Some(flags) = flags {
            flags.overflowed.store(true, Ordering::Relaxed);
        }
    }

    fn attached(&self) -> MutexGuard<'_, Vec<Arc<InFlight>>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn attach(&self, queue: &Arc<InFlight>) {
        let mut attached = self.attached();
        let at = attached.partition_point(|known| known.queue() < queue.queue());
        attached.insert(at, queue.clone());
    }

    pub(crate) fn detach(&self, queue: &Arc<InFlight>) {
        self.attached().retain(|known| !Arc::ptr_eq(known, queue));
    }

    /// Ends all requests of an attached queue, which the device has let go of.
    ///
    /// # Safety
    /// Nobody posts to it meanwhile, and the device has let go of all its requests.
    pub(crate) unsafe fn forget(&self, queue: &InFlight) {
        let _poller = self.attached();
        // SAFETY: the lock makes this thread the only poller; the rest is the caller's promise.
        unsafe { queue.end_all() };
    }

    fn check(&self) -> Result<(), VerbsError> {
        if self.flags.overflowed.load(Ordering::Relaxed) {
            return Err(VerbsError::Overflow { entries: self.entries });
        }
        self.core.check_alive("polling")
    }

    fn poll_failed(&self, returned: c_int) -> VerbsError {
        // Drivers return -1 or -2 for whatever failed: these are no error numbers.
        self.core.failed("ibv_poll_cq", if returned >= -2 { 0 } else { returned })
    }

    fn take(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        let attached = self.attached();
        let failed = self.failed_later.swap(0, Ordering::Relaxed);
        if failed != 0 {
            return Err(self.poll_failed(failed));
        }
        let mut count = 0;
        while count < into.len() {
            let mut room = [const { MaybeUninit::<ffi::Wc>::uninit() }; BATCH];
            let asked = BATCH.min(into.len() - count);
            // SAFETY: the queue lives as long as this object, and so many completions have room.
            let got = unsafe { (self.poll)(self.raw.as_ptr(), asked as c_int, room.as_mut_ptr().cast()) };
            let Ok(got) = usize::try_from(got) else {
                if count > 0 {
                    // The requests of these completions have ended: they are told first, and the failure next.
                    self.failed_later.store(got, Ordering::Relaxed);
                    break;
                }
                return Err(self.poll_failed(got));
            };
            for raw in &room[..got.min(asked)] {
                // SAFETY: the device says that it wrote so many.
                let raw = unsafe { raw.assume_init_ref() };
                // SAFETY: the lock makes this thread the only poller.
                if let Some(completion) = unsafe { translate(&attached, raw) } {
                    into[count] = completion;
                    count += 1;
                }
            }
            if got < asked {
                break;
            }
        }
        Ok(count)
    }
}

/// A completion as its poster knows it; `None` for one that nobody shall see.
///
/// # Safety
/// The caller is the only poller of the attached queues.
unsafe fn translate(attached: &[Arc<InFlight>], raw: &ffi::Wc) -> Option<Completion> {
    let tag = Tag(raw.wr_id);
    // What is not attached any more was destroyed, and its completions are late.
    let at = attached.binary_search_by_key(&tag.queue(), |queue| queue.queue()).ok()?;
    let queue = &attached[at];
    // SAFETY: the caller is the only poller. The queues of a device are in order: it has let go of this request and all
    // before it.
    let ended = unsafe { queue.end(tag) }?;
    let status = status(raw.status);
    if !ended.visible && status.is_success() {
        return None;
    }
    let received = ended.opcode == CompletionOpcode::Recv;
    let success = status.is_success();
    let opcode = match raw.opcode {
        number::WC_RECV_RDMA_WITH_IMM if received && success => CompletionOpcode::RecvWriteWithImm,
        _ => ended.opcode,
    };
    let byte_len = match received {
        _ if !success => 0,
        true => raw.byte_len,
        false => ended.bytes,
    };
    let imm = (received && success && raw.wc_flags & number::WC_WITH_IMM != 0).then(|| u32::from_be(raw.imm_data));
    Some(Completion { wr_id: ended.wr_id, status, opcode, byte_len, imm, qp_num: raw.qp_num, origin: None })
}

fn status(raw: u32) -> CompletionStatus {
    use CompletionStatus as S;
    const KNOWN: [CompletionStatus; 13] = [
        S::Success,
        S::LocalLength,
        S::LocalQueuePair,
        S::LocalProtection,
        S::Flushed,
        S::BadResponse,
        S::LocalAccess,
        S::RemoteInvalidRequest,
        S::RemoteAccess,
        S::RemoteOperation,
        S::RetryExceeded,
        S::RnrRetryExceeded,
        S::Fatal,
    ];
    KNOWN.into_iter().find(|status| *status as u32 == raw).unwrap_or(S::General)
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the queue pairs that complete here kept this object, and are gone.
        let returned = unsafe { (self.core.library.calls.destroy_cq)(self.raw.as_ptr()) };
        if returned != 0 {
            tracing::error!("{}", self.core.failed("ibv_destroy_cq", returned));
            // The library may still tell of events about it.
            std::mem::forget(std::mem::replace(
                &mut self.flags,
                Box::new(Flags { overflowed: AtomicBool::new(false) }),
            ));
        }
    }
}

/// What users hold of a completion queue.
pub(crate) struct QueueHandle(pub(crate) Arc<Queue>);

impl CompletionQueue for QueueHandle {
    fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        let queue = &self.0;
        let count = queue.take(into)?;
        if count > 0 {
            queue.idle.store(0, Ordering::Relaxed);
            return Ok(count);
        }
        // Not exact if several threads poll, and it need not be.
        let idle = queue.idle.load(Ordering::Relaxed).wrapping_add(1);
        queue.idle.store(idle, Ordering::Relaxed);
        if idle.is_multiple_of(IDLE_POLLS) {
            queue.core.look_at_events();
        }
        queue.check().map(|()| 0)
    }

    fn request_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        let queue = &self.0;
        if queue.channel.is_none() {
            let problem = "it has no channel: make it with one".to_owned();
            return Err(VerbsError::Invalid { what: "completion queue", problem });
        }
        queue.check()?;
        // SAFETY: the queue lives as long as this object.
        let returned = unsafe { (queue.request)(queue.raw.as_ptr(), c_int::from(solicited_only)) };
        if returned != 0 { Err(queue.core.failed("ibv_req_notify_cq", returned)) } else { Ok(()) }
    }

    fn entries(&self) -> u32 {
        self.0.entries
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A completion channel.
pub(crate) struct Channel {
    core: Arc<Core>,
    raw: NonNull<ffi::CompChannel>,
    fd: c_int,
}

// SAFETY: calls on a channel may be made by any thread at any time.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub(crate) fn new(core: &Arc<Core>) -> Result<Channel, VerbsError> {
        // SAFETY: the context is open.
        let raw = core.make("ibv_create_comp_channel", || unsafe {
            (core.library.calls.create_comp_channel)(core.context.as_ptr())
        })?;
        // SAFETY: it was just made.
        let fd = unsafe { (*raw.as_ptr()).fd };
        let channel = Channel { core: core.clone(), raw, fd };
        // Of several threads that are woken by one event, one gets it and the others must not be stuck. The standard
        // streams are no descriptors of a device.
        if fd > 2 && crate::platform::unblock(fd) {
            return Ok(channel);
        }
        Err(VerbsError::Unsupported { device: core.info.name.clone(), what: "completion channels" })
    }

    /// Takes an event, if one is there.
    fn take(&self) -> Result<bool, VerbsError> {
        const EINTR: i32 = 4;
        let calls = &self.core.library.calls;
        let (mut queue, mut own) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is open and does not block; both places are there.
        if unsafe { (calls.get_cq_event)(self.raw.as_ptr(), &mut queue, &mut own) } == 0 {
            // SAFETY: a queue is not destroyed before its events were acknowledged, which happens here, once.
            unsafe { (calls.ack_cq_events)(queue, 1) };
            return Ok(true);
        }
        match last_errno() {
            EINTR => Ok(false),
            errno if errno == libc::EAGAIN => Ok(false),
            errno => Err(self.core.failed("ibv_get_cq_event", errno)),
        }
    }

    /// Waits until there may be an event, at most so long.
    fn park(&self, timeout: Duration) -> Result<(), VerbsError> {
        let events = self.core.events_fd();
        let wanted = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // A negative descriptor is left out.
        let mut list = [wanted(self.fd), wanted(events.unwrap_or(-1))];
        let millis = c_int::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX);
        // SAFETY: the list is whole and its descriptors are open.
        let ready = unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, millis) };
        if ready < 0 {
            let errno = last_errno();
            return if errno == libc::EINTR { Ok(()) } else { Err(self.core.failed("poll", errno)) };
        }
        if list[1].revents != 0 {
            self.core.look_at_events();
        }
        let broken = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
        if list[0].revents & broken != 0 && list[0].revents & libc::POLLIN == 0 {
            const EIO: i32 = 5;
            return Err(self.core.failed("waiting for completions", EIO));
        }
        self.core.check_alive("waiting for completions")
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the queues that tell this channel kept it, and are gone.
        let returned = unsafe { (self.core.library.calls.destroy_comp_channel)(self.raw.as_ptr()) };
        if returned != 0 {
            tracing::warn!("{}", self.core.failed("ibv_destroy_comp_channel", returned));
        }
    }
}

/// What users hold of a channel.
pub(crate) struct ChannelHandle(pub(crate) Arc<Channel>);

impl CompletionChannel for ChannelHandle {
    fn wait(&self, timeout: Duration) -> Result<bool, VerbsError> {
        const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
        let channel = &self.0;
        let until = Instant::now() + timeout.min(LONGEST);
        loop {
            if channel.take()? {
                return Ok(true);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            channel.park(left)?;
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The queue behind a user's handle, if this device made it.
pub(crate) fn own_queue(core: &Arc<Core>, queue: &Arc<dyn CompletionQueue>) -> Result<Arc<Queue>, VerbsError> {
    let own = queue.as_any().downcast_ref::<QueueHandle>().filter(|own| Arc::ptr_eq(&own.0.core, core));
    own.map(|own| own.0.clone()).ok_or_else(|| core.foreign("the completion queue"))
}

/// The channel behind a user's handle, if this device made it.
pub(crate) fn own_channel(core: &Arc<Core>, channel: &Arc<dyn CompletionChannel>) -> Result<Arc<Channel>, VerbsError> {
    let own = channel.as_any().downcast_ref::<ChannelHandle>().filter(|own| Arc::ptr_eq(&own.0.core, core));
    own.map(|own| own.0.clone()).ok_or_else(|| core.foreign("the completion channel"))
}
