//! What the coordinator and the ranks say to each other once both have proved themselves.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::MAX_BLOB;
use super::wire::Limits;

/// Frames that a rank sends before it has a seat.
pub(super) const ADMISSION: Limits = Limits { message: 64, body: 0 };
/// Frames that a rank sends from its seat.
pub(super) const SEATED: Limits = Limits { message: 64, body: MAX_BLOB };
/// Frames that the coordinator sends. A message can list every rank of a world, which takes at most 5 bytes each.
pub(super) const FROM_COORDINATOR: Limits = Limits { message: 5 * super::MAX_RANKS as usize + 256, body: MAX_BLOB };

/// From a rank to the coordinator.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToCoordinator {
    Join {
        rank: u32,
        size: u32,
        pid: u32,
    },
    /// This rank's part of the round; the body is its blob.
    Contribute {
        number: u64,
        round: Round,
    },
    /// This rank's deadline passed while it waited: for all seats to be taken (`None`) or for this round.
    GiveUp {
        number: Option<u64>,
    },
    Pong,
    Goodbye,
    /// What connects this rank with another one is broken: that one is to hear of it.
    Cut {
        rank: u32,
    },
}

/// From the coordinator to a rank.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToRank {
    Welcome {
        generation: u64,
        silence_ms: u64,
    },
    Refused(Refusal),
    /// All seats are taken.
    Ready,
    /// One rank's part of a finished all-gather; the body is its blob.
    Blob {
        number: u64,
        rank: u32,
    },
    /// The barrier is passed.
    Released {
        number: u64,
    },
    Lost(LostRank),
    Failed(Failure),
    Ping,
    /// This rank has found broken what connects it with the one that is told.
    Cut {
        rank: u32,
    },
}

/// An operation in which every rank takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Round {
    /// [`Session::all_gather`](super::Session::all_gather)
    AllGather,
    /// [`Session::barrier`](super::Session::barrier)
    Barrier,
}

/// A rank whose connection ended without a goodbye.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostRank {
    /// Its rank.
    pub rank: u32,
    /// Its process id.
    pub pid: u32,
    /// How its connection ended.
    pub cause: LossCause,
}

/// How the connection of a lost rank ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LossCause {
    /// It was closed without a goodbye, as the kernel does for a process that ends.
    Closed,
    /// It broke with an error of the operating system.
    Broken(String),
    /// No sign of life came for so many milliseconds.
    Silent(u64),
    /// The rank sent what the protocol does not allow.
    Violation(String),
}

/// Why the coordinator refused a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The first bytes were another protocol's; here they are, escaped.
    ForeignProtocol(String),
    /// The other side speaks another version of the protocol.
    Version {
        /// The version that the rank speaks.
        rank: u16,
        /// The version that the coordinator speaks.
        coordinator: u16,
    },
    /// The rank does not hold the world's secret.
    WrongSecret,
    /// It did not greet, prove itself and ask for its seat in time, or made way for a newer connection.
    TooSlow,
    /// It sent a frame that the protocol does not allow before a rank has its seat.
    Violation(String),
    /// The rank is not below the world's size.
    RankOutside {
        /// The rank that asked.
        rank: u32,
        /// The world's size.
        size: u32,
    },
    /// The rank believes in a world of another size.
    WrongSize {
        /// The rank that asked.
        rank: u32,
        /// The size that the rank believes in.
        theirs: u32,
        /// The world's size.
        size: u32,
    },
    /// Another process has this rank already.
    DuplicateRank {
        /// The rank that asked.
        rank: u32,
        /// The process that has the rank.
        holder: u32,
        /// The process that asked for it.
        pid: u32,
    },
    /// This rank was here and left.
    RankLeft {
        /// The rank that asked.
        rank: u32,
    },
    /// The world has failed already.
    WorldFailed(Failure),
}

/// Why a world can finish no further round. The first failure stays; every rank is told the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// A rank was lost.
    Lost(LostRank),
    /// A rank said goodbye while others need it.
    Left {
        /// The rank that left.
        rank: u32,
    },
    /// A rank's deadline passed.
    GaveUp {
        /// The rank whose deadline passed first.
        by: u32,
        /// What it waited for; `None` is the start, when all ranks take their seats.
        round: Option<Round>,
        /// The ranks that were not there.
        missing: Vec<u32>,
    },
    /// Ranks called different operations.
    Mismatch {
        /// The rank that differs.
        rank: u32,
        /// The operation that it called.
        called: Round,
        /// The operation that ranks called before it.
        others: Round,
    },
}

/// Lists ranks for a message: `1, 4, 7`, the first 16 at most.
pub(super) struct Ranks<'a>(pub &'a [u32]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rank) in self.0.iter().take(16).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{rank}")?;
        }
        if self.0.len() > 16 {
            write!(f, " … ({} in all)", self.0.len())?;
        }
        Ok(())
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Round::AllGather => "all_gather",
            Round::Barrier => "barrier",
        })
    }
}

impl fmt::Display for LostRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (pid {}) was lost: {}", self.rank, self.pid, self.cause)
    }
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossCause::Closed => f.write_str("its connection closed without a goodbye"),
            LossCause::Broken(error) => write!(f, "its connection broke ({error})"),
            LossCause::Silent(ms) => write!(f, "no sign of life for {ms} ms"),
            LossCause::Violation(what) => write!(f, "it broke the protocol ({what})"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::ForeignProtocol(first) => {
                write!(f, "the connection does not speak Fulmen's protocol (it begins with \"{first}\")")
            }
            Refusal::Version { rank, coordinator } => write!(
                f,
                "the rank speaks version {rank} of the protocol and the coordinator version {coordinator}: build both from the same release"
            ),
            Refusal::WrongSecret => {
                f.write_str("the rank does not hold this world's secret: start it through the launcher of this world")
            }
            Refusal::TooSlow => f.write_str("the connection did not take a seat in time"),
            Refusal::Violation(what) => write!(f, "the rank broke the protocol before it had a seat ({what})"),
            Refusal::RankOutside { rank, size } => {
                write!(f, "rank {rank} is outside this world of {size}: ranks go from 0 to {}", size - 1)
            }
            Refusal::WrongSize { rank, theirs, size } => write!(
                f,
                "rank {rank} was started for a world of {theirs}, but this one has {size} ranks: set FULMEN_SIZE={size}"
            ),
            Refusal::DuplicateRank { rank, holder, pid } => write!(
                f,
                "rank {rank} belongs to process {holder}, and process {pid} asked for it too: give each process a rank of its own"
            ),
            Refusal::RankLeft { rank } => write!(f, "rank {rank} was here and left: start a new world to begin again"),
            Refusal::WorldFailed(failure) => write!(f, "this world has failed ({failure}): start a new one"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Lost(lost) => lost.fmt(f),
            Failure::Left { rank } => write!(f, "rank {rank} left"),
            Failure::GaveUp { by, round: None, missing } => {
                write!(f, "rank {by} gave up waiting for ranks to join; missing: {}", Ranks(missing))
            }
            Failure::GaveUp { by, round: Some(round), missing } => {
                write!(f, "rank {by} gave up in {round}; missing: {}", Ranks(missing))
            }
            Failure::Mismatch { rank, called, others } => {
                write!(f, "rank {rank} called {called} where others called {others}")
            }
        }
    }
}
