//! One record, from the request to the outcome.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::mem::offset_of;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fulmen_abi::{
    Buffer, Command, ErrorCode, Exit, Ring, Spawn, SpawnFlags, SpawnOutcome, SpawnRequest, SpawnState, SpawnStatus,
    SpawnText, Target,
};
use fulmen_memory::Exposed;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::super::api::{self, Because, Event, Limit, Outcome, Stream};
use super::super::{Client, ClientError, Events};
use super::{OWN, Share, take};

/// How often a lease is looked at, which moves without a sign.
const LOOK: Duration = Duration::from_millis(500);
/// Bytes of standard input that are taken at a time.
const CHUNK: u64 = 64 << 10;

/// A record in shared memory.
pub(super) struct Record {
    share: Arc<Share>,
    memory: Exposed,
}

/// Why nothing is started, or what was is ended.
type Problem = (ErrorCode, i32);

const fn problem(code: ErrorCode) -> Problem {
    (code, 0)
}

impl Record {
    pub(super) fn new(share: Arc<Share>, offset: usize) -> Record {
        let memory = share.memory.slice(offset..offset + size_of::<SpawnRequest>());
        Record { share, memory }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        self.memory.atomic_u64(offset)
    }

    /// Takes the request, if there is one.
    pub(super) fn accept(&self) -> bool {
        take(self.word(offset_of!(SpawnRequest, state)), SpawnState::Written, SpawnState::Accepted)
    }

    /// A copy that nobody else writes.
    fn copy(&self) -> SpawnRequest {
        let mut bytes = [0; size_of::<SpawnRequest>()];
        self.memory.read(0, &mut bytes);
        SpawnRequest::from_bytes(&bytes).expect("as long as a record")
    }

    /// Counts for the program, after the bytes of which it is told.
    fn count(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
        self.share.ring();
    }

    /// Writes what is the agent's, but for the counters of streams, and the state last.
    fn tell(&self, status: &SpawnStatus) {
        let mut record = self.copy();
        if let Err(error) = record.set_status(status) {
            // Only by what the program has written where it must not.
            tracing::debug!(%error, "a record is damaged");
        }
        let words = offset_of!(SpawnRequest, process_id)..offset_of!(SpawnRequest, stdin_read);
        self.memory.write(words.start, &record.as_bytes()[words]);
        self.count(offset_of!(SpawnRequest, state), status.state.word());
    }

    fn done(&self, mut status: SpawnStatus, outcome: SpawnOutcome) {
        (status.state, status.outcome) = (SpawnState::Done, Some(outcome));
        self.tell(&status);
    }

    /// The memory of a buffer, if it is in this share.
    fn memory_of(&self, buffer: &Buffer) -> Result<Exposed, Problem> {
        let Share { memory, generation, slot, tag, .. } = &*self.share;
        let named = (buffer.node, buffer.generation, buffer.slot, buffer.tag) == (OWN, *generation, *slot, *tag);
        if !named || buffer.region_len != memory.len() as u64 {
            return Err(problem(ErrorCode::BufferUnreachable));
        }
        // A buffer lies in its region: it was decoded.
        Ok(memory.slice(buffer.offset as usize..(buffer.offset + buffer.len) as usize))
    }

    fn ring(&self, buffer: Option<Buffer>) -> Result<Option<(Ring, Exposed)>, Problem> {
        buffer.map(|buffer| Ok((Ring::new(&buffer), self.memory_of(&buffer)?))).transpose()
    }
}

/// What is asked for, in the agent's words.
fn translate(spawn: &Spawn<'_>, command: &Command<'_>) -> api::SpawnRequest {
    // A variable without = has no value, and the agent refuses it.
    let variable = |text: &str| {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        (name.to_owned(), value.to_owned())
    };
    let env: BTreeMap<String, String> = command.env.iter().map(variable).collect();
    let memory_bytes = spawn.limits.memory_bytes.map(NonZeroU64::get);
    let cpu_millis = spawn.limits.cpu_milli.map(|milli| u64::from(milli.get()));
    let limit = Limit { memory_bytes, cpu_millis };
    api::SpawnRequest {
        command: command.args.iter().map(str::to_owned).collect(),
        env,
        cwd: command.cwd.map(str::to_owned),
        stdin: spawn.flags.contains(SpawnFlags::STDIN),
        timeout_ms: spawn.timeout_ms.map(NonZeroU64::get),
        grace_ms: spawn.grace_ms,
        detach: spawn.flags.contains(SpawnFlags::DETACH),
        keep_output: spawn.flags.contains(SpawnFlags::KEEP_OUTPUT),
        limit: (limit != Limit::default()).then_some(limit),
        ..api::SpawnRequest::default()
    }
}

