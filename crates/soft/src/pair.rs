//! Queue pairs: their states, and what keeps them going.

mod across;
mod ask;
mod connect;
mod handle;
mod link;
mod message;
pub(crate) mod network;
mod post;
mod receive;
mod send;
mod serve;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::time::Instant;

use fulmen_verbs::{
    Access, AsyncEvent, Completion, CompletionOpcode, CompletionStatus, Path, QueuePairInit, QueuePairKind,
    QueuePairLimits, QueuePairState, RecvRequest, Transition, VerbsError,
};

use crate::Profile;
use crate::completion::Queue;
use crate::device::{Lingering, lock, pair_slot};
use crate::directory::SharedPair;
use crate::domain::Domain;
use crate::network::PeerEnd;
use crate::patience::Patience;
use crate::rest::Rest;
use crate::shared::{Fed, SharedQueue};
use crate::wire::OwnWire;
pub(crate) use handle::PairHandle;
use link::Link;
use receive::Turn;
pub(crate) use send::each_piece;
use send::{Send, Timers};

/// Idle looks at a queue pair between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 16;

pub(crate) struct Pair {
    pub(crate) domain: Arc<Domain>,
    number: u32,
    kind: QueuePairKind,
    limits: QueuePairLimits,
    signal_all: bool,
    send_queue: Arc<Queue>,
    recv_queue: Arc<Queue>,
    /// Where its RECVs come from, each when a message begins, instead of being posted to it.
    shared: Option<Arc<SharedQueue>>,
    this: Weak<Pair>,
    inner: Mutex<Inner>,
    rest: Arc<Rest>,
}

/// What changes. The lock is this process's own.
struct Inner {
    state: QueuePairState,
    access: Access,
    wire: OwnWire,
    link: Option<Link>,
    /// The last peer, if it was in the middle of something when it was let go.
    lingering: Option<Arc<Lingering>>,
    /// Requests that were posted and have not completed, oldest first.
    sends: VecDeque<Send>,
    /// How many of them were begun, from the front.
    begun: usize,
    /// In SQD: how many of them, from the front, may still go out.
    draining: usize,
    send_used: u64,
    /// The front one failed: nothing more goes out.
    broken: bool,
    recvs: VecDeque<Recv>,
    recv_used: u64,
    /// The shared receive queue was empty, and feeds this queue pair when it no longer is.
    hungry: bool,
    /// Nothing more is taken of the peer, which is gone.
    closed: bool,
    /// The queue pair of another host that has asked for the connection.
    called: Option<PeerEnd>,
    patience: Patience,
    /// Messages that were put into the ring.
    sent: u64,
    /// RECVs that were posted.
    posted: u64,
    /// Messages that were taken out of the peer's ring.
    taken: u64,
    /// Bytes of the front RECV that the parts of a message have filled.
    filled: u32,
    /// Bytes of the peer's WRITE that this process has put in place for it.
    written: u32,
    /// Bytes of the peer's READ that it has been answered.
    answered: u32,
    /// The peer was told that its next request is not allowed. It sends no other over this connection.
    denied: bool,
    /// READs and atomics that the peer was asked for and has not answered.
    asked: u32,
    /// How many messages the peer has taken once it has done every WRITE that it was asked for.
    written_by: u64,
    /// The message that is coming in parts found no RECV, and is lost.
    dropping: bool,
    /// The program was told that the peer sends.
    established: bool,
    /// The incoming message that was last said to have found no RECV.
    stalled: Option<u64>,
    timers: Timers,
    looks: u32,
}

/// A receive request.
struct Recv {
    request: RecvRequest,
    depth: u64,
}

/// What driving a queue pair gave.
#[derive(Clone, Copy, Default)]
pub(crate) struct Driven {
    pub(crate) worked: bool,
    /// Something came from another host.
    pub(crate) came: bool,
    /// When there is something to do even if the peer does nothing.
    pub(crate) next: Option<Instant>,
}

