//! `fulmen demo`: trains a classifier of handwritten digits on several processes of this machine.
//!
//! The command starts the processes, which are this program again (a hidden command). [`train`] is what each of them does;
//! the first one tells what it found, [`report`] judges and shows it.

mod data;
mod model;
mod report;
mod train;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use report::{Event, Outcome, Report};

use crate::bench::{check_address_space, check_device};
use crate::output::{NOBODY_LISTENS, Stream, show};
use crate::run::{Job, Output, Profile, Reader};

/// The hidden command of a process.
pub const RANK: &str = "__demo";

/// Bytes of each process's pool: its buffers take a third of it.
const POOL: u64 = 64 << 20;

/// How long the demo may take. It takes seconds.
const LIMIT: Duration = Duration::from_secs(300);

/// Form a cluster of processes on this machine and let it do real work: learn to read handwritten digits.
///
/// Each process computes gradients from its share of every batch; an all-reduce sums them, so that all processes make the
/// same step. Then the result is judged: on images that nobody has learned from, bit by bit between the processes, and bit
/// by bit against the same training in one process. Every line of the report was checked; the last one says so.
///
/// Exit code: 0 only if everything was verified, 1 if something was not, else that of the process that failed first.
#[derive(clap::Args)]
pub struct Args {
    /// How many processes, 1 to 64.
    #[arg(short = 'n', long, value_name = "N", default_value = "4", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: u32,
    /// Use the software RDMA device with the limits and rules of this hardware, instead of shared memory.
    #[arg(long, value_enum, env = "FULMEN_PROFILE")]
    profile: Option<Profile>,
    /// Print the report as one JSON object, and nothing else, on standard output.
    #[arg(long)]
    json: bool,
}

/// What the first process has told so far.
#[derive(Default)]
struct Told {
    report: Option<Report>,
    /// A line of progress is on the terminal.
    progress: bool,
}

/// Starts the processes, and shows and judges what they did.
pub fn demo(args: Args, verbose: u8) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let Args { nodes, profile, json } = args;
    check_device(nodes, profile)?;
    check_address_space(nodes, POOL)?;
    if !json && !show(&report::title(nodes, profile))? {
        return Ok(ExitCode::from(NOBODY_LISTENS));
    }
    let told = Arc::new(Mutex::new(Told::default()));
    let output = Output::Read(reader(told.clone(), io::stderr().is_terminal()));
    let mut job = Job::own(nodes, profile, verbose, vec![OsString::from(RANK)], output)?;
    job.timeout = Some(LIMIT);
    job.env.push(("FULMEN_POOL", POOL.to_string()));
    let code = job.run()?;
    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
    erase_progress(&mut told);
    let outcome = Outcome::new(nodes, told.report.take(), code, began.elapsed());
    let text = if json { serde_json::to_string(&outcome)? + "\n" } else { outcome.describe() };
    if !show(&text)? {
        return Ok(ExitCode::from(NOBODY_LISTENS));
    }
    Ok(ExitCode::from(outcome.exit_code()))
}

/// Takes the first process's lines: its report, and its progress for a terminal.
fn reader(told: Arc<Mutex<Told>>, terminal: bool) -> Reader {
    Box::new(move |bytes| {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        for line in bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice(line).map_err(io::Error::other)? {
                Event::Progress { doing, done, of } if terminal => {
                    let width = 20;
                    let full = width * done / of.max(1);
                    let bar = "━".repeat(full) + &"┄".repeat(width - full.min(width));
                    // A terminal that is gone needs no progress.
                    let _ = Stream::Err.write_all(format!("\r\x1b[K  {doing:<10} {bar} {done}/{of}").as_bytes());
                    told.progress = true;
                }
                Event::Progress { .. } => {}
                Event::Report(report) => told.report = Some(*report),
            }
        }
        Ok(())
    })
}

fn erase_progress(told: &mut Told) {
    if told.progress {
        let _ = Stream::Err.write_all(b"\r\x1b[K");
        told.progress = false;
    }
}

/// Works as one of the processes.
pub fn rank() -> anyhow::Result<ExitCode> {
    train::run()?;
    Ok(ExitCode::SUCCESS)
}
