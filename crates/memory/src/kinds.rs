//! Kinds of memory that programs bring to a device, so that it can be asked which of them it registers.
//!
//! Fulmen's own memory comes from [`Region::alloc`]. These are the others that one meets: what the C library gives, what
//! is mapped from files, what GPUs and displays use. Each comes as a [`Region`] that frees it with its last handle.
//!
//! A region of a kind starts at a page and is whole pages long, of [`page_size`] or, for huge pages, of
//! theirs: `len` is rounded up. Its bytes are zero.

use std::path::PathBuf;

use rustix::io::Errno;

use crate::{Region, RegionError, page_size};

mod owners;
#[cfg_attr(target_os = "linux", path = "kinds/linux.rs")]
#[cfg_attr(target_os = "macos", path = "kinds/macos.rs")]
mod platform;
mod posix;
#[cfg_attr(target_os = "linux", path = "kinds/udmabuf.rs")]
#[cfg_attr(target_os = "macos", path = "kinds/no_udmabuf.rs")]
mod udmabuf;

pub use udmabuf::udmabuf;

/// Where memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// The C library's allocator, by `calloc`. It aligns to 16 bytes, so one page more is asked for and the whole pages
    /// inside are used.
    Malloc,
    /// The C library's `posix_memalign`, aligned to a page. It is zeroed, and so touched, when it is made.
    PosixMemalign,
    /// A private mapping without a file.
    AnonymousMmap,
    /// A memfd whose size is sealed: what [`Region::alloc`] makes. Linux.
    Memfd,
    /// The shared mapping of a file that is deleted when it has been mapped. It lies in the directory that `TMPDIR` names,
    /// else in /var/tmp, else in /tmp; where that is a tmpfs it is no file of a disk.
    File,
    /// A private mapping of huge pages (`MAP_HUGETLB`), of the system's default size. Linux.
    HugePages,
    /// Shared memory of POSIX (`shm_open`), without a name as soon as it is mapped.
    ShmOpen,
    /// An `IOSurface`, locked for the processors as long as it lives. macOS.
    IoSurface,
    /// A buffer of Metal's default device in shared storage. macOS.
    Metal,
    /// A mach memory entry, mapped. macOS.
    MachEntry,
}

impl MemoryKind {
    /// The kinds that this system has.
    #[must_use]
    pub fn all() -> &'static [MemoryKind] {
        platform::KINDS
    }

    /// Its name, as users write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            MemoryKind::Malloc => "malloc",
            MemoryKind::PosixMemalign => "posix_memalign",
            MemoryKind::AnonymousMmap => "anonymous mmap",
            MemoryKind::Memfd => "memfd",
            MemoryKind::File => "file",
            MemoryKind::HugePages => "huge pages",
            MemoryKind::ShmOpen => "shm_open",
            MemoryKind::IoSurface => "IOSurface",
            MemoryKind::Metal => "MTLBuffer",
            MemoryKind::MachEntry => "mach memory entry",
        }
    }

    /// Makes a region of at least `len` bytes of this kind, of whole pages, zeroed.
    ///
    /// # Errors
    /// [`KindError`]: for zero bytes, for more than the machine has, for a kind of another system, and for what the
    /// system refuses.
    pub fn allocate(self, len: usize) -> Result<Region, KindError> {
        if len == 0 {
            return Err(RegionError::Empty.into());
        }
        let total = crate::region::total_memory();
        if len as u64 > total {
            return Err(RegionError::TooLarge { len, total }.into());
        }
        let whole = len.checked_next_multiple_of(page_size()).filter(|whole| isize::try_from(*whole).is_ok());
        let Some(whole) = whole else {
            return Err(KindError::NoMemory { kind: self.name(), len, cause: Errno::NOMEM });
        };
        match self {
            MemoryKind::Malloc => posix::malloc(whole),
            MemoryKind::PosixMemalign => posix::posix_memalign(whole),
            MemoryKind::AnonymousMmap => posix::anonymous(whole),
            MemoryKind::File => posix::file(whole),
            MemoryKind::ShmOpen => posix::shm_open(whole),
            kind => platform::allocate(kind, whole),
        }
    }
}

