//! One-sided operations that devices do: WRITE, READ and atomics.
//!
//! Where both devices of a link have some of them over RC, the link gets a queue pair more for each direction, on which one
//! end asks and the other end's device answers. A request that the owner's device refuses breaks a queue pair. So each end
//! has one of its own to break: when that happens, what was refused, and all behind it, of which none has had an effect,
//! goes over the link, whose other end says what is wrong; and so does everything later.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use fulmen_memory::Exposed;
use fulmen_verbs::{
    Access, Capabilities, CompletionStatus, DeviceInfo, MemoryRegion, Piece, PostError, ProtectionDomain, QueuePair,
    RemoteAddr, SendOp, SendRequest, VerbsError,
};
use serde::{Deserialize, Serialize};

use super::full::Fullness;
use super::hub::{Berth, Work};
use super::memory::Registered;
use crate::engine::{At, Atomic, Cancel, Counter, Lent, Link, OpError, OpId, Rights, Source, Target};

/// Operations of a link that are posted at a time.
pub(super) const DEPTH: usize = 64;
/// Requests of each: a put that counts has two.
pub(super) const REQUESTS: usize = 2;
/// Bytes of the place to which an atomic brings what it found.
pub(super) const CELL: usize = 8;

/// What a device can be asked for. Atomics only where they are also the processors', so that each word has one executor.
pub(super) fn verbs(can: &Capabilities) -> Rights {
    let mut verbs = Rights::empty();
    verbs.set(Rights::WRITE, can.rc && can.write);
    verbs.set(Rights::READ, can.rc && can.read);
    verbs.set(Rights::ATOMIC, can.rc && can.atomics && can.atomics_with_cpu);
    verbs
}

/// The access that peers need for these.
pub(super) fn remote(verbs: Rights) -> Access {
    let mut access = Access::empty();
    access.set(Access::REMOTE_READ, verbs.contains(Rights::READ));
    access.set(Access::REMOTE_WRITE, verbs.contains(Rights::WRITE));
    access.set(Access::REMOTE_ATOMIC, verbs.contains(Rights::ATOMIC));
    access
}

/// How a peer's device finds shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceKey {
    /// Which of the owner's devices: what it said about it.
    number: u32,
    addr: u64,
    rkey: u32,
    /// What the device does with it, as bits of [`Rights`].
    verbs: u8,
}

impl DeviceKey {
    /// Which of the owner's devices does it.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn verbs(&self) -> Rights {
        Rights::from_bits_truncate(self.verbs)
    }

    /// The address of the byte at `offset`.
    pub(crate) fn at(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.addr.wrapping_add(offset), rkey: self.rkey }
    }
}

/// Registers shared memory with each device that links run over, with exactly the rights that it is shared with.
pub(crate) struct Registrar {
    /// Each with its number.
    devices: Vec<Registering>,
}

struct Registering {
    number: u32,
    domain: Arc<dyn ProtectionDomain>,
    info: DeviceInfo,
    /// It was logged that it refused a share.
    told: AtomicBool,
}

/// A registration, and how peers name it.
pub(crate) type DeviceShare = (Arc<dyn MemoryRegion>, DeviceKey);

impl Registrar {
    pub(super) fn new(devices: Vec<(u32, Arc<dyn ProtectionDomain>, DeviceInfo)>) -> Registrar {
        let registering = |(number, domain, info)| Registering { number, domain, info, told: AtomicBool::new(false) };
        Registrar { devices: devices.into_iter().map(registering).collect() }
    }

    /// What a device cannot register or does not do is left out: it goes over links.
    pub(crate) fn register(&self, memory: &Exposed, rights: Rights) -> Vec<DeviceShare> {
        let register = |device: &Registering| device.register(verbs(&device.info.capabilities) & rights, memory);
        self.devices.iter().filter_map(register).collect()
    }
}

impl Registering {
    fn register(&self, verbs: Rights, memory: &Exposed) -> Option<DeviceShare> {
        let (start, end) = (memory.offset(), memory.offset() + memory.len());
        if verbs.is_empty() || start == end {
            return None;
        }
        let mut access = remote(verbs);
        access.set(Access::LOCAL_WRITE, verbs.intersects(Rights::WRITE | Rights::ATOMIC));
        let registered = self.domain.register(memory.region(), start..end, access);
        let registration = registered.inspect_err(|cause| self.tell(cause, memory.len())).ok()?;
        let key = DeviceKey {
            number: self.number,
            addr: memory.addr() as u64,
            rkey: registration.rkey(),
            verbs: verbs.bits(),
        };
        Some((registration, key))
    }

