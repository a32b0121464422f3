//! The launcher: drives the run to its end.
//!
//! One thread polls signals and the supervisors' sockets; every wait ends with the run's time limit, or with the grace time
//! once the run is being ended. Output goes its own way (`relay`).

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_process};

use super::control::{self, Event, limit_of};
use super::hosts::{Bridge, Shelf};
use super::rank::Rank;
use super::records::{self, Asked, Records, WRITING};
use super::relay::Relay;
use super::signals::{Signals, asks_to_end, name, time_left};
use super::starter::{Starter, pipes};
use super::verdict::{Ended, Ending, Seconds, first_failure, name_ranks};
use super::{Job, RunError, TIMED_OUT, processes};

/// How long to wait at most, after the first report of a failure, for the report of one that caused it. Ranks that notice
/// another's end give up within moments, and on a busy machine their report may overtake its. The wait delays a message,
/// and nothing else: the other ranks are asked to end at once.
const SETTLE: Duration = Duration::from_secs(5);

/// How long a supervisor may take to end after its rank was killed. It gives up on its own before; only one that was stopped
/// or hangs inside the system takes longer, and is killed then.
const ABANDON: Duration = Duration::from_secs(60);

/// How long other hosts may take to bring their ranks' records when the run has failed.
const BRINGING: Duration = Duration::from_secs(30);

/// How often adopted processes are looked through while they vanish.
const LOOK: Duration = Duration::from_millis(20);

/// Says what the system refused; a limit is named with the way to raise it.
pub fn refused(ranks: u32, doing: &str, error: io::Error) -> RunError {
    match limit_of(&error) {
        Some(limit) => RunError::Limit { ranks, limit },
        None => RunError::System { doing: doing.to_string(), error },
    }
}

/// A run at work.
pub struct Launcher {
    path: PathBuf,
    /// All ranks, in their order.
    pub ranks: Vec<Rank>,
    /// The other hosts, in their order.
    bridges: Vec<Bridge>,
    records: Records,
    /// The ranks are to be ended as soon as these have written what they did last.
    asked_to_write: Option<Writing>,
    signals: Signals,
    relay: Relay,
    began: Instant,
    /// The same moment on the clock of reports.
    began_at: Duration,
    time_limit: Option<(Instant, Duration)>,
    grace: Duration,
    /// How often a rank that fails is started again.
    restart: u32,
    /// The last signal that asked the ranks to end, and when it was passed on.
    asked: Option<(Signal, Instant)>,
    /// A rank has failed, but it is not decided yet which one did so first.
    failure: Option<Failure>,
    /// The exit code, once it is decided.
    pub code: Option<u8>,
    /// When the ranks get SIGKILL.
    pub kill_at: Option<Instant>,
    /// When they got it, on the clock of reports: how a rank ends after that says nothing about it.
    killed_at: Option<Duration>,
    /// When supervisors that are still there get SIGKILL.
    abandon_at: Option<Instant>,
    /// A supervisor was killed, so that its orphans came here.
    lost: bool,
    /// Processes stay behind, although they were sent SIGKILL.
    left: bool,
    /// A signal asked to end when all ranks had ended.
    end_early: Option<Signal>,
}

/// A failure that is still to be judged.
struct Failure {
    /// When it is judged at the latest.
    judge_at: Instant,
    /// How many other ranks were there to be ended.
    others: usize,
}

/// Ranks that write what they did last.
struct Writing {
    /// Those of this host.
    here: Option<Asked>,
    /// When nobody is waited for any more.
    until: Instant,
}

/// What a run begins with.
pub struct Beginning {
    /// The limit on its time, and when that is over.
    pub time_limit: Option<(Instant, Duration)>,
    /// The other hosts, ready.
    pub bridges: Vec<Bridge>,
    /// Where ranks of this host write their records.
    pub records: Records,
    /// The signals that reach this process.
    pub signals: Signals,
    /// What passes the output on.
    pub relay: Relay,
}

impl Launcher {
    /// A run of which no rank was started yet.
    pub fn new(job: &Job, beginning: Beginning) -> Launcher {
        let Beginning { time_limit, bridges, records, signals, relay } = beginning;
        Launcher {
            path: job.path.clone(),
            ranks: Vec::new(),
            bridges,
            records,
            asked_to_write: None,
            signals,
            relay,
            began: Instant::now(),
            began_at: control::now(),
            time_limit,
            grace: job.grace,
            restart: job.restart,
            asked: None,
            failure: None,
            code: None,
            kill_at: None,
            killed_at: None,
            abandon_at: None,
            lost: false,
            left: false,
            end_early: None,
        }
    }

