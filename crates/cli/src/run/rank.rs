//! One rank as the launcher sees it: its supervisor, and what that has said.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use super::control::{self, Event, Reports};
use super::meeting::hand_out;
use super::processes;
use super::start::set;
use super::verdict::{Ended, Ending};

/// One rank.
pub struct Rank {
    keeper: Keeper,
    /// `None` when the supervisor has ended.
    pub control: Option<UnixStream>,
    /// How the rank ended.
    pub ended: Option<Ended>,
    /// How often it was started again.
    pub restarted: u32,
    reports: Reports,
}

/// Who keeps hold of a rank.
enum Keeper {
    /// A supervisor, which is a child of this process.
    Supervisor(Child),
    /// A supervisor on another host.
    Bridge,
}

/// What the ranks of one host are started with.
pub struct Kit {
    /// The file to execute.
    pub path: PathBuf,
    /// The program's name and its arguments.
    pub program: Vec<OsString>,
    /// The time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Variables of the ranks and of the processes that start them.
    pub env: Vec<(OsString, OsString)>,
    /// Variables of the program alone.
    pub program_env: Vec<(OsString, OsString)>,
    /// The first rank of the host.
    pub first: u32,
    /// The secret of the run, as ranks read it.
    pub secret: String,
}

/// What was news in a supervisor's reports, beside the rank's ending.
pub struct Heard {
    /// The supervisor was killed, so that its orphans became the launcher's.
    pub killed: bool,
    /// So many processes of the rank do not end.
    pub left: i32,
}

impl Rank {
    /// Starts a supervisor, which starts the program.
    pub fn start(kit: &Kit, rank: u32, stdin: BorrowedFd<'_>, out: OwnedFd, err: OwnedFd) -> io::Result<Rank> {
        let (control, theirs) = UnixStream::pair()?;
        let secret = hand_out(&kit.secret)?;
        let mut command = Command::new(processes::own_program()?);
        command
            .arg0("fulmen")
            .args([super::SUPERVISE, "--grace", &kit.grace.as_millis().to_string(), "--path"])
            .arg(&kit.path)
            .args(set(&kit.program_env))
            .arg("--")
            .args(&kit.program)
            // Whatever other launchers have set further up is theirs.
            .env_remove("FULMEN_LAUNCHER")
            .envs(kit.env.iter().map(|(name, value)| (name, value)))
            .env("FULMEN_RANK", rank.to_string())
            .env("FULMEN_LOCAL_RANK", (rank - kit.first).to_string())
            .stdin(OwnedFd::from(theirs))
            .stdout(out)
            .stderr(err)
            .process_group(0);
        let supervisor = command.spawn()?;
        tracing::debug!(rank, supervisor = supervisor.id(), "started");
        match control::hand_over(&control, &[stdin, secret.as_fd()]) {
            // One that died already is noticed like one that dies later: by the end of its stream.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                drop(control);
                let mut supervisor = supervisor;
                supervisor.wait()?;
                Err(error)
            }
            _ => Ok(Rank::kept_by(Keeper::Supervisor(supervisor), control)),
        }
    }

    /// A rank on another host, whose supervisor is heard over this socket.
    pub fn elsewhere(control: UnixStream) -> Rank {
        Rank::kept_by(Keeper::Bridge, control)
    }

    fn kept_by(keeper: Keeper, control: UnixStream) -> Rank {
        Rank { keeper, control: Some(control), ended: None, restarted: 0, reports: Reports::default() }
    }

    /// Kills its supervisor. `false` if that is not on this host.
    pub fn kill(&mut self) -> bool {
        match &mut self.keeper {
            // It is this process's child and was not waited for, so the number is still its own.
            Keeper::Supervisor(supervisor) => supervisor.kill().is_ok(),
            Keeper::Bridge => false,
        }
    }

    /// Reads what the supervisor says, when its socket is readable.
    pub fn hear(&mut self) -> io::Result<Heard> {
        let mut heard = Heard { killed: false, left: 0 };
        let Some(control) = &self.control else { return Ok(heard) };
        let goes_on = self.reports.read(control);
        while let Some(report) = self.reports.next() {
            let how = match report.event {
                Event::Left(count) => {
                    heard.left = count;
                    continue;
                }
                Event::Lost(signal) => Ending::Lost(signal),
                Event::HostLost => Ending::HostLost,
                event => Ending::Told(event),
            };
            self.ended = self.ended.or(Some(Ended { how, asked: report.asked, at: report.at }));
        }
        if !goes_on {
            self.control = None;
            let how = match &mut self.keeper {
                Keeper::Supervisor(supervisor) => {
                    let status = supervisor.wait()?;
                    heard.killed = status.signal().is_some();
                    match status.signal() {
                        Some(signal) => Ending::Lost(signal),
                        // It has said on standard error why it could not do its work.
                        None => Ending::Told(Event::Exited(status.code().unwrap_or(1).max(1))),
                    }
                }
                Keeper::Bridge => Ending::HostLost,
            };
            self.ended = self.ended.or_else(|| Some(Ended { how, asked: 0, at: control::now() }));
        }
        Ok(heard)
    }
}
