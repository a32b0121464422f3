//! Shared receive queues.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

use fulmen_soft::Profile;
use fulmen_verbs::SharedReceiveQueue;

use super::latch::Latch;
use super::post::Receiver;
use crate::context::Context;
use crate::domain::Pd;
use crate::error::{self, Call};
use crate::events::Subject;
use crate::export::{self, export};
use crate::ffi::*;
use crate::lint;
use crate::memory::Memory;
use crate::users::{User, Users};

/// A shared receive queue: what the program sees of it, and what is behind.
#[repr(C)]
pub(super) struct Srq {
    c: UnsafeCell<ibv_srq>,
    pub(super) queue: Arc<dyn SharedReceiveQueue>,
    pub(super) receiver: Latch<Receiver>,
    pub(super) profile: Profile,
    /// The queue pairs that take their RECVs from it.
    pub(super) users: Users,
    _user: User,
}

impl Srq {
    /// The shared receive queue that the program means.
    ///
    /// # Safety
    /// `raw` came from `ibv_create_srq`, and is not destroyed while the reference lives.
    #[inline]
    pub(super) unsafe fn of<'a>(raw: *mut ibv_srq) -> &'a Srq {
        // SAFETY: the caller's promise; the program's part comes first.
        unsafe { &*raw.cast() }
    }

    /// The registrations of its device.
    #[inline]
    pub(super) fn memory(&self) -> &Memory {
        // SAFETY: written once, before the program had it; the device is open as long as the queue lives.
        unsafe { &Context::of((*self.c.get()).context).memory }
    }
}

/// `ibv_create_srq_ex` beyond what `ibv_create_srq` does: XRC and tag matching, which are refused (EOPNOTSUPP).
///
/// # Safety
/// As the manual page says.
pub unsafe extern "C" fn create_srq_ex(_context: *mut ibv_context, init: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
    const NAME: &str = "ibv_create_srq_ex";
    export::guard(NAME, || {
        // SAFETY: the program's attributes.
        let init = unsafe { &*init };
        let why = if init.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 {
            return error::refuse_null(NAME, libc::EINVAL, "comp_mask needs IBV_SRQ_INIT_ATTR_PD");
        } else {
            format!("no shared receive queues of type {} (comp_mask {:#x})", init.srq_type, init.comp_mask)
        };
        error::refuse_null(NAME, libc::EOPNOTSUPP, why)
    })
}

export! {
    /// Makes a shared receive queue, and tells in the attributes what it was given.
    "IBVERBS_1.1" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
        const NAME: &str = "ibv_create_srq";
        // SAFETY: a domain that lives, of an open device, and the program's attributes.
        let (domain, context, init) = unsafe { (Pd::of(pd), Context::of((*pd).context), &mut *init) };
        if let Some(lint) = lint::get() {
            lint.create_srq(pd as u64);
        }
        let queue = match domain.device.create_srq(init.attr.max_wr, init.attr.max_sge) {
            Ok(queue) => queue,
            Err(cause) => return context.fail_null(NAME, Call::CreateSrq, &cause),
        };
        (init.attr.max_wr, init.attr.max_sge) = (queue.depth(), queue.pieces());
        // SAFETY: numbers and pointers, of which each may be zero.
        let mut c: ibv_srq = unsafe { std::mem::zeroed() };
        c.context = context.raw();
        c.srq_context = init.srq_context;
        c.pd = pd;
        c.handle = queue.number();
        let subject = Subject::Srq(queue.number());
        let srq = Box::into_raw(Box::new(Srq {
            c: UnsafeCell::new(c),
            queue,
            receiver: Latch::new(Receiver::new()),
            profile: context.profile(),
            users: Users::default(),
            _user: domain.users.add(),
        }));
        context.events.add(subject, srq);
        srq.cast()
    }

    /// Arms the limit. The size stays as it is (EOPNOTSUPP).
    "IBVERBS_1.1" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
        const NAME: &str = "ibv_modify_srq";
        // SAFETY: a queue that lives, of an open device, and the program's attributes.
        let (own, context, attr) = unsafe { (Srq::of(srq), Context::of((*srq).context), &*attr) };
        let mask = mask as ibv_srq_attr_mask;
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return error::refuse(NAME, libc::EINVAL, format!("the mask {mask:#x} has bits that are not known"));
        }
        if mask & IBV_SRQ_MAX_WR != 0 && attr.max_wr != own.queue.depth() {
            let why = format!("a queue of {} requests keeps its size", own.queue.depth());
            return error::refuse(NAME, libc::EOPNOTSUPP, why);
        }
        if mask & IBV_SRQ_LIMIT != 0
            && let Err(cause) = own.queue.arm_limit(attr.srq_limit)
        {
            return context.fail(NAME, Call::CreateSrq, &cause);
        }
        0
    }

    /// Tells the attributes of a shared receive queue.
    "IBVERBS_1.1" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
        // SAFETY: a queue that lives, and the program's place for the attributes.
        unsafe {
            let queue = &Srq::of(srq).queue;
            *attr = ibv_srq_attr { max_wr: queue.depth(), max_sge: queue.pieces(), srq_limit: queue.limit() };
        }
        0
    }

    /// Destroys a shared receive queue; EBUSY while queue pairs use it. Waits until its events are acknowledged.
    "IBVERBS_1.1" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
        // SAFETY: a queue that lives, of an open device.
        let (own, context) = unsafe { (Srq::of(srq), Context::of((*srq).context)) };
        let users = own.users.count();
        if users > 0 {
            let why = format!("{users} queue pairs use it: destroy them first");
            return error::refuse("ibv_destroy_srq", libc::EBUSY, why);
        }
        context.events.remove(Subject::Srq(own.queue.number()));
        // SAFETY: it was a box, and the program gives it up.
        drop(unsafe { Box::from_raw(srq.cast::<Srq>()) });
        0
    }
}
