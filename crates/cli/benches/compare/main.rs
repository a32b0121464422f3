//! The floor, Fulmen and its peers side by side, in one paired run.
//!
//! ```text
//! cargo bench -p fulmen-cli --bench compare -- [--rounds 7] [--ops p2p,all-reduce] [--sizes 8,4K,64K] [--ranks 2] [--over tcp]
//!     [--quick]
//! ```
//!
//! How it measures:
//! - A *round* is made of *turns*, one for each operation and memory. In a turn every contender runs all sizes, one contender
//!   after the other, on the same processors; who begins changes from round to round. A *ratio* divides two contenders' times of
//!   one turn; what is reported is the median of the rounds' ratios with the least and the greatest.
//! - Where two virtual processors sit changes everything by a factor of four, and a hypervisor moves them. So the one-way latency
//!   of a flag is probed before and after each turn ("near" below 100 ns, "far" above); a turn in which it changed is marked and
//!   repeated, at most twice, and then left out.
//! - A *sample* is the time per call of a batch of about 100 µs (one call, where a call is longer), taken between barriers; the
//!   slowest rank's time counts. The time of a case is the median of its samples; their number follows from a time budget. Before,
//!   the case is warmed up, and its result is checked before and after: a wrong element ends the benchmark.
//! - p2p is half of a round trip between ranks 0 and 1, from one buffer into another; a stream is many messages from rank 0 to
//!   rank 1, 32 of them under way, until the receiver has said that all arrived, and its time that of one. Broadcast works in
//!   place, the other collectives from one buffer into another; f32, sum. Sizes and bus bandwidths follow nccl-tests
//!   ([`case::Op`]).
//! - The floor and the peers' program (`../peers/mpi.c`) are written to these definitions here; Fulmen's figures come from
//!   `fulmen bench OP --json`, which is written to them too.
//! - One-sided operations (put, get, put-latency, fetch-add, compare-swap) have no floor; their peer is UCX ([`ucx`]).
//! - For registered memory a peer may use whichever of its two memories is faster: its own shared windows
//!   (`MPI_Win_allocate_shared`) or plain memory.
//! - `--over tcp` has everybody take TCP on the loopback interface, as if ranks were on different hosts. Fulmen takes part twice,
//!   plain as its peers are and sealed; there is no floor.
//!
//! The floor ([`floor`]) shares memory by hand, so this target contains unsafe code, each block with the reason why it is sound;
//! the command itself (the crate's binary) forbids it.

mod case;
mod contender;
mod floor;
mod peers;
mod placement;
mod platform;
mod record;
mod table;
mod turns;
mod ucx;

use std::{io::Write, process::ExitCode};

use anyhow::ensure;
use clap::{Parser, Subcommand};

use case::{Memory, Op, Over, parse_size};
use contender::Contender;

/// Compares Fulmen with the floor and with its peers.
#[derive(Parser)]
#[command(name = "compare")]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    /// Rounds; figures are medians over them [default: 7, with --quick 1].
    #[arg(long)]
    rounds: Option<usize>,
    /// Operations [default: all].
    #[arg(long, value_delimiter = ',')]
    ops: Vec<Op>,
    /// Bytes, with K and M for powers of 1024 [default: 8,4K,64K,1M,16M,64M, with --quick 8,64K].
    #[arg(long, value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<usize>,
    /// Where the users' buffers lie.
    #[arg(long, value_delimiter = ',', default_value = "registered,plain")]
    memory: Vec<Memory>,
    /// What carries the data.
    #[arg(long, value_enum, default_value = "machine")]
    over: Over,
    /// Ranks, 2 to 8.
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// The processors to run on [default: the first allowed ones, one for each rank].
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Contenders to leave out: fulmen, openmpi, mpich, intel-mpi, ucx, or peers for all but fulmen.
    #[arg(long, value_delimiter = ',')]
    skip: Vec<String>,
    /// The directory of a peer's commands, when it is not in PATH: NAME=DIRECTORY.
    #[arg(long, value_parser = peers::parse_place)]
    peer: Vec<(String, std::path::PathBuf)>,
    /// Little of everything: to see that it works, not for figures.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object a row.
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print the part of docs/benchmarks.md between its markers, and nothing else.
    #[arg(long)]
    markdown: bool,
    /// What cargo bench passes; without it (cargo test runs every target) nothing is measured.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Subcommand)]
enum Role {
    /// Plays a rank of the floor.
    #[command(hide = true)]
    Floor(floor::Args),
}

