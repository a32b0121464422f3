//! Completion queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fulmen_verbs::{Completion, CompletionOpcode, CompletionQueue, VerbsError};

use super::channel::{Channel, Source};
use super::cq_ex::Current;
use super::latch::Latch;
use crate::context::Context;
use crate::error::{self, Call};
use crate::events::Subject;
use crate::export::{self, export};
use crate::ffi::*;
use crate::lint::{self, Lint};
use crate::users::{User, Users};

/// Completions that are moved at a time.
const BATCH: usize = 16;

/// A completion queue: what the program sees of it, and what is behind.
#[repr(C)]
pub(crate) struct Cq {
    pub(super) c: UnsafeCell<ibv_cq_ex>,
    pub(super) queue: Arc<dyn CompletionQueue>,
    source: Option<Arc<Source>>,
    lint: Option<(&'static Lint, lint::Idle)>,
    /// It was told that the queue is broken, which each further poll says again.
    told: AtomicBool,
    /// What `ibv_start_poll` and `ibv_next_poll` brought.
    pub(super) current: Latch<Current>,
    /// The queue pairs that complete into it.
    pub(super) users: Users,
    _channel: Option<User>,
    _user: User,
}

impl Cq {
    /// The completion queue that the program means.
    ///
    /// # Safety
    /// `raw` came from a call here that makes one, and is not destroyed while the reference lives.
    #[inline]
    pub(super) unsafe fn of<'a>(raw: *mut ibv_cq) -> &'a Cq {
        // SAFETY: the caller's promise; the program's part comes first.
        unsafe { &*raw.cast() }
    }

    pub(super) fn source(&self) -> Option<&Arc<Source>> {
        self.source.as_ref()
    }

    /// Moves completions.
    #[inline]
    pub(super) fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        let count = self.queue.poll(into)?;
        if let Some((lint, idle)) = &self.lint {
            lint.polled(idle, self.queue.number(), &into[..count])?;
        }
        Ok(count)
    }

    /// Logs that a poll failed, once: programs poll in loops.
    #[cold]
    pub(super) fn tell(&self, call: &str, cause: &VerbsError) {
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!("{call} failed: {cause}");
        }
    }

    /// Moves completions of which there is room for `N` at a time, into `wc`.
    ///
    /// # Safety
    /// `wc` has room for `most`.
    #[inline]
    unsafe fn poll_into<const N: usize>(&self, wc: *mut ibv_wc, most: usize) -> c_int {
        let mut done = 0;
        let mut list = [Completion::BLANK; N];
        while done < most {
            let wanted = (most - done).min(N);
            let count = match self.poll(&mut list[..wanted]) {
                Ok(count) => count,
                // What was moved before is told now, and the error by the next poll.
                Err(_) if done > 0 => break,
                Err(cause) => {
                    self.tell("ibv_poll_cq", &cause);
                    return -1;
                }
            };
            for (at, completion) in list[..count].iter().enumerate() {
                // SAFETY: there is room, by the contract of this function.
                unsafe { wc.add(done + at).write(work_completion(completion)) };
            }
            done += count;
            if count < wanted {
                break;
            }
        }
        done as c_int
    }
}

/// How the header numbers it.
pub(super) fn opcode(opcode: CompletionOpcode) -> ibv_wc_opcode {
    match opcode {
        CompletionOpcode::Send => IBV_WC_SEND,
        CompletionOpcode::Write => IBV_WC_RDMA_WRITE,
        CompletionOpcode::Read => IBV_WC_RDMA_READ,
        CompletionOpcode::FetchAdd => IBV_WC_FETCH_ADD,
        CompletionOpcode::CompareSwap => IBV_WC_COMP_SWAP,
        CompletionOpcode::Recv => IBV_WC_RECV,
        CompletionOpcode::RecvWriteWithImm => IBV_WC_RECV_RDMA_WITH_IMM,
    }
}

/// What came with it.
pub(super) fn flags(completion: &Completion) -> u32 {
    let imm = if completion.imm.is_some() { IBV_WC_WITH_IMM } else { 0 };
    let grh = if completion.origin.is_some_and(|origin| origin.grh) { IBV_WC_GRH } else { 0 };
    imm | grh
}

#[inline]
fn work_completion(completion: &Completion) -> ibv_wc {
    let origin = completion.origin.as_ref();
    ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status as ibv_wc_status,
        opcode: opcode(completion.opcode),
        vendor_err: 0,
        byte_len: completion.byte_len,
        imm_data: completion.imm.unwrap_or(0).to_be(),
        qp_num: completion.qp_num,
        src_qp: origin.map_or(0, |origin| origin.qp_num),
        wc_flags: flags(completion),
        pkey_index: 0,
        slid: origin.map_or(0, |origin| origin.lid),
        sl: 0,
        dlid_path_bits: 0,
    }
}

/// What a completion queue is made with.
pub(super) struct CqInit {
    pub(super) name: &'static str,
    pub(super) entries: u32,
    pub(super) context: *mut c_void,
    pub(super) channel: *mut ibv_comp_channel,
    pub(super) vector: u32,
    /// What completions bring for `ibv_start_poll`.
    pub(super) flags: u32,
}

