//! Links between ranks that no cable joins: other ranks pass their frames on.
//!
//! Both ends of such a link seal its frames ([`Reliable`](crate::engine::Reliable)): they are numbered, acknowledged and
//! sent again from end to end, whoever passes them on. The [`RelayWire`] hands them to the [`Switch`] of its rank, which
//! all links share. The link to the next rank on the cheapest path [carries](crate::engine::Carried) them; there, the
//! switch takes them out and hands them to the link after that, or to the end that they are for. Whoever moves links on
//! does that too: the progress thread, while the program computes. Large messages and one-sided operations go in frames.
//!
//! # Why nothing locks up
//!
//! A *flow* is what goes from one rank to another one. Its source has at most [`WINDOW`] frames under way that are not
//! acknowledged, and so every rank on the path keeps [`ROOM`] places for each flow, whatever else it has to pass on. Hence
//! a rank can always take what its neighbour carries to it: it does so at once, gives the hop's credit back, and never
//! waits for room further on. No hop waits for another one, so there is no circle of hops that wait for each other,
//! whatever the graph, and a slow reader holds up its own flows alone. The memory is bounded by the number of flows, the
//! room of each and the length of a frame. What goes beyond a flow's room, since its source sent again what is only late,
//! is dropped: it comes again.
//!
//! # Ranks that are lost
//!
//! The coordinator tells all ranks of a loss. Each finds the cheapest paths without the lost rank, frames that wait for it
//! are sent on over others, and what it had is sent again by its source. Paths may differ between ranks for a moment:
//! each frame says how often it may still be passed on. Where no path is left, the link is lost, and its cause names the
//! rank that was on it.
//!
//! # Leaving
//!
//! A rank that has nothing more to say ends its links over others first, tells its neighbours so, and passes on what comes
//! until of each two ranks that talk over it one has finished, or is lost, or [`LINGER`] is over.

mod mesh;
mod switch;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use crate::FabricOptions;
use crate::engine::{Config, Exports, Link, Rendezvous};
use crate::lanes::Lane;

pub(crate) use mesh::Mesh;
pub use switch::Relayed;
pub(crate) use switch::Switch;
pub(crate) use wire::RelayWire;

/// Frames of a flow that may be unacknowledged: a power of two.
pub(crate) const WINDOW: u32 = 32;

/// Frames of a flow for which each rank on its path has room: with acknowledgements that go alone.
pub(crate) const ROOM: u32 = WINDOW + 8;

/// How long a rank that leaves passes on what others say to each other.
pub(crate) const LINGER: Duration = Duration::from_secs(10);

/// Adds a lane to each rank that no cable joins with this one, and has the others carry their frames.
pub(crate) fn join(
    (rank, generation): (u32, u64),
    mesh: &Mesh,
    options: &FabricOptions,
    exports: &Exports,
    lanes: &mut [Option<Lane>],
) -> Option<Arc<Switch>> {
    if mesh.graph.is_complete() {
        return None;
    }
    let switch = Arc::new(Switch::new(rank, mesh));
    let config = Config {
        frame: mesh.frame(),
        long: None,
        credits: options.flow.credits,
        unexpected: options.flow.unexpected,
        // Nothing is offered: see the wire's sources and targets.
        rendezvous: Rendezvous::Matched,
        verify: options.verify_data,
        #[cfg(feature = "planted-bugs")]
        planted: None,
    };
    for (peer, lane) in (0..).zip(lanes).filter(|(peer, _)| *peer != rank) {
        match lane {
            Some(lane) => lane.link.carry_for_others(),
            None => {
                let wire = RelayWire::new(peer, switch.clone(), generation, options.silence);
                *lane = Some(Lane::new(Link::with_exports(config, exports.clone()), Box::new(wire)));
            }
        }
    }
    Some(switch)
}
