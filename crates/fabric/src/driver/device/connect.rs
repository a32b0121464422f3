//! Connecting the ranks: everybody says which devices it has and what they can do, then which queue pairs it made for whom.

use std::sync::Arc;
use std::time::Duration;

use fulmen_memory::{ChunkRule, Region};
use fulmen_reach::Doorbell;
use fulmen_verbs::{CompletionChannel, CompletionQueue, Device, DeviceInfo, ProtectionDomain, QueuePairKind};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::bring_up::{Ends, Service};
use super::bundle::{self, Bundle};
use super::error::{DeviceError, call};
use super::frames::{Frames, Guard};
use super::hub::{Berth, Hub};
use super::info::RailInfo;
use super::maker::{Both, Maker};
use super::memory::Registered;
use super::moves::Moves;
use super::needs::{ONE_SIDED, messages};
use super::offer::{Offer, Said};
use super::places::Places;
use super::plan::Plan;
use super::port::Port;
use super::rail::{self, Parts, Rail};
use super::rdma::{self, Rdma, RdmaPairs, Registrar};
use super::route;
use super::track::{Track, TrackParts};
use crate::bootstrap::Session;
use crate::driver::Wire;
use crate::driver::relay::Mesh;
use crate::engine::{Config, Rights};
use crate::hosts::Near;
use crate::liveness::Life;
use crate::options::{FabricOptions, Flow};
use crate::topology::Graph;
use crate::{Cables, StartError};

/// Rank `rank`'s ends of the links to all others.
pub(crate) struct Rails {
    pub(crate) hub: Arc<Hub>,
    /// By rank.
    pub(crate) rails: Vec<Option<Connected>>,
    /// How the pool is to be cut, so that each of its blocks lies in one registration of every device.
    pub(crate) rule: ChunkRule,
    /// The pool, for each device.
    pub(crate) registered: Vec<Arc<Registered>>,
    /// For memory that is shared later.
    pub(crate) registrar: Registrar,
    /// Which ranks have no link, since no cable joins them, and what those between carry.
    pub(crate) mesh: Mesh,
}

/// How the engine runs a link, what carries it, and what it ran over first.
pub(crate) type Connected = (Config, Box<dyn Wire>, RailInfo);

/// What links run over, as the program gave it.
pub(crate) struct Given<'a> {
    pub devices: &'a [Arc<dyn Device>],
    pub cables: Option<&'a Cables>,
    /// Ranks between which no devices are needed.
    pub near: &'a Near,
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

/// A rail that is to be.
#[derive(Clone)]
struct Way {
    peer: u32,
    /// Which of the link's.
    rail: u8,
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
    /// By rank and rail.
    links: Vec<Vec<Laid>>,
}

/// A rail that is to be connected.
struct Laid {
    way: Way,
    maker: Arc<Maker>,
    both: Both,
    frames: Frames,
    rdma: Option<Rdma>,
    pool: Arc<Registered>,
    entries: usize,
}

/// What this rank made for the others, by rank and rail.
type AllEnds = Vec<Vec<Option<Ends>>>;

/// Connects all ranks over their devices, but for those that are near one another; the pool's memory is registered. Collective,
/// two rounds. All that is left then is that everybody hears whether all succeeded; frames may be sent after that.
pub(crate) fn connect(
    session: &Session,
    given: &Given<'_>,
    pool: &Region,
    options: &FabricOptions,
    (bell, life): (Doorbell, &Arc<Life>),
    left: impl Fn() -> Duration,
) -> Result<Rails, StartError> {
    let rank = session.rank();
    // The rest of the time is for the others to hear what came of it.
    let patience = options.port_wait.min(left() / 2);
    let (ports, said) = tell(session, look(session, given, patience), left())?;
    // Those that are given and not those that are used, so that a pool serves the next generation as well.
    let rule = given.devices.iter().fold(ChunkRule::NONE, |rule, device| rule.and(device.info().limits.registration));
    let made = mesh(&said, given, &options.flow).and_then(|mesh| {
        let (made, ends) = make(session, ports, (&said, &mesh, given.near), (pool, rule), options, bell)?;
        Ok(((made, mesh), ends))
    });
    let ((made, mesh), ends) = tell(session, made, left())?;
    let Made { hub, registered, registrar, links } = made;
    let joint = Joint { rank, hub: &hub, ends: &ends, generation: session.generation(), options, life };
    let rails = links.into_iter().map(|laid| joint.link(laid)).collect::<Result<_, _>>()?;
    Ok(Rails { hub, rails, rule, registered, registrar, mesh })
}

