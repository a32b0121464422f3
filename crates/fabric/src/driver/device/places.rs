//! Memory for the frames of links.

use std::ops::Range;
use std::sync::Arc;

use fulmen_memory::{ChunkRule, Region};
use fulmen_verbs::{DeviceInfo, Piece, ProtectionDomain};

use super::error::{DeviceError, call};
use super::memory::Registered;
use super::needs::{GRAIN, frame_bytes};
use super::plan::Plan;
use crate::options::Flow;

/// Memory for the frames of all links over a device: one region, cut into places that each lie in one registration.
pub(super) struct Places {
    region: Region,
    pub registered: Arc<Registered>,
    /// The rest of the pieces that the device registers.
    pieces: Vec<Range<usize>>,
}

impl Places {
    pub(super) fn new(
        domain: &dyn ProtectionDomain,
        info: &DeviceInfo,
        plans: &[&Plan],
        flow: &Flow,
        cells: usize,
    ) -> Result<Places, DeviceError> {
        let rule: ChunkRule = info.limits.registration;
        let each = |plan: &Plan| (plan.frame as usize).next_multiple_of(GRAIN);
        let len: usize = plans.iter().map(|plan| frame_bytes(plan, flow, cells)).sum();
        let longest = plans.iter().copied().map(each).max().unwrap_or(0);
        // The end of each piece may be too short for one more place.
        let spare = (rule.pieces(0, len).len() + 1) * longest;
        let region = Region::alloc((len + spare).max(1)).map_err(|cause| DeviceError::Memory(cause.to_string()))?;
        let registered =
            Registered::new(domain, rule, &region).map_err(call(&info.name, "register the memory for frames"))?;
        let mut pieces = region.registrations(rule);
        pieces.reverse();
        Ok(Places { region, registered: Arc::new(registered), pieces })
    }

    pub(super) fn cut(&mut self, len: usize, count: usize) -> Result<Vec<Piece>, DeviceError> {
        let memory = self.region.expose().map_err(|cause| DeviceError::Memory(cause.to_string()))?;
        let mut places = Vec::with_capacity(count);
        while places.len() < count {
            let full = || DeviceError::Memory("the device registers pieces shorter than frames".into());
            let piece = self.pieces.last_mut().ok_or_else(full)?;
            let start = piece.start.next_multiple_of(GRAIN);
            if start + len > piece.end {
                self.pieces.pop();
                continue;
            }
            piece.start = start + len;
            let memory = memory.slice(start..start + len);
            let lkey = self.registered.key(&memory).ok_or_else(full)?;
            places.push(Piece { memory, lkey });
        }
        Ok(places)
    }
}
