//! `fulmen bench`: how fast operations between the ranks of a group are, and whether their results are right.
//!
//! The command starts its own ranks, which are this program again (a hidden command), and shows what the first one tells.
//! [`mod@measure`] is the loop that times calls, [`cases`] are the operations on data of which the results are known.

mod cases;
mod measure;
mod onesided;
mod operation;
mod overlap;
mod rank;
mod size;
mod table;
mod value;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fulmen::parts::fabric::bootstrap::Heartbeat;
use fulmen::{Algorithm, DType, TCP};

pub use measure::{Effort, Subject, measure};
pub use operation::{Kind, Op, Row};
pub use rank::{measure_type, pin};
pub use size::Size;
pub use table::short;

use crate::machine;
use crate::output::{NOBODY_LISTENS, say, show};
use crate::run::{self, HostOptions, Job, Output, Profile, Reader, device_name, positive_seconds, rank_count};

/// The hidden command of a rank.
pub const RANK: &str = "__bench";

/// Measure an operation between ranks, and check its results.
///
/// Starts N ranks of its own on this machine, or on the hosts that are named, each bound to a processor, in turn if there are fewer. Sizes
/// multiply from --min to --max. Sizes mean what they mean in nccl-tests: the longer of a rank's input and output, so that for
/// all-gather and gather it is the gathered whole, and for reduce-scatter, scatter and all-to-all the input (cut to whole elements
/// for each rank, one at least). Results are out of place, sums for reductions.
///
/// A sample is the time of one call: calls are timed in batches of 50 us or more, which all ranks begin after a barrier; it
/// is the mean over the batch, of the rank that took longest. algbw is bytes / p50. busbw is algbw times 2(N-1)/N for
/// all-reduce, (N-1)/N for those with a part for each rank, and 1 for the others.
///
/// latency is half the round trip of a message; bandwidth is a stream of messages in one direction, with 32 under way from
/// registered memory into registered memory, until the receiver has said that all arrived. Both run between neighbours (ranks 0
/// and 1, 2 and 3 …) at once; with an odd N, the last rank watches.
///
/// put, get, fetch-add and compare-swap are one after the other, each until it has taken effect, by the even rank of two on
/// memory that the odd one shares; the words of fetch-add and compare-swap are u64. `target_cpu_us` is what one costs the other
/// rank's processors while its program sleeps. put-latency is half a round trip of puts, each of which the other rank waits for.
///
/// Data depends on rank, index and round. Results are compared with what must come out, bit by bit, every element of them:
/// `wrong` counts those that differ, over all ranks. Up to 64 KiB, each batch has data of its own, outputs are spoilt before
/// it, and what its last call gave is compared. Above, this is done with a call before the measurement, with the last of the
/// measured calls, which then all have the same data, and with a call after it. A barrier's `wrong` counts ranks that came
/// to the last barrier of a batch when another had already left it; that of fetch-add and compare-swap counts calls that gave
/// another value than what must have been there.
///
/// Exit code: 0 when everything was right, 1 when something was wrong, 2 for bad input, 255 for a host that is not reached or lost, else
/// that of the rank that failed first.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    spec: Spec,
    /// How many ranks to start [default: 2, or as many as the hosts have places for with --hosts].
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = rank_count, allow_negative_numbers = true)]
    ranks: Option<u32>,
    #[command(flatten)]
    hosts: HostOptions,
    /// Use the software RDMA device with the limits and rules of this hardware, instead of shared memory.
    #[arg(long, value_enum, env = "FULMEN_PROFILE")]
    profile: Option<Profile>,
    /// Use this RDMA device of the machines (`fulmen devices` lists them), or `any` that works, instead of shared memory; or `tcp`:
    /// the software device by TCP, between hosts and between ranks of this one machine. It keeps a --profile's rules.
    #[arg(long, value_name = "NAME", env = run::DEVICE, value_parser = device_name)]
    device: Option<String>,
    /// Do not seal what goes by TCP, to see what that costs.
    #[arg(long)]
    trusted_rail: bool,
    /// Verify what ranks send one another by checksums, to see what that costs.
    #[arg(long)]
    verify_data: bool,
    /// Print one JSON object a size, and nothing else, on standard output.
    #[arg(long)]
    json: bool,
}

