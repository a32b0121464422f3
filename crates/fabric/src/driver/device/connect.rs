//! Connecting the ranks: everybody says which devices it has and what they can do, then which queue pairs it made for whom.

use std::sync::Arc;
use std::time::Duration;

use fulmen_memory::{ChunkRule, Region};
use fulmen_reach::Doorbell;
use fulmen_verbs::{
    CompletionChannel, CompletionQueue, Device, DeviceInfo, ProtectionDomain, QueuePair, QueuePairInit, QueuePairKind,
    QueuePairLimits, VerbsError,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::bring_up::{Course, End, Ends, Service};
use super::error::{DeviceError, call};
use super::frames::{Frames, Guard};
use super::hub::Hub;
use super::info::RailInfo;
use super::memory::Registered;
use super::moves::Moves;
use super::needs::{ONE_SIDED, messages};
use super::offer::{Offer, Said};
use super::places::Places;
use super::plan::Plan;
use super::port::Port;
use super::rail::{Pairs, Parts, Rail};
use super::rdma::{self, Rdma, RdmaPairs, Registrar};
use super::route;
use crate::bootstrap::Session;
use crate::driver::relay::Mesh;
use crate::engine::{Config, Rights};
use crate::options::{FabricOptions, Flow};
use crate::topology::Graph;
use crate::{Cables, StartError};

/// Rank `rank`'s ends of the links to all others.
pub(crate) struct Rails {
    pub(crate) hub: Arc<Hub>,
    /// By rank.
    pub(crate) rails: Vec<Option<(Config, Rail, RailInfo)>>,
    /// How the pool is to be cut, so that each of its blocks lies in one registration of every device.
    pub(crate) rule: ChunkRule,
    /// The pool, for each device.
    pub(crate) registered: Vec<Arc<Registered>>,
    /// For memory that is shared later.
    pub(crate) registrar: Registrar,
    /// Which ranks have no link, since no cable joins them, and what those between carry.
    pub(crate) mesh: Mesh,
}

/// What links run over, as the program gave it.
pub(crate) struct Given<'a> {
    pub devices: &'a [Arc<dyn Device>],
    pub cables: Option<&'a Cables>,
}

/// A device that links run over.
struct Adapter {
    port: Port,
    /// What this rank said about it.
    number: u32,
    domain: Arc<dyn ProtectionDomain>,
    pool: Arc<Registered>,
    queue: Arc<dyn CompletionQueue>,
    places: Places,
    /// Whether it has room for one-sided operations.
    asks: bool,
}

/// A link that is to be.
struct Way {
    peer: u32,
    /// The offers between which it runs.
    here: u32,
    there: u32,
    plan: Plan,
}

/// What is there before the queue pairs are connected.
struct Made {
    hub: Arc<Hub>,
    registered: Vec<Arc<Registered>>,
    registrar: Registrar,
    links: Vec<(Way, Rail, Both)>,
}

/// The queue pairs of a link, to be connected.
struct Both {
    pairs: Pairs,
    rdma: Option<[Arc<dyn QueuePair>; 2]>,
}

