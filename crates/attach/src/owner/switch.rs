//! What carries messages between programs and trunks: one thread for each device, which alone has everything that moves.

use std::collections::VecDeque;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use fulmen_reach::Doorbell;
use fulmen_verbs::{Completion, CompletionQueue, QueuePair, RecvRequest, SendRequest, VerbsError};

use super::slots::{Slot, Slots};
use super::trunk::{Out, Trunk, named};
use crate::wire::{Header, Kind, LONGEST_MESSAGE, WINDOW};

/// Completions that are taken at a time.
const BATCH: usize = 64;
/// How long the thread looks for more before it parks, and after how many looks it lets others have its processor.
const LINGER: Duration = Duration::from_micros(40);
const LOOKS: u32 = 16;
/// How long it parks at most, and how often it is asked whether the other end of a trunk is there.
const NAP: Duration = Duration::from_secs(1);

/// The trunk between programs of this device's owner, which is none.
pub(super) const HERE: u32 = 0;

/// What the thread is told to do.
pub(super) enum Command {
    /// There is a queue pair of this number, to which messages may come.
    Create(u32),
    /// It is joined to `remote`, at the other end of a trunk; `pair` leads to the program.
    Join { number: u32, trunk: u32, remote: u32, pair: Arc<dyn QueuePair> },
    /// It has no peer any more.
    Part(u32),
    /// It is gone.
    Remove(u32),
    /// A trunk that is connected.
    Add { trunk: u32, queue_pairs: Trunk, alive: Arc<AtomicBool> },
    /// A trunk is over. The sender is dropped when its queue pairs are destroyed.
    Cut(u32, Sender<()>),
}

/// How much was carried.
#[derive(Default)]
pub(super) struct Counts {
    pub sent: AtomicU64,
    pub received: AtomicU64,
}

/// The device's completion queue, and that of the software device.
pub(super) struct Queues {
    pub outside: Arc<dyn CompletionQueue>,
    pub inside: Arc<dyn CompletionQueue>,
}

pub(super) struct Switch {
    queues: Queues,
    slots: Slots,
    trunks: HashMap<u32, (Trunk, Arc<AtomicBool>)>,
    pairs: HashMap<u32, Pair>,
    commands: Receiver<Command>,
    bell: Doorbell,
    counts: Arc<Counts>,
    /// The last connection's number.
    sessions: u32,
}

/// A program's queue pair.
#[derive(Default)]
struct Pair {
    joined: Option<Joined>,
    /// What came before it was joined.
    early: Vec<Arrived>,
}

/// One with a peer.
struct Joined {
    trunk: u32,
    remote: u32,
    /// Which connection this is, and which one of the peer's, once that is known.
    session: u32,
    peer: Option<u32>,
    pair: Arc<dyn QueuePair>,
    /// Where the program's next messages go, oldest first.
    posted: VecDeque<Slot>,
    /// Messages that went out, and those of them that the other program has taken.
    sent: u32,
    acknowledged: u32,
    /// Messages that came in order, those that came before their turn, and those that the program is about to take.
    received: u32,
    held: BTreeMap<u32, Arrived>,
    delivering: VecDeque<Slot>,
    /// Messages that the program has taken, and how many of them the other end knows of.
    taken: u32,
    told: u32,
    /// The other end sends nothing from this number on.
    last: Option<u32>,
}

/// A message that came over a trunk.
struct Arrived {
    trunk: u32,
    header: Header,
    slot: Slot,
}

/// What a completion of the software device is of.
pub(super) fn inside_name(number: u32, is_recv: bool) -> u64 {
    u64::from(number) << 1 | u64::from(is_recv)
}

/// Why a queue pair or a trunk cannot go on.
enum Broken {
    Pair,
    Trunk(String),
}

impl Switch {
    pub(super) fn new(
        queues: Queues,
        slots: Slots,
        commands: Receiver<Command>,
        bell: Doorbell,
        counts: Arc<Counts>,
    ) -> Switch {
        Switch { queues, slots, trunks: HashMap::new(), pairs: HashMap::new(), commands, bell, counts, sessions: 0 }
    }

    /// Carries until nobody can tell it anything any more.
    pub(super) fn run(mut self) {
        let (mut looks, mut since) = (0, Instant::now());
        let mut looked = Instant::now();
        loop {
            match self.work() {
                Err(()) => return,
                Ok(true) => (looks, since) = (0, Instant::now()),
                Ok(false) => {
                    looks += 1;
                    if looks % LOOKS != 0 {
                        std::hint::spin_loop();
                    } else if since.elapsed() < LINGER {
                        std::thread::yield_now();
                    } else {
                        self.park();
                        (looks, since) = (0, Instant::now());
                    }
                }
            }
            if looked.elapsed() >= NAP {
                looked = Instant::now();
                self.look_at_trunks();
            }
        }
    }

