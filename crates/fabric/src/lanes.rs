//! The links of a rank, and whoever moves them on.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use fulmen_memory::Exposed;
use fulmen_reach::ReachError;

use crate::driver::device::{LAST_WORDS, RdmaId};
use crate::driver::relay::Switch;
use crate::driver::{Broken, Parker, Retired, Takes, Wire};
use crate::engine::{Copy, Incoming, Into, Lent, Link, OpError, OpId, checksum};
use crate::liveness::Life;
use crate::map::{Neighbours, RegionRef};
use crate::onesided::{Kept, OneSided};
use crate::{FabricError, Loss, clock};

/// How long a thread that waits for its own operation waits for a peer's memory at a time: whoever gives an operation
/// up waits until nobody is at it.
const FOR_ITSELF: Duration = Duration::from_secs(1);
/// The same for one that moves others' operations on.
const FOR_OTHERS: Duration = Duration::from_millis(100);

/// Frames between lanes are passed on so often before their thread goes on with its own business.
const ROUNDS: u32 = 8;

/// Lanes at rest are looked after each so many turns: a peer may be gone.
pub(crate) const TURNS: u32 = 8;

/// Why a copy was not made.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// The peer has not handed its memory over yet.
    Late,
    /// Its checksum is wrong: the sender's memory was written after the sender had said it, or the bytes are damaged.
    Changed,
    Failed(FabricError),
}

/// A link and what carries it.
pub(crate) struct Lane {
    pub(crate) link: Link,
    pub(crate) wire: Box<dyn Wire>,
    /// What carries it was to be opened on first use.
    on_first_use: bool,
    /// The losses that were known when this lane was last looked after.
    losses: u32,
    /// Nothing moved then, and nobody was at it since.
    rests: bool,
}

impl Lane {
    pub(crate) fn new(link: Link, wire: Box<dyn Wire>) -> Lane {
        let on_first_use = wire.is_dormant();
        Lane { link, wire, on_first_use, losses: 0, rests: false }
    }

    /// Whether nothing is to be done for it: nothing moved when it was looked after, and nothing has come since.
    fn is_at_rest(&self, losses: u32) -> bool {
        self.rests && self.losses == losses && !self.wire.has_come() && !self.wire.is_demanding()
    }

    /// Ends everything with a peer that is lost.
    pub(crate) fn sever(&mut self) {
        self.wire.sever();
        self.link.sever();
    }

    /// How many one-sided operations a device has done, wrapping.
    #[inline]
    fn rdma_ended(&mut self) -> u32 {
        self.wire.rdma().map_or(0, |rdma| rdma.ended())
    }

    /// Operations that have not ended.
    fn unfinished(&mut self) -> usize {
        self.link.unfinished() + self.by_device()
    }

    /// Whether all one-sided operations of this rank have ended.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.link.is_quiet() && self.by_device() == 0
    }

    /// The one-sided operations of this rank that have not ended.
    pub(crate) fn open(&mut self) -> Open {
        Open { device: self.wire.rdma().and_then(|rdma| rdma.open()), link: self.link.one_sided() }
    }

    /// Whether these have ended by now.
    pub(crate) fn have_ended(&mut self, open: &mut Open) -> bool {
        if let Some(ids) = &mut open.device {
            match self.wire.rdma().filter(|rdma| rdma.open().is_some()) {
                Some(rdma) => ids.retain(|id| !rdma.has_ended(*id)),
                // Those that it had not done are the link's now.
                None => *open = Open { device: None, link: self.link.one_sided() },
            }
        }
        open.link.retain(|op| !self.link.has_ended(*op));
        open.link.is_empty() && open.device.as_ref().is_none_or(Vec::is_empty)
    }

    /// One-sided operations that the device has not done yet.
    fn by_device(&mut self) -> usize {
        self.wire.rdma().map_or(0, |rdma| rdma.unfinished())
    }

    /// What is still to go to the peer, also of what nobody waits for: sends and what the device is to do.
    fn sending(&mut self) -> usize {
        self.link.sending() + self.by_device()
    }

    /// Whether frames are still to go out, or the device to do its work, for a peer that may take them.
    fn is_leaving(&mut self) -> bool {
        let to_go = !self.wire.is_idle() || self.by_device() > 0;
        // Whoever has heard Bye acknowledges it and goes, and that may be lost with its end.
        to_go && !self.link.is_severed() && !self.link.peer_left() && !self.wire.is_peer_gone()
    }
}

