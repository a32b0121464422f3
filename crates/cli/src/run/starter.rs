//! What it takes to start a rank, the first time and again.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};

use super::Job;
use super::lines::Lines;
use super::meeting::Meeting;
use super::rank::Rank;
use super::relay::{Reader, Source, Target};
use crate::output::Stream;

/// The pipes for a rank's output: what is read of them, and the ends for standard output and standard error. A reader takes
/// standard output without labels.
pub fn pipes(rank: u32, labels: bool, reader: Option<Reader>) -> io::Result<([Source; 2], (OwnedFd, OwnedFd))> {
    let stream = |to, labels| -> io::Result<(Source, OwnedFd)> {
        let (pipe, end) = io::pipe()?;
        let lines = if labels { Lines::labelled(rank) } else { Lines::plain() };
        Ok((Source { pipe, lines, to }, end.into()))
    };
    let (out, out_end) = match reader {
        Some(reader) => stream(Target::Reader(reader), false)?,
        None => stream(Target::Stream(Stream::Out), labels)?,
    };
    let (err, err_end) = stream(Target::Stream(Stream::Err), labels)?;
    Ok(([out, err], (out_end, err_end)))
}

/// What ranks are started with.
pub struct Starter {
    pub job: Job,
    pub meeting: Meeting,
    /// What reads as empty.
    pub nothing: File,
    /// Whether lines get the rank in front.
    pub labels: bool,
}

impl Starter {
    /// Starts a rank whose output goes into these pipes.
    pub fn start(&self, rank: u32, (out, err): (OwnedFd, OwnedFd)) -> io::Result<Rank> {
        // A rank is in the background of its terminal, where reading would stop it.
        let reads = rank == 0 && !io::stdin().is_terminal();
        let stdin = if reads { rustix::stdio::stdin() } else { self.nothing.as_fd() };
        Rank::start(&self.job, &self.meeting, rank, stdin, out, err)
    }
}
