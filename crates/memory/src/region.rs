use std::any::Any;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::{ChunkRule, Exposed, page_size};

#[cfg_attr(target_os = "linux", path = "region/linux.rs")]
#[cfg_attr(target_os = "macos", path = "region/macos.rs")]
mod shareable;
mod taking;

/// What a mapping of a file allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// The bytes can be read. Writes through [`Exposed`] are refused by a panic.
    ReadOnly,
    /// The bytes can be read and written; writes reach the file.
    ReadWrite,
}

/// Why there is no region.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// Zero bytes were asked for.
    #[error("a region needs at least one byte")]
    Empty,
    /// More was asked for than the machine has.
    #[error("{len} bytes are more than this machine's memory of {total} bytes: ask for less")]
    TooLarge {
        /// Bytes asked for.
        len: usize,
        /// Bytes of memory and swap that the machine has.
        total: u64,
    },
    /// The system gave no memory.
    #[error(
        "no memory for a region of {len} bytes ({cause}): ask for less, or raise the limit on address space (`ulimit -v`)"
    )]
    NoMemory {
        /// Bytes asked for.
        len: usize,
        /// What the system said.
        cause: Errno,
    },
    /// The process has too many open descriptors.
    #[error("no descriptor left for a region of {len} bytes ({cause}): raise the limit (`ulimit -n`)")]
    NoDescriptor {
        /// Bytes asked for.
        len: usize,
        /// What the system said.
        cause: Errno,
    },
    /// The process may not make files as long as the region, and on Linux a region counts as one.
    #[error("a region of {len} bytes is over this process's limit on file sizes: raise the limit (`ulimit -f`)")]
    FileSizeLimit {
        /// Bytes asked for.
        len: usize,
    },
    /// The file was not opened for what the mapping shall allow.
    #[error("the file is not open for {needs}: open it so, or map it with another access")]
    FileAccess {
        /// What it has to be open for.
        needs: &'static str,
    },
    /// A descriptor does not hold what its sender promised.
    #[error("the descriptor of a shared region {problem}: it was not made by Fulmen, or by another version")]
    Unfit {
        /// What is wrong with it.
        problem: &'static str,
    },
    /// An adopted mapping does not start or end at a page.
    #[error("memory at {addr:#x} of {len} bytes does not start and end at a page of {page} bytes")]
    Unaligned {
        /// Its first address.
        addr: usize,
        /// Its length in bytes.
        len: usize,
        /// The page size in bytes.
        page: usize,
    },
    /// The region serves a pool already and cannot be exposed, or the other way round.
    #[error("the region is {claim} already: one region serves blocks or exposed memory, not both")]
    Claimed {
        /// What it serves.
        claim: &'static str,
    },
    /// Others map the memory and may write it, so that no pool can cut exclusive blocks out of it.
    #[error("blocks cannot be cut out of {what}, which others may write at any time: expose it, or pool an own region")]
    NotExclusive {
        /// What the region is.
        what: &'static str,
    },
    /// The memory cannot be taken back from those who map it.
    #[error("{what} cannot be taken back from those who map it: make the region with `Region::alloc`")]
    CannotTakeBack {
        /// What the region is.
        what: &'static str,
    },
    /// The system refused for another reason.
    #[error("cannot {action} a region of {len} bytes: {cause}")]
    System {
        /// What was being done.
        action: &'static str,
        /// Bytes asked for.
        len: usize,
        /// What the system said.
        cause: Errno,
    },
}

impl RegionError {
    fn system(action: &'static str, len: usize, cause: Errno) -> Self {
        match cause {
            Errno::NOMEM => Self::NoMemory { len, cause },
            Errno::MFILE | Errno::NFILE => Self::NoDescriptor { len, cause },
            Errno::FBIG => Self::FileSizeLimit { len },
            cause => Self::System { action, len, cause },
        }
    }
}

/// A page-aligned mapping that can be an RDMA memory region, a GPU buffer and another process's memory at once.
///
/// Cloning is cheap and gives another handle to the same mapping, which is unmapped with its last handle. See the
/// [crate's documentation](crate) for the ways to its bytes.
#[derive(Clone, Debug)]
pub struct Region {
    mapping: Arc<Mapping>,
}

/// A handle that does not keep its region mapped: for caches of regions that others use.
#[derive(Clone, Debug)]
pub struct WeakRegion {
    mapping: Weak<Mapping>,
}

impl WeakRegion {
    /// The region, if another handle still keeps it.
    #[must_use]
    pub fn upgrade(&self) -> Option<Region> {
        self.mapping.upgrade().map(|mapping| Region { mapping })
    }
}

