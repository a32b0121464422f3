//! What can go wrong for a rank.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::coordinator::BindError;
use super::message::{Failure, LossCause, LostRank, NotFormed, Ranks, Regroup, Round};

/// Why a rank could not join its world.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The configuration names no possible rank.
    #[error("rank {rank} of {size} is impossible: a world has 1 to {max} ranks, and they count from 0", max = super::MAX_RANKS)]
    Impossible {
        /// The rank that was asked for.
        rank: u32,
        /// The size that was given.
        size: u32,
    },
    /// This is rank 0, which serves the coordinator, and it cannot.
    #[error("rank 0 cannot serve the coordinator: {0}; FULMEN_COORDINATOR names another address")]
    Bind(BindError),
    /// Rank 0 of this host did not say where it serves the coordinator.
    #[error(
        "rank 0 did not say within {waited:.1?} where the ranks meet ({} is {state}): check that it runs on this host, or set FULMEN_COORDINATOR for all ranks", .path.display()
    )]
    NoMeeting {
        /// How long it was waited for.
        waited: Duration,
        /// Where it would say so.
        path: PathBuf,
        /// What is there instead.
        state: &'static str,
    },
    /// This is rank 0, and it cannot tell the others where they meet.
    #[error("rank 0 cannot say in {} where the ranks meet ({cause}): make room there, or set FULMEN_COORDINATOR for all ranks", .path.display())]
    Announce {
        /// Where it would say so.
        path: PathBuf,
        /// What the system said.
        cause: String,
    },
    /// The name of rank 0's host means nothing here.
    #[error(
        "the host {host} is not known here ({cause}): correct the name, or set FULMEN_COORDINATOR to an address of rank 0's host"
    )]
    Unresolved {
        /// The name.
        host: String,
        /// What the system said.
        cause: String,
    },
    /// Nothing answered at the coordinator's address until the deadline.
    #[error(
        "no coordinator at {coordinator} within {waited:.1?} ({cause}): check that it runs and that FULMEN_COORDINATOR names it"
    )]
    Unreachable {
        /// Where it was looked for.
        coordinator: SocketAddr,
        /// How long.
        waited: Duration,
        /// What happened at the last attempt.
        cause: String,
    },
    /// Something else listens at the coordinator's address.
    #[error("{coordinator} does not speak Fulmen's protocol (it begins with \"{first}\"): check FULMEN_COORDINATOR")]
    ForeignProtocol {
        /// The address.
        coordinator: SocketAddr,
        /// Its first bytes, escaped.
        first: String,
    },
    /// The coordinator speaks another version.
    #[error(
        "this rank speaks version {ours} of the protocol and the coordinator version {theirs}: build both from the same release"
    )]
    Version {
        /// This rank's version.
        ours: u16,
        /// The coordinator's version.
        theirs: u16,
    },
    /// The two sides do not hold the same secret.
    #[error(
        "the coordinator at {0} and this rank do not hold the same secret: start the rank through the launcher of its world, or give all hosts the same key file (FULMEN_SECRET_FILE)"
    )]
    WrongSecret(SocketAddr),
    /// The connection cannot be sealed, and not for want of the secret.
    #[error("the connection to the coordinator at {coordinator} cannot be sealed: {cause}")]
    Unsealed {
        /// The address.
        coordinator: SocketAddr,
        /// Why not, and what to do.
        cause: String,
    },
    /// The coordinator's world does not have this rank.
    #[error("rank {rank} is outside the coordinator's world of {size} ranks: check FULMEN_RANK and FULMEN_SIZE")]
    RankOutside {
        /// The rank that was asked for.
        rank: u32,
        /// The world's size.
        size: u32,
    },
    /// The coordinator's world has another size.
    #[error(
        "this rank was started for a world of {ours}, but the coordinator's has {theirs} ranks: set FULMEN_SIZE={theirs}"
    )]
    WrongSize {
        /// The size that this rank was given.
        ours: u32,
        /// The world's size.
        theirs: u32,
    },
    /// Another process has this rank.
    #[error(
        "rank {rank} belongs to process {holder} already, this is process {pid}: give each process a rank of its own"
    )]
    DuplicateRank {
        /// The rank.
        rank: u32,
        /// The process that has it.
        holder: u32,
        /// This process.
        pid: u32,
    },
    /// This rank was in the world and left; or another one did with whose process the world ends.
    #[error("rank {rank} was in this world and left: wait longer for the end of this world, or start a new one")]
    RankLeft {
        /// The rank that left.
        rank: u32,
    },
    /// Ranks did not come until the deadline of a rank that waited. Every rank that had joined gets the same list.
    #[error(
        "ranks did not join in time; missing: {}: see what became of their processes, wait longer, or set FULMEN_LAUNCHER=none to run it alone", Ranks(.missing)
    )]
    Missing {
        /// The rank whose deadline passed first.
        by: u32,
        /// The ranks that did not come; empty if the coordinator did not even answer that question.
        missing: Vec<u32>,
    },
    /// This rank's seat was another process's, which was lost or left; this one may have it when the others ask for
    /// everybody, and they did not until the deadline.
    #[error(
        "rank {rank} of a running world waited for the others to call rejoin; missing: {}: have them call it when a rank is lost, or wait longer", Ranks(.missing)
    )]
    NotAwaited {
        /// This rank.
        rank: u32,
        /// The ranks that did not ask, or whose seats nobody took; empty if the coordinator did not even answer that question.
        missing: Vec<u32>,
    },
    /// A rank was lost before all had joined.
    #[error("rank {rank} (pid {pid}) was lost before all ranks had joined: {cause}; see its output")]
    PeerLost {
        /// The lost rank.
        rank: u32,
        /// Its process id.
        pid: u32,
        /// How its connection ended.
        cause: LossCause,
    },
    /// A rank left before all had joined.
    #[error("rank {rank} left before all ranks had joined: see its output")]
    PeerLeft {
        /// The rank that left.
        rank: u32,
    },
    /// The world's ranks disagree already.
    #[error("the world failed before this rank joined: {0}; start a new one")]
    WorldFailed(Failure),
    /// The coordinator was lost before all had joined.
    #[error("the coordinator at {coordinator} was lost ({cause}): see the launcher's output")]
    CoordinatorLost {
        /// Where it was.
        coordinator: SocketAddr,
        /// How its connection ended.
        cause: String,
    },
    /// The operating system refused something that a session needs.
    #[error("cannot open the session: {0}")]
    System(String),
}

