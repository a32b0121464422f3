//! Connecting the ranks: everybody says what its device can do, then which queue pairs it made for whom.

use std::sync::Arc;
use std::time::Duration;

use fulmen_memory::{ChunkRule, Region};
use fulmen_reach::Doorbell;
use fulmen_verbs::{
    Access, AckTimeout, CompletionQueue, Device, DeviceInfo, Gid, Path, Piece, ProtectionDomain, QueuePair,
    QueuePairInit, QueuePairKind, QueuePairLimits, RnrTimer, Transition, VerbsError,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::DeviceError;
use super::frames::{Frames, Guard};
use super::hub::Hub;
use super::memory::Registered;
use super::moves::Moves;
use super::plan::{Offer, Plan};
use super::port::{self, Port};
use super::rail::{Pairs, Parts, Rail};
use super::rdma::{self, Rdma, RdmaPairs, Registrar};
use crate::StartError;
use crate::bootstrap::Session;
use crate::engine::Config;
use crate::options::{FabricOptions, Flow};

/// Sequence numbers of packets have 24 bits.
const PSN_MASK: u32 = (1 << 24) - 1;
/// 67 ms, seven times again: a peer that does not answer is gone after half a second.
const TIMEOUT: AckTimeout = AckTimeout(14);
const RETRIES: u8 = 7;
/// For ever: credits see to it that a RECV is posted, sooner or later.
const RNR_RETRIES: u8 = 7;
/// 0.64 ms.
const RNR_TIMER: RnrTimer = RnrTimer(12);

/// Rank `rank`'s ends of the links to all others.
pub(crate) struct Rails {
    pub(crate) hub: Arc<Hub>,
    /// By rank.
    pub(crate) rails: Vec<Option<(Config, Rail)>>,
    /// How the pool is to be cut, so that each of its blocks lies in one registration.
    pub(crate) rule: ChunkRule,
    /// The pool.
    pub(crate) registered: Arc<Registered>,
    /// For memory that is shared later.
    pub(crate) registrar: Registrar,
}

/// One queue pair of a link, as its rank tells the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct End {
    number: u32,
    /// The first sequence number that it sends.
    psn: u32,
}

/// The queue pairs that a rank made for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Ends {
    frames: End,
    moves: End,
    /// For one-sided operations: the one on which it asks, and the one on which it is asked.
    rdma: Option<(End, End)>,
}

/// What is there before anything of the others is known.
struct Prepared {
    port: Port,
    domain: Arc<dyn ProtectionDomain>,
    registered: Arc<Registered>,
}

/// What is there before the queue pairs are connected.
struct Made {
    hub: Arc<Hub>,
    links: Vec<Option<(Plan, Rail, Both)>>,
}

/// The queue pairs of a link, to be connected.
struct Both {
    pairs: Pairs,
    rdma: Option<[Arc<dyn QueuePair>; 2]>,
}

/// What peers may do through a queue pair, and how many READs and atomics at a time.
#[derive(Clone, Copy)]
struct Service {
    access: Access,
    reads: u8,
}

/// SEND and RECV.
const MESSAGES: Service = Service { access: Access::LOCAL_WRITE, reads: 0 };

/// Connects all ranks over their devices; the pool's memory is registered. Collective, two rounds. All that is left then is
/// that everybody hears whether all succeeded; frames may be sent after that.
pub(crate) fn connect(
    session: &Session,
    devices: &[Arc<dyn Device>],
    pool: &Region,
    options: &FabricOptions,
    bell: Doorbell,
    left: impl Fn() -> Duration,
) -> Result<Rails, StartError> {
    let rank = session.rank();
    let (prepared, offers) = tell(session, prepare(session, devices, pool), left())?;
    let (made, ends) = tell(session, make(session, &prepared, &offers, options, bell), left())?;
    let Made { hub, links } = made;
    let mut rails = Vec::with_capacity(links.len());
    for ((peer, link), offer) in (0_u32..).zip(links).zip(&offers) {
        let Some((plan, mut rail, both)) = link else {
            rails.push(None);
            continue;
        };
        let own = ends_for(&ends, rank, peer)?;
        let theirs = ends_for(&ends, peer, rank)?;
        let bring_up = |pair: &Arc<dyn QueuePair>, own, theirs, service| {
            bring_up(&prepared.port, &plan, peer, offer, &**pair, (own, theirs), service)
        };
        bring_up(&both.pairs.frames, own.frames, theirs.frames, MESSAGES)?;
        both.pairs.moves.iter().try_for_each(|pair| bring_up(pair, own.moves, theirs.moves, MESSAGES))?;
        match (&both.rdma, own.rdma, theirs.rdma) {
            (Some([out, into]), Some(own), Some(theirs)) => {
                let reads = offer.reads.min(offers[rank as usize].reads);
                let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
                bring_up(out, own.0, theirs.1, Service { reads, ..MESSAGES })?;
                bring_up(into, own.1, theirs.0, Service { access: Access::LOCAL_WRITE | remote, reads })?;
            }
            _ => rail.leave_rdma(),
        }
        let info = prepared.port.device.info();
        rail.open().map_err(|refused| call(info, "post the first receives")(refused.cause))?;
        rails.push(Some((plan.config(&options.flow), rail)));
    }
    let rule = prepared.port.device.info().limits.registration;
    let registrar = Registrar::new(prepared.domain, prepared.port.device.info());
    Ok(Rails { hub, rails, rule, registered: prepared.registered, registrar })
}

