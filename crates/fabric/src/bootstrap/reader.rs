//! The thread that reads a session's connection, and the state that it shares with those who wait.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::error::SessionError;
use super::message::{Failure, LostRank, Round, ToCoordinator, ToRank};
use super::wire::{Decoder, Frame, head};

pub(super) type OnLost = Arc<dyn Fn(&LostRank) + Send + Sync>;
pub(super) type OnCut = Arc<dyn Fn(u32) + Send + Sync>;

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
    pub on_cut: Vec<OnCut>,
    /// How the connection to the coordinator ended.
    ended: Option<String>,
    reader_done: bool,
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
        if let Some(failure) = &state.failure {
            return Err(SessionError::from_failure(op, failure));
        }
        if let Some(cause) = &state.ended {
            return Err(SessionError::CoordinatorLost { op, cause: cause.clone() });
        }
        let number = state.next_number;
        state.next_number += 1;
        let size = if op == Round::AllGather { state.size as usize } else { 0 };
        state.waiting = Some(Waiting { number, round: op, blobs: vec![None; size], missing: size, released: false });
        Ok(number)
    }

    /// `None` if `end` came first. What was waited for comes before a failure, and a failure before the connection's end.
    pub fn wait_until<T>(
        &self,
        end: Instant,
        mut done: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<Result<T, Ending>> {
        let mut result = None;
        drop(self.wait_while(end, |state| {
            result = match (done(state), &state.failure, &state.ended) {
                (Some(value), _, _) => Some(Ok(value)),
                (None, Some(failure), _) => Some(Err(Ending::Failed(failure.clone()))),
                (None, None, Some(cause)) => Some(Err(Ending::CoordinatorLost(cause.clone()))),
                (None, None, None) => None,
            };
            result.is_none()
        }));
        result
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

struct Reader {
    stream: TcpStream,
    decoder: Decoder,
    shared: Arc<Shared>,
    writer: Arc<Mutex<TcpStream>>,
    silence: Duration,
}

/// Starts the thread. It ends when the connection does.
pub(super) fn start(
    stream: TcpStream,
    decoder: Decoder,
    shared: Arc<Shared>,
    writer: Arc<Mutex<TcpStream>>,
    silence: Duration,
) -> io::Result<JoinHandle<()>> {
    let reader = Reader { stream, decoder, shared, writer, silence };
    thread::Builder::new().name("fulmen-session".into()).spawn(move || reader.run())
}

/// Tells those who wait that the thread has ended, even if a callback panicked.
struct Done(Arc<Shared>);

impl Drop for Done {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.reader_done = true;
        state.ended.get_or_insert_with(|| "a callback of this rank panicked on the session's thread".into());
        drop(state);
        self.0.changed.notify_all();
    }
}

impl Reader {
    fn run(mut self) {
        let done = Done(self.shared.clone());
        let cause = self.read_on();
        self.shared.close(&cause);
        let _ = self.stream.shutdown(Shutdown::Both);
        drop(done);
    }

    /// Reads until the connection ends, and says how it did.
    fn read_on(&mut self) -> String {
        // Silence is counted in time-outs of reads, so that time in which this process did not run does not count.
        let tick = (self.silence / 8).max(Duration::from_millis(1));
        let mut silent = Duration::ZERO;
        if let Err(error) = self.stream.set_read_timeout(Some(tick)) {
            return error.to_string();
        }
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
            match self.stream.read(&mut scratch) {
                Ok(0) => return "it closed the connection".into(),
                Ok(count) => {
                    silent = Duration::ZERO;
                    self.decoder.push(&scratch[..count]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    silent += tick;
                    if silent >= self.silence {
                        return format!("no sign of life for {} ms", silent.as_millis());
                    }
                }
                Err(error) => return error.kind().to_string(),
            }
        }
    }

    fn pong(&self) -> Result<(), String> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let timeout = self.silence.max(Duration::from_millis(1));
        let done =
            writer.set_write_timeout(Some(timeout)).and_then(|()| writer.write_all(&head(&ToCoordinator::Pong, 0)));
        match done {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err("it took no bytes".into()),
            // If the connection ended, reading on finds out how.
            _ => Ok(()),
        }
    }

    fn take(&mut self, frame: Frame) -> Result<(), String> {
        let message = frame.message::<ToRank>().map_err(|error| format!("it sent {error}"))?;
        if matches!(message, ToRank::Ping) {
            return self.pong();
        }
        let mut state = self.shared.lock();
        let (mut news, mut cut) = (None, None);
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
                state.failure.get_or_insert_with(|| Failure::Lost(lost.clone()));
                state.lost.push(lost.clone());
                news = Some((lost, state.on_lost.clone()));
            }
            ToRank::Cut { rank } => {
                state.cut.push(rank);
                cut = Some((rank, state.on_cut.clone()));
            }
            ToRank::Failed(failure) => {
                state.failure.get_or_insert(failure);
            }
            ToRank::Welcome { .. } | ToRank::Refused(_) | ToRank::Ping => {
                return Err("it answered what nobody asked".into());
            }
        }
        drop(state);
        self.shared.changed.notify_all();
        if let Some((lost, callbacks)) = news {
            for callback in callbacks {
                callback(&lost);
            }
        }
        if let Some((rank, callbacks)) = cut {
            for callback in callbacks {
                callback(rank);
            }
        }
        Ok(())
    }
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