    /// Starts the next rank, whose output goes into these pipes.
    pub fn start(&mut self, starter: &Starter, ends: (OwnedFd, OwnedFd)) -> io::Result<()> {
        let rank = starter.start(self.ranks.len() as u32, ends, &self.bridges)?;
        self.ranks.push(rank);
        Ok(())
    }

    /// Runs until all supervisors have ended.
    pub fn drive(&mut self, starter: &Starter) -> io::Result<()> {
        loop {
            self.start_again(starter);
            self.judge();
            self.keep_time(starter);
            if self.ranks.iter().all(|rank| rank.control.is_none()) {
                return Ok(());
            }
            for index in self.wait()? {
                self.hear(index)?;
            }
            for signal in self.signals.pending() {
                self.pass_on(signal);
            }
        }
    }

    /// Waits for the next thing to do, and gives the ranks that have something to say.
    fn wait(&self) -> io::Result<Vec<usize>> {
        let limit = self.time_limit.map(|(at, _)| at).filter(|_| self.code.is_none() && self.failure.is_none());
        let judge_at = self.failure.as_ref().map(|failure| failure.judge_at);
        let writing = self.asked_to_write.as_ref().map(|_| Instant::now() + records::LOOK);
        let until = [limit, judge_at, writing, self.kill_at, self.abandon_at].into_iter().flatten().min();
        let mut fds = vec![PollFd::new(self.signals.socket(), PollFlags::IN)];
        let mut indices = Vec::new();
        for (index, rank) in self.ranks.iter().enumerate() {
            if let Some(control) = &rank.control {
                fds.push(PollFd::new(control, PollFlags::IN));
                indices.push(index);
            }
        }
        match poll(&mut fds, until.map(time_left).as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        Ok(indices
            .into_iter()
            .zip(&fds[1..])
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(index, _)| index)
            .collect())
    }

    /// Reads what a rank's supervisor says.
    fn hear(&mut self, index: usize) -> io::Result<()> {
        let heard = self.ranks[index].hear()?;
        self.lost |= heard.killed;
        if self.ranks[index].ended.is_some_and(|ended| ended.how == Ending::HostLost) {
            for bridge in &self.bridges {
                if let Some(why) = bridge.why_lost() {
                    self.relay.say(&format!("host {} is lost: {why}", bridge.name));
                }
            }
        }
        if heard.left > 0 {
            self.left = true;
            self.relay
                .say(&format!("rank {index}: {} processes do not end, although they were sent SIGKILL", heard.left));
        }
        Ok(())
    }

    /// Starts ranks again that have failed, when nothing of them is left.
    fn start_again(&mut self, starter: &Starter) {
        for index in 0..self.ranks.len() {
            let rank = &self.ranks[index];
            let Some(ended) = rank.ended else { continue };
            if rank.control.is_some() || !self.is_to_start_again(index) {
                continue;
            }
            let restarted = rank.restarted + 1;
            let how = match ended.how {
                Ending::Told(Event::Signaled(signal)) => format!("was killed by signal {signal}"),
                how => how.describe(&self.path),
            };
            let rank = index as u32;
            let started = pipes(rank, starter.labels, None, starter.bridge_of(rank).is_some())
                .and_then(|(sources, ends)| Ok((sources, starter.start(rank, ends, &self.bridges)?)));
            match started {
                Ok((sources, started)) => {
                    let text = format!("rank {index} {how}; started again ({restarted} of {})", self.restart);
                    self.relay.add(&text, sources);
                    self.ranks[index] = started;
                    self.ranks[index].restarted = restarted;
                }
                Err(error) => {
                    let doing = format!("start rank {index} again");
                    self.relay.say(&refused(self.ranks.len() as u32, &doing, error).to_string());
                    // Its failure counts.
                    self.restart = 0;
                }
            }
        }
    }

    /// Whether a rank that has ended will be started again: it failed, not too often yet, nobody wants the run to end, and
    /// there are others for it to rejoin.
    fn is_to_start_again(&self, index: usize) -> bool {
        let fails =
            |rank: &Rank| rank.restarted < self.restart && rank.ended.is_some_and(|ended| ended.how.can_start_again());
        let ending = self.code.is_some() || self.failure.is_some() || self.kill_at.is_some() || self.asked.is_some();
        let others = || self.ranks.iter().enumerate().filter(|(other, _)| *other != index);
        let alone = || self.ranks.len() > 1 && others().all(|(_, rank)| rank.ended.is_some() && !fails(rank));
        fails(&self.ranks[index]) && !ending && !alone()
    }

