//! What a call sends by each algorithm: as many messages, and as long ones, as the implementation, whose own rules this calls.

use std::sync::Arc;

use smallvec::SmallVec;

use super::schedule::{Goal, Schedule};
use super::{Algorithm, Passing, Placement, Route, Sites};
use crate::messages::{HEADER, block, column_share, pieces, rounds, segment, share, share_slots};

/// A call, as all ranks make it.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) algorithm: Algorithm,
    pub(crate) goal: Goal,
    pub(crate) sites: Arc<Sites>,
    /// Bytes of the vector,
    pub(crate) bytes: usize,
    /// of an element,
    pub(crate) element: usize,
    /// and of its partial results.
    pub(crate) partial: usize,
    /// By [`Algorithm::Hosts`], each host tells the others all that its ranks have.
    pub(crate) told: bool,
}

/// What a rank does in one round.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Traffic {
    /// To whom, and how many bytes.
    pub(crate) sends: SmallVec<[(usize, usize); 2]>,
    /// How many messages it waits for.
    pub(crate) receives: usize,
    /// Bytes that are copied before it sends, and after it has received.
    pub(crate) staged: usize,
    pub(crate) copied: usize,
    /// Bytes that are combined.
    pub(crate) combined: usize,
}

/// A call, cut into pieces of some rounds each.
pub(crate) struct Rounds {
    job: Job,
    passing: Option<Passing>,
    /// Bytes of each piece; elements, if it is passed on.
    pieces: Vec<usize>,
}

/// Ranks to which a rank says what it calls before it passes on anything, and from which it hears it: those with which it will have to
/// do, and its neighbours.
pub(crate) fn greeted(schedule: &Schedule, rank: usize) -> Vec<usize> {
    let ranks = schedule.ranks;
    let mut peers = schedule.peers(rank);
    for neighbour in [(rank + 1) % ranks, (rank + ranks - 1) % ranks] {
        if !peers.contains(&neighbour) {
            peers.push(neighbour);
        }
    }
    peers
}

impl Rounds {
    pub(crate) fn new(job: Job) -> Rounds {
        let ranks = job.sites.hosts.len();
        let passing = Passing::new(job.algorithm, job.goal, ranks, job.bytes / job.element, job.partial);
        let cut = |len: usize, step: usize| -> Vec<usize> {
            (0..len.max(1)).step_by(step.max(1)).map(|start| step.min(len - start)).collect()
        };
        let pieces = match (job.algorithm, &passing) {
            (_, Some(passing)) => cut(job.bytes / job.element, passing.piece),
            (Algorithm::Whole, _) if job.goal == Goal::ReduceScatter => cut(job.bytes / ranks, segment(ranks)),
            (Algorithm::Whole, _) => cut(job.bytes, segment(ranks)),
            (Algorithm::Shares, _) => pieces(job.bytes, ranks).map(|piece| piece.len()).collect(),
            (Algorithm::Hosts, _) if !job.told => {
                let placement = job.sites.placement.as_ref().expect("it can go by hosts");
                let part = if job.goal == Goal::ReduceScatter { job.bytes / ranks } else { job.bytes };
                let pieces = cut(part, placement.divide(part, job.partial / job.element).piece);
                // A piece of each rank's part, and then the next ones.
                let each = if job.goal.has_parts() { ranks } else { 1 };
                pieces.into_iter().flat_map(|piece| vec![piece; each]).collect()
            }
            _ => vec![job.bytes],
        };
        Rounds { job, passing, pieces }
    }

    pub(crate) fn ranks(&self) -> usize {
        self.job.sites.hosts.len()
    }

    /// Bytes of all vectors that ranks give and get.
    pub(crate) fn touched(&self) -> usize {
        let ranks = self.ranks();
        let vectors = match self.job.goal {
            Goal::AllReduce | Goal::Scan => 2 * ranks,
            Goal::Reduce(_) | Goal::ReduceScatter => ranks + 1,
            Goal::Broadcast(_) => ranks,
            Goal::AllGather => ranks + ranks * ranks,
        };
        self.job.bytes.saturating_mul(vectors)
    }

    pub(crate) fn hosts(&self) -> &[u32] {
        &self.job.sites.hosts
    }

    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Rounds of a piece.
    pub(crate) fn rounds(&self, piece: usize) -> usize {
        let ranks = self.ranks();
        match (self.job.algorithm, &self.passing) {
            (_, Some(passing)) => passing.schedule(self.pieces[piece]).rounds(),
            (Algorithm::Whole, _) => 1,
            (Algorithm::Shares, _) => 2,
            (Algorithm::PassedShares, _) => 2 * rounds(ranks).count(),
            (Algorithm::Hosts, _) if self.job.told => 1,
            (Algorithm::Hosts, _) => {
                let route = self.route(piece);
                self.ups(&route) + route.hops()
            }
            _ => rounds(ranks).count(),
        }
    }