/// What all links have in common.
struct Joint<'a> {
    rank: u32,
    hub: &'a Arc<Hub>,
    ends: &'a [AllEnds],
    generation: u64,
    options: &'a FabricOptions,
    life: &'a Arc<Life>,
}

impl Joint<'_> {
    /// Connects a link, if there is to be one.
    fn link(&self, mut laid: Vec<Laid>) -> Result<Option<Connected>, StartError> {
        let Some(first) = laid.first() else { return Ok(None) };
        let (plan, flow) = (first.way.plan, &self.options.flow);
        let peer = first.way.peer;
        let (wire, info): (Box<dyn Wire>, _) = if plan.several {
            let (bundle, info) = self.bundle(peer, laid)?;
            (Box::new(bundle), info)
        } else {
            let (rail, info) = self.rail(laid.remove(0))?;
            (Box::new(rail), info)
        };
        Ok(Some((plan.config(flow), wire, info)))
    }

    fn ends(&self, from: u32, to: u32, rail: u8) -> Option<Ends> {
        *self.ends[from as usize].get(to as usize)?.get(usize::from(rail))?
    }

    fn rail(&self, laid: Laid) -> Result<(Rail, RailInfo), StartError> {
        let Laid { way, maker, both, frames, mut rdma, pool, entries } = laid;
        let own = self.ends(self.rank, way.peer, way.rail).ok_or(StartError::Garbled { rank: self.rank })?;
        let theirs = self.ends(way.peer, self.rank, way.rail).ok_or(StartError::Garbled { rank: way.peer })?;
        maker.bring_up(&both.pairs, &own, &theirs)?;
        let course = maker.course();
        match (&both.rdma, own.rdma, theirs.rdma) {
            (Some([out, into]), Some(own), Some(theirs)) => {
                let verbs = Rights::from_bits_truncate(course.here.verbs);
                course.bring_up(&**out, (own.0, theirs.1), Service::asks(&way.plan))?;
                course.bring_up(&**into, (own.1, theirs.0), Service::is_asked(&way.plan, verbs))?;
            }
            _ => rdma = None,
        }
        let info = maker.describe(&both.pairs, &own, &theirs, rdma.is_some());
        let berth = Berth { peer: way.peer, rail: way.rail };
        let mut rail = Rail::new(Parts {
            berth,
            info: info.clone(),
            hub: self.hub.clone(),
            pairs: both.pairs,
            frames,
            moves: Moves::new(pool.clone(), berth, &way.plan),
            rdma,
            registered: pool,
            rendezvous: rail::rendezvous(&self.options.flow, info.carrier),
            patience: self.options.silence,
            entries,
        });
        rail.open().map_err(|refused| course.unopened(&refused))?;
        Ok((rail, info))
    }

    /// A rail that one end has not made, or that does not connect, is not there at first; one has to be.
    fn bundle(&self, peer: u32, laid: Vec<Laid>) -> Result<(Bundle, RailInfo), StartError> {
        let mut tracks = Vec::with_capacity(laid.len());
        let mut problem = None;
        for laid in laid {
            let rail = laid.way.rail;
            let (Some(own), Some(theirs)) = (self.ends(self.rank, peer, rail), self.ends(peer, self.rank, rail)) else {
                tracing::warn!(rank = peer, rail, "the other end has no room for this rail of the link");
                continue;
            };
            let Laid { maker, both, frames, pool, entries, .. } = laid;
            let connected = maker.bring_up(&both.pairs, &own, &theirs);
            let info = maker.describe(&both.pairs, &own, &theirs, false);
            let plan = maker.plan;
            let parts = TrackParts { berth: Berth { peer, rail }, maker, info, frames, pool, entries };
            let mut track = Track::new(parts);
            let up = connected.and_then(|()| {
                let opened = track.open(both.pairs);
                opened.map_err(|refused| track.maker.course().unopened(&refused))
            });
            if let Err(cause) = up {
                track.unconnected(cause.to_string());
                problem.get_or_insert(cause);
            }
            if tracks.is_empty() {
                track.frames.set_guard(Guard::new(&plan, self.generation, self.options.silence));
            }
            tracks.push(track);
        }
        let Some(info) = tracks.iter().find(|track| track.is_live()).map(|track| track.info.clone()) else {
            return Err(problem.map_or(StartError::Garbled { rank: peer }, StartError::from));
        };
        let asked = |track: &Track| rail::rendezvous(&self.options.flow, track.info.carrier);
        let rendezvous = tracks.iter().map(asked).max().unwrap_or(1);
        let parts = bundle::Parts {
            rank: self.rank,
            peer,
            hub: self.hub.clone(),
            tracks,
            rendezvous,
            patience: self.options.silence,
            generation: self.generation,
            life: self.life.clone(),
        };
        Ok((Bundle::new(parts), info))
    }
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