    /// The ends of all ranks, as far as they are final.
    fn ends(&self) -> Vec<Option<Ended>> {
        (0..self.ranks.len()).map(|index| self.ranks[index].ended.filter(|_| !self.is_to_start_again(index))).collect()
    }

    /// Has the others ended when one fails, and decides who failed first.
    fn judge(&mut self) {
        let ends = self.ends();
        let all_ended = ends.iter().all(Option::is_some);
        if all_ended {
            self.abandon_at.get_or_insert_with(|| Instant::now() + self.grace + ABANDON);
        }
        if self.code.is_some() {
            return;
        }
        let others = ends.iter().filter(|ended| ended.is_none()).count();
        let Some((index, Ended { how, at, .. })) = first_failure(ends.into_iter(), self.killed_at) else { return };
        if self.failure.is_none() {
            self.failure = Some(Failure { judge_at: Instant::now() + SETTLE, others });
            self.end_others();
        }
        // Nothing that is still to be reported can change the verdict.
        let decided = all_ended || how.is_sudden() || self.killed_at.is_some();
        let Some(failure) = self.failure.take_if(|failure| decided || Instant::now() >= failure.judge_at) else {
            return;
        };
        self.code = Some(how.exit_code());
        let passed_on = match (how, self.asked) {
            (Ending::Told(Event::Signaled(number)), Some((signal, _))) if number == signal.as_raw() => {
                ", which was passed on,"
            }
            _ => "",
        };
        let others = match failure.others {
            0 => String::new(),
            count => format!("; ending the other {count}"),
        };
        self.relay.say(&format!(
            "rank {index} failed first: {}{passed_on} after {}{others}",
            how.describe(&self.path),
            Seconds(at.saturating_sub(self.began_at)),
        ));
    }

    /// Acts on the times that have come.
    fn keep_time(&mut self, starter: &Starter) {
        let now = Instant::now();
        if let Some((at, limit)) = self.time_limit
            && self.code.is_none()
            && self.failure.is_none()
            && now >= at
        {
            let running: Vec<u32> =
                (0..).zip(self.ends()).filter(|(_, ended)| ended.is_none()).map(|(index, _)| index).collect();
            if running.is_empty() {
                self.time_limit = None;
            } else {
                self.code = Some(TIMED_OUT);
                self.relay.say(&format!(
                    "timed out after {}: {} still running; ending {} (--timeout sets the limit)",
                    Seconds(limit),
                    name_ranks(&running),
                    if running.len() == 1 { "it" } else { "them" },
                ));
                self.end_others();
            }
        }
        let elsewhere = self.bridges.iter().all(Bridge::has_recorded);
        let is_over = |writing: &mut Writing| {
            now >= writing.until || (elsewhere && writing.here.as_ref().is_none_or(Asked::is_over))
        };
        if self.asked_to_write.take_if(is_over).is_some() {
            self.terminate_others();
        }
        if self.kill_at.is_some_and(|at| now >= at) {
            self.kill_at = None;
            self.abandon_at = Some(now + ABANDON);
            self.killed_at = Some(control::now());
            self.send(Signal::KILL);
            self.judge();
        }
        if self.abandon_at.is_some_and(|at| now >= at) {
            self.abandon_at = Some(now + ABANDON);
            for (index, rank) in self.ranks.iter_mut().enumerate().filter(|(_, rank)| rank.control.is_some()) {
                self.relay.say(&format!("rank {index}: its supervising process does not answer; killing it"));
                if !rank.kill()
                    && let Some(bridge) = starter.bridge_of(index as u32)
                {
                    self.bridges[bridge].abandon();
                }
            }
        }
    }

    /// Has the ranks that still run write what they did last, and then ends them. Ranks that end on a user's wish need not.
    fn end_others(&mut self) {
        if self.asked.is_none() {
            let here = self.records.ask();
            self.bridges.iter().for_each(Bridge::record);
            let waits = here.is_some() || !self.bridges.is_empty();
            self.asked_to_write = waits.then(|| Writing { here, until: Instant::now() + WRITING });
        }
        if self.asked_to_write.is_none() {
            self.terminate_others();
        }
    }

    /// Asks the ranks that still run to end, and sets the time for SIGKILL.
    fn terminate_others(&mut self) {
        let now = Instant::now();
        self.kill_at = Some(now + self.grace);
        // Ranks that were just asked to end, with a signal that came from outside, are ending: they are not asked twice.
        let just_asked = self.asked.is_some_and(|(_, at)| now.saturating_duration_since(at) < self.grace);
        if !just_asked {
            self.send(Signal::TERM);
            // A stopped process acts on SIGTERM only when it is continued.
            self.send(Signal::CONT);
        }
    }

