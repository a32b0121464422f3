//! Reaching all hosts at once, before anything is started on one of them.
//!
//! All hosts are waited for within one limit. Once one has failed, the others get a moment to fail as well, so that a user who
//! has to mend several hears of them together.

use std::ffi::OsString;
use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use super::super::signals::{Signals, asks_to_end, time_left};
use super::connection::{Connection, Took};
use super::error::HostError;
use super::protocol::{Garbled, Task, ToHost, ToLauncher, excerpt};
use super::{Means, Placed, Ssh, Way};
use crate::output::say;

/// How long the others may take once a host has failed.
const MOMENT: Duration = Duration::from_secs(5);

/// Why there are no connections.
pub enum Stopped {
    /// Hosts cannot be used.
    Failed(Vec<HostError>),
    /// A signal has asked to end.
    Asked(Signal),
    /// The run's time is up.
    TimedOut,
    /// The system does not let this process wait.
    System(io::Error),
}

/// A host that has answered.
pub struct Reached {
    /// The connection.
    pub connection: Connection,
    /// By which addresses it and this machine see each other, as its ssh server says it.
    pub addresses: Option<String>,
}

/// The limits on reaching hosts.
#[derive(Clone, Copy)]
pub struct Limits {
    /// For all hosts.
    pub limit: Duration,
    /// When the run's own time is up.
    pub run: Option<Instant>,
}

/// Connects to all of these hosts.
pub fn connect(hosts: &[&Placed], way: &Way, signals: &mut Signals, limits: Limits) -> Result<Vec<Reached>, Stopped> {
    let means = way.means();
    let mut waiting = Vec::new();
    let mut failed = Vec::new();
    for host in hosts {
        match Connection::start(&way.program(), &way.arguments(host, limits.limit)) {
            Ok(connection) => {
                let (host, path) = (host.name.clone(), way.remote(host));
                waiting.push(Waiting { host, path, means, connection, greeted: false });
            }
            Err(error) => {
                let program = way.program().to_string_lossy().into_owned();
                // The others would say the same.
                return Err(Stopped::Failed(vec![HostError::NoSsh { program, cause: error.to_string() }]));
            }
        }
    }
    let reached = gather(&mut waiting, signals, limits, &mut failed, |message| match message {
        ToLauncher::Greeting { connection } => Some(Ok(connection)),
        _ => None,
    })?;
    for waiting in &mut waiting {
        // What ssh and login shells say before that is shown; later on, the relay shows it.
        let words = waiting.connection.take_words();
        for line in String::from_utf8_lossy(&words).lines().filter(|line| !line.trim().is_empty()) {
            say(&format!("host {}: {}", waiting.host, line.trim_end()));
        }
    }
    let known = hosts.iter().map(|host| way.addresses(host));
    let reached = waiting.into_iter().zip(reached.into_iter().zip(known));
    let reached =
        reached.map(|(waiting, (told, known))| Reached { connection: waiting.connection, addresses: known.or(told) });
    Ok(reached.collect())
}

/// Tells all hosts what to run, and waits until all can.
pub fn prepare(
    hosts: &[&Placed],
    reached: Vec<Reached>,
    tasks: Vec<Task>,
    means: Means,
    signals: &mut Signals,
    limits: Limits,
) -> Result<Vec<Connection>, Stopped> {
    let mut waiting = Vec::new();
    for ((host, reached), task) in hosts.iter().zip(reached).zip(tasks) {
        let mut connection = reached.connection;
        connection.say(&ToHost::Task(task));
        waiting.push(Waiting { host: host.name.clone(), path: String::new(), means, connection, greeted: true });
    }
    gather(&mut waiting, signals, limits, &mut Vec::new(), |message| match message {
        ToLauncher::Ready => Some(Ok(())),
        ToLauncher::Refused { code, words } => Some(Err((code, words))),
        _ => None,
    })?;
    Ok(waiting.into_iter().map(|waiting| waiting.connection).collect())
}

/// A host that is waited for.
struct Waiting {
    host: String,
    /// What was started there.
    path: String,
    means: Means,
    connection: Connection,
    /// Its helper has said which version it is.
    greeted: bool,
}

/// Waits until each host has said what `read` takes. `read` gives nothing for a message that has no place here.
fn gather<T>(
    waiting: &mut [Waiting],
    signals: &mut Signals,
    limits: Limits,
    failed: &mut Vec<HostError>,
    mut read: impl FnMut(ToLauncher) -> Option<Result<T, (u8, String)>>,
) -> Result<Vec<T>, Stopped> {
    let mut answers: Vec<Option<T>> = waiting.iter().map(|_| None).collect();
    let mut over = vec![false; waiting.len()];
    let mut end = Instant::now() + limits.limit;
    loop {
        for (index, host) in waiting.iter_mut().enumerate().filter(|(index, _)| !over[*index]).collect::<Vec<_>>() {
            match host.hear(&mut read) {
                Ok(None) => {}
                Ok(Some(answer)) => {
                    answers[index] = Some(answer);
                    over[index] = true;
                }
                Err(error) => {
                    end = end.min(Instant::now() + MOMENT);
                    failed.push(error);
                    over[index] = true;
                }
            }
        }
        let now = Instant::now();
        if over.iter().all(|over| *over) || now >= end {
            break;
        }
        if limits.run.is_some_and(|run| now >= run) {
            return Err(Stopped::TimedOut);
        }
        let until = limits.run.map_or(end, |run| run.min(end));
        wait(waiting, &over, signals, until).map_err(Stopped::System)?;
        if let Some(signal) = signals.pending().into_iter().find(|signal| asks_to_end(*signal)) {
            return Err(Stopped::Asked(signal));
        }
    }
    // Where another host has failed, the limit is not what these are to be blamed for.
    if failed.is_empty() {
        for (host, _) in waiting.iter_mut().zip(&over).filter(|(_, over)| !**over) {
            let words = host.connection.last_words();
            failed.push(HostError::Late { host: host.host.clone(), limit: limits.limit, words });
        }
    }
    match failed.is_empty() {
        true => Ok(answers.into_iter().flatten().collect()),
        false => Err(Stopped::Failed(std::mem::take(failed))),
    }
}

