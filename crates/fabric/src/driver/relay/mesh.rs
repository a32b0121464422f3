use crate::engine::{PREFIX, Reliable};
use crate::topology::Graph;

/// What all ranks know of the links of neighbours.
#[derive(Clone, Debug)]
pub(crate) struct Mesh {
    pub(crate) graph: Graph,
    /// Bytes of the longest frame that every link between neighbours carries for others.
    pub(crate) longest: usize,
}

impl Mesh {
    /// `frame` are the bytes of the shortest of all neighbours' longest frames, with what guards it.
    pub(crate) fn new(graph: Graph, frame: usize) -> Mesh {
        Mesh { graph, longest: frame.saturating_sub(Reliable::OVERHEAD + PREFIX) }
    }

    /// Bytes of the longest frame of a link over others.
    pub(crate) fn frame(&self) -> usize {
        self.longest.saturating_sub(Reliable::OVERHEAD)
    }
}
