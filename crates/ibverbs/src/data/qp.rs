//! Queue pairs: making and destroying them.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use fulmen_soft::Profile;
use fulmen_verbs::{QueuePair, QueuePairInit, QueuePairKind, QueuePairLimits};

use super::cq::Cq;
use super::latch::Latch;
use super::modify::Shadow;
use super::post::{Receiver, Sender};
use super::qp_ex;
use super::srq::Srq;
use crate::context::Context;
use crate::domain::Pd;
use crate::error::{self, Call};
use crate::events::Subject;
use crate::export::{self, export};
use crate::ffi::*;
use crate::lint::{self, Lint, PairAsked};
use crate::memory::Memory;
use crate::thunderbolt;
use crate::users::User;

/// A queue pair: what the program sees of it, and what is behind.
#[repr(C)]
pub(crate) struct Qp {
    c: UnsafeCell<ibv_qp_ex>,
    pub(super) pair: Arc<dyn QueuePair>,
    pub(super) kind: QueuePairKind,
    pub(super) profile: Profile,
    pub(super) limits: QueuePairLimits,
    /// What `ibv_wr_*` may be asked for; 0 if the queue pair was made without.
    pub(super) operations: u64,
    pub(super) sender: Latch<Sender>,
    pub(super) receiver: Latch<Receiver>,
    /// The key of a datagram queue pair, for requests that name it.
    qkey: AtomicU32,
    pub(super) shadow: Mutex<Shadow>,
    pub(super) lint: Option<&'static Lint>,
    _users: [Option<User>; 4],
}

impl Qp {
    /// The queue pair that the program means.
    ///
    /// # Safety
    /// `raw` came from a call here that makes one, and is not destroyed while the reference lives.
    #[inline]
    pub(super) unsafe fn of<'a>(raw: *mut ibv_qp) -> &'a Qp {
        // SAFETY: the caller's promise; the program's part comes first.
        unsafe { &*raw.cast() }
    }

    /// The registrations of its device.
    #[inline]
    pub(super) fn memory(&self) -> &Memory {
        // SAFETY: written once, before the program had it; the device is open as long as the queue pair lives.
        unsafe { &Context::of((*self.c.get()).qp_base.context).memory }
    }

    #[inline]
    pub(super) fn is_datagram(&self) -> bool {
        self.kind == QueuePairKind::Ud
    }

    #[inline]
    pub(super) fn qkey(&self) -> u32 {
        self.qkey.load(Ordering::Relaxed)
    }

    pub(super) fn set_qkey(&self, qkey: u32) {
        self.qkey.store(qkey, Ordering::Relaxed);
    }
}

/// The transport service of a type of the header.
fn kind(qp_type: ibv_qp_type) -> Option<QueuePairKind> {
    match qp_type {
        IBV_QPT_RC => Some(QueuePairKind::Rc),
        IBV_QPT_UC => Some(QueuePairKind::Uc),
        IBV_QPT_UD => Some(QueuePairKind::Ud),
        _ => None,
    }
}

/// What a queue pair is asked to carry inline. Adapters round up to what fills a request, and programs rely on it.
fn inline_bytes(asked: u32, most: u32) -> u32 {
    const ALWAYS: u32 = 64;
    asked.max(ALWAYS.min(most))
}

/// What a queue pair is to be, for lint.
fn asked(init: &ibv_qp_init_attr) -> PairAsked {
    PairAsked {
        is_uc: init.qp_type == IBV_QPT_UC,
        kind: match init.qp_type {
            IBV_QPT_RC => "RC",
            IBV_QPT_UC => "UC",
            IBV_QPT_UD => "UD",
            IBV_QPT_RAW_PACKET => "RAW_PACKET",
            IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => "XRC",
            _ => "of the driver's own",
        },
        send_depth: init.cap.max_send_wr,
        recv_depth: init.cap.max_recv_wr,
        send_sges: init.cap.max_send_sge,
        recv_sges: init.cap.max_recv_sge,
        inline: init.cap.max_inline_data,
        has_srq: !init.srq.is_null(),
    }
}

