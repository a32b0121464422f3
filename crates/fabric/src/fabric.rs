//! Starting a fabric.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fulmen_memory::{Block, ChunkRule, Exposed, Pool, Region, RegionError};
use fulmen_reach::ReachError;
use fulmen_verbs::Carrier;

use crate::bootstrap::{LostRank, Session, SessionError};
use crate::driver::device::{self, Given, RailInfo, RailStatus, Rails, Registered};
use crate::driver::relay::{self, Relayed};
use crate::driver::{Parker, Wire, reach};
use crate::engine::{Config, Exports, Link, Place};
use crate::error::LinkKind;
use crate::handshake::{self, Hello, ReachHello, Settings};
use crate::hosts::Hosts;
use crate::lanes::{Lane, Lanes};
use crate::liveness::{Fate, Life};
use crate::map::{Neighbours, Share};
use crate::muster::{Muster, ready};
use crate::onesided::{Direct, OneSided};
use crate::progress::Progress;
use crate::recorder::Owner;
use crate::regroup::Retirement;
use crate::{DeviceError, FabricError, FabricOptions, Flow, Loss, On, OpName, PollPolicy, Providers, Recorder, clock};

/// How long a rank that leaves waits for its last frames to go out.
const GOODBYE: Duration = Duration::from_secs(2);

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

/// The ranks of a program, connected. A clone is another handle; with the last one, this rank leaves: it
/// then waits up to [`FabricOptions::farewell`] (2 s) for sends whose handles were dropped before they ended, and up to 2 s for its
/// goodbye to go out.
#[derive(Clone)]
pub struct Fabric {
    pub(crate) inner: Arc<Inner>,
}

// The order of the fields is the order in which they go: nobody works on lanes while this rank says goodbye.
pub(crate) struct Inner {
    pub(crate) progress: Progress,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) onesided: Arc<OneSided>,
    /// The other ranks' memory, where ranks map it.
    pub(crate) neighbours: Option<Arc<Neighbours>>,
    /// By rank, where links run over devices.
    rails: Vec<Option<RailInfo>>,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    hosts: Hosts,
    pub(crate) poll: PollPolicy,
    pub(crate) pool: Pool,
    pub(crate) session: Session,
    pub(crate) recorder: Recorder,
    /// Groups formed so far.
    groups: AtomicU64,
    /// What the next generation is started with.
    pub(crate) providers: Providers,
    pub(crate) options: FabricOptions,
    pub(crate) retirement: Retirement,
}