fn refused(error: &ClientError) -> Problem {
    use rustix::io::Errno;
    let ClientError::Refused { os_error, .. } = error else { return problem(ErrorCode::NodeLost) };
    let code = match os_error.map(Errno::from_raw_os_error) {
        Some(Errno::NOENT | Errno::NOTDIR) => ErrorCode::NotFound,
        Some(Errno::ACCESS | Errno::PERM) => ErrorCode::PermissionDenied,
        Some(Errno::NOMEM | Errno::AGAIN | Errno::MFILE | Errno::NFILE) => ErrorCode::ResourceExhausted,
        _ => ErrorCode::Failed,
    };
    (code, os_error.unwrap_or(0))
}

/// Serves a record that was accepted.
pub(super) async fn serve(record: Record, client: Client) {
    let mut status = SpawnStatus {
        state: SpawnState::Accepted,
        process_id: 0,
        pid: 0,
        serving_node: OWN,
        stdin_read: 0,
        stdout_written: 0,
        stderr_written: 0,
        outcome: None,
    };
    let outcome = run(&record, &client, &mut status).await.unwrap_or_else(|(code, os_error)| SpawnOutcome {
        error: Some(code),
        os_error,
        exit: None,
        ran_ns: 0,
    });
    record.done(status, outcome);
}

async fn run(record: &Record, client: &Client, status: &mut SpawnStatus) -> Result<SpawnOutcome, Problem> {
    let invalid = |error: fulmen_abi::AbiError| {
        tracing::info!(%error, "a record is refused");
        problem(ErrorCode::InvalidRequest)
    };
    let copy = record.copy();
    let spawn = copy.decode().map_err(invalid)?;
    if spawn.origin.generation != record.share.generation {
        return Err(problem(ErrorCode::StaleGeneration));
    }
    let client = match spawn.target {
        Target::Any | Target::Node(OWN) => client.clone(),
        Target::Gateway => client.on("@gateway"),
        Target::Node(_) => return Err(problem(ErrorCode::NoSuchNode)),
    };
    let mut text = Vec::new();
    let command = match spawn.text {
        SpawnText::Inline(command) => command,
        SpawnText::Buffer { buffer, counts } => {
            text.resize(buffer.len as usize, 0);
            record.memory_of(&buffer)?.read(0, &mut text);
            Command::parse(&text, counts).map_err(invalid)?
        }
    };
    let rings = [record.ring(spawn.stdout)?, record.ring(spawn.stderr)?];
    let stdin = record.ring(spawn.stdin)?;
    let request = translate(&spawn, &command);
    let (process, events) = start(&client, request).await.map_err(|error| refused(&error))?;
    status.process_id = process.id;
    status.pid = process.pid;
    status.state = SpawnState::Running;
    record.tell(status);

    let ended = OnceLock::new();
    let outcome = tokio::select! {
        outcome = show(record, events, rings, status) => outcome?,
        never = feed(record, stdin, &client, process.id) => match never {},
        never = watch(record, &spawn, &client, process.id, &ended) => match never {},
    };
    Ok(told(outcome, ended.into_inner()))
}

async fn start(client: &Client, request: api::SpawnRequest) -> Result<(api::Process, Events), ClientError> {
    if request.detach {
        let process = client.detach(request).await?;
        let events = client.attach(process.id).await?;
        return Ok((process, events));
    }
    let mut events = client.spawn(request).await?;
    match events.next().await? {
        Some(Event::Started(process)) => Ok((process, events)),
        _ => Err(ClientError::Garbled("the first event is not that it was started".into())),
    }
}

/// How it ended, and why if `ended` is what it was asked to end for.
fn told(outcome: Outcome, ended: Option<ErrorCode>) -> SpawnOutcome {
    let why = outcome.because.map(|because| match because {
        Because::Timeout => ErrorCode::TimedOut,
        Because::CallerGone => ErrorCode::Cancelled,
        Because::AgentDown => ErrorCode::Shutdown,
        Because::Memory => ErrorCode::ResourceExhausted,
    });
    let signal = outcome.signal.and_then(|signal| u8::try_from(signal).ok()).map(Exit::Signal);
    SpawnOutcome {
        error: ended.or(why),
        os_error: 0,
        exit: signal.or(outcome.code.map(|code| Exit::Code(code as u8))),
        ran_ns: outcome.ran_ms.saturating_mul(1_000_000),
    }
}

