//! `fulmen devices`: what this machine offers for connecting ranks.

mod machine;
mod table;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use fulmen::parts::attach::{self, AttachError, Attached};
use fulmen::parts::memory::Region;
use fulmen::parts::reach::Node;
use fulmen::parts::soft::{Profile, SoftDevice};
use fulmen::parts::verbs::{Device, PortState};
use serde::{Deserialize, Serialize};

use crate::output::print;
use machine::Machine;
pub use machine::{LOOK, LookArgs, look};

/// How long this process may take to map its own memory over the path that peers take.
const WINDOWS: Duration = Duration::from_secs(10);

/// Show what this machine offers for connecting ranks: devices with their limits and ports, and shared memory.
///
/// The machine's own RDMA devices come from its verbs library; where there are none, a line says why. Software devices need no
/// hardware: they are there wherever shared memory is. Each keeps the limits and rules of the hardware that it is named
/// after. `--device` and `--profile` of the other commands choose one; between hosts, software devices talk by TCP.
#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object, and nothing else, on standard output.
    #[arg(long)]
    json: bool,
    /// Print the table of docs/devices.md: what each kind of device can do.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

/// Everything that was found.
#[derive(Serialize)]
struct Found {
    windows: Windows,
    /// The machine's own.
    machine: Machine,
    /// Those that the host's agent owns, and programs attach to.
    attached: Vec<Shown>,
    /// Those in software.
    devices: Vec<Shown>,
}

/// Whether ranks of this host can map one another's memory.
#[derive(Serialize)]
struct Windows {
    available: bool,
    /// Why not.
    problem: Option<String>,
}

#[derive(Serialize, Deserialize)]
pub struct Shown {
    name: String,
    provider: String,
    /// The hardware that a software device stands in for.
    profile: Option<String>,
    /// What a device of the machine says of itself.
    firmware: Option<String>,
    vendor_id: Option<u32>,
    vendor_part_id: Option<u32>,
    queue_pairs: u32,
    completion_queues: u32,
    completion_entries: u32,
    memory_regions: u32,
    protection_domains: u32,
    queue_depth: u32,
    /// If set, queue depth counts frames of so many bytes.
    frame_bytes: Option<u32>,
    pieces: u32,
    inline_bytes: u32,
    message_bytes: u64,
    /// No registration crosses a multiple of this address.
    registration_boundary: Option<u64>,
    /// No registration is longer.
    registration_bytes: Option<u64>,
    reads_in_flight: u8,
    /// Names of what it can do.
    capabilities: Vec<String>,
    ports: Vec<Port>,
}

#[derive(Serialize, Deserialize)]
struct Port {
    number: u8,
    state: String,
    link_layer: String,
    mtu: u32,
    /// Gigabits a second on the wire, if the device says so.
    gigabits: Option<f64>,
    gids: Vec<Gid>,
}

#[derive(Serialize, Deserialize)]
struct Gid {
    index: u8,
    gid: String,
}

/// Looks for everything and shows it.
pub fn devices(args: Args) -> anyhow::Result<ExitCode> {
    if args.markdown {
        return print(&table::markdown()?);
    }
    let node = Node::open().context("cannot share memory with other processes, which every device here needs")?;
    let problem = try_windows(&node).err().map(|error| format!("{error:#}"));
    let open = |profile: Profile| -> anyhow::Result<(Profile, Arc<dyn Device>)> {
        let device = SoftDevice::open(&node, profile).with_context(|| format!("the software {profile} device"))?;
        Ok((profile, device))
    };
    // All are open at once, as a program would have them, so that their names differ.
    let devices = Profile::ALL.into_iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let shown = devices.iter().map(|(profile, device)| show(Some(*profile), &**device));
    let found = Found {
        windows: Windows { available: problem.is_none(), problem },
        machine: Machine::find(),
        attached: attached()?,
        devices: shown.collect::<anyhow::Result<_>>()?,
    };
    let text = if args.json { serde_json::to_string(&found)? + "\n" } else { describe(&found) };
    print(&text)
}

/// The devices that the host's agent offers, if one is up.
fn attached() -> anyhow::Result<Vec<Shown>> {
    let Some(socket) = attach::here() else { return Ok(Vec::new()) };
    let names = match attach::offered(&socket) {
        Err(AttachError::NoOwner { .. }) => Vec::new(),
        names => names?,
    };
    names.iter().map(|name| show(None, &*Attached::open(&socket, name)?)).collect()
}

/// Maps memory of this process over the path by which peers map it.
pub fn try_windows(node: &Node) -> anyhow::Result<()> {
    let region = Region::alloc(1)?;
    let key = node.share(&region)?;
    let seen = node.connect(&node.address(), WINDOWS)?.map(key, WINDOWS)?;
    node.unshare(key);
    region.expose()?.write(0, &[7]);
    let mut byte = [0];
    seen.expose()?.read(0, &mut byte);
    anyhow::ensure!(byte == [7], "memory that was mapped twice is not the same memory");
    Ok(())
}