    fn placement(&self) -> &Placement {
        self.job.sites.placement.as_ref().expect("it can go by hosts")
    }

    /// What becomes of a piece that goes from host to host, and which way it goes.
    fn goal(&self, piece: usize) -> Goal {
        let goal = self.job.goal;
        goal.of_part(piece % self.ranks()).unwrap_or(goal)
    }

    fn route(&self, piece: usize) -> Route {
        self.placement().route(self.goal(piece)).expect("it can go by hosts")
    }

    /// Rounds in which partial results go from host to host.
    fn ups(&self, route: &Route) -> usize {
        if route.combines { self.placement().hosts() - 1 } else { 0 }
    }

    /// The schedule of a piece, for those that are passed on.
    pub(crate) fn schedule(&self, piece: usize) -> Option<Schedule> {
        Some(self.passing.as_ref()?.schedule(self.pieces[piece]))
    }

    /// What a rank does in a round of a piece.
    pub(crate) fn traffic(&self, schedule: Option<&Schedule>, piece: usize, rank: usize, round: usize) -> Traffic {
        let (ranks, len, first) = (self.ranks(), self.pieces[piece], piece == 0);
        if let Some(schedule) = schedule {
            let mut traffic = self.passed_on(schedule, rank, round);
            if round == 0 {
                traffic.copied += self.kept(rank, len * self.job.element);
                traffic.copied += if self.has_apart(rank) { len * self.job.partial } else { 0 };
            }
            if first && round == 0 {
                // Headers go before everything else.
                let peers = greeted(schedule, rank);
                traffic.receives += peers.len();
                traffic.sends.insert_many(0, peers.into_iter().map(|peer| (peer, HEADER)));
            }
            return traffic;
        }
        let others = (1..ranks).map(|step| (rank + step) % ranks);
        let goal = self.job.goal;
        let needs = |from: usize, to: usize| match goal {
            Goal::AllReduce | Goal::AllGather | Goal::ReduceScatter => true,
            Goal::Reduce(root) => to == root,
            Goal::Broadcast(root) => from == root,
            Goal::Scan => from < to,
        };
        // What is taken of the others' vectors.
        let taken = others.clone().filter(|from| needs(*from, rank)).count() * len;
        let (combined, copied) = if goal.combines() { (taken, 0) } else { (0, taken) };
        let copied = copied + self.kept(rank, len);
        match self.job.algorithm {
            Algorithm::Whole => {
                let header = if first { HEADER } else { 0 };
                let bytes = |from, to| header + if needs(from, to) { len } else { 0 };
                let sends: SmallVec<[_; 2]> =
                    others.clone().map(|to| (to, bytes(rank, to))).filter(|(_, bytes)| *bytes > 0).collect();
                Traffic {
                    staged: if sends.iter().any(|(_, bytes)| *bytes > HEADER) { len } else { 0 },
                    receives: others.filter(|from| bytes(*from, rank) > 0).count(),
                    copied,
                    combined,
                    sends,
                }
            }
            Algorithm::Shares => {
                let of = |rank| share(&(0..len), ranks, rank).len();
                let mine = of(rank);
                if round == 0 {
                    let header = if first { HEADER } else { 0 };
                    let sends = others.map(|to| (to, header + of(to))).filter(|(_, bytes)| *bytes > 0).collect();
                    let receives = if header + mine > 0 { ranks - 1 } else { 0 };
                    let combined = (ranks - 1) * mine;
                    return Traffic { sends, receives, staged: len - mine, copied: 0, combined };
                }
                let receives = others.clone().filter(|from| of(*from) > 0).count();
                let sends = others.filter(|_| mine > 0).map(|to| (to, mine)).collect();
                Traffic { sends, receives, staged: mine, copied: len - mine, combined: 0 }
            }
            Algorithm::PassedShares => {
                let each = share(&(0..len), ranks, 0).len();
                let before = rounds(ranks).count();
                let (step, count) = rounds(ranks).nth(round % before).expect("there are as many rounds");
                let slots = if round < before { share_slots(ranks, step) } else { count };
                let bytes = slots * if round < before { HEADER + each } else { each };
                let combined = if round + 1 == before { (ranks - 1) * each } else { 0 };
                let copied = if round + 1 == 2 * before { len - each } else { 0 };
                let staged = if round < before { bytes } else { 0 };
                Traffic {
                    sends: [((rank + ranks - step) % ranks, bytes)].into_iter().collect(),
                    receives: 1,
                    staged,
                    copied,
                    combined,
                }
            }
            Algorithm::Hosts if self.job.told => {
                let has = |rank: usize| if matches!(goal, Goal::Broadcast(root) if root != rank) { 0 } else { len };
                let placement = self.placement();
                let host = placement.host(rank);
                let told: usize = placement.ranks(host).map(|rank| has(rank).next_multiple_of(8)).sum();
                let sends = placement.told_by(rank).map(|other| (placement.teller(other, host), HEADER + told));
                let sends: SmallVec<[_; 2]> = sends.collect();
                Traffic { receives: sends.len(), sends, staged: has(rank), copied, combined }
            }
            Algorithm::Hosts => self.between_hosts(len, piece, rank, round),
            _ => {
                let last = rounds(ranks).count() - 1;
                let (step, count) = rounds(ranks).nth(round).expect("there are as many rounds");
                let has = |rank: usize| if matches!(goal, Goal::Broadcast(root) if root != rank) { 0 } else { len };
                let bytes = (0..count).map(|next| block(has((rank + next) % ranks))).sum();
                let sends = [((rank + ranks - step) % ranks, bytes)].into_iter().collect();
                let staged = if round == 0 { has(rank) } else { 0 };
                let at_last = |bytes| if round == last { bytes } else { 0 };
                Traffic { sends, receives: 1, staged, copied: at_last(copied), combined: at_last(combined) }
            }
        }
    }

