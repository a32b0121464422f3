//! A device that is owned, and what programs and other owners ask about it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fulmen_memory::Region;
use fulmen_reach::{Doorbell, Node, spawn_without_signals};
use fulmen_soft::{Profile, SoftDevice, SoftOptions};
use fulmen_verbs::{
    Budget, Claim, CompletionChannel, CompletionQueue, Device, Gid, ProtectionDomain, QueuePair, QueuePairInit,
    QueuePairKind, QueuePairLimits, VerbsError,
};

use super::slots::Slots;
use super::switch::{Command, Counts, HERE, Queues, Switch};
use super::trunk::{Class, Course, Trunk};
use super::{DeviceStatus, Far, OwnerError};
use crate::inside::inside;
use crate::wire::{Answer, Call, End, Place, Refusal, WINDOW};

/// Queue pairs of programs, on one device.
const PAIRS: u32 = 256;
/// The port that is used.
const PORT: u8 = 1;
/// How long a thread that waits for the device's events waits at a time, and so how long it may take to end.
const NAP: Duration = Duration::from_millis(50);
/// How long the switch may take for what it does at once.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Owned {
    device: Arc<dyn Device>,
    classes: Vec<Class>,
    domain: Arc<dyn ProtectionDomain>,
    queue: Arc<dyn CompletionQueue>,
    /// Of the software device that leads to programs.
    inside_domain: Arc<dyn ProtectionDomain>,
    inside_queue: Arc<dyn CompletionQueue>,
    inside_gid: Gid,
    commands: Sender<Command>,
    bell: Doorbell,
    counts: Arc<Counts>,
    budget: Budget,
    numbers: AtomicU32,
    pairs: Mutex<HashMap<u32, Known>>,
    trunks: Mutex<HashMap<(Place, Place), Joint>>,
    trunk_numbers: AtomicU32,
    /// Held by whoever opens a trunk. Owners wait for each other in the order of their addresses alone.
    opening: Mutex<()>,
    switch: Option<JoinHandle<()>>,
    /// Ends the thread that waits for the device's events.
    over: Arc<AtomicBool>,
}

/// A program's queue pair.
struct Known {
    gid: [u8; 16],
    soft: u32,
    _claim: Claim,
}

/// A trunk.
struct Joint {
    /// What both ends call it.
    id: u64,
    /// What this end calls it.
    number: u32,
    alive: Arc<AtomicBool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unreachable(cause: impl ToString) -> Refusal {
    Refusal::Unreachable(cause.to_string())
}

impl Owned {
    pub(super) fn open(device: Arc<dyn Device>) -> Result<Arc<Owned>, OwnerError> {
        let info = device.info();
        let name = info.name.clone();
        let failed = |cause: VerbsError| OwnerError::Device { device: name.clone(), cause };
        let system = |what, cause: String| OwnerError::System { device: name.clone(), what, cause };
        let memory = Region::alloc(Doorbell::SIZE).map_err(|cause| system("memory", cause.to_string()))?;
        let bell = Doorbell::at(&memory.expose().map_err(|cause| system("memory", cause.to_string()))?, 0);
        let over = Arc::new(AtomicBool::new(false));

        let classes = Class::all(info);
        // Of as many trunks as there can be queue pairs for.
        let trunks = (info.limits.queue_pairs as usize / classes.len()).clamp(1, 64);
        let each: usize = classes.iter().map(|class| 2 * class.depth).sum();
        let entries = ((trunks * each) as u32).min(info.limits.completion_entries);
        let domain = device.alloc_pd().map_err(failed)?;
        let queue = watched(&device, entries, &bell, &over)
            .map_err(|error| error.unwrap_or_else(|cause| system("a thread", cause), failed))?;

        let node = Node::open().map_err(|cause| system("a way to programs", cause.to_string()))?;
        let options = SoftOptions { name: Some(name.clone()), ..SoftOptions::new(Profile::Infiniband) };
        let inside =
            SoftDevice::open_as(&node, options).map_err(|cause| system("a way to programs", cause.to_string()))?;
        let inside_domain = inside.alloc_pd().map_err(failed)?;
        let inside_queue = inside.create_cq(2 * WINDOW * PAIRS, None).map_err(failed)?;
        let rung = bell.clone();
        inside_queue.set_notifier(Arc::new(move || rung.notify())).map_err(failed)?;
        let inside_gid = inside.gid_table(PORT).map_err(failed)?[0].gid;

        let sizes = classes.iter().map(|class| class.size).collect();
        let domains = [domain.clone(), inside_domain.clone()];
        let slots = Slots::new(domains, info.limits.registration, sizes);
        let (commands, orders) = mpsc::channel();
        let counts = Arc::<Counts>::default();
        let queues = Queues { outside: queue.clone(), inside: inside_queue.clone() };
        let switch = Switch::new(queues, slots, orders, bell.clone(), counts.clone());
        let switch = spawn_without_signals("fulmen-switch", move || switch.run());
        let switch = switch.map_err(|cause| system("a thread", cause.to_string()))?;
        Ok(Arc::new(Owned {
            budget: Budget::new(name.as_str(), "queue pairs of programs", PAIRS.into()),
            device,
            classes,
            domain,
            queue,
            inside_domain,
            inside_queue,
            inside_gid,
            commands,
            bell,
            counts,
            numbers: AtomicU32::new(1),
            pairs: Mutex::default(),
            trunks: Mutex::default(),
            trunk_numbers: AtomicU32::new(1),
            opening: Mutex::default(),
            switch: Some(switch),
            over,
        }))
    }