/// One-sided operations that had not ended at some moment.
pub(crate) struct Open {
    /// While the device does them.
    device: Option<Vec<RdmaId>>,
    link: Vec<OpId>,
}

/// What a wait counts for among looks: whoever waits again and again moves everything on.
const WAIT: u64 = OFTEN as u64;

/// A program that looks so often between two looks of the progress thread moves everything on by itself.
pub(crate) const OFTEN: u32 = 16;

/// All lanes of a rank. Held by the fabric and by its progress thread.
pub(crate) struct Lanes {
    /// By rank; none for this one, or where there is nothing that carries messages.
    lanes: Vec<Option<Mutex<Lane>>>,
    pub(crate) life: Arc<Life>,
    pub(crate) neighbours: Option<Arc<Neighbours>>,
    pub(crate) onesided: Arc<OneSided>,
    pub(crate) parker: Arc<dyn Parker>,
    /// Where some ranks have no link of their own.
    pub(crate) switch: Option<Arc<Switch>>,
    /// Threads of the program that wait, and so move everything on, in the lower half; in the upper, how often the program
    /// has looked at an operation, with [`WAIT`] for each wait that was not over at once.
    pollers: AtomicU64,
    /// Peers rely on answers at any time.
    demanding: bool,
    /// How often all lanes were moved on.
    turns: AtomicU32,
}

impl Lanes {
    pub(crate) fn new(
        lanes: Vec<Option<Lane>>,
        life: Arc<Life>,
        neighbours: Option<Arc<Neighbours>>,
        onesided: Arc<OneSided>,
        parker: Arc<dyn Parker>,
        switch: Option<Arc<Switch>>,
    ) -> Lanes {
        // Others rely on what is passed on.
        let demanding = switch.is_some() || lanes.iter().flatten().any(|lane| lane.wire.is_demanding());
        let lanes = lanes.into_iter().map(|lane| lane.map(Mutex::new)).collect();
        Lanes {
            lanes,
            life,
            neighbours,
            onesided,
            parker,
            switch,
            pollers: AtomicU64::new(0),
            demanding,
            turns: AtomicU32::new(0),
        }
    }

    /// A thread of the program begins to wait.
    #[inline]
    pub(crate) fn enter(&self) {
        self.pollers.fetch_add(WAIT << 32 | 1, Ordering::Relaxed);
    }

    /// It looks at an operation, and moves it on.
    #[inline]
    pub(crate) fn note_look(&self) {
        self.pollers.fetch_add(1 << 32, Ordering::Relaxed);
    }

    /// It has ended to wait.
    #[inline]
    pub(crate) fn leave(&self) {
        self.pollers.fetch_sub(1, Ordering::Relaxed);
    }

    /// How often the program has looked since `before`, which is brought up to date; for ever if one of its threads waits.
    pub(crate) fn looks_since(&self, before: &mut u32) -> u32 {
        let pollers = self.pollers.load(Ordering::Relaxed);
        let (looks, waiting) = ((pollers >> 32) as u32, pollers as u32);
        let since = looks.wrapping_sub(std::mem::replace(before, looks));
        if waiting > 0 { u32::MAX } else { since }
    }

    /// Whether somebody has to listen even if no operation is under way.
    pub(crate) fn is_demanding(&self) -> bool {
        self.demanding
    }

    /// How long a thread may park, at most `longest`, until some lane is to be pumped. A lane that another thread is at is
    /// left out: the bound of all parks has to do for it.
    pub(crate) fn until_deadline(&self, longest: Duration) -> Duration {
        if !self.demanding {
            return longest;
        }
        let lanes = self.lanes.iter().flatten().filter_map(|lane| lane.try_lock().ok());
        let next = lanes.filter_map(|lane| lane.wire.deadline()).min();
        next.map_or(longest, |next| clock::until(next).min(longest))
    }

