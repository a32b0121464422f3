//! Queue pairs to probe with: made, connected and waited for.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use fulmen::parts::memory::{Exposed, Region};
use fulmen::parts::verbs::{
    Access, AckTimeout, Completion, CompletionQueue, Device, DeviceInfo, Gid, GidEntry, MemoryRegion, Mtu, Path, Piece,
    PortInfo, PortState, ProtectionDomain, QueuePair, QueuePairInit, QueuePairKind, QueuePairLimits, RemoteAddr,
    RnrTimer, Transition, select_gid,
};
use serde::{Deserialize, Serialize};

/// How long a request may take. A dead peer gives no completion at all on some devices.
const PATIENCE: Duration = Duration::from_secs(15);
/// Empty polls between two looks at the clock, when others get a turn on the processor: a peer may need this one.
const SPINS: u32 = 256;
/// 67 ms, sent again seven times: the values that measuring programs use.
const TIMEOUT: AckTimeout = AckTimeout(14);
const RETRIES: u8 = 7;
/// For ever; waits end by [`PATIENCE`].
const RNR_RETRIES: u8 = 7;
/// 0.64 ms.
const RNR_TIMER: RnrTimer = RnrTimer(12);
/// READs in flight that are worth asking for.
const READS: u8 = 16;

/// All rights that make sense on a device.
pub fn all_access(info: &DeviceInfo) -> Access {
    let can = &info.capabilities;
    let mut access = Access::LOCAL_WRITE;
    access.set(Access::REMOTE_WRITE, can.write);
    access.set(Access::REMOTE_READ, can.read);
    access.set(Access::REMOTE_ATOMIC, can.atomics);
    access
}

/// A region that the device registers whole: where the system maps it is luck, with boundaries in the address space.
pub fn region_in_one_piece(device: &dyn Device, len: usize) -> anyhow::Result<Region> {
    let rule = device.info().limits.registration;
    // Those that lie badly stay mapped, so that the next one lies elsewhere.
    let mut unfit = Vec::new();
    for _ in 0..8 {
        let region = Region::alloc(len)?;
        if region.registrations(rule).len() == 1 {
            return Ok(region);
        }
        unfit.push(region);
    }
    bail!("{} registers no {len} bytes in one piece", device.info().name)
}

/// Memory that is registered.
#[derive(Clone)]
pub struct Memory {
    pub bytes: Exposed,
    pub mr: Arc<dyn MemoryRegion>,
}

impl Memory {
    /// All of it, as a request names it.
    pub fn piece(&self) -> Piece {
        Piece { memory: self.bytes.clone(), lkey: self.mr.lkey() }
    }

    /// As a peer names it.
    pub fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.bytes.addr() as u64, rkey: self.mr.rkey() }
    }
}

/// Where an end is, for the other one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Address {
    pub device: String,
    pub port: u8,
    gid: [u8; 16],
    lid: u16,
    qp_num: u32,
    psn: u32,
    mtu: u32,
    reads_served: u8,
}

/// A queue pair with completion queues of its own.
pub struct End {
    device: Arc<dyn Device>,
    pub port: PortInfo,
    gid: GidEntry,
    psn: u32,
    pub kind: QueuePairKind,
    pub send_cq: Arc<dyn CompletionQueue>,
    pub recv_cq: Arc<dyn CompletionQueue>,
    pub qp: Arc<dyn QueuePair>,
}

impl End {
    /// A queue pair on a port, the first active one if none is named, with room for so many requests; devices that count
    /// frames give all they have.
    pub fn new(
        device: &Arc<dyn Device>,
        pd: &dyn ProtectionDomain,
        kind: QueuePairKind,
        port: Option<u8>,
        (sends, recvs): (u32, u32),
    ) -> anyhow::Result<End> {
        let info = device.info();
        let port = match port {
            Some(number) => device.port(number)?,
            None => active_port(&**device)?,
        };
        let gid = select_gid(port.link_layer, &device.gid_table(port.number)?)
            .with_context(|| format!("port {} of {}", port.number, info.name))?;
        let limits = &info.limits;
        let depth =
            |requests: u32| if limits.frame.is_some() { limits.queue_depth } else { requests.min(limits.queue_depth) };
        let (send_depth, recv_depth) = (depth(sends), depth(recvs));
        let send_cq = device.create_cq(send_depth.min(limits.completion_entries), None)?;
        let recv_cq = device.create_cq(recv_depth.min(limits.completion_entries), None)?;
        let init = QueuePairInit {
            kind,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            limits: QueuePairLimits {
                send_depth,
                recv_depth,
                send_pieces: 1,
                recv_pieces: 1,
                inline_bytes: limits.inline_bytes.min(INLINE),
            },
            signal_all: false,
            srq: None,
        };
        let qp = pd.create_qp(&init)?;
        let psn = (RandomState::new().hash_one(qp.qp_num()) & 0xff_ffff) as u32;
        Ok(End { device: device.clone(), port, gid, psn, kind, send_cq, recv_cq, qp })
    }

