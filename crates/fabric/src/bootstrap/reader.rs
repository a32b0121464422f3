//! The thread that reads a session's connection, and the state that it shares with those who wait.
//!
//! The thread and the connection stay when a new generation begins. Each session has a state of its own: with the word of the
//! new generation, the thread turns to a new state, and the old one changes no more.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fulmen_trust::TrustError;

use super::connection::Connection;
use super::error::{RegroupError, SessionError};
use super::message::{Failure, Formed, LossCause, LostRank, NotFormed, Round, ToCoordinator, ToRank};
use super::wire::{Decoder, Frame, head};

pub(super) type OnLost = Arc<dyn Fn(&LostRank) + Send + Sync>;
pub(super) type OnRank = Arc<dyn Fn(u32) + Send + Sync>;

pub(super) struct Shared {
    state: Mutex<State>,
    /// Notified after every change of the state that somebody may wait for.
    pub changed: Condvar,
}

pub(super) struct State {
    size: u32,
    /// All ranks have joined.
    pub complete: bool,
    next_number: u64,
    pub waiting: Option<Waiting>,
    pub failure: Option<Failure>,
    /// In the order in which they were lost.
    pub lost: Vec<LostRank>,
    pub on_lost: Vec<OnLost>,
    /// Ranks that have found broken what connects this one with them.
    pub cut: Vec<u32>,
    pub on_cut: Vec<OnRank>,
    /// Ranks that have said goodbye.
    pub left: Vec<u32>,
    pub on_left: Vec<OnRank>,
    /// The rank that first asked for a new generation.
    pub regrouping: Option<u32>,
    pub on_regroup: Vec<OnRank>,
    /// A thread asks for a new generation.
    asking: bool,
    refusal: Option<(u64, NotFormed)>,
    successor: Option<Successor>,
    /// The successor was handed out: nothing happens here any more.
    superseded: bool,
    /// How the connection to the coordinator ended.
    ended: Option<String>,
    reader_done: bool,
}

/// The session that follows.
pub(super) struct Successor {
    pub shared: Arc<Shared>,
    pub rank: u32,
    pub formed: Formed,
}

/// The round that a thread of this rank waits for.
pub(super) struct Waiting {
    number: u64,
    round: Round,
    blobs: Vec<Option<Vec<u8>>>,
    missing: usize,
    released: bool,
}

/// Why a wait ended without what was waited for.
pub(super) enum Ending {
    Failed(Failure),
    CoordinatorLost(String),
    Superseded,
    /// The deadline passed, and the coordinator did not say who was missing.
    NoVerdict,
}

impl Waiting {
    /// The blobs by rank, none for a barrier, once the round has ended.
    pub fn take_if_done(&mut self) -> Option<Vec<Vec<u8>>> {
        let done = match self.round {
            Round::AllGather => self.missing == 0,
            Round::Barrier => self.released,
        };
        done.then(|| std::mem::take(&mut self.blobs).into_iter().flatten().collect())
    }
}

impl State {
    /// Whether another session has taken this one's place.
    pub fn is_over(&self) -> bool {
        self.superseded || self.successor.is_some()
    }

    /// Notes a loss, and says who is to be told.
    fn lose(&mut self, lost: &LostRank) -> Vec<OnLost> {
        self.failure.get_or_insert_with(|| Failure::Lost(lost.clone()));
        self.lost.push(lost.clone());
        self.on_lost.clone()
    }

    /// Why no further round ends. A failure comes before the connection's end.
    pub fn ending(&self) -> Option<Ending> {
        if self.is_over() {
            return Some(Ending::Superseded);
        }
        let failed = self.failure.clone().map(Ending::Failed);
        failed.or_else(|| self.ended.clone().map(Ending::CoordinatorLost))
    }

    /// What came of asking for a new generation.
    pub fn outcome(&mut self, attempt: u64) -> Option<Result<Successor, Refused>> {
        if let Some(successor) = self.successor.take() {
            self.superseded = true;
            return Some(Ok(successor));
        }
        if let Some((_, why)) = self.refusal.take_if(|(answered, _)| *answered == attempt) {
            return Some(Err(Refused::Answer(why)));
        }
        self.ended.clone().map(|cause| Err(Refused::CoordinatorLost(cause)))
    }
}