impl Driven {
    /// What this and another look gave together.
    pub(crate) fn join(&mut self, other: Driven) {
        self.worked |= other.worked;
        self.came |= other.came;
        self.next = self.next.into_iter().chain(other.next).min();
    }
}

impl Pair {
    fn new(
        domain: &Arc<Domain>,
        init: &QueuePairInit,
        send_queue: Arc<Queue>,
        recv_queue: Arc<Queue>,
        shared: Option<Arc<SharedQueue>>,
    ) -> Result<Arc<Pair>, VerbsError> {
        let device = &domain.device;
        let Some(number) = device.take_slot() else {
            let limit = device.info.limits.queue_pairs.into();
            let (device, what) = (device.info.name.clone(), "queue pairs");
            return Err(VerbsError::Limit { device, what, asked: limit + 1, limit });
        };
        let wire = match OwnWire::new(&device.node, number, init.kind) {
            Ok(wire) => wire,
            Err(cause) => {
                device.give_slot_back(number);
                return Err(device.system("create_qp", &cause));
            }
        };
        device.directory.set_pair(pair_slot(number), number, SharedPair::of(&wire));
        let limits = QueuePairLimits {
            send_depth: init.limits.send_depth.max(1),
            recv_depth: if shared.is_some() { 0 } else { init.limits.recv_depth.max(1) },
            send_pieces: init.limits.send_pieces.max(1),
            recv_pieces: if shared.is_some() { 0 } else { init.limits.recv_pieces.max(1) },
            inline_bytes: init.limits.inline_bytes,
        };
        let inner = Inner {
            state: QueuePairState::Reset,
            access: Access::empty(),
            wire,
            link: None,
            lingering: None,
            sends: VecDeque::with_capacity(limits.send_depth as usize),
            begun: 0,
            draining: 0,
            send_used: 0,
            broken: false,
            recvs: VecDeque::with_capacity(limits.recv_depth as usize),
            recv_used: 0,
            hungry: false,
            closed: false,
            called: None,
            patience: Patience::new(device.options.recv_patience),
            sent: 0,
            posted: 0,
            taken: 0,
            filled: 0,
            written: 0,
            answered: 0,
            denied: false,
            asked: 0,
            written_by: 0,
            dropping: false,
            established: false,
            stalled: None,
            timers: Timers::default(),
            looks: 0,
        };
        let pair = Arc::new_cyclic(|this| Pair {
            domain: domain.clone(),
            number,
            kind: init.kind,
            limits,
            signal_all: init.signal_all,
            send_queue,
            recv_queue,
            shared,
            this: this.clone(),
            inner: Mutex::new(inner),
            rest: Arc::default(),
        });
        pair.send_queue.attach(&pair);
        pair.recv_queue.attach(&pair);
        device.add_pair(&pair);
        Ok(pair)
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// To look at it or to change it, after which there may be something to be done.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        let inner = lock(&self.inner);
        self.rest.end();
        inner
    }

    fn profile(&self) -> Profile {
        self.domain.device.options.profile
    }

    fn is_reliable(&self) -> bool {
        self.kind == QueuePairKind::Rc
    }

    /// Whether a SEND is held until the peer has posted its RECV, for ever if need be, and is done once its bytes have
    /// left this side's memory: nobody acknowledges them, and nobody tells of a dead peer.
    fn holds(&self) -> bool {
        self.profile() == Profile::Thunderbolt
    }

    /// Does whatever can be done now. `clock`: also what depends on time.
    pub(crate) fn drive(&self, clock: bool) -> Driven {
        self.drive_locked(&mut lock(&self.inner), clock)
    }

    /// Does that for a program that polls, unless there is nothing: whether something came from another host.
    #[inline]
    pub(crate) fn drive_awake(&self) -> bool {
        !self.rest.is_on() && self.drive(false).came
    }

    /// Does that although nothing is known to have come: whether something has.
    pub(crate) fn drive_on_suspicion(&self) -> bool {
        let mut inner = lock(&self.inner);
        if let Some(Link::Far(far)) = &inner.link {
            far.suspect();
        }
        self.drive_locked(&mut inner, false).came
    }

