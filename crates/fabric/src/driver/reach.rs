//! Links over memory that ranks share.
//!
//! Each rank has one *control region*, which all others map. It begins with the rank's doorbell.

use std::time::Duration;

use fulmen_memory::{Exposed, Region, RegionError, page_size};
use fulmen_reach::Doorbell;

use super::Parker;

/// Where the doorbell is in a control region.
const DOORBELL: usize = 0;

/// This rank's control region, zeroed.
pub(crate) fn control_region() -> Result<Region, RegionError> {
    Region::alloc(control_len())
}

/// Bytes of a control region.
pub(crate) fn control_len() -> usize {
    page_size()
}

/// The doorbell of a control region.
pub(crate) fn doorbell(control: &Exposed) -> Doorbell {
    Doorbell::at(control, DOORBELL)
}

impl Parker for Doorbell {
    fn park(&self, timeout: Duration, awake: &mut dyn FnMut() -> bool) {
        let listener = self.listen();
        if !awake() {
            listener.wait(timeout);
        }
    }

    fn wake(&self) {
        self.notify();
    }
}
