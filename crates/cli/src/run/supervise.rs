//! The supervisor of one rank: a small process between the launcher and the rank's program.
//!
//! - The program leads a process group of its own, so that a signal typed at the terminal reaches it once: through the
//!   launcher. Signals are delivered to that whole group, as a terminal would.
//! - When the launcher dies, for whatever reason, the socket to it closes and the supervisor kills the rank at once.
//! - When the supervisor itself is killed, the system kills the program (see `start`).
//! - The rank's orphans become the supervisor's children (Linux). When the program has ended, what it left behind gets
//!   SIGTERM, and SIGKILL after the grace time. Children are only signalled one by one while they are this process's own,
//!   unreaped children, so that no signal can hit a process that took over an old number.
//!
//! Out of reach: a process whose supervisor *and* launcher are both killed by SIGKILL while it is an orphan or has left its
//! parent, and on macOS one that leaves the process group.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, getpgid, getpid, kill_process, kill_process_group,
    wait, waitid, waitpid,
};

use super::control::{self, Event, Report};
use super::processes;
use super::signals::{Signals, asks_to_end, time_left};

/// How long killed processes may take to vanish. Only one that hangs inside the system takes longer; it is reported.
const VANISH: Duration = Duration::from_secs(30);

/// How often the children are looked through while a rank's remains are being ended; their adoption gives no sign.
const LOOK: Duration = Duration::from_millis(20);

/// Asks whether a child has ended, without waiting and without taking its status.
const ENDED: WaitIdOptions = WaitIdOptions::EXITED.union(WaitIdOptions::NOHANG).union(WaitIdOptions::NOWAIT);

/// The arguments of the hidden command.
#[derive(clap::Args)]
pub struct Args {
    /// Milliseconds between SIGTERM and SIGKILL for what the program leaves behind.
    #[arg(long)]
    pub grace: u64,
    /// The file to execute.
    #[arg(long)]
    pub path: PathBuf,
    /// Variables for the program alone: NAME=VALUE.
    #[arg(long)]
    pub set: Vec<OsString>,
    /// The program's name and arguments.
    #[arg(last = true, required = true)]
    pub program: Vec<OsString>,
}

