//! What a rank of `fulmen links` does: all pairs have their turn, and the first rank writes one line of JSON for each rail.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::process::ExitCode;

use fulmen::parts::fabric::{RailEnd, RailInfo};
use fulmen::parts::system::Library;
use fulmen::parts::verbs::{Carrier, Device, LinkLayer};
use fulmen::{Group, LinkKind, Options};

use super::measure::{Measured, measure, tell};
use super::row::{Cable, End, Row};

/// Of messages to the first rank.
const TAG: u64 = 0x12;
/// No row has more bytes.
const LONGEST: usize = 64 << 10;
/// Bytes of a host's name.
const NAME: usize = 64;

/// What a rank is told.
#[derive(clap::Args)]
pub struct Args {
    /// Have ranks of this host talk as between hosts.
    #[arg(long)]
    apart: bool,
}

/// Measures as one of the ranks.
pub fn rank(args: &Args) -> anyhow::Result<ExitCode> {
    let options = Options::from_env()?;
    let group = if args.apart { options.apart() } else { options }.init()?;
    let hosts = hosts(&group)?;
    for from in 0..group.size() {
        for to in from + 1..group.size() {
            turn(&group, from, to, &hosts)?;
            // Until they are done, nobody else sends anything.
            group.barrier()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The names of all ranks' hosts.
fn hosts(group: &Group) -> anyhow::Result<Vec<String>> {
    let system = rustix::system::uname();
    let mut own = [0u8; NAME];
    let name = system.nodename().to_bytes();
    let len = name.len().min(NAME);
    own[..len].copy_from_slice(&name[..len]);
    let mut all = vec![0u8; NAME * group.size() as usize];
    group.all_gather(&own[..], &mut all[..])?;
    let name =
        |bytes: &[u8]| String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or(&[])).into_owned();
    Ok(all.chunks(NAME).map(name).collect())
}

/// Measures one pair, and has the first rank tell of it.
fn turn(group: &Group, from: u32, to: u32, hosts: &[String]) -> anyhow::Result<()> {
    let own = group.rank();
    let mut line = String::new();
    if own == from || own == to {
        let peer = if own == from { to } else { from };
        let measured = measure(group, peer)?;
        let out = tell(group, peer, measured.received)?;
        if own == from {
            let row = row(group, (from, to), hosts, measured, out);
            line = serde_json::to_string(&row)? + "\n";
        }
    }
    match (own, from) {
        (0, 0) => {}
        (0, _) => {
            let mut bytes = vec![0u8; LONGEST];
            let len = group.recv(&mut bytes[..], from, TAG)?;
            bytes.truncate(len);
            line = String::from_utf8(bytes)?;
        }
        (own, from) if own == from => group.send(line.as_bytes(), 0, TAG)?,
        _ => {}
    }
    if own == 0 {
        let mut output = io::stdout().lock();
        output.write_all(line.as_bytes()).and_then(|()| output.flush())?;
    }
    Ok(())
}

fn row(group: &Group, (from, to): (u32, u32), hosts: &[String], measured: Measured, out: f64) -> Row {
    let fabric = group.fabric();
    let rail = fabric.rail(to);
    let kind = match (rail, fabric.link_kind()) {
        (Some(rail), _) => kind(rail),
        (None, LinkKind::SharedMemory) => "shared-memory",
        (None, _) => "relayed",
    };
    let round = |number: f64| (number * 1e4).round() / 1e4;
    Row {
        from,
        to,
        from_host: hosts[from as usize].clone(),
        to_host: hosts[to as usize].clone(),
        rail: rail.map(|_| 0),
        cable: rail.map(|rail| Cable { from: end(&rail.here), to: end(&rail.there) }),
        kind: kind.to_owned(),
        state: "up".to_owned(),
        latency_us: Some(round(measured.latency.as_secs_f64() * 1e6)),
        out: Some(round(out / 1e9)),
        back: Some(round(measured.received / 1e9)),
        fallback: fabric.fallback().map(str::to_owned),
    }
}

fn end(end: &RailEnd) -> End {
    // Those of IPv4 as people write them.
    let address = IpAddr::V6(Ipv6Addr::from(end.gid.0)).to_canonical();
    End { device: end.device.clone(), port: end.port, address: address.to_string() }
}

/// What a rail is made of. A device that is driven by hardware is asked.
fn kind(rail: &RailInfo) -> &'static str {
    match rail.carrier {
        Carrier::SharedMemory => "shared-memory",
        Carrier::Tcp { sealed: true } => "tcp-sealed",
        Carrier::Tcp { sealed: false } => "tcp-plain",
        _ => {
            let port = Library::open().and_then(|library| library.open_device(&rail.here.device));
            match port.ok().and_then(|device| device.port(rail.here.port).ok()).map(|port| port.link_layer) {
                Some(LinkLayer::Thunderbolt) => "thunderbolt",
                Some(LinkLayer::Infiniband) => "infiniband",
                Some(LinkLayer::Ethernet) => "roce",
                _ => "rdma",
            }
        }
    }
}
