//! Starting a process, and following it to its end.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitStatus};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

use super::Agent;
use super::api::{Because, Outcome, Process, SpawnRequest, Stream};
use super::audit::Note;
use super::limits::{self, Bound};
use super::log::Log;
use super::stage::{self, Orders};
use super::streams::{self, Ours, Output, Theirs};
use super::table::{Entry, NotStarted};

/// Bytes that are read of a stream at a time: at first, and at most. Most processes write little.
const FIRST: usize = 1 << 10;
const CHUNK: usize = 64 << 10;
/// The most bytes that a pipe holds, unless somebody with the right to it made it larger.
const PIPE: usize = 1 << 20;
/// How often the remains of a group are looked at; their end gives no sign.
const LOOK: Duration = Duration::from_millis(5);
/// How long the streams of a process that has ended may stay open: others may hold them that left its group.
const LINGER: Duration = Duration::from_secs(1);
/// How long killed processes may take to vanish. Only one that hangs inside the system takes longer.
const VANISH: Duration = Duration::from_secs(30);
/// Why something is killed that was asked to end.
const OVERDUE: &str = "its grace was over";

/// Why nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The request cannot be done by anybody.
    #[error("{0}")]
    Invalid(String),
    /// The system has refused.
    #[error("{program} was not started: {cause}")]
    System {
        /// The program.
        program: String,
        /// What the system said.
        cause: io::Error,
    },
    /// Too few slots are free.
    #[error(
        "{free} of the node's {all} slots are free, and {wanted} are needed: wait for others to end, or give it more (fulmen up --slots)"
    )]
    NoSlots {
        /// As many as are asked for.
        wanted: u32,
        /// As many as are free.
        free: u32,
        /// As many as there are.
        all: u32,
    },
    /// The agent is about to end.
    #[error("the agent is about to end, and starts nothing any more")]
    Closing,
}

fn check(request: &SpawnRequest) -> Result<(), SpawnError> {
    let invalid = |problem: String| Err(SpawnError::Invalid(problem));
    let Some(program) = request.command.first() else {
        return invalid("there is no program: name one, such as [\"true\"]".into());
    };
    if program.is_empty() {
        return invalid("the program's name is empty".into());
    }
    if let Some(argument) = request.command.iter().find(|argument| argument.contains('\0')) {
        return invalid(format!("an argument has a zero byte in it: {argument:?}"));
    }
    for (name, value) in &request.env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return invalid(format!(
                "{name:?} cannot be a variable: names have no = in them, and neither has a zero byte"
            ));
        }
    }
    request.limit.map_or(Ok(()), limits::check).map_err(SpawnError::Invalid)?;
    match &request.cwd {
        Some(cwd) if cwd.contains('\0') || !Path::new(cwd).is_absolute() => {
            invalid(format!("{cwd:?} is no absolute path to run in"))
        }
        _ => Ok(()),
    }
}

/// What is asked of a process while it runs.
struct Terms {
    /// How long it may run.
    time: Option<Duration>,
    grace: Duration,
    bound: Option<Bound>,
}

impl Agent {
    /// Starts a process. `caller` says who asked for it, and `by` names the node if it was another one.
    pub(super) fn spawn(
        self: &Arc<Agent>,
        request: &SpawnRequest,
        caller: &str,
        by: Option<String>,
    ) -> Result<Arc<Entry>, SpawnError> {
        check(request)?;
        let program = &request.command[0];
        let refused = |cause: io::Error| {
            self.audit.write(Note::Refused { caller, command: &request.command, problem: &cause.to_string() });
            SpawnError::System { program: program.clone(), cause }
        };
        let id = self.state.next_id().map_err(refused)?;
        let bound = request.limit.map(|limit| self.limits.bound(limit, id)).transpose().map_err(refused)?;
        let (Ours { stdin, stdout, stderr, terminal }, theirs) = streams::open(request).map_err(refused)?;
        let kept = request.keep_output.then(|| self.state.output(id));
        let place = kept.as_ref().map(|path| path.display().to_string());
        let started = self.table.start(
            request.slots,
            || self.launch(request, theirs, bound.as_ref()),
            |child, pid| Entry {
                info: Process {
                    id,
                    pid: child.id(),
                    command: request.command.clone(),
                    detached: request.detach,
                    by,
                    slots: request.slots,
                    started_ms: super::now_ms(),
                    outcome: None,
                    kept: place,
                },
                pid,
                log: Log::new(!request.detach),
                status: watch::Sender::new(None),
                end: watch::Sender::new(None),
                stdin: AsyncMutex::new(stdin),
                terminal: Mutex::new(terminal),
                asks: if request.tty.is_some() { Signal::HUP } else { Signal::TERM },
            },
        );
        let entry = started.map_err(|problem| match problem {
            NotStarted::Closing => SpawnError::Closing,
            NotStarted::NoSlots { free, all } => SpawnError::NoSlots { wanted: request.slots, free, all },
            NotStarted::System(cause) => refused(cause),
        })?;
        self.audit.write(Note::Spawned {
            caller,
            process: &entry.info,
            cwd: request.cwd.as_deref(),
            env: &request.env,
            limit: request.limit,
        });
        let time = request.timeout_ms.map(Duration::from_millis);
        let terms = Terms { time, grace: Duration::from_millis(request.grace_ms), bound };
        tokio::spawn(follow(self.clone(), entry.clone(), (stdout, stderr, kept), terms));
        Ok(entry)
    }

