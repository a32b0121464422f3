//! A rank's side of the bootstrap.

use std::fmt;
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::error::{JoinError, SessionError};
use super::greeting::{self, GreetError, left};
use super::message::{FROM_COORDINATOR, Failure, LostRank, Refusal, Round, ToCoordinator, ToRank};
use super::reader::{self, Ending, OnCut, OnLost, Shared, State, Waiting};
use super::secret::{Secret, random};
use super::wire::{Decoder, head};
use super::{MAX_BLOB, MAX_RANKS};
use crate::clock::after;

/// The pause after the first attempt to reach the coordinator; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How long a rank whose deadline passed waits for the coordinator to say who was missing.
const VERDICT: Duration = Duration::from_secs(10);
/// How long the word that a connection between ranks is broken may take to go out.
const CUT: Duration = Duration::from_secs(1);
/// How long a goodbye waits for the coordinator to take notice.
const FAREWELL: Duration = Duration::from_secs(2);

/// How a rank joins its world.
#[derive(Debug, Clone)]
pub struct JoinConfig {
    /// Where the coordinator is; a loopback address.
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

/// A rank's place in its world. Dropping it says goodbye (and waits up to 2 s until that is heard). A process that ends
/// without dropping it is lost to the others, and so is a thread that panics while it holds it.
///
/// Every rank calls the same operations in the same order. The first failure is the last: after it, every operation on
/// every rank ends with an error at once.
pub struct Session {
    rank: u32,
    size: u32,
    generation: u64,
    link: Option<Link>,
}

struct Link {
    shared: Arc<Shared>,
    writer: Arc<Mutex<TcpStream>>,
    reader: Option<JoinHandle<()>>,
}

impl Session {
    /// A world of one rank, which needs no coordinator.
    pub fn alone() -> Session {
        // The generation tells worlds apart; a world of one has nobody to mistake for another's.
        let generation = random().map(u64::from_le_bytes).unwrap_or(u64::from(std::process::id()));
        Session { rank: 0, size: 1, generation, link: None }
    }

    /// Joins the world and returns once all ranks have. Tries again, with growing pauses, while no coordinator answers.
    ///
    /// Returns within the deadline, plus up to 10 s in which the coordinator may say which ranks are missing.
    pub fn join(config: &JoinConfig) -> Result<Session, JoinError> {
        let JoinConfig { coordinator, rank, size, deadline, .. } = *config;
        if rank >= size || size > MAX_RANKS {
            return Err(JoinError::Impossible { rank, size });
        }
        if !coordinator.ip().is_loopback() {
            return Err(JoinError::NotLoopback(coordinator));
        }
        let end = after(deadline);
        let Admitted { stream, decoder, answer } = connect(config, end)?;
        let (generation, silence) = match answer {
            ToRank::Welcome { generation, silence_ms } => (generation, Duration::from_millis(silence_ms)),
            ToRank::Refused(refusal) => return Err(refused(refusal, size)),
            _ => return Err(JoinError::System("the coordinator answered what nobody asked".into())),
        };

        let system = |error: io::Error| JoinError::System(error.to_string());
        let writer = Arc::new(Mutex::new(stream.try_clone().map_err(system)?));
        let shared = Arc::new(Shared::new(size));
        let reader = reader::start(stream, decoder, shared.clone(), writer.clone(), silence).map_err(system)?;
        let session = Session { rank, size, generation, link: Some(Link { shared, writer, reader: Some(reader) }) };
        session.wait_for_all(coordinator, end)?;
        Ok(session)
    }

    /// This rank, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks the world has.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// A random number that is the same on all ranks of this world and on no other.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Gives this rank's blob (at most [`MAX_BLOB`] bytes) to all and returns everybody's, by rank.
    ///
    /// Returns within the deadline, plus up to 10 s in which the coordinator may say which ranks are missing. When one rank's
    /// deadline passes, the operation ends with [`SessionError::TimedOut`] on all.
    pub fn all_gather(&self, blob: &[u8], deadline: Duration) -> Result<Vec<Vec<u8>>, SessionError> {
        if blob.len() > MAX_BLOB {
            return Err(SessionError::TooLong { len: blob.len() });
        }
        match &self.link {
            None => Ok(vec![blob.to_vec()]),
            Some(link) => link.take_part(Round::AllGather, blob, self.rank, deadline),
        }
    }

    /// Returns once all ranks have called it. Its bounds are those of [`Session::all_gather`].
    pub fn barrier(&self, deadline: Duration) -> Result<(), SessionError> {
        match &self.link {
            None => Ok(()),
            Some(link) => link.take_part(Round::Barrier, &[], self.rank, deadline).map(drop),
        }
    }

