//! Memory that a device can reach.

use std::sync::Arc;

use fulmen_memory::{ChunkRule, Exposed, Region};
use fulmen_verbs::{Access, MemoryRegion, ProtectionDomain, VerbsError};

/// A region, registered whole: in pieces that the device can register.
pub(crate) struct Registered {
    region: u64,
    /// In the order of their addresses.
    pieces: Vec<Arc<dyn MemoryRegion>>,
}

impl Registered {
    /// Cut as `rule` says, which is the device's or a stricter one.
    pub(super) fn new(
        domain: &dyn ProtectionDomain,
        rule: ChunkRule,
        region: &Region,
    ) -> Result<Registered, VerbsError> {
        let pieces = region.registrations(rule);
        // SENDs and RECVs need no more rights.
        let register = |piece| domain.register(region, piece, Access::LOCAL_WRITE);
        Ok(Registered { region: region.id(), pieces: pieces.into_iter().map(register).collect::<Result<_, _>>()? })
    }

    /// The key for these bytes, if all of them lie in one piece.
    pub(crate) fn key(&self, memory: &Exposed) -> Option<u32> {
        if memory.region().id() != self.region {
            return None;
        }
        let (start, end) = (memory.offset(), memory.offset() + memory.len());
        let piece = self.pieces.iter().find(|piece| piece.range().start <= start && end <= piece.range().end)?;
        Some(piece.lkey())
    }
}
