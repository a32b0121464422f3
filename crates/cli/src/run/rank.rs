//! One rank as the launcher sees it: its supervisor, and what that has said.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};
use std::time::Duration;

use super::control::{self, Event, Reports};
use super::meeting::Meeting;
use super::records::DIRECTORY;
use super::start::set;
use super::verdict::Ending;
use super::{Job, processes};

/// One rank.
pub struct Rank {
    pub supervisor: Child,
    /// `None` when the supervisor has ended.
    pub control: Option<UnixStream>,
    /// How the rank ended, and when (`control::now`).
    pub ending: Option<(Ending, Duration)>,
    /// How often it was started again.
    pub restarted: u32,
    reports: Reports,
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
    pub fn start(
        job: &Job,
        meeting: &Meeting,
        rank: u32,
        stdin: BorrowedFd<'_>,
        out: OwnedFd,
        err: OwnedFd,
    ) -> io::Result<Rank> {
        let (control, theirs) = UnixStream::pair()?;
        let secret = meeting.secret()?;
        let mut command = Command::new(processes::own_program()?);
        command
            .arg0("fulmen")
            .args([super::SUPERVISE, "--grace", &job.grace.as_millis().to_string(), "--path"])
            .arg(&job.path)
            .args(set(&job.program_env))
            .arg("--")
            .args(&job.program)
            // Whatever other launchers have set further up is theirs.
            .env_remove("FULMEN_LAUNCHER")
            .env("FULMEN_RANK", rank.to_string())
            .env("FULMEN_SIZE", job.ranks.to_string())
            .env("FULMEN_LOCAL_RANK", rank.to_string())
            .env("FULMEN_LOCAL_SIZE", job.ranks.to_string())
            .env("FULMEN_SILENCE", job.silence.as_secs_f64().to_string())
            .env("FULMEN_COORDINATOR", meeting.address().to_string())
            .envs(job.trace.as_ref().map(|directory| (DIRECTORY, directory)))
            .envs(job.env.iter().map(|(name, value)| (name, value)))
            .stdin(OwnedFd::from(theirs))
            .stdout(out)
            .stderr(err)
            .process_group(0);
        if let Some(profile) = job.profile {
            command.env("FULMEN_PROFILE", profile.name());
        }
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
            _ => {
                Ok(Rank { supervisor, control: Some(control), ending: None, restarted: 0, reports: Reports::default() })
            }
        }
    }

    /// Reads what the supervisor says, when its socket is readable.
    pub fn hear(&mut self) -> io::Result<Heard> {
        let mut heard = Heard { killed: false, left: 0 };
        let Some(control) = &self.control else { return Ok(heard) };
        let goes_on = self.reports.read(control);
        while let Some(report) = self.reports.next() {
            match report.event {
                Event::Left(count) => heard.left = count,
                event => self.ending = self.ending.or(Some((Ending::Told(event), report.at))),
            }
        }
        if !goes_on {
            self.control = None;
            let status = self.supervisor.wait()?;
            heard.killed = status.signal().is_some();
            let lost = match status.signal() {
                Some(signal) => Ending::Lost(signal),
                // It has said on standard error why it could not do its work.
                None => Ending::Told(Event::Exited(status.code().unwrap_or(1).max(1))),
            };
            self.ending = self.ending.or_else(|| Some((lost, control::now())));
        }
        Ok(heard)
    }
}
