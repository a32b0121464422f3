//! The helper on another host: starts that host's ranks and tells the launcher what becomes of them.
//!
//! It speaks over its standard input and output, which ssh carries. When the launcher's side ends, whatever ended it, or is
//! silent for too long, all ranks are killed, as they are when the launcher of their own machine dies.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IsTerminal, PipeReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use super::super::control::{self, Event};
use super::super::rank::Rank;
use super::super::records::{self, Asked};
use super::super::signals::{Signals, asks_to_end, name, time_left};
use super::super::verdict::Ending;
use super::super::{RunError, processes};
use super::bridge::{beat, nanos};
use super::connection::never_block;
use super::flow::Flow;
use super::parcel::Parcel;
use super::protocol::{
    self, Incoming, OUTPUT_WINDOW, Stream, ToHost, ToLauncher, event_with, signal_from_wire, signal_to_wire,
};
use super::work::{Work, begin};
use crate::output::say;

/// Bytes of output that are read at once, and sent as one message.
const CHUNK: usize = 16 << 10;
/// No more output is read while so many bytes wait to be sent.
const MOST_WAITING: usize = 256 << 10;
/// Most bytes that are still read of a stream when all processes of its rank are gone.
const REST: usize = 1 << 20;
/// How long a supervisor may take to end once its rank was sent SIGKILL. The launcher waits longer.
const ABANDON: Duration = Duration::from_secs(40);
/// How often adopted processes are looked through while they vanish.
const LOOK: Duration = Duration::from_millis(20);
/// How long it may take from the start until all hosts are ready.
const TASK: Duration = Duration::from_secs(3600);

/// Serves one launcher.
pub fn helper() -> anyhow::Result<ExitCode> {
    if io::stdin().is_terminal() || io::stdout().is_terminal() {
        anyhow::bail!("this command is started by `fulmen run --hosts` on other hosts, and by nobody else");
    }
    let (from, to) = streams()?;
    let signals = Signals::listen(0)?;
    let strangers = processes::children().unwrap_or_default();
    processes::adopt_orphans()?;
    let mut helper = Helper {
        from,
        to,
        incoming: Incoming::default(),
        out: protocol::hello(),
        signals,
        work: None,
        lives: BTreeMap::new(),
        window: OUTPUT_WINDOW,
        beat: Duration::from_secs(5),
        limit: TASK,
        agreed: TASK,
        silent: Duration::ZERO,
        looked_at: Instant::now(),
        paused: false,
        finish: None,
        parcel: None,
        lost: false,
    };
    helper.say(&ToLauncher::Greeting { connection: std::env::var("SSH_CONNECTION").ok() });
    let over = loop {
        match helper.turn() {
            Ok(()) => {}
            Err(over) => break over,
        }
    };
    let code = helper.end(over)?;
    let end = Instant::now() + ABANDON;
    while helper.lost && processes::kill_orphans(&strangers)? > 0 && Instant::now() < end {
        thread::sleep(LOOK);
    }
    Ok(code)
}

/// The two directions of the conversation. What a library prints goes to standard error.
fn streams() -> io::Result<(File, File)> {
    let from = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let to = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    never_block(&from)?;
    never_block(&to)?;
    Ok((from.into(), to.into()))
}

/// Why the conversation is over.
enum Over {
    /// All is done; whether the run has failed.
    Done(bool),
    /// The launcher has refused, or was refused, before anything was started.
    Unused,
    /// All ranks are to be killed.
    Kill(String),
}

struct Helper {
    from: File,
    to: File,
    incoming: Incoming,
    /// What is to be sent.
    out: Vec<u8>,
    signals: Signals,
    work: Option<Work>,
    lives: BTreeMap<u32, Life>,
    /// Bytes of output that may be sent.
    window: usize,
    beat: Duration,
    /// How long the launcher may be silent now, and once it gives signs of life.
    limit: Duration,
    agreed: Duration,
    /// For how long nothing has come, while this process ran.
    silent: Duration,
    looked_at: Instant,
    paused: bool,
    /// The run is over; whether it has failed.
    finish: Option<bool>,
    /// The records that are still to be brought to the launcher.
    parcel: Option<Parcel>,
    /// A supervisor was killed, so that its orphans came here.
    lost: bool,
}

/// A process of a rank.
struct Life {
    rank: u32,
    process: Rank,
    told: bool,
    gone: bool,
    /// When its supervisor is killed at last.
    abandon_at: Option<Instant>,
    output: [Output; 2],
}

struct Output {
    pipe: Option<PipeReader>,
    /// How much is still read, once all of the rank's processes are gone.
    rest: Option<usize>,
}

