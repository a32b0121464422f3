//! `fulmen links`: what joins each two ranks, and how fast it is.
//!
//! The command starts a rank a host as `fulmen run` does, with this program as the ranks' (a hidden command), and shows what the
//! first one tells. [`mod@rank`] is what ranks do, [`mod@row`] what they tell.

mod measure;
mod rank;
mod row;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use fulmen::TCP;
use fulmen::parts::fabric::bootstrap::Heartbeat;

pub use rank::{Args as RankArgs, rank};

use self::row::Row;
use crate::output::{NOBODY_LISTENS, say, show};
use crate::run::{self, HostOptions, Job, Output, Profile, Reader, device_name, rank_count};

/// The hidden command of a rank.
pub const RANK: &str = "__links";

/// Show what joins the hosts, and measure it.
///
/// Starts ranks, one a host, or N on this machine, and measures every rail of each two of them alone, one after the other. The table
/// names a rail by its two hosts and what it runs between at each end: an interface, or a device. `out` is from the first host
/// to the second one, `back` the other way; the latency is half of a short message's round trip.
///
/// A link of several rails has one more row, for all of them at once. One without a rail runs over memory that both ranks map, or is
/// relayed by other ranks.
///
/// Exit code: 0 when all was measured, 2 for bad input, 255 for a host that is not reached or lost, else that of the rank that failed
/// first: also where cables are plugged in otherwise than a list of hosts says, which is named.
#[derive(clap::Args)]
pub struct Args {
    /// How many ranks to start [default: 2, or as many as the hosts have places for with --hosts].
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = rank_count, allow_negative_numbers = true)]
    ranks: Option<u32>,
    #[command(flatten)]
    hosts: HostOptions,
    /// Use the software RDMA device with the limits and rules of this hardware, instead of shared memory.
    #[arg(long, value_enum, env = "FULMEN_PROFILE", conflicts_with = "device")]
    profile: Option<Profile>,
    /// Use this RDMA device of the machines, or `any` that works, or `tcp`: on this machine alone, as between hosts.
    #[arg(long, value_name = "NAME", env = run::DEVICE, value_parser = device_name)]
    device: Option<String>,
    /// Do not seal TCP between hosts: the network is trusted (one's own cable or switch).
    #[arg(long)]
    trusted_rail: bool,
    /// Print one JSON object a rail, and nothing else, on standard output.
    #[arg(long)]
    json: bool,
}

/// Why links are not measured.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum LinksError {
    /// One rank has nobody to talk to.
    #[error("links join two ranks or more: use -n 2, or name two hosts")]
    Alone,
}

/// What the first rank has told so far.
#[derive(Default)]
struct Told {
    rows: usize,
    fallback: Option<String>,
    nobody_listens: bool,
}

/// Starts the ranks and shows what they measure.
pub fn links(args: Args, verbose: u8) -> anyhow::Result<ExitCode> {
    let Args { ranks, hosts, profile, device, trusted_rail, json } = args;
    let hosts = hosts.hosts(ranks, Heartbeat::default().silence)?;
    let ranks = hosts.as_ref().map_or(ranks.unwrap_or(2), |hosts| hosts.placement.ranks());
    if ranks < 2 {
        return Err(LinksError::Alone.into());
    }
    let hosts = hosts.filter(|hosts| !hosts.are_here());
    // This machine stands for several then.
    let apart = hosts.is_none() && device.as_deref() == Some(TCP);
    let words = std::iter::once(OsString::from(RANK)).chain(apart.then(|| "--apart".into()));
    let told = Arc::new(Mutex::new(Told::default()));
    let mut job = Job::own(ranks, profile, verbose, words.collect(), Output::Read(reader(told.clone(), json)))?;
    job.directory = PathBuf::from("/");
    job.env.push(("FULMEN_POOL", measure::POOL.to_string()));
    job.env.extend(trusted_rail.then(run::trusted));
    job.env.extend(device.map(run::over));
    job.given.extend(hosts.iter().flat_map(|hosts| &hosts.variables).map(|(name, value)| (name.into(), value.into())));
    job.hosts = hosts;
    if !json && !show(&format!("{}\n", row::heading()))? {
        return Ok(ExitCode::from(NOBODY_LISTENS));
    }
    let code = job.run()?;
    let told = told.lock().unwrap_or_else(PoisonError::into_inner);
    if told.nobody_listens {
        return Ok(ExitCode::from(NOBODY_LISTENS));
    }
    if let Some(why) = &told.fallback {
        say(&format!("these links run over TCP, although something faster is there or was expected: {why}"));
    }
    let pairs = ranks as usize * (ranks as usize - 1) / 2;
    anyhow::ensure!(code != 0 || told.rows >= pairs, "the ranks told of {} of {pairs} links at most", told.rows);
    Ok(ExitCode::from(code))
}

/// Takes the first rank's lines.
fn reader(told: Arc<Mutex<Told>>, json: bool) -> Reader {
    Box::new(move |bytes| {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        for line in bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let row: Row = serde_json::from_slice(line).map_err(io::Error::other)?;
            told.rows += 1;
            let shown = if json { String::from_utf8_lossy(line).into_owned() } else { row.line() };
            told.fallback = row.fallback;
            if !show(&format!("{shown}\n"))? {
                told.nobody_listens = true;
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        Ok(())
    })
}
