use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::Resource;

/// A sealed size: a peer that shrank it would turn this process's next touch into a SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// `linux/magic.h`: the file system of a memfd with ordinary pages.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

pub(super) fn create(len: usize) -> Result<OwnedFd, Errno> {
    // The system answers a file over the limit with a deadly signal.
    if rustix::process::getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < len as u64) {
        return Err(Errno::FBIG);
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match rustix::fs::memfd_create("fulmen", flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know the flag; later ones may be set to refuse memory that could be executed.
        Err(Errno::INVAL) => rustix::fs::memfd_create("fulmen", flags)?,
        made => made?,
    };
    rustix::fs::ftruncate(&fd, len as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

pub(super) fn check(fd: BorrowedFd<'_>, len: usize) -> Result<(), &'static str> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| "is no shared memory")?;
    // Huge pages have seals, too, but can be mapped and unmapped in multiples of their own size only.
    if rustix::fs::fstatfs(fd).map_err(|_| "cannot be measured")?.f_type != TMPFS_MAGIC {
        return Err("is no memory of ordinary pages");
    }
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
