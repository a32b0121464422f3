//! Starting a fabric.

use std::fmt;
use std::sync::{Arc, Weak};

use fulmen_memory::{ChunkRule, Exposed, Pool, Region, RegionError};
use fulmen_reach::ReachError;

use crate::bootstrap::{Session, SessionError};
use crate::driver::device::{self, Given, RailInfo, Rails, Registered};
use crate::driver::{Parker, reach, relay};
use crate::engine::{Exports, Link, Place};
use crate::handshake::{self, Hello, ReachHello, Settings};
use crate::hosts::{Hosts, Near};
use crate::lanes::{Lane, Lanes};
use crate::liveness::{Fate, Life};
use crate::map::{Neighbours, Share};
use crate::muster::{Muster, ready};
use crate::onesided::{Direct, OneSided};
use crate::topology::Wiring;
use crate::{DeviceError, Fabric, FabricOptions, Flow, Loss, Providers, clock};

/// Why a fabric did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Ranks could not exchange what they need to know of one another.
    #[error("the ranks could not agree on how to connect: {0}")]
    Session(#[from] SessionError),
    /// A rank was built from another version of the protocol.
    #[error(
        "rank {rank} speaks version {theirs} of the fabric and this rank version {ours}: build all from one release"
    )]
    Version {
        /// The rank.
        rank: u32,
        /// Its version.
        theirs: u16,
        /// The version spoken here.
        ours: u16,
    },
    /// A rank's message cannot be read.
    #[error("what rank {rank} said cannot be read: build all ranks from one release")]
    Garbled {
        /// The rank.
        rank: u32,
    },
    /// Ranks were started with different options.
    #[error(
        "the ranks disagree on the {what}: rank 0 has {ours} and rank {rank} has {theirs}: start all of them alike"
    )]
    Disagree {
        /// What they disagree on.
        what: &'static str,
        /// What rank 0 has.
        ours: String,
        /// The first rank that differs from it.
        rank: u32,
        /// What that one has.
        theirs: String,
    },
    /// Devices do not connect the ranks.
    #[error(transparent)]
    Device(Box<DeviceError>),
    /// Options that make no sense.
    #[error("the options are impossible: {0}")]
    Options(&'static str),
    /// A peer cannot be reached.
    #[error("rank {rank} cannot be reached: {cause}")]
    Reach {
        /// The peer.
        rank: u32,
        /// Why.
        cause: ReachError,
    },
    /// This rank's memory cannot be shared.
    #[error("this rank's memory cannot be shared: {0}")]
    Share(ReachError),
    /// There is no memory.
    #[error("no memory for {what}: {cause}")]
    Memory {
        /// What it was for.
        what: &'static str,
        /// Why.
        cause: RegionError,
    },
    /// A rank goes by other rules about what links run over.
    #[error("rank {rank} was told to use something else than this rank to talk over: start all ranks alike")]
    Unlike {
        /// The rank.
        rank: u32,
    },
    /// Another rank did not start.
    #[error("rank {rank} could not start: {problem}")]
    PeerFailed {
        /// The rank.
        rank: u32,
        /// What it said.
        problem: String,
    },
}

impl From<DeviceError> for StartError {
    fn from(cause: DeviceError) -> StartError {
        StartError::Device(Box::new(cause))
    }
}

impl Fabric {
    /// Connects the ranks of a session. Collective: every rank calls it, with options that agree.
    ///
    /// Where options ask for windows and there is a node, ranks of one host map one another's memory. Other links run
    /// over the first device that can be used, or over those that the [cables](crate::Cables) name; their limits
    /// are checked first. Without devices, all ranks have to be on one host. A port that is not ready yet is waited for
    /// ([`FabricOptions::port_wait`]). Returns within the options' timeout, and up to 10 s more for the coordinator's verdict.
    ///
    /// # Errors
    /// [`StartError`], which names the rank that is different or cannot be reached.
    pub fn start(session: Session, options: FabricOptions, providers: Providers) -> Result<Fabric, StartError> {
        Fabric::start_or_tell(session, options, Ok(providers))
    }

    /// [`Fabric::start`], by a rank that may have failed to get what links run over: then all ranks hear why, and none waits for
    /// it. Collective.
    ///
    /// # Errors
    /// This rank's own; else as [`Fabric::start`].
    pub fn start_or_tell<E>(
        session: Session,
        options: FabricOptions,
        providers: Result<Providers, E>,
    ) -> Result<Fabric, E>
    where
        E: From<StartError> + fmt::Display,
    {
        Fabric::start_where(session, options, |_, _| providers)
    }

