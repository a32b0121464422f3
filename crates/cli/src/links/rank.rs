//! What a rank of `fulmen links` does: all pairs have their turn, and the first rank writes one line of JSON for each rail.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::process::ExitCode;
use std::time::Duration;

use fulmen::parts::fabric::{RailEnd, RailInfo, RailState, RailStatus};
use fulmen::parts::system::Library;
use fulmen::parts::verbs::{Carrier, Device, LinkLayer};
use fulmen::{Group, LinkKind, Options};

use super::measure::{agree, measure, tell};
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
    let mut lines = String::new();
    if own == from || own == to {
        let peer = if own == from { to } else { from };
        for (over, speed) in measure_rails(group, peer)? {
            let row = row(group, (from, to), hosts, &over, speed);
            lines += &(serde_json::to_string(&row)? + "\n");
        }
    }
    match (own, from) {
        (0, 0) => {}
        (0, _) => {
            let mut bytes = vec![0u8; LONGEST];
            let len = group.recv(&mut bytes[..], from, TAG)?;
            bytes.truncate(len);
            lines = String::from_utf8(bytes)?;
        }
        (own, from) if own == from => group.send(lines.as_bytes(), 0, TAG)?,
        _ => {}
    }
    if own == 0 {
        let mut output = io::stdout().lock();
        output.write_all(lines.as_bytes()).and_then(|()| output.flush())?;
    }
    Ok(())
}

/// How fast a rail is, as the rank with the smaller number knows it.
struct Speed {
    latency: Duration,
    out: f64,
    back: f64,
}

/// What of a link a row is about.
enum Over {
    /// A rail, by its number.
    Rail(usize, Box<RailStatus>),
    /// All rails at once.
    AllRails,
    /// It has none.
    NoRail,
}

impl Over {
    fn rail(&self) -> Option<&RailStatus> {
        match self {
            Over::Rail(_, rail) => Some(rail),
            Over::AllRails | Over::NoRail => None,
        }
    }
}

/// Measures a link: each rail that is up at both ends and then all at once, if there are several.
fn measure_rails(group: &Group, peer: u32) -> anyhow::Result<Vec<(Over, Option<Speed>)>> {
    let fabric = group.fabric();
    let whole = measure(group, peer)?;
    let out = tell(group, peer, whole.received)?;
    let together = Some(Speed { latency: whole.latency, out, back: whole.received });
    let rails = fabric.rails(peer);
    if rails.len() <= 1 {
        let over = rails.into_iter().next().map_or(Over::NoRail, |rail| Over::Rail(0, rail.into()));
        return Ok(vec![(over, together)]);
    }
    let mut measured = Vec::with_capacity(rails.len() + 1);
    for (index, rail) in rails.into_iter().enumerate() {
        let up = u64::from(rail.state == RailState::Up);
        let both = up & tell(group, peer, up)?;
        let speed = match agree(group, peer, both)? {
            0 => None,
            _ => {
                let probe = fabric.probe_rail(peer, index, whole.bytes, group.deadline())?;
                let out = tell(group, peer, probe.bytes_per_second)?;
                Some(Speed { latency: probe.latency, out, back: probe.bytes_per_second })
            }
        };
        measured.push((Over::Rail(index, rail.into()), speed));
    }
    measured.push((Over::AllRails, together));
    Ok(measured)
}

fn row(group: &Group, (from, to): (u32, u32), hosts: &[String], over: &Over, speed: Option<Speed>) -> Row {
    let fabric = group.fabric();
    let info = over.rail().map(|rail| &rail.info);
    let link = fabric.link_to(if fabric.rank() == from { to } else { from });
    let kind = match (over, link) {
        (Over::Rail(_, rail), _) => kind(&rail.info),
        (Over::AllRails, _) => "all-rails",
        (Over::NoRail, LinkKind::SharedMemory) => "shared-memory",
        (Over::NoRail, _) => "relayed",
    };
    let state = match (over.rail().map(|rail| &rail.state), &speed) {
        (Some(RailState::Down { cause } | RailState::Out { cause, .. }), _) => format!("down: {cause}"),
        (_, None) => "not up at both ends".to_owned(),
        _ => "up".to_owned(),
    };
    let round = |number: f64| (number * 1e4).round() / 1e4;
    let speed = speed.as_ref();
    Row {
        from,
        to,
        from_host: hosts[from as usize].clone(),
        to_host: hosts[to as usize].clone(),
        rail: match over {
            Over::Rail(index, _) => Some(*index),
            Over::AllRails | Over::NoRail => None,
        },
        cable: info.map(|rail| Cable { from: end(&rail.here), to: end(&rail.there) }),
        kind: kind.to_owned(),
        state,
        latency_us: speed.map(|speed| round(speed.latency.as_secs_f64() * 1e6)),
        out: speed.map(|speed| round(speed.out / 1e9)),
        back: speed.map(|speed| round(speed.back / 1e9)),
        fallback: fabric.fallback().filter(|_| link != LinkKind::SharedMemory).map(str::to_owned),
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
