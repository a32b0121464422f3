//! Which ranks cables join, and the cheapest paths between those that none joins.
//!
//! Pure: all ranks gather the same facts and find the same paths. A path has as few hops as there can be; of several such,
//! the one with the most cables on its way, and then the one whose first rank has the lowest number. Each rank on a path
//! decides on the next by itself, and what is left costs less at each of them: frames do not go round in circles.

mod paths;
#[cfg(test)]
mod tests;
mod wiring;

pub(crate) use paths::Paths;
pub use wiring::Wiring;

/// Why cables do not connect the ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// Only one end of a cable knows of it.
    #[error(
        "rank {from} is to reach rank {to} by {devices}, and rank {to} has no cable to rank {from}: name the cable's device at both ends, or at neither"
    )]
    OneSided {
        /// The rank that names a device.
        from: u32,
        /// The rank to which it leads.
        to: u32,
        /// The devices.
        devices: String,
    },
    /// The ends of a pair of ranks count different numbers of cables.
    #[error(
        "rank {one} has {} to rank {other} ({}), and rank {other} has {} to rank {one} ({}): name the same cables in the same order at both ends", cables(.ours.len()), .ours.join(", "), cables(.theirs.len()), .theirs.join(", ")
    )]
    Counts {
        /// The lower rank.
        one: u32,
        /// The higher rank.
        other: u32,
        /// The devices of the lower rank.
        ours: Vec<String>,
        /// The devices of the higher rank.
        theirs: Vec<String>,
    },
    /// No cables join one part of the ranks with the other.
    #[error(
        "the cables leave the ranks in parts: no cable leads from {} to {}: connect a rank of one part with one of the other", ranks(.part), ranks(.rest)
    )]
    Apart {
        /// Rank 0 and all that it reaches.
        part: Vec<u32>,
        /// The others.
        rest: Vec<u32>,
    },
}

fn cables(count: usize) -> String {
    if count == 1 { "1 cable".to_owned() } else { format!("{count} cables") }
}

/// Ranks, for people: with ranges where there are many.
fn ranks(ranks: &[u32]) -> String {
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => spans.push((*rank, *rank)),
        }
    }
    let span = |(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    let all: Vec<_> = spans.iter().map(span).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, all.join(", "))
}

/// How many cables join each two ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Graph {
    /// By rank and rank, the same both ways.
    cables: Vec<Vec<u16>>,
}

impl Graph {
    /// Ranks that nothing joins yet.
    pub(crate) fn new(size: u32) -> Graph {
        Graph { cables: vec![vec![0; size as usize]; size as usize] }
    }

    /// Cables join each two ranks.
    pub(crate) fn complete(size: u32) -> Graph {
        let cables = |rank: u32| (0..size).map(|peer| u16::from(peer != rank)).collect();
        Graph { cables: (0..size).map(cables).collect() }
    }

    /// The graph of a matrix: by rank, the devices that lead to each rank.
    ///
    /// # Errors
    /// [`TopologyError`]: the two ends of a cable disagree, or there is no path between two ranks.
    pub(crate) fn of_devices(rows: &[Vec<Vec<String>>]) -> Result<Graph, TopologyError> {
        let size = rows.len() as u32;
        let mut graph = Graph::new(size);
        let devices = |from: u32, to: u32| rows[from as usize].get(to as usize).map_or(&[][..], Vec::as_slice);
        for (one, other) in (0..size).flat_map(|one| (one + 1..size).map(move |other| (one, other))) {
            let (ours, theirs) = (devices(one, other), devices(other, one));
            let one_sided = |from, to, devices: &[String]| {
                Err(TopologyError::OneSided { from, to, devices: devices.join(" and ") })
            };
            match (ours.len(), theirs.len()) {
                (_, 0) if !ours.is_empty() => return one_sided(one, other, ours),
                (0, _) if !theirs.is_empty() => return one_sided(other, one, theirs),
                (here, there) if here != there => {
                    return Err(TopologyError::Counts { one, other, ours: ours.to_vec(), theirs: theirs.to_vec() });
                }
                (count, _) => graph.join(one, other, count.min(u16::MAX.into()) as u16),
            }
        }
        graph.check()?;
        Ok(graph)
    }

    /// So many cables join two ranks.
    pub(crate) fn join(&mut self, one: u32, other: u32, cables: u16) {
        self.cables[one as usize][other as usize] = cables;
        self.cables[other as usize][one as usize] = cables;
    }

    pub(crate) fn size(&self) -> u32 {
        self.cables.len() as u32
    }

    /// Whether a cable joins these ranks.
    pub(crate) fn is_joined(&self, one: u32, other: u32) -> bool {
        self.between(one, other) > 0
    }

    /// The cables between two ranks.
    fn between(&self, one: u32, other: u32) -> u16 {
        self.cables[one as usize][other as usize]
    }

    /// Whether cables join each two ranks.
    pub(crate) fn is_complete(&self) -> bool {
        (0..self.size()).all(|one| (one + 1..self.size()).all(|other| self.is_joined(one, other)))
    }

    /// The graph without some ranks, which keep their numbers.
    pub(crate) fn without(&self, gone: impl Fn(u32) -> bool) -> Graph {
        let mut rest = self.clone();
        for rank in (0..self.size()).filter(|rank| gone(*rank)) {
            for other in 0..self.size() {
                rest.join(rank, other, 0);
            }
        }
        rest
    }

    /// # Errors
    /// [`TopologyError::Apart`].
    fn check(&self) -> Result<(), TopologyError> {
        let mut reached = vec![false; self.size() as usize];
        let mut next: Vec<u32> = (0..self.size().min(1)).collect();
        while let Some(rank) = next.pop() {
            if !std::mem::replace(&mut reached[rank as usize], true) {
                next.extend((0..self.size()).filter(|other| self.is_joined(rank, *other)));
            }
        }
        let (part, rest): (Vec<u32>, Vec<u32>) = (0..self.size()).partition(|rank| reached[*rank as usize]);
        if rest.is_empty() { Ok(()) } else { Err(TopologyError::Apart { part, rest }) }
    }
}
