//! How calls go by messages: the algorithms, what each would take, and the choice of one.
//!
//! Where ranks map one another's memory there is one way (windows), and nothing to choose. Elsewhere the choice is made from the
//! number of ranks, their hosts and processors, the length, and the figures of the [`Links`] that joins them: each algorithm that may
//! be used is run in a model, message by message, and the fastest is taken. Figures are those of a link file (`FULMEN_LINKS`), or those
//! that this library has for the kind of link. They are never measured while a program runs: the same program with the same links chooses the
//! same every time, so that results in [any order](Order::Any) are the same, too.

mod choose;
mod events;
mod hosts;
mod links;
mod mapped;
mod schedule;
mod traffic;

use std::fmt;
use std::str::FromStr;

pub use self::choose::{Operation, Prediction, Question, WAKE, fastest, messages, predict};
pub(crate) use self::choose::{Planner, Wanted};
pub(crate) use self::hosts::{Division, Placement, Route, TALKS};
pub use self::links::{Inside, Links, LinksError, Shape, Ways};
pub use self::mapped::{Mapped, predict_mapped};
pub(crate) use self::schedule::{Goal, Pattern, Round, Schedule, Transfer};
pub(crate) use self::traffic::greeted;
use crate::messages::lane;

/// In which order contributions are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// In that of the ranks, whatever the algorithm: the bits of a result depend on the contributions alone.
    #[default]
    Ranks,
    /// As the algorithm has them. Results are the same on all ranks and in every run with the same ranks, lengths and links, and
    /// may differ in their last bits from those of another number of ranks, another length or other links. Sums, products and means of
    /// floats alone are concerned: everything else is exact, and goes by any algorithm always.
    Any,
}

/// How a call goes by messages. The discriminants are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Algorithm {
    /// Everybody sends everybody all that it needs, and each reduces for itself.
    Whole = 1,
    /// All contributions are passed on, in rounds of doubling, and each rank reduces for itself (Bruck).
    Rounds = 2,
    /// Everybody sends everybody its share, reduces its own, and sends the result to all.
    Shares = 3,
    /// The same, passed on in rounds of doubling.
    PassedShares = 4,
    /// From rank to rank in their order, chunk by chunk, and the results back if all get them.
    Chain = 5,
    /// Shares go around a ring in both directions, and their results once more; what is gathered, once.
    Ring = 6,
    /// Recursive halving, and doubling of the results.
    Halving = 7,
    /// Recursive doubling.
    Doubling = 8,
    /// A binomial tree, up and down.
    Tree = 9,
    /// In each host in the memory that its ranks map, and from host to host in their order.
    Hosts = 10,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 10] = [
        Algorithm::Whole,
        Algorithm::Rounds,
        Algorithm::Shares,
        Algorithm::PassedShares,
        Algorithm::Chain,
        Algorithm::Ring,
        Algorithm::Halving,
        Algorithm::Doubling,
        Algorithm::Tree,
        Algorithm::Hosts,
    ];

    /// The name by which [`FromStr`] finds it again.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Whole => "whole",
            Algorithm::Rounds => "rounds",
            Algorithm::Shares => "shares",
            Algorithm::PassedShares => "passed-shares",
            Algorithm::Chain => "chain",
            Algorithm::Ring => "ring",
            Algorithm::Halving => "halving",
            Algorithm::Doubling => "doubling",
            Algorithm::Tree => "tree",
            Algorithm::Hosts => "hosts",
        }
    }

    /// Whether contributions are combined in rank order.
    #[must_use]
    pub const fn is_in_rank_order(self) -> bool {
        (self as u8) <= Algorithm::Chain as u8 || matches!(self, Algorithm::Hosts)
    }

    pub(crate) fn of_code(code: u8) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| *algorithm as u8 == code)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text names no algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no algorithm; use one of whole, rounds, shares, passed-shares, chain, ring, halving, doubling, tree, hosts"
)]
pub struct UnknownAlgorithm(String);

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Algorithm, UnknownAlgorithm> {
        let found = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == text);
        found.ok_or_else(|| UnknownAlgorithm(text.to_owned()))
    }
}

/// Where the ranks of a group are.
#[derive(Clone, Debug)]
pub(crate) struct Sites {
    /// By rank, the number of its host.
    pub(crate) hosts: Vec<u32>,
    /// If calls can go by [`Algorithm::Hosts`].
    pub(crate) placement: Option<Placement>,
}

impl Sites {
    /// By rank, the number of its host; and whether ranks of a host map one another's memory.
    pub(crate) fn new(hosts: &[u32], mapped: bool) -> Sites {
        Sites { hosts: hosts.to_vec(), placement: Placement::new(hosts).filter(|_| mapped) }
    }
}

/// A call that is passed on.
#[derive(Clone, Debug)]
pub(crate) struct Passing {
    pattern: Pattern,
    pub(crate) goal: Goal,
    ranks: usize,
    /// Elements of a piece.
    pub(crate) piece: usize,
    /// Bytes of the group's memory for one piece under way.
    pub(crate) lane: usize,
}

/// Bytes of the longest chunk of a chain, and of the shortest.
const CHUNK: usize = 128 << 10;
const SHORTEST_CHUNK: usize = 16 << 10;

/// The longest piece of a chain, whose chunks take memory by themselves: partial results that are kept apart take as much.
const LONGEST_CHAIN: usize = 16 << 20;

/// What is shorter goes as one piece.
const HALVED: usize = 128 << 10;

impl Passing {
    /// Of so many elements, whose partial results have so many bytes; `None` if the algorithm passes on nothing.
    pub(crate) fn new(algorithm: Algorithm, goal: Goal, ranks: usize, count: usize, partial: usize) -> Option<Passing> {
        let lane = lane(ranks);
        // Each range of a round begins at a line of its own.
        let room = (lane - 4 * 64) / partial;
        let (longest, chunk) = match algorithm {
            Algorithm::Chain => {
                let chunk = (count * partial / (4 * ranks)).clamp(SHORTEST_CHUNK, CHUNK.min(lane / 2 - 2 * 64));
                (LONGEST_CHAIN / partial, (chunk / partial).max(1))
            }
            _ => (room, 0),
        };
        let pattern = match algorithm {
            Algorithm::Chain => Pattern::Chain(chunk),
            Algorithm::Ring => Pattern::Ring,
            Algorithm::Halving => Pattern::Halving,
            Algorithm::Doubling => Pattern::Doubling,
            Algorithm::Tree => Pattern::Tree,
            Algorithm::Whole | Algorithm::Rounds | Algorithm::Shares | Algorithm::PassedShares | Algorithm::Hosts => {
                return None;
            }
        };
        let least = if count * partial >= HALVED { 2 } else { 1 };
        let pieces = count.div_ceil(longest).max(least).next_multiple_of(least);
        let piece = count.div_ceil(pieces).max(1);
        Some(Passing { pattern, goal, ranks, piece, lane })
    }

    /// The rounds of so many elements.
    pub(crate) fn schedule(&self, count: usize) -> Schedule {
        Schedule { pattern: self.pattern, goal: self.goal, ranks: self.ranks, count }
    }
}