/// What a comparison measures, with all defaults filled in.
struct Settings {
    rounds: usize,
    ops: Vec<Op>,
    sizes: Vec<usize>,
    memories: Vec<Memory>,
    over: Over,
    ranks: usize,
    cpus: Vec<usize>,
    /// The budget of a case in one turn.
    seconds: f64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.role {
        Some(Role::Floor(args)) => floor::run(args),
        None if !cli.bench => {
            eprintln!("compare: measures under `cargo bench -p fulmen-cli --bench compare` only");
            return ExitCode::SUCCESS;
        }
        None => compare(&cli),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compare: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn settings(cli: &Cli) -> anyhow::Result<Settings> {
    ensure!((2..=8).contains(&cli.ranks), "--ranks is {}; it must be 2 to 8", cli.ranks);
    let allowed = platform::allowed_processors();
    let cpus = if cli.cpus.is_empty() { allowed.iter().copied().take(cli.ranks).collect() } else { cli.cpus.clone() };
    for cpu in &cpus {
        ensure!(allowed.contains(cpu), "--cpus names processor {cpu}; this process may use {allowed:?}");
    }
    let sizes = match (cli.sizes.is_empty(), cli.quick) {
        (false, _) => cli.sizes.clone(),
        (true, true) => vec![8, 64 << 10],
        (true, false) => vec![8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20],
    };
    Ok(Settings {
        rounds: cli.rounds.unwrap_or(if cli.quick { 1 } else { 7 }).max(1),
        ops: if cli.ops.is_empty() { Op::ALL.to_vec() } else { cli.ops.clone() },
        sizes,
        memories: cli.memory.clone(),
        over: cli.over,
        ranks: cli.ranks,
        cpus,
        seconds: if cli.quick { 0.01 } else { 0.1 },
    })
}

fn compare(cli: &Cli) -> anyhow::Result<()> {
    let settings = settings(cli)?;
    let known = ["fulmen", "openmpi", "mpich", "intel-mpi", "ucx", "peers"];
    for name in &cli.skip {
        ensure!(known.contains(&name.as_str()), "--skip names '{name}'; there are {}", known.join(", "));
    }
    let skipped = |name: &str| cli.skip.iter().any(|skip| skip == name || (skip == "peers" && name != "fulmen"));
    let mut contenders = match cli.over {
        Over::Machine => vec![Contender::floor()?],
        Over::Tcp => Vec::new(),
    };
    if !skipped("fulmen") {
        contenders.extend(Contender::fulmen(cli.over));
    }
    contenders.extend(peers::find(&cli.peer, cli.over, &skipped));
    contenders.extend(ucx::find(&skipped));
    // Children inherit this binding; each then binds its ranks to single processors of it.
    platform::pin(&settings.cpus)?;
    let (measured, dropped) = turns::run(&settings, &contenders)?;
    let names: Vec<String> = contenders.iter().map(|contender| contender.name.clone()).collect();
    let rows = table::rows(&names, &measured);
    let mut out = std::io::stdout().lock();
    if cli.json {
        for row in &rows {
            writeln!(out, "{}", row.json())?;
        }
        return Ok(());
    }
    let about = about(&settings, &contenders, dropped);
    let table = table::markdown(&names, &rows);
    if cli.markdown {
        writeln!(out, "<!-- compare:begin -->\n{about}\n\n{table}<!-- compare:end -->")?;
    } else {
        writeln!(out, "{about}\n\n{table}")?;
    }
    Ok(())
}

/// What somebody else needs to run the same: command, machine, date, contenders.
fn about(settings: &Settings, contenders: &[Contender], dropped: usize) -> String {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let command = format!("cargo bench -p fulmen-cli --bench compare -- {}", arguments.join(" "));
    let cpus: Vec<String> = settings.cpus.iter().map(ToString::to_string).collect();
    let versions: Vec<&str> = contenders.iter().filter_map(|contender| contender.version.as_deref()).collect();
    let versions = if versions.is_empty() { "none installed".into() } else { versions.join(", ") };
    let dropped = match dropped {
        0 => String::new(),
        n => format!(" {n} turns were left out, since the placement kept changing."),
    };
    format!(
        "Command: `{}`. Machine: {}. Date: {}. {} ranks on processors {}, {} rounds. Peers: {versions}.{dropped}",
        command.trim_end().trim_end_matches(" --"),
        placement::machine(),
        placement::today(),
        settings.ranks,
        cpus.join(" and "),
        settings.rounds,
    )
}
