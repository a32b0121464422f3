//! `fulmen probe`: what a device really does, found by doing it.
//!
//! Drivers hang and crash, so everything that calls into one runs in other processes, which are this program again (a hidden
//! command): [`mod@worker`] is what they do, [`mod@supervise`] watches them. Each probe is a module: it is given an open device and
//! gives an [`Answer`].

mod answer;
mod ends;
mod limits;
mod link;
mod memory;
mod pattern;
mod pool;
mod report;
mod supervise;
mod symbols;
mod target;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use answer::Answer;
pub use worker::{WorkerArgs, worker};

use crate::bench::Size;
use crate::output::{NOBODY_LISTENS, show};
use crate::run::{Profile, positive_seconds};
use target::Target;

/// The hidden command of a process that calls into the driver.
pub const WORKER: &str = "__probe";

/// Find out by trying what a device really does, and how fast it is.
///
/// The device is one of the machine's own (--device NAME; the first one if none is named) or the software device with the
/// limits and rules of some hardware (--profile). Whatever calls into a driver runs in a process of its own, so that a
/// driver that hangs or crashes ends in a message.
///
/// mr-limit and queue-pairs make objects until the device refuses one (or --most are made), say how it refused, give all of
/// them back, and make as many again, which proves that they were given back.
///
/// mr-pool registers one piece of memory of 128 MiB, 256 MiB … 2 GiB, cuts buffers of 512 KiB out of it, and moves the
/// first and the last of them over all that queue pairs can do, with addresses inside the one registration; every byte is
/// compared.
///
/// memory registers each kind of memory that there is with different rights, sends a message out of it and one into it. A
/// kind that is refused is no failure.
///
/// symbols lists the calls of the machine's verbs library, which FULMEN_VERBS_LIBRARY may name.
///
/// link measures each active port between two processes. Latency is half a round trip of SENDs. Bandwidth is a stream of
/// SENDs, and of WRITEs where the device has them, with up to 128 under way. Both poll, over RC where the device has it.
///
/// Exit code: 0 when the device did what it should, 1 when it did not or there is no device, 2 for bad input.
#[derive(clap::Args)]
pub struct Args {
    /// What to find out.
    #[arg(value_enum)]
    kind: Kind,
    /// The machine's own device of this name.
    #[arg(long, value_name = "NAME", conflicts_with = "profile")]
    device: Option<String>,
    /// The software device with the limits and rules of this hardware.
    #[arg(long, value_enum)]
    profile: Option<Profile>,
    /// link: the other end, if it is not the same device.
    #[arg(long, value_name = "NAME", requires = "device")]
    to: Option<String>,
    /// Stop at so many objects (65536 registrations or 4096 of each other kind, unless given), or at pools of this size (2G).
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    most: Option<Size>,
    /// Take the driver to hang when it does nothing for so long.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_seconds, allow_negative_numbers = true)]
    patience: Duration,
    /// Print one JSON object, and nothing else, on standard output.
    #[arg(long)]
    json: bool,
}

/// What can be found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// How many registrations the device has.
    MrLimit,
    /// How many queue pairs, completion queues and protection domains it has.
    QueuePairs,
    /// Whether thousands of buffers inside one registration are reached.
    MrPool,
    /// Which kinds of memory it registers.
    Memory,
    /// Which calls the machine's verbs library has.
    Symbols,
    /// How long messages take, and how many bytes pass.
    Link,
}

/// What a worker has to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order {
    kind: Kind,
    target: Target,
    most: Option<u64>,
    /// Which end of a link this is: 0 measures.
    end: usize,
    /// The port of a link; the first active one if none is named.
    port: Option<u8>,
    /// The kind of memory to try.
    memory: Option<String>,
}

/// Bad input that only shows when arguments are seen together.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// `--to` is for links.
    #[error("--to names the other end of a link: leave it out, or probe link")]
    ToWithoutLink,
    /// `--most` of nothing.
    #[error("--most {0} leaves nothing to probe: give at least {1}")]
    TooFew(u64, &'static str),
    /// The library is the machine's.
    #[error("symbols are those of the machine's verbs library: leave out --device and --profile")]
    DeviceForSymbols,
    /// `--most` where nothing is counted.
    #[error("--most bounds mr-limit, queue-pairs and mr-pool: leave it out")]
    MostWithoutCount,
}