    /// Has the system start the program: at once, or in a stage that enters its bound or takes its terminal first.
    fn launch(&self, request: &SpawnRequest, streams: Theirs, bound: Option<&Bound>) -> io::Result<Child> {
        let SpawnRequest { command: words, env, cwd, .. } = request;
        let Theirs { stdin, stdout, stderr } = streams;
        let terminal = request.tty.is_some();
        let bound = bound.filter(|bound| bound.is_entered());
        let staged = terminal || bound.is_some();
        let mut command = if staged {
            let no_stage = || io::Error::other("this agent has no stage");
            let (program, args) = self.stage.split_first().ok_or_else(no_stage)?;
            let mut command = Command::new(program);
            command.args(args);
            command
        } else {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]);
            command
        };
        // By it programs find their host's agent. Where this process has it, all is inherited: that takes less than making it anew.
        let state = self.state.directory();
        if std::env::var_os(fulmen_attach::STATE).is_none_or(|own| own != state) {
            command.env(fulmen_attach::STATE, state);
        }
        if !staged {
            command.envs(env);
        }
        command.current_dir(cwd.as_deref().map_or(&*self.home, Path::new)).stdout(stdout).stderr(stderr);
        // One that takes a terminal makes a session, and leads a group with that.
        if !terminal {
            command.process_group(0);
        }
        if !staged {
            return command.stdin(stdin).spawn();
        }
        let orders = Orders { command: words.clone(), env: env.clone(), terminal };
        stage::start(command, &orders, stdin, |pid| bound.map_or(Ok(()), |bound| bound.enter(pid)))
    }

    /// Signals a process's group, and notes it.
    fn signal(&self, entry: &Entry, signal: Signal, because: &str) {
        self.table.signal(entry, signal);
        if signal != Signal::KILL {
            // A stopped process acts on it only when it is continued.
            self.table.signal(entry, Signal::CONT);
        }
        self.audit.write(Note::Signalled { id: entry.info.id, signal: signal.as_raw(), because });
    }
}

/// Sees a process to its end: the one place that tells an outcome.
async fn follow(
    agent: Arc<Agent>,
    entry: Arc<Entry>,
    (stdout, stderr, kept): (Output, Option<Output>, Option<PathBuf>),
    terms: Terms,
) {
    let started = Instant::now();
    let kept = |kind: &str| kept.as_ref().map(|path| path.with_extension(kind));
    let over = watch::Sender::new(None);
    let mut pumps = JoinSet::new();
    pumps.spawn(pump(entry.clone(), stdout, Stream::Stdout, kept("stdout"), over.subscribe()));
    if let Some(stderr) = stderr {
        pumps.spawn(pump(entry.clone(), stderr, Stream::Stderr, kept("stderr"), over.subscribe()));
    }

    let Ended { status, because, killed } = wait(&agent, &entry, &terms).await;
    // It cannot write any more, and nobody writes to it.
    entry.stdin.lock().await.take();
    entry.hang_up();
    end_remains(&agent, &entry, &terms, killed).await;
    if let Some(bound) = &terms.bound {
        bound.clear().await;
    }
    over.send_replace(Some(tokio::time::Instant::now() + LINGER));
    let mut end = entry.end.subscribe();
    tokio::select! {
        () = all(&mut pumps) => {}
        // Whoever it is held up for may not read at all.
        () = async { drop(end.wait_for(Option::is_some).await) } => {
            entry.log.release();
            all(&mut pumps).await;
        }
    }

    let outcome = Outcome {
        code: status.exit_status(),
        signal: status.terminating_signal(),
        because,
        ran_ms: started.elapsed().as_millis() as u64,
        said: None,
    };
    agent.audit.write(Note::Ended { id: entry.info.id, outcome: &outcome });
    // Whatever it wrote is its caller's, and not the log's.
    let said = if outcome.code == Some(0) { None } else { entry.log.last_words() };
    agent.table.ended(&entry, Outcome { said, ..outcome });
}

async fn all(pumps: &mut JoinSet<()>) {
    while pumps.join_next().await.is_some() {}
}

/// How a group's leader has ended.
struct Ended {
    status: WaitStatus,
    /// Why the agent wanted it to.
    because: Option<Because>,
    /// The whole group was killed.
    killed: bool,
}

