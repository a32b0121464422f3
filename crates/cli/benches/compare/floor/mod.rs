//! The floor: what the machine allows. Hand-written exchanges between pinned processes over one shared mapping, with nothing
//! of Fulmen in them, so that they are a limit of their own.
//!
//! The benchmark's binary plays this role in processes of its own: the host makes the memory, starts the other ranks, is rank 0
//! itself and prints a record for each case.

mod kernels;
mod measure;
mod ops;
mod plans;
mod pull;
mod shared;

use std::{
    io::Write,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};

use crate::{
    case::{Memory, Op},
    platform,
};
use ops::Rank;
use shared::Shared;

/// What the floor is to do.
#[derive(clap::Args, Clone)]
pub struct Args {
    #[arg(long)]
    ranks: usize,
    /// The processors of the ranks, in turn.
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    #[arg(long)]
    op: Op,
    #[arg(long)]
    memory: Memory,
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<usize>,
    #[arg(long)]
    seconds: f64,
    /// Which rank this process is.
    #[arg(long, default_value_t = 0)]
    rank: usize,
    /// The inherited descriptor of the shared memory; the host makes it.
    #[arg(long)]
    fd: Option<i32>,
}

/// Ends the ranks that were started, whatever happens to the host.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both fail only for a child that has been waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Plays one rank; rank 0 starts the others.
pub fn run(args: &Args) -> anyhow::Result<()> {
    platform::end_with_parent()?;
    ensure!((2..=shared::MAX_RANKS).contains(&args.ranks), "the floor has 2 to {} ranks", shared::MAX_RANKS);
    ensure!(args.op.has_floor(), "the floor has no {}", args.op);
    let words = args.sizes.iter().max().copied().unwrap_or(0) / 4;
    let mut children = Children(Vec::new());
    let file = match args.fd {
        // SAFETY: rank 0 left this descriptor open for this process, and nothing else here knows of it.
        Some(fd) => unsafe { OwnedFd::from_raw_fd(fd) },
        None => {
            let file = shared::create(args.ranks, words).context("shared memory for the floor")?;
            for rank in 1..args.ranks {
                children.0.push(start(args, rank, file.as_raw_fd())?);
            }
            file
        }
    };
    platform::pin(&[args.cpus[args.rank % args.cpus.len()]]).context("pinning the floor")?;
    let shared = Shared::map(file.as_fd(), args.ranks, words).context("mapping the floor's memory")?;
    let (input, output) = match args.memory {
        Memory::Registered => (shared.input(args.rank), shared.output(args.rank)),
        Memory::Plain => (shared::private(words)?, shared::private(words)?),
    };
    let mut rank = Rank {
        rank: args.rank,
        ranks: args.ranks,
        crowded: args.ranks > args.cpus.len(),
        shared,
        input,
        output,
        can_pull: false,
        barriers: 0,
        turn: 0,
    };
    if args.memory == Memory::Plain {
        rank.try_pulling();
    }
    for &bytes in &args.sizes {
        let record = measure::measure(&mut rank, args.op, args.memory, bytes, Duration::from_secs_f64(args.seconds));
        if rank.rank == 0 {
            writeln!(std::io::stdout(), "{}", serde_json::to_string(&record)?)?;
        }
    }
    for child in &mut children.0 {
        let status = child.wait()?;
        ensure!(status.success(), "a rank of the floor ended with {status}");
    }
    Ok(())
}

fn start(args: &Args, rank: usize, fd: i32) -> anyhow::Result<Child> {
    let list = |numbers: &[usize]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    Command::new(std::env::current_exe()?)
        .args(["floor", "--op", args.op.name(), "--memory", args.memory.name()])
        .args(["--ranks", &args.ranks.to_string(), "--cpus", &list(&args.cpus), "--sizes", &list(&args.sizes)])
        .args(["--seconds", &args.seconds.to_string(), "--rank", &rank.to_string(), "--fd", &fd.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("starting a rank of the floor")
}
