//! Who sends what to whom, round by round, where partial results or results are passed on.
//!
//! All ranks count the same rounds; in each, a rank sends and receives a few ranges of the vector. What is received is combined with
//! what the rank has, if it is partial results, or is the result there. A schedule is arithmetic alone: groups run it, and the
//! [model](super::events) runs the same.

use std::ops::Range;

use smallvec::SmallVec;

/// How ranks divide the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// In rank order from rank to rank, and the results back; in chunks of so many elements, which follow one another.
    Chain(usize),
    /// Shares go around the circle, half of them each way, and their results once more; parts, once.
    Ring,
    /// Half of the vector to the rank that is half of them away, half of the rest to the next one, and so on; and back.
    Halving,
    /// All of the vector to ranks at distances of powers of two.
    Doubling,
    /// Binomial trees: up to one rank, and down again.
    Tree,
}

/// What all ranks together do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Goal {
    AllReduce,
    /// One rank gets the result.
    Reduce(usize),
    /// One rank has it.
    Broadcast(usize),
    /// Each rank gets the result of the ranks up to itself.
    Scan,
    /// Each rank gets the vectors of all, one behind the other.
    AllGather,
    /// Each rank gets its part of the result.
    ReduceScatter,
}

impl Goal {
    /// Whether each rank has a part of the vector.
    pub(crate) fn has_parts(self) -> bool {
        matches!(self, Goal::AllGather | Goal::ReduceScatter)
    }

    /// What becomes of the part of a rank, in a call in which each has one.
    pub(crate) fn of_part(self, rank: usize) -> Option<Goal> {
        match self {
            Goal::AllGather => Some(Goal::Broadcast(rank)),
            Goal::ReduceScatter => Some(Goal::Reduce(rank)),
            _ => None,
        }
    }

    /// Whether contributions are combined.
    pub(crate) fn combines(self) -> bool {
        !matches!(self, Goal::Broadcast(_) | Goal::AllGather)
    }
}

/// Part of the vector that goes from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    pub(crate) peer: usize,
    /// Elements.
    pub(crate) range: Range<usize>,
    /// Whether it is a result; else it is partial results.
    pub(crate) result: bool,
}

/// What one rank does in one round: it sends what it had before, takes what it receives, and then some of it is finished.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) sends: SmallVec<[Transfer; 2]>,
    pub(crate) receives: SmallVec<[Transfer; 2]>,
    /// Partial results that have everybody's contribution now.
    pub(crate) finished: SmallVec<[Range<usize>; 2]>,
}

impl Round {
    fn send(&mut self, peer: usize, range: Range<usize>, result: bool) {
        if !range.is_empty() {
            self.sends.push(Transfer { peer, range, result });
        }
    }

    fn receive(&mut self, peer: usize, range: Range<usize>, result: bool) {
        if !range.is_empty() {
            self.receives.push(Transfer { peer, range, result });
        }
    }

    /// What another round sends is received, as results, and the other way round.
    fn turn_around(&mut self, other: Round) {
        let result = |transfer: Transfer| Transfer { result: true, ..transfer };
        self.sends.extend(other.receives.into_iter().map(result));
        self.receives.extend(other.sends.into_iter().map(result));
    }

    fn finish(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.finished.push(range);
        }
    }
}

/// The rounds of one vector, or one piece of it.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub(crate) pattern: Pattern,
    pub(crate) goal: Goal,
    pub(crate) ranks: usize,
    /// Elements of each rank's vector. Of an all-gather, ranges are those of all ranks' vectors, one behind the other.
    pub(crate) count: usize,
}

/// So many ranks, from one on, in a circle.
struct Among {
    ranks: usize,
    from: usize,
    count: usize,
}

impl Schedule {
    /// How many rounds there are. Some ranks have nothing to do in some of them.
    pub(crate) fn rounds(&self) -> usize {
        let ranks = self.ranks;
        match (self.pattern, self.goal) {
            _ if ranks < 2 || self.count == 0 => 0,
            (Pattern::Chain(chunk), goal) => {
                let chunks = self.count.div_ceil(chunk);
                let hops = match goal {
                    Goal::AllReduce => 2 * (ranks - 1),
                    Goal::Reduce(root) => ranks - 1 + usize::from(root != ranks - 1),
                    Goal::Broadcast(_) | Goal::Scan | Goal::AllGather | Goal::ReduceScatter => ranks - 1,
                };
                chunks + hops - 1
            }
            (Pattern::Ring, Goal::AllGather) => ranks - 1,
            (Pattern::Ring, _) => 2 * (ranks - 1),
            (Pattern::Halving, _) => 2 * levels(power_below(ranks)) + 2 * usize::from(!ranks.is_power_of_two()),
            (Pattern::Doubling, _) => levels(power_below(ranks)) + 2 * usize::from(!ranks.is_power_of_two()),
            (Pattern::Tree, Goal::AllReduce) => 2 * levels(ranks),
            (Pattern::Tree, _) => levels(ranks),
        }
    }

