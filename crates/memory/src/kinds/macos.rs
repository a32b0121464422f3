//! Kinds of macOS. This code is type-checked against Apple's headers (through objc2) and has never run.

use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_core_foundation::{CFDictionary, CFNumber, CFRetained, CFString};
use objc2_io_surface::{IOSurfaceLockOptions, IOSurfaceRef, kIOSurfaceAllocSize};
use objc2_metal::{MTLBuffer, MTLCreateSystemDefaultDevice, MTLDevice, MTLResourceOptions};
use rustix::io::Errno;

use super::owners::{Mapped, adopt};
use super::{KindError, MemoryKind};
use crate::Region;

pub(super) const KINDS: &[MemoryKind] = &[
    MemoryKind::Malloc,
    MemoryKind::PosixMemalign,
    MemoryKind::AnonymousMmap,
    MemoryKind::File,
    MemoryKind::ShmOpen,
    MemoryKind::IoSurface,
    MemoryKind::Metal,
    MemoryKind::MachEntry,
];

pub(super) fn allocate(kind: MemoryKind, len: usize) -> Result<Region, KindError> {
    match kind {
        MemoryKind::IoSurface => io_surface(len),
        MemoryKind::Metal => metal(len),
        MemoryKind::MachEntry => mach_entry(len),
        kind => Err(KindError::OtherSystem { what: kind.name(), system: "Linux" }),
    }
}

/// Gives a new file its length. Shared memory's can be set once, and its storage cannot be set aside.
pub(super) fn set_aside(fd: BorrowedFd<'_>, len: usize) -> Result<(), Errno> {
    rustix::fs::ftruncate(fd, len as u64)
}

fn refused(action: &'static str, kind: MemoryKind, len: usize, cause: impl Into<String>) -> KindError {
    KindError::System { action, kind: kind.name(), len, cause: cause.into() }
}

fn kernel_said(status: i32) -> String {
    format!("the kernel returned {status}")
}

/// A surface, locked for the processors.
struct Surface(CFRetained<IOSurfaceRef>);

// SAFETY: a surface may be locked, unlocked and released on any thread; its bytes are reached through its region alone.
unsafe impl Send for Surface {}
// SAFETY: as above; nothing is reached through a shared reference.
unsafe impl Sync for Surface {}

impl Drop for Surface {
    fn drop(&mut self) {
        // SAFETY: it was locked when it was made; a null seed is allowed.
        unsafe { self.0.unlock(IOSurfaceLockOptions::empty(), null_mut()) };
    }
}

fn io_surface(len: usize) -> Result<Region, KindError> {
    let kind = MemoryKind::IoSurface;
    let size = CFNumber::new_i64(i64::try_from(len).map_err(|_| refused("make", kind, len, "too long"))?);
    // SAFETY: a constant of the framework.
    let key = unsafe { kIOSurfaceAllocSize };
    let properties = CFDictionary::<CFString, CFNumber>::from_slices(&[key], &[&*size]);
    // SAFETY: keys are strings, and this one's value is a number. Surfaces without dimensions have this property alone.
    let surface = unsafe { IOSurfaceRef::new(properties.as_opaque()) };
    let surface = surface.ok_or_else(|| refused("make", kind, len, "the system made no surface"))?;
    // SAFETY: a null seed is allowed.
    let status = unsafe { surface.lock(IOSurfaceLockOptions::empty(), null_mut()) };
    if status != 0 {
        return Err(refused("lock", kind, len, kernel_said(status)));
    }
    let surface = Surface(surface);
    if surface.0.alloc_size() < len {
        return Err(refused("make", kind, len, "the surface is shorter than asked for"));
    }
    let start = surface.0.base_address().cast::<u8>();
    // SAFETY: a locked surface is mapped at its base address, and `len` bytes of it are, until it is unlocked and
    // released by its drop. It was made here, so nobody else uses it.
    unsafe { adopt(start, len, surface) }
}

