//! How the ranks of several hosts divide a call, where those of each host map one another's memory.
//!
//! What is short is told by one rank of each host to one of each other host. Of what is longer, some ranks of each host (*columns*) have
//! a share each, which goes from host to host. Arithmetic alone: groups run it, and the [model](super::events) runs the same.

use std::ops::Range;

use super::schedule::Goal;
use crate::messages::{LEAD, segment};
use crate::windows::{BOARD, GAP, STAGE_LEN};

/// Where the ranks of a group are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// By host, its ranks.
    hosts: Vec<Range<usize>>,
}

/// Which way a long call goes from host to host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// Partial results go from the first host to the last.
    pub(crate) combines: bool,
    /// Where the results are first,
    pub(crate) source: usize,
    /// and the hosts to which they go, from each to the next.
    pub(crate) to: Range<usize>,
    /// The one host that needs them, if not all do.
    pub(crate) only: Option<usize>,
}

/// How a long call is cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    /// Bytes of a column's share of a piece, and of a piece.
    pub(crate) chunk: usize,
    pub(crate) piece: usize,
    /// Pieces of which the results are under way at a time.
    pub(crate) depth: usize,
}

/// Bytes of the longest share of a piece, and of the shortest that a longer one is cut into.
const LONGEST: usize = 128 << 10;
const SHORTEST: usize = 16 << 10;

/// The longest piece: as many as are under way have room on the stage, each with what lies between two.
const PIECE: usize = 512 << 10;

/// One is put on the stage while another one is combined, a third one taken, and a fourth one waited for.
const BESIDE: usize = 4;

/// The most ranks of other hosts with which one talks in a long call.
pub(crate) const TALKS: usize = 4;

impl Route {
    /// The host from which results come to one, if they do.
    pub(crate) fn results_from(&self, host: usize) -> Option<usize> {
        match self.to.contains(&host) {
            true if host < self.source => Some(host + 1),
            true if host > self.source => Some(host - 1),
            _ => None,
        }
    }

    /// The hosts to which one passes results on.
    pub(crate) fn results_to(&self, host: usize) -> impl Iterator<Item = usize> {
        let beside = [host.checked_sub(1), host.checked_add(1)].into_iter().flatten();
        beside.filter(move |other| self.results_from(*other) == Some(host))
    }

    /// How far results go at most.
    pub(crate) fn hops(&self) -> usize {
        usize::max(self.source - self.to.start, self.to.end - 1 - self.source)
    }

    /// Whether a host needs them.
    pub(crate) fn needs(&self, host: usize) -> bool {
        self.only.is_none_or(|only| only == host)
    }
}