    pub(super) fn name(&self) -> &str {
        &self.device.info().name
    }

    pub(super) fn device(&self) -> &dyn Device {
        &*self.device
    }

    pub(super) fn status(&self) -> DeviceStatus {
        let info = self.device.info();
        DeviceStatus {
            device: info.name.clone(),
            provider: info.provider.to_owned(),
            pairs: lock(&self.pairs).len(),
            trunks: lock(&self.trunks).values().filter(|joint| joint.is_alive()).count(),
            sent_bytes: self.counts.sent.load(Ordering::Relaxed),
            received_bytes: self.counts.received.load(Ordering::Relaxed),
        }
    }

    fn tell(&self, command: Command) {
        // The thread ends with this.
        let _ = self.commands.send(command);
        self.bell.notify();
    }

    /// Where this device is, by the GID of this index.
    fn place(&self, gid_index: u8) -> Result<Place, Refusal> {
        let table = self.device.gid_table(PORT).map_err(unreachable)?;
        let entry = table.iter().find(|entry| entry.index == gid_index);
        let entry = entry.ok_or_else(|| Refusal::Invalid(format!("there is no GID of index {gid_index}")))?;
        Ok(Place { gid: entry.gid.0, lid: self.device.port(PORT).map_err(unreachable)?.lid })
    }

    /// The index of the GID by which it is at a place, if it is there.
    pub(super) fn index_of(&self, place: Place) -> Option<u8> {
        let table = self.device.gid_table(PORT).ok()?;
        let index = table.iter().find(|entry| entry.gid.0 == place.gid)?.index;
        (self.device.port(PORT).ok()?.lid == place.lid).then_some(index)
    }

    // What programs ask.

    /// A number for a program's queue pair.
    pub(super) fn create(&self, gid: [u8; 16], soft: u32) -> Result<u32, Refusal> {
        let claim = self.budget.take().map_err(|_| Refusal::Full(self.budget.limit()))?;
        let mut pairs = lock(&self.pairs);
        let mut next = || self.numbers.fetch_add(1, Ordering::Relaxed) & 0xff_ffff;
        // There are far more numbers than queue pairs. One that was just used is not used again soon.
        let number = std::iter::repeat_with(&mut next).find(|number| *number != 0 && !pairs.contains_key(number));
        let number = number.expect("an endless row");
        pairs.insert(number, Known { gid, soft, _claim: claim });
        drop(pairs);
        self.tell(Command::Create(number));
        Ok(number)
    }

    pub(super) fn remove(&self, number: u32) {
        self.tell(Command::Remove(number));
        lock(&self.pairs).remove(&number);
    }

    pub(super) fn part(&self, number: u32) {
        self.tell(Command::Part(number));
    }

    /// The queue pair of the software device that leads to the peer of a program's.
    pub(super) fn connect(
        self: &Arc<Owned>,
        number: u32,
        gid_index: u8,
        (to, remote): (Place, u32),
        far: &dyn Far,
    ) -> Result<(Gid, u32), Refusal> {
        let from = self.place(gid_index)?;
        let trunk = match self.index_of(to) {
            Some(_) if !lock(&self.pairs).contains_key(&remote) => {
                return Err(unreachable(format!("it has no queue pair {remote}")));
            }
            Some(_) => HERE,
            None => self.trunk(gid_index, from, to, far)?,
        };
        let (gid, soft) = {
            let pairs = lock(&self.pairs);
            let known = pairs.get(&number).ok_or_else(|| Refusal::Invalid("it is gone".into()))?;
            (Gid(known.gid), known.soft)
        };
        let pair = self.lead_to(gid, soft).map_err(unreachable)?;
        let leads = pair.qp_num();
        self.tell(Command::Join { number, trunk, remote, pair });
        Ok((self.inside_gid, leads))
    }

