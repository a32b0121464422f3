//! Who takes part, and how a contender is run: as a child process that prints records, ended when it takes too long.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    Settings,
    case::{Memory, Op, Over},
    record::{self, Record},
    ucx,
};

/// A child that runs longer than this is ended.
const LIMIT: Duration = Duration::from_secs(300);
/// A child that was asked to end gets this long to do so before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// What a contender runs.
pub enum Kind {
    Floor(PathBuf),
    /// The command, and what it is told after the operation.
    Fulmen {
        program: PathBuf,
        arguments: &'static [&'static str],
    },
    /// An MPI library's launcher with its arguments and variables, and the program compiled for it.
    Mpi {
        launcher: PathBuf,
        arguments: Vec<&'static str>,
        variables: &'static [(&'static str, &'static str)],
        program: PathBuf,
    },
    /// UCX's own benchmark.
    Ucx(PathBuf),
}

/// One of those that are compared.
pub struct Contender {
    /// The heading of its column.
    pub name: String,
    /// Name and version, of peers.
    pub version: Option<String>,
    pub kind: Kind,
}

impl Contender {
    pub fn floor() -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("the benchmark's own path")?;
        Ok(Contender { name: "floor".into(), version: None, kind: Kind::Floor(program) })
    }

    /// Fulmen; over TCP both as plain as its peers are, and sealed, as it is unless told otherwise.
    pub fn fulmen(over: Over) -> Vec<Self> {
        let of = |name: &str, arguments| {
            let program = PathBuf::from(env!("CARGO_BIN_EXE_fulmen"));
            Contender { name: name.into(), version: None, kind: Kind::Fulmen { program, arguments } }
        };
        match over {
            Over::Machine => vec![of("Fulmen", &[])],
            Over::Tcp => {
                vec![of("Fulmen", &["--device", "tcp", "--trusted-rail"]), of("Fulmen sealed", &["--device", "tcp"])]
            }
        }
    }

    pub fn is_peer(&self) -> bool {
        matches!(self.kind, Kind::Mpi { .. } | Kind::Ucx(_))
    }

    /// Whether there is something to compare: the floor has but some operations, the MPI program no one-sided ones, and UCX's
    /// benchmark has nothing else that is measured here.
    pub fn takes_part(&self, op: Op) -> bool {
        match self.kind {
            Kind::Fulmen { .. } => true,
            Kind::Ucx(_) => op.is_one_sided(),
            Kind::Mpi { .. } => !op.is_one_sided(),
            Kind::Floor(_) => op.has_floor(),
        }
    }

    /// The medians, in microseconds, of the operation at each of `sizes`.
    pub fn measure(&self, settings: &Settings, op: Op, memory: Memory, sizes: &[usize]) -> anyhow::Result<Vec<f64>> {
        let list = |numbers: &[usize]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let (ranks, cpus) = (settings.ranks.to_string(), list(&settings.cpus));
        let seconds = settings.seconds.to_string();
        let mut records = Vec::new();
        match &self.kind {
            Kind::Floor(program) => {
                let mut command = Command::new(program);
                command.args(["floor", "--op", op.name(), "--memory", memory.name(), "--sizes", &list(sizes)]);
                command.args(["--ranks", &ranks, "--cpus", &cpus, "--seconds", &seconds]);
                records = run(command)?;
            }
            Kind::Fulmen { program, arguments } => {
                for size in sizes {
                    let mut command = Command::new(program);
                    // A round trip's half is what `fulmen bench` calls latency, and a stream is what shows bandwidth.
                    let name = match op {
                        Op::P2p => "latency",
                        Op::Stream => "bandwidth",
                        _ => op.name(),
                    };
                    command.args(["bench", name, "-n", &ranks, "--dtype", "f32", "--memory", memory.name(), "--json"]);
                    command.args(*arguments);
                    if !op.has_one_size() {
                        let bytes = size.to_string();
                        command.args(["--min", &bytes, "--max", &bytes]);
                    }
                    records.extend(run(command)?);
                }
            }
            Kind::Ucx(program) => return ucx::measure(program, settings, op, sizes),
            Kind::Mpi { launcher, arguments, variables, program } => {
                let memories: &[&str] = match (op, memory, settings.over) {
                    (Op::Barrier, ..) | (_, Memory::Plain, _) | (.., Over::Tcp) => &["plain"],
                    (_, Memory::Registered, Over::Machine) => &["plain", "shared"],
                };
                for memory in memories {
                    let mut command = Command::new(launcher);
                    command.envs(variables.iter().copied()).args(arguments).args(["-n", &ranks]).arg(program);
                    command.args(["--op", op.name(), "--memory", memory, "--sizes", &list(sizes)]);
                    command.args(["--seconds", &seconds, "--cpus", &cpus]);
                    records.extend(run(command)?);
                }
            }
        }
        medians(op, sizes, &records)
    }
}

/// The fastest record of each size. A barrier has no size to agree on.
fn medians(op: Op, sizes: &[usize], records: &[Record]) -> anyhow::Result<Vec<f64>> {
    let of_size = |size: usize| {
        let fitting = records.iter().filter(|record| op == Op::Barrier || record.bytes == size as u64);
        let best = fitting.map(|record| record.p50_us).min_by(f64::total_cmp);
        best.ok_or_else(|| anyhow!("no record of {op} at {size} bytes came"))
    };
    sizes.iter().map(|&size| of_size(size)).collect()
}

/// Runs a command to its end and reads its records.
pub fn run(command: Command) -> anyhow::Result<Vec<Record>> {
    let shown = format!("{command:?}").replace('"', "");
    record::parse(&read(command)?).map_err(|error| anyhow!("{shown}: {error}"))
}

/// Runs a command to its end, at most [`LIMIT`] long, and gives what it printed.
pub fn read(mut command: Command) -> anyhow::Result<String> {
    let shown = format!("{command:?}").replace('"', "");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.with_context(|| format!("starting {shown}"))?;
    let pid = Pid::from_child(&child);
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        // The receiver is gone only after it has given the child up.
        let _ = send.send(child.wait_with_output());
    });
    let output = match receive.recv_timeout(LIMIT) {
        Ok(output) => output?,
        Err(_) => {
            // It may end on its own at this moment, which is as good.
            let _ = kill_process(pid, Signal::TERM);
            if receive.recv_timeout(GRACE).is_err() {
                let _ = kill_process(pid, Signal::KILL);
            }
            bail!("{shown} took longer than {LIMIT:?} and was ended");
        }
    };
    let complaint = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{shown} ended with {}: {}", output.status, complaint.trim().lines().last().unwrap_or("no message"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