impl Fabric {
    /// Connects the ranks of a session. Collective: every rank calls it, with options that agree.
    ///
    /// Where options ask for windows and there is a node, ranks map one another's memory, which needs them on one host.
    /// Else links run over the first device that can be used, or over those that the [cables](crate::Cables) name; their limits
    /// are checked first. A port that is not ready yet is waited for ([`FabricOptions::port_wait`]).
    /// Returns within the options' timeout, and up to 10 s more for the coordinator's verdict.
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
        let hosts = Hosts::exchange(&session, None, options.timeout).map_err(StartError::Session)?;
        let muster = Muster::new(&session, hosts, options.timeout);
        let providers = choose(&muster, &mut options);
        let hosts = muster.hosts().clone();
        let providers = ready(&session, options.timeout, providers)?;
        let started = Fabric::connect(&session, &options, &providers, None)?;
        Ok(Fabric::new(session, started, providers, options, hosts))
    }

    pub(crate) fn new(
        session: Session,
        started: Started,
        providers: Providers,
        options: FabricOptions,
        hosts: Hosts,
    ) -> Fabric {
        let Started { lanes, onesided, neighbours, pool, rails } = started;
        let (rank, size) = (session.rank(), session.size());
        // The ranks of a host share its processors.
        let poll = options.poll.unwrap_or_else(|| PollPolicy::for_ranks(hosts.here()));
        let (progress, groups) = (Progress::new(lanes.clone()), AtomicU64::new(0));
        let retirement = Retirement::default();
        let owner = Owner { rank, size, generation: session.generation() };
        let recorder = Recorder::new(owner, options.record, options.trace_dir.clone());
        lanes.life.record(recorder.clone());
        if !session.members().iter().copied().eq(0..size) {
            recorder.note("regrouped", 0, None, &format!("the ranks were launched as {:?}", session.members()));
        }
        if let Some(instead) = providers.tcp.as_ref().and_then(|tcp| tcp.instead.as_ref()) {
            recorder.note("fallback", 0, None, &format!("links between hosts run over TCP: {instead}"));
        }
        let inner = Inner {
            progress,
            lanes,
            onesided,
            neighbours,
            rails,
            rank,
            size,
            hosts,
            poll,
            pool,
            session,
            recorder,
            groups,
            providers,
            options,
            retirement,
        };
        Fabric { inner: Arc::new(inner) }
    }

    /// Connects the ranks of a session. `kept` is the pool of the generation before, if no rank that was left behind can
    /// write to it.
    pub(crate) fn connect(
        session: &Session,
        options: &FabricOptions,
        providers: &Providers,
        kept: Option<&Pool>,
    ) -> Result<Started, StartError> {
        check(options)?;
        let (rank, size) = (session.rank(), session.size());
        let deadline = clock::after(options.timeout);
        let left = || clock::until(deadline);
        let Providers { node, mut devices, cables, tcp } = providers.clone();
        let node = node.filter(|_| options.windows);
        if node.is_some() || size == 1 {
            devices.clear();
        }

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
                Neighbours::meet(node, rank, &hellos, (&pool, share), &life, control_len, left())
            })
            .transpose();
        let rails = (!devices.is_empty())
            .then(|| {
                let given = Given { devices: &devices, cables: cables.as_ref() };
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
        let (mut registrar, mut switch) = (None, None);
        let mut infos = vec![None; size as usize];
        let (lanes, parker): (_, Arc<dyn Parker>) = match (&neighbours, rails) {
            (Some(neighbours), _) => {
                (reach_lanes(rank, &control_memory, neighbours, options, &exports)?, Arc::new(bell))
            }
            (None, Some(Rails { hub, rails, registrar: given, mesh, .. })) => {
                // Bytes that a peer's device reads or writes are not verified by anybody.
                registrar = (!options.verify_data).then_some(given);
                let lane = |(rail, info): (Option<_>, &mut Option<RailInfo>)| {
                    let (config, rail, said) = rail?;
                    *info = Some(said);
                    Some(device_lane(config, rail, &exports))
                };
                let mut lanes: Vec<_> = rails.into_iter().zip(&mut infos).map(lane).collect();
                switch = relay::join((rank, session.generation()), &mesh, options, &exports, &mut lanes);
                (lanes, hub)
            }
            (None, None) => ((0..size).map(|_| None).collect(), Arc::new(bell)),
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
        Ok(Started { lanes, onesided, neighbours, pool, rails: infos })
    }

    /// This rank, from 0.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.inner.size
    }

    /// A random number that is the same on all ranks of this world and on no other.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.inner.session.generation()
    }

    /// How threads of this rank wait.
    #[must_use]
    pub fn poll_policy(&self) -> PollPolicy {
        self.inner.poll
    }

    /// The deadline for operations whose caller has no wish: 60 s, or what the options say.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.inner.options.timeout
    }

    /// What connects this rank with the others; with several hosts, with those on others.
    #[must_use]
    pub fn link_kind(&self) -> LinkKind {
        self.inner.link_kind()
    }

    /// What the link with a rank ran over first: both ends and the transport service. None where it runs over no devices.
    #[must_use]
    pub fn rail(&self, rank: u32) -> Option<&RailInfo> {
        self.inner.rails.get(rank as usize)?.as_ref()
    }

    /// All rails of the link with a rank, as they are now. None where it runs over no devices.
    #[must_use]
    pub fn rails(&self, rank: u32) -> Vec<RailStatus> {
        self.inner.lanes.lock(rank).map_or_else(Vec::new, |lane| lane.wire.rails())
    }

    /// The ranks between this one and another, in order: they pass the messages of both on, since no cable joins the two. Empty
    /// where a link of its own leads there, for this rank itself, and where no path is left.
    #[must_use]
    pub fn path(&self, rank: u32) -> Vec<u32> {
        let switch = self.inner.lanes.switch.as_ref().filter(|switch| switch.is_far(rank));
        switch.and_then(|switch| switch.path(rank)).unwrap_or_default()
    }

    /// What this rank has passed on for others. All is 0 where cables join each two ranks.
    #[must_use]
    pub fn relayed(&self) -> Relayed {
        self.inner.lanes.switch.as_ref().map(|switch| switch.relayed()).unwrap_or_default()
    }

    /// Where the ranks are.
    #[must_use]
    pub fn hosts(&self) -> &Hosts {
        &self.inner.hosts
    }

    /// Why links between hosts run over TCP although something faster was there or to be expected; `None` if that is not so.
    #[must_use]
    pub fn fallback(&self) -> Option<&str> {
        self.inner.providers.tcp.as_ref()?.instead.as_deref()
    }

    /// What this rank did last.
    #[must_use]
    pub fn recorder(&self) -> &Recorder {
        &self.inner.recorder
    }

    /// A number for a group of all ranks, from 0: the same on all ranks, since they form groups in the same order.
    #[must_use]
    pub fn number_group(&self) -> u64 {
        self.inner.groups.fetch_add(1, Ordering::Relaxed)
    }

    /// The first rank that the coordinator lost, if it lost any of this generation.
    #[must_use]
    pub fn lost(&self) -> Option<LostRank> {
        self.inner.session.lost()
    }

    /// How a rank was lost, if it was.
    #[must_use]
    pub fn loss(&self, rank: u32) -> Option<Loss> {
        self.inner.lanes.life.loss(rank)
    }

    /// Memory for users' blocks: shared with the other ranks where ranks map one another's memory.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// A block of the pool, of `len` bytes.
    ///
    /// # Errors
    /// [`FabricError::Pool`] if the pool has no room for it.
    pub fn alloc(&self, len: usize) -> Result<Block, FabricError> {
        self.inner.pool.take(len).map_err(|cause| FabricError::Pool { op: "alloc", cause: Arc::new(cause) })
    }
}