/// Connects all ranks over their devices; the pool's memory is registered. Collective, two rounds. All that is left then is
/// that everybody hears whether all succeeded; frames may be sent after that.
pub(crate) fn connect(
    session: &Session,
    given: &Given<'_>,
    pool: &Region,
    options: &FabricOptions,
    bell: Doorbell,
    left: impl Fn() -> Duration,
) -> Result<Rails, StartError> {
    let rank = session.rank();
    // The rest of the time is for the others to hear what came of it.
    let patience = options.port_wait.min(left() / 2);
    let (ports, said) = tell(session, look(session, given, patience), left())?;
    // Those that are given and not those that are used, so that a pool serves the next generation as well.
    let rule = given.devices.iter().fold(ChunkRule::NONE, |rule, device| rule.and(device.info().limits.registration));
    let made = mesh(&said, given.cables.is_some(), &options.flow).and_then(|mesh| {
        let (made, ends) = make(session, ports, (&said, &mesh), (pool, rule), options, bell)?;
        Ok(((made, mesh), ends))
    });
    let ((made, mesh), ends) = tell(session, made, left())?;
    let Made { hub, registered, registrar, links } = made;
    let mut rails: Vec<_> = (0..session.size()).map(|_| None).collect();
    for (way, mut rail, both) in links {
        let own = ends_for(&ends, rank, way.peer)?;
        let theirs = ends_for(&ends, way.peer, rank)?;
        let course = way.course(rank, &said);
        theirs.check(course.there, way.peer)?;
        course.bring_up(&*both.pairs.frames, (own.frames, theirs.frames), Service::MESSAGES)?;
        let moves = |pair: &Arc<dyn QueuePair>| course.bring_up(&**pair, (own.moves, theirs.moves), Service::MESSAGES);
        both.pairs.moves.iter().try_for_each(moves)?;
        let one_sided = match (&both.rdma, own.rdma, theirs.rdma) {
            (Some([out, into]), Some(own), Some(theirs)) => {
                let verbs = Rights::from_bits_truncate(course.here.verbs);
                course.bring_up(&**out, (own.0, theirs.1), Service::asks(&way.plan))?;
                course.bring_up(&**into, (own.1, theirs.0), Service::is_asked(&way.plan, verbs))?;
                true
            }
            _ => {
                rail.leave_rdma();
                false
            }
        };
        let carrier = both.pairs.frames.carrier();
        rail.carried_by(carrier, &options.flow);
        rail.open().map_err(|refused| course.unopened(&refused))?;
        let info = RailInfo {
            here: Course::end(course.here, own.frames.number),
            there: Course::end(course.there, theirs.frames.number),
            kind: way.plan.kind,
            carrier,
            mtu: way.plan.mtu,
            one_sided,
        };
        rails[way.peer as usize] = Some((way.plan.config(&options.flow), rail, info));
    }
    Ok(Rails { hub, rails, rule, registered, registrar, mesh })
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

/// Finds the devices that links may run over.
fn look(session: &Session, given: &Given<'_>, patience: Duration) -> Result<(Vec<Port>, Said), DeviceError> {
    let survey = route::survey((session.rank(), session.members()), given.devices, given.cables, patience)?;
    let offers = survey.ports.iter().map(Offer::new).collect();
    Ok((survey.ports, Said { generation: session.generation(), offers, leads: survey.leads }))
}

/// Who has a link with whom. Where cables decide that, all of them are looked at; else all links run over one device.
fn mesh(said: &[Said], cabled: bool, flow: &Flow) -> Result<Mesh, DeviceError> {
    let size = said.len() as u32;
    let graph = if cabled {
        let row = |said: &Said| (0..size).map(|peer| said.names(peer)).collect();
        Graph::of_devices(&said.iter().map(row).collect::<Vec<_>>())?
    } else {
        Graph::complete(size)
    };
    let of = |offer: &Offer| u64::from(offer.frame.unwrap_or(u32::MAX)).min(offer.message_bytes);
    let frame = said.iter().flat_map(|said| &said.offers).map(of).min().unwrap_or(u64::MAX);
    Ok(Mesh::new(graph, frame.min(flow.frame.into()) as usize))
}

impl Way {
    fn new(options: &FabricOptions, rank: u32, peer: u32, said: &[Said]) -> Result<Way, DeviceError> {
        let (ours, theirs) = (&said[rank as usize], &said[peer as usize]);
        if theirs.generation != ours.generation {
            return Err(DeviceError::Generation { peer });
        }
        let (here, there) = route::route(rank, peer, said)?;
        let unknown = DeviceError::Unsaid { peer };
        let (Some(ours), Some(theirs)) = (ours.offer(here), theirs.offer(there)) else { return Err(unknown) };
        let plan = Plan::new(options, ours, theirs, peer)?;
        if plan.kind == QueuePairKind::Uc {
            tell_of_uc(ours, theirs, peer);
        }
        Ok(Way { peer, here, there, plan })
    }

    fn course<'a>(&'a self, rank: u32, said: &'a [Said]) -> Course<'a> {
        Course {
            peer: self.peer,
            plan: &self.plan,
            here: &said[rank as usize].offers[self.here as usize],
            there: &said[self.peer as usize].offers[self.there as usize],
        }
    }
}

/// Never silent: one end could do better.
fn tell_of_uc(ours: &Offer, theirs: &Offer, peer: u32) {
    let (device, peer_device) = (&*ours.device, &*theirs.device);
    if ours.reliable == theirs.reliable {
        tracing::info!(rank = peer, device, peer_device, "the link runs over UC: neither device has RC");
    } else {
        let lacks = if ours.reliable { peer_device } else { device };
        tracing::warn!(rank = peer, device, peer_device, lacks, "the link runs over UC, since one device has no RC");
    }
}

/// Refuses more ranks than there is room for, before anything is made.
fn room(info: &DeviceInfo, what: &'static str, limit: u64, needed: u64, ranks: u32) -> Result<(), DeviceError> {
    if needed <= limit {
        return Ok(());
    }
    Err(DeviceError::TooManyRanks { device: info.name.clone(), what, limit, needed, ranks })
}

/// Whether the device has room for one-sided operations of `links` links, with so many completions in all. It is logged if
/// it has not.
fn has_room(info: &DeviceInfo, completions: u64, links: u64) -> bool {
    let limits = &info.limits;
    let needs = [
        ("queue pairs", limits.queue_pairs, 4 * links),
        ("requests in a queue", limits.queue_depth, ONE_SIDED as u64),
        ("entries in a completion queue", limits.completion_entries, completions),
    ];
    let Some((what, limit, needed)) = needs.into_iter().find(|(_, limit, needed)| u64::from(*limit) < *needed) else {
        return true;
    };
    tracing::warn!(
        device = &*info.name,
        needed,
        limit,
        "one-sided operations go over links, since the device has too few {what}: start fewer ranks, or give another device"
    );
    false
}

fn make(
    session: &Session,
    ports: Vec<Port>,
    (said, mesh): (&[Said], &Mesh),
    pool: (&Region, ChunkRule),
    options: &FabricOptions,
    bell: Doorbell,
) -> Result<(Made, Vec<Option<Ends>>), DeviceError> {
    let flow = &options.flow;
    let rank = session.rank();
    let mut ways = Vec::with_capacity(said.len());
    for peer in (0..session.size()).filter(|peer| mesh.graph.is_joined(rank, *peer)) {
        ways.push(Way::new(options, rank, peer, said)?);
    }
    let (mut adapters, mut told) = (Vec::new(), Vec::new());
    let mut inboxes = vec![None; said.len()];
    for (number, port) in (0_u32..).zip(ports) {
        let over: Vec<&Way> = ways.iter().filter(|way| way.here == number).collect();
        if over.is_empty() {
            continue;
        }
        let (adapter, channel) = Adapter::new(number, port, &over, pool, options)?;
        for way in over {
            inboxes[way.peer as usize] = Some((adapters.len(), adapter.entries(&way.plan, flow)));
        }
        told.push((adapter.queue.clone(), channel));
        adapters.push(adapter);
    }
    let hub = Arc::new(Hub::new(told, &inboxes, bell).map_err(DeviceError::Thread)?);

    let (mut links, mut ends) = (Vec::with_capacity(ways.len()), vec![None; said.len()]);
    for way in ways {
        let adapter = adapters.iter_mut().find(|adapter| adapter.number == way.here).expect("one for each way");
        let info = adapter.port.device.info();
        let theirs = way.course(rank, said).there;
        let asks = adapter.asks && theirs.verbs != 0;
        let (both, made) = make_pairs(adapter, &way, flow, asks)?;
        let (pool, frames) = (adapter.pool.clone(), adapter.places.registered.clone());
        let rdma = match &both.rdma {
            Some([out, into]) => {
                let pairs = RdmaPairs { out: out.clone(), into: into.clone(), there: way.there };
                let cells = adapter.places.cut(rdma::CELL, rdma::DEPTH)?;
                Some(Rdma::new(way.peer, info, pairs, cells, (pool.clone(), frames.clone())))
            }
            None => None,
        };
        let plan = &way.plan;
        let recvs = adapter.places.cut(plan.frame as usize, plan.receives(flow))?;
        let sends = adapter.places.cut(plan.frame as usize, plan.sends())?;
        let guard = Guard::new(plan, session.generation(), options.silence);
        let rail = Rail::new(Parts {
            peer: way.peer,
            device: info.name.as_str().into(),
            hub: hub.clone(),
            pairs: both.pairs.clone(),
            frames: Frames::new(way.peer, recvs, sends, guard, frames),
            moves: Moves::new(pool.clone(), way.peer, plan),
            rdma,
            registered: pool,
            patience: options.silence,
            entries: adapter.entries(plan, flow),
        });
        ends[way.peer as usize] = Some(made);
        links.push((way, rail, both));
    }
    let registered = adapters.iter().map(|adapter| adapter.pool.clone()).collect();
    let domain = |adapter: Adapter| (adapter.number, adapter.domain, adapter.port.device.info().clone());
    let registrar = Registrar::new(adapters.into_iter().map(domain).collect());
    Ok((Made { hub, registered, registrar, links }, ends))
}

impl Adapter {
    /// For the links `over` it.
    fn new(
        number: u32,
        port: Port,
        over: &[&Way],
        (pool, rule): (&Region, ChunkRule),
        options: &FabricOptions,
    ) -> Result<(Adapter, Arc<dyn CompletionChannel>), DeviceError> {
        let (device, flow) = (port.device.clone(), &options.flow);
        let (info, ranks) = (device.info(), over.len() as u32 + 1);
        let limits = &info.limits;
        room(info, "queue pairs", limits.queue_pairs.into(), 2 * over.len() as u64, ranks)?;
        // One more, at least, for frames.
        let (needed, limit) = (pool.registrations(rule).len() as u64 + 1, u64::from(limits.memory_regions));
        if needed > limit {
            return Err(DeviceError::Registrations { device: info.name.clone(), needed, limit });
        }
        let all: usize = over.iter().map(|way| messages(&way.plan, flow)).sum();
        let most = u64::from(limits.completion_entries);
        room(info, "entries in a completion queue", most, all as u64, ranks)?;
        let one_sided = over.len() * ONE_SIDED;
        // Where there is no room for them, all goes over the links' other queue pairs; and where data is to be verified,
        // since what a device writes and reads has no checksum.
        let asks = !options.verify_data
            && !rdma::verbs(&info.capabilities).is_empty()
            && over.iter().any(|way| way.plan.is_reliable())
            && has_room(info, (all + one_sided) as u64, over.len() as u64);
        let all = all + if asks { one_sided } else { 0 };

        let domain = device.alloc_pd().map_err(call(&info.name, "make a protection domain"))?;
        let pool = Registered::new(&*domain, rule, pool).map_err(call(&info.name, "register the pool"))?;
        let channel = device.create_channel().map_err(call(&info.name, "make a completion channel"))?;
        let queue = device.create_cq(all as u32, Some(&channel));
        let queue = queue.map_err(call(&info.name, "make a completion queue"))?;
        let plans: Vec<_> = over.iter().map(|way| &way.plan).collect();
        let places = Places::new(&*domain, info, &plans, flow, if asks { rdma::DEPTH } else { 0 })?;
        Ok((Adapter { port, number, domain, pool: Arc::new(pool), queue, places, asks }, channel))
    }

    /// Completions of a link that can wait.
    fn entries(&self, plan: &Plan, flow: &Flow) -> usize {
        messages(plan, flow) + if self.asks { ONE_SIDED } else { 0 }
    }
}

fn make_pairs(adapter: &Adapter, way: &Way, flow: &Flow, asks: bool) -> Result<(Both, Ends), DeviceError> {
    let (info, plan) = (adapter.port.device.info(), &way.plan);
    let make = |send_depth: u64, recv_depth: u64| {
        let limits = QueuePairLimits {
            send_depth: send_depth as u32,
            recv_depth: recv_depth as u32,
            send_pieces: 1,
            recv_pieces: 1,
            inline_bytes: 0,
        };
        let (send_cq, recv_cq) = (adapter.queue.clone(), adapter.queue.clone());
        let init = QueuePairInit { kind: plan.kind, send_cq, recv_cq, limits, signal_all: false, srq: None };
        let pair = adapter.domain.create_qp(&init).map_err(|cause| match cause {
            VerbsError::NoSuchKind { device, kind } => DeviceError::Refuses { device, kind, peer: way.peer },
            cause => call(&info.name, "make a queue pair")(cause),
        })?;
        // The system may give less than it was asked for.
        let given = pair.limits();
        for (needed, limit) in [(send_depth, given.send_depth.into()), (recv_depth, given.recv_depth.into())] {
            if needed > limit {
                return Err(DeviceError::Depth { device: info.name.clone(), needed, limit });
            }
        }
        let end = End::new(&*pair)?;
        Ok((pair, end))
    };
    let frame = info.limits.depth_of(plan.frame.into());
    let chunks = info.limits.depth_of(plan.chunk) * u64::from(plan.chunks);
    let (frames, frames_end) = make(plan.sends() as u64 * frame, plan.receives(flow) as u64 * frame)?;
    let (moves, moves_end) = make(chunks, chunks)?;
    let mut rdma = None;
    if asks && plan.kind == QueuePairKind::Rc {
        let (out, out_end) = make(ONE_SIDED as u64, 1)?;
        let (into, into_end) = make(1, 1)?;
        rdma = Some(([out, into], (out_end, into_end)));
    }
    let (pairs, ends) = rdma.unzip();
    let both = Both { pairs: Pairs { frames, moves: Some(moves) }, rdma: pairs };
    Ok((both, Ends { frames: frames_end, moves: moves_end, rdma: ends }))
}

#[cfg(test)]
mod tests {
    use super::super::offer::tests::offer;
    use super::*;

    fn said(generation: u64, leads: Vec<Option<u32>>) -> Said {
        Said { generation, offers: vec![offer(true, None)], leads: vec![leads.clone(), leads] }
    }

    fn way(theirs: Said) -> Result<Way, DeviceError> {
        Way::new(&FabricOptions::default(), 0, 1, &[said(7, vec![Some(0)]), theirs])
    }

    #[test]
    fn a_rank_of_another_run_is_refused() {
        assert!(way(said(7, vec![Some(0)])).is_ok());
        let text = way(said(8, vec![Some(0)])).err().unwrap().to_string();
        assert!(text.contains("rank 1") && text.contains("another run"), "{text}");
    }

    #[test]
    fn a_rank_that_names_devices_of_which_it_says_nothing_is_refused() {
        assert!(matches!(way(said(7, vec![Some(1)])), Err(DeviceError::Unsaid { peer: 1 })));
        assert!(matches!(way(said(7, vec![])), Err(DeviceError::NoCommonCable { peer: 1, .. })));
        let silent = Said { leads: vec![], ..said(7, vec![]) };
        assert!(matches!(way(silent), Err(DeviceError::NoCommonCable { peer: 1, .. })));
    }

    #[test]
    fn a_rank_whose_address_is_zero_is_refused() {
        let mut theirs = said(7, vec![Some(0)]);
        theirs.offers[0].gid = [0; 16];
        let text = way(theirs).err().unwrap().to_string();
        assert!(text.contains("rank 1's a") && text.contains("GID") && text.contains("zero"), "{text}");
    }
}
