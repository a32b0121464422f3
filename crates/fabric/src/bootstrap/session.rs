//! A rank's side of the bootstrap.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_trust::Identity;

use super::connection::{Admitted, Connection, connect};
use super::coordinator::Serving;
use super::error::{JoinError, RegroupError, SessionError};
use super::message::{Failure, Formed, LostRank, NotFormed, Refusal, Regroup, Round, ToCoordinator, ToRank};
use super::reader::{self, Ending, OnLost, OnRank, Refused, Shared, State, Successor, Waiting};
use super::secret::{Secret, random};
use super::wire::head;
use super::{MAX_BLOB, MAX_RANKS};
use crate::clock::after;

/// How long a rank whose deadline passed waits for the coordinator to say who was missing.
const VERDICT: Duration = Duration::from_secs(10);

/// How a rank joins its world.
#[derive(Debug, Clone)]
pub struct JoinConfig {
    /// Where the coordinator is.
    pub coordinator: SocketAddr,
    /// This rank, from 0.
    pub rank: u32,
    /// How many ranks there are, 1 to [`MAX_RANKS`].
    pub size: u32,
    /// The world's secret.
    pub secret: Secret,
    /// How long to wait for the coordinator and for all other ranks.
    pub deadline: Duration,
}

/// A rank's place in one generation of its world. Dropping the session of the last generation says goodbye (and waits up to 2 s
/// until that is heard). A process that ends without dropping it is lost to the others, and so is a thread that panics while
/// it holds it.
///
/// Every rank calls the same operations in the same order. The first failure is the last: after it, every operation on
/// every rank ends with an error at once. [`Session::regroup`] begins anew, without the ranks that are lost or with others in
/// their place.
pub struct Session {
    rank: u32,
    formed: Formed,
    shared: Arc<Shared>,
    /// None in a world of one.
    connection: Option<Arc<Connection>>,
}

impl Session {
    /// A world of one rank, which needs no coordinator.
    pub fn alone() -> Session {
        // The generation tells worlds apart; a world of one has nobody to mistake for another's.
        let generation = random().map(u64::from_le_bytes).unwrap_or(u64::from(std::process::id()));
        let shared = Arc::new(Shared::new(1));
        Session { rank: 0, formed: Formed::first(1, generation), shared, connection: None }
    }

    /// Joins the world and returns once all ranks have. Tries again, with growing pauses, while no coordinator answers.
    ///
    /// In a world that runs already, a process takes the place of one that was lost or left: it waits until the others call
    /// [`Session::regroup`] for [`Regroup::Everybody`], and is then a rank of the new generation. Where a rank serves the
    /// coordinator, only the place of one that was lost is to be had.
    ///
    /// Returns within the deadline, plus up to 10 s in which the coordinator may say which ranks are missing.
    pub fn join(config: &JoinConfig) -> Result<Session, JoinError> {
        Session::join_while(config, &|| true)
    }