    /// Once as a warning: what is shared later may be refused each time.
    fn tell(&self, cause: &VerbsError, bytes: usize) {
        let device = &*self.info.name;
        if self.told.swap(true, Ordering::Relaxed) {
            tracing::debug!(device, bytes, %cause, "shared memory goes over links");
        } else {
            tracing::warn!(
                device,
                bytes,
                %cause,
                "shared memory goes over links, since the device refuses to register it: share less, or fewer pieces"
            );
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum Verb {
    /// Write registered memory, and then add to a word.
    Put { data: Exposed, count: Option<(RemoteAddr, u64)> },
    /// Read into registered memory.
    Get { into: Exposed },
    /// Change a word.
    Atomic(Atomic),
}

/// An operation on a peer's memory.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub verb: Verb,
    pub remote: RemoteAddr,
    /// The same for the link.
    pub at: At,
    pub then: Option<Counter>,
}

impl Request {
    /// What the devices need to have for it.
    pub(crate) fn needs(&self) -> Rights {
        match &self.verb {
            Verb::Put { count: None, .. } => Rights::WRITE,
            Verb::Put { count: Some(_), .. } => Rights::WRITE | Rights::ATOMIC,
            Verb::Get { .. } => Rights::READ,
            Verb::Atomic(_) => Rights::ATOMIC,
        }
    }

    /// Starts it over the link.
    pub(crate) fn start(self, link: &mut Link) -> OpId {
        match self.verb {
            Verb::Put { data, .. } => link.put(self.at, Source::Memory(data), self.then),
            Verb::Get { into } => link.get(self.at, Target::Memory { memory: into, direct: false }),
            Verb::Atomic(atomic) => link.atomic(self.at, atomic),
        }
    }
}

/// An operation that was given to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RdmaId {
    index: usize,
    generation: u64,
}

#[derive(Debug)]
enum State {
    Free,
    /// It waits, or was posted.
    Open(Request),
    /// It goes over the link.
    Link(OpId),
    Done(Result<u64, OpError>),
}

#[derive(Debug)]
struct Slot {
    generation: u64,
    detached: bool,
    state: State,
}

/// The queue pairs of a link for one-sided operations.
pub(super) struct RdmaPairs {
    /// On which this rank asks.
    pub out: Arc<dyn QueuePair>,
    /// On which it is asked.
    pub into: Arc<dyn QueuePair>,
    /// Which of the peer's devices is asked.
    pub there: u32,
}

/// What this rank's device does for the operations of one link.
pub(crate) struct Rdma {
    berth: Berth,
    /// The queue pair on which this rank asks, while it is of use.
    out: Option<Arc<dyn QueuePair>>,
    /// The one on which it is asked.
    into: Option<Arc<dyn QueuePair>>,
    there: u32,
    verbs: Rights,
    /// Bytes of the longest request.
    longest: u64,
    cells: Vec<Piece>,
    registered: Arc<Registered>,
    /// The cells' registration lasts as long as this.
    _cells: Arc<Registered>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    waiting: VecDeque<usize>,
    /// In the order in which they were posted.
    flying: VecDeque<usize>,
    posted: u64,
    /// Requests that are to be posted, of the operations at the end of `flying`.
    batch: Vec<SendRequest>,
    fullness: Fullness,
    /// How many have ended, wrapping.
    ended: u32,
}

/// A completion that means nothing.
#[derive(Debug, thiserror::Error)]
#[error("a completion out of order")]
pub(super) struct OutOfOrder;

impl Rdma {
    pub(super) fn new(
        berth: Berth,
        info: &DeviceInfo,
        pairs: RdmaPairs,
        cells: Vec<Piece>,
        (registered, frames): (Arc<Registered>, Arc<Registered>),
    ) -> Rdma {
        Rdma {
            berth,
            out: Some(pairs.out),
            into: Some(pairs.into),
            there: pairs.there,
            verbs: verbs(&info.capabilities),
            longest: info.limits.message_bytes,
            cells,
            registered,
            _cells: frames,
            slots: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            flying: VecDeque::with_capacity(DEPTH),
            posted: 0,
            batch: Vec::with_capacity(REQUESTS * DEPTH),
            fullness: Fullness::default(),
            ended: 0,
        }
    }

    /// Which of the peer's devices it asks.
    pub(crate) fn there(&self) -> u32 {
        self.there
    }

