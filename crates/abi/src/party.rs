//! Who asks, who is asked, how long that is good for, and whose turn it is.

use core::num::NonZeroU64;

use crate::check;
use crate::error::{AbiError, Field};

constants! {
    "What all records have in common."
    /// The version of all layouts: the second word of each record.
    pub const VERSION: u32 = 1, "FULMEN_ABI_VERSION";
    /// The highest number that a node can have.
    pub const NODE_MAX: u32 = 0xffff_ffef, "FULMEN_NODE_MAX";
    /// Instead of a node's number in `target_node`: the nearest gateway, a node that reaches what others cannot.
    pub const NODE_GATEWAY: u32 = 0xffff_fffe, "FULMEN_NODE_GATEWAY";
    /// Instead of a node's number in `target_node`: any node.
    pub const NODE_ANY: u32 = 0xffff_ffff, "FULMEN_NODE_ANY";
}

/// Who asks: a node, and its generation. A request whose generation is over is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Its number.
    pub node: u32,
    /// Of its world: nodes of another one are others.
    pub generation: u64,
}

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Any node.
    Any,
    /// The nearest gateway.
    Gateway,
    /// This node.
    Node(u32),
}

/// How long a requester's word is good. When the deadline has passed and was not moved, what was asked for is ended.
///
/// Deadlines are nanoseconds since 1970 (UTC), held against the clock of whoever looks: let a lease be longer than
/// clocks of nodes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Told apart by it from the requester's other leases.
    pub id: NonZeroU64,
    /// When it ends.
    pub deadline_ns: u64,
}

/// Who may change a state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    /// Who asks.
    Requester,
    /// Who serves the request: an agent, a worker, a gateway.
    Server,
    /// Both, and others that see the record.
    Anybody,
}

/// A node's number, and none of the numbers above those.
pub(crate) fn node(of: &'static str, name: &'static str, word: u32) -> Result<u32, AbiError> {
    check::code(of, name, word, |word| (word <= NODE_MAX).then_some(word))
}

impl Origin {
    pub(crate) fn read(of: &'static str, node_word: u32, generation: u64) -> Result<Origin, AbiError> {
        Ok(Origin { node: node(of, "source_node", node_word)?, generation })
    }
}

impl Target {
    pub(crate) fn read(of: &'static str, word: u32) -> Result<Target, AbiError> {
        match word {
            NODE_ANY => Ok(Target::Any),
            NODE_GATEWAY => Ok(Target::Gateway),
            word => node(of, "target_node", word).map(Target::Node),
        }
    }

    /// The word; a node's number that would mean something else is refused.
    pub(crate) fn write(self, of: &'static str) -> Result<u32, AbiError> {
        match self {
            Target::Any => Ok(NODE_ANY),
            Target::Gateway => Ok(NODE_GATEWAY),
            Target::Node(word) => node(of, "target_node", word),
        }
    }
}

impl Lease {
    pub(crate) fn read(of: &'static str, id: u64, deadline_ns: u64) -> Result<Option<Lease>, AbiError> {
        match NonZeroU64::new(id) {
            Some(id) => Ok(Some(Lease { id, deadline_ns })),
            None if deadline_ns == 0 => Ok(None),
            None => Err(AbiError::Missing { field: Field { of, name: "lease_id" } }),
        }
    }

    /// The two words.
    pub(crate) fn write(lease: Option<Lease>) -> (u64, u64) {
        lease.map_or((0, 0), |lease| (lease.id.get(), lease.deadline_ns))
    }
}