/// Why ranks could not finish an operation together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// A rank was lost.
    #[error("{op}: rank {rank} (pid {pid}) was lost: {cause}; see its output")]
    PeerLost {
        /// The operation.
        op: Round,
        /// The lost rank.
        rank: u32,
        /// Its process id.
        pid: u32,
        /// How its connection ended.
        cause: LossCause,
    },
    /// A rank left, so that the operation can never finish.
    #[error("{op}: rank {rank} has left; every rank must take part before it ends")]
    PeerLeft {
        /// The operation.
        op: Round,
        /// The rank that left.
        rank: u32,
    },
    /// A rank's deadline passed. All ranks get this error, and the session finishes no further operation.
    #[error("{op}: rank {by} gave up waiting; missing: {}: see what they do, or wait longer", Ranks(.missing))]
    TimedOut {
        /// The operation.
        op: Round,
        /// The rank whose deadline passed first.
        by: u32,
        /// The ranks that had not come; empty if the coordinator did not even answer that question.
        missing: Vec<u32>,
    },
    /// Ranks called different operations.
    #[error(
        "rank {rank} called {called} where others called {others}: call the same operations in the same order on every rank"
    )]
    Mismatch {
        /// The rank that differs.
        rank: u32,
        /// What it called.
        called: Round,
        /// What others called.
        others: Round,
    },
    /// The coordinator was lost.
    #[error("{op}: the coordinator was lost ({cause}): see the launcher's output")]
    CoordinatorLost {
        /// The operation.
        op: Round,
        /// How its connection ended.
        cause: String,
    },
    /// The blob is too long.
    #[error("all_gather: a blob of {len} bytes is too long: at most {max} are allowed", max = super::MAX_BLOB)]
    TooLong {
        /// Its length.
        len: usize,
    },
    /// A rank asked for a new generation.
    #[error("{op}: rank {rank} asked for a new generation (regroup): ask for it on every rank")]
    Regrouping {
        /// The operation.
        op: Round,
        /// The first rank that asked.
        rank: u32,
    },
    /// This rank is on the side that may not go on. Ranks are those of the launch.
    #[error(
        "{op}: ranks {} are cut off from ranks {}: only the others go on; rejoin them when they are reached again", Ranks(.with), Ranks(.without)
    )]
    Partitioned {
        /// The operation.
        op: Round,
        /// The ranks on this side.
        with: Vec<u32>,
        /// The others.
        without: Vec<u32>,
    },
    /// There is a newer generation of this world: [`Session::regroup`](super::Session::regroup) has returned its session.
    #[error("{op}: this session is over, there is a newer generation: use the session that regroup has returned")]
    Superseded {
        /// The operation.
        op: Round,
    },
    /// Another thread of this rank is in an operation of the same session, and did not end until the deadline.
    #[error("{op}: another thread of this rank is in an operation of this session: call them one after another")]
    Busy {
        /// The operation.
        op: Round,
    },
}