impl Placement {
    /// By rank, its host. `None` unless there are several, one of them with several ranks, and all have their ranks side by side, in the order
    /// of the hosts: else contributions could not be combined host by host in the order of the ranks, nor would each two hosts that follow
    /// one another have ranks that do.
    pub(crate) fn new(hosts: &[u32]) -> Option<Placement> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for (rank, host) in hosts.iter().enumerate() {
            match ranges.iter().position(|range| hosts[range.start] == *host) {
                None => ranges.push(rank..rank + 1),
                Some(at) if at + 1 == ranges.len() => ranges[at].end = rank + 1,
                Some(_) => return None,
            }
        }
        (ranges.len() > 1 && ranges.len() < hosts.len()).then_some(Placement { hosts: ranges })
    }

    /// How many hosts there are.
    pub(crate) fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// The ranks of a host.
    pub(crate) fn ranks(&self, host: usize) -> Range<usize> {
        self.hosts[host].clone()
    }

    /// The host of a rank.
    pub(crate) fn host(&self, rank: usize) -> usize {
        self.hosts.partition_point(|ranks| ranks.end <= rank)
    }

    /// The rank of a host that tells another one what the host has. Of hosts that follow one another, also of the last and the first, it is the
    /// one beside the other host: those hear of each other in calls of any kind, so that hosts which call different things do not wait.
    pub(crate) fn teller(&self, host: usize, to: usize) -> usize {
        let (ranks, count) = (&self.hosts[host], self.hosts.len());
        let next = (host + 1) % count == to && (count > 2 || host < to);
        match next {
            true => ranks.end - 1,
            false if (to + 1) % count == host => ranks.start,
            false => ranks.start + to % ranks.len(),
        }
    }

    /// The hosts to which a rank tells what its host has.
    pub(crate) fn told_by(&self, rank: usize) -> impl Iterator<Item = usize> {
        let host = self.host(rank);
        (0..self.hosts.len()).filter(move |other| *other != host && self.teller(host, *other) == rank)
    }

    /// Whether all that a rank may have to tell those of its host has room, if nobody has more than so many bytes.
    pub(crate) fn has_room_for(&self, longest: usize) -> bool {
        let ranks = self.hosts.last().map_or(0, |ranks| ranks.end);
        longest.checked_next_multiple_of(8).and_then(|each| each.checked_mul(ranks)).is_some_and(|all| all <= BOARD)
    }

    /// How many columns there are.
    pub(crate) fn columns(&self) -> usize {
        self.hosts.iter().map(Range::len).min().unwrap_or(0)
    }

    /// A host's rank of a column. Every other host counts from its end, so that ranks beside one another are of one column.
    pub(crate) fn at(&self, host: usize, column: usize) -> usize {
        let (ranks, columns) = (&self.hosts[host], self.columns());
        let from_start = if host.is_multiple_of(2) { column } else { columns - 1 - column };
        // The first ones, and the last.
        if from_start + 1 == columns && columns > 1 { ranks.end - 1 } else { ranks.start + from_start }
    }

    /// The column of a rank, if it is of one.
    pub(crate) fn column(&self, rank: usize) -> Option<usize> {
        let host = self.host(rank);
        (0..self.columns()).find(|column| self.at(host, *column) == rank)
    }

    /// With whom a rank talks in a long call: those of its column on the hosts before and after its own, and the ranks beside it that are on
    /// other hosts.
    pub(crate) fn partners(&self, rank: usize) -> Vec<usize> {
        let (host, count) = (self.host(rank), self.hosts.len());
        let ranks = &self.hosts[host];
        let mut partners = Vec::new();
        if let Some(column) = self.column(rank) {
            partners.extend(host.checked_sub(1).map(|before| self.at(before, column)));
            partners.extend((host + 1 < count).then(|| self.at(host + 1, column)));
        }
        let (first, last) = (rank == ranks.start, rank + 1 == ranks.end);
        let before = first.then(|| self.hosts[(host + count - 1) % count].end - 1);
        let after = last.then(|| self.hosts[(host + 1) % count].start);
        for beside in before.into_iter().chain(after) {
            if !partners.contains(&beside) {
                partners.push(beside);
            }
        }
        partners
    }

    /// Which way a call goes; not one in which each rank has a part, which goes [as they do](Goal::of_part).
    pub(crate) fn route(&self, goal: Goal) -> Option<Route> {
        let last = self.hosts.len() - 1;
        let to = 0..last + 1;
        match goal {
            Goal::AllReduce => Some(Route { combines: true, source: last, to, only: None }),
            Goal::Reduce(root) => {
                let root = self.host(root);
                Some(Route { combines: true, source: last, to: root..last + 1, only: Some(root) })
            }
            Goal::Broadcast(root) => Some(Route { combines: false, source: self.host(root), to, only: None }),
            Goal::Scan | Goal::AllGather | Goal::ReduceScatter => None,
        }
    }

    /// How a call of so many bytes is cut, whose partial results take `factor` times as many.
    pub(crate) fn divide(&self, bytes: usize, factor: usize) -> Division {
        let (hosts, columns) = (self.hosts(), self.columns());
        let ranks = self.hosts.last().map_or(0, |ranks| ranks.end);
        // What a result takes to come back to the first host.
        let way = 2 * (hosts - 1) - 1;
        let room = (2 * ranks).saturating_sub(TALKS) * (LEAD + segment(ranks));
        let chunk = |depth: usize| {
            let most = LONGEST.min(PIECE / columns).min(room / ((depth + 2) * (factor + 1)) - 2 * 64);
            let share = bytes.div_ceil(columns);
            (share / 4).clamp(SHORTEST.min(most), most).min(share).next_multiple_of(64).min(most / 64 * 64)
        };
        let depth = (1..=way.min(8)).rev().find(|depth| {
            let piece = columns * chunk(*depth);
            chunk(*depth) >= SHORTEST / 2 && (depth + BESIDE) * (piece + GAP) <= STAGE_LEN
        });
        let depth = depth.unwrap_or(1);
        let chunk = chunk(depth).max(64);
        Division { chunk, piece: columns * chunk, depth }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts of these many ranks.
    fn placement(sizes: &[usize]) -> Option<Placement> {
        let hosts: Vec<u32> = (0..).zip(sizes).flat_map(|(host, size)| vec![host; *size]).collect();
        Placement::new(&hosts)
    }

    /// Some shapes, even and uneven.
    fn shapes() -> impl Iterator<Item = (Vec<usize>, Placement)> {
        let sizes = [1_usize, 2, 3, 5, 8];
        let all = (2..=4).flat_map(move |hosts: u32| {
            (0..sizes.len().pow(hosts)).map(move |number| {
                (0..hosts).map(|host| sizes[number / sizes.len().pow(host) % sizes.len()]).collect::<Vec<_>>()
            })
        });
        all.chain([vec![64; 16], vec![2; 500]]).filter_map(|shape| Some((shape.clone(), placement(&shape)?)))
    }

    #[test]
    fn ranks_of_hosts_have_to_lie_side_by_side() {
        for (hosts, good) in [
            (&[0_u32, 0, 1, 1][..], true),
            (&[3, 3, 1], true),
            (&[0, 1, 0, 1], false),
            (&[0, 0], false),
            (&[0, 1], false),
        ] {
            assert_eq!(Placement::new(hosts).is_some(), good, "{hosts:?}");
        }
        assert_eq!(placement(&[2, 3]).unwrap().hosts, [0..2, 2..5]);
    }

    #[test]
    fn each_two_hosts_tell_each_other_and_those_beside_one_another_by_ranks_beside_one_another() {
        for (shape, placement) in shapes() {
            let (hosts, ranks) = (placement.hosts(), shape.iter().sum::<usize>());
            assert!((0..ranks).all(|rank| placement.ranks(placement.host(rank)).contains(&rank)));
            for (one, other) in (0..hosts).flat_map(|one| (0..hosts).map(move |other| (one, other))) {
                if one != other {
                    let teller = placement.teller(one, other);
                    assert_eq!(placement.host(teller), one);
                    assert!(placement.told_by(teller).any(|told| told == other));
                }
            }
            let told: usize = (0..ranks).map(|rank| placement.told_by(rank).count()).sum();
            assert_eq!(told, hosts * (hosts - 1), "{shape:?}");
            for host in 0..hosts - 1 {
                let (last, first) = (placement.teller(host, host + 1), placement.teller(host + 1, host));
                assert_eq!((last + 1, placement.ranks(host).end), (first, first), "{shape:?}");
            }
        }
    }

    #[test]
    fn columns_have_one_rank_of_each_host() {
        for (shape, placement) in shapes() {
            for host in 0..placement.hosts() {
                let columns: Vec<usize> = (0..placement.columns()).map(|column| placement.at(host, column)).collect();
                let mut apart = columns.clone();
                apart.sort_unstable();
                apart.dedup();
                assert_eq!(apart.len(), *shape.iter().min().unwrap(), "{shape:?}");
                for (column, rank) in columns.into_iter().enumerate() {
                    assert_eq!((placement.host(rank), placement.column(rank)), (host, Some(column)), "{shape:?}");
                }
            }
        }
    }

    #[test]
    fn partners_are_mutual_and_those_beside_one_another_are() {
        for (shape, placement) in shapes() {
            let ranks = shape.iter().sum::<usize>();
            for rank in 0..ranks {
                let partners = placement.partners(rank);
                assert!(partners.len() <= TALKS && !partners.contains(&rank), "{shape:?}");
                assert!(partners.iter().all(|partner| placement.partners(*partner).contains(&rank)), "{shape:?}");
                let next = (rank + 1) % ranks;
                assert_eq!(partners.contains(&next), placement.host(next) != placement.host(rank), "{shape:?}");
            }
        }
    }

    #[test]
    fn results_come_once_to_each_host_that_needs_them() {
        for (shape, placement) in shapes().filter(|(shape, _)| shape.len() < 10) {
            let ranks = shape.iter().sum::<usize>();
            let goals = (0..ranks).flat_map(|root| [Goal::Reduce(root), Goal::Broadcast(root)]);
            for goal in goals.chain([Goal::AllReduce]) {
                let (route, hosts) = (placement.route(goal).unwrap(), placement.hosts());
                let mut has = vec![0; hosts];
                has[route.source] = 1;
                let mut at = vec![route.source];
                for _ in 0..route.hops() {
                    at = at.iter().flat_map(|host| route.results_to(*host)).collect();
                    at.iter().for_each(|host| has[*host] += 1);
                }
                assert!(at.iter().all(|host| route.results_to(*host).next().is_none()), "{shape:?} {goal:?}");
                assert!(
                    (0..hosts).all(|host| has[host] == 1 || !route.needs(host) && has[host] == 0),
                    "{shape:?} {goal:?}"
                );
            }
        }
    }

    #[test]
    fn pieces_have_room_wherever_they_come() {
        for (shape, placement) in shapes() {
            let (ranks, columns) = (shape.iter().sum::<usize>(), placement.columns());
            for (bytes, factor) in
                [1, 64, 5000, 100_000, 3 << 20, 1 << 30].into_iter().flat_map(|len| [(len, 1), (len, 2)])
            {
                let Division { chunk, piece, depth } = placement.divide(bytes, factor);
                assert!(chunk >= 64 && chunk.is_multiple_of(64) && piece == chunk * columns, "{shape:?} {bytes}");
                assert!((1..=8).contains(&depth) && (depth + BESIDE) * (piece + GAP) <= STAGE_LEN, "{shape:?} {bytes}");
                let greetings = TALKS * (LEAD + segment(ranks));
                let lanes = (depth + 2) * ((factor + 1) * chunk + 2 * 64);
                assert!(greetings + lanes <= 2 * ranks * (LEAD + segment(ranks)), "{shape:?} {bytes} {chunk} {depth}");
            }
        }
    }
}