    /// For the other end.
    pub fn address(&self) -> Address {
        Address {
            device: self.device.info().name.clone(),
            port: self.port.number,
            gid: self.gid.gid.0,
            lid: self.port.lid,
            qp_num: self.qp.qp_num(),
            psn: self.psn,
            mtu: self.port.active_mtu.bytes(),
            reads_served: self.reads(),
        }
    }

    fn reads(&self) -> u8 {
        self.device.info().limits.reads_in_flight.min(READS)
    }

    /// The transmission unit between this end and that one, in bytes.
    pub fn mtu(&self, peer: &Address) -> u32 {
        self.port.active_mtu.bytes().min(peer.mtu)
    }

    /// RESET → INIT: from here on receives can be posted.
    pub fn init(&self) -> anyhow::Result<()> {
        let access = all_access(self.device.info());
        Ok(self.qp.modify(&Transition::Init { port: self.port.number, access })?)
    }

    /// INIT → RTR → RTS. The other end must be in INIT at least.
    pub fn connect(&self, peer: &Address) -> anyhow::Result<()> {
        let mtu = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096]
            .into_iter()
            .find(|mtu| mtu.bytes() == self.mtu(peer))
            .context("the other end named a transmission unit that there is not")?;
        let path = Path {
            remote_gid: Gid(peer.gid),
            remote_lid: peer.lid,
            local_gid_index: self.gid.index,
            remote_qp: peer.qp_num,
            mtu,
        };
        self.qp.modify(&Transition::ReadyToReceive {
            path,
            recv_psn: peer.psn,
            reads_served: self.reads(),
            min_rnr_timer: RNR_TIMER,
        })?;
        self.qp.modify(&Transition::ReadyToSend {
            send_psn: self.psn,
            timeout: TIMEOUT,
            retries: RETRIES,
            rnr_retries: RNR_RETRIES,
            reads_in_flight: self.reads().min(peer.reads_served),
        })?;
        Ok(())
    }

    /// How many requests of so many bytes the send queue and the receive queue hold.
    pub fn windows(&self, bytes: u64) -> (usize, usize) {
        let (given, limits) = (self.qp.limits(), &self.device.info().limits);
        let window =
            |depth: u32, entries: u32| (u64::from(depth) / limits.depth_of(bytes)).clamp(1, entries.into()) as usize;
        (window(given.send_depth, self.send_cq.entries()), window(given.recv_depth, self.recv_cq.entries()))
    }
}

/// Bytes inline that are worth asking for.
const INLINE: u32 = 256;

/// The first active port.
fn active_port(device: &dyn Device) -> anyhow::Result<PortInfo> {
    let info = device.info();
    for number in 1..=info.ports {
        let port = device.port(number)?;
        if port.state == PortState::Active {
            return Ok(port);
        }
    }
    bail!("no port of {} is active: connect its cable and bring its network interface up", info.name)
}

/// The kind of queue pairs that programs prefer on a device.
pub fn best_kind(info: &DeviceInfo) -> QueuePairKind {
    if info.capabilities.rc { QueuePairKind::Rc } else { QueuePairKind::Uc }
}

/// Polls until something has completed, and well.
#[inline]
pub fn poll(cq: &dyn CompletionQueue, into: &mut [Completion], what: &str) -> anyhow::Result<usize> {
    let count = cq.poll(into)?;
    let count = if count > 0 { count } else { poll_on(cq, into, what)? };
    for completion in &into[..count] {
        ensure!(completion.status.is_success(), "{what} ended with {}", completion.status);
    }
    Ok(count)
}

#[cold]
fn poll_on(cq: &dyn CompletionQueue, into: &mut [Completion], what: &str) -> anyhow::Result<usize> {
    let begun = Instant::now();
    loop {
        for _ in 0..SPINS {
            let count = cq.poll(into)?;
            if count > 0 {
                return Ok(count);
            }
        }
        let (waited, limit) = (begun.elapsed(), PATIENCE.as_secs());
        ensure!(waited < PATIENCE, "{what} did not complete within {limit} s: nothing came from the other end");
        thread::yield_now();
    }
}