/// Makes a completion queue; NULL and `errno` if that fails. `fill` completes what the program sees.
///
/// # Safety
/// The device and the channel live.
pub(super) unsafe fn create(
    device: *mut ibv_context,
    init: &CqInit,
    fill: impl FnOnce(&mut ibv_cq_ex),
) -> *mut ibv_cq_ex {
    // SAFETY: by the contract of this function.
    let (context, vectors) = unsafe { (Context::of(device), (*device).num_comp_vectors) };
    if i64::from(init.vector) >= i64::from(vectors) {
        let why = format!("there is no completion vector {}: the device has {vectors}", init.vector);
        return error::refuse_null(init.name, libc::EINVAL, why);
    }
    let queue = match context.device.create_cq(init.entries, None) {
        Ok(queue) => queue,
        Err(cause) => return context.fail_null(init.name, Call::CreateCq, &cause),
    };
    // SAFETY: null or a channel that lives, by the contract of this function.
    let channel = (!init.channel.is_null()).then(|| unsafe { Channel::of(init.channel) });
    let source = channel.map(Channel::source);
    if let Some(source) = source.clone()
        && let Err(cause) = queue.set_notifier(Arc::new(move || source.announce()))
    {
        return context.fail_null(init.name, Call::CreateCq, &cause);
    }
    // SAFETY: numbers and pointers, and functions that may be missing: all zero is a value of it.
    let mut c: ibv_cq_ex = unsafe { std::mem::zeroed() };
    c.context = device;
    c.channel = init.channel;
    c.cq_context = init.context;
    c.handle = queue.number();
    c.cqe = queue.entries() as c_int;
    fill(&mut c);
    let subject = Subject::Cq(queue.number());
    let cq = Box::into_raw(Box::new(Cq {
        c: UnsafeCell::new(c),
        queue,
        source: source.clone(),
        lint: lint::get().map(|lint| (lint, lint::Idle::default())),
        told: AtomicBool::new(false),
        current: Latch::new(Current::new(init.flags)),
        users: Users::default(),
        _channel: channel.map(|channel| channel.users.add()),
        _user: context.users.add(),
    }));
    context.events.add(subject, cq);
    if let Some(source) = source {
        source.open(cq.cast(), init.context);
    }
    cq.cast()
}

export! {
    /// Makes a completion queue of at least `cqe` entries.
    "IBVERBS_1.1" fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, comp_vector: c_int) -> *mut ibv_cq {
        let (Ok(entries), Ok(vector)) = (u32::try_from(cqe), u32::try_from(comp_vector)) else {
            return error::refuse_null("ibv_create_cq", libc::EINVAL, "a negative number of entries, or vector");
        };
        let init = CqInit { name: "ibv_create_cq", entries, context: cq_context, channel, vector, flags: 0 };
        // SAFETY: the device and the channel live.
        unsafe { create(context, &init, |_| {}) }.cast()
    }

    /// Changes how many entries a completion queue has; EINVAL if more wait in it.
    "IBVERBS_1.1" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
        // SAFETY: a completion queue that lives, of an open device.
        let (own, context) = unsafe { (Cq::of(cq), Context::of((*cq).context)) };
        let entries = match u32::try_from(cqe) {
            Ok(entries) if entries > 0 => entries,
            _ => return error::refuse("ibv_resize_cq", libc::EINVAL, "it needs at least one entry"),
        };
        if let Err(cause) = own.queue.resize(entries) {
            return context.fail("ibv_resize_cq", Call::CreateCq, &cause);
        }
        // SAFETY: the program's own, of which this is the only change.
        unsafe { (*cq).cqe = own.queue.entries() as c_int };
        0
    }

    /// Destroys a completion queue; EBUSY while queue pairs use it. Waits until its events are acknowledged.
    "IBVERBS_1.1" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
        // SAFETY: a completion queue that lives, of an open device.
        let (own, context) = unsafe { (Cq::of(cq), Context::of((*cq).context)) };
        let users = own.users.count();
        if users > 0 {
            let why = format!("{users} queues of queue pairs complete into it: destroy the queue pairs first");
            return error::refuse("ibv_destroy_cq", libc::EBUSY, why);
        }
        if let Some(source) = &own.source {
            source.close();
        }
        context.events.remove(Subject::Cq(own.queue.number()));
        // SAFETY: it was a box, and the program gives it up.
        drop(unsafe { Box::from_raw(cq.cast::<Cq>()) });
        0
    }
}

/// `ibv_poll_cq`: how many completions were moved, or -1 once the queue has overflowed.
///
/// # Safety
/// As the manual page says.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    export::guard_with(
        "ibv_poll_cq",
        || -1,
        || {
            // SAFETY: a completion queue that lives.
            let own = unsafe { Cq::of(cq) };
            match usize::try_from(entries) {
                Ok(0) => 0,
                // SAFETY: the program's array has room.
                Ok(1) => unsafe { own.poll_into::<1>(wc, 1) },
                // SAFETY: as above.
                Ok(most) => unsafe { own.poll_into::<BATCH>(wc, most) },
                Err(_) => -1,
            }
        },
    )
}

/// `ibv_req_notify_cq`. Without a channel there is nobody to tell.
///
/// # Safety
/// As the manual page says.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    export::guard("ibv_req_notify_cq", || {
        // SAFETY: a completion queue that lives, of an open device.
        let own = unsafe { Cq::of(cq) };
        if own.source.is_none() {
            return 0;
        }
        match own.queue.request_notify(solicited_only != 0) {
            Ok(()) => 0,
            // SAFETY: as above.
            Err(cause) => unsafe { Context::of((*cq).context) }.fail("ibv_req_notify_cq", Call::Other, &cause),
        }
    })
}