    /// The rank that was lost first, if any was.
    pub fn lost(&self) -> Option<LostRank> {
        self.link.as_ref().and_then(|link| link.shared.lock().lost.first().cloned())
    }

    /// Has `callback` called once for every lost rank: at once for those lost already, on this thread, and for others when it
    /// happens, on the session's reader thread, which tells nothing else meanwhile. The callback must return soon and must not
    /// wait for an operation of this session.
    pub fn on_lost(&self, callback: impl Fn(&LostRank) + Send + Sync + 'static) {
        let Some(link) = &self.link else { return };
        let callback: OnLost = Arc::new(callback);
        let mut state = link.shared.lock();
        state.on_lost.push(callback.clone());
        let lost = state.lost.clone();
        drop(state);
        for rank in &lost {
            callback(rank);
        }
    }

    /// As [`Session::on_lost`], for ranks that have found broken what connects this one with them.
    pub(crate) fn on_cut(&self, callback: impl Fn(u32) + Send + Sync + 'static) {
        let Some(link) = &self.link else { return };
        let callback: OnCut = Arc::new(callback);
        let mut state = link.shared.lock();
        state.on_cut.push(callback.clone());
        let cut = state.cut.clone();
        drop(state);
        for rank in cut {
            callback(rank);
        }
    }

    /// A way to have a rank told that what connects it with this one is broken. It waits only where the coordinator takes
    /// no bytes, and then for 1 s at most beyond what is being written.
    pub(crate) fn cutter(&self) -> impl Fn(u32) + Send + Sync + 'static {
        let link = self.link.as_ref().map(|link| (link.shared.clone(), link.writer.clone()));
        move |rank| {
            let Some((shared, writer)) = &link else { return };
            let message = head(&ToCoordinator::Cut { rank }, 0);
            match write(writer, &[&message], Instant::now() + CUT) {
                // Half a frame may be on the way: nothing can follow it.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => shared.close("it takes no bytes"),
                // Where the connection is gone, the coordinator tells of that.
                _ => {}
            }
        }
    }

    /// Says goodbye: for the others this is no loss. The same as dropping the session.
    pub fn leave(self) {}

    /// Ends the connection without a goodbye, as the end of the process would.
    #[cfg(feature = "conformance")]
    pub(crate) fn hang_up(&self) {
        if let Some(link) = &self.link {
            let stream = link.writer.lock().unwrap_or_else(PoisonError::into_inner);
            // An error means that it has ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn wait_for_all(&self, coordinator: SocketAddr, end: Instant) -> Result<(), JoinError> {
        let Some(link) = &self.link else { return Ok(()) };
        let ready = |state: &mut State| state.complete.then_some(());
        match link.wait(end, ToCoordinator::GiveUp { number: None }, ready) {
            Ok(()) => Ok(()),
            Err(Ending::Failed(failure)) => Err(JoinError::from_failure(&failure)),
            Err(Ending::CoordinatorLost(cause)) => Err(JoinError::CoordinatorLost { coordinator, cause }),
            Err(Ending::NoVerdict) => Err(JoinError::Missing { by: self.rank, missing: Vec::new() }),
        }
    }
}

impl Link {
    fn take_part(&self, op: Round, blob: &[u8], rank: u32, deadline: Duration) -> Result<Vec<Vec<u8>>, SessionError> {
        let end = after(deadline);
        let number = self.shared.begin(op, end)?;
        let result = self.contribute(op, number, blob, end).and_then(|()| {
            let done = |state: &mut State| state.waiting.as_mut().and_then(Waiting::take_if_done);
            self.wait(end, ToCoordinator::GiveUp { number: Some(number) }, done)
        });
        let mut state = self.shared.lock();
        state.waiting = None;
        if let Err(Ending::NoVerdict) = result {
            // The round may still end for others, so this rank must never take part in another one.
            state.failure.get_or_insert(Failure::GaveUp { by: rank, round: Some(op), missing: Vec::new() });
        }
        drop(state);
        self.shared.changed.notify_all();
        result.map_err(|ending| match ending {
            Ending::Failed(failure) => SessionError::from_failure(op, &failure),
            Ending::CoordinatorLost(cause) => SessionError::CoordinatorLost { op, cause },
            Ending::NoVerdict => SessionError::TimedOut { op, by: rank, missing: Vec::new() },
        })
    }