/// Brings what a process writes into its rings, and gives its outcome.
async fn show(
    record: &Record,
    mut events: Events,
    rings: [Option<(Ring, Exposed)>; 2],
    status: &mut SpawnStatus,
) -> Result<Outcome, Problem> {
    let lost = |_: ClientError| problem(ErrorCode::NodeLost);
    while let Some(event) = events.next().await.map_err(lost)? {
        match event {
            Event::Ended(outcome) => return Ok(outcome),
            Event::Output { stream, data } => {
                let bytes = data.bytes().unwrap_or_default();
                let (ring, written, words) = match stream {
                    Stream::Stdout => {
                        let words = (offset_of!(SpawnRequest, stdout_read), offset_of!(SpawnRequest, stdout_written));
                        (&rings[0], &mut status.stdout_written, words)
                    }
                    Stream::Stderr => {
                        let words = (offset_of!(SpawnRequest, stderr_read), offset_of!(SpawnRequest, stderr_written));
                        (&rings[1], &mut status.stderr_written, words)
                    }
                };
                if let Some(ring) = ring {
                    fill(record, ring, &bytes, written, words).await;
                }
            }
            Event::Started(_) | Event::Missed { .. } => {}
        }
    }
    Err(problem(ErrorCode::NodeLost))
}

/// Writes bytes into a ring as there is room. Once the process is to end, or the program breaks the ring's rules, what has no room is lost.
async fn fill(
    record: &Record,
    (ring, memory): &(Ring, Exposed),
    mut bytes: &[u8],
    written: &mut u64,
    (read, counter): (usize, usize),
) {
    let mut rung = record.share.written.subscribe();
    while !bytes.is_empty() {
        rung.borrow_and_update();
        let Ok(free) = ring.free(*written, record.word(read).load(Ordering::Acquire)) else { return };
        let before = bytes.len();
        for piece in [free.first, free.second] {
            let (now, later) = bytes.split_at(bytes.len().min((piece.end - piece.start) as usize));
            memory.write(piece.start as usize, now);
            bytes = later;
        }
        if bytes.len() < before {
            *written += (before - bytes.len()) as u64;
            record.count(counter, *written);
        } else if is_cancelled(record) || rung.changed().await.is_err() {
            return;
        }
    }
}

fn is_cancelled(record: &Record) -> bool {
    record.word(offset_of!(SpawnRequest, cancel)).load(Ordering::Acquire) != 0
}

/// Brings the ring of standard input to the process.
async fn feed(record: &Record, ring: Option<(Ring, Exposed)>, client: &Client, id: u64) -> Infallible {
    let Some((ring, memory)) = ring else { return std::future::pending().await };
    let (sender, receiver) = mpsc::channel::<io::Result<Vec<u8>>>(1);
    let bytes = futures_util::stream::unfold(receiver, |mut from| async move { Some((from.recv().await?, from)) });
    let bring = client.stdin(id, bytes);
    let take = async move {
        let mut rung = record.share.written.subscribe();
        let mut read = 0;
        loop {
            rung.borrow_and_update();
            // In this order: what was written before it was closed is seen.
            let closed = record.word(offset_of!(SpawnRequest, stdin_closed)).load(Ordering::Acquire) != 0;
            let written = record.word(offset_of!(SpawnRequest, stdin_written)).load(Ordering::Acquire);
            let Ok(filled) = ring.filled(written.min(read + CHUNK).max(read), read) else { return };
            if filled.is_empty() {
                if closed || rung.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let mut bytes = vec![0; filled.len() as usize];
            let first = (filled.first.end - filled.first.start) as usize;
            memory.read(filled.first.start as usize, &mut bytes[..first]);
            memory.read(filled.second.start as usize, &mut bytes[first..]);
            read += bytes.len() as u64;
            if sender.send(Ok(bytes)).await.is_err() {
                return;
            }
            record.count(offset_of!(SpawnRequest, stdin_read), read);
        }
    };
    let (brought, ()) = tokio::join!(bring, take);
    if let Err(error) = brought {
        tracing::debug!(%error, "standard input was not brought to its end");
    }
    std::future::pending().await
}

/// Has the process end when the program wants that, or its lease is over, and says why.
async fn watch(
    record: &Record,
    spawn: &Spawn<'_>,
    client: &Client,
    id: u64,
    ended: &OnceLock<ErrorCode>,
) -> Infallible {
    let mut rung = record.share.written.subscribe();
    let why = loop {
        rung.borrow_and_update();
        if is_cancelled(record) {
            break ErrorCode::Cancelled;
        }
        let leased = spawn.lease.is_some() && !spawn.flags.contains(SpawnFlags::DETACH);
        let deadline = record.word(offset_of!(SpawnRequest, lease_deadline_ns)).load(Ordering::Acquire);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
        if leased && now > u128::from(deadline) {
            break ErrorCode::LeaseExpired;
        }
        tokio::select! {
            changed = rung.changed() => if changed.is_err() { return std::future::pending().await },
            () = sleep(LOOK), if leased => {}
        }
    };
    let _ = ended.set(why);
    for (signal, time) in [(15, spawn.grace_ms), (9, 0)] {
        if let Err(error) = client.signal(id, signal).await {
            tracing::debug!(%error, id, "a process was not signalled");
        }
        sleep(Duration::from_millis(time)).await;
    }
    std::future::pending().await
}
