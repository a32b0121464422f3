use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

/// A sealed size: a peer that shrank it would turn this process's next touch into a SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

pub(super) fn create(len: usize) -> Result<OwnedFd, Errno> {
    let fd = rustix::fs::memfd_create("fulmen", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

pub(super) fn check(fd: BorrowedFd<'_>, len: usize) -> Result<(), &'static str> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| "is no shared memory")?;
    if !seals.contains(SEALS) {
        return Err("is not sealed, so its owner could shorten it");
    }
    let size = rustix::fs::fstat(fd).map_err(|_| "cannot be measured")?.st_size;
    if usize::try_from(size).is_ok_and(|size| size >= len) { Ok(()) } else { Err("is shorter than promised") }
}

pub(super) fn total_memory() -> u64 {
    let info = rustix::system::sysinfo();
    // The fields' width differs between architectures.
    #[allow(clippy::unnecessary_cast)]
    let total = (info.totalram as u64).saturating_add(info.totalswap as u64);
    total.saturating_mul(u64::from(info.mem_unit.max(1)))
}
