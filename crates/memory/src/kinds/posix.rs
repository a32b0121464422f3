//! Memory that every system of this family has.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::MapFlags;
use rustix::process::{Resource, getrlimit};

use super::owners::{Allocated, Mapped, adopt};
use super::{KindError, MemoryKind, platform};
use crate::{FileAccess, Region, RegionError, page_size};

pub(super) fn malloc(len: usize) -> Result<Region, KindError> {
    let page = page_size();
    let no_memory = || KindError::system("allocate", MemoryKind::Malloc, len, Errno::NOMEM);
    let asked = len.checked_add(page).ok_or_else(no_memory)?;
    // SAFETY: plain arguments; the result is looked at.
    let start = NonNull::new(unsafe { libc::calloc(1, asked) }.cast::<u8>()).ok_or_else(no_memory)?;
    // SAFETY: it was just allocated, for nobody else.
    let owner = unsafe { Allocated::new(start) };
    let skipped = start.as_ptr().align_offset(page);
    // SAFETY: less than a page is skipped, and a page more than `len` was allocated.
    let first = unsafe { start.add(skipped) };
    // SAFETY: `len` bytes from `first` lie inside the allocation, are initialized (calloc), and live as long as the
    // owner; nobody else knows them.
    unsafe { adopt(first, len, owner) }
}

pub(super) fn posix_memalign(len: usize) -> Result<Region, KindError> {
    let mut start = std::ptr::null_mut();
    // SAFETY: a page's size is a power of two and a multiple of a pointer's; the result is looked at.
    let status = unsafe { libc::posix_memalign(&raw mut start, page_size(), len) };
    if status != 0 {
        let cause = Errno::from_raw_os_error(status);
        return Err(KindError::system("allocate", MemoryKind::PosixMemalign, len, cause));
    }
    let start = NonNull::new(start.cast::<u8>()).expect("an allocation that succeeded has an address");
    // SAFETY: it was just allocated, for nobody else.
    let owner = unsafe { Allocated::new(start) };
    // SAFETY: `len` bytes were allocated there. What is in them is from earlier use, and is overwritten.
    unsafe { start.write_bytes(0, len) };
    // SAFETY: the bytes are initialized and live as long as the owner; nobody else knows them.
    unsafe { adopt(owner.start(), len, owner) }
}

pub(super) fn anonymous(len: usize) -> Result<Region, KindError> {
    Mapped::anonymous(len, MapFlags::PRIVATE)
        .map_err(|cause| KindError::system("map", MemoryKind::AnonymousMmap, len, cause))?
        .into_region()
}

pub(super) fn file(len: usize) -> Result<Region, KindError> {
    check_file_limit(len)?;
    let place = std::env::var_os("TMPDIR").map_or_else(usual_place, PathBuf::from);
    let fd = deleted_file(&place).map_err(|cause| match cause {
        Errno::MFILE | Errno::NFILE => RegionError::NoDescriptor { len, cause }.into(),
        cause => KindError::NoFile { place: place.clone(), cause },
    })?;
    let kind = MemoryKind::File;
    platform::set_aside(fd.as_fd(), len).map_err(|cause| match cause {
        Errno::NOSPC | Errno::DQUOT => {
            KindError::NoSpace { kind: kind.name(), len, place, way_out: "name another directory by TMPDIR" }
        }
        cause => KindError::system("set aside", kind, len, cause),
    })?;
    Ok(Region::map_file(&File::from(fd), FileAccess::ReadWrite)?)
}

fn usual_place() -> PathBuf {
    let place = PathBuf::from("/var/tmp");
    if place.is_dir() { place } else { PathBuf::from("/tmp") }
}

/// A new file without a name.
fn deleted_file(place: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let (fd, path) = with_new_name(|name| {
        let path = place.join(name);
        rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map(|fd| (fd, path))
    })?;
    rustix::fs::unlink(path)?;
    Ok(fd)
}

pub(super) fn shm_open(len: usize) -> Result<Region, KindError> {
    let kind = MemoryKind::ShmOpen;
    check_file_limit(len)?;
    let flags = rustix::shm::OFlags::CREATE | rustix::shm::OFlags::EXCL | rustix::shm::OFlags::RDWR;
    let made = with_new_name(|name| {
        let name = format!("/{name}");
        let fd = rustix::shm::open(&name, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::shm::unlink(&name)?;
        Ok(fd)
    });
    let fd = made.map_err(|cause| KindError::system("open", kind, len, cause))?;
    platform::set_aside(fd.as_fd(), len).map_err(|cause| match cause {
        Errno::NOSPC => KindError::NoSpace {
            kind: kind.name(),
            len,
            place: PathBuf::from("/dev/shm"),
            way_out: "give it more (`mount -o remount,size=...`; for a container, its shm size)",
        },
        cause => KindError::system("set aside", kind, len, cause),
    })?;
    Mapped::shared(fd.as_fd(), len).map_err(|cause| KindError::system("map", kind, len, cause))?.into_region()
}

/// Tries names until one is new: a process of the same number may have left one behind. macOS allows 31 bytes.
fn with_new_name<T>(mut make: impl FnMut(&str) -> Result<T, Errno>) -> Result<T, Errno> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut tries = 0;
    loop {
        let name = format!("fulmen.{}.k{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        match make(&name) {
            Err(Errno::EXIST) if tries < 100 => tries += 1,
            made => return made,
        }
    }
}

/// The system answers a file over the limit with a deadly signal.
fn check_file_limit(len: usize) -> Result<(), RegionError> {
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < len as u64) {
        return Err(RegionError::FileSizeLimit { len });
    }
    Ok(())
}