    /// As [`Session::join`], but tries no longer to reach the coordinator when `is_meant` says that it is not the one to reach.
    pub(crate) fn join_while(config: &JoinConfig, is_meant: &dyn Fn() -> bool) -> Result<Session, JoinError> {
        let JoinConfig { coordinator, rank, size, deadline, .. } = *config;
        if rank >= size || size > MAX_RANKS {
            return Err(JoinError::Impossible { rank, size });
        }
        let end = after(deadline);
        let Admitted { stream, identity, decoder, answer } = connect(config, end, is_meant)?;
        let (first, silence_ms) = match answer {
            ToRank::Welcome { generation, silence_ms } => (Some(generation), silence_ms),
            ToRank::Waits { silence_ms } => (None, silence_ms),
            ToRank::Refused(refusal) => return Err(refused(refusal, size)),
            _ => return Err(JoinError::System("the coordinator answered what nobody asked".into())),
        };

        let connection = Arc::new(Connection::new(stream, identity, rank));
        let shared = Arc::new(Shared::new(size));
        let silence = Duration::from_millis(silence_ms);
        let reader = reader::start(connection.clone(), decoder, shared.clone(), silence)
            .map_err(|error| JoinError::System(error.to_string()))?;
        connection.set_reader(reader);
        let formed = Formed::first(size, first.unwrap_or(0));
        let session = Session { rank, formed, shared, connection: Some(connection.clone()) };
        match first {
            Some(_) => session.wait_for_all(&connection, coordinator, end).map(|()| session),
            None => session.wait_for_seat(&connection, coordinator, end),
        }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks this generation has.
    pub fn size(&self) -> u32 {
        self.formed.members.len() as u32
    }

    /// A random number that is the same on all ranks of this generation and belongs to no other.
    pub fn generation(&self) -> u64 {
        self.formed.generation
    }

    /// The rank of the launch of each rank of this generation. In the first one, and after [`Regroup::Everybody`], these are
    /// the same.
    pub fn members(&self) -> &[u32] {
        &self.formed.members
    }

    /// The ranks, as they were launched, that were lost between the generation before and this one: the same on all ranks.
    pub fn failed(&self) -> &[LostRank] {
        &self.formed.failed
    }

    /// The ranks, as they were launched, of which a process was in the generation before, is not in this one, and may still
    /// run: stopped, or cut off. The same on all ranks. Of all others that were lost it is known that they have ended.
    pub fn may_live(&self) -> &[u32] {
        &self.formed.may_live
    }

    /// Gives this rank's blob (at most [`MAX_BLOB`] bytes) to all and returns everybody's, by rank.
    ///
    /// Returns within the deadline, plus up to 10 s in which the coordinator may say which ranks are missing. When one rank's
    /// deadline passes, the operation ends with [`SessionError::TimedOut`] on all.
    pub fn all_gather(&self, blob: &[u8], deadline: Duration) -> Result<Vec<Vec<u8>>, SessionError> {
        if blob.len() > MAX_BLOB {
            return Err(SessionError::TooLong { len: blob.len() });
        }
        self.take_part(Round::AllGather, blob, deadline)
    }

    /// Returns once all ranks have called it. Its bounds are those of [`Session::all_gather`].
    pub fn barrier(&self, deadline: Duration) -> Result<(), SessionError> {
        self.take_part(Round::Barrier, &[], deadline).map(drop)
    }

    /// Begins a new generation, with the ranks that `how` says, and returns this rank's session of it. Collective among the
    /// ranks of this session that are not lost; with [`Regroup::Everybody`] it also waits for processes in the place of those
    /// that are. From the first call on, operations of this session end with an error on all ranks, and once there is a new
    /// generation with [`SessionError::Superseded`]; this session then needs no goodbye.
    ///
    /// The coordinator decides, and all members are told the same. With [`Regroup::Survivors`]:
    ///
    /// - The new generation is the largest set of live ranks no two of which are cut off from each other; of several, the one
    ///   with the lowest ranks. They are numbered anew, in the order of the launch.
    /// - It must be the majority of itself and of those that may go on elsewhere: ranks that are cut off from it, and lost ranks
    ///   whose process is not known to have ended. A tie is won by the side with the lowest rank. All others get
    ///   [`RegroupError::Partitioned`].
    ///
    /// With [`Regroup::Everybody`], all ranks of the launch are members again under their old numbers. Each seat goes to whoever
    /// has it, or waits for it in [`Session::join`], or was left behind alive and asks for everybody on its old session.
    ///
    /// What connects the ranks must stay until this returns: if it were taken down before, ranks that have not asked yet would
    /// find each other cut off.
    ///
    /// Returns within the deadline, plus up to 10 s in which the coordinator may answer. The first rank whose deadline
    /// passes ends the attempt for all with [`RegroupError::TimedOut`]. After an error, ranks may ask again.
    ///
    /// # Errors
    /// [`RegroupError`], which names the ranks that are missing or on the other side.
    pub fn regroup(&self, how: Regroup, deadline: Duration) -> Result<Session, RegroupError> {
        let Some(connection) = &self.connection else {
            return self.shared.supersede().map(|()| Session::alone());
        };
        self.shared.begin_regroup(self.rank)?;
        let end = after(deadline);
        let attempt = connection.next_attempt();
        // Even without a moment left the others learn that this rank asked. An error is the connection's end, which the reader
        // notes.
        let _ = connection.write(&[&head(&ToCoordinator::Regroup { attempt, how }, 0)], end + VERDICT);
        let outcome = self.wait_for_successor(connection, attempt, end);
        let why = if let Err(Refused::Answer(why)) = &outcome { Some(why) } else { None };
        self.shared.end_regroup(why);
        outcome.map_err(|refused| match refused {
            Refused::Answer(why) => RegroupError::new(connection.launched, why),
            Refused::CoordinatorLost(cause) => RegroupError::CoordinatorLost { cause },
            Refused::NoVerdict => RegroupError::TimedOut { by: connection.launched, missing: Vec::new() },
        })
    }

    /// This end of the connection to the coordinator: an address by which the coordinator's host reaches this one. None in a
    /// world of one.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.connection.as_ref()?.stream.tcp().local_addr().ok()
    }

    /// By what this process is known to the coordinator, and to whoever else holds the world's secret. None in a world of one.
    pub fn identity(&self) -> Option<&Identity> {
        Some(&self.connection.as_ref()?.identity)
    }