    /// Has a signal delivered to all ranks that still run; SIGKILL also to those whose remains are being ended.
    fn send(&self, signal: Signal) {
        for rank in &self.ranks {
            if let Some(control) = &rank.control
                && (rank.ended.is_none() || signal == Signal::KILL)
            {
                control::send_byte(control, signal.as_raw() as u8);
            }
        }
    }

    /// Acts on a signal that reached the launcher.
    fn pass_on(&mut self, signal: Signal) {
        if signal == Signal::CHILD {
            return;
        }
        self.send(signal);
        tracing::info!(signal = name(signal.as_raw()), "passed on to all ranks");
        if asks_to_end(signal) {
            self.asked = Some((signal, Instant::now()));
        }
        if signal == Signal::TSTP {
            // Other hosts would take its silence for its end.
            self.bridges.iter().for_each(Bridge::pause);
            let stopped = Instant::now();
            // This call returns when somebody continues this process. The time in between counts for no limit.
            let _ = kill_process(getpid(), Signal::STOP);
            let pause = stopped.elapsed();
            let judge_at = self.failure.as_mut().map(|failure| &mut failure.judge_at);
            for at in [judge_at, self.kill_at.as_mut(), self.abandon_at.as_mut()].into_iter().flatten() {
                *at += pause;
            }
            if let Some((at, _)) = &mut self.time_limit {
                *at += pause;
            }
        }
    }

    /// Kills what came here because a supervisor was killed.
    pub fn end_orphans(&mut self, strangers: &[Pid]) -> io::Result<()> {
        let strangers: Vec<Pid> =
            strangers.iter().copied().chain(self.bridges.iter().map(|bridge| bridge.pid)).collect();
        let give_up = Instant::now() + ABANDON;
        while self.lost {
            let left = processes::kill_orphans(&strangers)?;
            if left == 0 {
                break;
            }
            if Instant::now() >= give_up {
                self.left = true;
                self.relay.say(&format!("{left} processes do not end, although they were sent SIGKILL"));
                break;
            }
            self.pause(LOOK)?;
        }
        Ok(())
    }

    /// Waits for a signal, a child's end among them, or for `time`. There is no rank any more to pass a signal on to: one that
    /// asks to end is kept for [`Launcher::finish_output`].
    fn pause(&mut self, time: Duration) -> io::Result<()> {
        let until = time_left(Instant::now() + time);
        match poll(&mut [PollFd::new(self.signals.socket(), PollFlags::IN)], Some(&until)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for signal in self.signals.pending() {
            self.end_early = self.end_early.or(Some(signal).filter(|&signal| asks_to_end(signal)));
            self.pass_on(signal);
        }
        Ok(())
    }

    /// Shows what the ranks have written, and gives the exit code. A reader that takes its time is waited for, until a signal
    /// asks to end. After that, signals do what they do by default.
    pub fn finish_output(mut self) -> io::Result<u8> {
        tracing::debug!(seconds = self.began.elapsed().as_secs_f64(), "all ranks have ended");
        let failed = self.code.is_some_and(|code| code != 0) && self.asked.is_none();
        // What is left of their ranks' output comes before their end.
        for bridge in &self.bridges {
            bridge.finish(failed.then(|| Shelf::new(self.records.directory())));
        }
        let late = Instant::now() + BRINGING;
        while failed && self.end_early.is_none() && !self.bridges.iter().all(Bridge::has_brought) {
            if Instant::now() >= late {
                self.relay.say("the records of ranks on other hosts did not all come: look for them there");
                break;
            }
            self.pause(records::LOOK)?;
        }
        if let Some(message) = self.records.finish(failed) {
            self.relay.say(&message);
        }
        self.relay.finish();
        let mut ended = false;
        while !ended {
            let mut fds =
                [PollFd::new(self.relay.ended(), PollFlags::IN), PollFd::new(self.signals.socket(), PollFlags::IN)];
            // One that came earlier is kept.
            let until = self.end_early.map(|_| Timespec::default());
            match poll(&mut fds, until.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            ended = !fds[0].revents().is_empty();
            if ended {
                // In this order, no signal gets lost in between.
                self.signals.restore_defaults();
            }
            self.pause(Duration::ZERO)?;
            if let Some(signal) = self.end_early {
                // The reader of the output may hold up other threads for good; they end with the process.
                std::process::exit(128 + signal.as_raw());
            }
        }
        let left = self.left.then_some(1);
        match (self.relay.result(), self.code.or(left)) {
            (Ok(()), code) => Ok(code.unwrap_or(0)),
            (Err(error), code) => {
                crate::output::say(&format!("the output is not complete: {error}"));
                Ok(code.unwrap_or(1))
            }
        }
    }
}