/// Runs the program of one rank until nothing of it is left.
pub fn supervise(args: Args) -> anyhow::Result<ExitCode> {
    let launcher = control::take_stdin(File::open("/dev/null")?.as_fd())?;
    let signals = Signals::listen(0)?;
    let adopts = processes::adopt_orphans()?;
    let [stdin, secret]: [OwnedFd; 2] = control::receive(&launcher)?;
    match begin(&args, stdin, secret) {
        Ok((program, starting)) => {
            let grace = if adopts { Duration::from_millis(args.grace) } else { Duration::ZERO };
            Supervisor { launcher, signals, program, starting: Some(starting), grace, kill: false, asked: 0 }.run()?;
        }
        Err(error) => {
            tell(&launcher, Report::now(Event::NoProcess(error.raw_os_error().unwrap_or(0))));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the process that becomes the program. The socket closes when it has, or says why it has not.
fn begin(args: &Args, stdin: OwnedFd, secret: OwnedFd) -> io::Result<(Pid, UnixStream)> {
    let (starting, theirs) = UnixStream::pair()?;
    fcntl_setfd(&secret, FdFlags::empty())?;
    let child = Command::new(processes::own_program()?)
        .arg0("fulmen")
        .args([super::START, "--parent"])
        .arg(getpid().as_raw_nonzero().to_string())
        .arg("--path")
        .arg(&args.path)
        .args(args.set.iter().flat_map(|variable| [OsStr::new("--set"), variable]))
        .arg("--")
        .args(&args.program)
        .env("FULMEN_SECRET_FD", secret.as_raw_fd().to_string())
        .stdin(OwnedFd::from(theirs))
        .process_group(0)
        .spawn()?;
    // One that died already leaves a closed socket; its end is seen like any other.
    let _ = control::hand_over(&starting, &[stdin.as_fd()]);
    starting.set_nonblocking(true)?;
    Ok((Pid::from_child(&child), starting))
}

/// A launcher that is gone needs no report.
fn tell(launcher: &UnixStream, report: Report) {
    let mut stream = launcher;
    let _ = stream.write_all(&report.to_bytes());
}

struct Supervisor {
    launcher: UnixStream,
    signals: Signals,
    program: Pid,
    /// The socket of the process that becomes the program, until it has.
    starting: Option<UnixStream>,
    grace: Duration,
    /// Everything is to be killed: the launcher said so or is gone.
    kill: bool,
    /// The last signal by which the program was asked to end, or 0.
    asked: i32,
}

impl Supervisor {
    fn run(mut self) -> io::Result<()> {
        let mut failure = None;
        let status = loop {
            self.listen(None, true)?;
            failure = failure.or_else(|| self.hear_start());
            if let Some(status) = self.status()? {
                break status;
            }
            self.reap_orphans()?;
        };
        let event = match (failure.or_else(|| self.hear_start()), status.exit_status(), status.terminating_signal()) {
            (Some(errno), ..) => Event::NotExecuted(errno),
            (None, Some(code), _) => Event::Exited(code),
            (None, None, signal) => Event::Signaled(signal.unwrap_or(Signal::KILL.as_raw())),
        };
        tell(&self.launcher, Report { asked: self.asked, ..Report::now(event) });
        self.end_remains()
    }

    /// How the program has ended, if it has.
    fn status(&self) -> io::Result<Option<WaitIdStatus>> {
        Ok(waitid(WaitId::Pid(self.program), ENDED)?)
    }

    /// Waits until something happens or `until`, and delivers the signals that have come to the program if it `lives`.
    fn listen(&mut self, until: Option<Instant>, lives: bool) -> io::Result<()> {
        let mut fds = vec![PollFd::new(self.signals.socket(), PollFlags::IN)];
        if !self.kill {
            fds.push(PollFd::new(&self.launcher, PollFlags::IN));
            fds.extend(self.starting.as_ref().map(|socket| PollFd::new(socket, PollFlags::IN)));
        }
        match poll(&mut fds, until.map(time_left).as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let spoke = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        let mut signals = self.signals.pending();
        signals.retain(|&signal| signal != Signal::CHILD);
        if spoke {
            let mut bytes = [0; 64];
            match (&self.launcher).read(&mut bytes) {
                Ok(count) if count > 0 => {
                    signals.extend(bytes[..count].iter().filter_map(|&byte| Signal::from_named_raw(byte.into())));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The launcher is gone.
                _ => signals.push(Signal::KILL),
            }
        }
        for signal in signals {
            self.kill |= signal == Signal::KILL;
            if lives {
                // One that has ended already did not end by this.
                if (asks_to_end(signal) || signal == Signal::KILL) && self.status()?.is_none() {
                    self.asked = signal.as_raw();
                }
                self.deliver(signal);
            }
        }
        Ok(())
    }

    /// Why the program could not be executed, once that is known.
    fn hear_start(&mut self) -> Option<i32> {
        let mut errno = [0; 4];
        match self.starting.as_ref()?.read(&mut errno) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            // The four bytes were written at once, so they arrive at once.
            Ok(4) => {}
            _ => errno = [0; 4],
        }
        self.starting = None;
        Some(i32::from_ne_bytes(errno)).filter(|&errno| errno != 0)
    }

    /// Delivers a signal to the rank. Its process group exists as long as its leader is not waited for; a program that
    /// moved to another group is still a child.
    fn deliver(&self, signal: Signal) {
        if kill_process_group(self.program, signal).is_err() || signal == Signal::KILL {
            let _ = kill_process(self.program, signal);
        }
    }

    /// Waits for orphans that have ended while the program runs, so that they do not pile up.
    fn reap_orphans(&self) -> io::Result<()> {
        // Looking through all processes is only worth it when something has ended.
        if waitid(WaitId::All, ENDED)?.is_some() {
            for child in processes::children()? {
                if child != self.program {
                    let _ = waitpid(Some(child), WaitOptions::NOHANG);
                }
            }
        }
        Ok(())
    }

    /// Ends what the program has left behind. The program has ended, but was not waited for.
    fn end_remains(&mut self) -> io::Result<()> {
        if self.kill || self.grace.is_zero() {
            self.deliver(Signal::KILL);
        } else {
            // A stopped process acts on SIGTERM only when it is continued.
            self.deliver(Signal::TERM);
            self.deliver(Signal::CONT);
        }
        waitpid(Some(self.program), WaitOptions::empty())?;
        let kill_at = Instant::now() + self.grace;
        let mut give_up = None;
        let mut asked = HashSet::new();
        loop {
            loop {
                match wait(WaitOptions::NOHANG) {
                    Ok(Some(_)) | Err(Errno::INTR) => {}
                    Ok(None) => break,
                    Err(_) => return Ok(()),
                }
            }
            let killing = self.kill || Instant::now() >= kill_at;
            let children = processes::children()?;
            for &child in &children {
                if killing {
                    let _ = kill_process(child, Signal::KILL);
                } else if asked.insert(child) && getpgid(Some(child)) != Ok(self.program) {
                    let _ = kill_process(child, Signal::TERM);
                    let _ = kill_process(child, Signal::CONT);
                }
            }
            if killing && Instant::now() >= *give_up.get_or_insert_with(|| Instant::now() + VANISH) {
                tell(&self.launcher, Report::now(Event::Left(children.len().try_into().unwrap_or(i32::MAX))));
                return Ok(());
            }
            // The remains were asked to end; only SIGKILL, which `listen` keeps, adds something to that.
            self.listen(Some(Instant::now() + LOOK), false)?;
        }
    }
}