    /// The rank that was lost first, if any was.
    pub fn lost(&self) -> Option<LostRank> {
        self.shared.lock().lost.first().cloned()
    }

    /// Has `callback` called once for every rank of this generation that is lost: at once for those lost already, on this
    /// thread, and for others when it happens, on the session's reader thread, which tells nothing else meanwhile. The callback
    /// must return soon and must not wait for an operation of this session. It is let go of when a new generation begins.
    ///
    /// The lost rank can be this one: the process was stopped for so long that the others go on without it.
    pub fn on_lost(&self, callback: impl Fn(&LostRank) + Send + Sync + 'static) {
        let callback: OnLost = Arc::new(callback);
        let Some(lost) = self.register(|state| {
            state.on_lost.push(callback.clone());
            state.lost.clone()
        }) else {
            return;
        };
        for rank in &lost {
            callback(rank);
        }
    }

    /// As [`Session::on_lost`], for ranks that have found broken what connects this one with them.
    pub(crate) fn on_cut(&self, callback: impl Fn(u32) + Send + Sync + 'static) {
        let callback: OnRank = Arc::new(callback);
        let cut = self.register(|state| {
            state.on_cut.push(callback.clone());
            state.cut.clone()
        });
        for rank in cut.unwrap_or_default() {
            callback(rank);
        }
    }

    /// As [`Session::on_lost`], for ranks that have said goodbye.
    pub(crate) fn on_left(&self, callback: impl Fn(u32) + Send + Sync + 'static) {
        let callback: OnRank = Arc::new(callback);
        let left = self.register(|state| {
            state.on_left.push(callback.clone());
            state.left.clone()
        });
        for rank in left.unwrap_or_default() {
            callback(rank);
        }
    }

    /// As [`Session::on_lost`], for the first rank that asks for a new generation: the others must ask too, since it takes
    /// no part in this one any more.
    pub fn on_regroup(&self, callback: impl Fn(u32) + Send + Sync + 'static) {
        let callback: OnRank = Arc::new(callback);
        let rank = self.register(|state| {
            state.on_regroup.push(callback.clone());
            state.regrouping
        });
        if let Some(rank) = rank.flatten() {
            callback(rank);
        }
    }

    /// `None` where no callback will be called any more.
    fn register<T>(&self, add: impl FnOnce(&mut State) -> T) -> Option<T> {
        let mut state = self.shared.lock();
        (self.connection.is_some() && !state.is_over()).then(|| add(&mut state))
    }

