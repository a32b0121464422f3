//! On which hosts the ranks are: what they can use to talk depends on it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Providers;
use crate::bootstrap::{Session, SessionError};

/// The hosts of a generation's ranks, by rank. `FULMEN_HOST_ID` can say which host a process is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    own: u32,
    /// None where a rank does not know.
    ids: Vec<Option<[u8; 16]>>,
    /// Of the host that has the fewest.
    processors: u32,
    means: Option<Means>,
}

/// How ranks of an older generation talk. Those that join them later must do it alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Means {
    /// They map one another's memory.
    Windows,
    /// Over devices of their machines.
    Devices,
    /// Over devices in software, by TCP between hosts.
    Tcp,
}

/// What a rank says of itself.
#[derive(Serialize, Deserialize)]
struct Said {
    id: Option<[u8; 16]>,
    processors: u32,
    /// None for a process that has just joined.
    means: Option<Means>,
}

impl Means {
    pub(crate) fn of(providers: &Providers) -> Means {
        match (&providers.tcp, providers.devices.is_empty()) {
            (Some(_), _) => Means::Tcp,
            (None, false) => Means::Devices,
            (None, true) => Means::Windows,
        }
    }
}

impl Hosts {
    /// All ranks tell one another where they are, and how they talk if they do. Each generation begins with this, whoever
    /// starts it.
    pub(crate) fn exchange(session: &Session, means: Option<Means>, timeout: Duration) -> Result<Hosts, SessionError> {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let own = Said { id: fulmen_reach::this_host().ok(), processors, means };
        let own = postcard::to_stdvec(&own).expect("a vector takes what is written to it");
        let blobs = session.all_gather(&own, timeout)?;
        let said: Vec<Said> = blobs
            .iter()
            .map(|blob| postcard::from_bytes(blob).unwrap_or(Said { id: None, processors: 1, means: None }))
            .collect();
        Ok(Hosts {
            own: session.rank(),
            ids: said.iter().map(|said| said.id).collect(),
            processors: said.iter().map(|said| said.processors).min().unwrap_or(1).max(1),
            means: said.iter().find_map(|said| said.means),
        })
    }

    /// The first rank that is on another host than this one; `None` if all are on this one.
    #[must_use]
    pub fn elsewhere(&self) -> Option<u32> {
        (0..).zip(&self.ids).find_map(|(rank, _)| (!self.is_here(rank)).then_some(rank))
    }

    /// Whether all ranks are on one host; the same answer on each of them.
    #[must_use]
    pub fn are_one(&self) -> bool {
        self.ids.len() == 1 || self.ids.iter().all(|id| id.is_some() && *id == self.ids[0])
    }

    /// How many ranks are on this host, with this one.
    #[must_use]
    pub fn here(&self) -> u32 {
        (0..self.ids.len() as u32).filter(|rank| self.is_here(*rank)).count() as u32
    }

    /// By rank, which host it is on, counted in the order of their first ranks: the same on all ranks. One that does not know is
    /// taken for alone.
    #[must_use]
    pub fn numbers(&self) -> Vec<u32> {
        let mut seen = Vec::new();
        let number = |id: &Option<[u8; 16]>| {
            let known = seen.iter().position(|seen| id.is_some() && seen == id);
            known.unwrap_or_else(|| {
                seen.push(*id);
                seen.len() - 1
            }) as u32
        };
        self.ids.iter().map(number).collect()
    }

    /// How many processors the host has that has the fewest: the same on all ranks.
    #[must_use]
    pub fn processors(&self) -> u32 {
        self.processors
    }

    /// How the other ranks talk already, if this process has come to take a place among them.
    #[must_use]
    pub fn means(&self) -> Option<Means> {
        self.means
    }

    fn is_here(&self, rank: u32) -> bool {
        let own = self.ids[self.own as usize];
        rank == self.own || own.is_some() && self.ids[rank as usize] == own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_on_one_host_if_all_say_so() {
        let hosts = |own, ids: &[Option<u8>]| {
            let ids = ids.iter().map(|id| id.map(|id| [id; 16])).collect();
            let hosts = Hosts { own, ids, processors: 1, means: None };
            (hosts.are_one(), hosts.elsewhere(), hosts.here())
        };
        assert_eq!(hosts(0, &[Some(1)]), (true, None, 1));
        assert_eq!(hosts(0, &[None]), (true, None, 1));
        assert_eq!(hosts(1, &[Some(1), Some(1), Some(1)]), (true, None, 3));
        assert_eq!(hosts(0, &[Some(1), Some(1), Some(2)]), (false, Some(2), 2));
        assert_eq!(hosts(2, &[Some(1), Some(1), Some(2)]), (false, Some(0), 1));
        assert_eq!(hosts(0, &[Some(1), None]), (false, Some(1), 1));
        assert_eq!(hosts(0, &[None, None]), (false, Some(1), 1));
    }

    #[test]
    fn hosts_are_counted_by_their_first_ranks() {
        let ids = [Some(7), None, Some(3), Some(7), None, Some(3)].map(|id| id.map(|id| [id; 16]));
        let hosts = Hosts { own: 0, ids: ids.to_vec(), processors: 1, means: None };
        assert_eq!(hosts.numbers(), [0, 1, 2, 0, 3, 2]);
    }
}
