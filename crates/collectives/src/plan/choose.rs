//! The choice of an algorithm.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use fulmen_fabric::{Fabric, LinkKind};
use fulmen_kernels::{DType, ReduceOp};
use serde::{Deserialize, Serialize};

use super::events::{least, time};
use super::schedule::Goal;
use super::traffic::{Job, Rounds};
use super::{Algorithm, Inside, Links, LinksError, Order, Passing, Placement, Shape, Sites, Ways};
use crate::messages::{SHORT, has_passed_shares};
use crate::windows::SLOT;

/// The variable that names a link file.
const LINKS: &str = "FULMEN_LINKS";

/// Operations that several algorithms can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// All ranks get the vectors of all, combined.
    AllReduce,
    /// Rank 0 gets it.
    Reduce,
    /// All ranks get the vector of rank 0.
    Broadcast,
    /// Each rank gets the vectors of the ranks up to itself, combined.
    Scan,
    /// All ranks get the vectors of all, one behind the other.
    AllGather,
}

impl Operation {
    /// The name by which the command line knows it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Operation::AllReduce => "all-reduce",
            Operation::Reduce => "reduce",
            Operation::Broadcast => "broadcast",
            Operation::Scan => "scan",
            Operation::AllGather => "all-gather",
        }
    }

    /// All of them.
    pub const ALL: [Operation; 5] =
        [Operation::AllReduce, Operation::Reduce, Operation::Broadcast, Operation::Scan, Operation::AllGather];

    fn goal(self) -> Goal {
        match self {
            Operation::AllReduce => Goal::AllReduce,
            Operation::Reduce => Goal::Reduce(0),
            Operation::Broadcast => Goal::Broadcast(0),
            Operation::Scan => Goal::Scan,
            Operation::AllGather => Goal::AllGather,
        }
    }
}

/// A call about which the planner is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// What is called.
    pub operation: Operation,
    /// How many ranks call it.
    pub ranks: usize,
    /// Bytes of each rank's vector, and of an all-gather, those that each rank gets in all: a multiple of an element's.
    pub bytes: usize,
    /// The type of its elements.
    pub dtype: DType,
    /// How they are combined, if they are.
    pub op: ReduceOp,
    /// In which order they may be.
    pub order: Order,
}

impl Question {
    fn wanted(&self) -> Wanted {
        let Question { operation, ranks, bytes, dtype, op, order } = *self;
        let (goal, element) = (operation.goal(), dtype.size());
        Wanted {
            goal,
            bytes: if goal == Goal::AllGather { bytes / ranks.max(1) / element * element } else { bytes },
            element,
            partial: if goal.combines() { op.partial(dtype).1.size() } else { element },
            free: order == Order::Any || op.is_exact(dtype) || !goal.combines(),
            mixed: false,
        }
    }
}

/// What the planner says of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Which one.
    pub algorithm: Algorithm,
    /// Microseconds from when all ranks have called until all have returned.
    pub time_us: f64,
    /// Whether it may be used: it combines in the order that was asked for.
    pub allowed: bool,
}

/// What every algorithm that can do it would take, the fastest first; those that would need another order at the end.
///
/// The first one is what a group of so many ranks would use with `FULMEN_LINKS` naming a file of this links, for lengths that are
/// powers of two: those between go by the next one.
#[must_use]
pub fn predict(question: &Question, links: &Links) -> Vec<Prediction> {
    let wanted = question.wanted();
    let sites = Arc::new(Sites::new(&links.hosts(question.ranks), true));
    let mut predictions: Vec<Prediction> = Algorithm::ALL
        .into_iter()
        .filter(|algorithm| Wanted { free: true, ..wanted }.allows(*algorithm, &sites))
        .map(|algorithm| Prediction {
            algorithm,
            time_us: wanted.time(algorithm, &sites, links),
            allowed: wanted.allows(algorithm, &sites),
        })
        .collect();
    predictions.sort_by(|one, other| other.allowed.cmp(&one.allowed).then(one.time_us.total_cmp(&other.time_us)));
    predictions
}

/// How long each message is that a rank sends in a call by this algorithm, in their order but for [`Algorithm::Hosts`], among ranks on hosts
/// of these numbers, each of whose ranks map one another's memory; `None` if it cannot do it.
#[must_use]
pub fn messages(question: &Question, algorithm: Algorithm, hosts: &[u32], rank: usize) -> Option<Vec<usize>> {
    let wanted = question.wanted();
    let sites = Arc::new(Sites::new(hosts, true));
    let rounds = wanted.allows(algorithm, &sites).then(|| wanted.rounds(algorithm, &sites))?;
    let mut lens = Vec::new();
    for piece in 0..rounds.pieces() {
        let schedule = rounds.schedule(piece);
        for round in 0..rounds.rounds(piece) {
            let traffic = rounds.traffic(schedule.as_ref(), piece, rank, round);
            lens.extend(traffic.sends.iter().map(|(_, len)| *len));
        }
    }
    Some(lens)
}

