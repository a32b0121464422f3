//! What links take of a device, told before any is made.

use fulmen_verbs::DeviceInfo;

use super::error::DeviceError;
use super::offer::Offer;
use super::plan::Plan;
use super::rdma;
use crate::FabricOptions;
use crate::options::Flow;

/// Places for frames start at multiples of so many bytes, so that no two share a cache line.
pub(super) const GRAIN: usize = 64;
/// Requests in a queue pair's queue for one-sided operations.
pub(super) const ONE_SIDED: usize = rdma::REQUESTS * rdma::DEPTH;

/// What the links of one rank take of a device, if its peers have such a device as well.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Needs {
    /// Without these there are no links.
    pub links: Vec<Need>,
    /// With these the device does one-sided operations by itself; empty if it does none. Else they go over the links.
    pub one_sided: Vec<Need>,
    /// Bytes of registered memory, which the system locks: the pool and the frames of all links.
    pub locked_bytes: u64,
}

/// Something of which a device has so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Need {
    /// In the plural, with its unit.
    pub what: &'static str,
    /// How many are needed.
    pub needed: u64,
    /// How many the device has for one process.
    pub limit: u64,
}

/// What links with `peers` others need of a device. Links make sure of the same when a fabric starts.
///
/// # Errors
/// [`DeviceError::Kinds`] for a device that has no queue pairs of a kind that links run over.
pub fn needs(peers: u32, options: &FabricOptions, info: &DeviceInfo) -> Result<Needs, DeviceError> {
    let (limits, flow) = (&info.limits, &options.flow);
    // The plan of a device with long queues says how long they have to be.
    let mut offer = Offer::of(info);
    let plan = Plan::new(options, &offer, &offer, 1, false).or_else(|error| {
        offer.queue_depth = u32::MAX;
        if matches!(error, DeviceError::Depth { .. }) {
            Plan::new(options, &offer, &offer, 1, false)
        } else {
            Err(error)
        }
    })?;
    let each = u64::from(peers);
    let depth = plan.receives(flow).max(plan.sends()) as u64 * limits.depth_of(plan.frame.into());
    let one_sided = !options.verify_data && !rdma::verbs(&info.capabilities).is_empty();
    let frames = (frame_bytes(&plan, flow, if one_sided { rdma::DEPTH } else { 0 }) as u64) * each;
    let pieces = |bytes: u64| limits.registration.pieces(0, bytes as usize).len() as u64;
    let entries = messages(&plan, flow) as u64 * each;
    let of = |what, needed, limit: u32| Need { what, needed, limit: limit.into() };
    let in_queue = if limits.frame.is_some() { "frames in a queue" } else { "requests in a queue" };
    let links = vec![
        of("queue pairs", 2 * each, limits.queue_pairs),
        of("registrations", pieces(options.pool as u64) + pieces(frames).max(1), limits.memory_regions),
        of("entries in a completion queue", entries, limits.completion_entries),
        of(in_queue, depth, limits.queue_depth),
        of("completion queues", 1, limits.completion_queues),
        of("protection domains", 1, limits.protection_domains),
    ];
    let mut besides = Vec::new();
    if one_sided {
        besides = vec![
            of("queue pairs", 4 * each, limits.queue_pairs),
            of("entries in a completion queue", entries + ONE_SIDED as u64 * each, limits.completion_entries),
            of("requests in a queue", ONE_SIDED as u64, limits.queue_depth),
        ];
    }
    Ok(Needs { links, one_sided: besides, locked_bytes: options.pool as u64 + frames })
}

/// Completions of a link's messages that can wait.
pub(super) fn messages(plan: &Plan, flow: &Flow) -> usize {
    plan.receives(flow) + plan.sends() + 2 * plan.chunks as usize
}

/// Bytes of the memory for a link's frames, and for so many words of atomics.
pub(super) fn frame_bytes(plan: &Plan, flow: &Flow, cells: usize) -> usize {
    (plan.receives(flow) + plan.sends()) * (plan.frame as usize).next_multiple_of(GRAIN) + cells * GRAIN
}

#[cfg(test)]
mod tests {
    use fulmen_reach::Node;
    use fulmen_soft::{Profile, SoftDevice};

    use super::*;

    fn needs_of(profile: Profile, peers: u32) -> Needs {
        let device = SoftDevice::open(&Node::open().unwrap(), profile).unwrap();
        needs(peers, &FabricOptions::default(), device.info()).unwrap()
    }

    fn need(all: &[Need], what: &str) -> Need {
        *all.iter().find(|need| need.what.contains(what)).unwrap()
    }

    #[test]
    fn the_narrow_device_has_room_for_five_peers() {
        let pairs = |peers| need(&needs_of(Profile::Thunderbolt, peers).links, "queue pairs");
        assert_eq!((pairs(5).needed, pairs(5).limit), (10, 10));
        assert!(pairs(6).needed > pairs(6).limit);
        let all = needs_of(Profile::Thunderbolt, 5);
        assert!(all.links.iter().all(|need| need.needed <= need.limit), "{all:?}");
        assert!(all.one_sided.is_empty());
        assert!(need(&all.links, "frames").needed > 64);
    }

    #[test]
    fn more_peers_need_more_memory_and_entries() {
        let (one, two) = (needs_of(Profile::Infiniband, 1), needs_of(Profile::Infiniband, 2));
        assert!(one.locked_bytes > 1 << 30 && two.locked_bytes > one.locked_bytes);
        for what in ["queue pairs", "entries"] {
            assert_eq!(2 * need(&one.links, what).needed, need(&two.links, what).needed);
            assert!(need(&one.one_sided, what).needed > need(&one.links, what).needed);
        }
    }

    #[test]
    fn short_queues_are_told_and_not_an_error() {
        let device = SoftDevice::open(&Node::open().unwrap(), Profile::Infiniband).unwrap();
        let mut info = device.info().clone();
        info.limits.queue_depth = 16;
        let needs = needs(1, &FabricOptions::default(), &info).unwrap();
        let depth = need(&needs.links, "requests in a queue");
        assert_eq!(depth.limit, 16);
        assert!(depth.needed > 16);
        (info.capabilities.rc, info.capabilities.uc) = (false, false);
        assert!(matches!(super::needs(1, &FabricOptions::default(), &info), Err(DeviceError::Kinds { .. })));
    }
}
