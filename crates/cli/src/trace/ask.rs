//! Asking the ranks of a run that is under way for their records.

use std::path::PathBuf;
use std::thread;

use rustix::process::Pid;

use super::TraceError;
use crate::run::{Asked, LOOK, name_ranks, recorders};

/// Asks the ranks of the run that this process launched, waits for their answers, and gives the directories.
pub fn ask(pid: i32, warnings: &mut Vec<String>) -> anyhow::Result<Vec<PathBuf>> {
    let hint = if cfg!(target_os = "linux") {
        "; programs without a fabric do not record"
    } else {
        "; on this system, send SIGUSR1 to it and name the directory of its records (`fulmen run --trace DIR`)"
    };
    let launcher = Pid::from_raw(pid).ok_or(TraceError::NoRun { pid, hint })?;
    let asked = Asked::ask(recorders(launcher)?).ok_or(TraceError::NoRun { pid, hint })?;
    while !asked.is_over() {
        thread::sleep(LOOK);
    }
    let silent: Vec<u32> = asked.silent().into_iter().collect();
    if !silent.is_empty() {
        warnings.push(format!("{} did not answer: stopped, or without a processor", name_ranks(&silent)));
    }
    Ok(asked.directories().into_iter().collect())
}
