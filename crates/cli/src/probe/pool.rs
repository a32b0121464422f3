//! `mr-pool`: one registration with thousands of buffers inside.

use std::sync::Arc;

use anyhow::Context;
use fulmen::parts::memory::{self, Exposed};
use fulmen::parts::verbs::{
    Completion, Device, MemoryRegion, ProtectionDomain, QueuePairKind, RecvRequest, SendOp, SendRequest,
};

use super::answer::{Answer, Pool, Refusal, Transfer};
use super::ends::{End, Memory, all_access, poll, region_in_one_piece};
use super::pattern;
use super::worker::{Done, Voice};
use crate::machine::available_memory;

/// The smallest registration in bytes.
pub const SMALLEST: u64 = 128 << 20;
/// The largest, unless another bound is given.
const LARGEST: u64 = 2 << 30;
/// Bytes of a buffer.
const BUFFER: usize = 512 << 10;
/// So many of the first and of the last buffers are looked at.
const EDGE: usize = 3;

/// Registers, cuts and moves at every size until one is refused.
pub fn pools(voice: &Voice, device: &Arc<dyn Device>, most: Option<u64>) -> anyhow::Result<Done> {
    let most = most.unwrap_or(LARGEST);
    // Half of what there is: the registration is pinned, and others live here too.
    let bound = available_memory().map_or(most, |bytes| (bytes / 2).max(SMALLEST)).min(most);
    let (mut pools, mut wrong) = (Vec::new(), Vec::new());
    let mut bytes = SMALLEST;
    while bytes <= bound {
        let pool = one(voice, device, bytes)?;
        if let Some(refusal) = pool.refusal.as_ref().filter(|_| pools.is_empty()) {
            wrong.push(format!("not even {bytes} bytes could be registered: {}", refusal.words));
        }
        wrong.extend(pool.transfers.iter().filter_map(|transfer| {
            Some(format!("{} inside a registration of {bytes} bytes: {}", transfer.what, transfer.problem.as_ref()?))
        }));
        let last = pool.refusal.is_some() || !wrong.is_empty();
        pools.push(pool);
        if last {
            break;
        }
        bytes *= 2;
    }
    Ok(Done { answer: Some(Answer::Pools(pools)), wrong })
}

fn one(voice: &Voice, device: &Arc<dyn Device>, bytes: u64) -> anyhow::Result<Pool> {
    voice.at(&format!("registering {} MiB", bytes >> 20));
    let region = region_in_one_piece(&**device, bytes as usize)?;
    let pd = device.alloc_pd()?;
    let mr = match pd.register(&region, 0..region.len(), all_access(device.info())) {
        Ok(mr) => mr,
        Err(error) => {
            return Ok(Pool { bytes, refusal: Some(Refusal::from(&error)), buffers: 0, transfers: Vec::new() });
        }
    };
    voice.at(&format!("cutting {} MiB into buffers", bytes >> 20));
    let cutter = memory::Pool::with_rule(&region, device.info().limits.registration)?;
    let mut buffers: Vec<Exposed> =
        std::iter::from_fn(|| cutter.take(BUFFER).ok()).map(|block| block.into_exposed()).collect();
    buffers.sort_by_key(Exposed::addr);
    let room = (bytes as usize / BUFFER).saturating_sub(1);
    anyhow::ensure!(buffers.len() >= room, "{} buffers were cut out of {bytes} bytes, and not {room}", buffers.len());
    let mut transfers = Vec::new();
    for kind in [QueuePairKind::Rc, QueuePairKind::Uc] {
        if device.info().capabilities.has(kind) {
            let bench = Bench { device, pd: &*pd, mr: &mr, buffers: &buffers, kind };
            bench.run(voice, &mut transfers);
        }
    }
    Ok(Pool { bytes, refusal: None, buffers: buffers.len() as u64, transfers })
}

struct Bench<'a> {
    device: &'a Arc<dyn Device>,
    pd: &'a dyn ProtectionDomain,
    mr: &'a Arc<dyn MemoryRegion>,
    buffers: &'a [Exposed],
    kind: QueuePairKind,
}

impl Bench<'_> {
    fn run(&self, voice: &Voice, transfers: &mut Vec<Transfer>) {
        let can = &self.device.info().capabilities;
        let mut operations = vec!["SEND/RECV"];
        operations.extend((can.write && self.kind == QueuePairKind::Rc).then_some("WRITE"));
        operations.extend((can.read && self.kind == QueuePairKind::Rc).then_some("READ"));
        let ends = self.ends();
        for operation in operations {
            for (from, to) in [(0, self.buffers.len() - 1), (self.buffers.len() - 1, 0)] {
                let place = if from == 0 { "first to last" } else { "last to first" };
                let what = format!("{operation} over {}, {place} buffer", self.kind);
                voice.at(&what);
                let moved = match &ends {
                    Ok([a, b]) => self.transfer(operation, a, b, from, to),
                    Err(error) => Err(anyhow::anyhow!("{error:#}")),
                };
                let problem = moved.err().map(|error| format!("{error:#}"));
                transfers.push(Transfer { what, bytes: BUFFER as u64, problem });
            }
        }
    }

    fn ends(&self) -> anyhow::Result<[End; 2]> {
        let end = || -> anyhow::Result<End> {
            let end = End::new(self.device, self.pd, self.kind, None, (4, 4))?;
            end.init()?;
            Ok(end)
        };
        let (a, b) = (end()?, end()?);
        let (to_a, to_b) = (a.address(), b.address());
        a.connect(&to_b)
            .and_then(|()| b.connect(&to_a))
            .context("two queue pairs of the device cannot be connected")?;
        Ok([a, b])
    }

    /// Fills the buffers at both edges with patterns of their own, moves one into another, and compares them all.
    fn transfer(&self, operation: &str, a: &End, b: &End, from: usize, to: usize) -> anyhow::Result<()> {
        let last = self.buffers.len();
        let looked_at = (0..EDGE).chain(last - EDGE..last);
        // Different ones each time: what the last transfer left must not pass for this one's work.
        let seed = |index: usize| (index + 1 + last * (from + 1)) as u64 * 4 + operation.len() as u64 % 4;
        looked_at.clone().for_each(|index| pattern::write(&self.buffers[index], seed(index)));
        let memory = |index: usize| Memory { bytes: self.buffers[index].clone(), mr: self.mr.clone() };
        let (source, target) = (memory(from), memory(to));
        match operation {
            "WRITE" => {
                let op = SendOp::Write { remote: target.remote(), imm: None };
                a.qp.post_send(&[SendRequest::new(1, op, [source.piece()])])?;
            }
            "READ" => {
                let op = SendOp::Read { remote: source.remote() };
                a.qp.post_send(&[SendRequest::new(1, op, [target.piece()])])?;
            }
            _ => {
                b.qp.post_recv(&[RecvRequest::new(2, [target.piece()])])?;
                a.qp.post_send(&[SendRequest::send(1, [source.piece()])])?;
                poll(&*b.recv_cq, &mut [Completion::BLANK], "the RECV")?;
            }
        }
        poll(&*a.send_cq, &mut [Completion::BLANK], "the request")?;
        for index in looked_at {
            let wanted = if index == to { seed(from) } else { seed(index) };
            let what = format!("buffer {index} of {last}");
            pattern::check(&self.buffers[index], wanted, &what).map_err(anyhow::Error::msg)?;
        }
        Ok(())
    }
}