#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    id: u64,
    claim: AtomicU8,
    /// It was taken back: what others map is no longer this.
    private: AtomicBool,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    /// Memory made here by [`Region::alloc`].
    Made(OwnedFd),
    /// Memory made by [`Region::alloc`] somewhere else, who may use it in any way.
    Received(OwnedFd),
    /// A file, mapped by [`Region::map_file`].
    File(OwnedFd),
    /// Memory of somebody else, who keeps it mapped as long as the owner lives.
    /// The owner is only ever dropped, so that no broken invariant of it can be seen after a panic.
    Adopted { _owner: AssertUnwindSafe<Box<dyn Any + Send + Sync>> },
}

// SAFETY: a mapping hands out its address only; bytes are reached through `Block` (exclusive) and `Exposed` (raw
// copies and atomics), and the address range stays mapped until the last handle is gone, whichever thread drops it.
unsafe impl Send for Mapping {}
// SAFETY: as above; the fields that change after construction are atomics.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Backing::Adopted { .. } = self.backing {
            return;
        }
        // SAFETY: the range was mapped by `map`, nobody else unmaps it, and the last handle to it is gone.
        let unmapped =
            unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len.next_multiple_of(page_size())) };
        debug_assert_eq!(unmapped, Ok(()), "a mapping of this process can be unmapped");
    }
}

const UNCLAIMED: u8 = 0;
const EXPOSED: u8 = 1;
const POOLED: u8 = 2;

impl Region {
    /// Makes a region of `len` zeroed bytes that other processes can map.
    ///
    /// On Linux it is a memfd whose size is sealed, so that it leaves nothing behind after a crash and nobody can
    /// shrink it under a reader. Pages are given by the system when they are first touched.
    ///
    /// # Errors
    /// [`RegionError`], for zero bytes, for more than the machine has, and for what the system refuses.
    pub fn alloc(len: usize) -> Result<Region, RegionError> {
        if len == 0 {
            return Err(RegionError::Empty);
        }
        let total = shareable::total_memory();
        if len as u64 > total {
            return Err(RegionError::TooLarge { len, total });
        }
        let fd = shareable::create(len).map_err(|cause| RegionError::system("make", len, cause))?;
        let start = map(fd.as_fd(), len, true)?;
        Ok(Region::new(start, len, true, Backing::Made(fd)))
    }

    /// Maps the memory that another process made with [`Region::alloc`] and handed over by its descriptor: its first
    /// `len` bytes.
    ///
    /// The other process goes on using it, so that here it can be exposed only: no [`Pool`](crate::Pool) takes it.
    /// Writing bytes out of which the other process holds slices is an error of the protocol between the two that no
    /// type can prevent: write what it has exposed.
    ///
    /// # Errors
    /// [`RegionError::Unfit`] if the descriptor is no sealed, writable region of at least `len` bytes, and what the
    /// system refuses.
    pub fn from_fd(fd: OwnedFd, len: usize) -> Result<Region, RegionError> {
        if len == 0 {
            return Err(RegionError::Empty);
        }
        shareable::check(fd.as_fd(), len).map_err(|problem| RegionError::Unfit { problem })?;
        let start = map(fd.as_fd(), len, true).map_err(|error| match error {
            RegionError::System { cause: Errno::ACCESS | Errno::PERM, .. } => {
                RegionError::Unfit { problem: "cannot be written" }
            }
            error => error,
        })?;
        Ok(Region::new(start, len, true, Backing::Received(fd)))
    }

    /// Maps a whole file, shared with everybody who maps it, so that it can be exposed only.
    ///
    /// A file that somebody shortens afterwards takes its pages with it: touching them is a `SIGBUS`. Map files that
    /// nobody shortens.
    ///
    /// # Errors
    /// [`RegionError::Empty`] for an empty file, [`RegionError::FileAccess`] for one that is not open for reading (and
    /// writing, if asked for), and what the system refuses.
    pub fn map_file(file: &File, access: FileAccess) -> Result<Region, RegionError> {
        let size = rustix::fs::fstat(file).map_err(|cause| RegionError::system("measure", 0, cause))?.st_size;
        let len = usize::try_from(size).unwrap_or(0);
        if len == 0 {
            return Err(RegionError::Empty);
        }
        let fd = file.as_fd().try_clone_to_owned().map_err(|error| {
            let cause = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            RegionError::system("keep the descriptor of", len, cause)
        })?;
        let writable = access == FileAccess::ReadWrite;
        let start = map(fd.as_fd(), len, writable).map_err(|error| match error {
            RegionError::System { cause: Errno::ACCESS, .. } => {
                RegionError::FileAccess { needs: if writable { "reading and writing" } else { "reading" } }
            }
            error => error,
        })?;
        Ok(Region::new(start, len, writable, Backing::File(fd)))
    }