/// Why there is no memory of a kind, or no dma-buf of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KindError {
    /// The memory makes no region.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// This system has no such thing.
    #[error("{what} is not to be had on this system: only on {system}")]
    OtherSystem {
        /// What was asked for.
        what: &'static str,
        /// The system that has it.
        system: &'static str,
    },
    /// The system gave no memory.
    #[error(
        "no memory for {len} bytes of {kind} ({cause}): ask for less, or raise the limit on address space (`ulimit -v`)"
    )]
    NoMemory {
        /// The kind's name.
        kind: &'static str,
        /// Bytes asked for.
        len: usize,
        /// What the system said.
        cause: Errno,
    },
    /// Too few huge pages are reserved.
    #[error(
        "{needed} huge pages of {page} bytes are needed and {free} are free: reserve more with `sysctl -w vm.nr_hugepages={reserve}`"
    )]
    NoHugePages {
        /// The pages that the request takes.
        needed: u64,
        /// The pages that nobody uses or has reserved.
        free: u64,
        /// The size of one, in bytes.
        page: u64,
        /// How many there should be in all.
        reserve: u64,
    },
    /// The kernel has no huge pages.
    #[error("this system has no huge pages (no Hugepagesize in /proc/meminfo): boot a kernel with CONFIG_HUGETLBFS")]
    HugePagesUnknown,
    /// The file system is full.
    #[error("no space for {len} bytes of {kind} in {place}: free some, or {way_out}")]
    NoSpace {
        /// The kind's name.
        kind: &'static str,
        /// Bytes asked for.
        len: usize,
        /// The directory.
        place: PathBuf,
        /// What else helps.
        way_out: &'static str,
    },
    /// A file cannot be made where it should be.
    #[error("cannot make a file in {place} ({cause}): name a directory that can be written by TMPDIR")]
    NoFile {
        /// The directory.
        place: PathBuf,
        /// What the system said.
        cause: Errno,
    },
    /// There is no device that makes dma-bufs of memory.
    #[error("there is no /dev/udmabuf: load its module (`modprobe udmabuf`), or boot a kernel with CONFIG_UDMABUF")]
    NoUdmabuf,
    /// The device that makes dma-bufs may not be opened.
    #[error("/dev/udmabuf may not be opened ({cause}): join the group that owns it (often kvm), or be root")]
    UdmabufPermission {
        /// What the system said.
        cause: Errno,
    },
    /// A dma-buf is made of a memfd only.
    #[error("no dma-buf can be made of memory without a memfd: use a region made by `Region::alloc`")]
    NoMemfd,
    /// A dma-buf is whole pages.
    #[error("a dma-buf is whole pages of {page} bytes, and {len} bytes are not: make the region a multiple of them")]
    NotWholePages {
        /// The region's length in bytes.
        len: usize,
        /// The page size in bytes.
        page: usize,
    },
    /// The kernel limits the size of such dma-bufs.
    #[error(
        "/dev/udmabuf refuses {len} bytes: its limit is {limit} MiB: raise /sys/module/udmabuf/parameters/size_limit_mb"
    )]
    UdmabufLimit {
        /// Bytes asked for.
        len: usize,
        /// The limit in MiB.
        limit: u64,
    },
    /// The system refused for another reason.
    #[error("cannot {action} {len} bytes of {kind}: {cause}")]
    System {
        /// What was being done.
        action: &'static str,
        /// The kind's name.
        kind: &'static str,
        /// Bytes asked for.
        len: usize,
        /// What the system said.
        cause: String,
    },
}

impl KindError {
    fn system(action: &'static str, kind: MemoryKind, len: usize, cause: Errno) -> Self {
        let kind = kind.name();
        match cause {
            Errno::NOMEM => Self::NoMemory { kind, len, cause },
            Errno::MFILE | Errno::NFILE => RegionError::NoDescriptor { len, cause }.into(),
            Errno::FBIG => RegionError::FileSizeLimit { len }.into(),
            cause => Self::System { action, kind, len, cause: cause.to_string() },
        }
    }
}
