use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::shm::OFlags;

pub(super) fn create(len: usize) -> Result<OwnedFd, Errno> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // The name lives only until the next line; macOS allows 31 bytes.
    let name = format!("/fulmen.{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let fd = rustix::shm::open(&name, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR, Mode::RUSR | Mode::WUSR)?;
    rustix::shm::unlink(&name)?;
    // The size of such an object can be set once, which is what a seal does on Linux.
    rustix::fs::ftruncate(&fd, len as u64)?;
    Ok(fd)
}

pub(super) fn check(fd: BorrowedFd<'_>, len: usize) -> Result<(), &'static str> {
    let size = rustix::fs::fstat(fd).map_err(|_| "cannot be measured")?.st_size;
    if usize::try_from(size).is_ok_and(|size| size >= len) { Ok(()) } else { Err("is shorter than promised") }
}

pub(super) fn total_memory() -> u64 {
    // macOS pages to disk as it likes; the largest mapping is refused by the system itself.
    u64::MAX
}