fn ends_for(all: &[Vec<Option<Ends>>], from: u32, to: u32) -> Result<Ends, StartError> {
    all[from as usize].get(to as usize).copied().flatten().ok_or(StartError::Garbled { rank: from })
}

/// Tells everybody what came of this rank's part, and hears it from all: one rank's failure is everybody's.
fn tell<L, M: Serialize + DeserializeOwned>(
    session: &Session,
    part: Result<(L, M), DeviceError>,
    timeout: Duration,
) -> Result<(L, Vec<M>), StartError> {
    let said: Result<&M, String> = part.as_ref().map(|(_, said)| said).map_err(ToString::to_string);
    let bytes = postcard::to_stdvec(&said).expect("a vector takes what is written to it");
    let blobs = session.all_gather(&bytes, timeout);
    let (local, _) = part?;
    let read = |(rank, blob): (u32, Vec<u8>)| match postcard::from_bytes::<Result<M, String>>(&blob) {
        Ok(Ok(said)) => Ok(said),
        Ok(Err(problem)) => Err(StartError::PeerFailed { rank, problem }),
        Err(_) => Err(StartError::Garbled { rank }),
    };
    Ok((local, (0..).zip(blobs?).map(read).collect::<Result<_, _>>()?))
}

fn call<'a>(info: &'a DeviceInfo, what: &'static str) -> impl Fn(VerbsError) -> DeviceError + 'a {
    move |cause| DeviceError::Call { device: info.name.clone(), what, cause: Box::new(cause) }
}

fn prepare(session: &Session, devices: &[Arc<dyn Device>], pool: &Region) -> Result<(Prepared, Offer), DeviceError> {
    let port = port::choose(devices)?;
    let device = port.device.clone();
    let info = device.info();
    let ranks = session.size();
    room(info, "queue pairs", info.limits.queue_pairs.into(), 2 * u64::from(ranks - 1), ranks)?;
    // One more, at least, for frames.
    let needed = pool.registrations(info.limits.registration).len() as u64 + 1;
    let limit = u64::from(info.limits.memory_regions);
    if needed > limit {
        return Err(DeviceError::Registrations { device: info.name.clone(), needed, limit });
    }
    let domain = device.alloc_pd().map_err(call(info, "make a protection domain"))?;
    let registered = Registered::new(&*domain, info, pool).map_err(call(info, "register the pool"))?;
    let offer = Offer::new(info, session.generation(), port.gid.gid.0, port.mtu);
    Ok((Prepared { port, domain, registered: Arc::new(registered) }, offer))
}

/// Refuses more ranks than there is room for, before anything is made.
fn room(info: &DeviceInfo, what: &'static str, limit: u64, needed: u64, ranks: u32) -> Result<(), DeviceError> {
    if needed <= limit {
        return Ok(());
    }
    Err(DeviceError::TooManyRanks { device: info.name.clone(), what, limit, needed, ranks })
}