    /// [`Fabric::start_or_tell`], where what links run over is chosen, and the options with it, by the hosts of the ranks and by
    /// what these say. All ranks must choose alike. Collective.
    ///
    /// # Errors
    /// This rank's own; else as [`Fabric::start`].
    pub fn start_where<E>(
        session: Session,
        mut options: FabricOptions,
        choose: impl FnOnce(&Muster<'_>, &mut FabricOptions) -> Result<Providers, E>,
    ) -> Result<Fabric, E>
    where
        E: From<StartError> + fmt::Display,
    {
        let hosts = Hosts::exchange(&session, None, &options).map_err(StartError::Session)?;
        let muster = Muster::new(&session, hosts, options.timeout);
        let providers = choose(&muster, &mut options);
        let hosts = muster.hosts().clone();
        let providers = ready(&session, options.timeout, providers)?;
        let started = Fabric::connect(&session, &options, &providers, &hosts, None)?;
        Ok(Fabric::new(session, started, providers, options, hosts))
    }

    /// Connects the ranks of a session. `kept` is the pool of the generation before, if no rank that was left behind can
    /// write to it.
    pub(crate) fn connect(
        session: &Session,
        options: &FabricOptions,
        providers: &Providers,
        hosts: &Hosts,
        kept: Option<&Pool>,
    ) -> Result<Started, StartError> {
        check(options)?;
        let (rank, size) = (session.rank(), session.size());
        let deadline = clock::after(options.timeout);
        let left = || clock::until(deadline);
        let Providers { node, mut devices, cables, tcp } = providers.clone();
        let node = node.filter(|_| options.windows);
        if size == 1 || node.is_some() && hosts.are_one() {
            devices.clear();
        }
        let near = match (&node, devices.is_empty()) {
            (Some(_), true) => Near::all(size),
            (Some(_), false) => Near::by(hosts),
            (None, _) => Near::none(size),
        };
        // Between hosts of one rank each there are devices alone.
        let node = node.filter(|_| devices.is_empty() || near.exist());

        let memory = |what| move |cause| StartError::Memory { what, cause };
        let pool = match kept {
            Some(pool) => pool.region().clone(),
            None => Region::alloc(options.pool).map_err(memory("the pool (FULMEN_POOL sets its size)"))?,
        };
        let control = Region::alloc(reach::control_len(size, &options.flow)).map_err(memory("the control region"))?;
        let control_memory = control.expose().map_err(memory("the control region"))?;
        // Taken back when they are dropped: the control region's as soon as everybody has mapped it.
        let share = |region| node.as_ref().map(|node| Share::new(node, region)).transpose().map_err(StartError::Share);
        let (control_share, pool_share) = (share(&control)?, share(&pool)?);

        let hello = Hello {
            build: env!("CARGO_PKG_VERSION").to_owned(),
            settings: Settings {
                windows: node.is_some(),
                devices: !devices.is_empty(),
                sealed: tcp.map(|tcp| tcp.sealed),
                profile: options.profile.clone(),
                flow: options.flow,
                verify_data: options.verify_data,
            },
            reach: node.as_ref().zip(control_share.as_ref().zip(pool_share.as_ref())).map(|(node, (control, pool))| {
                ReachHello {
                    node: node.address().to_bytes().to_vec(),
                    control: control.key().to_u64(),
                    pool: pool.key().to_u64(),
                }
            }),
        };
        let blobs = session.all_gather(&hello.to_bytes(), left())?;
        let hellos = handshake::agree(&blobs)?;

        let bell = reach::doorbell(&control_memory);
        let life = Arc::new(Life::new(size, Box::new(bell.clone())));
        let neighbours = node
            .zip(pool_share)
            .map(|(node, share)| {
                let control_len = reach::control_len(size, &options.flow);
                Neighbours::meet(node, (rank, &near), &hellos, (&pool, share), &life, control_len, left())
            })
            .transpose();
        let rails = (!devices.is_empty())
            .then(|| {
                let given = Given { devices: &devices, cables: cables.as_ref(), near: &near };
                device::connect(session, &given, &pool, options, (bell.clone(), &life), left)
            })
            .transpose();
        // All hear whether all succeeded, so that nobody waits for a rank that gave up.
        let problem = neighbours.as_ref().err().or(rails.as_ref().err());
        let problem = problem.map(ToString::to_string).unwrap_or_default();
        let verdicts = session.all_gather(problem.as_bytes(), left());
        let (neighbours, rails) = (neighbours?.map(Arc::new), rails?);
        for (rank, problem) in (0..).zip(verdicts?) {
            if !problem.is_empty() {
                let problem = String::from_utf8_lossy(&problem).into_owned();
                return Err(StartError::PeerFailed { rank, problem });
            }
        }
        drop(control_share);
        watch(session, &life);
        let rule = rails.as_ref().map_or(ChunkRule::NONE, |rails| rails.rule);
        let exports = Exports::new();
        let direct =
            direct(neighbours.clone(), rails.as_ref().map(|rails| rails.registered.clone()).unwrap_or_default());
        let (mut registrar, mut switch, mut wiring) = (None, None, None);
        let mut infos = vec![None; size as usize];
        let mut lanes = match &neighbours {
            Some(neighbours) => reach_lanes(rank, &control_memory, neighbours, options, &exports)?,
            None => (0..size).map(|_| None).collect(),
        };
        let parker: Arc<dyn Parker> = match rails {
            None => Arc::new(bell),
            Some(Rails { hub, rails, registrar: given, mesh, .. }) => {
                // Bytes that a peer's device reads or writes are not verified by anybody.
                registrar = (!options.verify_data).then_some(given);
                for (peer, rail) in rails.into_iter().enumerate() {
                    let Some((config, rail, said)) = rail else { continue };
                    infos[peer] = Some(said);
                    lanes[peer] = Some(Lane::new(Link::with_exports(config, exports.clone()), rail));
                }
                // Without cables, one device leads to all.
                wiring = providers.cables.as_ref().map(|_| Wiring::new(mesh.graph.clone()));
                switch = relay::join((rank, session.generation()), &mesh, options, &exports, &mut lanes);
                hub
            }
        };
        let onesided = Arc::new(OneSided::new(
            (session.generation(), rank),
            areas(rank, size, &control_memory, neighbours.as_ref(), &options.flow),
            neighbours.clone(),
            exports,
            direct,
            registrar,
        ));
        let lanes = Arc::new(Lanes::new(lanes, life, neighbours.clone(), onesided.clone(), parker, switch));
        let pool = match kept {
            Some(pool) => pool.clone(),
            None => Pool::with_rule(&pool, rule).map_err(memory("the pool"))?,
        };
        Ok(Started { lanes, onesided, neighbours, pool, rails: infos, wiring })
    }
}

/// What a start makes.
pub(crate) struct Started {
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) onesided: Arc<OneSided>,
    pub(crate) neighbours: Option<Arc<Neighbours>>,
    pub(crate) pool: Pool,
    pub(crate) rails: Vec<Option<RailInfo>>,
    pub(crate) wiring: Option<Wiring>,
}

