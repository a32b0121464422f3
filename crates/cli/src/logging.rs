//! Logs go to standard error, filtered by `-v` or `FULMEN_LOG`.
//!
//! A thread of its own writes them, so that whoever logs is never held up by the reader of standard error: the launcher has
//! signals to pass on, and the coordinator has ranks to serve. Lines that come faster than they are read are left out.

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tracing_subscriber::EnvFilter;

use crate::output::Stream;

/// Most lines that wait to be written.
const MOST_LINES: usize = 4096;

/// How long the end of the command waits for the last lines. A reader that takes longer than this does not read.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// `FULMEN_LOG` cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error("FULMEN_LOG={directives} is no filter ({reason}); try FULMEN_LOG=debug")]
pub struct FilterError {
    directives: String,
    reason: String,
}

/// Starts logging. `-v` wins over `FULMEN_LOG` (the syntax of tracing's filters, for example `fulmen=debug`); without
/// either, warnings are shown.
pub fn start(verbose: u8) -> Result<(), FilterError> {
    let filter = match verbose {
        0 => filter_from_environment()?,
        1 => EnvFilter::new("info,openraft=off"),
        2 => EnvFilter::new("debug,openraft=warn"),
        _ => EnvFilter::new("trace"),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Writer(&LOG))
        .with_ansi(io::stderr().is_terminal())
        // They would be written to standard error directly, and panic where that cannot be done.
        .log_internal_errors(false)
        .init();
    Ok(())
}

fn filter_from_environment() -> Result<EnvFilter, FilterError> {
    let directives = std::env::var_os("FULMEN_LOG").unwrap_or_default();
    let error = |reason| FilterError { directives: directives.to_string_lossy().into_owned(), reason };
    let text = directives.to_str().ok_or_else(|| error("it is not UTF-8".to_string()))?.trim();
    if text.is_empty() {
        // That library warns of every message to a node that is down.
        return Ok(EnvFilter::new("warn,openraft=off"));
    }
    EnvFilter::try_new(text).map_err(|reason| error(reason.to_string()))
}

/// Waits until what was logged is written, but not for a reader that does not read. For the end of the command.
pub fn finish() {
    LOG.wait_idle(LAST_WORDS);
}

static LOG: Log = Log::new();

/// Lines on their way to standard error.
struct Log {
    state: Mutex<State>,
    /// There is a line to write, or none any more.
    changed: Condvar,
}

struct State {
    lines: VecDeque<Vec<u8>>,
    /// Lines that were left out since the last one that was written.
    missing: u64,
    /// The thread that writes is there.
    started: bool,
    /// It has taken lines that it has not written yet.
    writing: bool,
}

impl Log {
    const fn new() -> Log {
        let state = State { lines: VecDeque::new(), missing: 0, started: false, writing: false };
        Log { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a line, and never waits for its being written.
    fn push(&'static self, line: &[u8]) {
        let mut state = self.lock();
        if !state.started {
            // Where there can be no thread, there is no log; the next line tries again.
            let thread = thread::Builder::new().name("log".to_string());
            state.started = thread.spawn(|| self.write(|text| drop(Stream::Err.write_all(text)))).is_ok();
        }
        state.take(line);
        self.changed.notify_all();
    }

    /// Writes lines as they come, for as long as the process lives.
    fn write(&self, mut sink: impl FnMut(&[u8])) {
        loop {
            let mut state = self.lock();
            state.writing = false;
            self.changed.notify_all();
            while state.lines.is_empty() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let text = state.give();
            state.writing = true;
            drop(state);
            sink(&text);
        }
    }

    /// `false` if there were still lines to write after `limit`.
    fn wait_idle(&self, limit: Duration) -> bool {
        let busy = |state: &mut State| state.started && (state.writing || !state.lines.is_empty());
        let waited = self.changed.wait_timeout_while(self.lock(), limit, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl State {
    fn take(&mut self, line: &[u8]) {
        if self.started && self.lines.len() < MOST_LINES {
            self.lines.push_back(line.to_vec());
        } else {
            self.missing += 1;
        }
    }

    /// All that is to be written now.
    fn give(&mut self) -> Vec<u8> {
        let mut text: Vec<u8> = self.lines.drain(..).flatten().collect();
        if self.missing > 0 {
            text.extend_from_slice(format!("({} lines of the log are missing here)\n", self.missing).as_bytes());
            self.missing = 0;
        }
        text
    }
}

/// What the subscriber writes to: each write is a whole line.
struct Writer(&'static Log);

impl io::Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_reader_that_does_not_read_holds_nobody_up() {
        static LOG: Log = Log::new();
        LOG.lock().started = true;
        let (written, texts) = mpsc::sync_channel::<Vec<u8>>(0);
        thread::spawn(|| LOG.write(move |text| drop(written.send(text.to_vec()))));
        LOG.push(b"first\n");
        // The writer hangs with the first line, or takes it later with others: the queue is full in both cases.
        for _ in 0..2 * MOST_LINES {
            LOG.push(b"more\n");
        }
        assert!(!LOG.wait_idle(Duration::ZERO));
        let mut all = Vec::new();
        while !LOG.wait_idle(Duration::ZERO) {
            if let Ok(text) = texts.recv_timeout(Duration::from_millis(10)) {
                all.extend(text);
            }
        }
        let all = String::from_utf8(all).unwrap();
        assert!(all.starts_with("first\nmore\n"), "{}", &all[..40]);
        let missing = all.lines().find_map(|line| line.strip_prefix('(')?.split_once(' ')).expect("some are missing").0;
        assert_eq!(all.matches("more\n").count() + missing.parse::<usize>().unwrap(), 2 * MOST_LINES);
        LOG.push(b"last\n");
        assert_eq!(texts.recv().unwrap(), b"last\n");
    }
}