    /// Parks until there is something.
    fn park(&mut self) {
        let bell = self.bell.clone();
        let listener = bell.listen();
        // In this order: what completes before the request is found by looking, what completes after it rings the bell.
        let asked = [&self.queues.outside, &self.queues.inside].map(|queue| queue.request_notify(false).is_ok());
        match self.work() {
            Ok(false) if asked == [true; 2] => drop(listener.wait(NAP)),
            _ => {}
        }
    }

    /// Does what there is to do: whether there was anything. An error if the owner has gone.
    fn work(&mut self) -> Result<bool, ()> {
        let mut any = false;
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(()),
            }
            any = true;
        }
        any |= self.take_outside();
        any |= self.take_inside();
        Ok(any)
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Create(number) => drop(self.pairs.insert(number, Pair::default())),
            Command::Join { number, trunk, remote, pair } => self.join(number, trunk, remote, pair),
            Command::Part(number) => {
                // What the program knows to have been taken is here.
                self.take_inside();
                self.part(number, true);
            }
            Command::Remove(number) => {
                self.take_inside();
                self.part(number, true);
                for early in self.pairs.remove(&number).into_iter().flat_map(|pair| pair.early) {
                    self.slots.give(early.slot);
                    // Those that do not know yet that they wait in vain.
                    if early.header.kind == Kind::Taken
                        && let Err(Broken::Trunk(cause)) = self.deny(early.trunk, &early.header)
                    {
                        self.cut(early.trunk, &cause);
                    }
                }
            }
            Command::Add { trunk, queue_pairs, alive } => {
                self.trunks.insert(trunk, (queue_pairs, alive));
                let listening = {
                    let (ways, slots) = (&mut self.trunks.get_mut(&trunk).expect("just added").0.ways, &mut self.slots);
                    ways.iter_mut().try_for_each(|way| way.listen(trunk, slots))
                };
                if let Err(cause) = listening {
                    self.cut(trunk, &cause.to_string());
                }
            }
            Command::Cut(trunk, done) => {
                self.cut(trunk, "the other end begins anew");
                drop(done);
            }
        }
    }

    fn look_at_trunks(&mut self) {
        let over: Vec<u32> =
            self.trunks.iter().filter(|(_, (trunk, _))| trunk.is_over()).map(|(name, _)| *name).collect();
        for trunk in over {
            self.cut(trunk, "nobody is at its other end");
        }
    }

    // What comes over trunks.

    fn take_outside(&mut self) -> bool {
        let mut batch = [Completion::BLANK; BATCH];
        let count = match self.queues.outside.poll(&mut batch) {
            Ok(count) => count,
            Err(error) => {
                let all: Vec<u32> = self.trunks.keys().copied().collect();
                all.into_iter().for_each(|trunk| self.cut(trunk, &error.to_string()));
                0
            }
        };
        for completion in &batch[..count] {
            let (trunk, way, is_recv) = named(completion.wr_id);
            if let Err(Broken::Trunk(cause)) = self.outside(trunk, way, is_recv, completion) {
                self.cut(trunk, &cause);
            }
        }
        count > 0
    }

    fn outside(&mut self, trunk: u32, way: usize, is_recv: bool, completion: &Completion) -> Result<(), Broken> {
        // Of one that was cut.
        let Some((queue_pairs, _)) = self.trunks.get_mut(&trunk) else { return Ok(()) };
        let failed = |cause: VerbsError| Broken::Trunk(cause.to_string());
        if !completion.status.is_success() {
            return Err(Broken::Trunk(completion.status.to_string()));
        }
        let way = queue_pairs.ways.get_mut(way).ok_or_else(|| Broken::Trunk("an unknown completion".into()))?;
        if !is_recv {
            if let Some(slot) = way.sent() {
                self.slots.give(slot);
            }
            return way.send(trunk).map_err(failed);
        }
        let slot = way.received().ok_or_else(|| Broken::Trunk("a completion too many".into()))?;
        way.listen(trunk, &mut self.slots).map_err(failed)?;
        let came = (completion.byte_len as usize).min(slot.memory().len());
        let mut bytes = [0; Header::SIZE];
        if came >= Header::SIZE {
            slot.memory().read(0, &mut bytes);
        }
        let Some(header) = Header::from_bytes(&bytes, came) else {
            self.slots.give(slot);
            return Err(Broken::Trunk("its other end sends what is no message".into()));
        };
        self.came(trunk, &header, slot)
    }

    fn came(&mut self, trunk: u32, header: &Header, slot: Slot) -> Result<(), Broken> {
        let number = header.to;
        let arrived = Arrived { trunk, header: *header, slot };
        let Some(pair) = self.pairs.get_mut(&number) else {
            self.slots.give(arrived.slot);
            // It is gone, and the other end does not know yet.
            return match header.kind {
                Kind::Gone => Ok(()),
                Kind::Message | Kind::Taken => self.deny(trunk, header),
            };
        };
        let joined = pair.joined.as_mut().filter(|joined| (joined.trunk, joined.remote) == (trunk, header.from));
        let verdict = joined.map_or(Verdict::Early, |joined| joined.judge(header));
        let joined = match (verdict, pair.joined.as_mut()) {
            (Verdict::Own, Some(joined)) => joined,
            (Verdict::Early | Verdict::Next, _) => {
                pair.keep(arrived, &mut self.slots);
                // A later connection of the peer means that the one before is over.
                if verdict == Verdict::Next {
                    self.part(number, false);
                }
                return Ok(());
            }
            _ => {
                self.slots.give(arrived.slot);
                return Ok(());
            }
        };
        let result = joined.take(arrived, &mut self.slots)?;
        self.counts.received.fetch_add(u64::from(header.len), Ordering::Relaxed);
        self.settle(number, result);
        Ok(())
    }

    // What programs send and take.

    fn take_inside(&mut self) -> bool {
        let mut any = false;
        loop {
            let mut batch = [Completion::BLANK; BATCH];
            let Ok(count) = self.queues.inside.poll(&mut batch) else {
                tracing::error!("programs' messages are lost: the completion queue for them overflowed");
                return any;
            };
            for completion in &batch[..count] {
                let (number, is_recv) = ((completion.wr_id >> 1) as u32, completion.wr_id & 1 == 1);
                let result = self.inside(number, is_recv, completion);
                self.settle(number, result);
            }
            any |= count > 0;
            if count < BATCH {
                return any;
            }
        }
    }

    fn inside(&mut self, number: u32, is_recv: bool, completion: &Completion) -> Result<(), Broken> {
        let joined = self.pairs.get_mut(&number).and_then(|pair| pair.joined.as_mut());
        // Of one that was parted, or of the one before it with this number.
        let Some(joined) = joined.filter(|joined| joined.pair.qp_num() == completion.qp_num) else { return Ok(()) };
        if !completion.status.is_success() {
            return Err(Broken::Pair);
        }
        let trunk = joined.trunk;
        if is_recv {
            let Some(slot) = joined.posted.pop_front() else { return Err(Broken::Pair) };
            let len = (completion.byte_len as usize).min(LONGEST_MESSAGE);
            let solicited = completion.imm.is_some();
            let header =
                Header { len: len as u32, number: joined.sent, solicited, ..joined.header(Kind::Message, number) };
            joined.sent = joined.sent.wrapping_add(1);
            joined.told = joined.taken;
            joined.let_in(number, &mut self.slots)?;
            self.counts.sent.fetch_add(len as u64, Ordering::Relaxed);
            return self.push(trunk, header, slot);
        }
        let Some(slot) = joined.delivering.pop_front() else { return Err(Broken::Pair) };
        self.slots.give(slot);
        joined.taken = joined.taken.wrapping_add(1);
        if joined.taken.wrapping_sub(joined.told) < WINDOW / 2 {
            return Ok(());
        }
        joined.told = joined.taken;
        let header = joined.header(Kind::Taken, number);
        self.note(trunk, header)
    }

    /// Answers what came for a queue pair that is gone.
    fn deny(&mut self, trunk: u32, header: &Header) -> Result<(), Broken> {
        let Header { to: from, from: to, session: peer, .. } = *header;
        self.note(trunk, Header { kind: Kind::Gone, to, from, peer, ..BLANK })
    }

    /// Sends what has no message.
    fn note(&mut self, trunk: u32, header: Header) -> Result<(), Broken> {
        let slot = self.slots.take(0).map_err(|cause| Broken::Trunk(cause.to_string()))?;
        self.push(trunk, header, slot)
    }

    fn push(&mut self, trunk: u32, header: Header, slot: Slot) -> Result<(), Broken> {
        if trunk == HERE {
            return self.came(HERE, &header, slot);
        }
        let len = header.len as usize;
        slot.memory().write(0, &header.to_bytes());
        let Some((queue_pairs, _)) = self.trunks.get_mut(&trunk) else {
            self.slots.give(slot);
            return Err(Broken::Pair);
        };
        let way = queue_pairs.way(len);
        way.push(Out { slot, len: Header::ROOM + len });
        way.send(trunk).map_err(|cause| Broken::Trunk(cause.to_string()))
    }

    // Joining and parting.

    fn join(&mut self, number: u32, trunk: u32, remote: u32, pair: Arc<dyn QueuePair>) {
        self.part(number, true);
        let Some(entry) = self.pairs.get_mut(&number) else { return };
        self.sessions = self.sessions.wrapping_add(1).max(1);
        let mut joined = Joined {
            trunk,
            remote,
            session: self.sessions,
            peer: None,
            pair,
            posted: VecDeque::new(),
            sent: 0,
            acknowledged: 0,
            received: 0,
            held: BTreeMap::new(),
            delivering: VecDeque::new(),
            taken: 0,
            told: 0,
            last: None,
        };
        let mut result = joined.let_in(number, &mut self.slots);
        // What came of others waits on: this queue pair may be theirs later.
        let is_of_it = |early: &Arrived| early.sender() == (trunk, remote);
        let (of_it, others) = std::mem::take(&mut entry.early).into_iter().partition::<Vec<_>, _>(is_of_it);
        entry.early = others;
        for arrived in of_it {
            joined.peer = Some(arrived.header.session);
            result = match joined.take(arrived, &mut self.slots) {
                Ok(taken) => result.and(taken),
                Err(broken) => Err(broken),
            };
        }
        let hello = joined.header(Kind::Taken, number);
        entry.joined = Some(joined);
        // Who is gone already says so.
        let result = result.and_then(|()| self.note(trunk, hello));
        self.settle(number, result);
    }

    /// Ends what cannot go on, or has nothing more to do.
    fn settle(&mut self, number: u32, result: Result<(), Broken>) {
        let Some(joined) = self.pairs.get(&number).and_then(|pair| pair.joined.as_ref()) else { return };
        match result {
            // The peer is gone, and all that it sent was taken.
            Ok(()) if joined.is_done() => self.part(number, false),
            Ok(()) => {}
            Err(Broken::Pair) => self.part(number, true),
            Err(Broken::Trunk(cause)) => {
                let trunk = joined.trunk;
                self.cut(trunk, &cause);
            }
        }
    }

    /// A queue pair has no peer any more: its program sees that, and, if it is to be `told`, the peer.
    fn part(&mut self, number: u32, told: bool) {
        let Some(joined) = self.pairs.get_mut(&number).and_then(|pair| pair.joined.take()) else { return };
        let (trunk, sent) = (joined.trunk, joined.sent);
        let gone = Header { number: sent, ..joined.header(Kind::Gone, number) };
        drop(joined.pair);
        let held = joined.held.into_values().map(|arrived| arrived.slot);
        held.chain(joined.posted).chain(joined.delivering).for_each(|slot| self.slots.give(slot));
        if !told {
            return;
        }
        if let Err(Broken::Trunk(cause)) = self.note(trunk, gone) {
            self.cut(trunk, &cause);
        }
    }

    /// A trunk is over, and with it all queue pairs that are joined by it.
    fn cut(&mut self, trunk: u32, cause: &str) {
        let Some((queue_pairs, alive)) = self.trunks.remove(&trunk) else { return };
        tracing::info!(cause, "a trunk to another owner of a device is over");
        alive.store(false, Ordering::Release);
        queue_pairs.into_slots().for_each(|slot| self.slots.give(slot));
        let of_it = |pair: &Pair| pair.joined.as_ref().is_some_and(|joined| joined.trunk == trunk);
        let numbers: Vec<u32> = self.pairs.iter().filter(|(_, pair)| of_it(pair)).map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.part(number, false));
        for pair in self.pairs.values_mut() {
            pair.forget(|early| early.trunk == trunk, &mut self.slots);
        }
    }
}