    /// Takes over memory that somebody else mapped: a GPU's buffer, an `IOSurface`, a huge page.
    ///
    /// The owner is dropped with the last handle to the region, or at once if there is an error.
    ///
    /// # Errors
    /// [`RegionError::Empty`], and [`RegionError::Unaligned`] if it does not start and end at a page.
    ///
    /// # Safety
    /// The range must be mapped, readable and writable until `owner` has been dropped. From now until then no Rust
    /// reference to its bytes may exist but those that the region's blocks give, no other region may contain them, and
    /// nobody else may write those of a block that is not exposed.
    pub unsafe fn adopt(
        start: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Region, RegionError> {
        let page = page_size();
        let addr = start.as_ptr() as usize;
        if len == 0 {
            return Err(RegionError::Empty);
        }
        if !addr.is_multiple_of(page) || !len.is_multiple_of(page) {
            return Err(RegionError::Unaligned { addr, len, page });
        }
        Ok(Region::new(start, len, true, Backing::Adopted { _owner: AssertUnwindSafe(owner) }))
    }

    fn new(start: NonNull<u8>, len: usize, writable: bool, backing: Backing) -> Region {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (claim, private) = (AtomicU8::new(UNCLAIMED), AtomicBool::new(false));
        Region { mapping: Arc::new(Mapping { start, len, writable, id, claim, private, backing }) }
    }

    /// A handle that does not keep the region mapped.
    #[must_use]
    pub fn downgrade(&self) -> WeakRegion {
        WeakRegion { mapping: Arc::downgrade(&self.mapping) }
    }

    /// Its first address in this process.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.mapping.start.as_ptr() as usize
    }

    /// Its length in bytes, as asked for (the mapping itself ends at a page).
    #[must_use]
    pub fn len(&self) -> usize {
        self.mapping.len
    }

    /// Never: a region has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Tells regions of this process apart; never used twice.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.mapping.id
    }

    /// Whether its bytes may be written: always, except for a file mapped [`FileAccess::ReadOnly`].
    #[inline]
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.mapping.writable
    }

    /// The descriptor by which another process can map the region with [`Region::from_fd`]: only memory made by
    /// [`Region::alloc`] has one, until it is [taken back](crate::Pool::take_back).
    ///
    /// Whoever gets it can write every byte of the region at any time. Hand it to those only who keep to what is
    /// exposed, as with the key of a registration.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.mapping.backing {
            Backing::Made(fd) | Backing::Received(fd) => {
                (!self.mapping.private.load(Ordering::Acquire)).then(|| fd.as_fd())
            }
            Backing::File(_) | Backing::Adopted { .. } => None,
        }
    }

    /// The descriptor of the file behind a region made by [`Region::map_file`].
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.mapping.backing {
            Backing::File(fd) => Some(fd.as_fd()),
            Backing::Made(_) | Backing::Received(_) | Backing::Adopted { .. } => None,
        }
    }

    /// The whole region as memory that others may write. Can be called often; all handles mean the same bytes. The
    /// region stays exposed for the rest of its life.
    ///
    /// # Errors
    /// [`RegionError::Claimed`] if a pool cuts blocks out of it.
    pub fn expose(&self) -> Result<Exposed, RegionError> {
        self.claim(EXPOSED)?;
        Ok(Exposed::whole(self.clone()))
    }

    /// The pieces in which a device that limits registrations registers this region.
    #[must_use]
    pub fn registrations(&self, rule: ChunkRule) -> Vec<Range<usize>> {
        rule.pieces(self.addr(), self.len())
    }

    pub(crate) fn claim_for_pool(&self) -> Result<(), RegionError> {
        // Two mappings of the same bytes with a pool each would give two exclusive slices of them.
        match self.mapping.backing {
            Backing::Received(_) => return Err(RegionError::NotExclusive { what: "another process's region" }),
            Backing::File(_) => return Err(RegionError::NotExclusive { what: "a mapped file" }),
            Backing::Made(_) | Backing::Adopted { .. } => {}
        }
        // One pool a region, too: two would hand out the same bytes.
        match self.mapping.claim.compare_exchange(UNCLAIMED, POOLED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(claim) => Err(RegionError::Claimed { claim: claim_name(claim) }),
        }
    }

    fn claim(&self, wanted: u8) -> Result<(), RegionError> {
        match self.mapping.claim.compare_exchange(UNCLAIMED, wanted, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(claim) if claim == wanted => Ok(()),
            Err(claim) => Err(RegionError::Claimed { claim: claim_name(claim) }),
        }
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.mapping.start.as_ptr()
    }
}

/// Bytes of memory and swap that the machine has.
pub(crate) fn total_memory() -> u64 {
    shareable::total_memory()
}

fn claim_name(claim: u8) -> &'static str {
    if claim == POOLED { "in a pool" } else { "exposed" }
}

fn map(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<NonNull<u8>, RegionError> {
    let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    // SAFETY: the system chooses an unused range; nothing of this process changes.
    let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0) };
    let start = start.map_err(|cause| RegionError::system("map", len, cause))?;
    Ok(NonNull::new(start.cast()).expect("the system maps nothing at address zero unless asked to"))
}