/// Waits until the leader has ended, by itself or because it has to.
async fn wait(agent: &Agent, entry: &Entry, terms: &Terms) -> Ended {
    let mut status = entry.status.subscribe();
    let mut ended = async || status.wait_for(Option::is_some).await.ok().and_then(|status| *status).expect("some");
    let mut end = entry.end.subscribe();
    let over = terms.time.and_then(|time| tokio::time::Instant::now().checked_add(time));
    let because = tokio::select! {
        biased;
        status = ended() => {
            // The system kills the whole group at once, but for what is being started.
            let exceeded = terms.bound.as_ref().filter(|bound| bound.was_exceeded()).inspect(|bound| bound.kill());
            return Ended { status, because: exceeded.map(|_| Because::Memory), killed: exceeded.is_some() };
        }
        because = end.wait_for(Option::is_some) => because.ok().and_then(|because| *because).expect("some"),
        () = sleep_until(over.unwrap_or_else(tokio::time::Instant::now)), if over.is_some() => Because::Timeout,
        () = exceeded(entry, terms) => Because::Memory,
    };
    if because == Because::Memory {
        kill(agent, entry, terms, because.words());
        return Ended { status: ended().await, because: Some(because), killed: true };
    }
    agent.signal(entry, entry.asks, because.words());
    // Nobody holds it up while it ends.
    entry.log.release();
    let because = Some(because);
    let problem = tokio::select! {
        biased;
        status = ended() => return Ended { status, because, killed: false },
        () = sleep(terms.grace) => OVERDUE,
        () = exceeded(entry, terms) => Because::Memory.words(),
    };
    kill(agent, entry, terms, problem);
    Ended { status: ended().await, because, killed: true }
}

/// Returns when the process has to be killed for what it uses.
async fn exceeded(entry: &Entry, terms: &Terms) {
    match &terms.bound {
        Some(bound) => bound.exceeded(entry.pid).await,
        None => std::future::pending().await,
    }
}

/// Kills the group, and what is known to have left it.
fn kill(agent: &Agent, entry: &Entry, terms: &Terms, problem: &str) {
    agent.signal(entry, Signal::KILL, problem);
    if let Some(bound) = &terms.bound {
        bound.kill();
    }
}

/// Ends what a process has left behind in its group.
async fn end_remains(agent: &Agent, entry: &Entry, terms: &Terms, killed: bool) {
    if !agent.table.has_remains(entry) {
        return;
    }
    if !killed {
        agent.signal(entry, entry.asks, "its leader has ended");
        let problem = tokio::select! {
            ended = remains_end(agent, entry, terms.grace) => if ended { return } else { OVERDUE },
            () = exceeded(entry, terms) => Because::Memory.words(),
        };
        kill(agent, entry, terms, problem);
    }
    if !remains_end(agent, entry, VANISH).await {
        tracing::warn!(process = entry.info.id, "what it left behind cannot be killed: it hangs inside the system");
    }
}

async fn remains_end(agent: &Agent, entry: &Entry, time: Duration) -> bool {
    let end = Instant::now() + time;
    while agent.table.has_remains(entry) {
        if Instant::now() >= end {
            return false;
        }
        sleep(LOOK).await;
    }
    true
}

/// Takes what a process writes, until nobody can write any more, or `over` says when that is not waited for.
async fn pump(
    entry: Arc<Entry>,
    mut from: Output,
    stream: Stream,
    kept: Option<PathBuf>,
    mut over: watch::Receiver<Option<tokio::time::Instant>>,
) {
    let mut file = match &kept {
        Some(path) => File::create(path).await.inspect_err(|error| complain(path, error)).ok(),
        None => None,
    };
    let mut bytes = Vec::with_capacity(FIRST);
    let mut rest = None;
    loop {
        let read = match rest {
            Some(0) => break,
            Some(_) => from.try_read(&mut bytes),
            None => tokio::select! {
                biased;
                () = until(&mut over) => {
                    tracing::debug!(process = entry.info.id, "its output is still open, by a process that left its group");
                    rest = Some(PIPE.div_ceil(FIRST));
                    continue;
                }
                read = from.read(&mut bytes) => read,
            },
        };
        if !matches!(read, Ok(1..)) {
            break;
        }
        rest = rest.map(|reads| reads - 1);
        if let (Some(open), Some(path)) = (&mut file, &kept)
            && let Err(error) = open.write_all(&bytes).await
        {
            complain(path, &error);
            file = None;
        }
        entry.log.write(stream, &bytes).await;
        let full = bytes.len() == bytes.capacity();
        bytes.clear();
        if full && bytes.capacity() < CHUNK {
            bytes.reserve_exact(2 * bytes.capacity());
        }
    }
    if let (Some(mut file), Some(path)) = (file, kept)
        && let Err(error) = file.flush().await
    {
        complain(&path, &error);
    }
}

async fn until(over: &mut watch::Receiver<Option<tokio::time::Instant>>) {
    match over.wait_for(Option::is_some).await.map(|over| *over) {
        Ok(Some(over)) => sleep_until(over).await,
        // The sender outlives the readers.
        _ => std::future::pending().await,
    }
}

fn complain(path: &Path, error: &io::Error) {
    tracing::warn!(path = %path.display(), %error, "output is not kept");
}