/// Who has a link with whom. Where cables decide that, all of them are looked at; else all links run over one device. Those that are
/// near have one in any case.
fn mesh(said: &[Said], given: &Given<'_>, flow: &Flow) -> Result<Mesh, DeviceError> {
    let size = said.len() as u32;
    let graph = if given.cables.is_some() {
        let between = |rank, said: &Said, peer| match given.near.are(rank, peer) && rank != peer {
            true => vec!["shared memory".to_owned()],
            false => said.names(peer),
        };
        let row = |(rank, said)| (0..size).map(|peer| between(rank, said, peer)).collect();
        Graph::of_devices(&(0..).zip(said).map(row).collect::<Vec<_>>())?
    } else {
        Graph::complete(size)
    };
    let of = |offer: &Offer| u64::from(offer.frame.unwrap_or(u32::MAX)).min(offer.message_bytes);
    let frame = said.iter().flat_map(|said| &said.offers).map(of).min().unwrap_or(u64::MAX);
    Ok(Mesh::new(graph, frame.min(flow.frame.into()) as usize))
}

/// The rails of the link with `peer`.
fn ways(options: &FabricOptions, rank: u32, peer: u32, said: &[Said]) -> Result<Vec<Way>, DeviceError> {
    let (ours, theirs) = (&said[rank as usize], &said[peer as usize]);
    if theirs.generation != ours.generation {
        return Err(DeviceError::Generation { peer });
    }
    let routes = route::routes(rank, peer, said)?;
    let several = routes.len() > 1;
    let mut ways = Vec::with_capacity(routes.len());
    for (rail, (here, there)) in (0_u8..).zip(routes) {
        let unknown = DeviceError::Unsaid { peer };
        let (Some(ours), Some(theirs)) = (ours.offer(here), theirs.offer(there)) else { return Err(unknown) };
        let plan = Plan::new(options, ours, theirs, peer, several)?;
        if plan.kind == QueuePairKind::Uc {
            tell_of_uc(ours, theirs, peer);
        }
        ways.push(Way { peer, rail, here, there, plan });
    }
    // A frame may go over any of them.
    let frame = ways.iter().map(|way| way.plan.frame).min().unwrap_or_default();
    ways.iter_mut().for_each(|way| way.plan.frame = frame);
    Ok(ways)
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
    (said, mesh, near): (&[Said], &Mesh, &Near),
    pool: (&Region, ChunkRule),
    options: &FabricOptions,
    bell: Doorbell,
) -> Result<(Made, AllEnds), DeviceError> {
    let flow = &options.flow;
    let rank = session.rank();
    let mut all = Vec::with_capacity(said.len());
    for peer in (0..session.size()).filter(|peer| mesh.graph.is_joined(rank, *peer) && !near.are(rank, *peer)) {
        all.extend(ways(options, rank, peer, said)?);
    }
    let (mut adapters, mut told) = (Vec::new(), Vec::new());
    let mut inboxes = vec![Vec::new(); said.len()];
    let rails = |peer: u32| all.iter().filter(|way| way.peer == peer).count();
    (0..).zip(&mut inboxes).for_each(|(peer, inboxes)| *inboxes = vec![(0, 0); rails(peer)]);
    let mut left = Vec::new();
    for (number, port) in (0_u32..).zip(ports) {
        let mut over: Vec<Way> = all.iter().filter(|way| way.here == number).cloned().collect();
        fit(&mut over, port.device.info(), flow);
        if over.is_empty() {
            continue;
        }
        let (adapter, channel) = Adapter::new(number, port, &over.iter().collect::<Vec<_>>(), pool, options)?;
        for way in &over {
            inboxes[way.peer as usize][usize::from(way.rail)] = (adapters.len(), adapter.entries(&way.plan, flow));
        }
        left.extend(over);
        told.push((adapter.queue.clone(), channel));
        adapters.push(adapter);
    }
    let hub = Arc::new(Hub::new(told, &inboxes, bell, near.has_others(rank)).map_err(DeviceError::Thread)?);

    let mut links: Vec<Vec<Laid>> = said.iter().map(|_| Vec::new()).collect();
    let mut ends: AllEnds = inboxes.iter().map(|rails| vec![None; rails.len()]).collect();
    left.sort_by_key(|way| way.rail);
    for way in left {
        let adapter = adapters.iter_mut().find(|adapter| adapter.number == way.here).expect("one for each way");
        let offer = |rank: u32, index: u32| said[rank as usize].offers[index as usize].clone();
        let maker = Maker {
            domain: adapter.domain.clone(),
            queue: adapter.queue.clone(),
            info: adapter.port.device.info().clone(),
            plan: way.plan,
            flow: *flow,
            peer: way.peer,
            here: offer(rank, way.here),
            there: offer(way.peer, way.there),
        };
        let asks = adapter.asks && maker.there.verbs != 0 && !way.plan.several;
        let (both, made) = maker.make(asks)?;
        let (pool, registered) = (adapter.pool.clone(), adapter.places.registered.clone());
        let berth = Berth { peer: way.peer, rail: way.rail };
        let rdma = match &both.rdma {
            Some([out, into]) => {
                let pairs = RdmaPairs { out: out.clone(), into: into.clone(), there: way.there };
                let cells = adapter.places.cut(rdma::CELL, rdma::DEPTH)?;
                Some(Rdma::new(berth, &maker.info, pairs, cells, (pool.clone(), registered.clone())))
            }
            None => None,
        };
        let plan = &way.plan;
        let recvs = adapter.places.cut(plan.frame as usize, plan.receives(flow))?;
        let sends = adapter.places.cut(plan.frame as usize, plan.sends())?;
        // One guard is for all rails of a link that has several.
        let own = Guard::new(plan, session.generation(), options.silence);
        let guard = if plan.several { Guard::Device } else { own };
        let frames = Frames::new(berth, recvs, sends, guard, registered);
        ends[way.peer as usize][usize::from(way.rail)] = Some(made);
        let entries = adapter.entries(plan, flow);
        links[way.peer as usize].push(Laid { way, maker: Arc::new(maker), both, frames, rdma, pool, entries });
    }
    let registered = adapters.iter().map(|adapter| adapter.pool.clone()).collect();
    let domain = |adapter: Adapter| (adapter.number, adapter.domain, adapter.port.device.info().clone());
    let registrar = Registrar::new(adapters.into_iter().map(domain).collect());
    Ok((Made { hub, registered, registrar, links }, ends))
}