/// The fastest algorithm that may be used, as [`predict`] has it first, found with less work: what cannot be the fastest is not run.
#[must_use]
pub fn fastest(question: &Question, links: &Links) -> Prediction {
    question.wanted().fastest(&Arc::new(Sites::new(&links.hosts(question.ranks), true)), links)
}

/// What a call needs of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wanted {
    pub(crate) goal: Goal,
    /// Of the vector, of an element, and of its partial results.
    pub(crate) bytes: usize,
    pub(crate) element: usize,
    pub(crate) partial: usize,
    /// Contributions may be combined in any order.
    pub(crate) free: bool,
    /// Everybody has something else for everybody, or some have nothing: none of the [`Operation`]s.
    pub(crate) mixed: bool,
}

impl Wanted {
    /// Whether an algorithm can do it among ranks at these sites.
    pub(crate) fn allows(&self, algorithm: Algorithm, sites: &Sites) -> bool {
        let ranks = sites.hosts.len();
        let to_all = self.goal == Goal::AllReduce;
        match algorithm {
            Algorithm::Whole => true,
            Algorithm::Rounds => ranks > 2 && self.bytes <= SHORT,
            Algorithm::Hosts => {
                let can = |placement: &Placement| match self.goal {
                    // Else as many bytes go between hosts if everybody sends everybody its part. (Of two ranks on each of two hosts, parts of
                    // 64 KiB to 4 MiB took 1.4 to 1.6 of that time by TCP.)
                    Goal::ReduceScatter => placement.columns() > 2,
                    goal => goal != Goal::Scan,
                };
                let long = |placement: &Placement| !self.mixed && self.bytes > 0 && can(placement);
                sites.placement.as_ref().is_some_and(|placement| long(placement) || self.is_told(placement))
            }
            _ if self.mixed => false,
            Algorithm::Shares => to_all && self.bytes > 0,
            Algorithm::PassedShares => to_all && ranks > 2 && has_passed_shares(self.bytes, ranks),
            Algorithm::Chain => self.bytes > 0 && !self.goal.has_parts(),
            Algorithm::Tree => self.bytes > 0 && self.free && self.goal != Goal::Scan && !self.goal.has_parts(),
            Algorithm::Ring if self.goal == Goal::AllGather => self.bytes > 0,
            Algorithm::Ring | Algorithm::Halving | Algorithm::Doubling => to_all && self.bytes > 0 && self.free,
        }
    }

    /// Whether, by [`Algorithm::Hosts`], each host tells the others all that its ranks have.
    pub(crate) fn is_told(&self, placement: &Placement) -> bool {
        self.bytes <= SLOT && placement.has_room_for(self.bytes)
    }

    fn rounds(&self, algorithm: Algorithm, sites: &Arc<Sites>) -> Rounds {
        let Wanted { goal, bytes, element, partial, .. } = *self;
        let told = sites.placement.as_ref().is_some_and(|placement| self.is_told(placement));
        Rounds::new(Job { algorithm, goal, sites: sites.clone(), bytes, element, partial, told })
    }

    fn time(&self, algorithm: Algorithm, sites: &Arc<Sites>, links: &Links) -> f64 {
        time(links, &self.rounds(algorithm, sites))
    }

    fn fastest(&self, sites: &Arc<Sites>, links: &Links) -> Prediction {
        // Those with little to do are soon run, and rule others out.
        let mut bounded: Vec<(f64, Algorithm)> = Algorithm::ALL
            .into_iter()
            .filter(|algorithm| self.allows(*algorithm, sites))
            .map(|algorithm| (least(links, &self.rounds(algorithm, sites)), algorithm))
            .collect();
        bounded.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let mut best = Prediction { algorithm: Algorithm::Whole, time_us: f64::INFINITY, allowed: true };
        for (bound, algorithm) in bounded {
            if bound < best.time_us {
                let time_us = self.time(algorithm, sites, links);
                if time_us < best.time_us {
                    best = Prediction { algorithm, time_us, allowed: true };
                }
            }
        }
        best
    }

    pub(crate) fn passing(&self, algorithm: Algorithm, ranks: usize) -> Option<Passing> {
        Passing::new(algorithm, self.goal, ranks, self.bytes / self.element, self.partial)
    }
}

/// What chooses for a group.
pub(crate) struct Planner {
    links: Links,
    pub(crate) sites: Arc<Sites>,
    /// For classes of calls.
    chosen: Mutex<HashMap<Wanted, Algorithm>>,
}