/// Why a rank got no new generation. All ranks are those of the launch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegroupError {
    /// This rank is on the side that may not go on: the others may, or nobody knows whether they do. It may ask again, for
    /// the survivors once it is known that the others have ended, or for everybody.
    #[error(
        "ranks {} are cut off from ranks {}, which may go on without them: end here, or rejoin when all are reached again", Ranks(.with), Ranks(.without)
    )]
    Partitioned {
        /// The ranks on this side.
        with: Vec<u32>,
        /// The ranks on the other side, and those of which it is not known that they have ended.
        without: Vec<u32>,
    },
    /// Ranks did not come until the deadline of a rank that waited. All ranks of the generation that asked get this error; they
    /// may ask again.
    #[error("no new generation in time: rank {by} gave up; missing: {}: see what they do, or wait longer", Ranks(.missing))]
    TimedOut {
        /// The rank whose deadline passed first.
        by: u32,
        /// The ranks that did not ask, or whose seats nobody took; empty if the coordinator did not even answer that question.
        missing: Vec<u32>,
    },
    /// Ranks asked for different things. All that asked get this error; they may ask again.
    #[error(
        "rank {rank} asked for a generation of {called} where others asked for one of {others}: call the same on every rank"
    )]
    Mismatch {
        /// The rank that differs.
        rank: u32,
        /// What it asked for.
        called: Regroup,
        /// What others asked for.
        others: Regroup,
    },
    /// Another process has this rank by now, or waits for it.
    #[error("rank {rank} belongs to process {holder} by now: end this process")]
    Replaced {
        /// This rank.
        rank: u32,
        /// The process that has it.
        holder: u32,
    },
    /// There is a newer generation already.
    #[error("this session is over, there is a newer generation: use the session that regroup has returned")]
    Superseded,
    /// Another thread of this rank asks already.
    #[error("another thread of this rank asks for a new generation already: let one thread ask")]
    Busy,
    /// The coordinator was lost.
    #[error("no new generation: the coordinator was lost ({cause}): join again if the launcher still runs")]
    CoordinatorLost {
        /// How its connection ended.
        cause: String,
    },
}

impl RegroupError {
    pub(super) fn new(rank: u32, why: NotFormed) -> RegroupError {
        match why {
            NotFormed::TimedOut { by, missing } => RegroupError::TimedOut { by, missing },
            NotFormed::Mismatch { rank, called, others } => RegroupError::Mismatch { rank, called, others },
            NotFormed::Partitioned { with, without } => RegroupError::Partitioned { with, without },
            NotFormed::Replaced { holder } => RegroupError::Replaced { rank, holder },
        }
    }
}

impl SessionError {
    pub(super) fn from_failure(op: Round, failure: &Failure) -> SessionError {
        match failure.clone() {
            Failure::Lost(LostRank { rank, pid, cause }) => SessionError::PeerLost { op, rank, pid, cause },
            Failure::Left { rank } => SessionError::PeerLeft { op, rank },
            Failure::GaveUp { by, missing, round: _ } => SessionError::TimedOut { op, by, missing },
            Failure::Mismatch { rank, called, others } => SessionError::Mismatch { rank, called, others },
            Failure::Regrouping { rank } => SessionError::Regrouping { op, rank },
            Failure::Partitioned { with, without } => SessionError::Partitioned { op, with, without },
        }
    }
}

impl JoinError {
    pub(super) fn from_failure(failure: &Failure) -> JoinError {
        match failure.clone() {
            Failure::Lost(LostRank { rank, pid, cause }) => JoinError::PeerLost { rank, pid, cause },
            Failure::Left { rank } => JoinError::PeerLeft { rank },
            Failure::GaveUp { by, round: None, missing } => JoinError::Missing { by, missing },
            other => JoinError::WorldFailed(other),
        }
    }
}