/// Probes and shows what came of it.
pub fn probe(args: Args) -> anyhow::Result<ExitCode> {
    args.check()?;
    let found = args.find();
    let text = if args.json { serde_json::to_string(&found)? + "\n" } else { report::text(&found) };
    let heard = show(&text).map_err(|error| anyhow::anyhow!("the output is not complete: {error}"))?;
    match &found.problem {
        Some(problem) => anyhow::bail!("{problem}"),
        None => Ok(if heard { ExitCode::SUCCESS } else { ExitCode::from(NOBODY_LISTENS) }),
    }
}

impl Args {
    fn check(&self) -> Result<(), ProbeError> {
        if self.to.is_some() && self.kind != Kind::Link {
            return Err(ProbeError::ToWithoutLink);
        }
        if self.kind == Kind::Symbols && (self.device.is_some() || self.profile.is_some()) {
            return Err(ProbeError::DeviceForSymbols);
        }
        let Some(Size(most)) = self.most else { return Ok(()) };
        match self.kind {
            Kind::MrLimit | Kind::QueuePairs if most == 0 => Err(ProbeError::TooFew(most, "1")),
            Kind::MrPool if most < pool::SMALLEST => Err(ProbeError::TooFew(most, "128M")),
            Kind::MrLimit | Kind::QueuePairs | Kind::MrPool => Ok(()),
            _ => Err(ProbeError::MostWithoutCount),
        }
    }

    fn find(&self) -> report::Found {
        let target = match (&self.device, self.profile) {
            (Some(name), _) => Target::Named(name.clone()),
            (None, Some(profile)) => Target::Soft(profile.name().to_string()),
            (None, None) => Target::First,
        };
        let order =
            Order { kind: self.kind, target, most: self.most.map(|Size(most)| most), end: 0, port: None, memory: None };
        let mut found = report::Found::new(self.kind);
        match self.kind {
            Kind::Link => self.find_links(order, &mut found),
            Kind::Memory => self.find_memory(&order, &mut found),
            _ => found.take(supervise::supervise(&[order], self.patience)),
        }
        found
    }

    /// Tries each kind of memory, whatever comes of the others.
    fn find_memory(&self, order: &Order, found: &mut report::Found) {
        for kind in memory::names() {
            let order = Order { memory: Some(kind.to_string()), ..order.clone() };
            let mut outcome = supervise::supervise(&[order], self.patience);
            if found.device.is_none() && outcome.device.is_none() {
                // Not even the device could be opened: the kind has no part in that.
                return found.take(outcome);
            }
            if outcome.answer.is_none() {
                let row = answer::Memory { kind: kind.into(), problem: outcome.problem.clone(), ..Default::default() };
                outcome.answer = Some(Answer::Memory(vec![row]));
            }
            found.take(outcome);
        }
    }

    /// Measures each rail: the first worker tells which ports are active.
    fn find_links(&self, order: Order, found: &mut report::Found) {
        let mut ports = vec![None];
        while let Some(port) = ports.pop() {
            let first = port.is_none();
            let near = Order { port, ..order.clone() };
            let target = self.to.as_ref().map_or_else(|| near.target.clone(), |name| Target::Named(name.clone()));
            // The other device's port is whichever is active, unless it is the same device.
            let far = Order { target, end: 1, port: if self.to.is_some() { None } else { port }, ..near.clone() };
            found.take(supervise::supervise(&[near, far], self.patience));
            if found.problem.is_some() {
                return;
            }
            if let Some(Answer::Rails(rails)) = found.answer.as_ref().filter(|_| first) {
                let measured = rails.first().map(|rail| rail.port);
                let others = found.device.iter().flat_map(|device| &device.active_ports).copied();
                ports.extend(others.filter(|port| Some(*port) != measured).rev().map(Some).collect::<Vec<_>>());
            }
        }
    }
}
