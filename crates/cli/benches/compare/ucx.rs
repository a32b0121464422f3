//! UCX, for one-sided operations: its own benchmark, `ucx_perftest`, over shared memory or TCP.
//!
//! What its tests measure is what `fulmen bench` measures: `ucp_put_lat` half a round trip of puts that the other side waits for,
//! the others operations one after the other. Of the latter UCX keeps several under way; each of Fulmen's has taken effect before
//! the next begins.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::{
    Settings,
    case::{Op, Over},
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

/// The test of an operation.
fn test(op: Op) -> Option<&'static str> {
    Some(match op {
        Op::Put => "ucp_put_bw",
        Op::Get => "ucp_get",
        Op::PutLatency => "ucp_put_lat",
        Op::FetchAdd => "ucp_fadd",
        Op::CompareSwap => "ucp_cswap",
        _ => return None,
    })
}

/// Microseconds of an operation at each of `sizes`.
pub fn measure(program: &Path, settings: &Settings, op: Op, sizes: &[usize]) -> anyhow::Result<Vec<f64>> {
    let test = test(op).context("UCX takes part in one-sided operations only")?;
    sizes.iter().map(|&size| measure_size(program, settings, test, size)).collect()
}

fn measure_size(program: &Path, settings: &Settings, test: &str, size: usize) -> anyhow::Result<f64> {
    // A port that is free now is so a moment later.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port().to_string();
    let transports = match settings.over {
        Over::Machine => "posix,sysv,cma,self",
        Over::Tcp => "tcp,self",
    };
    let command = |processor: usize| {
        let mut command = Command::new(program);
        command.env("UCX_TLS", transports).env("UCX_WARN_UNUSED_ENV_VARS", "n").env("UCX_LOG_LEVEL", "error");
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
            Ok(text) => return time_of(&text),
            Err(error) if Instant::now() >= end => return Err(error),
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

/// The time in the last line of numbers: iterations, median, two means, and others. Where several are under way, the mean of all
/// is the shorter one, and on a machine that others use the median is: UCX gets the better of the two.
fn time_of(text: &str) -> anyhow::Result<f64> {
    let numbers = text.lines().rev().map(str::trim).find(|line| line.starts_with(|first: char| first.is_ascii_digit()));
    let column = |line: &str, at| line.split(',').nth(at)?.trim().parse::<f64>().ok().filter(|time| *time > 0.0);
    match numbers.and_then(|line| Some(column(line, 1)?.min(column(line, 3)?))) {
        Some(time) => Ok(time),
        None => bail!("{PROGRAM} gave no usable time: {text}"),
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