struct Buffer(#[expect(dead_code, reason = "held to be released")] Retained<ProtocolObject<dyn MTLBuffer>>);

// SAFETY: Metal's resources may be released on any thread; the buffer's bytes are reached through its region alone.
unsafe impl Send for Buffer {}
// SAFETY: as above; nothing is reached through a shared reference.
unsafe impl Sync for Buffer {}

fn metal(len: usize) -> Result<Region, KindError> {
    let kind = MemoryKind::Metal;
    let device = MTLCreateSystemDefaultDevice();
    let device = device.ok_or_else(|| refused("make", kind, len, "this machine has no Metal device"))?;
    let longest = device.maxBufferLength();
    if len > longest {
        return Err(refused("make", kind, len, format!("the device's buffers have at most {longest} bytes")));
    }
    let buffer = device.newBufferWithLength_options(len, MTLResourceOptions::StorageModeShared);
    let buffer = buffer.ok_or_else(|| refused("make", kind, len, "the device made no buffer"))?;
    let start = buffer.contents().cast::<u8>();
    // SAFETY: a buffer in shared storage is mapped at its contents, all of its length, until it is released. It was made
    // here, zeroed, and no command uses it.
    unsafe { adopt(start, len, Buffer(buffer)) }
}

/// `mach/memory_object_types.h`: makes new memory instead of naming some that is mapped.
const MAP_MEM_NAMED_CREATE: libc::vm_prot_t = 0x02_0000;
/// `mach/vm_statistics.h`.
const VM_FLAGS_ANYWHERE: libc::c_int = 1;
const READ_WRITE: libc::vm_prot_t = libc::VM_PROT_READ | libc::VM_PROT_WRITE;

// Of the system's library; the libc crate has them as deprecated or not at all.
unsafe extern "C" {
    static mach_task_self_: libc::mach_port_t;
    fn mach_make_memory_entry_64(
        task: libc::mach_port_t,
        size: *mut u64,
        offset: u64,
        permission: libc::vm_prot_t,
        entry: *mut libc::mach_port_t,
        parent: libc::mach_port_t,
    ) -> libc::kern_return_t;
    fn mach_vm_map(
        task: libc::mach_port_t,
        address: *mut u64,
        size: u64,
        mask: u64,
        flags: libc::c_int,
        entry: libc::mach_port_t,
        offset: u64,
        copy: libc::boolean_t,
        protection: libc::vm_prot_t,
        max_protection: libc::vm_prot_t,
        inheritance: libc::vm_inherit_t,
    ) -> libc::kern_return_t;
    fn mach_port_deallocate(task: libc::mach_port_t, name: libc::mach_port_t) -> libc::kern_return_t;
}

fn mach_entry(len: usize) -> Result<Region, KindError> {
    let kind = MemoryKind::MachEntry;
    // SAFETY: written by the system before the program starts, and never again.
    let task = unsafe { mach_task_self_ };
    let (mut size, mut entry, mut address) = (len as u64, 0, 0);
    // SAFETY: the pointers are to locals; without a parent and with this flag nothing that exists is touched.
    let status = unsafe {
        mach_make_memory_entry_64(task, &raw mut size, 0, MAP_MEM_NAMED_CREATE | READ_WRITE, &raw mut entry, 0)
    };
    if status != 0 {
        return Err(refused("make", kind, len, kernel_said(status)));
    }
    // SAFETY: the system chooses an unused range (anywhere); the entry is new, and at least `len` bytes long.
    let status = unsafe {
        let (flags, inherit) = (VM_FLAGS_ANYWHERE, libc::VM_INHERIT_NONE as libc::vm_inherit_t);
        mach_vm_map(task, &raw mut address, len as u64, 0, flags, entry, 0, 0, READ_WRITE, READ_WRITE, inherit)
    };
    // SAFETY: the name was made above and is used nowhere else; the mapping keeps the memory.
    unsafe { mach_port_deallocate(task, entry) };
    if status != 0 {
        return Err(refused("map", kind, len, kernel_said(status)));
    }
    let start = NonNull::new(address as *mut u8).ok_or_else(|| refused("map", kind, len, "it is at address zero"))?;
    // SAFETY: it was just mapped, for nobody else; munmap undoes mappings of either interface.
    unsafe { Mapped::new(start.as_ptr(), len) }.into_region()
}