impl Pair {
    /// Keeps what came before its turn: of each sender that of its latest connection, which is its word that it is there and no
    /// more messages than it may send.
    fn keep(&mut self, arrived: Arrived, slots: &mut Slots) {
        let (sender, Header { kind, session, .. }) = (arrived.sender(), arrived.header);
        let is_gone = kind == Kind::Gone;
        let is_over = |early: &Arrived| {
            early.sender() == sender && (early.header.session < session || is_gone && early.header.session == session)
        };
        self.forget(is_over, slots);
        let kept = || self.early.iter().filter(|early| early.sender() == sender);
        if is_gone || kept().any(|early| early.header.session > session) || kept().count() > WINDOW as usize {
            slots.give(arrived.slot);
        } else {
            self.early.push(arrived);
        }
    }

    fn forget(&mut self, which: impl FnMut(&Arrived) -> bool, slots: &mut Slots) {
        let (over, stay) = std::mem::take(&mut self.early).into_iter().partition::<Vec<_>, _>(which);
        self.early = stay;
        over.into_iter().for_each(|early| slots.give(early.slot));
    }
}

impl Arrived {
    /// The trunk, and the queue pair at its other end.
    fn sender(&self) -> (u32, u32) {
        (self.trunk, self.header.from)
    }
}

const BLANK: Header =
    Header { kind: Kind::Message, solicited: false, to: 0, from: 0, len: 0, number: 0, taken: 0, session: 0, peer: 0 };