    /// Does that, also what depends on time, unless there is nothing.
    #[inline]
    pub(crate) fn drive_unless_asleep(&self) -> Driven {
        if self.rest.is_sleep() { Driven::default() } else { self.drive(true) }
    }

    /// Does that if nobody is at this queue pair, who drives it then.
    pub(crate) fn drive_if_idle(&self) -> Driven {
        if self.rest.is_sleep() {
            return Driven::default();
        }
        match self.inner.try_lock() {
            Ok(mut inner) => self.drive_locked(&mut inner, true),
            Err(TryLockError::Poisoned(poisoned)) => self.drive_locked(&mut poisoned.into_inner(), true),
            Err(TryLockError::WouldBlock) => Driven::default(),
        }
    }

    /// Does that unless there is nothing.
    pub(crate) fn drive_if_awake_and_idle(&self) -> Driven {
        if self.rest.is_on() { Driven::default() } else { self.drive_if_idle() }
    }

    fn drive_locked(&self, inner: &mut Inner, clock: bool) -> Driven {
        let mut came = false;
        let mut worked = match &inner.link {
            None => return Driven::default(),
            Some(Link::Near(_)) => self.receive(inner) != Turn::Idle,
            Some(Link::Far(_)) => self.drive_far(inner, &mut came),
        };
        let busy = !inner.sends.is_empty();
        if busy {
            worked |= self.advance(inner);
        }
        // A thread of the device looks when the program has not for some time.
        let quiet = match &mut inner.link {
            Some(Link::Far(far)) => far.is_quiet(worked),
            _ => false,
        };
        let idle = !worked && (clock || quiet);
        self.tell(inner, idle);
        let late = if clock { self.tell_late(inner) } else { None };
        if let Some(Link::Far(far)) = &inner.link
            && self.is_settled(inner, far)
        {
            let sleeps = inner.sends.is_empty() && !far.owes_acknowledgement(Pair::words(inner));
            self.rest.begin(sleeps, || self.is_told(far));
        }
        let waits = |inner: &Inner| inner.patience.until().into_iter().chain(late).min();
        if busy {
            inner.looks = if worked { 0 } else { inner.looks + 1 };
            if (clock || inner.looks.is_multiple_of(LOOKS_PER_CLOCK)) && !inner.sends.is_empty() {
                let next = self.look_at_clock(inner);
                return Driven { worked, came, next: next.into_iter().chain(waits(inner)).min() };
            }
        }
        Driven { worked, came, next: waits(inner) }
    }

    pub(crate) fn peer_works_on(&self, key: u32) -> bool {
        let inner = self.inner();
        // What a peer on another host asks for is done under the lock that was taken above, or that of the table.
        matches!(&inner.link, Some(Link::Near(near)) if near.remote.is_alive() && near.wire.works_on(key))
    }

    fn complete_send(&self, wr_id: u64, status: CompletionStatus, opcode: CompletionOpcode, byte_len: u32) {
        let completion = Completion { wr_id, status, opcode, byte_len, imm: None, qp_num: self.number, origin: None };
        self.send_queue.push(completion, false);
    }

    fn complete_recv(&self, wr_id: u64, status: CompletionStatus) {
        let completion = Completion {
            wr_id,
            status,
            opcode: CompletionOpcode::Recv,
            byte_len: 0,
            imm: None,
            qp_num: self.number,
            origin: None,
        };
        self.recv_queue.push(completion, false);
    }

    /// Moves to the error state and flushes both queues.
    fn break_off(&self, inner: &mut Inner) {
        let before = std::mem::replace(&mut inner.state, QueuePairState::Error);
        // First the peer is told that nothing of this side's memory may be read any more, then the memory goes.
        self.void(inner);
        self.unlink(inner);
        for send in inner.sends.drain(..) {
            self.complete_send(send.wr_id, CompletionStatus::Flushed, send.opcode(), 0);
        }
        self.release_unused(inner);
        for recv in inner.recvs.drain(..) {
            self.complete_recv(recv.request.wr_id, CompletionStatus::Flushed);
        }
        inner.forget();
        if self.shared.is_some() && before != QueuePairState::Error {
            self.domain.device.tell(AsyncEvent::LastReceive { qp_num: self.number });
        }
    }

