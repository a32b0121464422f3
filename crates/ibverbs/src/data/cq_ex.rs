//! Polling by calls: `ibv_create_cq_ex`, `ibv_start_poll` and those that read what it brought.

use std::ffi::{c_int, c_uint};

use fulmen_verbs::Completion;
use rustix::time::{ClockId, clock_gettime};

use super::cq::{self, Cq, CqInit};
use crate::error;
use crate::export;
use crate::ffi::*;

const NAME: &str = "ibv_create_cq_ex";

/// What completions can bring.
const KNOWN: u32 =
    IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// The completion that a thread looks at.
pub(super) struct Current {
    /// What completions bring.
    flags: u32,
    completion: Completion,
    /// When the poll brought it, in nanoseconds of the clock that never jumps.
    stamp: u64,
    /// The same by the calendar, since 1970.
    wallclock: u64,
}

impl Current {
    pub(super) fn new(flags: u32) -> Current {
        Current { flags, completion: Completion::BLANK, stamp: 0, wallclock: 0 }
    }
}

/// `ibv_create_cq_ex`. VLANs, flow tags and tag matching are refused (EOPNOTSUPP).
///
/// # Safety
/// As the manual page says.
pub unsafe extern "C" fn create_cq_ex(context: *mut ibv_context, init: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    export::guard(NAME, || {
        // SAFETY: the program's attributes.
        let init = unsafe { &*init };
        let unknown = init.wc_flags & !u64::from(KNOWN);
        if unknown != 0 {
            let why = format!("completions bring nothing for wc_flags {unknown:#x}");
            return error::refuse_null(NAME, libc::EOPNOTSUPP, why);
        }
        let masks = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
        if init.comp_mask & !masks != 0 {
            return error::refuse_null(NAME, libc::EINVAL, format!("comp_mask {:#x} is not known", init.comp_mask));
        }
        // One thread is served like many.
        if init.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 && init.flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
            return error::refuse_null(NAME, libc::EOPNOTSUPP, format!("flags {:#x} cannot be kept", init.flags));
        }
        let asked = CqInit {
            name: NAME,
            entries: init.cqe,
            context: init.cq_context,
            channel: init.channel,
            vector: init.comp_vector,
            flags: init.wc_flags as c_uint,
        };
        // SAFETY: the device and the channel live.
        unsafe { cq::create(context, &asked, |c| fill(c, init.wc_flags as c_uint)) }
    })
}

/// Puts in the calls. What was not asked for cannot be read.
fn fill(c: &mut ibv_cq_ex, asked: c_uint) {
    c.start_poll = Some(start_poll);
    c.next_poll = Some(next_poll);
    c.end_poll = Some(end_poll);
    c.read_opcode = Some(read_opcode);
    c.read_vendor_err = Some(read_vendor_err);
    c.read_wc_flags = Some(read_wc_flags);
    let has = |flag: c_uint| asked & flag != 0;
    c.read_byte_len = has(IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len);
    c.read_imm_data = has(IBV_WC_EX_WITH_IMM).then_some(read_imm_data);
    c.read_qp_num = has(IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num);
    c.read_src_qp = has(IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp);
    c.read_slid = has(IBV_WC_EX_WITH_SLID).then_some(read_slid);
    c.read_sl = has(IBV_WC_EX_WITH_SL).then_some(read_sl);
    c.read_dlid_path_bits = has(IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_dlid_path_bits);
    c.read_completion_ts = has(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP).then_some(read_completion_ts);
    let wallclock = has(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
    c.read_completion_wallclock_ns = wallclock.then_some(read_completion_wallclock_ns);
}

/// Brings one completion: 0, ENOENT if there is none, or another error.
///
/// # Safety
/// A completion queue that lives, whose lock the calling thread holds.
unsafe fn bring(raw: *mut ibv_cq_ex) -> c_int {
    // SAFETY: by the contract of this function.
    let (own, current) = unsafe {
        let own = Cq::of(raw.cast());
        (own, own.current.value())
    };
    match own.poll(std::slice::from_mut(&mut current.completion)) {
        Ok(0) => libc::ENOENT,
        Ok(_) => {
            if current.flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP != 0 {
                current.stamp = nanoseconds(ClockId::Monotonic);
            }
            if current.flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK != 0 {
                current.wallclock = nanoseconds(ClockId::Realtime);
            }
            // SAFETY: the program reads them, in this thread.
            unsafe {
                (*raw).wr_id = current.completion.wr_id;
                (*raw).status = current.completion.status as ibv_wc_status;
            }
            0
        }
        Err(cause) => {
            own.tell("ibv_start_poll", &cause);
            libc::EOVERFLOW
        }
    }
}

/// The queue is this thread's alone from here until `end_poll`, unless there was nothing.
unsafe extern "C" fn start_poll(raw: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: null or the program's attributes.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return libc::EINVAL;
    }
    // SAFETY: a completion queue that lives.
    let own = unsafe { Cq::of(raw.cast()) };
    own.current.acquire();
    // SAFETY: the lock was just taken.
    let result = export::guard("ibv_start_poll", || unsafe { bring(raw) });
    if result != 0 {
        own.current.release();
    }
    result
}