/// Of which connection something is that came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Of this one.
    Own,
    /// Of an earlier one.
    Old,
    /// Of one that is still to be.
    Early,
    /// Of the peer's next one.
    Next,
}

impl Joined {
    fn header(&self, kind: Kind, number: u32) -> Header {
        let (session, peer) = (self.session, self.peer.unwrap_or(0));
        Header { kind, to: self.remote, from: number, taken: self.taken, session, peer, ..BLANK }
    }

    /// Of which connection this is, and, if nothing has come yet, with which of the peer's this one is.
    fn judge(&mut self, header: &Header) -> Verdict {
        if header.peer != 0 && header.peer != self.session {
            return if header.peer < self.session { Verdict::Old } else { Verdict::Early };
        }
        match self.peer {
            // Of a queue pair that is gone.
            _ if header.session == 0 => Verdict::Own,
            // It may be of a connection before this one.
            None if header.peer == 0 && header.kind == Kind::Gone => Verdict::Old,
            None => {
                self.peer = Some(header.session);
                Verdict::Own
            }
            Some(peer) if header.session < peer => Verdict::Old,
            Some(peer) if header.session > peer => Verdict::Next,
            Some(_) => Verdict::Own,
        }
    }

    /// Takes what is of this connection: whether the queue pair can go on, if the trunk can.
    fn take(&mut self, arrived: Arrived, slots: &mut Slots) -> Result<Result<(), Broken>, Broken> {
        let Arrived { header, .. } = &arrived;
        let (kind, to, number, taken) = (header.kind, header.to, header.number, header.taken);
        let is_nobodys = header.session == 0;
        if kind != Kind::Gone {
            let more = taken.wrapping_sub(self.acknowledged);
            // Those that come in another order than they were sent in may know less.
            if more <= self.sent.wrapping_sub(self.acknowledged) {
                self.acknowledged = taken;
            } else if more < u32::MAX / 2 {
                slots.give(arrived.slot);
                return Err(Broken::Trunk("its other end has taken more than was sent".into()));
            }
        }
        if kind == Kind::Message {
            if number.wrapping_sub(self.received) >= WINDOW || self.held.contains_key(&number) {
                slots.give(arrived.slot);
                return Err(Broken::Trunk("its other end sends more than it may".into()));
            }
            self.held.insert(number, arrived);
        } else {
            slots.give(arrived.slot);
        }
        if kind == Kind::Gone {
            // One that is nowhere any more cannot say how much it has sent.
            self.last = Some(if is_nobodys { self.received } else { number });
        }
        Ok(self.deliver(to).and_then(|()| self.let_in(to, slots)))
    }

