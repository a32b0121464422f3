//! The driver of Apple's hardware keeps 32 bits of an address. Of a registration that crosses a multiple of 4 GiB, what lies
//! behind it is read and written exactly 4 GiB too low.
//!
//! Here that happens to registered memory alone: what the wrong address means is looked for among the registrations of the
//! same domain. Where there is none, a SEND carries zeros, and a RECV writes to nobody.

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use fulmen_memory::{Exposed, Region};
use fulmen_verbs::{Access, MemoryRegion, Piece, ProtectionDomain, VerbsError};
use smallvec::SmallVec;

use crate::thunderbolt::MAX_MESSAGE;

/// What takes the place of memory that nobody registered: as much as one message can have.
pub(crate) struct Void {
    registration: Arc<dyn MemoryRegion>,
    memory: Exposed,
}

impl Void {
    /// Registers it in a domain.
    pub(crate) fn new(domain: &dyn ProtectionDomain) -> Result<Void, VerbsError> {
        let region = nowhere();
        let registration = domain.register(region, 0..region.len(), Access::LOCAL_WRITE)?;
        let memory = region.expose().map_err(|error| VerbsError::System {
            device: "the drop-in".to_owned(),
            call: "reg_mr",
            cause: error.to_string(),
        })?;
        Ok(Void { registration, memory })
    }

    /// So many bytes of it.
    pub(crate) fn piece(&self, len: usize) -> Piece {
        // What earlier messages have left here is nobody's, and the next one is not to read it.
        let memory = self.memory.slice(0..len);
        memory.fill(0..len, 0);
        Piece { memory, lkey: self.registration.lkey() }
    }
}

/// Pages of this library that take what nobody registered. Only those cost memory that were written.
fn nowhere() -> &'static Region {
    static NOWHERE: OnceLock<Region> = OnceLock::new();
    NOWHERE.get_or_init(|| {
        let page = fulmen_memory::page_size();
        let len = (MAX_MESSAGE as usize).next_multiple_of(page);
        let flags = rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::NORESERVE;
        let both = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        // SAFETY: the system chooses an unused range of addresses.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, both, flags) };
        let start = NonNull::new(start.expect("there are 16 MiB of addresses").cast()).expect("not at address zero");
        // SAFETY: the range is this function's own and stays for ever; it is used through `Exposed` alone.
        unsafe { Region::adopt(start, len, Box::new(())) }.expect("it is whole pages")
    })
}

/// The runs of bytes that a request reaches which names `len` bytes at `addr` of a registration that starts at `start`:
/// the address that the hardware uses, and how many bytes. A message crosses one boundary at most.
pub(crate) fn runs(start: u64, addr: u64, len: u64) -> SmallVec<[(u64, usize); 2]> {
    const GIB4: u64 = 1 << 32;
    let meant = |addr: u64| start / GIB4 * GIB4 + addr % GIB4;
    let before = (GIB4 - addr % GIB4).min(len);
    let mut runs = SmallVec::new();
    runs.push((meant(addr), before as usize));
    if before < len {
        runs.push((meant(addr + before), (len - before) as usize));
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_behind_the_boundary_is_4_gib_low() {
        const GIB4: u64 = 1 << 32;
        let start = 5 * GIB4 - 8192;
        for (addr, len, expected) in [
            (start, 4096, vec![(start, 4096)]),
            (start, 8192, vec![(start, 8192)]),
            (start + 4096, 8192, vec![(start + 4096, 4096), (4 * GIB4, 4096)]),
            (5 * GIB4, 100, vec![(4 * GIB4, 100)]),
            (5 * GIB4 + 4096, 100, vec![(4 * GIB4 + 4096, 100)]),
            (6 * GIB4 - 1, 2, vec![(5 * GIB4 - 1, 1), (4 * GIB4, 1)]),
        ] {
            assert_eq!(runs(start, addr, len).as_slice(), expected, "{addr:#x}");
        }
    }
}
