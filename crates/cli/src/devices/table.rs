//! The table of docs/devices.md: what each kind of device can do, from what the code says.
//!
//! The numbers of Apple's contract come from one place: the software device's profile.

use std::fmt::Write as _;

use anyhow::Context;
use fulmen::parts::reach::Node;
use fulmen::parts::soft::{Profile, SoftDevice};
use fulmen::parts::verbs::DeviceInfo;

/// How the machine's own Thunderbolt devices stand to the profile that is named after them.
enum Hardware {
    /// As in the profile.
    Same,
    /// What the device states, and no more than the profile has.
    Capped,
    /// What the device states.
    Stated,
    /// Found out when it is opened.
    Tried,
}

/// A line: what is told, of a device in software, of other devices of the machine, and of Thunderbolt devices.
struct Row(&'static str, fn(&DeviceInfo) -> String, &'static str, Hardware);

/// The whole table.
pub fn markdown() -> anyhow::Result<String> {
    let node = Node::open().context("cannot share memory with other processes")?;
    let [rich, thunderbolt] =
        [Profile::Infiniband, Profile::Thunderbolt].map(|profile| SoftDevice::open(&node, profile));
    let (rich, thunderbolt) = (rich?, thunderbolt?);
    let mut text = format!(
        "| | soft, {} | soft, {} | the machine's InfiniBand and RoCE | the machine's Thunderbolt |\n|---|---|---|---|---|\n",
        Profile::Infiniband,
        Profile::Thunderbolt
    );
    for Row(what, show, asked, hardware) in ROWS {
        let (first, second) = (show(rich.info()), show(thunderbolt.info()));
        let last = match hardware {
            Hardware::Same => second.clone(),
            Hardware::Capped => format!("as stated, at most {second}"),
            Hardware::Stated => "as stated".to_string(),
            Hardware::Tried => "tried".to_string(),
        };
        let _ = writeln!(text, "| {what} | {first} | {second} | {asked} | {last} |");
    }
    Ok(text)
}

fn yes(there: bool) -> String {
    if there { "yes" } else { "no" }.to_string()
}

/// Bytes, in the largest unit that divides them.
fn bytes(count: u64) -> String {
    match count {
        count if count > 0 && count.is_multiple_of(1 << 30) => format!("{} GiB", count >> 30),
        count => count.to_string(),
    }
}

const ROWS: &[Row] = &[
    Row("RC queue pairs", |info| yes(info.capabilities.rc), "tried", Hardware::Tried),
    Row("UC queue pairs", |info| yes(info.capabilities.uc), "tried", Hardware::Tried),
    Row("WRITE", |info| yes(info.capabilities.write), "yes", Hardware::Same),
    Row("READ", |info| yes(info.capabilities.read), "yes", Hardware::Same),
    Row("atomics", |info| yes(info.capabilities.atomics), "`atomic_cap`", Hardware::Same),
    Row(
        "atomics that are atomic with processors",
        |info| yes(info.capabilities.atomics_with_cpu),
        "`atomic_cap` is GLOB",
        Hardware::Same,
    ),
    Row("immediate data", |info| yes(info.capabilities.immediate), "yes", Hardware::Same),
    Row("a SEND over UC waits for its RECV", |info| yes(info.capabilities.holds_sends), "no", Hardware::Same),
    Row("a completed SEND was delivered", |info| yes(info.capabilities.acknowledges), "over RC", Hardware::Same),
    Row("a dead peer is told", |info| yes(info.capabilities.reports_dead_peers), "over RC", Hardware::Same),
    Row("dma-buf registrations", |info| yes(info.capabilities.dma_buf), "tried", Hardware::Same),
    Row("queue pairs", |info| info.limits.queue_pairs.to_string(), "`max_qp`", Hardware::Capped),
    Row("completion queues", |info| info.limits.completion_queues.to_string(), "`max_cq`", Hardware::Stated),
    Row(
        "entries of a completion queue",
        |info| info.limits.completion_entries.to_string(),
        "`max_cqe`",
        Hardware::Stated,
    ),
    Row("protection domains", |info| info.limits.protection_domains.to_string(), "`max_pd`", Hardware::Stated),
    Row("registrations", |info| info.limits.memory_regions.to_string(), "`max_mr`", Hardware::Capped),
    Row(
        "bytes of a registration",
        |info| info.limits.registration.max_len.map_or_else(|| "any".to_string(), bytes),
        "`max_mr_size`",
        Hardware::Stated,
    ),
    Row(
        "no registration crosses a multiple of",
        |info| info.limits.registration.boundary.map_or_else(|| "–".to_string(), bytes),
        "–",
        Hardware::Same,
    ),
    Row(
        "depth of a queue",
        |info| match info.limits.frame {
            None => format!("{} requests", info.limits.queue_depth),
            Some(frame) => format!("{} frames of {frame} bytes", info.limits.queue_depth),
        },
        "`max_qp_wr` requests",
        Hardware::Capped,
    ),
    Row("pieces of a request", |info| info.limits.pieces.to_string(), "`max_sge`", Hardware::Same),
    Row("bytes inline", |info| info.limits.inline_bytes.to_string(), "tried", Hardware::Same),
    Row("bytes of a message", |info| bytes(info.limits.message_bytes), "`max_msg_sz` of the ports", Hardware::Capped),
    Row(
        "READs and atomics in flight",
        |info| info.limits.reads_in_flight.to_string(),
        "`max_qp_rd_atom`",
        Hardware::Same,
    ),
];