    /// Takes as many messages from the program as may go out.
    fn let_in(&mut self, number: u32, slots: &mut Slots) -> Result<(), Broken> {
        let allowed = WINDOW - self.sent.wrapping_sub(self.acknowledged).min(WINDOW);
        while (self.posted.len() as u32) < allowed {
            let slot = slots.take(slots.longest()).map_err(|_| Broken::Pair)?;
            let request = RecvRequest::new(inside_name(number, true), [slot.inside(Header::ROOM, LONGEST_MESSAGE)]);
            self.pair.post_recv(&[request]).map_err(|_| Broken::Pair)?;
            self.posted.push_back(slot);
        }
        Ok(())
    }

    /// Hands the program what came, in order.
    fn deliver(&mut self, number: u32) -> Result<(), Broken> {
        while let Some(arrived) = self.held.remove(&self.received) {
            self.received = self.received.wrapping_add(1);
            let Header { len, solicited, .. } = arrived.header;
            let piece = arrived.slot.inside(Header::ROOM, len as usize);
            self.delivering.push_back(arrived.slot);
            let request = SendRequest { solicited, ..SendRequest::send(inside_name(number, false), [piece]) };
            self.pair.post_send(&[request]).map_err(|_| Broken::Pair)?;
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.last == Some(self.received) && self.delivering.is_empty()
    }
}
