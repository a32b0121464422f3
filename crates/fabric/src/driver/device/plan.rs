//! What both ends of a link make of what their devices can do.

use fulmen_verbs::{Mtu, QueuePairKind};

use super::DeviceError;
use super::offer::Offer;
use crate::FabricOptions;
use crate::driver::check::TRAILER;
use crate::engine::{Config, Reliable, Rendezvous};
use crate::options::Flow;

/// Frames that can be on their way out of a link's memory: a power of two.
pub(super) const SENDS: usize = 64;
/// The same for acknowledgements that go alone.
pub(super) const ANSWERS: usize = 8;
/// The longest chunk of a move, in bytes: where a lost one comes again, or goes over one of several rails.
const LONGEST_CHUNK: u64 = 512 << 10;
/// The same where the device keeps all of them: each costs a few frames of the device. By TCP, 4 MiB take 0.9 of the time.
const LONGEST_KEPT_CHUNK: u64 = 1 << 20;
/// The most chunks of a link that are posted at a time, in each direction.
const MOST_CHUNKS: u32 = 8;

/// What the two ends of a link agree on. Both find the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub kind: QueuePairKind,
    /// Whether the link numbers, acknowledges and repeats its frames.
    pub sealed: bool,
    /// Whether it is for one of several rails.
    pub several: bool,
    pub mtu: Mtu,
    /// READs and atomics in flight, in each direction.
    pub reads: u8,
    /// Bytes of the longest frame, with what guards it.
    pub frame: u32,
    /// Bytes of each chunk of a move but the last.
    pub chunk: u64,
    /// Chunks that are posted at a time.
    pub chunks: u32,
    /// Whether chunks carry their numbers.
    pub immediate: bool,
    /// Whether frames and messages carry checksums.
    pub verify: bool,
}

impl Plan {
    /// The plan of the link with rank `peer`.
    ///
    /// One of several rails' frames are sealed whatever keeps them, since they may go again over another one.
    pub(super) fn new(
        options: &FabricOptions,
        ours: &Offer,
        theirs: &Offer,
        peer: u32,
        several: bool,
    ) -> Result<Plan, DeviceError> {
        let flow = &options.flow;
        let kind = if ours.reliable && theirs.reliable {
            QueuePairKind::Rc
        } else if ours.unreliable && theirs.unreliable {
            QueuePairKind::Uc
        } else {
            return Err(DeviceError::Kinds { ours: ours.device.clone(), peer, theirs: theirs.device.clone() });
        };
        theirs.check(ours, peer)?;
        let mtu = mtu(ours.mtu.min(theirs.mtu));
        let reads = ours.reads.min(theirs.reads);
        let message = ours.message_bytes.min(theirs.message_bytes);
        // Where a SEND and its RECV cover as many frames of the device, each of the link's frames lies in one.
        let one = [ours.frame, theirs.frame].into_iter().flatten().min().unwrap_or(u32::MAX);
        let frame = u64::from(flow.frame.min(one)).min(message) as u32;
        let (immediate, verify) = (ours.immediate && theirs.immediate, options.verify_data);
        let mut plan = Plan {
            kind,
            sealed: several || kind == QueuePairKind::Uc,
            several,
            mtu,
            reads,
            frame,
            chunk: 0,
            chunks: 0,
            immediate,
            verify,
        };
        let buffers = plan.receives(flow).max(plan.sends()) as u64;
        for (end, name) in [(ours, ours.device.clone()), (theirs, format!("rank {peer}'s {}", theirs.device))] {
            let (needed, limit) = (buffers * end.depth_of(frame.into()), u64::from(end.queue_depth));
            if needed > limit {
                return Err(DeviceError::Depth { device: name, needed, limit });
            }
        }
        // Whole frames of the device, so that all chunks but the last take the same of a queue.
        let longest = if plan.sealed { LONGEST_CHUNK } else { LONGEST_KEPT_CHUNK };
        plan.chunk = longest.min(message);
        plan.chunks = MOST_CHUNKS;
        let fits =
            |plan: &Plan, end: &Offer| end.depth_of(plan.chunk) * u64::from(plan.chunks) <= u64::from(end.queue_depth);
        while !(fits(&plan, ours) && fits(&plan, theirs)) {
            if plan.chunk > u64::from(frame) {
                plan.chunk = (plan.chunk / 2).max(frame.into());
            } else {
                // Above, a queue had room for at least as many.
                plan.chunks /= 2;
            }
        }
        Ok(plan)
    }