fn make(
    session: &Session,
    prepared: &Prepared,
    offers: &[Offer],
    options: &FabricOptions,
    bell: Doorbell,
) -> Result<(Made, Vec<Option<Ends>>), DeviceError> {
    let Prepared { port, domain, registered } = prepared;
    let flow = &options.flow;
    let (rank, device) = (session.rank(), &port.device);
    let info = device.info();
    let own = &offers[rank as usize];
    let mut plans = Vec::with_capacity(offers.len());
    for (peer, offer) in (0..).zip(offers) {
        if offer.generation != session.generation() {
            return Err(DeviceError::Generation { peer });
        }
        let plan = if peer == rank { None } else { Some(Plan::new(options, own, offer, peer)?) };
        plans.push(plan);
    }
    let messages = |plan: &Plan| plan.receives(flow) + plan.sends() + 2 * plan.chunks as usize;
    let all: usize = plans.iter().flatten().map(messages).sum();
    let most = u64::from(info.limits.completion_entries);
    room(info, "entries in a completion queue", most, all as u64, session.size())?;
    let one_sided = rdma::REQUESTS * rdma::DEPTH;
    let peers = plans.iter().flatten().count();
    // Where there is no room for them, all goes over the links' other queue pairs; and where data is to be verified, since
    // what a device writes and reads has no checksum.
    let asks = !options.verify_data
        && !rdma::verbs(&info.capabilities).is_empty()
        && u64::from(info.limits.queue_pairs) >= 4 * peers as u64
        && info.limits.queue_depth as usize >= one_sided
        && most >= (all + peers * one_sided) as u64;
    let extra = if asks { one_sided } else { 0 };
    let entries = |plan: &Plan| messages(plan) + extra;
    let all = all + peers * extra;

    let channel = device.create_channel().map_err(call(info, "make a completion channel"))?;
    let queue = device.create_cq(all as u32, Some(&channel)).map_err(call(info, "make a completion queue"))?;
    let longest = plans.iter().flatten().map(entries).max().unwrap_or(0);
    let hub = Arc::new(Hub::new(queue.clone(), channel, bell, session.size(), longest));
    let mut places = Places::new(&**domain, info, &plans, flow, if asks { rdma::DEPTH } else { 0 })?;

    let name: Arc<str> = info.name.as_str().into();
    let (mut links, mut ends) = (Vec::with_capacity(plans.len()), Vec::with_capacity(plans.len()));
    for (peer, plan) in (0..).zip(plans) {
        let Some(plan) = plan else {
            links.push(None);
            ends.push(None);
            continue;
        };
        let asks = asks && offers[peer as usize].verbs != 0;
        let (both, made) = make_pairs(&**domain, info, &queue, &plan, flow, asks)?;
        let rdma = match &both.rdma {
            Some([out, into]) => {
                let pairs = RdmaPairs { out: out.clone(), into: into.clone() };
                let cells = places.cut(rdma::CELL, rdma::DEPTH)?;
                Some(Rdma::new(peer, info, pairs, cells, (registered.clone(), places.registered.clone())))
            }
            None => None,
        };
        let recvs = places.cut(plan.frame as usize, plan.receives(flow))?;
        let sends = places.cut(plan.frame as usize, plan.sends())?;
        let guard = Guard::new(&plan, session.generation(), options.silence);
        let rail = Rail::new(Parts {
            peer,
            device: name.clone(),
            hub: hub.clone(),
            pairs: both.pairs.clone(),
            frames: Frames::new(peer, recvs, sends, guard, places.registered.clone()),
            moves: Moves::new(registered.clone(), peer, &plan),
            rdma,
            registered: registered.clone(),
            rendezvous: flow.rendezvous.max(1),
            patience: options.silence,
            entries: entries(&plan),
        });
        links.push(Some((plan, rail, both)));
        ends.push(Some(made));
    }
    Ok((Made { hub, links }, ends))
}

fn make_pairs(
    domain: &dyn ProtectionDomain,
    info: &DeviceInfo,
    queue: &Arc<dyn CompletionQueue>,
    plan: &Plan,
    flow: &Flow,
    asks: bool,
) -> Result<(Both, Ends), DeviceError> {
    let make = |send_depth: u64, recv_depth: u64| {
        let limits = QueuePairLimits {
            send_depth: send_depth as u32,
            recv_depth: recv_depth as u32,
            send_pieces: 1,
            recv_pieces: 1,
            inline_bytes: 0,
        };
        let (send_cq, recv_cq) = (queue.clone(), queue.clone());
        let init = QueuePairInit { kind: plan.kind, send_cq, recv_cq, limits, signal_all: false };
        let pair = domain.create_qp(&init).map_err(call(info, "make a queue pair"))?;
        // The system may give less than it was asked for.
        let given = pair.limits();
        for (needed, limit) in [(send_depth, given.send_depth.into()), (recv_depth, given.recv_depth.into())] {
            if needed > limit {
                return Err(DeviceError::Depth { device: info.name.clone(), needed, limit });
            }
        }
        let psn = getrandom::u32().map_err(DeviceError::Random)? & PSN_MASK;
        let end = End { number: pair.qp_num(), psn };
        Ok((pair, end))
    };
    let frame = info.limits.depth_of(plan.frame.into());
    let chunks = info.limits.depth_of(plan.chunk) * u64::from(plan.chunks);
    let (frames, frames_end) = make(plan.sends() as u64 * frame, plan.receives(flow) as u64 * frame)?;
    let (moves, moves_end) = make(chunks, chunks)?;
    let mut rdma = None;
    if asks && plan.kind == QueuePairKind::Rc {
        let (out, out_end) = make((rdma::REQUESTS * rdma::DEPTH) as u64, 1)?;
        let (into, into_end) = make(1, 1)?;
        rdma = Some(([out, into], (out_end, into_end)));
    }
    let (pairs, ends) = rdma.unzip();
    let both = Both { pairs: Pairs { frames, moves: Some(moves) }, rdma: pairs };
    Ok((both, Ends { frames: frames_end, moves: moves_end, rdma: ends }))
}

