//! On which hosts the ranks are: what they can use to talk depends on it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bootstrap::{Session, SessionError};
use crate::processors::{self, Processors};
use crate::{FabricOptions, Providers};

/// The hosts of a generation's ranks, by rank. `FULMEN_HOST_ID` can say which host a process is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    own: u32,
    /// None where a rank does not know.
    ids: Vec<Option<[u8; 16]>>,
    /// How many those of a host have, of the host where they are fewest.
    processors: u32,
    /// Whether they are too few for the ranks of this machine.
    crowded: bool,
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
    /// Whose processors those are, whatever hosts it stands for.
    machine: Option<[u8; 16]>,
    processors: Processors,
    /// None for a process that has just joined.
    means: Option<Means>,
}

impl Said {
    /// What is taken of a rank that cannot be understood.
    fn nothing() -> Said {
        Said { id: None, machine: None, processors: Processors::unknown(), means: None }
    }
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

/// Which ranks map one another's memory: the same on all ranks.
#[derive(Clone, Debug)]
pub(crate) struct Near {
    /// By rank: those of one number do.
    sides: Vec<u32>,
}

impl Near {
    /// All of so many.
    pub(crate) fn all(size: u32) -> Near {
        Near { sides: vec![0; size as usize] }
    }

    /// None of so many.
    pub(crate) fn none(size: u32) -> Near {
        Near { sides: (0..size).collect() }
    }

    /// Those of each host.
    pub(crate) fn by(hosts: &Hosts) -> Near {
        Near { sides: hosts.numbers() }
    }

    /// Whether these two do.
    pub(crate) fn are(&self, one: u32, other: u32) -> bool {
        self.sides[one as usize] == self.sides[other as usize]
    }

    /// Whether any two do.
    pub(crate) fn exist(&self) -> bool {
        (0..self.sides.len() as u32).any(|rank| self.has_others(rank))
    }

    /// Whether a rank maps the memory of any other one.
    pub(crate) fn has_others(&self, rank: u32) -> bool {
        (0..self.sides.len() as u32).any(|other| other != rank && self.are(rank, other))
    }
}

impl Hosts {
    /// All ranks tell one another where they are, and how they talk if they do. Each generation begins with this, whoever
    /// starts it.
    pub(crate) fn exchange(
        session: &Session,
        means: Option<Means>,
        options: &FabricOptions,
    ) -> Result<Hosts, SessionError> {
        let (id, machine) =
            (options.host.or_else(|| fulmen_reach::this_host().ok()), fulmen_reach::this_machine().ok());
        processors::remember();
        let own = Said { id, machine, processors: Processors::own(), means };
        let own = postcard::to_stdvec(&own).expect("a vector takes what is written to it");
        let blobs = session.all_gather(&own, options.timeout)?;
        let said: Vec<Said> =
            blobs.iter().map(|blob| postcard::from_bytes(blob).unwrap_or_else(|_| Said::nothing())).collect();
        Ok(Hosts::told(session.rank(), &said))
    }

    /// What follows from what each rank has said.
    fn told(own: u32, said: &[Said]) -> Hosts {
        let ids = said.iter().map(|said| said.id).collect();
        let means = said.iter().find_map(|said| said.means);
        let mut hosts = Hosts { own, ids, processors: 1, crowded: false, means };
        let mut by_host: BTreeMap<u32, Vec<&Processors>> = BTreeMap::new();
        for (host, said) in hosts.numbers().into_iter().zip(said) {
            by_host.entry(host).or_default().push(&said.processors);
        }
        hosts.processors = by_host.values().map(|ranks| processors::count(ranks)).min().unwrap_or(1) as u32;
        let machine = said[own as usize].machine;
        let beside = said.iter().filter(|said| machine.is_some() && said.machine == machine);
        hosts.crowded = processors::are_shared(&beside.map(|said| &said.processors).collect::<Vec<_>>());
        hosts
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

    /// How many processors the ranks of a host have between them, of the host where they are fewest: the same on all ranks.
    #[must_use]
    pub fn processors(&self) -> u32 {
        self.processors
    }

    /// Whether ranks of this machine share processors: there are more of them, or some are bound to the same ones. Ranks that
    /// stand for hosts of their own (`FULMEN_HOST_ID`) share their machine's all the same.
    #[must_use]
    pub fn are_crowded(&self) -> bool {
        self.crowded
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
            let hosts = Hosts { own, ids, processors: 1, crowded: false, means: None };
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
        let hosts = Hosts { own: 0, ids: ids.to_vec(), processors: 1, crowded: false, means: None };
        assert_eq!(hosts.numbers(), [0, 1, 2, 0, 3, 2]);
    }

    #[test]
    fn ranks_are_crowded_by_those_of_their_machine() {
        // By rank: the host, the machine, and the processors that it is bound to.
        let told = |own, ranks: &[(Option<u8>, Option<u8>, &[u16])]| {
            let said: Vec<Said> = ranks
                .iter()
                .map(|(host, machine, processors)| Said {
                    id: host.map(|host| [host; 16]),
                    machine: machine.map(|machine| [machine; 16]),
                    processors: Processors::bound(processors),
                    means: None,
                })
                .collect();
            let hosts = Hosts::told(own, &said);
            (hosts.processors(), hosts.are_crowded())
        };
        let one = Some(1);
        assert_eq!(told(0, &[(one, one, &[0]), (one, one, &[1])]), (2, false), "another launcher has bound them");
        assert_eq!(told(0, &[(one, one, &[0, 1]), (one, one, &[0, 1]), (one, one, &[0, 1])]), (2, true));
        // They stand for two hosts, and share one machine's processor.
        assert_eq!(told(0, &[(one, one, &[0]), (Some(2), one, &[0])]), (1, true));
        // Only the second machine is crowded.
        let both: [(_, _, &[u16]); 3] = [(one, one, &[0, 1, 2]), (Some(2), Some(2), &[0]), (Some(2), Some(2), &[0])];
        assert_eq!((told(0, &both), told(2, &both)), ((1, false), (1, true)));
        // Those that do not know where they are may be anywhere.
        assert_eq!(told(1, &[(None, None, &[0]), (None, None, &[0])]), (1, false));
    }
}
