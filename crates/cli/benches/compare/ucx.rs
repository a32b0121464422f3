//! UCX, for one-sided operations: its own benchmark, `ucx_perftest`, over shared memory.
//!
//! What its tests measure is what `fulmen bench` measures: `ucp_put_lat` half a round trip of puts that the other side waits for,
//! the others operations one after the other. Of the latter UCX keeps several under way and the time is the mean of all;
//! Fulmen's is the median over batches of operations of which each has taken effect before the next begins.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::{
    Settings,
    case::Op,
    contender::{Contender, Kind, read},
};

const PROGRAM: &str = "ucx_perftest";
/// How long the server may take to listen.
const LISTENS: Duration = Duration::from_secs(20);
/// Time between two tries to reach it.
const RETRY: Duration = Duration::from_millis(50);

/// UCX, if it is installed; else it is said how to get it.
pub fn find(skipped: &dyn Fn(&str) -> bool) -> Option<Contender> {
    if skipped("ucx") {
        return None;
    }
    let version = Command::new("ucx_info").arg("-v").output().ok().map(|output| output.stdout);
    if Command::new(PROGRAM).arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        eprintln!("compare: SKIPPED UCX: it is not installed; to have it: apt-get install ucx-utils");
        return None;
    }
    let version =
        version.and_then(|text| Some(String::from_utf8_lossy(&text).split_whitespace().find(is_version)?.to_owned()));
    let version = version.unwrap_or_else(|| "of unknown version".into());
    Some(Contender { name: "UCX".into(), version: Some(format!("UCX {version}")), kind: Kind::Ucx(PROGRAM.into()) })
}

fn is_version(word: &&str) -> bool {
    word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// The test of an operation, and the column of its result: a median where it times each round trip, else the mean.
fn test(op: Op) -> Option<(&'static str, usize)> {
    const MEDIAN: usize = 1;
    const MEAN: usize = 3;
    Some(match op {
        Op::Put => ("ucp_put_bw", MEAN),
        Op::Get => ("ucp_get", MEAN),
        Op::PutLatency => ("ucp_put_lat", MEDIAN),
        Op::FetchAdd => ("ucp_fadd", MEAN),
        Op::CompareSwap => ("ucp_cswap", MEAN),
        _ => return None,
    })
}

/// Microseconds of an operation at each of `sizes`.
pub fn measure(program: &Path, settings: &Settings, op: Op, sizes: &[usize]) -> anyhow::Result<Vec<f64>> {
    let (test, column) = test(op).context("UCX takes part in one-sided operations only")?;
    sizes.iter().map(|&size| measure_size(program, settings, (test, column), size)).collect()
}

fn measure_size(
    program: &Path,
    settings: &Settings,
    (test, column): (&str, usize),
    size: usize,
) -> anyhow::Result<f64> {
    // A port that is free now is so a moment later.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port().to_string();
    let command = |processor: usize| {
        let mut command = Command::new(program);
        command
            .env("UCX_TLS", "posix,sysv,cma,self")
            .env("UCX_WARN_UNUSED_ENV_VARS", "n")
            .env("UCX_LOG_LEVEL", "error");
        command.args(["-p", &port, "-c", &processor.to_string()]);
        command
    };
    let server = command(settings.cpus[0]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _server = Server(server.context("starting UCX's server")?);
    // About as long as the others: small operations take some tens of nanoseconds, large ones go at some gigabytes a second.
    let guess = 1e-7 + size as f64 / 5e9;
    let count = ((settings.seconds / guess) as usize).clamp(200, 1_000_000);
    let end = Instant::now() + LISTENS;
    loop {
        let mut client = command(settings.cpus[1]);
        client.arg("127.0.0.1").args(["-t", test, "-s", &size.to_string(), "-n", &count.to_string(), "-w", "100"]);
        client.args(["-f", "-v"]);
        match read(client) {
            Ok(text) => return column_of(&text, column),
            Err(error) if Instant::now() >= end => return Err(error),
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

/// A column of the last line of numbers.
fn column_of(text: &str, column: usize) -> anyhow::Result<f64> {
    let numbers = text.lines().rev().find(|line| line.starts_with(|first: char| first.is_ascii_digit()));
    let value = numbers.and_then(|line| line.split(',').nth(column)?.trim().parse::<f64>().ok());
    match value {
        Some(value) if value > 0.0 => Ok(value),
        _ => bail!("{PROGRAM} gave no usable time: {text}"),
    }
}

/// A server that does not outlive its use.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
