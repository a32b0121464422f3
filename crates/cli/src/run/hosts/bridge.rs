//! The launcher's end of a host: a thread that stands in for the supervisors of that host's ranks.
//!
//! For each rank it holds the other ends of what a supervisor would have: a socket, over which signals come in and reports go
//! out, and two pipes for what the rank writes. Nothing here waits for a reader of output: what a pipe does not take is kept,
//! which is little, since the host sends no more than was passed on.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Pid;

use super::super::control::{self, Event, Report};
use super::super::signals::{name, time_left};
use super::connection::{Connection, Took, never_block};
use super::error::why_lost;
use super::flow::Flow;
use super::parcel::Shelf;
use super::protocol::{INPUT_WINDOW, ToHost, ToLauncher, event_with, signal_from_wire, signal_to_wire};

/// Bytes of input that are read at once.
const CHUNK: usize = 32 << 10;
/// How long it may take to tell a host that the launcher is about to be stopped.
const PAUSE: Duration = Duration::from_secs(1);
/// How many times the beat either side may be silent.
const SILENT_BEATS: u32 = 6;

/// How often each side of a conversation gives a sign of life, and how long it may be silent, where ranks may be silent so long.
pub fn beat(silence: Duration) -> (Duration, Duration) {
    let beat = (silence / 2).clamp(Duration::from_millis(50), Duration::from_secs(3600));
    (beat, beat * SILENT_BEATS)
}

/// A host at work, as the launcher sees it. Dropping it ends the connection, and the host its ranks.
pub struct Bridge {
    /// What the host is called.
    pub name: String,
    /// The ssh process.
    pub pid: Pid,
    commands: Sender<Command>,
    wake: UnixStream,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The ends of a rank's socket and pipes that a supervisor would have.
pub struct Remote {
    /// The rank.
    pub rank: u32,
    /// For signals and reports.
    pub control: UnixStream,
    /// Standard output and standard error.
    pub output: [OwnedFd; 2],
}

enum Command {
    Start(Remote),
    Pause(SyncSender<()>),
    Record,
    Finish(Option<Shelf>),
    Abandon,
    Quit,
}

#[derive(Default)]
struct Shared {
    why: Mutex<Option<String>>,
    recorded: AtomicBool,
    brought: AtomicBool,
}

impl Bridge {
    /// Takes over a connection whose host is ready. Words that come from there go to `words`. If it `reads`, the first rank is
    /// there and gets this process's standard input.
    pub fn start(
        name: String,
        connection: Connection,
        words: OwnedFd,
        reads: bool,
        silence: Duration,
    ) -> io::Result<Bridge> {
        let (wake, woken) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        never_block(&words)?;
        let (commands, receiver) = channel();
        let shared = Arc::new(Shared::default());
        let (beat, limit) = beat(silence);
        let pid = connection.pid();
        let worker = Worker {
            name: name.clone(),
            connection,
            commands: receiver,
            woken,
            shared: shared.clone(),
            lives: BTreeMap::new(),
            next: 0,
            words: Flow::new(words),
            input: reads.then_some(INPUT_WINDOW),
            owed: 0,
            beat,
            limit,
            beat_at: Instant::now(),
            looked_at: Instant::now(),
            silent: Duration::ZERO,
            clock: None,
            finishing: false,
            shelf: None,
        };
        let thread = thread::Builder::new().name("host".to_string()).spawn(move || worker.run())?;
        Ok(Bridge { name, pid, commands, wake, shared, thread: Some(thread) })
    }

    fn tell(&self, command: Command) {
        // A thread that has ended has told why, and needs no commands.
        let _ = self.commands.send(command);
        let _ = (&self.wake).write(&[0]);
    }

    /// Starts a rank.
    pub fn begin(&self, rank: Remote) {
        self.tell(Command::Start(rank));
    }

    /// Tells the host that this process is about to be stopped; returns when it is on its way.
    pub fn pause(&self) {
        let (done, over) = sync_channel(1);
        self.tell(Command::Pause(done));
        let _ = over.recv_timeout(PAUSE);
    }

    /// Has the ranks there write what they did last.
    pub fn record(&self) {
        self.shared.recorded.store(false, Ordering::SeqCst);
        self.tell(Command::Record);
    }