/// Makes a queue pair for these operations of `ibv_wr_*`, and tells in `init` what it was given.
///
/// # Safety
/// What `pd` and `init` name lives.
unsafe fn create(name: &'static str, pd: *mut ibv_pd, init: &mut ibv_qp_init_attr, operations: u64) -> *mut ibv_qp {
    if pd.is_null() || init.send_cq.is_null() || init.recv_cq.is_null() {
        return error::refuse_null(name, libc::EINVAL, "a domain and both completion queues are needed");
    }
    // SAFETY: by the contract of this function.
    let (domain, context) = unsafe { (Pd::of(pd), Context::of((*pd).context)) };
    let lint = lint::get();
    if let Some(errno) = lint.and_then(|lint| lint.create_qp(name, pd as u64, &asked(init))) {
        return error::refuse_null(name, errno, "it breaks a rule of Thunderbolt");
    }
    let Some(kind) = kind(init.qp_type) else {
        let why = format!("there are RC, UC and UD queue pairs, and none of type {}", init.qp_type);
        return error::refuse_null(name, libc::EOPNOTSUPP, why);
    };
    // SAFETY: by the contract of this function.
    let (send, recv) = unsafe { (Cq::of(init.send_cq), Cq::of(init.recv_cq)) };
    // SAFETY: as above; null means none.
    let srq = (!init.srq.is_null()).then(|| unsafe { Srq::of(init.srq) });
    let wanted = QueuePairLimits {
        send_depth: init.cap.max_send_wr,
        recv_depth: if srq.is_some() { 0 } else { init.cap.max_recv_wr },
        send_pieces: init.cap.max_send_sge,
        recv_pieces: if srq.is_some() { 0 } else { init.cap.max_recv_sge },
        inline_bytes: inline_bytes(init.cap.max_inline_data, context.device.info().limits.inline_bytes),
    };
    let is_thunderbolt = context.profile() == Profile::Thunderbolt;
    let asked = QueuePairInit {
        kind,
        send_cq: send.queue.clone(),
        recv_cq: recv.queue.clone(),
        limits: if is_thunderbolt { thunderbolt::asked_of_device(wanted, context.config.strict) } else { wanted },
        signal_all: init.sq_sig_all != 0,
        srq: srq.map(|srq| srq.queue.clone()),
    };
    let pair = match domain.device.create_qp(&asked) {
        Ok(pair) => pair,
        Err(cause) => return context.fail_null(name, Call::CreateQp, &cause),
    };
    let limits = if is_thunderbolt { thunderbolt::told(pair.limits()) } else { pair.limits() };
    if let Some(lint) = lint {
        lint.created(&pair, [send.queue.number(), recv.queue.number()]);
    }
    init.cap = ibv_qp_cap {
        max_send_wr: limits.send_depth,
        max_recv_wr: if srq.is_some() { 0 } else { limits.recv_depth },
        max_send_sge: limits.send_pieces,
        max_recv_sge: if srq.is_some() { 0 } else { limits.recv_pieces },
        max_inline_data: limits.inline_bytes,
    };
    let number = pair.qp_num();
    // SAFETY: numbers and pointers, and functions that may be missing: all zero is a value of it.
    let mut c: ibv_qp_ex = unsafe { std::mem::zeroed() };
    c.qp_base.context = context.raw();
    c.qp_base.qp_context = init.qp_context;
    c.qp_base.pd = pd;
    c.qp_base.send_cq = init.send_cq;
    c.qp_base.recv_cq = init.recv_cq;
    c.qp_base.srq = init.srq;
    c.qp_base.handle = number;
    c.qp_base.qp_num = number;
    c.qp_base.state = IBV_QPS_RESET;
    c.qp_base.qp_type = init.qp_type;
    if operations != 0 {
        qp_ex::fill(&mut c);
    }
    let qp = Box::into_raw(Box::new(Qp {
        c: UnsafeCell::new(c),
        kind,
        profile: context.profile(),
        limits,
        operations,
        sender: Latch::new(Sender::new(limits.inline_bytes)),
        receiver: Latch::new(Receiver::new()),
        qkey: AtomicU32::new(0),
        shadow: Mutex::new(Shadow::new(init)),
        lint,
        pair,
        _users: [
            Some(domain.users.add()),
            Some(send.users.add()),
            Some(recv.users.add()),
            srq.map(|srq| srq.users.add()),
        ],
    }));
    context.events.add(Subject::Qp(number), qp);
    qp.cast()
}

