use super::Graph;

/// What a path costs: its hops, and then how narrow they are. Cheaper is less.
type Cost = (u32, u64);

/// A hop over one cable is so narrow; over two, half as narrow.
const NARROW: u64 = 1 << 16;

/// The cheapest paths between all ranks of a graph.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    /// By rank and destination: the rank to which its frames go next.
    next: Vec<Vec<Option<u32>>>,
}

impl Paths {
    pub(crate) fn new(graph: &Graph) -> Paths {
        let ranks = 0..graph.size();
        let costs: Vec<Vec<Option<Cost>>> = ranks.clone().map(|to| costs(graph, to)).collect();
        let next = |from: u32, to: u32| {
            let over = |rank: u32| {
                let hop = hop(graph, from, rank)?;
                Some((plus(costs[to as usize][rank as usize]?, hop), rank))
            };
            ranks.clone().filter(|_| from != to).filter_map(over).min().map(|(_, rank)| rank)
        };
        Paths { next: ranks.clone().map(|from| ranks.clone().map(|to| next(from, to)).collect()).collect() }
    }

    /// Where frames for `to` go next from `from`, if there is a path.
    pub(crate) fn next(&self, from: u32, to: u32) -> Option<u32> {
        *self.next.get(from as usize)?.get(to as usize)?
    }

    /// The ranks between two, in order; none if there is no path.
    pub(crate) fn between(&self, from: u32, to: u32) -> Option<Vec<u32>> {
        let mut ranks = Vec::new();
        let mut at = self.next(from, to)?;
        while at != to {
            ranks.push(at);
            at = self.next(at, to)?;
        }
        Some(ranks)
    }

    /// The pairs of ranks that talk over this one.
    pub(crate) fn over(&self, rank: u32) -> Vec<(u32, u32)> {
        let size = self.next.len() as u32;
        let pairs = (0..size).flat_map(|from| (0..size).map(move |to| (from, to)));
        pairs.filter(|(from, to)| self.between(*from, *to).is_some_and(|ranks| ranks.contains(&rank))).collect()
    }
}

fn plus(one: Cost, other: Cost) -> Cost {
    (one.0 + other.0, one.1 + other.1)
}

fn hop(graph: &Graph, from: u32, to: u32) -> Option<Cost> {
    let cables = u64::from(graph.between(from, to));
    (cables > 0).then(|| (1, NARROW / cables))
}

/// What it costs to get from each rank to this one.
fn costs(graph: &Graph, to: u32) -> Vec<Option<Cost>> {
    let mut costs = vec![None; graph.size() as usize];
    let mut done = vec![false; costs.len()];
    costs[to as usize] = Some((0, 0));
    loop {
        let known = (0..graph.size()).filter(|rank| !done[*rank as usize]);
        let Some((cost, at)) = known.filter_map(|rank| Some((costs[rank as usize]?, rank))).min() else { return costs };
        done[at as usize] = true;
        for rank in 0..graph.size() {
            let Some(hop) = hop(graph, rank, at) else { continue };
            let cost = plus(cost, hop);
            let best = &mut costs[rank as usize];
            if best.is_none_or(|best| cost < best) {
                *best = Some(cost);
            }
        }
    }
}
