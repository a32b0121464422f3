//! Asking a child process: calls into a library or a driver that may hang or crash are made in one.
//!
//! The parent runs this executable with a hidden subcommand ([`ask`]), which does the work and prints one JSON value
//! ([`answer`]). A child that takes too long is killed, and one that crashes takes nothing with it. It ends with its parent:
//! its standard input is a pipe that the parent holds, and Linux kills it besides.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::run::processes;
use crate::run::signals;

/// The longest answer in bytes.
const LONGEST: u64 = 64 << 20;
/// How long a killed child may take to end. Only one that hangs inside the system takes longer.
const VANISH: Duration = Duration::from_secs(5);
/// How long the streams of a child that has ended may stay open: processes that it left behind may hold them.
const LINGER: Duration = Duration::from_secs(1);
/// How often a child is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// Why a child gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// It could not be started.
    #[error("no process could be started to ask: {0}")]
    NotStarted(io::Error),
    /// It was killed because its time was over.
    #[error("no answer within {} s{}", after.as_secs_f64(), if *stuck { ", and the process that asked cannot even be killed: it hangs inside the system" } else { "" })]
    TimedOut {
        /// Its time.
        after: Duration,
        /// It had not ended some seconds after it was killed: a driver holds it. It is left behind.
        stuck: bool,
    },
    /// A signal ended it.
    #[error("the process that asked was ended by {signal}{}", said(words))]
    Crashed {
        /// The signal's name.
        signal: String,
        /// What it said last.
        words: String,
    },
    /// It ended with an error.
    #[error("{}", if words.is_empty() { format!("the process that asked ended with code {code}") } else { words.clone() })]
    Failed {
        /// Its exit code.
        code: i32,
        /// What it said last.
        words: String,
    },
    /// It answered something that cannot be read.
    #[error("the process that asked gave an answer that cannot be read: {0}")]
    Garbled(String),
}

fn said(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(" (it said: {words})") }
}

/// Runs this executable with these arguments, whose first is a hidden subcommand that ends in [`answer`], and waits for its
/// value, for `timeout` at most.
///
/// # Errors
/// [`Trouble`]; no child is left then, unless the system does not let go of it.
pub fn ask<T: DeserializeOwned>(args: &[impl AsRef<OsStr>], timeout: Duration) -> Result<T, Trouble> {
    let mut command = Command::new(processes::own_program().map_err(Trouble::NotStarted)?);
    command.arg0("fulmen").args(args);
    run(&mut command, timeout, |answer| serde_json::from_slice(answer).map_err(|error| error.to_string()))
}

/// Runs a program and waits for what it writes to standard output, which `read` understands, for `timeout` at most.
///
/// # Errors
/// [`Trouble`], as [`ask`].
pub fn run<T>(
    command: &mut Command,
    timeout: Duration,
    read: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<T, Trouble> {
    let streams = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = streams.spawn().map_err(Trouble::NotStarted)?;
    // Its end is what tells the child that nobody waits any more.
    let _life = child.stdin.take();
    let answer = follow(child.stdout.take());
    let words = follow(child.stderr.take());
    let Some(status) = wait(&mut child, timeout) else {
        // The child has not been waited for, so its number is its own.
        let _ = child.kill();
        return Err(Trouble::TimedOut { after: timeout, stuck: wait(&mut child, VANISH).is_none() });
    };
    let answer = answer.recv_timeout(LINGER).unwrap_or_default();
    let words = last_line(&words.recv_timeout(LINGER).unwrap_or_default());
    match (status.signal(), status.code()) {
        (Some(signal), _) => Err(Trouble::Crashed { signal: signals::name(signal), words }),
        (None, Some(0)) => read(&answer).map_err(Trouble::Garbled),
        (None, code) => Err(Trouble::Failed { code: code.unwrap_or(-1), words }),
    }
}

/// Collects a stream; a child that fills it is never held up, however much that is.
fn follow(stream: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    if let Some(mut stream) = stream {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stream.by_ref().take(LONGEST).read_to_end(&mut bytes);
            let _ = io::copy(&mut stream, &mut io::sink());
            // Nobody asks for the words of a child that was killed.
            let _ = sender.send(bytes);
        });
    }
    receiver
}

fn wait(child: &mut Child, timeout: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + timeout;
    loop {
        // An error means that it was waited for already, which nobody else does.
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(LOOK);
    }
}

/// The last line that says something, as [`crate::output::say`] wrote it or the library did.
fn last_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    line.strip_prefix("fulmen: ").unwrap_or(line).to_string()
}

/// The child's side: does the work and prints its value. Whatever else goes to standard output meanwhile, from a library say,
/// goes to standard error instead.
pub fn answer<T: Serialize>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<ExitCode> {
    processes::die_with_parent()?;
    thread::spawn(|| {
        // It says nothing; its end is the parent's. The exit handlers of a library may hang, so none are run.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = kill_process(getpid(), Signal::KILL);
    });
    // A crash is expected here, and a file that holds this process's memory helps nobody.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let mut out = std::fs::File::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?);
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    let value = work()?;
    out.write_all(&serde_json::to_vec(&value)?)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn shell(script: &str, timeout: Duration) -> Result<u32, Trouble> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        run(&mut command, timeout, |answer| serde_json::from_slice(answer).map_err(|error| error.to_string()))
    }

    #[test]
    fn a_value_comes_back() {
        assert_eq!(shell("echo 42", LIMIT).unwrap(), 42);
    }

    #[test]
    fn what_takes_too_long_is_killed_and_reaped() {
        let error = shell("exec sleep 1000", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, Trouble::TimedOut { stuck: false, .. }), "{error}");
        assert!(error.to_string().contains("0.05 s"), "{error}");
    }

    #[test]
    fn a_crash_is_told_with_its_signal_and_last_words() {
        let error = shell("echo first >&2; echo the end >&2; kill -ABRT $$", LIMIT).unwrap_err();
        assert!(
            matches!(&error, Trouble::Crashed { signal, words } if signal == "SIGABRT" && words == "the end"),
            "{error}"
        );
    }

    #[test]
    fn an_error_is_told_in_the_childs_words() {
        let error = shell("echo 'fulmen: no library' >&2; exit 3", LIMIT).unwrap_err();
        assert!(matches!(&error, Trouble::Failed { code: 3, words } if words == "no library"), "{error}");
        assert_eq!(error.to_string(), "no library");
        assert!(shell("exit 4", LIMIT).unwrap_err().to_string().contains("code 4"));
    }

    #[test]
    fn an_answer_that_is_none_is_told() {
        let error = shell("echo many", LIMIT).unwrap_err();
        assert!(matches!(error, Trouble::Garbled(_)), "{error}");
    }

    #[test]
    fn many_words_hold_nobody_up() {
        assert_eq!(shell("head -c 1000000 /dev/zero >&2; echo 1", LIMIT).unwrap(), 1);
    }
}