impl Helper {
    fn say(&mut self, message: &ToLauncher) {
        protocol::push(message, &mut self.out);
    }

    /// Waits for something to do, and does it.
    fn turn(&mut self) -> Result<(), Over> {
        let ready = self.wait().map_err(|error| Over::Kill(format!("it cannot wait: {error}")))?;
        for signal in self.signals.pending() {
            if asks_to_end(signal) {
                return Err(Over::Kill(format!("it was ended by {}", name(signal.as_raw()))));
            }
        }
        self.hear()?;
        let ids: Vec<u32> = self.lives.keys().copied().collect();
        for id in ids {
            self.watch(id).map_err(|error| Over::Kill(format!("a rank cannot be watched: {error}")))?;
        }
        for (id, stream) in ready {
            self.read_output(id, stream);
        }
        self.end_streams();
        self.pass_input();
        self.keep_time()?;
        self.flush()?;
        let is_over = self.lives.is_empty() && self.out.is_empty() && self.parcel.is_none();
        match self.finish {
            Some(failed) if is_over => Err(Over::Done(failed)),
            _ => Ok(()),
        }
    }

    /// Waits, and gives the streams that can be read.
    fn wait(&self) -> io::Result<Vec<(u32, usize)>> {
        let mut fds = vec![PollFd::new(self.signals.socket(), PollFlags::IN), PollFd::new(&self.from, PollFlags::IN)];
        if !self.out.is_empty() {
            fds.push(PollFd::new(&self.to, PollFlags::OUT));
        }
        let input = self.work.as_ref().and_then(|work| work.input.as_ref()).filter(|input| input.flow.is_full());
        fds.extend(input.and_then(|input| input.flow.pipe.as_ref()).map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
        for life in self.lives.values() {
            fds.extend(life.process.control.as_ref().map(|control| PollFd::new(control, PollFlags::IN)));
        }
        let first = fds.len();
        let mut streams = Vec::new();
        if self.may_read() {
            for (id, life) in &self.lives {
                for (stream, output) in life.output.iter().enumerate() {
                    if let Some(pipe) = &output.pipe {
                        fds.push(PollFd::new(pipe, PollFlags::IN));
                        streams.push((*id, stream, output.rest.is_some()));
                    }
                }
            }
        }
        // The rest of a stream is there, or there is none.
        let at_once = streams.iter().any(|(_, _, rest)| *rest);
        let writing = self.work.as_ref().is_some_and(|work| work.asked.is_some());
        let time = if at_once {
            Duration::ZERO
        } else if writing {
            records::LOOK
        } else {
            self.beat
        };
        match poll(&mut fds, Some(&time_left(Instant::now() + time))) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let ready = streams.into_iter().zip(&fds[first..]);
        Ok(ready
            .filter(|((_, _, rest), fd)| *rest || !fd.revents().is_empty())
            .map(|((id, stream, _), _)| (id, stream))
            .collect())
    }

    fn may_read(&self) -> bool {
        self.window > 0 && self.out.len() < MOST_WAITING
    }

    /// Reads what the launcher says.
    fn hear(&mut self) -> Result<(), Over> {
        let mut buffer = [0; 64 << 10];
        match self.from.read(&mut buffer) {
            Ok(0) => return Err(self.left()),
            Ok(count) => {
                self.silent = Duration::ZERO;
                self.paused = false;
                self.incoming.push(&buffer[..count]);
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return Err(self.left()),
        }
        let garbled = |_| Over::Kill("the launcher says what this fulmen does not understand".to_string());
        while let Some(message) = self.incoming.next().map_err(garbled)? {
            self.obey(message)?;
        }
        Ok(())
    }

    /// The launcher's side has ended.
    fn left(&self) -> Over {
        match (self.finish, self.work.is_some()) {
            (Some(failed), _) => Over::Done(failed),
            (None, true) => Over::Kill("the connection to the launcher has ended".to_string()),
            (None, false) => Over::Unused,
        }
    }

    fn obey(&mut self, message: ToHost) -> Result<(), Over> {
        match message {
            ToHost::Task(task) if self.work.is_none() => {
                (self.beat, self.agreed) = beat(Duration::from_millis(task.silence));
                match begin(task) {
                    Ok(work) => {
                        self.work = Some(work);
                        self.say(&ToLauncher::Ready);
                    }
                    Err(error) => {
                        let code = error.downcast_ref::<RunError>().map_or(1, RunError::exit_code);
                        self.say(&ToLauncher::Refused { code, words: format!("{error:#}") });
                    }
                }
            }
            ToHost::Task(_) => return Err(Over::Kill("the launcher has two tasks".to_string())),
            ToHost::Start { id, rank } => self.start(id, rank),
            ToHost::Signal { id, signal } => {
                let signal = signal_from_wire(signal);
                if let (Some(life), Ok(byte)) = (self.lives.get_mut(&id), u8::try_from(signal))
                    && let Some(control) = &life.process.control
                {
                    control::send_byte(control, byte);
                    if signal == Signal::KILL.as_raw() {
                        life.abandon_at.get_or_insert_with(|| Instant::now() + ABANDON);
                    }
                }
            }
            ToHost::Credit(count) => self.window = (self.window + count as usize).min(OUTPUT_WINDOW),
            ToHost::Close { id, stream } => {
                if let Some(output) = self.lives.get_mut(&id).and_then(|life| life.output.get_mut(usize::from(stream)))
                {
                    // The rank learns of it as it would of a closed pipe.
                    output.pipe = None;
                }
            }
            ToHost::Input(bytes) => {
                if let Some(input) = self.input() {
                    input.pending.extend_from_slice(&bytes);
                }
            }
            ToHost::InputEnd => {
                if let Some(input) = self.input() {
                    input.ended = true;
                }
            }
            ToHost::Beat(echo) => {
                // Until the first one comes, the launcher may still wait for other hosts.
                self.limit = self.agreed;
                self.say(&ToLauncher::Beat { echo, at: nanos(control::now()) });
            }
            ToHost::Pause => self.paused = true,
            ToHost::Record => {
                let asked = self.work.as_mut().and_then(|work| {
                    work.asked = work.records.ask();
                    work.asked.as_ref()
                });
                if asked.is_none() {
                    self.say(&ToLauncher::Recorded);
                }
            }
            ToHost::Finish { failed } => {
                self.finish = Some(failed);
                let records = self.work.as_ref().filter(|_| failed).map(|work| &work.records);
                self.parcel = records.map(Parcel::new);
            }
        }
        Ok(())
    }

    fn input(&mut self) -> Option<&mut Flow> {
        Some(&mut self.work.as_mut()?.input.as_mut()?.flow)
    }

    fn start(&mut self, id: u32, rank: u32) {
        let Some(work) = &self.work else { return };
        match work.start(rank) {
            Ok((process, output)) => {
                let output = output.map(|pipe| Output { pipe: Some(pipe), rest: None });
                let life = Life { rank, process, told: false, gone: false, abandon_at: None, output };
                self.lives.insert(id, life);
            }
            Err(error) => {
                let event = Event::NoProcess(error.raw_os_error().unwrap_or(0));
                self.say(&ToLauncher::Reported { id, event, asked: 0, at: nanos(control::now()) });
                for stream in 0..2 {
                    self.say(&ToLauncher::End { id, stream });
                }
                self.say(&ToLauncher::Gone { id });
            }
        }
    }

    /// Looks whether a rank's supervisor has said something, or is overdue.
    fn watch(&mut self, id: u32) -> io::Result<()> {
        let Some(life) = self.lives.get_mut(&id) else { return Ok(()) };
        if life.gone {
            return Ok(());
        }
        if life.abandon_at.take_if(|at| Instant::now() >= *at).is_some() {
            // It is this process's child and was not waited for, so the number is still its own.
            life.process.kill();
        }
        let control = life.process.control.as_ref();
        let mut fds: Vec<PollFd<'_>> = control.map(|control| PollFd::new(control, PollFlags::IN)).into_iter().collect();
        if !matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1)) {
            return Ok(());
        }
        let heard = life.process.hear()?;
        self.lost |= heard.killed;
        let mut said = Vec::new();
        if heard.left > 0 {
            let rank = life.rank;
            say(&format!("rank {rank}: {} processes do not end, although they were sent SIGKILL", heard.left));
            let event = Event::Left(heard.left);
            said.push(ToLauncher::Reported { id, event, asked: 0, at: nanos(control::now()) });
        }
        if let Some(ended) = life.process.ended
            && !std::mem::replace(&mut life.told, true)
        {
            let event = match ended.how {
                Ending::Told(event) => event,
                Ending::Lost(signal) => Event::Lost(signal),
                Ending::HostLost => Event::HostLost,
            };
            let (event, asked) = (event_with(event, signal_to_wire), signal_to_wire(ended.asked));
            said.push(ToLauncher::Reported { id, event, asked, at: nanos(ended.at) });
        }
        if life.process.control.is_none() {
            life.gone = true;
            // Everything that the rank wrote is in the pipes by now; a stranger who keeps one open is not waited for.
            life.output.iter_mut().for_each(|output| output.rest = Some(REST));
            said.push(ToLauncher::Gone { id });
        }
        said.iter().for_each(|message| self.say(message));
        Ok(())
    }

