//! Memory for messages: of the owner, registered with its device and with the software device that joins it to programs.

use std::ops::RangeInclusive;
use std::sync::Arc;

use fulmen_memory::{Exposed, Region};
use fulmen_verbs::{Access, MemoryRegion, Piece, ProtectionDomain, VerbsError};

/// Bytes that are registered at a time: as many as a size has, so that a device with few registrations has enough of them for all
/// that programs may have on its way.
const CHUNK: RangeInclusive<usize> = 4 << 20..=32 << 20;
/// Where a region lies is luck, and a device may not register across some boundary: more tries than it can take.
const TRIES: usize = 8;

/// Memory for one message and what stands before it.
pub(super) struct Slot {
    memory: Exposed,
    /// The keys for it on the device, and on the software device.
    keys: [u32; 2],
    class: usize,
}

impl Slot {
    pub(super) fn memory(&self) -> &Exposed {
        &self.memory
    }

    /// The first bytes of it, for the device.
    pub(super) fn outside(&self, len: usize) -> Piece {
        Piece { memory: self.memory.slice(0..len), lkey: self.keys[0] }
    }

    /// Bytes of it, for a program.
    pub(super) fn inside(&self, from: usize, len: usize) -> Piece {
        Piece { memory: self.memory.slice(from..from + len), lkey: self.keys[1] }
    }
}

/// Slots of a few sizes, as many as were ever needed at a time.
pub(super) struct Slots {
    domains: [Arc<dyn ProtectionDomain>; 2],
    rule: fulmen_memory::ChunkRule,
    sizes: Vec<usize>,
    free: Vec<Vec<Slot>>,
    /// Bytes of each size, free or not.
    bytes: Vec<usize>,
    registered: Vec<Arc<dyn MemoryRegion>>,
}

impl Slots {
    /// Of these sizes, in bytes, for both domains. `rule` is the first one's.
    pub(super) fn new(
        domains: [Arc<dyn ProtectionDomain>; 2],
        rule: fulmen_memory::ChunkRule,
        sizes: Vec<usize>,
    ) -> Slots {
        let free = sizes.iter().map(|_| Vec::new()).collect();
        let bytes = vec![0; sizes.len()];
        Slots { domains, rule, sizes, free, bytes, registered: Vec::new() }
    }

    /// The class of the longest.
    pub(super) fn longest(&self) -> usize {
        self.sizes.len() - 1
    }

    /// One of this class of sizes.
    pub(super) fn take(&mut self, class: usize) -> Result<Slot, VerbsError> {
        match self.free[class].pop() {
            Some(slot) => Ok(slot),
            None => self.grow(class),
        }
    }

    pub(super) fn give(&mut self, slot: Slot) {
        self.free[slot.class].push(slot);
    }

    fn grow(&mut self, class: usize) -> Result<Slot, VerbsError> {
        let size = self.sizes[class];
        let chunk = self.bytes[class].clamp(*CHUNK.start(), *CHUNK.end()).max(size);
        let failed = |problem: String| VerbsError::Invalid { what: "memory for messages", problem };
        let mut unfit = Vec::new();
        let region = loop {
            let region = Region::alloc(chunk).map_err(|cause| failed(cause.to_string()))?;
            if region.registrations(self.rule).len() == 1 {
                break region;
            }
            if unfit.len() == TRIES {
                return Err(failed(format!("the device does not register {chunk} bytes in one piece")));
            }
            // Kept mapped, so that the next one lies elsewhere.
            unfit.push(region);
        };
        let mut keys = [0; 2];
        for (domain, key) in self.domains.iter().zip(&mut keys) {
            let registered = domain.register(&region, 0..region.len(), Access::LOCAL_WRITE)?;
            *key = registered.lkey();
            self.registered.push(registered);
        }
        self.bytes[class] += region.len();
        let memory = region.expose().map_err(|cause| failed(cause.to_string()))?;
        let slot = |at: usize| Slot { memory: memory.slice(at * size..(at + 1) * size), keys, class };
        self.free[class].extend((1..memory.len() / size).map(slot));
        Ok(slot(0))
    }
}