    /// A round of a piece that goes from host to host and back.
    fn between_hosts(&self, len: usize, piece: usize, rank: usize, round: usize) -> Traffic {
        let placement = self.placement();
        let (host, route, goal) = (placement.host(rank), self.route(piece), self.goal(piece));
        let ups = self.ups(&route);
        let column = placement.column(rank);
        let mine = column.map_or(0, |column| column_share(len, placement.columns(), column).len());
        let partial = mine / self.job.element * self.job.partial;
        let here = placement.ranks(host).len();
        let mut traffic = Traffic::default();
        let gives = route.combines || goal == Goal::Broadcast(rank);
        if round == 0 {
            traffic.staged = if gives { len - mine } else { 0 };
            if route.combines && host == 0 {
                traffic.combined = here * mine;
            }
        }
        let takes = match goal {
            Goal::Reduce(root) => rank == root,
            Goal::Broadcast(root) => rank != root,
            _ => true,
        };
        if takes && round + 1 == ups + route.hops() {
            traffic.copied = len - mine;
        }
        if let Some(column) = column.filter(|_| mine > 0) {
            let peer = |host: usize| placement.at(host, column);
            // Partial results go up, and results from where they are.
            if round < ups {
                if host == round {
                    traffic.sends.push((peer(host + 1), partial));
                } else if host == round + 1 {
                    traffic.receives += 1;
                    traffic.combined += (here + 1) * mine;
                }
            } else {
                let far = host.abs_diff(route.source);
                if far == round - ups {
                    traffic.sends.extend(route.results_to(host).map(|to| (peer(to), mine)));
                } else if far == round - ups + 1 && route.results_from(host).is_some() {
                    traffic.receives += 1;
                    traffic.copied += 2 * mine;
                }
            }
        }
        if piece == 0 && round == 0 {
            let partners = placement.partners(rank);
            traffic.receives += partners.len();
            traffic.sends.insert_many(0, partners.into_iter().map(|partner| (partner, HEADER)));
        }
        traffic
    }

    /// Of so many bytes of a rank's own vector, those that are copied into what it gets. Of a scan, they were sent just now and are in the
    /// nearest cache, so that they take half as long.
    fn kept(&self, rank: usize, len: usize) -> usize {
        match self.job.goal {
            Goal::AllGather => len,
            Goal::Scan if rank == 0 => len / 2,
            _ => 0,
        }
    }

    /// Whether a rank keeps partial results that are passed on apart from what it gets.
    fn has_apart(&self, rank: usize) -> bool {
        let gets = !matches!(self.job.goal, Goal::Reduce(root) if root != rank);
        self.job.goal.combines() && (!gets || self.job.partial != self.job.element)
    }

    fn passed_on(&self, schedule: &Schedule, rank: usize, round: usize) -> Traffic {
        let round = schedule.round(rank, round);
        let bytes = |result: bool, elements: usize| elements * if result { self.job.element } else { self.job.partial };
        let mut traffic = Traffic { receives: round.receives.len(), ..Traffic::default() };
        for send in &round.sends {
            let bytes = bytes(send.result, send.range.len());
            traffic.staged += bytes;
            traffic.sends.push((send.peer, bytes));
        }
        for receive in &round.receives {
            let bytes = bytes(receive.result, receive.range.len());
            if receive.result {
                traffic.copied += bytes;
            } else {
                traffic.combined += bytes;
            }
        }
        if self.has_apart(rank) {
            traffic.copied += round.finished.iter().map(|range| range.len() * self.job.partial).sum::<usize>();
        }
        traffic
    }
}