/// What is measured: the part of the arguments that ranks know too.
#[derive(clap::Args)]
pub struct Spec {
    /// The operation.
    #[arg(value_enum)]
    op: Op,
    /// The smallest size, such as 8 or 64K.
    #[arg(long, value_name = "SIZE", default_value = "8", allow_negative_numbers = true)]
    min: Size,
    /// No size is larger than this.
    #[arg(long, value_name = "SIZE", default_value = "64M", allow_negative_numbers = true)]
    max: Size,
    /// Each size is so many times the one before.
    #[arg(long, value_name = "TIMES", default_value = "2", value_parser = clap::value_parser!(u64).range(2..=1 << 20))]
    factor: u64,
    /// The elements' type: bool, i8 to i64, u8 to u64, f16, bf16, f32, f64 or complex64.
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dtype: DType,
    /// Memory of the group, which peers reach, or any other.
    #[arg(long, value_enum, default_value = "registered")]
    memory: Kind,
    /// Most samples of a size.
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = samples, allow_negative_numbers = true)]
    samples: usize,
    /// About how long to measure a size; at least 5 samples are taken.
    #[arg(long = "time-budget", value_name = "SECONDS", default_value = "0.25", value_parser = positive_seconds, allow_negative_numbers = true)]
    time: Duration,
    /// Go by this algorithm where ranks talk by messages, instead of the one that the planner chooses: whole, rounds, shares,
    /// passed-shares, chain; and those that do not combine in rank order, of integers: ring, halving, doubling, tree, hosts. Operations
    /// that it cannot do go as ever.
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,
    /// Measure, too, how much of a collective call's time a program that computes as long meanwhile has for itself: of the time that the call
    /// takes by a handle, how much is gained if it is started before the computation and waited for after it.
    #[arg(long)]
    overlap: bool,
}

/// Why a benchmark is refused.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum BenchError {
    /// No sizes.
    #[error("--min {min} is more than --max {max}: give a range of sizes")]
    Range {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A size of nothing.
    #[error("--min is 0: sizes begin with one element, which is {element} bytes for {dtype}")]
    Nothing {
        /// The elements' type.
        dtype: DType,
        /// Bytes of one.
        element: u64,
    },
    /// Half an element.
    #[error("{option} {bytes} is no multiple of an element, which is {element} bytes for {dtype}")]
    Partial {
        /// The option.
        option: &'static str,
        /// What it says.
        bytes: u64,
        /// The elements' type.
        dtype: DType,
        /// Bytes of one.
        element: u64,
    },
    /// Results are compared bit by bit with those of one order.
    #[error(
        "{algorithm} adds {dtype} in another order than that of the ranks, in which results are checked: choose an integer --dtype"
    )]
    Order {
        /// How it goes.
        algorithm: Algorithm,
        /// The elements' type.
        dtype: DType,
    },
    /// Only collective calls with data are started.
    #[error("--overlap measures collective calls with data, and {} is none", op.name())]
    Overlap {
        /// The operation.
        op: Op,
    },
    /// One rank has nobody to talk to.
    #[error("{} is measured between two ranks: use -n 2 or more", op.name())]
    Alone {
        /// The operation.
        op: Op,
    },
    /// More than the machine has.
    #[error(
        "{ranks} ranks need about {needed} MiB for sizes up to {max}, but {available} MiB are available; give a smaller --max \
         or fewer ranks"
    )]
    Memory {
        /// How many ranks.
        ranks: u32,
        /// The largest size.
        max: u64,
        /// What they take, in MiB.
        needed: u64,
        /// What there is, in MiB.
        available: u64,
    },
    /// A device has its own rules.
    #[error(
        "--device {device} and --profile {profile} exclude each other: only `--device tcp` keeps a profile's rules"
    )]
    TwoDevices {
        /// The device.
        device: String,
        /// The profile.
        profile: &'static str,
    },
    /// A rank takes two queue pairs for each other one.
    #[error(
        "a {profile} device has {queue_pairs} queue pairs, which connect at most {most} ranks: start fewer than {ranks}, or \
         choose another --profile"
    )]
    Device {
        /// How many ranks.
        ranks: u32,
        /// What the device stands in for.
        profile: &'static str,
        /// How many it has.
        queue_pairs: u32,
        /// How many ranks that is enough for.
        most: u32,
    },
    /// Ranks map each other's memory.
    #[error(
        "{ranks} ranks need about {needed} MiB of address space each, but the limit is {limit} MiB; raise it with \
         `ulimit -v {kilobytes}` or use fewer ranks", kilobytes = needed << 10
    )]
    AddressSpace {
        /// How many ranks.
        ranks: u32,
        /// What each takes, in MiB.
        needed: u64,
        /// The limit, in MiB.
        limit: u64,
    },
}