    /// A queue pair of the software device, connected to a program's.
    fn lead_to(&self, remote_gid: Gid, remote_qp: u32) -> Result<Arc<dyn QueuePair>, VerbsError> {
        let limits =
            QueuePairLimits { send_depth: WINDOW, recv_depth: WINDOW, send_pieces: 1, recv_pieces: 1, inline_bytes: 0 };
        let queue = || self.inside_queue.clone();
        let (kind, signal_all, srq) = (QueuePairKind::Rc, false, None);
        let init = QueuePairInit { kind, send_cq: queue(), recv_cq: queue(), limits, signal_all, srq };
        let pair = self.inside_domain.create_qp(&init)?;
        for transition in inside(remote_gid, remote_qp) {
            pair.modify(&transition)?;
        }
        Ok(pair)
    }

    // Trunks.

    /// The number of the trunk between two places, which is there afterwards.
    fn trunk(self: &Arc<Owned>, gid_index: u8, from: Place, to: Place, far: &dyn Far) -> Result<u32, Refusal> {
        let _opening = lock(&self.opening);
        let known = |owned: &Owned| {
            let trunks = lock(&owned.trunks);
            trunks.get(&(from, to)).filter(|joint| joint.is_alive()).map(|joint| (joint.id, joint.number))
        };
        let ask = |call: &Call| -> Result<Answer, Refusal> {
            let bytes = far.ask(Gid(to.gid), &crate::wire::to_bytes(call)).map_err(unreachable)?;
            postcard::from_bytes::<Result<Answer, Refusal>>(&bytes)
                .map_err(|_| unreachable("its owner answers what cannot be read"))?
        };
        let had = known(self);
        if from > to {
            // The other end opens it.
            ask(&Call::Please { from, to, trunk: had.map(|(id, _)| id) })?;
            return known(self).map(|(_, number)| number).ok_or_else(|| unreachable("its owner has opened no trunk"));
        }
        if let Some((id, number)) = had
            && matches!(ask(&Call::Look { from, to, trunk: id })?, Answer::Known(true))
        {
            return Ok(number);
        }
        self.cut(from, to);
        let id = getrandom::u64().map_err(unreachable)?;
        let trunk = self.new_trunk().map_err(unreachable)?;
        let own = trunk.ends().map_err(unreachable)?;
        let Answer::Opened(theirs) = ask(&Call::Open { from, to, trunk: id, ends: own.clone() })? else {
            return Err(unreachable("its owner answers something else"));
        };
        self.are_alike(&theirs)?;
        self.complete((trunk, id), (gid_index, from, to), &own, &theirs)
    }

    /// Whether the ends of a trunk of another owner can be those of one of this device.
    fn are_alike(&self, theirs: &[End]) -> Result<(), Refusal> {
        if theirs.len() == self.classes.len() {
            return Ok(());
        }
        Err(unreachable("its owner has trunks of another kind: run one version of Fulmen, with devices alike"))
    }

    fn new_trunk(&self) -> Result<Trunk, VerbsError> {
        Trunk::new(self.device.info(), &*self.domain, &self.queue, &self.classes)
    }

    fn complete(
        &self,
        (trunk, id): (Trunk, u64),
        (gid_index, from, to): (u8, Place, Place),
        own: &[End],
        theirs: &[End],
    ) -> Result<u32, Refusal> {
        let mtu = self.device.port(PORT).map_err(unreachable)?.active_mtu;
        let course = Course { local_gid_index: gid_index, there: to, port: PORT, mtu };
        trunk.connect(&course, own, theirs).map_err(unreachable)?;
        let number = self.trunk_numbers.fetch_add(1, Ordering::Relaxed);
        let alive = Arc::new(AtomicBool::new(true));
        let mut trunks = lock(&self.trunks);
        // In this order: who cuts a trunk that can be found tells of that after this.
        self.tell(Command::Add { trunk: number, queue_pairs: trunk, alive: alive.clone() });
        trunks.insert((from, to), Joint { id, number, alive });
        Ok(number)
    }