    /// Whether the device can do this.
    pub(crate) fn takes(&self, request: &Request) -> bool {
        let reaches = |memory: &Exposed| {
            !memory.is_empty() && memory.len() as u64 <= self.longest && self.registered.key(memory).is_some()
        };
        let able = match &request.verb {
            Verb::Put { data, .. } => reaches(data),
            Verb::Get { into } => reaches(into),
            Verb::Atomic(_) => request.remote.addr.is_multiple_of(8),
        };
        self.out.is_some() && able && self.verbs.contains(request.needs())
    }

    /// Starts an operation that it takes.
    pub(crate) fn start(&mut self, request: Request) -> RdmaId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, detached: false, state: State::Free });
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        slot.detached = false;
        slot.state = State::Open(request);
        self.waiting.push_back(index);
        RdmaId { index, generation: slot.generation }
    }

    /// The outcome of an operation, which is gone once it is told.
    pub(crate) fn poll(&mut self, id: RdmaId, link: &mut Link) -> Poll<Result<u64, OpError>> {
        let slot = &mut self.slots[id.index];
        assert!(slot.generation == id.generation, "an operation is used after its end");
        let outcome = match &slot.state {
            State::Done(outcome) => *outcome,
            State::Link(op) => match link.poll(*op, &mut Lent::Nothing) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => return Poll::Pending,
            },
            State::Open(_) | State::Free => return Poll::Pending,
        };
        self.release(id.index);
        Poll::Ready(outcome)
    }

    /// Whether there is an outcome to poll for.
    pub(crate) fn is_done(&self, id: RdmaId, link: &Link) -> bool {
        match &self.slots[id.index].state {
            State::Done(_) => true,
            State::Link(op) => link.is_done(*op),
            State::Open(_) | State::Free => false,
        }
    }

    /// Nobody asks for the outcome any more. One whose outcome was told is gone already.
    pub(crate) fn detach(&mut self, id: RdmaId, link: &mut Link) {
        let slot = &mut self.slots[id.index];
        if slot.generation != id.generation {
            return;
        }
        match slot.state {
            State::Open(_) => slot.detached = true,
            State::Link(op) => {
                link.detach(op);
                self.release(id.index);
            }
            State::Done(_) | State::Free => self.release(id.index),
        }
    }

    /// Gives an operation up, whose memory is then the caller's again unless a device is at it: one that was not posted yet
    /// is never done.
    pub(crate) fn cancel(&mut self, id: RdmaId, link: &mut Link) -> Cancel {
        let slot = &self.slots[id.index];
        if slot.generation != id.generation {
            return Cancel::Released;
        }
        match slot.state {
            State::Open(_) => {
                let before = self.waiting.len();
                self.waiting.retain(|index| *index != id.index);
                if self.waiting.len() == before {
                    return Cancel::Busy;
                }
                self.ended = self.ended.wrapping_add(1);
                self.release(id.index);
                Cancel::Released
            }
            State::Link(op) => {
                let verdict = link.cancel(op);
                if verdict == Cancel::Released {
                    self.release(id.index);
                }
                verdict
            }
            State::Done(_) | State::Free => Cancel::Finished,
        }
    }

    /// The next operation in its slot has another number.
    fn release(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.state = State::Free;
        slot.generation += 1;
        self.free.push(index);
    }

    /// How many have ended, wrapping.
    pub(crate) fn ended(&self) -> u32 {
        self.ended
    }

    /// How many have not.
    pub(crate) fn unfinished(&self) -> usize {
        self.waiting.len() + self.flying.len()
    }

    /// Those that have not, if they are still the device's: what it gave up goes over the link.
    pub(crate) fn open(&self) -> Option<Vec<RdmaId>> {
        self.out.as_ref()?;
        let id = |index: &usize| RdmaId { index: *index, generation: self.slots[*index].generation };
        Some(self.flying.iter().chain(&self.waiting).map(id).collect())
    }

    /// Whether an operation has ended, though its outcome may have been told.
    pub(crate) fn has_ended(&self, id: RdmaId) -> bool {
        let slot = &self.slots[id.index];
        slot.generation != id.generation || !matches!(slot.state, State::Open(_))
    }

    /// Posts what waits: whether there was anything. What the device's queue has no room for stays, in its order.
    pub(super) fn advance(&mut self) -> Result<bool, PostError> {
        let Some(out) = self.out.clone() else { return Ok(false) };
        while self.flying.len() < DEPTH {
            let Some(index) = self.waiting.pop_front() else { break };
            let State::Open(request) = &self.slots[index].state else { unreachable!("what waits is open") };
            let number = Work::Rdma.number(self.berth, self.posted as u32);
            let cell = &self.cells[(self.posted % DEPTH as u64) as usize];
            let piece = |memory: &Exposed| Piece {
                memory: memory.clone(),
                // It was registered when it was taken, and still is.
                lkey: self.registered.key(memory).unwrap_or_default(),
            };
            let remote = request.remote;
            let (op, piece) = match &request.verb {
                Verb::Put { data, count } => {
                    let write = SendRequest::new(number, SendOp::Write { remote, imm: None }, [piece(data)]);
                    match *count {
                        None => {
                            self.batch.push(write);
                            self.fly(index);
                            continue;
                        }
                        Some((remote, add)) => {
                            self.batch.push(SendRequest { signaled: false, ..write });
                            (SendOp::FetchAdd { remote, add }, cell.clone())
                        }
                    }
                }
                Verb::Get { into } => (SendOp::Read { remote }, piece(into)),
                Verb::Atomic(Atomic::FetchAdd(add)) => (SendOp::FetchAdd { remote, add: *add }, cell.clone()),
                Verb::Atomic(Atomic::CompareSwap { expect, new }) => {
                    (SendOp::CompareSwap { remote, compare: *expect, swap: *new }, cell.clone())
                }
            };
            self.batch.push(SendRequest::new(number, op, [piece]));
            self.fly(index);
        }
        if self.batch.is_empty() {
            return Ok(false);
        }
        let Err(refused) = out.post_send(&self.batch) else {
            self.batch.clear();
            return Ok(true);
        };
        self.batch.drain(..refused.index);
        // The last request of each operation completes visibly.
        let unposted = self.batch.iter().filter(|request| request.signaled).count();
        let held = (self.flying.len() - unposted) as u64;
        if self.fullness.passes(&refused, held, self.berth.peer) { Ok(refused.index > 0) } else { Err(refused) }
    }

    fn fly(&mut self, index: usize) {
        self.flying.push_back(index);
        self.posted += 1;
    }

    /// A request has completed.
    pub(super) fn completed(&mut self, number: u32) -> Result<(), OutOfOrder> {
        if self.out.is_none() {
            return Ok(());
        }
        let first = self.posted - self.flying.len() as u64;
        let index = self.flying.pop_front().filter(|_| first as u32 == number).ok_or(OutOfOrder)?;
        let State::Open(request) = &self.slots[index].state else { return Err(OutOfOrder) };
        let outcome = match &request.verb {
            Verb::Put { data, .. } => data.len() as u64,
            Verb::Get { into } => into.len() as u64,
            Verb::Atomic(_) => {
                let mut word = [0; CELL];
                self.cells[(first % DEPTH as u64) as usize].memory.read(0, &mut word);
                u64::from_ne_bytes(word)
            }
        };
        self.finish(index, Ok(outcome));
        Ok(())
    }

    fn finish(&mut self, index: usize, outcome: Result<u64, OpError>) {
        self.ended = self.ended.wrapping_add(1);
        let slot = &mut self.slots[index];
        slot.state = State::Done(outcome);
        if slot.detached {
            self.release(index);
        }
    }

    /// Whether a request that ended so, or one behind such a one, has had no effect.
    pub(super) fn is_refusal(&self, status: CompletionStatus) -> bool {
        let refused = matches!(
            status,
            CompletionStatus::RemoteAccess | CompletionStatus::RemoteInvalidRequest | CompletionStatus::RemoteOperation
        );
        refused || self.out.is_none()
    }

    /// The peer's device has refused the oldest request: from now on all goes over the link.
    pub(super) fn fall_back(&mut self, link: &mut Link) {
        // The device lets go of all memory with it.
        if self.out.take().is_none() {
            return;
        }
        self.batch.clear();
        tracing::warn!(rank = self.berth.peer, "a one-sided request was refused: what comes now goes over the link");
        let open: Vec<_> = self.flying.drain(..).chain(self.waiting.drain(..)).collect();
        for index in open {
            let slot = &mut self.slots[index];
            let State::Open(request) = std::mem::replace(&mut slot.state, State::Free) else { continue };
            let op = request.start(link);
            slot.state = State::Link(op);
            if slot.detached {
                link.detach(op);
                self.release(index);
            }
        }
    }

    /// The link is over.
    pub(super) fn sever(&mut self) {
        (self.out, self.into) = (None, None);
        self.batch.clear();
        let open: Vec<_> = self.flying.drain(..).chain(self.waiting.drain(..)).collect();
        for index in open {
            self.finish(index, Err(OpError::Severed));
        }
    }
}

#[cfg(test)]
mod tests;