/// Leaves rails out for which the device has no room, as long as the links have others. It is logged.
fn fit(over: &mut Vec<Way>, info: &DeviceInfo, flow: &Flow) {
    let limits = &info.limits;
    let fits = |over: &[Way]| {
        let entries: usize = over.iter().map(|way| messages(&way.plan, flow)).sum();
        2 * over.len() as u64 <= u64::from(limits.queue_pairs) && entries as u64 <= u64::from(limits.completion_entries)
    };
    while !fits(over) {
        let last = over.iter().enumerate().max_by_key(|(_, way)| way.rail).filter(|(_, way)| way.rail > 0);
        let Some((at, _)) = last else { return };
        let way = over.remove(at);
        tracing::warn!(
            rank = way.peer,
            rail = way.rail,
            device = &*info.name,
            "the link has one rail less, since the device has too few queue pairs or entries in a completion queue"
        );
    }
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
            && over.iter().any(|way| way.plan.is_reliable() && !way.plan.several)
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

#[cfg(test)]
mod tests {
    use super::super::offer::tests::offer;
    use super::*;

    fn said(generation: u64, leads: Vec<Option<u32>>) -> Said {
        Said { generation, offers: vec![offer(true, None)], leads: vec![leads.clone(), leads] }
    }

    fn way(theirs: Said) -> Result<Vec<Way>, DeviceError> {
        ways(&FabricOptions::default(), 0, 1, &[said(7, vec![Some(0)]), theirs])
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