impl Inner {
    /// Before this rank leaves: what nobody waits for any more is given a little time to go out, and peers hear Bye.
    fn finish(&self) {
        if self.retirement.is_over() {
            return;
        }
        self.onesided.revoke_all();
        self.lanes.end();
        let end = clock::after(self.options.farewell);
        // What a carrier may lose has gone when the peer has acknowledged it, however often it has to go again.
        while (self.lanes.sending() > 0 || self.lanes.is_leaving()) && Instant::now() < end {
            self.lanes.parker.park(Duration::from_millis(10), &mut || self.lanes.pump_all());
        }
        self.leave_others();
        self.lanes.close();
        self.lanes.pump_all();
        let end = clock::after(GOODBYE);
        while self.lanes.is_leaving() && Instant::now() < end {
            self.lanes.parker.park(Duration::from_millis(10), &mut || self.lanes.pump_all());
        }
        // Whoever has not heard Bye by now, or what was to come before it, would wait for the rest of it.
        let cut = self.session.cutter();
        self.lanes.give_up().into_iter().for_each(cut);
    }

    /// Before this rank leaves its neighbours: those to which they lead hear Bye, and what others say to each other is passed
    /// on while they may have something to say.
    fn leave_others(&self) {
        let Some(switch) = &self.lanes.switch else { return };
        let wait = |longest, goes_on: &dyn Fn() -> bool| {
            let end = clock::after(longest);
            while goes_on() && Instant::now() < end {
                self.lanes.parker.park(Duration::from_millis(10), &mut || self.lanes.pump_all());
            }
        };
        self.lanes.close_far();
        self.lanes.pump_all();
        wait(GOODBYE, &|| self.lanes.is_leaving_far());
        switch.finish();
        self.lanes.pass_on();
        let life = &self.lanes.life;
        wait(relay::LINGER, &|| !life.is_ended() && !switch.may_leave(life));
    }

    pub(crate) fn link_kind(&self) -> LinkKind {
        let is_tcp = |rail: &RailInfo| matches!(rail.carrier, Carrier::Tcp { .. });
        match &self.neighbours {
            Some(_) => LinkKind::SharedMemory,
            None if self.rails.iter().flatten().any(is_tcp) => LinkKind::Tcp,
            None => LinkKind::Device,
        }
    }

    /// Why an operation ended, in the words of the fabric.
    pub(crate) fn failure(&self, op: OpName, fate: Fate) -> FabricError {
        match fate {
            Fate::Lost { rank, loss } => FabricError::PeerLost { rank, link: self.link_kind(), op, cause: loss },
            Fate::Ended => FabricError::Ended { op },
        }
    }

    /// Refuses an operation of a generation that has ended.
    pub(crate) fn check_goes_on(&self, op: OpName) -> Result<(), FabricError> {
        let life = &self.lanes.life;
        match life.first(On::Ranks(&[])).filter(|_| life.is_ended()) {
            None => Ok(()),
            Some(fate) => Err(self.failure(op, fate)),
        }
    }

    /// Why an agreement failed: where the generation has ended, with the cause of that.
    pub(crate) fn session_failed(&self, op: OpName, cause: SessionError) -> FabricError {
        let over = matches!(cause, SessionError::Superseded { .. } | SessionError::Regrouping { .. });
        match self.check_goes_on(op) {
            Err(ended) if over => ended,
            _ => FabricError::Session { op, cause },
        }
    }

    /// Refuses a rank that is none, or this one.
    pub(crate) fn check_peer(&self, op: OpName, rank: u32) -> Result<(), FabricError> {
        if rank >= self.size || rank == self.rank {
            return Err(FabricError::NoSuchRank { op, rank, size: self.size });
        }
        Ok(())
    }
}

/// What a start makes.
pub(crate) struct Started {
    lanes: Arc<Lanes>,
    onesided: Arc<OneSided>,
    neighbours: Option<Arc<Neighbours>>,
    pub(crate) pool: Pool,
    rails: Vec<Option<RailInfo>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.finish();
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").field("rank", &self.rank()).field("size", &self.size()).finish_non_exhaustive()
    }
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

/// The lanes to all other ranks over shared memory.
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

/// Where the links' large moves reach memory of this rank.
fn direct(neighbours: Option<Arc<Neighbours>>, registered: Vec<Arc<Registered>>) -> Direct {
    Box::new(move |memory| match &neighbours {
        Some(neighbours) => {
            neighbours.reference(memory).map(|at| Place { key: at.key, offset: at.offset, checksum: 0 })
        }
        // Whichever device leads to the peer.
        None => {
            let reached = !registered.is_empty() && registered.iter().all(|pool| pool.key(memory).is_some());
            reached.then(Place::default)
        }
    })
}

fn device_lane(config: Config, wire: Box<dyn Wire>, exports: &Exports) -> Lane {
    Lane::new(Link::with_exports(config, exports.clone()), wire)
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