/// Has all that the coordinator tells of this generation noted.
fn watch(session: &Session, life: &Arc<Life>) {
    life.on_broken(session.cutter());
    let weak: Weak<Life> = Arc::downgrade(life);
    let own = session.rank();
    let tell = move |what: &dyn Fn(&Life)| {
        if let Some(life) = weak.upgrade() {
            what(&life);
        }
    };
    session.on_cut({
        let tell = tell.clone();
        move |rank| tell(&|life| life.lose(rank, Loss::GaveUp))
    });
    session.on_left({
        let tell = tell.clone();
        move |rank| tell(&|life| life.leave(rank))
    });
    session.on_regroup({
        let tell = tell.clone();
        move |rank| tell(&|life| life.end(Fate::Lost { rank, loss: Loss::Regroups }))
    });
    session.on_lost(move |lost| {
        let loss = || Loss::Session(lost.cause.clone());
        tell(&|life| match lost.rank {
            // The others go on without this rank: nothing that it waits for comes.
            rank if rank == own => life.end(Fate::Lost { rank, loss: loss() }),
            rank => life.lose(rank, loss()),
        });
    });
}

/// By rank, the lanes to those whose memory is mapped here.
fn reach_lanes(
    rank: u32,
    control: &Exposed,
    neighbours: &Arc<Neighbours>,
    options: &FabricOptions,
    exports: &Exports,
) -> Result<Vec<Option<Lane>>, StartError> {
    let flow = &options.flow;
    let size = neighbours.controls().count() as u32;
    let lane = |(peer, theirs): (u32, Option<&Exposed>)| {
        let Some(theirs) = theirs else { return Ok(None) };
        let wire = reach::ReachWire::new(size, (rank, control), (peer, theirs), options, neighbours.clone())
            .map_err(|_| StartError::Garbled { rank: peer })?;
        Ok(Some(Lane::new(
            Link::with_exports(reach::config(size, flow, options.verify_data), exports.clone()),
            Box::new(wire),
        )))
    };
    (0..).zip(neighbours.controls()).map(lane).collect()
}

/// What one-sided operations need of the control regions that are mapped here, by rank.
fn areas(
    rank: u32,
    size: u32,
    own: &Exposed,
    neighbours: Option<&Arc<Neighbours>>,
    flow: &Flow,
) -> Vec<Option<Exposed>> {
    let area = |control: &Exposed| reach::onesided_area(control, size, flow);
    let mut areas: Vec<_> = match neighbours {
        Some(neighbours) => neighbours.controls().map(|control| control.map(area)).collect(),
        None => (0..size).map(|_| None).collect(),
    };
    areas[rank as usize] = Some(area(own));
    areas
}

/// Where the links' large moves reach memory of this rank, whatever leads to the peer.
fn direct(neighbours: Option<Arc<Neighbours>>, registered: Vec<Arc<Registered>>) -> Direct {
    Box::new(move |memory| {
        let by_devices = registered.iter().all(|pool| pool.key(memory).is_some());
        let place = match &neighbours {
            Some(neighbours) => {
                let at = neighbours.reference(memory)?;
                Place { key: at.key, offset: at.offset, checksum: 0 }
            }
            None if registered.is_empty() => return None,
            None => Place::default(),
        };
        by_devices.then_some(place)
    })
}

fn check(options: &FabricOptions) -> Result<(), StartError> {
    if !(256..=65_536).contains(&options.flow.frame) {
        return Err(StartError::Options("a frame has 256 to 65536 bytes"));
    }
    if !(16..=1024).contains(&options.flow.credits) {
        return Err(StartError::Options("a link has 16 to 1024 credits"));
    }
    Ok(())
}