    /// Tells the peer that the queue pair is in error.
    fn void(&self, inner: &Inner) {
        if self.holds() {
            // What was done is on its way, as bytes.
            inner.wire.end();
        } else {
            inner.wire.void();
        }
    }

    /// Lets go of the peer, which was told.
    fn unlink(&self, inner: &mut Inner) {
        match inner.link.take() {
            None => {}
            Some(Link::Near(near)) => {
                near.remote.wake();
                // It may be in the middle of a WRITE, for which whoever uses the memory otherwise has to wait.
                inner.lingering = self.domain.device.linger(near.remote, near.wire);
            }
            Some(Link::Far(far)) => self.part_far(*far, Pair::words(inner)),
        }
    }

    /// Gives RECVs back to the shared queue that were promised to a peer and of which nothing came.
    fn release_unused(&self, inner: &mut Inner) {
        let Some(shared) = &self.shared else { return };
        let used = usize::from(inner.filled > 0);
        for recv in inner.recvs.drain(used.min(inner.recvs.len())..).rev() {
            shared.give_back(recv.request);
        }
    }

    /// Takes a new wire, so that nothing of the old connection is mistaken for the next one's.
    fn reset(&self, inner: &mut Inner) -> Result<(), VerbsError> {
        if let QueuePairState::Reset | QueuePairState::Init = inner.state {
            // It had no connection yet, and a peer may be bound to its wire already.
            self.forget_recvs(inner);
            inner.forget();
            inner.wire.grant(0);
            inner.state = QueuePairState::Reset;
            return Ok(());
        }
        let device = &self.domain.device;
        let wire = OwnWire::new(&device.node, self.number, self.kind);
        let wire = wire.map_err(|cause| device.system("modify to RESET", &cause))?;
        device.directory.set_pair(pair_slot(self.number), self.number, SharedPair::of(&wire));
        inner.wire.void();
        inner.wire = wire;
        self.unlink(inner);
        inner.sends.clear();
        self.forget_recvs(inner);
        inner.forget();
        inner.state = QueuePairState::Reset;
        Ok(())
    }

    fn forget_recvs(&self, inner: &mut Inner) {
        for recv in inner.recvs.drain(..).rev() {
            if let Some(shared) = &self.shared {
                shared.give_back(recv.request);
            }
        }
    }

    fn check_path(&self, path: &Path) -> Result<(), VerbsError> {
        let gids = self.domain.device.gids().len();
        if usize::from(path.local_gid_index) >= gids {
            let problem = format!("index {} is empty: the last one is {}", path.local_gid_index, gids - 1);
            return Err(VerbsError::Invalid { what: "GID", problem });
        }
        if self.profile() == Profile::Thunderbolt && path.remote_gid.is_zero() {
            let problem = "the peer's is zero: this link has no other address".to_owned();
            return Err(VerbsError::Invalid { what: "GID", problem });
        }
        if path.remote_qp >= 1 << 24 {
            let problem = format!("{:#x} has more than 24 bits", path.remote_qp);
            return Err(VerbsError::Invalid { what: "remote queue pair", problem });
        }
        Ok(())
    }

