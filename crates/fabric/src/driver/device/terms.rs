//! On what terms links would run, for whoever reckons what they cost.

use fulmen_verbs::DeviceInfo;

use super::error::DeviceError;
use super::offer::Offer;
use super::plan::Plan;
use crate::FabricOptions;
use crate::engine::Config;

/// Of a link between two equal devices. Lengths in bytes.
pub(crate) struct Terms {
    /// The longest frame, with what guards it.
    pub frame: u64,
    /// What guards each frame.
    pub guard: u64,
    /// Each chunk of a move but the last, and how many are posted at a time.
    pub chunk: u64,
    pub chunks: u64,
    pub engine: Config,
}

/// The terms of a link between two devices like this one.
pub(crate) fn terms(options: &FabricOptions, info: &DeviceInfo) -> Result<Terms, DeviceError> {
    let offer = Offer::of(info);
    let plan = Plan::new(options, &offer, &offer, 1, false)?;
    Ok(Terms {
        frame: plan.frame.into(),
        guard: plan.guard() as u64,
        chunk: plan.chunk,
        chunks: plan.chunks.into(),
        engine: plan.config(&options.flow),
    })
}