    /// A way to have a rank told that what connects it with this one is broken. It does not wait, and the coordinator hears
    /// of it before all that this rank says later.
    pub(crate) fn cutter(&self) -> impl Fn(u32) + Send + Sync + 'static {
        let (connection, generation) = (self.connection.clone(), self.generation());
        move |rank| {
            if let Some(connection) = &connection {
                connection.queue(&head(&ToCoordinator::Cut { generation, rank }, 0));
            }
        }
    }

    /// Says goodbye: for the others this is no loss. The same as dropping the session.
    pub fn leave(self) {}

    /// Ends the connection without a goodbye, as the end of the process would.
    #[cfg(feature = "conformance")]
    pub(crate) fn hang_up(&self) {
        if let Some(connection) = &self.connection {
            connection.shut_down();
        }
    }

    /// Keeps the coordinator, which this process serves, and what leads ranks to it as long as the connection: at its end, other
    /// ranks get some time to leave, too, and nobody is led there any more.
    pub(crate) fn keep(&self, serving: Serving, beside: impl Send + 'static) {
        if let Some(connection) = &self.connection {
            connection.keep(serving, Box::new(beside));
        }
    }

    fn wait_for_all(&self, connection: &Connection, coordinator: SocketAddr, end: Instant) -> Result<(), JoinError> {
        let ready = |state: &mut State| state.complete.then_some(());
        match self.wait(connection, end, None, ready) {
            Ok(()) => Ok(()),
            Err(Ending::Failed(failure)) => Err(JoinError::from_failure(&failure)),
            Err(Ending::CoordinatorLost(cause)) => Err(JoinError::CoordinatorLost { coordinator, cause }),
            // Nobody asks for another generation before the first one is complete.
            Err(Ending::NoVerdict | Ending::Superseded) => {
                Err(JoinError::Missing { by: self.rank, missing: Vec::new() })
            }
        }
    }

    fn wait_for_seat(
        &self,
        connection: &Arc<Connection>,
        coordinator: SocketAddr,
        end: Instant,
    ) -> Result<Session, JoinError> {
        let rank = self.rank;
        self.wait_for_successor(connection, 0, end).map_err(|refused| match refused {
            Refused::Answer(NotFormed::TimedOut { missing, .. }) => JoinError::NotAwaited { rank, missing },
            Refused::CoordinatorLost(cause) => JoinError::CoordinatorLost { coordinator, cause },
            Refused::Answer(_) | Refused::NoVerdict => JoinError::NotAwaited { rank, missing: Vec::new() },
        })
    }

    /// Waits for what comes of asking for a new generation; at `end`, gives up and waits for the verdict.
    fn wait_for_successor(&self, connection: &Arc<Connection>, attempt: u64, end: Instant) -> Result<Session, Refused> {
        let mut outcome = self.shared.wait_for(end, |state| state.outcome(attempt));
        if outcome.is_none() {
            let end = end + VERDICT;
            let _ = connection.write(&[&head(&ToCoordinator::GiveUpRegroup { attempt }, 0)], end);
            outcome = self.shared.wait_for(end, |state| state.outcome(attempt));
        }
        let Some(outcome) = outcome else {
            // The others may yet go on with this rank among them: it must be seen to be gone.
            self.shared.close("it did not answer");
            connection.shut_down();
            return Err(Refused::NoVerdict);
        };
        let Successor { shared, rank, formed } = outcome?;
        Ok(Session { rank, formed, shared, connection: Some(connection.clone()) })
    }

    fn take_part(&self, op: Round, blob: &[u8], deadline: Duration) -> Result<Vec<Vec<u8>>, SessionError> {
        let Some(connection) = &self.connection else {
            return if self.shared.is_superseded() {
                Err(SessionError::Superseded { op })
            } else {
                Ok(vec![blob.to_vec()])
            };
        };
        let (rank, end) = (self.rank, after(deadline));
        let number = self.shared.begin(op, end)?;
        let result = self.contribute(connection, op, number, blob, end).and_then(|()| {
            let done = |state: &mut State| state.waiting.as_mut().and_then(Waiting::take_if_done);
            self.wait(connection, end, Some(number), done)
        });
        let mut state = self.shared.lock();
        state.waiting = None;
        if let Err(Ending::NoVerdict) = result {
            // The round may still end for others, so this rank must never take part in another one.
            state.failure.get_or_insert(Failure::GaveUp { by: rank, round: Some(op), missing: Vec::new() });
        }
        drop(state);
        self.shared.changed.notify_all();
        result.map_err(|ending| ending.error(op, rank))
    }

    fn contribute(
        &self,
        connection: &Connection,
        round: Round,
        number: u64,
        blob: &[u8],
        end: Instant,
    ) -> Result<(), Ending> {
        let head = head(&ToCoordinator::Contribute { generation: self.generation(), number, round }, blob.len());
        // Even without a moment left the others learn that this rank came.
        match connection.write(&[&head, blob], end + VERDICT) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let cause = "it takes no bytes";
                self.shared.close(cause);
                Err(Ending::CoordinatorLost(cause.into()))
            }
            // Another error is the connection's end. The reader may still have the reason before it.
            _ => Ok(()),
        }
    }

    /// Waits until `done` or a failure; at `end`, gives up the round, or the start, and waits for the verdict.
    fn wait<T>(
        &self,
        connection: &Connection,
        end: Instant,
        number: Option<u64>,
        mut done: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Ending> {
        if let Some(result) = self.shared.wait_until(end, &mut done) {
            return result;
        }
        let end = end + VERDICT;
        let give_up = ToCoordinator::GiveUp { generation: self.generation(), number };
        // If it cannot be written, the reader finds the connection's end or the verdict does not come.
        let _ = connection.write(&[&head(&give_up, 0)], end);
        self.shared.wait_until(end, &mut done).unwrap_or(Err(Ending::NoVerdict))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection
            && !self.shared.is_superseded()
        {
            connection.leave(&self.shared);
        }
    }
}

impl Formed {
    /// The first generation, of all that were launched.
    fn first(size: u32, generation: u64) -> Formed {
        Formed { generation, members: (0..size).collect(), failed: Vec::new(), may_live: Vec::new() }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generation = format_args!("{:#018x}", self.generation());
        f.debug_struct("Session")
            .field("rank", &self.rank)
            .field("size", &self.size())
            .field("generation", &generation)
            .finish()
    }
}

fn refused(refusal: Refusal, ours: u32) -> JoinError {
    match refusal {
        Refusal::RankOutside { rank, size } => JoinError::RankOutside { rank, size },
        Refusal::WrongSize { size, .. } => JoinError::WrongSize { ours, theirs: size },
        Refusal::DuplicateRank { rank, holder, pid } => JoinError::DuplicateRank { rank, holder, pid },
        Refusal::RankLeft { rank } => JoinError::RankLeft { rank },
        Refusal::WorldFailed(failure) => JoinError::from_failure(&failure),
        other => JoinError::System(other.to_string()),
    }
}