    fn change(&self, transition: &Transition) -> Result<(), VerbsError> {
        let device = &self.domain.device;
        device.check_own("modify")?;
        let check = |inner: &Inner| device.info.check_transition(self.number, inner.state, transition);
        // Connecting waits for another process, and is done without the lock for that reason.
        let mut link = None;
        if let Transition::ReadyToReceive { path, .. } = transition {
            let own = {
                let inner = self.inner();
                check(&inner)?;
                inner.wire.incarnation
            };
            self.check_path(path)?;
            link = Some(self.connect(path, own)?);
        }
        let mut guard = self.inner();
        let inner = &mut *guard;
        check(inner)?;
        match *transition {
            Transition::Reset => self.reset(inner)?,
            Transition::DatagramInit { .. } | Transition::DatagramReceive | Transition::DatagramSend { .. } => {
                let problem = "a connected queue pair has a peer: use the transitions that name it".to_owned();
                return Err(VerbsError::Invalid { what: "transition", problem });
            }
            Transition::Init { access, .. } => {
                inner.access = access;
                inner.wire.set_rights(access, self.domain.number);
                inner.state = QueuePairState::Init;
            }
            Transition::ReadyToReceive { path, min_rnr_timer, .. } => {
                let Some(new) = link else { unreachable!("connected above") };
                let nanoseconds = min_rnr_timer.duration().as_nanos() as u64;
                inner.wire.set_gids(device.gids()[usize::from(path.local_gid_index)], path.remote_gid);
                inner.state = QueuePairState::ReadyToReceive;
                match new {
                    Link::Near(near) => {
                        inner.wire.connect(near.wire.incarnation, nanoseconds, near.remote.process().is_some());
                        // The peer may have sent already, and waits.
                        near.remote.wake();
                        inner.link = Some(Link::Near(near));
                    }
                    Link::Far(far) => {
                        // Queue pairs of this host that name this one find it taken.
                        inner.wire.connect(far.incarnation(), nanoseconds, false);
                        inner.link = Some(Link::Far(far));
                        self.start_far(inner, nanoseconds);
                    }
                }
                // What it has sent is seen by the device's thread, which may sleep, if nobody polls.
                device.progress.kick();
            }
            Transition::ReadyToSend { timeout, retries, rnr_retries, .. } => {
                if inner.state != QueuePairState::ReadyToReceive || self.is_reliable() {
                    inner.timers.set(timeout, retries, rnr_retries);
                }
                inner.state = QueuePairState::ReadyToSend;
                self.advance(inner);
            }
            Transition::SendDrain => {
                if inner.state == QueuePairState::ReadyToSend {
                    inner.draining = inner.sends.len();
                }
                inner.state = QueuePairState::SendDrain;
            }
            Transition::Error => self.break_off(inner),
        }
        if matches!(transition, Transition::Reset | Transition::Error)
            && let Some(peer) = inner.lingering.take()
        {
            // The memory is the caller's to use otherwise after this.
            drop(guard);
            device.wait_for(&peer);
        }
        Ok(())
    }
}

impl Inner {
    /// Forgets the connection's counts.
    fn forget(&mut self) {
        (self.begun, self.draining, self.send_used, self.recv_used) = (0, 0, 0, 0);
        (self.sent, self.posted, self.taken, self.filled) = (0, 0, 0, 0);
        (self.written, self.answered, self.asked, self.written_by) = (0, 0, 0, 0);
        (self.broken, self.denied, self.dropping, self.closed) = (false, false, false, false);
        (self.established, self.stalled, self.called) = (false, None, None);
        self.patience.renew();
        self.timers = Timers::default();
    }
}

impl SharedPair {
    fn of(wire: &OwnWire) -> SharedPair {
        SharedPair { wire: wire.share(), incarnation: wire.incarnation }
    }
}

/// Takes the connection of the first queue pair that completes into a queue, as if its process were hostile.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn steal_stream(queue: &Arc<dyn fulmen_verbs::CompletionQueue>) -> Option<crate::network::Stream> {
    let queue = queue.as_any().downcast_ref::<crate::completion::QueueHandle>()?;
    let pair = queue.0.pairs().first()?.clone();
    pair.drive(true);
    match &mut pair.inner().link {
        Some(Link::Far(far)) => far.steal(),
        _ => None,
    }
}

impl Fed for Pair {
    fn feed(&self) {
        let mut inner = self.inner();
        inner.hungry = false;
        if self.receive(&mut inner) == Turn::Full {
            self.domain.device.progress.kick();
        }
    }
}