impl Planner {
    /// For these ranks of a fabric; `mapped` says whether those of a host can use windows.
    pub(crate) fn new(fabric: &Fabric, ranks: &[u32], mapped: bool) -> Result<Planner, LinksError> {
        let numbers = fabric.hosts().numbers();
        let hosts: Vec<u32> = ranks.iter().map(|rank| numbers[*rank as usize]).collect();
        if let Some(name) = std::env::var(LINKS).ok().filter(|name| !name.is_empty()) {
            return Ok(Planner::over(Links::load(&name)?, &hosts, mapped));
        }
        let mut links =
            Links::usual(fabric.link_kind(), fabric.hosts().processors() as usize, !fabric.hosts().are_one());
        if links.inside.is_some() && fabric.has_windows_among(&[fabric.rank()]) {
            links.inside = Some(Inside::usual(LinkKind::SharedMemory));
        }
        // Where each host has one rank, the cables of ranks are those of hosts.
        let alone = (1..hosts.len()).all(|rank| !hosts[..rank].contains(&hosts[rank]));
        if let Some(wiring) = fabric.wiring().filter(|_| alone) {
            let all = fabric.size() as usize;
            let ways =
                Ways::new(ranks, all, |from, to| wiring.between(from, to), |one, other| wiring.cables(one, other));
            links = links.over(ways);
        }
        Ok(Planner::over(links, &hosts, mapped))
    }

    fn over(links: Links, hosts: &[u32], mapped: bool) -> Planner {
        // Numbered without gaps, in the order of their first ranks.
        let mut seen: Vec<u32> = Vec::new();
        let number = |host: &u32| {
            seen.iter().position(|seen| seen == host).unwrap_or_else(|| {
                seen.push(*host);
                seen.len() - 1
            }) as u32
        };
        let hosts: Vec<u32> = hosts.iter().map(number).collect();
        Planner { links, sites: Arc::new(Sites::new(&hosts, mapped)), chosen: Mutex::default() }
    }

    /// The algorithm for a call: the one that the model says is the fastest for lengths of its class.
    pub(crate) fn choose(&self, wanted: &Wanted) -> Algorithm {
        let goal = match wanted.goal {
            Goal::Reduce(_) => Goal::Reduce(0),
            Goal::Broadcast(_) => Goal::Broadcast(0),
            other => other,
        };
        let bytes = if wanted.bytes == 0 { 0 } else { wanted.bytes.next_power_of_two().max(wanted.partial) };
        let class = Wanted { goal, bytes, ..*wanted };
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        let algorithm = *chosen.entry(class).or_insert_with(|| class.fastest(&self.sites, &self.links).algorithm);
        // What may be done with the longest of a class may be done with all of it, but for the shortest of all.
        if wanted.allows(algorithm, &self.sites) { algorithm } else { Algorithm::Whole }
    }
}

impl Inside {
    /// As measured of two ranks on one host: `fulmen plan all-reduce` with --device tcp and --profile infiniband.
    fn usual(kind: LinkKind) -> Inside {
        let (message_us, latency_us, byte_ns) = match kind {
            LinkKind::SharedMemory => (0.4, 0.2, 0.03),
            LinkKind::Device => (1.2, 0.5, 0.03),
            _ => (4.0, 1.0, 0.2),
        };
        Inside { latency_us, message_us, byte_ns }
    }
}

/// What a rank that passes messages on adds, as with `thunderbolt5-ring`.
const HOP: f64 = 2.0;

/// [`Links::wake_us`], as it was measured of 5 to 16 ranks on two processors: between 15 and 40.
pub const WAKE: f64 = 20.0;

impl Links {
    /// The same links over these cables.
    fn over(self, ways: Ways) -> Links {
        Links { ways: Some(Arc::new(ways)), hop_us: HOP, ..self }
    }

    /// What this library takes a kind of link for where no file says more.
    #[must_use]
    pub fn usual(kind: LinkKind, processors: usize, between_hosts: bool) -> Links {
        let inside = Inside::usual(kind);
        let Inside { latency_us, message_us, byte_ns } = inside;
        // Between hosts, of 10 Gb/s by TCP, and as Thunderbolt 5 over devices.
        let (shape, bandwidth, latency_us, byte_ns) = match (between_hosts, kind) {
            (false, _) => (Shape::Host, None, latency_us, byte_ns),
            (true, LinkKind::Device) => (Shape::Switch, Some(9.0), 4.0, 0.0),
            (true, _) => (Shape::Switch, Some(1.25), 15.0, byte_ns),
        };
        Links {
            name: kind.to_string(),
            source: "this library's own figures for such links".to_owned(),
            shape,
            most_hosts: None,
            ranks_per_host: 1,
            processors,
            latency_us,
            bandwidth,
            message_us,
            byte_ns,
            offered_byte_ns: if between_hosts { 0.0 } else { byte_ns },
            offered_from: (kind == LinkKind::Device).then_some(16 << 10),
            hop_us: 0.0,
            wake_us: WAKE,
            copy_ns: 0.02,
            staging: 1.0,
            reduce_ns: 0.04,
            inside: between_hosts.then_some(inside),
            uncached_ns: Vec::new(),
            mapped: None,
            ways: None,
        }
    }
}

#[cfg(test)]
#[path = "tests/choose.rs"]
mod tests;
