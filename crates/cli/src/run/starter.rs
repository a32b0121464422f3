//! What it takes to start a rank, the first time and again, on whichever host it is.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::hosts::{Bridge, Hosts, Remote, Where};
use super::lines::Lines;
use super::rank::{Kit, Rank};
use super::relay::{Reader, Source, Target};
use crate::output::Stream;

/// The pipes for a rank's output: what is read of them, and the ends for standard output and standard error. A reader takes
/// standard output without labels.
pub fn pipes(
    rank: u32,
    labels: bool,
    reader: Option<Reader>,
    awaited: bool,
) -> io::Result<([Source; 2], (OwnedFd, OwnedFd))> {
    let stream = |to, labels| -> io::Result<(Source, OwnedFd)> {
        let (pipe, end) = io::pipe()?;
        let lines = if labels { Lines::labelled(rank) } else { Lines::plain() };
        Ok((Source { pipe, lines, to, awaited }, end.into()))
    };
    let (out, out_end) = match reader {
        Some(reader) => stream(Target::Reader(reader), false)?,
        None => stream(Target::Stream(Stream::Out), labels)?,
    };
    let (err, err_end) = stream(Target::Stream(Stream::Err), labels)?;
    Ok(([out, err], (out_end, err_end)))
}

/// The pipe for what ssh, or the system of another host, says there: what is read of it, and the end for the bridge.
pub fn words(host: &str) -> io::Result<(Source, OwnedFd)> {
    let (pipe, end) = io::pipe()?;
    let lines = Lines::with_label(format!("fulmen: host {host}: "));
    Ok((Source { pipe, lines, to: Target::Stream(Stream::Err), awaited: true }, end.into()))
}

/// What ranks are started with.
pub struct Starter {
    /// For the ranks of this host.
    pub kit: Kit,
    /// The hosts, if there are several.
    pub hosts: Option<Hosts>,
    /// What reads as empty.
    pub nothing: File,
    /// Whether lines get the rank in front.
    pub labels: bool,
}

impl Starter {
    /// The bridge to a rank's host, by its place among the bridges; `None` if it is this host.
    pub fn bridge_of(&self, rank: u32) -> Option<usize> {
        let placement = &self.hosts.as_ref()?.placement;
        let host = placement.host_of(rank);
        let elsewhere = |host: usize| placement.hosts[host].whereabouts == Where::Elsewhere;
        elsewhere(host).then(|| (0..host).filter(|before| elsewhere(*before)).count())
    }

    /// Starts a rank whose output goes into these pipes.
    pub fn start(&self, rank: u32, (out, err): (OwnedFd, OwnedFd), bridges: &[Bridge]) -> io::Result<Rank> {
        if let Some(bridge) = self.bridge_of(rank) {
            let (control, theirs) = UnixStream::pair()?;
            bridges[bridge].begin(Remote { rank, control: theirs, output: [out, err] });
            return Ok(Rank::elsewhere(control));
        }
        let stdin = if rank == 0 && reads() { rustix::stdio::stdin() } else { self.nothing.as_fd() };
        Rank::start(&self.kit, rank, stdin, out, err)
    }
}

/// Whether the first rank reads this process's standard input. A rank is in the background of its terminal, where reading would
/// stop it.
pub fn reads() -> bool {
    !io::stdin().is_terminal()
}