/// Refuses more ranks than a device of the profile can connect.
pub fn check_device(ranks: u32, profile: Option<Profile>) -> Result<(), BenchError> {
    /// Each rank has a link to each other one.
    const PAIRS_OF_A_LINK: u32 = 2;
    let Some(profile) = profile else { return Ok(()) };
    let queue_pairs = profile.rules().limits().queue_pairs;
    let most = queue_pairs / PAIRS_OF_A_LINK + 1;
    if ranks > most { Err(BenchError::Device { ranks, profile: profile.name(), queue_pairs, most }) } else { Ok(()) }
}

/// Refuses ranks that could not map each other's pools of `pool` bytes.
pub fn check_address_space(ranks: u32, pool: u64) -> Result<(), BenchError> {
    // Beside each pool, a group has windows; the rest is for the program and its threads.
    let needed = pool.saturating_add(16 << 20).saturating_mul(u64::from(ranks)).saturating_add(128 << 20) >> 20;
    match machine::address_space() {
        Some(limit) if limit >> 20 < needed => Err(BenchError::AddressSpace { ranks, needed, limit: limit >> 20 }),
        _ => Ok(()),
    }
}

impl Spec {
    /// A measurement of one size.
    pub fn one(op: Op, bytes: u64, dtype: DType, effort: Effort) -> Spec {
        Spec::range(op, bytes, bytes, dtype, effort)
    }

    /// A measurement of sizes from the least to the most, each twice the one before.
    pub fn range(op: Op, min: u64, max: u64, dtype: DType, effort: Effort) -> Spec {
        let Effort { samples, time } = effort;
        Spec {
            op,
            min: Size(min),
            max: Size(max),
            factor: 2,
            dtype,
            memory: Kind::Registered,
            samples,
            time,
            algorithm: None,
            overlap: false,
        }
    }

    /// The same, by an algorithm.
    pub fn by(self, algorithm: Option<Algorithm>) -> Spec {
        Spec { algorithm, ..self }
    }

    pub fn op(&self) -> Op {
        self.op
    }

    fn sizes(&self, ranks: u32) -> Vec<u64> {
        self.op.sizes(self.min.0, self.max.0, self.factor, self.dtype.size() as u64, ranks)
    }

    /// Refuses what cannot be: so many ranks, of which so many are `here`.
    fn check(&self, ranks: u32, here: u32) -> Result<(), BenchError> {
        let (min, max, dtype, element) = (self.min.0, self.max.0, self.dtype, self.dtype.size() as u64);
        if min == 0 {
            return Err(BenchError::Nothing { dtype, element });
        }
        if min > max {
            return Err(BenchError::Range { min, max });
        }
        for (option, bytes) in [("--min", min), ("--max", max)] {
            if !bytes.is_multiple_of(element) {
                return Err(BenchError::Partial { option, bytes, dtype, element });
            }
        }
        let adds = matches!(self.op, Op::AllReduce | Op::Reduce | Op::ReduceScatter | Op::Scan) && dtype.is_float();
        if let Some(algorithm) = self.algorithm.filter(|algorithm| adds && !algorithm.is_in_rank_order()) {
            return Err(BenchError::Order { algorithm, dtype });
        }
        if self.overlap && (self.op.is_between_pairs() || self.op == Op::Barrier) {
            return Err(BenchError::Overlap { op: self.op });
        }
        if self.op.is_between_pairs() && ranks == 1 {
            return Err(BenchError::Alone { op: self.op });
        }
        // Besides its buffers, a rank keeps a copy of each to fill and to compare.
        let needed = self.buffers(ranks).saturating_mul(2).saturating_mul(u64::from(here));
        match machine::available_memory() {
            Some(available) if needed > available => {
                Err(BenchError::Memory { ranks: here, max, needed: needed >> 20, available: available >> 20 })
            }
            _ => Ok(()),
        }
    }