    /// Reads once from a stream that can be read, or of which only a rest is left.
    fn read_output(&mut self, id: u32, stream: usize) {
        if !self.may_read() {
            return;
        }
        let Some(output) = self.lives.get_mut(&id).map(|life| &mut life.output[stream]) else { return };
        let Some(pipe) = &mut output.pipe else { return };
        let most = CHUNK.min(self.window).min(output.rest.unwrap_or(usize::MAX));
        let mut bytes = vec![0; most];
        let readable = matches!(poll(&mut [PollFd::new(&*pipe, PollFlags::IN)], Some(&Timespec::default())), Ok(1));
        let count = match readable && most > 0 {
            true => match pipe.read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return,
                read => read.unwrap_or(0),
            },
            false if output.rest.is_none() => return,
            false => 0,
        };
        if count == 0 {
            output.pipe = None;
            return;
        }
        if let Some(rest) = &mut output.rest {
            *rest -= count;
        }
        self.window -= count;
        bytes.truncate(count);
        self.say(&ToLauncher::Output { id, stream: stream as Stream, bytes });
    }

    /// Tells the ends of streams, and forgets ranks of which nothing is left.
    fn end_streams(&mut self) {
        let mut ended = Vec::new();
        self.lives.retain(|id, life| {
            let over = life.gone && life.output.iter().all(|output| output.pipe.is_none());
            if over {
                ended.push(*id);
            }
            !over
        });
        for id in ended {
            for stream in 0..2 {
                self.say(&ToLauncher::End { id, stream });
            }
        }
    }

    fn pass_input(&mut self) {
        let taken = self.input().map_or(0, Flow::flush);
        if taken > 0 {
            self.say(&ToLauncher::Credit(taken as u32));
        }
    }

    fn keep_time(&mut self) -> Result<(), Over> {
        let now = Instant::now();
        // Time in which this process was stopped is not the launcher's silence.
        self.silent += if self.paused { Duration::ZERO } else { (now - self.looked_at).min(self.beat * 2) };
        self.looked_at = now;
        if self.silent >= self.limit {
            return Err(Over::Kill(format!("nothing has come from the launcher for {} s", self.limit.as_secs_f64())));
        }
        if let Some(work) = &mut self.work
            && work.asked.take_if(|asked| Asked::is_over(asked)).is_some()
        {
            self.say(&ToLauncher::Recorded);
        }
        Ok(())
    }

    /// Sends what the system takes.
    fn flush(&mut self) -> Result<(), Over> {
        loop {
            if self.out.is_empty() {
                // One at a time: a host with many ranks has many of them.
                let Some(parcel) = &mut self.parcel else { break };
                let next = parcel.next();
                if next.is_none() {
                    self.parcel = None;
                }
                let message = next.map_or(ToLauncher::NoRecords, |(name, bytes)| ToLauncher::Record { name, bytes });
                self.say(&message);
            }
            match self.to.write(&self.out) {
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(self.left()),
            }
        }
        Ok(())
    }

    /// Ends all that is left, and gives the exit code.
    fn end(&mut self, over: Over) -> io::Result<ExitCode> {
        match over {
            Over::Unused => return Ok(ExitCode::FAILURE),
            Over::Done(failed) => {
                // What it tells of, the launcher has.
                if let Some(work) = &self.work {
                    work.records.finish(failed);
                }
                return Ok(ExitCode::SUCCESS);
            }
            // Where the connection has ended, nobody hears it.
            Over::Kill(why) => say(&format!("{why}: killing its ranks")),
        }
        // Nobody reads what they write, and a supervisor whose launcher is gone kills its rank.
        for life in self.lives.values_mut() {
            life.output.iter_mut().for_each(|output| output.pipe = None);
            if let Some(control) = &life.process.control {
                control::send_byte(control, Signal::KILL.as_raw() as u8);
            }
        }
        let end = Instant::now() + ABANDON;
        while self.lives.values().any(|life| life.process.control.is_some()) {
            let late = Instant::now() >= end;
            for life in self.lives.values_mut().filter(|life| life.process.control.is_some()) {
                if late {
                    life.process.kill();
                }
                let control: &UnixStream = life.process.control.as_ref().expect("one that is still open");
                let wait = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                if matches!(poll(&mut [PollFd::new(control, PollFlags::IN)], Some(&wait)), Ok(1)) {
                    self.lost |= life.process.hear()?.killed;
                }
            }
        }
        Ok(ExitCode::FAILURE)
    }
}
