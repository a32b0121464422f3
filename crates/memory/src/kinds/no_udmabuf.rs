use std::os::fd::OwnedFd;

use super::KindError;
use crate::Region;

/// Makes a dma-buf of a region: on Linux only.
///
/// # Errors
/// [`KindError::OtherSystem`], always.
pub fn udmabuf(_region: &Region) -> Result<OwnedFd, KindError> {
    Err(KindError::OtherSystem { what: "udmabuf", system: "Linux" })
}