    /// Bytes of one rank's buffers for the largest size.
    pub fn buffers(&self, ranks: u32) -> u64 {
        let largest = self.sizes(ranks).last().copied().unwrap_or(0);
        let (input, output) = self.op.buffers(largest, ranks);
        input.saturating_add(output)
    }

    /// The arguments of a rank.
    pub fn args(&self) -> Vec<OsString> {
        let args = [
            RANK.to_string(),
            self.op.name().to_string(),
            format!("--min={}", self.min.0),
            format!("--max={}", self.max.0),
            format!("--factor={}", self.factor),
            format!("--dtype={}", self.dtype),
            format!("--memory={}", self.memory.name()),
            format!("--samples={}", self.samples),
            format!("--time-budget={}", self.time.as_secs_f64()),
        ];
        let algorithm = self.algorithm.map(|algorithm| format!("--algorithm={algorithm}"));
        let overlap = self.overlap.then(|| "--overlap".to_owned());
        args.into_iter().chain(algorithm).chain(overlap).map(OsString::from).collect()
    }
}

/// What the first rank has told so far.
#[derive(Default)]
struct Told {
    rows: usize,
    wrong: u64,
    nobody_listens: bool,
}

/// Starts the ranks and shows what they measure.
pub fn bench(args: Args, verbose: u8) -> anyhow::Result<ExitCode> {
    let Args { spec, ranks, hosts, profile, device, trusted_rail, verify_data, json } = args;
    let hosts = hosts.hosts(ranks, Heartbeat::default().silence)?;
    let ranks = hosts.as_ref().map_or(ranks.unwrap_or(2), |hosts| hosts.placement.ranks());
    let hosts = hosts.filter(|hosts| !hosts.are_here());
    // Other machines are taken to be like this one.
    let here = hosts.as_ref().map_or(ranks, |hosts| hosts.most_together());
    spec.check(ranks, here)?;
    let by_tcp = device.as_deref() == Some(TCP);
    if let (Some(device), Some(profile), false) = (&device, profile, by_tcp) {
        return Err(BenchError::TwoDevices { device: device.clone(), profile: profile.name() }.into());
    }
    check_device(ranks, profile)?;
    // Room for the buffers, whatever the pool's cuts waste, and for what the group itself takes.
    let pool = spec.buffers(ranks).saturating_mul(5) / 4 + (64 << 20);
    check_address_space(here, pool)?;
    let wanted = spec.sizes(ranks).len();
    let told = Arc::new(Mutex::new(Told::default()));
    let mut words = spec.args();
    // This machine stands for several then.
    words.extend((hosts.is_none() && by_tcp).then(|| "--apart".into()));
    let mut job = Job::own(ranks, profile, verbose, words, Output::Read(reader(told.clone(), json)))?;
    job.env.push(("FULMEN_POOL", pool.to_string()));
    job.env.extend(verify_data.then(run::verified));
    job.env.extend(trusted_rail.then(run::trusted));
    if !json {
        let place = match (profile, &device) {
            (profile, Some(_)) if by_tcp => format!(
                "{} TCP{}",
                if trusted_rail { "plain" } else { "sealed" },
                profile.map(|profile| format!(", software {} device", profile.name())).unwrap_or_default()
            ),
            (Some(profile), _) => format!("software {} device", profile.name()),
            (None, Some(device)) => format!("device {device}"),
            (None, None) if hosts.is_some() => {
                format!("RDMA, or {} TCP", if trusted_rail { "plain" } else { "sealed" })
            }
            (None, None) => "shared memory".to_string(),
        };
        let place = match &hosts {
            Some(hosts) => format!("{} hosts, {place}", hosts.placement.hosts.len()),
            None => place,
        };
        let place = if verify_data { format!("{place}, verified") } else { place };
        let processors = if here as usize <= machine::processors().len() {
            "a processor for each rank"
        } else {
            "fewer processors than ranks"
        };
        let heading = format!(
            "# {}, {ranks} {}, {}, {} memory, {place}, {processors}\n{}\n",
            spec.op.name(),
            if ranks == 1 { "rank" } else { "ranks" },
            spec.dtype,
            spec.memory.name(),
            table::heading(spec.overlap)
        );
        if !show(&heading)? {
            return Ok(ExitCode::from(NOBODY_LISTENS));
        }
    }
    job.env.extend(device.map(run::over));
    if let Some(hosts) = hosts {
        // There is one everywhere.
        job.directory = PathBuf::from("/");
        job.given.extend(hosts.variables.iter().map(|(name, value)| (name.into(), value.into())));
        job.hosts = Some(hosts);
    }
    let code = job.run()?;
    let told = told.lock().unwrap_or_else(PoisonError::into_inner);
    if told.nobody_listens {
        return Ok(ExitCode::from(NOBODY_LISTENS));
    }
    if code != 0 {
        return Ok(ExitCode::from(code));
    }
    if told.wrong > 0 {
        say(&format!("{} elements of results were wrong", told.wrong));
        return Ok(ExitCode::FAILURE);
    }
    anyhow::ensure!(told.rows == wanted, "the ranks ended after {} of {wanted} sizes", told.rows);
    Ok(ExitCode::SUCCESS)
}