    /// Ends the trunk between two places, if there is one. Its queue pairs are destroyed then.
    fn cut(&self, from: Place, to: Place) {
        let Some(joint) = lock(&self.trunks).remove(&(from, to)) else { return };
        let (done, wait) = mpsc::channel();
        self.tell(Command::Cut(joint.number, done));
        let _ = wait.recv_timeout(PATIENCE);
    }

    /// Ends all trunks to a place of this GID.
    pub(super) fn lost(&self, gid: Gid) {
        let there: Vec<_> = lock(&self.trunks).keys().filter(|(_, to)| to.gid == gid.0).copied().collect();
        there.into_iter().for_each(|(from, to)| self.cut(from, to));
    }

    /// What another owner asks, whose device is `from`, of this one, which is `to` by the GID of this index.
    pub(super) fn answer(self: &Arc<Owned>, call: Call, index: u8, far: &dyn Far) -> Result<Answer, Refusal> {
        match call {
            Call::Look { from, to, trunk } => {
                let trunks = lock(&self.trunks);
                let is_known = |joint: &Joint| joint.id == trunk && joint.is_alive();
                Ok(Answer::Known(trunks.get(&(to, from)).is_some_and(is_known)))
            }
            Call::Please { from, to, trunk } => {
                let is_same = {
                    let trunks = lock(&self.trunks);
                    let joint = trunks.get(&(to, from)).filter(|joint| joint.is_alive());
                    joint.map(|joint| joint.id) == trunk && trunk.is_some()
                };
                if !is_same {
                    // One that was just opened may be the one that is asked for: whether it is there at both ends is looked at.
                    self.trunk(index, to, from, far)?;
                }
                Ok(Answer::Done)
            }
            Call::Open { from, to, trunk: id, ends } => {
                // What cannot come to anything ends no trunk, and takes no queue pairs that others are about to take.
                self.are_alike(&ends)?;
                if from > to {
                    return Err(Refusal::Invalid(format!(
                        "{from} opens a trunk to {to}, whose address is the smaller one, and has to ask for it instead: run one version of Fulmen"
                    )));
                }
                self.cut(to, from);
                let trunk = self.new_trunk().map_err(unreachable)?;
                let own = trunk.ends().map_err(unreachable)?;
                self.complete((trunk, id), (index, to, from), &own, &ends)?;
                Ok(Answer::Opened(own))
            }
        }
    }
}

impl Joint {
    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // It ends when nobody can tell it anything any more.
        self.commands = mpsc::channel().0;
        self.bell.notify();
        if let Some(switch) = self.switch.take() {
            let _ = switch.join();
        }
    }
}

/// Why there is no queue whose events ring the bell.
pub(super) enum Unwatched {
    Device(VerbsError),
    Thread(String),
}

impl Unwatched {
    fn unwrap_or_else<T>(self, thread: impl FnOnce(String) -> T, device: impl FnOnce(VerbsError) -> T) -> T {
        match self {
            Unwatched::Device(cause) => device(cause),
            Unwatched::Thread(cause) => thread(cause),
        }
    }
}

impl From<VerbsError> for Unwatched {
    fn from(cause: VerbsError) -> Unwatched {
        Unwatched::Device(cause)
    }
}

/// A completion queue whose events ring the bell: by itself, or through a thread that waits on a channel.
fn watched(
    device: &Arc<dyn Device>,
    entries: u32,
    bell: &Doorbell,
    over: &Arc<AtomicBool>,
) -> Result<Arc<dyn CompletionQueue>, Unwatched> {
    let queue = device.create_cq(entries, None)?;
    let rung = bell.clone();
    match queue.set_notifier(Arc::new(move || rung.notify())) {
        Ok(()) => return Ok(queue),
        Err(VerbsError::Unsupported { .. }) => drop(queue),
        Err(cause) => return Err(cause.into()),
    }
    let channel: Arc<dyn CompletionChannel> = device.create_channel()?;
    let queue = device.create_cq(entries, Some(&channel))?;
    let (rung, over) = (bell.clone(), over.clone());
    let wait = move || {
        while !over.load(Ordering::Acquire) {
            match channel.wait(NAP) {
                Ok(true) => rung.notify(),
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(%error, "the device tells of nothing any more");
                    return;
                }
            }
        }
    };
    spawn_without_signals("fulmen-channel", wait).map_err(|cause| Unwatched::Thread(cause.to_string()))?;
    Ok(queue)
}
