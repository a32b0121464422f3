//! `link`: how long messages take between two processes, and how many bytes pass.
//!
//! Both ends do the same steps in the same order; [`latency`] and [`bandwidth`] are the loops that are timed. Nothing is
//! allocated in them: requests are built once and posted again and again, receives are posted before they are needed, and
//! what completes is polled for.

mod bandwidth;
mod latency;

use std::time::Duration;

use fulmen::parts::verbs::{DeviceInfo, Piece, QueuePairKind, RecvRequest, RemoteAddr, SendOp, SendRequest};
use serde::{Deserialize, Serialize};

use super::Order;
use super::answer::{Answer, Rail};
use super::ends::{Address, End, Memory, all_access, region_in_one_piece};
use super::target::Opened;
use super::worker::{Done, Voice};

/// Requests that a send queue is made for, and those that a receive queue is.
const SENDS: u32 = 128;
const RECVS: u32 = 512;
/// One request of so many completes visibly, where a device allows that.
const SIGNALED: usize = 100;
/// About how long a loop is timed.
const BUDGET: Duration = Duration::from_millis(500);

const LATENCIES: [usize; 3] = [8, 64, 4 << 10];
const BANDWIDTHS: [usize; 2] = [64 << 10, 1 << 20];
const LARGEST: usize = 1 << 20;

/// What one end tells the other before queue pairs are made.
#[derive(Serialize, Deserialize)]
struct Hello {
    rc: bool,
    write: bool,
    holds_sends: bool,
    frame: Option<u32>,
    message_bytes: u64,
}

impl Hello {
    fn new(info: &DeviceInfo) -> Hello {
        let can = &info.capabilities;
        Hello {
            rc: can.rc,
            write: can.write,
            holds_sends: can.holds_sends,
            frame: info.limits.frame,
            message_bytes: info.limits.message_bytes,
        }
    }
}

/// What one end tells the other to be connected.
#[derive(Serialize, Deserialize)]
struct Card {
    address: Address,
    /// Where WRITEs go.
    addr: u64,
    rkey: u32,
}

/// One end of the link.
struct Line<'a> {
    voice: &'a Voice,
    /// This end measures.
    near: bool,
    end: End,
    source: Memory,
    target: Memory,
    /// The other end's target.
    remote: RemoteAddr,
    /// Which requests complete visibly: one of so many.
    signaled: usize,
    inline_bytes: u32,
}

impl Line<'_> {
    /// The other end has come to the same point.
    fn meet(&self) -> anyhow::Result<()> {
        self.voice.tell(&"here")?;
        self.voice.hear::<String>().map(|_| ())
    }

    /// This end's number of rounds, or the one that it is told.
    fn agree(&self, rounds: impl FnOnce() -> usize) -> anyhow::Result<usize> {
        if !self.near {
            return self.voice.hear();
        }
        let rounds = rounds();
        self.voice.tell(&rounds)?;
        Ok(rounds)
    }

    fn piece(&self, memory: &Memory, bytes: usize) -> Piece {
        Piece { memory: memory.bytes.slice(0..bytes), lkey: memory.mr.lkey() }
    }

    /// A request out of the source.
    fn request(&self, op: SendOp, bytes: usize, signaled: bool) -> SendRequest {
        let mut request = SendRequest::new(1, op, [self.piece(&self.source, bytes)]);
        request.inline = self.goes_inline(bytes);
        request.signaled = signaled;
        request
    }

    fn goes_inline(&self, bytes: usize) -> bool {
        bytes <= self.inline_bytes as usize
    }

    /// So many receives into the target, at most as many as the queue holds.
    fn receives(&self, bytes: usize, count: usize) -> Vec<RecvRequest> {
        vec![RecvRequest::new(2, [self.piece(&self.target, bytes)]); count.min(self.end.windows(bytes as u64).1)]
    }
}

/// Measures between this end and the other.
pub fn link(voice: &Voice, opened: &Opened, order: &Order) -> anyhow::Result<Done> {
    let device = &opened.device;
    let info = device.info();
    let own = Hello::new(info);
    voice.tell(&own)?;
    let other: Hello = voice.hear()?;
    let kind = if own.rc && other.rc { QueuePairKind::Rc } else { QueuePairKind::Uc };
    anyhow::ensure!(own.frame == other.frame, "one device counts frames and the other one does not");

    voice.at("registering memory and making a queue pair");
    let region = region_in_one_piece(&**device, 2 * LARGEST)?;
    let pd = device.alloc_pd()?;
    let mr = pd.register(&region, 0..region.len(), all_access(info))?;
    let all = region.expose()?;
    // Pages are there before anything is timed.
    all.fill(0..all.len(), 1);
    let memory = |at: usize| Memory { bytes: all.slice(at..at + LARGEST), mr: mr.clone() };
    let (source, target) = (memory(0), memory(LARGEST));
    let end = End::new(device, &*pd, kind, order.port, (SENDS, RECVS))?;
    end.init()?;

    voice.at("connecting");
    let RemoteAddr { addr, rkey } = target.remote();
    voice.tell(&Card { address: end.address(), addr, rkey })?;
    let card: Card = voice.hear()?;
    end.connect(&card.address)?;
    let line = Line {
        voice,
        near: order.end == 0,
        signaled: if info.limits.frame.is_some() { 1 } else { SIGNALED },
        inline_bytes: end.qp.limits().inline_bytes,
        end,
        source,
        target,
        remote: RemoteAddr { addr: card.addr, rkey: card.rkey },
    };
    line.meet()?;

    let longest = own.message_bytes.min(other.message_bytes);
    let mut rail = Rail {
        port: line.end.port.number,
        peer: card.address.device.clone(),
        peer_port: card.address.port,
        link_layer: line.end.port.link_layer.to_string(),
        queue_pairs: kind.to_string(),
        mtu: line.end.mtu(&card.address),
        nominal_bits_per_second: opened.nominal(line.end.port.number),
        latency: Vec::new(),
        bandwidth: Vec::new(),
        left_out: Vec::new(),
    };
    for bytes in LATENCIES {
        voice.at(&format!("round trips of {bytes} bytes"));
        rail.latency.extend(latency::measure(&line, bytes)?);
    }
    let sizes = BANDWIDTHS.into_iter().filter(|bytes| *bytes as u64 <= longest);
    if kind == QueuePairKind::Rc || own.holds_sends && other.holds_sends {
        for bytes in sizes.clone() {
            voice.at(&format!("a stream of SENDs of {bytes} bytes"));
            rail.bandwidth.extend(bandwidth::sends(&line, bytes)?);
        }
    } else {
        rail.left_out.push("a stream of SENDs: over UC this device loses those that find no receive".into());
    }
    if kind == QueuePairKind::Rc && own.write && other.write {
        for bytes in sizes {
            voice.at(&format!("a stream of WRITEs of {bytes} bytes"));
            rail.bandwidth.extend(bandwidth::writes(&line, bytes)?);
        }
    } else {
        rail.left_out.push("a stream of WRITEs: there are none whose arrival is told".into());
    }
    for stream in &mut rail.bandwidth {
        stream.of_nominal = rail.nominal_bits_per_second.map(|bits| stream.bytes_per_second * 8.0 / bits as f64);
    }
    line.meet()?;
    Ok(Done { answer: line.near.then_some(Answer::Rails(vec![rail])), wrong: Vec::new() })
}
