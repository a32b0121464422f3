use super::{Graph, Paths};

/// Which ranks cables join, and the ways between all ranks, as they were when these connected: every rank has the same.
#[derive(Clone, Debug)]
pub struct Wiring {
    graph: Graph,
    paths: Paths,
}

impl Wiring {
    pub(crate) fn new(graph: Graph) -> Wiring {
        Wiring { paths: Paths::new(&graph), graph }
    }

    /// How many cables join two ranks.
    #[must_use]
    pub fn cables(&self, one: u32, other: u32) -> u32 {
        let known = one.max(other) < self.graph.size();
        if known { self.graph.between(one, other).into() } else { 0 }
    }

    /// The ranks between two, in order, as [`Fabric::path`](crate::Fabric::path) had them at the start; none for those that cables join.
    #[must_use]
    pub fn between(&self, from: u32, to: u32) -> Vec<u32> {
        self.paths.between(from, to).unwrap_or_default()
    }
}
