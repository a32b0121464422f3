//! Memory regions: the program's own memory, registered.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use fulmen_verbs::{Access, Claim, MemoryRegion};

use crate::context::Context;
use crate::domain::Pd;
use crate::error::{Call, refuse, refuse_null};
use crate::export::export;
use crate::ffi::*;
use crate::mapped;
use crate::memory;
use crate::thunderbolt::{self, Refused, Registered};
use crate::users::User;

/// A memory region.
#[repr(C)]
struct Mr {
    c: ibv_mr,
    /// What the device knows of it.
    registration: Arc<dyn MemoryRegion>,
    /// What the program asked for.
    flags: c_uint,
    _claim: Option<Claim>,
    _user: User,
}

/// What is to be registered.
#[derive(Clone, Copy)]
struct Wish {
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    /// How requests call the first byte.
    iova: u64,
    flags: c_uint,
}

/// The rights that the device knows, out of what the program says.
fn access_of(flags: c_uint) -> Result<Access, String> {
    let known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    // Huge pages are a hint; a memory window asks for its rights when it is bound, and there are none.
    let harmless = IBV_ACCESS_HUGETLB | IBV_ACCESS_MW_BIND | IBV_ACCESS_OPTIONAL_RANGE;
    let unknown = flags & !(known | harmless);
    if unknown != 0 {
        return Err(format!(
            "access flags {unknown:#x} mean nothing here (on-demand and zero-based memory are not there)"
        ));
    }
    Ok(Access::from_bits_truncate(flags & known))
}

/// Registers: the error number otherwise, which is told already.
///
/// # Safety
/// The domain is one, and the program keeps the memory where it is, as the manual page asks of it.
unsafe fn register(name: &'static str, wish: &Wish) -> Result<Mr, c_int> {
    let Wish { pd: raw, addr, len, iova, flags } = *wish;
    // SAFETY: the caller's promise.
    let pd = unsafe { Pd::of(raw) };
    let context = pd.context();
    if len == 0 || (addr as usize).checked_add(len).is_none() {
        return Err(refuse(name, libc::EINVAL, format_args!("{len} bytes at {addr:p} are no range of memory")));
    }
    let Registered { claim, aliased } =
        match thunderbolt::check_registration(name, context, &*pd.device, addr as usize, len, flags) {
            Ok(registered) => registered,
            Err(Refused::Rule(errno, reason)) => return Err(refuse(name, errno, reason)),
            Err(Refused::Device(error)) => return Err(context.fail(name, Call::RegisterMemory, &error)),
        };
    let access = access_of(flags).map_err(|reason| refuse(name, libc::EOPNOTSUPP, reason))?;
    let remote = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC);
    if iova != addr as u64 && remote {
        let reason = "peers address memory by the addresses of its owner here: leave out the remote rights";
        return Err(refuse(name, libc::EOPNOTSUPP, reason));
    }
    let written = access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    mapped::check(addr as usize, len, written).map_err(|problem| refuse(name, libc::EFAULT, problem))?;
    // SAFETY: the caller's promise.
    let adopted = unsafe { memory::adopt(addr as usize, len) };
    let (region, offset) = adopted.map_err(|error| refuse(name, libc::EINVAL, error))?;
    let exposed = region.expose().map_err(|error| refuse(name, libc::EINVAL, error))?;
    let registered = pd.device.register(&region, offset..offset + len, access);
    let registration = registered.map_err(|error| context.fail(name, Call::RegisterMemory, &error))?;
    let (lkey, rkey) = (registration.lkey(), registration.rkey());
    let memory = exposed.slice(offset..offset + len);
    context.memory.add(lkey, memory::Entry { memory, addr: iova, domain: raw as usize, aliased });
    let c = ibv_mr { context: context.raw(), pd: raw, addr, length: len, handle: lkey, lkey, rkey };
    Ok(Mr { c, registration, flags, _claim: claim, _user: pd.users.add() })
}

/// # Safety
/// As [`register`].
unsafe fn register_for_c(name: &'static str, wish: &Wish) -> *mut ibv_mr {
    if wish.pd.is_null() {
        return refuse_null(name, libc::EINVAL, "there is no protection domain at NULL");
    }
    // SAFETY: the caller's promise.
    match unsafe { register(name, wish) } {
        Ok(mr) => Box::into_raw(Box::new(mr)).cast(),
        Err(_) => std::ptr::null_mut(),
    }
}

/// Ends a registration: requests that come later do not find it, and peers are done with it when this returns.
fn end(mr: Mr) {
    // SAFETY: the context is open as long as something of it is there.
    unsafe { Context::of(mr.c.context) }.memory.remove(mr.c.lkey);
    drop(mr.registration);
}

export! {
    /// Registers memory.
    "IBVERBS_1.1" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
        let wish = Wish { pd, addr, len: length, iova: addr as u64, flags: access as c_uint };
        // SAFETY: the program's promises.
        unsafe { register_for_c("ibv_reg_mr", &wish) }
    }

    /// Registers memory that requests call by other addresses.
    "IBVERBS_1.7" fn ibv_reg_mr_iova(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int
    ) -> *mut ibv_mr {
        let wish = Wish { pd, addr, len: length, iova, flags: access as c_uint };
        // SAFETY: the program's promises.
        unsafe { register_for_c("ibv_reg_mr_iova", &wish) }
    }

    /// The same, with more access flags.
    "IBVERBS_1.8" fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint
    ) -> *mut ibv_mr {
        let wish = Wish { pd, addr, len: length, iova, flags: access };
        // SAFETY: the program's promises.
        unsafe { register_for_c("ibv_reg_mr_iova2", &wish) }
    }

    /// Changes what is registered, in which domain or with which rights. If that fails, the old registration is as it was.
    "IBVERBS_1.1" fn ibv_rereg_mr(
        mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int
    ) -> c_int {
        let name = "ibv_rereg_mr";
        let wrong = |reason: &str| {
            refuse(name, libc::EINVAL, reason);
            IBV_REREG_MR_ERR_INPUT
        };
        let change = flags as ibv_rereg_mr_flags;
        if change == 0 || change & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 {
            return wrong("the flags say nothing that could be changed");
        }
        // SAFETY: the program's promise: it is a registration, which it uses nowhere else meanwhile.
        let mr = unsafe { &mut *mr.cast::<Mr>() };
        let mut wish = Wish {
            pd: mr.c.pd,
            addr: mr.c.addr,
            len: mr.c.length,
            iova: mr.c.addr as u64,
            flags: mr.flags,
        };
        if change & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
            if addr.is_null() || length == 0 {
                return wrong("there is no memory to change to");
            }
            wish = Wish { addr, len: length, iova: addr as u64, ..wish };
        }
        if change & IBV_REREG_MR_CHANGE_PD != 0 {
            if pd.is_null() {
                return wrong("there is no protection domain to change to");
            }
            wish.pd = pd;
        }
        if change & IBV_REREG_MR_CHANGE_ACCESS != 0 {
            wish.flags = access as c_uint;
        }
        // SAFETY: the program's promises.
        match unsafe { register(name, &wish) } {
            Ok(new) => {
                end(std::mem::replace(mr, new));
                0
            }
            Err(_) => IBV_REREG_MR_ERR_CMD,
        }
    }

    /// Ends a registration.
    "IBVERBS_1.1" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
        // SAFETY: it was a box when the program got it, which gives it back.
        end(*unsafe { Box::from_raw(mr.cast::<Mr>()) });
        0
    }
}