/// Why there is no new generation.
pub(super) enum Refused {
    Answer(NotFormed),
    CoordinatorLost(String),
    /// The deadline passed, and the coordinator did not answer.
    NoVerdict,
}

impl Shared {
    pub fn new(size: u32) -> Shared {
        let state = State {
            size,
            complete: false,
            next_number: 0,
            waiting: None,
            failure: None,
            lost: Vec::new(),
            on_lost: Vec::new(),
            cut: Vec::new(),
            on_cut: Vec::new(),
            left: Vec::new(),
            on_left: Vec::new(),
            regrouping: None,
            on_regroup: Vec::new(),
            asking: false,
            refusal: None,
            successor: None,
            superseded: false,
            ended: None,
            reader_done: false,
        };
        Shared { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the next round for this rank, once no other thread of it is in one.
    pub fn begin(&self, op: Round, end: Instant) -> Result<u64, SessionError> {
        let mut state = self.wait_while(end, |state| state.waiting.is_some());
        if state.waiting.is_some() {
            return Err(SessionError::Busy { op });
        }
        if let Some(ending) = state.ending() {
            return Err(ending.error(op, 0));
        }
        let number = state.next_number;
        state.next_number += 1;
        let size = if op == Round::AllGather { state.size as usize } else { 0 };
        state.waiting = Some(Waiting { number, round: op, blobs: vec![None; size], missing: size, released: false });
        Ok(number)
    }

    /// Begins to ask for a new generation: from now on, no round of this one ends.
    pub fn begin_regroup(&self, rank: u32) -> Result<(), RegroupError> {
        let mut state = self.lock();
        if state.superseded {
            return Err(RegroupError::Superseded);
        }
        if std::mem::replace(&mut state.asking, true) {
            return Err(RegroupError::Busy);
        }
        state.failure.get_or_insert(Failure::Regrouping { rank });
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// It came to this.
    pub fn end_regroup(&self, refused: Option<&NotFormed>) {
        let mut state = self.lock();
        state.asking = false;
        if let Some(NotFormed::Partitioned { with, without }) = refused {
            state.failure = Some(Failure::Partitioned { with: with.clone(), without: without.clone() });
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Ends a session that never had a connection.
    pub fn supersede(&self) -> Result<(), RegroupError> {
        if std::mem::replace(&mut self.lock().superseded, true) { Err(RegroupError::Superseded) } else { Ok(()) }
    }

    pub fn is_superseded(&self) -> bool {
        self.lock().superseded
    }

    /// `None` if `end` came first.
    pub fn wait_for<T>(&self, end: Instant, mut done: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let mut result = None;
        drop(self.wait_while(end, |state| {
            result = done(state);
            result.is_none()
        }));
        result
    }

    /// `None` if `end` came first. What was waited for comes before what ends the session.
    pub fn wait_until<T>(
        &self,
        end: Instant,
        mut done: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<Result<T, Ending>> {
        self.wait_for(end, |state| match done(state) {
            Some(value) => Some(Ok(value)),
            None => state.ending().map(Err),
        })
    }

    pub fn wait_for_reader(&self, end: Instant) {
        drop(self.wait_while(end, |state| !state.reader_done));
    }

    /// Notes how the connection ended; the first note stays.
    pub fn close(&self, cause: &str) {
        self.lock().ended.get_or_insert_with(|| cause.to_owned());
        self.changed.notify_all();
    }

    fn wait_while(&self, end: Instant, condition: impl FnMut(&mut State) -> bool) -> MutexGuard<'_, State> {
        let left = end.saturating_duration_since(Instant::now());
        self.changed.wait_timeout_while(self.lock(), left, condition).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Ending {
    /// The error of a rank's operation.
    pub fn error(self, op: Round, rank: u32) -> SessionError {
        match self {
            Ending::Failed(failure) => SessionError::from_failure(op, &failure),
            Ending::CoordinatorLost(cause) => SessionError::CoordinatorLost { op, cause },
            Ending::Superseded => SessionError::Superseded { op },
            Ending::NoVerdict => SessionError::TimedOut { op, by: rank, missing: Vec::new() },
        }
    }
}

struct Reader {
    connection: Arc<Connection>,
    decoder: Decoder,
    /// Of the current session.
    shared: Arc<Shared>,
    silence: Duration,
    /// Its ranks, as they were launched.
    members: Vec<u32>,
    /// The rank of the launch with which the coordinator ends, and its process.
    ends_with: Option<(u32, u32)>,
}

/// Starts the thread. It ends when the connection does.
pub(super) fn start(
    connection: Arc<Connection>,
    decoder: Decoder,
    shared: Arc<Shared>,
    silence: Duration,
) -> io::Result<JoinHandle<()>> {
    let members = (0..shared.lock().size).collect();
    let mut reader = Done(Reader { connection, decoder, shared, silence, members, ends_with: None });
    thread::Builder::new().name("fulmen-session".into()).spawn(move || reader.0.run())
}

/// Tells those who wait that the thread has ended, even if a callback panicked.
struct Done(Reader);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.connection.shut_down();
        let mut state = self.0.shared.lock();
        state.reader_done = true;
        state.ended.get_or_insert_with(|| "a callback of this rank panicked on the session's thread".into());
        drop(state);
        self.0.shared.changed.notify_all();
    }
}

impl Reader {
    fn run(&mut self) {
        let cause = self.read_on();
        self.lose_host(&cause);
        self.shared.close(&cause);
    }

    /// With the coordinator, the rank is lost in whose process it is served: nobody else tells of that.
    fn lose_host(&self, cause: &str) {
        let Some((launched, pid)) = self.ends_with else { return };
        let Ok(rank) = self.members.binary_search(&launched) else { return };
        if launched == self.connection.launched || self.connection.is_leaving() {
            return;
        }
        let cause = LossCause::Broken(format!("the coordinator in its process was lost: {cause}"));
        let lost = LostRank { rank: rank as u32, pid, cause };
        let mut state = self.shared.lock();
        let callbacks = state.lose(&lost);
        drop(state);
        self.shared.changed.notify_all();
        callbacks.iter().for_each(|callback| callback(&lost));
    }

    /// Reads until the connection ends, and says how it did.
    fn read_on(&mut self) -> String {
        // Silence is counted in time-outs of reads, so that time in which this process did not run does not count.
        let tick = (self.silence / 8).max(Duration::from_millis(1));
        let mut silent = Duration::ZERO;
        let mut scratch = vec![0; 64 << 10];
        loop {
            loop {
                match self.decoder.next() {
                    Ok(Some(frame)) => {
                        if let Err(what) = self.take(frame) {
                            return what;
                        }
                    }
                    Ok(None) => break,
                    Err(error) => return format!("it sent {error}"),
                }
            }
            match self.connection.stream.read(&mut scratch, tick) {
                Ok(0) => return "it closed the connection".into(),
                Ok(count) => {
                    silent = Duration::ZERO;
                    self.decoder.push(&scratch[..count]);
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return "it closed the connection".into(),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    silent += tick;
                    if silent >= self.silence {
                        return format!("no sign of life for {} ms", silent.as_millis());
                    }
                }
                Err(error) if TrustError::behind(&error).is_some() => return error.to_string(),
                Err(error) => return error.kind().to_string(),
            }
        }
    }

    fn pong(&self) -> Result<(), String> {
        let end = Instant::now() + self.silence.max(Duration::from_millis(1));
        match self.connection.write(&[&head(&ToCoordinator::Pong, 0)], end) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err("it took no bytes".into()),
            // If the connection ended, reading on finds out how.
            _ => Ok(()),
        }
    }

    fn take(&mut self, frame: Frame) -> Result<(), String> {
        let message = frame.message::<ToRank>().map_err(|error| format!("it sent {error}"))?;
        match message {
            ToRank::Ping => return self.pong(),
            ToRank::Formed(formed) => return self.turn_to(formed),
            _ => {}
        }
        let mut state = self.shared.lock();
        let mut news = News::None;
        match message {
            ToRank::Ready => state.complete = true,
            ToRank::Released { number } => {
                if let Some(waiting) = state.waiting.as_mut().filter(|waiting| waiting.number == number) {
                    waiting.released = true;
                }
            }
            ToRank::Blob { number, rank } => {
                if let Some(waiting) = state.waiting.as_mut().filter(|waiting| waiting.number == number) {
                    let slot = waiting.blobs.get_mut(rank as usize).filter(|slot| slot.is_none());
                    *slot.ok_or("it sent a blob that belongs nowhere")? = Some(frame.body);
                    waiting.missing -= 1;
                }
            }
            ToRank::Lost(lost) => {
                let callbacks = state.lose(&lost);
                news = News::Lost(lost, callbacks);
            }
            ToRank::Cut { rank } => {
                state.cut.push(rank);
                news = News::Rank(rank, state.on_cut.clone());
            }
            ToRank::Left { rank } => {
                state.left.push(rank);
                news = News::Rank(rank, state.on_left.clone());
            }
            ToRank::Regrouping { rank } => {
                state.failure.get_or_insert(Failure::Regrouping { rank });
                if state.regrouping.is_none() {
                    state.regrouping = Some(rank);
                    news = News::Rank(rank, state.on_regroup.clone());
                }
            }
            ToRank::EndsWith { rank, pid } => self.ends_with = Some((rank, pid)),
            ToRank::NotFormed { attempt, why } => state.refusal = Some((attempt, why)),
            ToRank::Failed(failure) => {
                state.failure.get_or_insert(failure);
            }
            ToRank::Welcome { .. } | ToRank::Waits { .. } | ToRank::Refused(_) | ToRank::Ping | ToRank::Formed(_) => {
                return Err("it answered what nobody asked".into());
            }
        }
        drop(state);
        self.shared.changed.notify_all();
        match news {
            News::None => {}
            News::Lost(lost, callbacks) => callbacks.iter().for_each(|callback| callback(&lost)),
            News::Rank(rank, callbacks) => callbacks.iter().for_each(|callback| callback(rank)),
        }
        Ok(())
    }

    /// A new generation: what is read from here on belongs to its session.
    fn turn_to(&mut self, formed: Formed) -> Result<(), String> {
        let place = formed.members.binary_search(&self.connection.launched);
        let rank = place.map_err(|_| "it told of a generation without this rank")? as u32;
        self.members.clone_from(&formed.members);
        let next = Arc::new(Shared::new(formed.members.len() as u32));
        next.lock().complete = true;
        let old = std::mem::replace(&mut self.shared, next.clone());
        let mut state = old.lock();
        state.successor = Some(Successor { shared: next, rank, formed });
        // What they hold may be much, and may lock what a thread holds that looks at this state.
        let told = (
            std::mem::take(&mut state.on_lost),
            std::mem::take(&mut state.on_cut),
            std::mem::take(&mut state.on_left),
            std::mem::take(&mut state.on_regroup),
        );
        drop(state);
        drop(told);
        old.changed.notify_all();
        Ok(())
    }
}

/// What callbacks are told.
enum News {
    None,
    Lost(LostRank, Vec<OnLost>),
    Rank(u32, Vec<OnRank>),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waited(shared: &Shared) -> Option<Result<Vec<Vec<u8>>, Ending>> {
        shared.wait_until(Instant::now(), |state| state.waiting.as_mut().and_then(Waiting::take_if_done))
    }

    #[test]
    fn a_second_thread_does_not_mix_into_a_round() {
        let shared = Shared::new(2);
        assert_eq!(shared.begin(Round::Barrier, Instant::now()), Ok(0));
        let busy = shared.begin(Round::AllGather, Instant::now());
        assert_eq!(busy, Err(SessionError::Busy { op: Round::AllGather }));
        shared.lock().waiting = None;
        assert_eq!(shared.begin(Round::AllGather, Instant::now()), Ok(1));
    }

    #[test]
    fn what_came_before_the_failure_still_counts() {
        let shared = Shared::new(2);
        shared.begin(Round::Barrier, Instant::now()).unwrap();
        assert!(waited(&shared).is_none());
        shared.close("it closed the connection");
        assert!(matches!(waited(&shared), Some(Err(Ending::CoordinatorLost(_)))));
        shared.lock().failure = Some(Failure::Left { rank: 1 });
        assert!(matches!(waited(&shared), Some(Err(Ending::Failed(Failure::Left { rank: 1 })))));
        shared.lock().waiting.as_mut().unwrap().released = true;
        assert!(matches!(waited(&shared), Some(Ok(blobs)) if blobs.is_empty()));
    }
}