fn show(profile: Option<Profile>, device: &dyn Device) -> anyhow::Result<Shown> {
    let info = device.info();
    let (limits, can) = (&info.limits, &info.capabilities);
    let capabilities = [
        ("rc", can.rc),
        ("uc", can.uc),
        ("write", can.write),
        ("read", can.read),
        ("atomics", can.atomics),
        ("atomics_with_cpu", can.atomics_with_cpu),
        ("immediate", can.immediate),
        ("holds_sends", can.holds_sends),
        ("acknowledges", can.acknowledges),
        ("reports_dead_peers", can.reports_dead_peers),
        ("dma_buf", can.dma_buf),
    ];
    let ports = (1..=info.ports).map(|number| {
        let port = device.port(number)?;
        let gids = device.gid_table(number)?;
        Ok(Port {
            number,
            state: match port.state {
                PortState::Down => "down",
                PortState::Initializing => "initializing",
                PortState::Armed => "armed",
                PortState::Active => "active",
            }
            .to_string(),
            link_layer: port.link_layer.to_string(),
            mtu: port.active_mtu.bytes(),
            gigabits: None,
            gids: gids.iter().map(|entry| Gid { index: entry.index, gid: entry.gid.to_string() }).collect(),
        })
    });
    Ok(Shown {
        name: info.name.clone(),
        provider: info.provider.to_string(),
        profile: profile.map(|profile| profile.name().to_string()),
        firmware: None,
        vendor_id: None,
        vendor_part_id: None,
        queue_pairs: limits.queue_pairs,
        completion_queues: limits.completion_queues,
        completion_entries: limits.completion_entries,
        memory_regions: limits.memory_regions,
        protection_domains: limits.protection_domains,
        queue_depth: limits.queue_depth,
        frame_bytes: limits.frame,
        pieces: limits.pieces,
        inline_bytes: limits.inline_bytes,
        message_bytes: limits.message_bytes,
        registration_boundary: limits.registration.boundary,
        registration_bytes: limits.registration.max_len,
        reads_in_flight: limits.reads_in_flight,
        capabilities: capabilities.into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_string()).collect(),
        ports: ports.collect::<anyhow::Result<_>>()?,
    })
}

fn describe(found: &Found) -> String {
    let mut text = match &found.windows.problem {
        None => "windows    ranks of this host map one another's memory\n".to_string(),
        Some(problem) => format!("windows    not available: {problem}\n"),
    };
    for device in &found.attached {
        let _ = writeln!(
            text,
            "\n{} {}   --device {}, through this host's agent",
            device.provider, device.name, device.name
        );
        device.describe(&mut text);
    }
    for device in &found.devices {
        let _ = writeln!(
            text,
            "\n{} {}   --profile {}",
            device.provider,
            device.name,
            device.profile.as_deref().unwrap_or_default()
        );
        device.describe(&mut text);
    }
    found.machine.describe(&mut text);
    text
}

impl Shown {
    /// Everything below its name.
    fn describe(&self, text: &mut String) {
        let depth = match self.frame_bytes {
            Some(frame) => format!("{} frames of {frame} bytes", self.queue_depth),
            None => format!("{} requests", self.queue_depth),
        };
        let registration = match (self.registration_boundary, self.registration_bytes) {
            (None, None) => "of any size".to_string(),
            (Some(boundary), None) => format!("not across a {} GiB boundary", boundary >> 30),
            (None, Some(bytes)) => format!("up to {bytes} bytes each"),
            (Some(boundary), Some(bytes)) => {
                format!("up to {bytes} bytes each, not across a {} GiB boundary", boundary >> 30)
            }
        };
        let _ = writeln!(
            text,
            "  can        {}\n  queues     {} queue pairs of {depth}, {} completion queues of {} entries, {} protection \
             domains\n  memory     {} registrations {registration}\n  requests   {} pieces, {} bytes inline, messages up to \
             {} bytes, {} reads in flight",
            self.capabilities.join(", "),
            self.queue_pairs,
            self.completion_queues,
            self.completion_entries,
            self.protection_domains,
            self.memory_regions,
            self.pieces,
            self.inline_bytes,
            self.message_bytes,
            self.reads_in_flight,
        );
        for port in &self.ports {
            let gids: Vec<String> = port.gids.iter().map(|entry| format!("[{}] {}", entry.index, entry.gid)).collect();
            let _ = writeln!(
                text,
                "  port {}     {}, {}, MTU {}{}, GIDs {}",
                port.number,
                port.state,
                port.link_layer,
                port.mtu,
                port.gigabits.map_or_else(String::new, |gigabits| format!(", {gigabits} Gb/s")),
                if gids.is_empty() { "none".to_string() } else { gids.join(", ") }
            );
        }
    }
}
