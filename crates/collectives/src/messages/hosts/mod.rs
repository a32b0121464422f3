//! Calls among the ranks of several hosts, of which those of one map one another's memory.
//!
//! Such ranks have windows among themselves, and announce every call there, whichever way it goes. A call that goes by
//! [`Algorithm::Hosts`](crate::plan::Algorithm::Hosts) uses them for its data, too: what is [short](self::short), one rank of each host tells
//! one of each other host; of what is [long](self::long), ranks of each host combine a share each and pass it on to the next host, and the
//! results come back. Contributions are combined in the order of the ranks.
//!
//! What goes from host to host is not compared by all: ranks of a host compare their calls in the windows, and those that talk with another host do
//! by messages. Ranks beside one another on different hosts are always among these.

mod long;
mod short;

use fulmen_fabric::FabricError;

use super::{Messages, rounds::missing};
use crate::CollectiveError;
use crate::plan::Placement;
use crate::request::Request;
use crate::windows::{Ongoing, Progress, Windows};

pub(crate) use long::column_share;

/// What a rank has beside messages.
pub(crate) struct Nearby {
    /// Of the ranks of this host, in their order.
    windows: Windows,
    placement: Placement,
    host: usize,
}

impl Nearby {
    /// Over windows of the ranks of the host of this rank.
    pub(crate) fn new(windows: Windows, placement: Placement, rank: usize) -> Nearby {
        let host = placement.host(rank);
        Nearby { windows, placement, host }
    }

    /// What became of something in the windows, in which ranks have other numbers.
    pub(super) fn told<T>(&self, outcome: Result<T, CollectiveError>) -> Result<T, CollectiveError> {
        outcome.map_err(|error| match error {
            CollectiveError::Mismatch { operation, sequence, mine, theirs, rank } => {
                let rank = rank + self.placement.ranks(self.host).start as u32;
                CollectiveError::Mismatch { operation, sequence, mine, theirs, rank }
            }
            other => other,
        })
    }

    /// Marks this rank's part of the windows.
    pub(super) fn poison(&self, sequence: u64, why: &str) {
        self.windows.poison(sequence, why);
    }
}

impl Messages {
    /// Begins a call that goes by messages alone.
    pub(super) fn note(
        &self,
        request: &Request<'_>,
        ongoing: &mut Ongoing<'_>,
        progress: &mut Progress,
    ) -> Result<(), CollectiveError> {
        match &self.nearby {
            Some(nearby) => nearby.told(nearby.windows.note(&request.call, ongoing, progress)),
            None => Ok(()),
        }
    }

    /// Runs a call by way of the hosts.
    pub(super) fn by_hosts(
        &self,
        nearby: &Nearby,
        request: &mut Request<'_>,
        ongoing: &mut Ongoing<'_>,
        progress: &mut Progress,
    ) -> Result<(), CollectiveError> {
        let is_told = self.wanted(request).is_told(&nearby.placement);
        match is_told {
            true => self.tell_hosts(nearby, request, ongoing, progress),
            false => self.pass_through_hosts(nearby, request, ongoing, progress),
        }
    }

    /// Names all ranks of some hosts where one of them was waited for: who talks for its host may be waiting itself.
    fn unheard(&self, nearby: &Nearby, error: CollectiveError, hosts: impl Fn(usize) -> bool) -> CollectiveError {
        match &error {
            CollectiveError::Fabric(FabricError::TimedOut { .. }) => {
                let of = (0..nearby.placement.hosts()).filter(|host| hosts(*host));
                missing(error, of.flat_map(|host| nearby.placement.ranks(host)).map(|rank| self.team.in_fabric(rank)))
            }
            _ => error,
        }
    }
}