/// `ibv_create_qp_ex`.
///
/// # Safety
/// As the manual page says.
pub unsafe extern "C" fn create_qp_ex(context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    const NAME: &str = "ibv_create_qp_ex";
    export::guard(NAME, || {
        // SAFETY: the program's attributes.
        let asked = unsafe { &mut *init };
        let mask = asked.comp_mask;
        if mask & IBV_QP_INIT_ATTR_PD == 0 {
            return error::refuse_null(NAME, libc::EINVAL, "comp_mask needs IBV_QP_INIT_ATTR_PD");
        }
        // SAFETY: a domain that lives, if it is one.
        if asked.pd.is_null() || unsafe { (*asked.pd).context } != context {
            return error::refuse_null(NAME, libc::EINVAL, "the domain belongs to another open device");
        }
        let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        if mask & !known != 0 {
            let why = format!("comp_mask {:#x} asks for what the device has not", mask & !known);
            return error::refuse_null(NAME, libc::EOPNOTSUPP, why);
        }
        if mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && asked.create_flags != 0 {
            let why = format!("create_flags {:#x} cannot be kept", asked.create_flags);
            return error::refuse_null(NAME, libc::EOPNOTSUPP, why);
        }
        let operations = if mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS == 0 { 0 } else { asked.send_ops_flags };
        // SAFETY: a domain that lives, as above.
        let device = unsafe { &Context::of(context).device };
        let possible = kind(asked.qp_type).map_or(0, |kind| qp_ex::operations(kind, &device.info().capabilities));
        if operations & !possible != 0 {
            let why = format!("send_ops_flags {:#x} cannot be posted to it", operations & !possible);
            return error::refuse_null(NAME, libc::EOPNOTSUPP, why);
        }
        // SAFETY: the attributes begin with those of `ibv_create_qp`, and name what lives.
        unsafe { create(NAME, asked.pd, &mut *init.cast(), operations) }
    })
}

export! {
    /// Makes a queue pair, and tells in the attributes what it was given.
    "IBVERBS_1.1" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
        // SAFETY: the domain, and what the program's attributes name, live.
        unsafe { create("ibv_create_qp", pd, &mut *init, 0) }
    }

    /// Destroys a queue pair: what was posted is forgotten. Waits until its events are acknowledged.
    "IBVERBS_1.1" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
        // SAFETY: a queue pair that lives, of an open device.
        let (own, context) = unsafe { (Qp::of(qp), Context::of((*qp).context)) };
        if let Some(errno) = own.lint.and_then(|lint| lint.destroy_qp(own.pair.qp_num())) {
            return error::refuse("ibv_destroy_qp", errno, "it breaks a rule of Thunderbolt");
        }
        context.events.remove(Subject::Qp(own.pair.qp_num()));
        // SAFETY: it was a box, and the program gives it up.
        drop(unsafe { Box::from_raw(qp.cast::<Qp>()) });
        0
    }

    /// The same queue pair for posting by calls, if it was made for that.
    "IBVERBS_1.6" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
        // SAFETY: a queue pair that lives.
        if unsafe { Qp::of(qp) }.operations == 0 {
            return error::refuse_null("ibv_qp_to_qp_ex", libc::EINVAL, "it was made without send_ops_flags");
        }
        qp.cast()
    }
}
