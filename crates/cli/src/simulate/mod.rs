//! `fulmen simulate`: many ranks in one process, on a virtual clock and network with faults, checked against a model; and collectives of many
//! nodes, on the planner's.

mod chart;
mod collectives;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use fulmen_simulator::{Carrier, Counts, Faults, Keep, Options, OptionsError, Run, Shortest, run, shorten};
use serde::Serialize;

use crate::output::show;

/// Simulate many ranks in one process, on a virtual clock and a network with faults, and check that every promise holds.
///
/// The same seed gives the same run, event by event; the digest proves it. When a promise is broken, the shortest
/// schedule that was found is printed, with the command that runs it again.
#[derive(clap::Args)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    engine: Option<Engine>,
}

#[derive(clap::Subcommand)]
enum What {
    Collectives(collectives::Args),
}

/// Ranks with faults.
#[derive(clap::Args)]
struct Engine {
    /// Decides everything that happens.
    #[arg(long, value_name = "NUMBER")]
    seed: u64,
    /// How many ranks there are.
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    nodes: usize,
    /// How many steps a run has. Each starts at most one operation.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    steps: u64,
    /// Run this many seeds, from the given one on.
    #[arg(long, value_name = "COUNT", default_value_t = 1, conflicts_with_all = ["keep", "schedule"])]
    runs: u64,
    /// What goes wrong, and at which share of the frames (drop, dup, reorder by up to delay, corrupt) or steps (partition,
    /// pause, cut, kill, rejoin): a list such as drop=0.02,delay=10ms, or none. Faults that it does not name do not strike.
    #[arg(long, value_name = "LIST", default_value_t = Faults::default())]
    faults: Faults,
    /// How frames travel between each two ranks.
    #[arg(long, value_enum, default_value_t = Carriers::Mixed)]
    carrier: Carriers,
    /// Leave out all choices of the schedule but these, as a failure prints them.
    #[arg(long, value_name = "LIST")]
    keep: Option<Keep>,
    /// Read that list from a file.
    #[arg(long, value_name = "FILE", conflicts_with = "keep")]
    schedule: Option<PathBuf>,
    /// Tell every choice that has an effect.
    #[arg(long)]
    story: bool,
    /// How many operations may be spent on looking for the shortest schedule that fails.
    #[arg(long, value_name = "COUNT", default_value_t = 3_000_000)]
    shorten: u64,
    /// Print one JSON object a run, and nothing else, on standard output.
    #[arg(long)]
    json: bool,
    /// Make a mistake on purpose.
    #[cfg(feature = "planted-bugs")]
    #[arg(long, value_enum)]
    plant: Option<Plant>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Carriers {
    /// Chosen by the seed for each two ranks.
    Mixed,
    /// In order, as in shared memory.
    Mapped,
    /// In order, as over RC.
    Matched,
    /// With nothing promised, as over UC.
    Unreliable,
}

#[cfg(feature = "planted-bugs")]
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Plant {
    /// One credit too many is given back.
    Credit,
    /// Frames of an old generation are taken.
    Generation,
    /// An acknowledgement is lost for good.
    Ack,
}

/// Bad input.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// Nothing says which run.
    #[error("give --seed NUMBER, or `collectives`: `fulmen simulate --help` explains")]
    NoSeed,
    /// The links cannot be used.
    #[error(transparent)]
    Links(#[from] crate::plan::PlanError),
    /// The options make no run.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The file with the schedule cannot be read.
    #[error("cannot read the schedule {}: {cause}", path.display())]
    Schedule {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: String,
    },
}

#[derive(Serialize)]
struct Shown<'a> {
    seed: u64,
    nodes: usize,
    steps: u64,
    operations: u64,
    succeeded: u64,
    failed: u64,
    frames: u64,
    faults: Vec<(&'static str, u64)>,
    virtual_seconds: f64,
    digest: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<ShownFailure<'a>>,
}

#[derive(Serialize)]
struct ShownFailure<'a> {
    step: u64,
    what: String,
    replay: String,
    shortest: Vec<&'a str>,
    shortest_replay: String,
}

pub fn simulate(args: Args) -> anyhow::Result<ExitCode> {
    match (args.what, args.engine) {
        (Some(What::Collectives(args)), _) => collectives::simulate(&args),
        (None, Some(args)) => simulate_engine(args),
        (None, None) => Err(SimulateError::NoSeed.into()),
    }
}