    fn contribute(&self, round: Round, number: u64, blob: &[u8], end: Instant) -> Result<(), Ending> {
        let head = head(&ToCoordinator::Contribute { number, round }, blob.len());
        // Even without a moment left the others learn that this rank came.
        match write(&self.writer, &[&head, blob], end + VERDICT) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                // Half a frame may be on the way: nothing can follow it.
                let cause = "it takes no bytes";
                self.shared.close(cause);
                Err(Ending::CoordinatorLost(cause.into()))
            }
            // Another error is the connection's end. The reader may still have the reason before it.
            _ => Ok(()),
        }
    }

    /// Waits until `done` or a failure; at `end`, asks the coordinator for a verdict and waits for that.
    fn wait<T>(
        &self,
        end: Instant,
        give_up: ToCoordinator,
        mut done: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Ending> {
        if let Some(result) = self.shared.wait_until(end, &mut done) {
            return result;
        }
        let end = end + VERDICT;
        // If it cannot be written, the reader finds the connection's end or the verdict does not come.
        let _ = write(&self.writer, &[&head(&give_up, 0)], end);
        self.shared.wait_until(end, &mut done).unwrap_or(Err(Ending::NoVerdict))
    }
}

/// Writes all pieces until `end`.
fn write(writer: &Mutex<TcpStream>, pieces: &[&[u8]], end: Instant) -> io::Result<()> {
    let mut stream = writer.lock().unwrap_or_else(PoisonError::into_inner);
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            stream.set_write_timeout(Some(left(end)?))?;
            match stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

impl Drop for Link {
    fn drop(&mut self) {
        let Some(reader) = self.reader.take() else { return };
        let end = Instant::now() + FAREWELL;
        let on_reader = reader.thread().id() == thread::current().id();
        if !thread::panicking() {
            let _ = write(&self.writer, &[&head(&ToCoordinator::Goodbye, 0)], end);
        }
        let stream = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        // Closing with bytes unread would reset the connection and could take the goodbye back, so the coordinator ends it.
        let _ = stream.shutdown(Shutdown::Write);
        if !on_reader {
            self.shared.wait_for_reader(end);
        }
        let _ = stream.shutdown(Shutdown::Both);
        drop(stream);
        if !on_reader {
            let _ = reader.join();
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generation = format_args!("{:#018x}", self.generation);
        f.debug_struct("Session")
            .field("rank", &self.rank)
            .field("size", &self.size)
            .field("generation", &generation)
            .finish()
    }
}

/// A connection whose two sides know each other, and what the coordinator said to the rank that asked for its seat.
struct Admitted {
    stream: TcpStream,
    decoder: Decoder,
    answer: ToRank,
}

/// Reaches the coordinator and asks for a seat, again and again until `end` while nobody answers.
fn connect(config: &JoinConfig, end: Instant) -> Result<Admitted, JoinError> {
    let JoinConfig { coordinator, deadline: waited, .. } = *config;
    let mut pause = FIRST_PAUSE;
    let mut cause = String::from("there was no time to try");
    loop {
        let Ok(rest) = left(end) else { return Err(JoinError::Unreachable { coordinator, waited, cause }) };
        match attempt(config, rest, end) {
            Ok(admitted) => return Ok(admitted),
            Err(GreetError::Io(error)) => cause = error.to_string(),
            Err(GreetError::Foreign(first)) => return Err(JoinError::ForeignProtocol { coordinator, first }),
            Err(GreetError::Version(theirs)) => {
                return Err(JoinError::Version { ours: super::PROTOCOL_VERSION, theirs });
            }
            Err(GreetError::WrongSecret) => return Err(JoinError::WrongSecret(coordinator)),
            Err(GreetError::NoRandomness(error)) => return Err(JoinError::System(error.to_string())),
        }
        thread::sleep(pause.min(end.saturating_duration_since(Instant::now())));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn attempt(config: &JoinConfig, rest: Duration, end: Instant) -> Result<Admitted, GreetError> {
    let mut stream = TcpStream::connect_timeout(&config.coordinator, rest)?;
    // A port that nobody listens on can be given to the very connection that looks for it, which then meets itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
    }
    stream.set_nodelay(true)?;
    greeting::greet(&mut stream, &config.secret, end)?;
    let join = ToCoordinator::Join { rank: config.rank, size: config.size, pid: std::process::id() };
    stream.write_all(&head(&join, 0))?;
    let mut decoder = Decoder::new(FROM_COORDINATOR);
    let frame = loop {
        if let Some(frame) = decoder.next().map_err(io::Error::other)? {
            break frame;
        }
        // Byte by byte is slow and exact: what follows this frame stays for the reader.
        let mut byte = [0];
        greeting::read_exact(&mut stream, &mut byte, end)?;
        decoder.push(&byte);
    };
    let answer = frame.message().map_err(io::Error::other)?;
    Ok(Admitted { stream, decoder, answer })
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