fn wait(waiting: &[Waiting], over: &[bool], signals: &Signals, until: Instant) -> io::Result<()> {
    let mut fds = vec![PollFd::new(signals.socket(), PollFlags::IN)];
    for (host, _) in waiting.iter().zip(over).filter(|(_, over)| !**over) {
        host.connection.fds(&mut fds);
    }
    match poll(&mut fds, Some(&time_left(until))) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Waiting {
    /// Reads what has come, without waiting.
    fn hear<T>(
        &mut self,
        read: &mut impl FnMut(ToLauncher) -> Option<Result<T, (u8, String)>>,
    ) -> Result<Option<T>, HostError> {
        self.connection.flush();
        self.connection.read_words();
        let took = self.connection.read();
        if !self.greeted {
            match self.connection.incoming.hello() {
                Ok(None) => {}
                Ok(Some(noise)) => {
                    self.greeted = true;
                    if !noise.is_empty() {
                        tracing::info!(
                            host = self.host,
                            bytes = noise.len(),
                            first = excerpt(&noise),
                            "printed by its login shell"
                        );
                    }
                }
                Err(Garbled::NoMark(excerpt)) => return Err(self.foreign(excerpt)),
                Err(Garbled::Message) => return Err(HostError::Garbled { host: self.host.clone() }),
                Err(other) => return Err(HostError::Version { host: self.host.clone(), theirs: other.to_string() }),
            }
        }
        if self.greeted {
            let garbled = |_| HostError::Garbled { host: self.host.clone() };
            if let Some(message) = self.connection.incoming.next().map_err(garbled)? {
                return match read(message) {
                    Some(Ok(answer)) => Ok(Some(answer)),
                    Some(Err((code, words))) => Err(HostError::Refused { host: self.host.clone(), code, words }),
                    None => Err(HostError::Garbled { host: self.host.clone() }),
                };
            }
        }
        match took {
            Took::Some => Ok(None),
            Took::End => Err(self.ended()),
        }
    }

    fn foreign(&self, excerpt: String) -> HostError {
        HostError::Foreign { host: self.host.clone(), path: self.path.clone(), excerpt }
    }

    /// Why it has ended without an answer.
    fn ended(&mut self) -> HostError {
        let status = self.connection.end();
        let words = self.connection.last_words();
        let (host, path) = (self.host.clone(), self.path.clone());
        match status.and_then(|status| status.code()) {
            Some(127) if !self.greeted => HostError::Missing { host, path, words },
            Some(126) if !self.greeted => HostError::NotExecutable { host, path, words },
            Some(0) if !self.greeted => self.foreign(self.connection.incoming.excerpt()),
            _ => HostError::Unreached { host, means: self.means, status, words },
        }
    }
}

impl Ssh {
    /// What ssh is told for a host. The user's own options come first, and ssh takes the first of each.
    pub fn arguments(&self, host: &Placed, limit: Duration) -> Vec<OsString> {
        let mut args = self.options.clone();
        let mut add = |words: &[&str]| args.extend(words.iter().map(OsString::from));
        let seconds = limit.as_secs_f64().ceil().max(1.0);
        // It never asks anything, and notices a host that has vanished. What the user's configuration forwards for a person's
        // session has no use here, and would fail for a second one.
        add(&["-T", "-o", "BatchMode=yes", "-o", &format!("ConnectTimeout={seconds}")]);
        add(&["-o", &format!("ServerAliveInterval={}", self.alive.as_secs().max(1)), "-o", "ServerAliveCountMax=3"]);
        add(&["-o", "ClearAllForwardings=yes", "-o", "ControlMaster=no"]);
        if let Some(user) = &host.listed.user {
            add(&["-l", user]);
        }
        if let Some(port) = host.listed.port {
            add(&["-p", &port.to_string()]);
        }
        add(&[&host.listed.name, &format!("exec {} {}", quoted(&self.remote(host)), super::HOST)]);
        args
    }

    /// Where a host's fulmen is.
    pub fn remote(&self, host: &Placed) -> String {
        host.listed.fulmen.clone().unwrap_or_else(|| self.fulmen.clone())
    }
}

/// A path as a shell of the other host takes it, whichever that is. A home directory is the other one's.
fn quoted(path: &str) -> String {
    match path.strip_prefix("~/") {
        Some(rest) => format!("~/{}", quoted(rest)),
        None => format!("'{}'", path.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_survive_a_shell() {
        assert_eq!(quoted("/opt/a b/fulmen"), "'/opt/a b/fulmen'");
        assert_eq!(quoted("~/bin/it's"), r"~/'bin/it'\''s'");
        for path in ["/a b/$HOME/`x`", "it's", "\\n*", "-x"] {
            let command = format!("printf %s {}", quoted(path));
            let shown = std::process::Command::new("sh").args(["-c", &command]).output().unwrap().stdout;
            assert_eq!(String::from_utf8(shown).unwrap(), path);
        }
    }
}