    /// Whether they have, or had time enough.
    pub fn has_recorded(&self) -> bool {
        self.shared.recorded.load(Ordering::SeqCst)
    }

    /// All ranks have ended: has the host end, too. If the run has failed, its records come to the shelf first.
    pub fn finish(&self, records: Option<Shelf>) {
        self.tell(Command::Finish(records));
    }

    /// Whether the records of a run that has failed are there, or will never be.
    pub fn has_brought(&self) -> bool {
        self.shared.brought.load(Ordering::SeqCst)
    }

    /// Gives up a host that does not end its ranks.
    pub fn abandon(&self) {
        self.tell(Command::Abandon);
    }

    /// Why the host is lost, once it is; told once.
    pub fn why_lost(&self) -> Option<String> {
        self.shared.why.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.tell(Command::Quit);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A process of a rank.
struct Life {
    control: Option<UnixStream>,
    output: [Flow; 2],
    /// The host knows that nobody reads a stream.
    closed: [bool; 2],
}

/// Why a conversation is over.
enum Over {
    /// As it was meant to be.
    Done,
    /// What comes from the host has ended.
    Ended,
    /// For another reason.
    For(String),
}

struct Worker {
    name: String,
    connection: Connection,
    commands: Receiver<Command>,
    woken: UnixStream,
    shared: Arc<Shared>,
    lives: BTreeMap<u32, Life>,
    next: u32,
    words: Flow,
    /// How much standard input the host takes now, until that has ended.
    input: Option<usize>,
    /// Bytes of output that were passed on, which the host does not know yet.
    owed: u32,
    beat: Duration,
    limit: Duration,
    beat_at: Instant,
    looked_at: Instant,
    /// For how long nothing has come, while this process ran.
    silent: Duration,
    /// The shortest way there and back so far, and how far the host's clock is ahead, in nanoseconds.
    clock: Option<(u64, i128)>,
    finishing: bool,
    /// Where records go that the host brings.
    shelf: Option<Shelf>,
}

impl Worker {
    fn run(mut self) {
        let over = loop {
            if let Err(over) = self.turn() {
                break over;
            }
        };
        let why = match over {
            Over::Done => None,
            Over::Ended if self.finishing => {
                self.connection.end();
                None
            }
            Over::Ended => {
                let status = self.connection.end();
                Some(why_lost(status, &self.connection.last_words()))
            }
            Over::For(why) => Some(why),
        };
        self.connection.kill();
        tracing::debug!(host = self.name, why, "the connection is over");
        *self.shared.why.lock().unwrap_or_else(PoisonError::into_inner) = why;
        self.shared.recorded.store(true, Ordering::SeqCst);
        self.shared.brought.store(true, Ordering::SeqCst);
        for life in self.lives.values_mut() {
            life.tell(Report::now(Event::HostLost));
            life.control = None;
            life.output.iter_mut().for_each(|flow| flow.ended = true);
        }
        self.words.ended = true;
        self.drain();
    }

    /// Passes on what has come, until it is all gone or nobody wants it.
    fn drain(&mut self) {
        loop {
            while let Ok(command) = self.commands.try_recv() {
                match command {
                    Command::Quit => return,
                    // Its ends are closed: the rank is as lost as the host.
                    Command::Start(rank) => {
                        let _ = (&rank.control).write_all(&Report::now(Event::HostLost).to_bytes());
                    }
                    Command::Pause(_) | Command::Record | Command::Finish(_) | Command::Abandon => {}
                }
            }
            for flow in self.lives.values_mut().flat_map(|life| &mut life.output).chain([&mut self.words]) {
                flow.flush();
            }
            let mut fds = vec![PollFd::new(&self.woken, PollFlags::IN)];
            fds.extend(self.full_pipes().map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
            // An error can only be one of memory; then there is nothing more to do.
            if !matches!(poll(&mut fds, None), Ok(_) | Err(Errno::INTR)) {
                return;
            }
            self.hear_wake();
        }
    }

    /// The pipes that have something to take.
    fn full_pipes(&self) -> impl Iterator<Item = &File> {
        let flows = self.lives.values().flat_map(|life| &life.output).chain([&self.words]);
        flows.filter(|flow| flow.is_full()).filter_map(|flow| flow.pipe.as_ref())
    }

    fn hear_wake(&mut self) {
        let mut bytes = [0; 64];
        while matches!((&self.woken).read(&mut bytes), Ok(1..)) {}
    }

    /// Waits for something to do, and does it.
    fn turn(&mut self) -> Result<(), Over> {
        self.wait();
        self.hear_wake();
        while let Ok(command) = self.commands.try_recv() {
            self.obey(command)?;
        }
        self.connection.flush();
        let took = self.connection.read();
        let garbled = |_| Over::For("its fulmen says what this one does not understand".to_string());
        while let Some(message) = self.connection.incoming.next::<ToLauncher>().map_err(garbled)? {
            self.silent = Duration::ZERO;
            self.hear(message);
        }
        self.pass_words();
        self.pass_output();
        self.pass_signals();
        self.pass_input();
        if took == Took::End {
            return Err(Over::Ended);
        }
        self.keep_time()
    }

    fn wait(&self) {
        let mut fds = vec![PollFd::new(&self.woken, PollFlags::IN)];
        self.connection.fds(&mut fds);
        for life in self.lives.values() {
            fds.extend(life.control.as_ref().map(|control| PollFd::new(control, PollFlags::IN)));
        }
        fds.extend(self.full_pipes().map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
        let stdin = rustix::stdio::stdin();
        if self.input.is_some_and(|room| room > 0) {
            fds.push(PollFd::from_borrowed_fd(stdin, PollFlags::IN));
        }
        // Whatever it was, all are looked at.
        let _ = poll(&mut fds, Some(&time_left(self.beat_at)));
    }

    fn obey(&mut self, command: Command) -> Result<(), Over> {
        match command {
            Command::Start(Remote { rank, control, output }) => {
                let id = self.next;
                self.next += 1;
                let ready = control.set_nonblocking(true).and_then(|()| output.iter().try_for_each(never_block));
                if let Err(error) = ready {
                    return Err(Over::For(format!("its pipes cannot be used: {error}")));
                }
                let life = Life { control: Some(control), output: output.map(Flow::new), closed: [false; 2] };
                self.lives.insert(id, life);
                self.connection.say(&ToHost::Start { id, rank });
            }
            Command::Pause(done) => {
                self.pass_signals();
                self.connection.say(&ToHost::Pause);
                let end = Instant::now() + PAUSE;
                while self.connection.is_full() && Instant::now() < end {
                    let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
                    self.connection.flush();
                }
                // What comes next ends the pause.
                self.beat_at = Instant::now() + self.beat;
                let _ = done.try_send(());
            }
            Command::Record => self.connection.say(&ToHost::Record),
            Command::Finish(shelf) => {
                self.finishing = true;
                self.connection.say(&ToHost::Finish { failed: shelf.is_some() });
                self.shelf = shelf;
            }
            Command::Abandon => return Err(Over::For("it does not end its ranks".to_string())),
            Command::Quit => return Err(Over::Done),
        }
        Ok(())
    }

    fn hear(&mut self, message: ToLauncher) {
        match message {
            ToLauncher::Reported { id, event, asked, at } => {
                let at = self.here(at);
                if let Some(life) = self.lives.get(&id) {
                    let event = event_with(event, signal_from_wire);
                    life.tell(Report { event, asked: signal_from_wire(asked), at });
                }
            }
            ToLauncher::Gone { id } => {
                if let Some(life) = self.lives.get_mut(&id) {
                    life.control = None;
                }
            }
            ToLauncher::Output { id, stream, bytes } => match self.flow(id, stream) {
                Some(flow) => flow.pending.extend_from_slice(&bytes),
                None => self.owed += bytes.len() as u32,
            },
            ToLauncher::End { id, stream } => {
                if let Some(flow) = self.flow(id, stream) {
                    flow.ended = true;
                }
            }
            ToLauncher::Credit(count) => {
                if let Some(room) = &mut self.input {
                    *room = (*room + count as usize).min(INPUT_WINDOW);
                }
            }
            ToLauncher::Beat { echo, at } => {
                let now = nanos(control::now());
                let way = now.saturating_sub(echo);
                if self.clock.is_none_or(|(shortest, _)| way < shortest) {
                    self.clock = Some((way, i128::from(at) - (i128::from(echo) + i128::from(now)) / 2));
                }
            }
            ToLauncher::Recorded => self.shared.recorded.store(true, Ordering::SeqCst),
            ToLauncher::Record { name, bytes } => {
                let Some(shelf) = &mut self.shelf else { return };
                if let Err(why) = shelf.put(&name, &bytes) {
                    tracing::warn!(host = self.name, why, "a record is not kept");
                }
            }
            ToLauncher::NoRecords => self.shared.brought.store(true, Ordering::SeqCst),
            // They have been heard before, and mean nothing now.
            ToLauncher::Greeting { .. } | ToLauncher::Ready | ToLauncher::Refused { .. } => {}
        }
    }

    fn flow(&mut self, id: u32, stream: u8) -> Option<&mut Flow> {
        self.lives.get_mut(&id)?.output.get_mut(usize::from(stream))
    }

    /// A time of the host's clock by this machine's, which is not in the future.
    fn here(&self, at: u64) -> Duration {
        let now = control::now();
        let Some((_, ahead)) = self.clock else { return now };
        let at = u64::try_from(i128::from(at) - ahead).unwrap_or(0);
        Duration::from_nanos(at).min(now)
    }

    fn pass_words(&mut self) {
        self.words.flush();
        if !self.words.is_full() {
            let words = self.connection.read_words();
            self.words.pending.extend_from_slice(&words);
            self.words.flush();
        }
    }

    fn pass_output(&mut self) {
        for (id, life) in &mut self.lives {
            for (stream, flow) in life.output.iter_mut().enumerate() {
                self.owed += flow.flush() as u32;
                if !flow.ended && !life.closed[stream] && flow.pipe.is_none() {
                    life.closed[stream] = true;
                    self.connection.say(&ToHost::Close { id: *id, stream: stream as u8 });
                }
            }
        }
        if self.owed > 0 {
            self.connection.say(&ToHost::Credit(std::mem::take(&mut self.owed)));
        }
        self.lives
            .retain(|_, life| life.control.is_some() || life.output.iter().any(|flow| !flow.ended || flow.is_full()));
    }

    fn pass_signals(&mut self) {
        for (id, life) in &mut self.lives {
            let mut bytes = [0; 64];
            let Some(control) = &life.control else { continue };
            match (&*control).read(&mut bytes) {
                // The launcher has let go of the rank.
                Ok(0) => life.control = None,
                Ok(count) => {
                    for signal in &bytes[..count] {
                        tracing::debug!(host = self.name, signal = name((*signal).into()), "passed on");
                        let signal = signal_to_wire((*signal).into());
                        self.connection.say(&ToHost::Signal { id: *id, signal });
                    }
                }
                Err(_) => {}
            }
        }
    }

    fn pass_input(&mut self) {
        let Some(room) = &mut self.input else { return };
        let stdin = rustix::stdio::stdin();
        let mut fds = [PollFd::from_borrowed_fd(stdin, PollFlags::IN)];
        if *room == 0 || !matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1)) {
            return;
        }
        let mut bytes = vec![0; CHUNK.min(*room)];
        match rustix::io::read(stdin, &mut bytes) {
            Ok(count @ 1..) => {
                *room -= count;
                bytes.truncate(count);
                self.connection.say(&ToHost::Input(bytes));
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            _ => {
                self.input = None;
                self.connection.say(&ToHost::InputEnd);
            }
        }
    }

    /// Gives signs of life, and notices that none come.
    fn keep_time(&mut self) -> Result<(), Over> {
        let now = Instant::now();
        // Time in which this process was stopped is not the host's silence.
        self.silent += (now - self.looked_at).min(self.beat * 2);
        self.looked_at = now;
        if now >= self.beat_at {
            self.beat_at = now + self.beat;
            self.connection.say(&ToHost::Beat(nanos(control::now())));
        }
        if self.silent >= self.limit {
            return Err(Over::For(format!("nothing has come from it for {} s", self.limit.as_secs_f64())));
        }
        Ok(())
    }
}

impl Life {
    fn tell(&self, report: Report) {
        if let Some(control) = &self.control {
            // It has room for hundreds of reports, and a launcher that is gone needs none.
            let _ = (&*control).write(&report.to_bytes());
        }
    }
}

/// A time as it crosses.
pub fn nanos(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}