unsafe extern "C" fn next_poll(raw: *mut ibv_cq_ex) -> c_int {
    // SAFETY: called between start and end.
    export::guard("ibv_next_poll", || unsafe { bring(raw) })
}

unsafe extern "C" fn end_poll(raw: *mut ibv_cq_ex) {
    // SAFETY: a completion queue that lives.
    unsafe { Cq::of(raw.cast()) }.current.release();
}

/// The completion that is looked at.
///
/// # Safety
/// Called between start and end.
unsafe fn current<'a>(raw: *mut ibv_cq_ex) -> &'a Completion {
    // SAFETY: the thread that polls holds the lock.
    unsafe { &Cq::of(raw.cast()).current.value().completion }
}

unsafe extern "C" fn read_opcode(raw: *mut ibv_cq_ex) -> ibv_wc_opcode {
    // SAFETY: called between start and end.
    cq::opcode(unsafe { current(raw) }.opcode)
}

unsafe extern "C" fn read_vendor_err(_raw: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_byte_len(raw: *mut ibv_cq_ex) -> u32 {
    // SAFETY: called between start and end.
    unsafe { current(raw) }.byte_len
}

unsafe extern "C" fn read_imm_data(raw: *mut ibv_cq_ex) -> u32 {
    // SAFETY: called between start and end.
    unsafe { current(raw) }.imm.unwrap_or(0).to_be()
}

unsafe extern "C" fn read_qp_num(raw: *mut ibv_cq_ex) -> u32 {
    // SAFETY: called between start and end.
    unsafe { current(raw) }.qp_num
}

unsafe extern "C" fn read_src_qp(raw: *mut ibv_cq_ex) -> u32 {
    // SAFETY: called between start and end.
    unsafe { current(raw) }.origin.map_or(0, |origin| origin.qp_num)
}

unsafe extern "C" fn read_wc_flags(raw: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: called between start and end.
    cq::flags(unsafe { current(raw) })
}

unsafe extern "C" fn read_slid(raw: *mut ibv_cq_ex) -> u32 {
    // SAFETY: called between start and end.
    unsafe { current(raw) }.origin.map_or(0, |origin| origin.lid.into())
}

/// There is one service level, 0.
unsafe extern "C" fn read_sl(_raw: *mut ibv_cq_ex) -> u8 {
    0
}

/// A port has one LID.
unsafe extern "C" fn read_dlid_path_bits(_raw: *mut ibv_cq_ex) -> u8 {
    0
}

unsafe extern "C" fn read_completion_ts(raw: *mut ibv_cq_ex) -> u64 {
    // SAFETY: called between start and end.
    unsafe { Cq::of(raw.cast()).current.value() }.stamp
}

unsafe extern "C" fn read_completion_wallclock_ns(raw: *mut ibv_cq_ex) -> u64 {
    // SAFETY: called between start and end.
    unsafe { Cq::of(raw.cast()).current.value() }.wallclock
}

/// What a clock says.
fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// `ibv_query_rt_values_ex`: the clock of the times of completions.
///
/// # Safety
/// As the manual page says.
pub unsafe extern "C" fn query_rt_values(_context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    export::guard("ibv_query_rt_values_ex", || {
        // SAFETY: the program's place for them.
        let values = unsafe { &mut *values };
        let asked = values.comp_mask;
        if asked & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
            let why = format!("comp_mask {asked:#x} asks for more than the clock");
            return error::refuse("ibv_query_rt_values_ex", libc::EINVAL, why);
        }
        if asked != 0 {
            let time = clock_gettime(ClockId::Monotonic);
            (values.raw_clock.tv_sec, values.raw_clock.tv_nsec) = (time.tv_sec as _, time.tv_nsec as _);
        }
        0
    })
}
