//! What the coordinator and the ranks say to each other once both have proved themselves.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::MAX_BLOB;
use super::wire::Limits;

/// Frames that a rank sends before it has a seat.
pub(super) const ADMISSION: Limits = Limits { message: 64, body: 0 };
/// Frames that a rank sends from its seat.
pub(super) const SEATED: Limits = Limits { message: 64, body: MAX_BLOB };
/// Frames that the coordinator sends. A message can list every rank of a world as a member (5 bytes at most), as one that
/// may live, and as lost with a cause, whose text is short.
pub(super) const FROM_COORDINATOR: Limits = Limits { message: 256 * super::MAX_RANKS as usize + 256, body: MAX_BLOB };

/// From a rank to the coordinator. Ranks are those of the generation that a message names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToCoordinator {
    /// Asks for a seat.
    Join {
        /// The rank that the process was launched as.
        rank: u32,
        /// How many ranks it believes in.
        size: u32,
        /// Its process id.
        pid: u32,
        /// Among whose processes it has that id: another container has processes of the same ids. `None` if that is not known.
        pids: Option<u64>,
    },
    /// This rank's part of the round; the body is its blob.
    Contribute {
        /// The generation of the round; one that is over is nobody's concern any more.
        generation: u64,
        /// Rounds count from 0 in each generation.
        number: u64,
        /// What the rank called.
        round: Round,
    },
    /// This rank's deadline passed while it waited: for all seats to be taken (`None`) or for this round.
    GiveUp {
        /// The generation of the round.
        generation: u64,
        /// The round.
        number: Option<u64>,
    },
    /// The answer to [`ToRank::Ping`].
    Pong,
    /// The rank leaves; nothing follows.
    Goodbye,
    /// What connects this rank with another one is broken: that one is to hear of it.
    Cut {
        /// The generation in which the other one has this rank.
        generation: u64,
        /// The other one.
        rank: u32,
    },
    /// This rank asks for a new generation.
    Regroup {
        /// Counts what is asked on this connection, from 1. Waiting for a seat is attempt 0.
        attempt: u64,
        /// Of whom.
        how: Regroup,
    },
    /// This rank's deadline passed while it waited for a new generation.
    GiveUpRegroup {
        /// What it had asked.
        attempt: u64,
    },
}

/// From the coordinator to a rank. Ranks are those of the current generation, unless something else is said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToRank {
    /// The seat is the rank's.
    Welcome {
        /// The first generation.
        generation: u64,
        /// How long either side may be silent, in milliseconds.
        silence_ms: u64,
    },
    /// The connection is refused.
    Refused(Refusal),
    /// All seats are taken.
    Ready,
    /// One rank's part of a finished all-gather; the body is its blob.
    Blob {
        /// The round.
        number: u64,
        /// Whose blob it is.
        rank: u32,
    },
    /// The barrier is passed.
    Released {
        /// The round.
        number: u64,
    },
    /// A rank was lost; it may be the one that is told.
    Lost(LostRank),
    /// A rank said goodbye.
    Left {
        /// The rank.
        rank: u32,
    },
    /// No further round of this generation ends.
    Failed(Failure),
    /// Asks for a sign of life.
    Ping,
    /// This rank has found broken what connects it with the one that is told.
    Cut {
        /// This rank.
        rank: u32,
    },
    /// The seat belonged to a process that was lost or left: it is this one's as soon as the others ask for everybody.
    Waits {
        /// How long either side may be silent, in milliseconds.
        silence_ms: u64,
    },
    /// A rank has asked for a new generation, so that no further round of this one ends.
    Regrouping {
        /// The first that asked.
        rank: u32,
    },
    /// A new generation, of which the rank is a member. What follows belongs to it.
    Formed(Formed),
    /// What the rank asked for will not be.
    NotFormed {
        /// What it had asked.
        attempt: u64,
        /// Why.
        why: NotFormed,
    },
    /// The coordinator ends with the process of this rank of the launch. It comes with the seat.
    EndsWith {
        /// The rank.
        rank: u32,
        /// Its process id.
        pid: u32,
    },
}

/// Of whom a new generation is to consist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Regroup {
    /// Of the ranks of this generation that live and reach one another.
    Survivors,
    /// Of all ranks that were launched: those that are missing are waited for.
    Everybody,
}

/// A new generation: what all its members are told. All ranks are those of the launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Formed {
    /// A random number of its own.
    pub generation: u64,
    /// Its members in order: the first has rank 0 in it.
    pub members: Vec<u32>,
    /// The ranks of the generation before that were lost.
    pub failed: Vec<LostRank>,
    /// Processes of these ranks took part in the generation before, take no part in this one, and may still run.
    pub may_live: Vec<u32>,
}

/// Why there is no new generation for a rank. All ranks are those of the launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotFormed {
    /// A rank's deadline passed.
    TimedOut {
        /// The rank whose deadline passed first.
        by: u32,
        /// The ranks that were not there.
        missing: Vec<u32>,
    },
    /// Ranks asked for different things.
    Mismatch {
        /// The rank that differs.
        rank: u32,
        /// What it asked for.
        called: Regroup,
        /// What ranks asked for before it.
        others: Regroup,
    },
    /// The rank is on the side that may not go on.
    Partitioned {
        /// The ranks on this side.
        with: Vec<u32>,
        /// The ranks on the other side, and those of which it is not known that they have ended.
        without: Vec<u32>,
    },
    /// Another process has this rank by now, or waits for it.
    Replaced {
        /// That process.
        holder: u32,
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

/// A rank whose connection ended without a goodbye, or that others do not reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostRank {
    /// Its rank: in the session that tells of the loss, and in [`Session::failed`](super::Session::failed) that of the launch.
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
    /// The rank lives, but what connects it with others is broken.
    CutOff,
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
    /// Another process has this rank already, or waits for it.
    DuplicateRank {
        /// The rank that asked.
        rank: u32,
        /// The process that has the rank.
        holder: u32,
        /// The process that asked for it.
        pid: u32,
    },
    /// This rank was here and left before all had joined.
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
    /// A rank asked for a new generation.
    Regrouping {
        /// The rank.
        rank: u32,
    },
    /// This rank asked for a new generation and is on the side that may not go on. Ranks are those of the launch.
    Partitioned {
        /// The ranks on this side.
        with: Vec<u32>,
        /// The others.
        without: Vec<u32>,
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

impl fmt::Display for Regroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Regroup::Survivors => "the survivors",
            Regroup::Everybody => "everybody",
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
            LossCause::CutOff => f.write_str("it lives, but what connects it with others is broken"),
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
            Failure::Regrouping { rank } => write!(f, "rank {rank} asked for a new generation"),
            Failure::Partitioned { with, without } => {
                write!(f, "ranks {} are cut off from ranks {}", Ranks(with), Ranks(without))
            }
        }
    }
}
