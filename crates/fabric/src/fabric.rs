//! A fabric: the ranks of a program, connected.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fulmen_memory::{Block, Pool};
use fulmen_verbs::Carrier;

use crate::bootstrap::{LostRank, Session, SessionError};
use crate::driver::device::{RailInfo, RailStatus};
use crate::driver::relay::{self, Relayed};
use crate::error::LinkKind;
use crate::hosts::Hosts;
use crate::lanes::Lanes;
use crate::liveness::Fate;
use crate::map::Neighbours;
use crate::onesided::OneSided;
use crate::own::Own;
use crate::progress::Progress;
use crate::recorder::Owner;
use crate::regroup::Retirement;
use crate::start::Started;
use crate::topology::Wiring;
use crate::{FabricError, FabricOptions, Flow, Loss, On, OpName, PollPolicy, Providers, Recorder, clock};

/// How long a rank that leaves waits for its last frames to go out.
const GOODBYE: Duration = Duration::from_secs(2);

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
    /// Messages to itself.
    pub(crate) own: Own,
    pub(crate) onesided: Arc<OneSided>,
    /// The other ranks' memory, of those that are mapped here.
    pub(crate) neighbours: Option<Arc<Neighbours>>,
    /// By rank, where links run over devices.
    rails: Vec<Option<RailInfo>>,
    wiring: Option<Wiring>,
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
    pub(crate) fn new(
        session: Session,
        started: Started,
        providers: Providers,
        options: FabricOptions,
        hosts: Hosts,
    ) -> Fabric {
        let Started { lanes, onesided, neighbours, pool, rails, wiring } = started;
        let (rank, size) = (session.rank(), session.size());
        // The ranks of a machine share its processors.
        let poll = options.poll.unwrap_or_else(|| PollPolicy::of(hosts.are_crowded()));
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
            own: Own::default(),
            onesided,
            neighbours,
            rails,
            wiring,
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

    /// How links carry messages, the same on all ranks.
    #[must_use]
    pub fn flow(&self) -> &Flow {
        &self.inner.options.flow
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

    /// What connects this rank with another one.
    #[must_use]
    pub fn link_to(&self, rank: u32) -> LinkKind {
        self.inner.link_to(rank)
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

    /// Which ranks cables join, where each cable was named ([`Providers::cables`]): the same on all ranks, whatever is lost later.
    #[must_use]
    pub fn wiring(&self) -> Option<&Wiring> {
        self.inner.wiring.as_ref()
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
            Some(neighbours) if neighbours.maps_all() => LinkKind::SharedMemory,
            _ if self.rails.iter().flatten().any(is_tcp) => LinkKind::Tcp,
            _ => LinkKind::Device,
        }
    }

    pub(crate) fn link_to(&self, rank: u32) -> LinkKind {
        if self.maps(rank) { LinkKind::SharedMemory } else { self.link_kind() }
    }

    /// Whether the memory of another rank is mapped here.
    pub(crate) fn maps(&self, rank: u32) -> bool {
        self.neighbours.as_ref().is_some_and(|neighbours| neighbours.maps(rank))
    }

    /// Why an operation ended, in the words of the fabric.
    pub(crate) fn failure(&self, op: OpName, fate: Fate) -> FabricError {
        match fate {
            Fate::Lost { rank, loss } => FabricError::PeerLost { rank, link: self.link_to(rank), op, cause: loss },
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