fn simulate_engine(args: Engine) -> anyhow::Result<ExitCode> {
    let mut options = Options::new(args.seed, args.nodes, args.steps);
    options.faults = args.faults.clone();
    options.carrier = match args.carrier {
        Carriers::Mixed => None,
        Carriers::Mapped => Some(Carrier::Mapped),
        Carriers::Matched => Some(Carrier::Matched),
        Carriers::Unreliable => Some(Carrier::Unreliable),
    };
    options.keep = match &args.schedule {
        Some(path) => {
            let unreadable = |cause: String| SimulateError::Schedule { path: path.clone(), cause };
            let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
            Some(text.parse().map_err(|error: fulmen_simulator::KeepError| unreadable(error.to_string()))?)
        }
        None => args.keep.clone(),
    };
    options.story = args.story;
    #[cfg(feature = "planted-bugs")]
    {
        use fulmen_simulator::Planted;
        options.planted = args.plant.map(|plant| match plant {
            Plant::Credit => Planted::CreditOffByOne,
            Plant::Generation => Planted::NoGenerationCheck,
            Plant::Ack => Planted::LostAck,
        });
    }
    // An assertion of the engine's is a result like any other; it is told once, with its schedule.
    std::panic::set_hook(Box::new(|_| {}));
    let began = Instant::now();
    let (mut total, mut failed) = (Counts::default(), false);
    for seed in (args.seed..=u64::MAX).take(usize::try_from(args.runs).unwrap_or(usize::MAX)) {
        options.seed = seed;
        let outcome = run(&options).map_err(SimulateError::from)?;
        total.add(&outcome.counts);
        failed |= outcome.failure.is_some();
        if !tell(&args, &options, &outcome)? {
            break;
        }
        if failed {
            break;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    tracing::info!("{} steps in {seconds:.2} s, {:.0} a second", total.steps, total.steps as f64 / seconds.max(1e-9));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Prints what came of one run; `false` when nobody reads it any more.
fn tell(args: &Engine, options: &Options, outcome: &Run) -> anyhow::Result<bool> {
    let shortest = outcome.failure.as_ref().and_then(|_| shorten(options, args.shorten));
    if args.json {
        let counts = &outcome.counts;
        let failure = outcome.failure.as_ref().map(|failure| ShownFailure {
            step: failure.step,
            what: failure.to_string(),
            replay: command(args, options),
            shortest: shortest.iter().flat_map(|found| &found.story).map(|told| told.what.as_str()).collect(),
            shortest_replay: shortest.as_ref().map_or_else(String::new, |found| command(args, &found.options)),
        });
        let shown = Shown {
            seed: options.seed,
            nodes: options.nodes,
            steps: counts.steps,
            operations: counts.operations,
            succeeded: counts.succeeded,
            failed: counts.failed,
            frames: counts.frames,
            faults: faults(counts).to_vec(),
            virtual_seconds: outcome.time.as_secs_f64(),
            digest: format!("{:016x}", outcome.digest),
            failure,
        };
        return Ok(show(&format!("{}\n", serde_json::to_string(&shown)?))?);
    }
    let mut text = String::new();
    for told in outcome.story.iter().filter(|_| args.story) {
        writeln!(text, "{:>12}  {}", told.choice.to_string(), told.what)?;
    }
    writeln!(text, "{}", summary(options.seed, outcome))?;
    if let Some(failure) = &outcome.failure {
        writeln!(text, "\nseed {}, step {}: {}: {}", options.seed, failure.step, failure.broken, failure.what)?;
        writeln!(text, "run it again with\n  {}", command(args, options))?;
        if let Some(shortest) = &shortest {
            describe(&mut text, args, shortest)?;
        }
    }
    Ok(show(&text)?)
}

fn describe(text: &mut String, args: &Engine, shortest: &Shortest) -> std::fmt::Result {
    let failure = &shortest.failure;
    writeln!(text, "\nthe shortest schedule that was found, in {} runs:", shortest.runs)?;
    for (number, told) in (1..).zip(&shortest.story) {
        writeln!(text, "{number:>4}. [{}] {}", told.choice, told.what)?;
    }
    writeln!(text, "   => step {}: {}: {}", failure.step, failure.broken, failure.what)?;
    writeln!(text, "run it again with\n  {}", command(args, &shortest.options))
}

fn summary(seed: u64, outcome: &Run) -> String {
    let counts = &outcome.counts;
    let mut struck = String::new();
    for (name, count) in faults(counts).into_iter().filter(|(_, count)| *count > 0) {
        let _ = write!(struck, " {name}={count}");
    }
    if struck.is_empty() {
        struck.push_str(" none");
    }
    format!(
        "seed {seed}: {} steps, {} operations ({} ended well, {} with an error that a fault or the program explains), \
         {} frames, faults:{struck}, virtual time {:.3} s, digest {:016x}{}",
        counts.steps,
        counts.operations,
        counts.succeeded,
        counts.failed,
        counts.frames,
        outcome.time.as_secs_f64(),
        outcome.digest,
        if outcome.failure.is_some() { ": FAILED" } else { "" },
    )
}

fn faults(counts: &Counts) -> [(&'static str, u64); 9] {
    [
        ("drop", counts.drop),
        ("dup", counts.dup),
        ("reorder", counts.reorder),
        ("corrupt", counts.corrupt),
        ("partition", counts.partition),
        ("pause", counts.pause),
        ("cut", counts.cut),
        ("kill", counts.kill),
        ("rejoin", counts.rejoin),
    ]
}

/// The command that runs exactly this.
fn command(args: &Engine, options: &Options) -> String {
    let Options { seed, nodes, steps, faults, keep, .. } = options;
    let mut text = format!("fulmen simulate --seed {seed} --nodes {nodes} --steps {steps} --faults {faults}");
    let carrier = match args.carrier {
        Carriers::Mixed => "",
        Carriers::Mapped => " --carrier mapped",
        Carriers::Matched => " --carrier matched",
        Carriers::Unreliable => " --carrier unreliable",
    };
    text.push_str(carrier);
    #[cfg(feature = "planted-bugs")]
    text.push_str(match args.plant {
        None => "",
        Some(Plant::Credit) => " --plant credit",
        Some(Plant::Generation) => " --plant generation",
        Some(Plant::Ack) => " --plant ack",
    });
    if let Some(keep) = keep {
        let _ = write!(text, " --keep '{keep}'");
    }
    text
}