/// Takes a queue pair from RESET to RTS.
fn bring_up(
    port: &Port,
    plan: &Plan,
    peer: u32,
    offer: &Offer,
    pair: &dyn QueuePair,
    (own, theirs): (End, End),
    service: Service,
) -> Result<(), DeviceError> {
    let path =
        Path { remote_gid: Gid(offer.gid), local_gid_index: port.gid.index, remote_qp: theirs.number, mtu: plan.mtu };
    let steps = [
        Transition::Init { port: port.number, access: service.access },
        Transition::ReadyToReceive {
            path,
            recv_psn: theirs.psn,
            reads_served: service.reads,
            min_rnr_timer: RNR_TIMER,
        },
        Transition::ReadyToSend {
            send_psn: own.psn,
            timeout: TIMEOUT,
            retries: RETRIES,
            rnr_retries: RNR_RETRIES,
            reads_in_flight: service.reads,
        },
    ];
    for step in steps {
        pair.modify(&step).map_err(|cause| DeviceError::Connect {
            device: port.device.info().name.clone(),
            qp: own.number,
            peer,
            peer_device: offer.device.clone(),
            peer_qp: theirs.number,
            state: step.target(),
            cause: Box::new(cause),
        })?;
    }
    Ok(())
}

/// Memory for the frames of all links: one region, cut into places that each lie in one registration.
struct Places {
    region: Region,
    registered: Arc<Registered>,
    /// The rest of the pieces that the device registers.
    pieces: Vec<std::ops::Range<usize>>,
}

impl Places {
    /// Places start at multiples of this, so that no two share a cache line.
    const GRAIN: usize = 64;

    fn new(
        domain: &dyn ProtectionDomain,
        info: &DeviceInfo,
        plans: &[Option<Plan>],
        flow: &Flow,
        cells: usize,
    ) -> Result<Places, DeviceError> {
        let rule: ChunkRule = info.limits.registration;
        let each = |plan: &Plan| (plan.frame as usize).next_multiple_of(Self::GRAIN);
        let of = |plan: &Plan| (plan.receives(flow) + plan.sends()) * each(plan) + cells * Self::GRAIN;
        let len: usize = plans.iter().flatten().map(of).sum();
        let longest = plans.iter().flatten().map(each).max().unwrap_or(0);
        // The end of each piece may be too short for one more place.
        let spare = (rule.pieces(0, len).len() + 1) * longest;
        let region = Region::alloc((len + spare).max(1)).map_err(|cause| DeviceError::Memory(cause.to_string()))?;
        let registered =
            Registered::new(domain, info, &region).map_err(call(info, "register the memory for frames"))?;
        let mut pieces = region.registrations(rule);
        pieces.reverse();
        Ok(Places { region, registered: Arc::new(registered), pieces })
    }

    fn cut(&mut self, len: usize, count: usize) -> Result<Vec<Piece>, DeviceError> {
        let memory = self.region.expose().map_err(|cause| DeviceError::Memory(cause.to_string()))?;
        let mut places = Vec::with_capacity(count);
        while places.len() < count {
            let full = || DeviceError::Memory("the device registers pieces shorter than frames".into());
            let piece = self.pieces.last_mut().ok_or_else(full)?;
            let start = piece.start.next_multiple_of(Self::GRAIN);
            if start + len > piece.end {
                self.pieces.pop();
                continue;
            }
            piece.start = start + len;
            let memory = memory.slice(start..start + len);
            let lkey = self.registered.key(&memory).ok_or_else(full)?;
            places.push(Piece { memory, lkey });
        }
        Ok(places)
    }
}