    /// What a rank does in a round.
    pub(crate) fn round(&self, rank: usize, round: usize) -> Round {
        let mut out = Round::default();
        let from = match self.goal {
            // Trees grow from the root.
            Goal::Reduce(root) | Goal::Broadcast(root) if self.pattern == Pattern::Tree => root,
            _ => 0,
        };
        let among = Among { ranks: self.ranks, from, count: self.count };
        match self.pattern {
            Pattern::Chain(chunk) => self.chain(rank, round, chunk, &mut out),
            Pattern::Ring if self.goal == Goal::AllGather => among.gather(rank, round, &mut out),
            Pattern::Ring => among.ring(rank, round, &mut out),
            Pattern::Halving => among.halving(rank, round, &mut out),
            Pattern::Doubling => among.doubling(rank, round, &mut out),
            Pattern::Tree => {
                let place = among.place(rank);
                let up = if matches!(self.goal, Goal::Broadcast(_)) { 0 } else { levels(self.ranks) };
                if round < up {
                    among.up(place, round, &mut out);
                    if round + 1 == up && place == 0 {
                        out.finish(0..self.count);
                    }
                } else {
                    among.down(place, round - up, &mut out);
                }
            }
        }
        out
    }

    /// All ranks to which a rank ever sends something, or from which it receives something, each once.
    pub(crate) fn peers(&self, rank: usize) -> Vec<usize> {
        let mut peers = Vec::new();
        // The first chunk of a chain goes the way of all.
        let first = match self.pattern {
            Pattern::Chain(chunk) => Schedule { count: self.count.min(chunk), ..self.clone() },
            _ => self.clone(),
        };
        for round in 0..first.rounds() {
            let Round { sends, receives, .. } = first.round(rank, round);
            peers.extend(sends.iter().chain(&receives).map(|transfer| transfer.peer));
        }
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    fn chain(&self, rank: usize, round: usize, chunk: usize, out: &mut Round) {
        let (ranks, last) = (self.ranks, self.ranks - 1);
        let chunks = self.count.div_ceil(chunk);
        // The chunk whose turn it is, if it began to move `before` rounds ago.
        let turn = |before: usize| -> Range<usize> {
            match round.checked_sub(before).filter(|number| *number < chunks) {
                Some(number) => number * chunk..((number + 1) * chunk).min(self.count),
                None => 0..0,
            }
        };
        if let Goal::Broadcast(root) = self.goal {
            let place = (rank + ranks - root) % ranks;
            if place < last {
                out.send((rank + 1) % ranks, turn(place), true);
            }
            if place > 0 {
                out.receive((rank + last) % ranks, turn(place - 1), true);
            }
            return;
        }
        if rank < last {
            out.send(rank + 1, turn(rank), false);
        }
        if rank > 0 {
            out.receive(rank - 1, turn(rank - 1), false);
        }
        if self.goal == Goal::Scan {
            // What goes on is no result, which may be divided: it goes first. And the first one's result is its own vector.
            if rank > 0 {
                out.finish(turn(rank.min(last - 1)));
            }
            return;
        }
        if rank == last {
            out.finish(turn(last - 1));
        }
        match self.goal {
            Goal::AllReduce => {
                if rank > 0 {
                    out.send(rank - 1, turn(2 * last - rank), true);
                }
                if rank < last {
                    out.receive(rank + 1, turn(2 * last - rank - 1), true);
                }
            }
            Goal::Reduce(root) if root != last => {
                if rank == last {
                    out.send(root, turn(last), true);
                }
                if rank == root {
                    out.receive(last, turn(last), true);
                }
            }
            _ => {}
        }
    }
}

impl Among {
    fn rank(&self, place: usize) -> usize {
        (self.from + place) % self.ranks
    }

    fn place(&self, rank: usize) -> usize {
        (rank + self.ranks - self.from) % self.ranks
    }

    fn share(&self, within: &Range<usize>, number: usize) -> Range<usize> {
        let each = within.len().div_ceil(self.ranks);
        let start = (within.start + number * each).min(within.end);
        start..(start + each).min(within.end)
    }

    /// Both halves of what goes around a circle: which, and of a rank, its place and who has the place so many steps further.
    fn halves(&self, rank: usize) -> [(Range<usize>, usize, impl Fn(usize) -> usize); 2] {
        let (ranks, place, middle) = (self.ranks, self.place(rank), self.count / 2);
        // Seen from the other side, the second half goes the same way.
        [(0..middle, false), (middle..self.count, true)].map(|(half, back)| {
            let at = if back { ranks - 1 - place } else { place };
            let peer = move |step: usize| {
                let there = (at + step) % ranks;
                self.rank(if back { ranks - 1 - there } else { there })
            };
            (half, at, peer)
        })
    }

    /// Each rank passes on, each way, what it got last, and first its own.
    fn gather(&self, rank: usize, round: usize, out: &mut Round) {
        let ranks = self.ranks;
        for (half, _, peer) in self.halves(rank) {
            let of = |steps_before: usize| {
                let start = peer(ranks - steps_before) * self.count;
                start + half.start..start + half.end
            };
            out.send(peer(1), of(round), true);
            out.receive(peer(ranks - 1), of(round + 1), true);
        }
    }