    /// Whether the device keeps frames, so that the link need not.
    pub(super) fn is_reliable(&self) -> bool {
        self.kind == QueuePairKind::Rc
    }

    /// Bytes that guard each frame.
    pub(super) fn guard(&self) -> usize {
        match (self.sealed, self.verify) {
            (true, _) => Reliable::OVERHEAD,
            (false, true) => TRAILER,
            (false, false) => 0,
        }
    }

    /// Places for frames that go.
    pub(super) fn sends(&self) -> usize {
        SENDS + if self.sealed { ANSWERS } else { 0 }
    }

    /// Places for frames that come: for acknowledgements that come alone, too.
    pub(super) fn receives(&self, flow: &Flow) -> usize {
        self.config(flow).receive_buffers() + if self.sealed { ANSWERS } else { 0 }
    }

    /// How the engine runs such a link.
    pub(super) fn config(&self, flow: &Flow) -> Config {
        Config {
            frame: self.frame as usize - self.guard(),
            long: None,
            credits: flow.credits,
            unexpected: flow.unexpected,
            rendezvous: if self.several { Rendezvous::Striped } else { Rendezvous::Matched },
            verify: self.verify,
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }
}

/// The largest transmission unit of at most so many bytes.
fn mtu(bytes: u32) -> Mtu {
    let all = [Mtu::B4096, Mtu::B2048, Mtu::B1024, Mtu::B512];
    all.into_iter().find(|mtu| mtu.bytes() <= bytes).unwrap_or(Mtu::B256)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::offer::tests::offer;
    use super::*;

    #[test]
    fn a_frame_of_the_link_is_one_of_the_device() {
        let apple = offer(false, Some(4096));
        let plan = Plan::new(&FabricOptions::default(), &apple, &apple, 1, false).unwrap();
        assert_eq!((plan.kind, plan.frame, plan.immediate), (QueuePairKind::Uc, 4096, false));
        assert!(plan.chunk.is_multiple_of(4096));
        let mut slow = apple.clone();
        slow.mtu = 1024;
        assert_eq!(Plan::new(&FabricOptions::default(), &apple, &slow, 1, false).unwrap().mtu, Mtu::B1024);
    }

    #[test]
    fn devices_without_a_common_kind_do_not_connect() {
        let error =
            Plan::new(&FabricOptions::default(), &offer(true, None), &offer(false, Some(4096)), 3, false).unwrap_err();
        assert!(error.to_string().contains("rank 3"), "{error}");
    }

    #[test]
    fn short_queues_are_refused_with_the_number_that_is_needed() {
        let mut short = offer(true, None);
        short.queue_depth = 20;
        let error = Plan::new(&FabricOptions::default(), &offer(true, None), &short, 3, false).unwrap_err();
        assert!(matches!(error, DeviceError::Depth { limit: 20, .. }), "{error}");
        assert!(error.to_string().contains("rank 3's a"), "{error}");
    }

    proptest! {
        #[test]
        fn both_ends_find_the_same_and_it_fits(
            frames in prop::array::uniform2(prop::option::of(prop::sample::select(vec![512u32, 4096, 16384]))),
            depths in prop::array::uniform2(64u32..20_000),
            messages in prop::array::uniform2(4096u64..1 << 31),
            frame in 256u32..=65_536,
            credits in 16u16..=1024,
        ) {
            let [one, two] = [0, 1].map(|end| {
                let mut offer = offer(true, frames[end]);
                (offer.queue_depth, offer.message_bytes) = (depths[end], messages[end]);
                offer
            });
            let flow = Flow { frame, credits, ..Flow::default() };
            let flow = FabricOptions { flow, ..FabricOptions::default() };
            let (here, there) = (Plan::new(&flow, &one, &two, 1, false), Plan::new(&flow, &two, &one, 0, false));
            prop_assert_eq!(here.is_ok(), there.is_ok());
            if let (Ok(here), Ok(there)) = (here, there) {
                prop_assert_eq!(here, there);
                prop_assert!(here.chunks > 0 && here.chunk > 0);
                for end in [&one, &two] {
                    prop_assert!(here.chunk <= end.message_bytes && u64::from(here.frame) <= end.message_bytes);
                    prop_assert!(end.depth_of(here.chunk) * u64::from(here.chunks) <= end.queue_depth.into());
                    prop_assert_eq!(end.depth_of(here.frame.into()), 1);
                }
            }
        }
    }
}
