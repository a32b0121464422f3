use std::os::fd::BorrowedFd;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::MapFlags;

use super::owners::Mapped;
use super::{KindError, MemoryKind};
use crate::Region;

pub(super) const KINDS: &[MemoryKind] = &[
    MemoryKind::Malloc,
    MemoryKind::PosixMemalign,
    MemoryKind::AnonymousMmap,
    MemoryKind::Memfd,
    MemoryKind::File,
    MemoryKind::HugePages,
    MemoryKind::ShmOpen,
];

pub(super) fn allocate(kind: MemoryKind, len: usize) -> Result<Region, KindError> {
    match kind {
        MemoryKind::Memfd => Ok(Region::alloc(len)?),
        MemoryKind::HugePages => huge_pages(len),
        kind => Err(KindError::OtherSystem { what: kind.name(), system: "macOS" }),
    }
}

/// Gives a new file its length together with its storage. A page for which there is no storage would be a deadly signal
/// when it is touched.
pub(super) fn set_aside(fd: BorrowedFd<'_>, len: usize) -> Result<(), Errno> {
    loop {
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, len as u64) {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

fn huge_pages(len: usize) -> Result<Region, KindError> {
    let kind = MemoryKind::HugePages;
    let now = HugePages::read().ok_or(KindError::HugePagesUnknown)?;
    let page = usize::try_from(now.page).map_err(|_| KindError::HugePagesUnknown)?;
    let whole = len.checked_next_multiple_of(page);
    let whole = whole.ok_or_else(|| KindError::system("map", kind, len, Errno::NOMEM))?;
    // The mapping takes its pages out of the reserve at once, so that touching one never fails for want of it.
    match Mapped::anonymous(whole, MapFlags::PRIVATE | MapFlags::HUGETLB) {
        Ok(mapped) => mapped.into_region(),
        Err(Errno::NOMEM) => Err(now.missing(whole as u64 / now.page, len)),
        Err(cause) => Err(KindError::system("map", kind, len, cause)),
    }
}

/// What the system says of its huge pages of the default size.
#[derive(Debug, PartialEq, Eq)]
struct HugePages {
    /// Bytes.
    page: u64,
    total: u64,
    /// Neither used nor promised.
    free: u64,
}

impl HugePages {
    fn read() -> Option<HugePages> {
        Self::parse(&std::fs::read_to_string("/proc/meminfo").ok()?)
    }

    fn parse(meminfo: &str) -> Option<HugePages> {
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let page = field("Hugepagesize")?.checked_mul(1024).filter(|page| *page > 0)?;
        let free = field("HugePages_Free").unwrap_or(0).saturating_sub(field("HugePages_Rsvd").unwrap_or(0));
        Some(HugePages { page, total: field("HugePages_Total").unwrap_or(0), free })
    }

    fn missing(&self, needed: u64, len: usize) -> KindError {
        if needed <= self.free {
            return KindError::system("map", MemoryKind::HugePages, len, Errno::NOMEM);
        }
        let reserve = self.total + (needed - self.free);
        KindError::NoHugePages { needed, free: self.free, page: self.page, reserve }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_of_huge_pages_is_read() {
        let text = "MemTotal: 1 kB\nHugePages_Total:      10\nHugePages_Free:        6\nHugePages_Rsvd:        2\nHugepagesize:       2048 kB\n";
        let read = HugePages::parse(text).unwrap();
        assert_eq!(read, HugePages { page: 2 << 20, total: 10, free: 4 });
        let error = read.missing(7, 7 << 21).to_string();
        assert!(error.contains("7 huge pages of 2097152 bytes are needed and 4 are free"), "{error}");
        assert!(error.contains("vm.nr_hugepages=13"), "{error}");
        assert!(read.missing(4, 4 << 21).to_string().contains("no memory"), "pages are there, so it is something else");
        assert_eq!(HugePages::parse("MemTotal: 1 kB\n"), None);
        assert_eq!(HugePages::parse("Hugepagesize: 0 kB\n"), None);
    }
}