/// Takes the first rank's lines.
fn reader(told: Arc<Mutex<Told>>, json: bool) -> Reader {
    Box::new(move |bytes| {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        for line in bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let row: Row = serde_json::from_slice(line).map_err(io::Error::other)?;
            told.rows += 1;
            told.wrong = told.wrong.saturating_add(row.wrong);
            let shown = if json { String::from_utf8_lossy(line).into_owned() } else { table::line(&row) };
            if !show(&format!("{shown}\n"))? {
                told.nobody_listens = true;
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        Ok(())
    })
}

/// What a rank is told.
#[derive(clap::Args)]
pub struct RankArgs {
    #[command(flatten)]
    spec: Spec,
    /// Have ranks of this host talk as between hosts.
    #[arg(long)]
    apart: bool,
}

/// Measures as one of the ranks.
pub fn rank(args: &RankArgs) -> anyhow::Result<ExitCode> {
    rank::run(&args.spec, args.apart)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a number of samples.
fn samples(text: &str) -> Result<usize, String> {
    const MOST: usize = 1_000_000;
    match text.parse() {
        Ok(count) if (1..=MOST).contains(&count) => Ok(count),
        _ => Err(format!("give a number of samples from 1 to {MOST}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(op: Op, min: u64, max: u64, dtype: DType) -> Spec {
        let effort = Effort { samples: 7, time: Duration::from_millis(1) };
        Spec { min: Size(min), max: Size(max), ..Spec::one(op, max, dtype, effort) }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let check = |min, max| spec(Op::AllReduce, min, max, DType::F32).check(2, 2);
        assert_eq!(check(8, 8), Ok(()));
        assert_eq!(check(16, 8), Err(BenchError::Range { min: 16, max: 8 }));
        assert_eq!(check(0, 8), Err(BenchError::Nothing { dtype: DType::F32, element: 4 }));
        assert!(matches!(check(6, 8), Err(BenchError::Partial { option: "--min", bytes: 6, .. })));
        assert!(matches!(check(4, 9), Err(BenchError::Partial { option: "--max", bytes: 9, .. })));
        assert!(matches!(check(1 << 60, 1 << 60), Err(BenchError::Memory { .. })) || cfg!(not(target_os = "linux")));
    }

    #[test]
    fn a_message_needs_two_ranks() {
        assert_eq!(spec(Op::Latency, 8, 8, DType::F32).check(1, 1), Err(BenchError::Alone { op: Op::Latency }));
        assert_eq!(spec(Op::AllReduce, 8, 8, DType::F32).check(1, 1), Ok(()));
    }

    #[test]
    fn a_rank_understands_its_arguments() {
        use clap::Parser;
        #[derive(Parser)]
        struct Rank {
            #[command(flatten)]
            spec: Spec,
        }
        let spec = spec(Op::ReduceScatter, 8, 64, DType::Complex64);
        let parsed = Rank::try_parse_from(spec.args()).unwrap().spec;
        assert_eq!(parsed.args(), spec.args());
        assert_eq!((parsed.op, parsed.samples, parsed.time), (Op::ReduceScatter, 7, Duration::from_millis(1)));
    }
}