    fn ring(&self, rank: usize, round: usize, out: &mut Round) {
        let ranks = self.ranks;
        for (half, at, peer) in self.halves(rank) {
            let (next, before) = (peer(1), peer(ranks - 1));
            let share = |number: usize| self.share(&half, number % ranks);
            if round < ranks - 1 {
                out.send(next, share(at + ranks - round), false);
                out.receive(before, share(at + 2 * ranks - 1 - round), false);
                if round == ranks - 2 {
                    out.finish(share(at + 1));
                }
            } else {
                let round = round - (ranks - 1);
                out.send(next, share(at + 1 + ranks - round), true);
                out.receive(before, share(at + ranks - round), true);
            }
        }
    }

    /// Where ranks are no power of two, as many as are too many give their part to their neighbours first, and get the result
    /// in the end: the place among those that go on, or nothing.
    fn fold(&self, place: usize, out: &mut Round) -> Option<usize> {
        let extra = self.ranks - power_below(self.ranks);
        match place {
            _ if place >= 2 * extra => Some(place - extra),
            _ if place % 2 == 1 => {
                out.send(self.rank(place - 1), 0..self.count, false);
                None
            }
            _ => {
                out.receive(self.rank(place + 1), 0..self.count, false);
                Some(place / 2)
            }
        }
    }

    /// The rank that has this place among those that go on.
    fn unfolded(&self, place: usize) -> usize {
        let extra = self.ranks - power_below(self.ranks);
        self.rank(if place < extra { 2 * place } else { place + extra })
    }

    /// The place of a rank among those that go on, and which of their rounds this is, of so many; nothing if it folds, or unfolds, or takes
    /// no part.
    fn folded(&self, rank: usize, round: usize, rounds: usize, out: &mut Round) -> Option<(usize, usize)> {
        let place = self.place(rank);
        if self.ranks.is_power_of_two() {
            return Some((place, round));
        }
        match round {
            0 => {
                self.fold(place, out);
                None
            }
            last if last == rounds + 1 => {
                let mut folded = Round::default();
                self.fold(place, &mut folded);
                out.turn_around(folded);
                None
            }
            _ => Some((self.fold(place, &mut Round::default())?, round - 1)),
        }
    }

    fn halving(&self, rank: usize, round: usize, out: &mut Round) {
        let power = power_below(self.ranks);
        let levels = levels(power);
        let Some((place, round)) = self.folded(rank, round, 2 * levels, out) else { return };
        // What it has after so many halvings, and what it gave away in the last of them.
        let after = |halvings: usize| {
            let (mut mine, mut gone) = (0..self.count, 0..0);
            for level in 0..halvings {
                let middle = mine.start + mine.len().div_ceil(2);
                let (low, high) = (mine.start..middle, middle..mine.end);
                (mine, gone) = if place & (power >> (level + 1)) == 0 { (low, high) } else { (high, low) };
            }
            (mine, gone)
        };
        let level = if round < levels { round } else { 2 * levels - 1 - round };
        let peer = self.unfolded(place ^ (power >> (level + 1)));
        let (mine, gone) = after(level + 1);
        if round < levels {
            out.send(peer, gone, false);
            out.receive(peer, mine.clone(), false);
            if round + 1 == levels {
                out.finish(mine);
            }
        } else {
            out.send(peer, mine, true);
            out.receive(peer, gone, true);
        }
    }

    fn doubling(&self, rank: usize, round: usize, out: &mut Round) {
        let levels = levels(power_below(self.ranks));
        let Some((place, round)) = self.folded(rank, round, levels, out) else { return };
        let peer = self.unfolded(place ^ (1 << round));
        out.send(peer, 0..self.count, false);
        out.receive(peer, 0..self.count, false);
        if round + 1 == levels {
            out.finish(0..self.count);
        }
    }

    /// Up a binomial tree to the first of them.
    fn up(&self, place: usize, round: usize, out: &mut Round) {
        let step = 1 << round;
        if place % (2 * step) == step {
            out.send(self.rank(place - step), 0..self.count, false);
        } else if place.is_multiple_of(2 * step) && place + step < self.ranks {
            out.receive(self.rank(place + step), 0..self.count, false);
        }
    }

    /// And down again.
    fn down(&self, place: usize, round: usize, out: &mut Round) {
        let mut up = Round::default();
        self.up(place, levels(self.ranks) - 1 - round, &mut up);
        out.turn_around(up);
    }
}

/// The largest power of two that is not more.
fn power_below(ranks: usize) -> usize {
    1 << ranks.ilog2()
}

/// How often one must be doubled to reach so many.
fn levels(ranks: usize) -> usize {
    ranks.next_power_of_two().ilog2() as usize
}

#[cfg(test)]
#[path = "tests/schedule.rs"]
mod tests;