    /// The lane to a rank.
    #[inline]
    pub(crate) fn lock(&self, rank: u32) -> Option<MutexGuard<'_, Lane>> {
        let lane = self.lanes.get(rank as usize)?.as_ref()?;
        let mut lane = lane.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever asks for it gives it something to do.
        lane.rests = false;
        Some(lane)
    }

    /// Moves one lane on: true if anything moved. The lane is unlocked while large copies are made.
    ///
    /// `until` is the deadline of the operation for which the caller asks, if it does. Once it has ended, frames may
    /// stay where they came. Threads that wait for others are woken if these have ended.
    #[inline]
    pub(crate) fn pump<'a>(
        &'a self,
        rank: u32,
        lane: MutexGuard<'a, Lane>,
        lent: &mut Lent<'_>,
        takes: Takes,
        until: Option<Instant>,
    ) -> (bool, MutexGuard<'a, Lane>) {
        lane.wire.look();
        self.pump_seen(rank, lane, lent, takes, until)
    }

    /// Does that with what was seen to have come before.
    #[inline]
    pub(crate) fn pump_seen<'a>(
        &'a self,
        rank: u32,
        mut lane: MutexGuard<'a, Lane>,
        lent: &mut Lent<'_>,
        takes: Takes,
        until: Option<Instant>,
    ) -> (bool, MutexGuard<'a, Lane>) {
        let own = takes.own();
        let own_is_open = own.is_some_and(|op| !lane.link.has_ended(op));
        let (ended, heads, served) = (lane.link.ended(), lane.link.heads(), lane.link.served());
        let done = lane.rdma_ended();
        let mut moved = self.pump_frames(rank, &mut lane, lent, takes);
        while let Some(copy) = lane.link.next_copy(lent) {
            drop(lane);
            let (op, copied) = (copy.op, self.copy(rank, copy, lent, until));
            lane = self.lock(rank).expect("the lane that was unlocked");
            if !self.copied(rank, &mut lane, op, copied) {
                break;
            }
            lane.wire.look();
            self.pump_frames(rank, &mut lane, lent, takes);
            moved = true;
        }
        let own_ended = own_is_open && own.is_some_and(|op| lane.link.has_ended(op));
        let others = lane.link.ended().wrapping_sub(ended) != u32::from(own_ended);
        // Somebody may wait for a word that the peer has changed.
        let others = others || lane.link.served() != served || lane.rdma_ended() != done;
        // Whoever found the lane taken did not see what is left there.
        let others = others || lane.wire.has_left();
        let next = lane.link.awaits_lender();
        let lends = |(next, before): (&Option<OpId>, &Option<OpId>)| next.is_some() && next != before && *next != own;
        if others || next.iter().zip(&heads).any(lends) {
            self.parker.wake();
        }
        lane.rests = !moved;
        (moved, lane)
    }

    /// Takes note of what came of a copy: false if it is to be tried again later.
    pub(crate) fn copied(&self, rank: u32, lane: &mut Lane, op: OpId, copied: Result<(), CopyError>) -> bool {
        match copied {
            Ok(()) if lane.wire.is_given_up() => {
                // What was copied may be anything.
                self.life.lose(rank, Loss::GaveUp);
                lane.sever();
                lane.link.copied(op, Err(OpError::Severed));
            }
            Ok(()) => lane.link.copied(op, Ok(())),
            Err(CopyError::Late) => {
                lane.link.put_back(op);
                return false;
            }
            Err(CopyError::Changed) => {
                // The link is as good as before: its own frames have checksums that nobody else can make wrong.
                tracing::warn!(rank, "a message is not what its sender said: its checksum is wrong");
                lane.link.copied(op, Err(OpError::Changed));
            }
            Err(CopyError::Failed(error)) => {
                tracing::warn!(rank, %error, "a message could not be copied");
                lane.link.copied(op, Err(OpError::Unreachable));
            }
        }
        true
    }

    #[inline]
    fn pump_frames(&self, rank: u32, lane: &mut Lane, lent: &mut Lent<'_>, takes: Takes) -> bool {
        if lane.link.is_severed() {
            return false;
        }
        // Looked at before the frames, so that all that came before the loss is taken.
        let losses = self.life.count();
        if let Some(switch) = &self.switch {
            switch.heed(&self.life);
            switch.load(rank, &mut lane.link);
        }
        // All of it, also what is asked for later: nothing is taken out of a link that is severed.
        let takes = if losses == lane.losses { takes } else { Takes::All };
        let moved = lane.wire.pump(&mut lane.link, lent, takes);
        let moved = moved.and_then(|moved| match &self.switch {
            Some(switch) => switch.unload(rank, &mut lane.link).map(|()| moved),
            None => Ok(moved),
        });
        let moved = match moved {
            Ok(moved) => moved,
            Err(broken) => {
                self.fail(rank, lane, broken);
                return true;
            }
        };
        let went = || self.life.has_left_for(rank, LAST_WORDS) && lane.wire.is_dormant();
        if moved && lane.link.peer_left() || !moved && went() {
            self.life.lose(rank, Loss::Left);
        }
        if losses != lane.losses {
            lane.losses = losses;
            if self.life.loss(rank).is_some() {
                lane.sever();
                return true;
            }
        }
        moved
    }

    /// Ends a lane whose wire failed.
    pub(crate) fn fail(&self, rank: u32, lane: &mut Lane, Broken(problem): Broken) {
        let loss = if lane.wire.is_given_up() { Loss::GaveUp } else { Loss::Broken(problem) };
        lane.sever();
        match lane.on_first_use && !lane.link.has_heard() {
            true => self.life.lose_unheard(rank, loss),
            false => self.life.lose(rank, loss),
        }
    }

    /// Moves all lanes on that nobody else is at: true if anything moved. What carries them is asked once for all: each
    /// such look is at all that they have under way. Lanes at rest are left out but now and then.
    pub(crate) fn pump_all(&self) -> bool {
        let mut moved = false;
        self.parker.look();
        let losses = self.life.count();
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let leaves_out = self.switch.is_none() && !turn.is_multiple_of(TURNS);
        for (rank, lane) in (0..).zip(&self.lanes) {
            let Some(lane) = lane else { continue };
            let lane = match lane.try_lock() {
                Ok(lane) => lane,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            if leaves_out && lane.is_at_rest(losses) {
                continue;
            }
            moved |= self.pump_seen(rank, lane, &mut Lent::Nothing, Takes::All, None).0;
        }
        self.pass_on();
        moved
    }

    /// Moves everything on if others rely on what is passed on: a program whose waits are all short looks at nothing else.
    pub(crate) fn pump_for_others(&self) {
        if self.switch.is_some() {
            self.pump_all();
        }
    }

    /// Moves the lanes on for which other lanes have something, while they take it. To be called with no lane locked,
    /// after any was.
    #[inline]
    pub(crate) fn pass_on(&self) {
        let Some(switch) = &self.switch else { return };
        for _ in 0..ROUNDS {
            let mut moved = false;
            for rank in switch.waited_for() {
                if let Some(lane) = self.lock(rank) {
                    moved |= self.pump(rank, lane, &mut Lent::Nothing, Takes::All, None).0;
                }
            }
            if !moved {
                break;
            }
        }
    }

    /// Moves every lane on once, also those that other threads are at: links that have broken are known then.
    pub(crate) fn pump_each(&self) {
        for rank in 0..self.lanes.len() as u32 {
            if let Some(lane) = self.lock(rank) {
                drop(self.pump(rank, lane, &mut Lent::Nothing, Takes::All, None));
            }
        }
    }

    /// Operations that have not ended.
    pub(crate) fn unfinished(&self) -> usize {
        self.count(Lane::unfinished)
    }

    /// Whether somebody has to look after this rank's end of anything, although no thread of the program waits.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_demanding() || self.onesided.serves() || self.unfinished() > 0 || self.onesided.has_quarantined()
    }

    /// The ranks that are in the middle of an operation on this rank's share, which has ended.
    pub(crate) fn still_working_on(&self, slot: u32, tag: u64) -> Vec<u32> {
        match self.onesided.in_quarantine(slot, tag) {
            Some(Kept::Memory(memory)) => self.working_on(slot, &memory),
            Some(Kept::Ending) => vec![self.onesided.rank()],
            None => Vec::new(),
        }
    }

    fn working_on(&self, slot: u32, memory: &Exposed) -> Vec<u32> {
        let mut ranks = self.onesided.working_on(slot);
        let serving = |rank: &u32| self.lock(*rank).is_some_and(|lane| lane.link.is_serving(memory));
        ranks.extend((0..self.lanes.len() as u32).filter(serving));
        ranks
    }

    /// Lets go of the memory of shares that have ended, as far as nobody works on it any more.
    pub(crate) fn sweep(&self) {
        self.onesided.sweep(|slot, memory| self.working_on(slot, memory).is_empty());
    }

    /// Sends, and one-sided operations of devices, that have not ended.
    pub(crate) fn sending(&self) -> usize {
        self.count(Lane::sending)
    }

    fn count(&self, of: impl Fn(&mut Lane) -> usize) -> usize {
        let ranks = 0..self.lanes.len() as u32;
        ranks.filter_map(|rank| self.lock(rank)).map(|mut lane| of(&mut lane)).sum()
    }

    /// All links are about to end.
    pub(crate) fn end(&self) {
        for rank in 0..self.lanes.len() as u32 {
            if let Some(mut lane) = self.lock(rank) {
                let Lane { link, wire, .. } = &mut *lane;
                wire.end(link);
            }
        }
    }

    /// Whether frames are still to go out.
    pub(crate) fn is_leaving(&self) -> bool {
        (0..self.lanes.len() as u32).filter_map(|rank| self.lock(rank)).any(|mut lane| lane.is_leaving())
    }

    /// Whether frames are still to go out to ranks to which others lead.
    pub(crate) fn is_leaving_far(&self) -> bool {
        let far = (0..self.lanes.len() as u32).filter(|rank| self.is_far(*rank));
        far.filter_map(|rank| self.lock(rank)).any(|mut lane| lane.is_leaving())
    }

    /// Tells all peers that nothing more comes.
    pub(crate) fn close(&self) {
        self.close_those(|_| true);
    }

    /// Tells it to those of them alone to which others lead.
    pub(crate) fn close_far(&self) {
        self.close_those(|rank| self.is_far(rank));
    }

    fn close_those(&self, of: impl Fn(u32) -> bool) {
        for rank in (0..self.lanes.len() as u32).filter(|rank| of(*rank)) {
            // To say so would be the first that it carries. The coordinator tells it.
            if let Some(mut lane) = self.lock(rank).filter(|lane| !lane.wire.is_dormant()) {
                lane.link.close();
            }
        }
    }

    /// Whether other ranks lead to this one.
    pub(crate) fn is_far(&self, rank: u32) -> bool {
        self.switch.as_ref().is_some_and(|switch| switch.is_far(rank))
    }

    /// Ends the links on which something is still to be sent, so that memory which peers were offered can go: they see
    /// that it is no longer what it was. Returns the ranks behind them, and those that have not acknowledged all.
    pub(crate) fn give_up(&self) -> Vec<u32> {
        let mut given_up = Vec::new();
        for rank in 0..self.lanes.len() as u32 {
            let Some(mut lane) = self.lock(rank) else { continue };
            let sends = lane.sending() > 0;
            if sends || lane.is_leaving() {
                given_up.push(rank);
            }
            if sends {
                lane.sever();
            }
        }
        given_up
    }

    /// Ends all links and lets go of all that carried them: nothing of the devices is left. Whoever waits is woken.
    pub(crate) fn retire(&self) {
        for rank in 0..self.lanes.len() as u32 {
            if let Some(mut lane) = self.lock(rank) {
                lane.sever();
                lane.wire = Box::new(Retired);
            }
        }
        self.parker.close();
        self.parker.wake();
    }

    /// Makes the copy of a rendezvous. Where the peer's memory is not mapped yet, it waits for that for a bounded time.
    pub(crate) fn copy(
        &self,
        rank: u32,
        copy: Copy,
        lent: &mut Lent<'_>,
        until: Option<Instant>,
    ) -> Result<(), CopyError> {
        const OP: &str = "recv";
        let neighbours = self.neighbours.as_ref().ok_or(CopyError::Failed(FabricError::NoWindows { op: OP }))?;
        let at = RegionRef { key: copy.from.key, offset: copy.from.offset, len: copy.len };
        let patience = until.map_or(FOR_OTHERS, |until| clock::until(until).min(FOR_ITSELF));
        let from: Exposed = neighbours.map(OP, rank, at, patience).map_err(|error| match error {
            FabricError::Reach { cause, .. } if matches!(*cause, ReachError::TimedOut { .. }) => CopyError::Late,
            error => CopyError::Failed(error),
        })?;
        match copy.into {
            Into::Memory(memory) => {
                from.copy_to(0, &memory, 0, from.len());
                verify(copy.checksum, &memory)
            }
            Into::Lent => {
                let bytes = lent.target(copy.op).expect("the copy was given to the thread that lends its target");
                let bytes = &mut bytes[..from.len()];
                from.read(0, bytes);
                verify(copy.checksum, &*bytes)
            }
        }
    }
}

fn verify(expected: Option<u32>, copied: &(impl Incoming + ?Sized)) -> Result<(), CopyError> {
    let wrong = expected.is_some_and(|expected| checksum::append(0, copied, 0) != expected);
    if wrong { Err(CopyError::Changed) } else { Ok(()) }
}
