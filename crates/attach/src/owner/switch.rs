//! What carries messages between programs and trunks: one thread for each device, which alone has everything that moves.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use fulmen_reach::Doorbell;
use fulmen_verbs::{Completion, CompletionQueue, QueuePair, VerbsError};

use super::joined::{Arrived, BLANK, Broken, Hello, Joined, Pair, Verdict};
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
        // In this order: who sends to a queue pair has heard of it, so that this thread was told of it before the message came.
        let mut batch = [Completion::BLANK; BATCH];
        let came = self.look_outside(&mut batch);
        let mut any = self.obey_all()?;
        any |= self.take_outside(&batch[..came]);
        any |= self.take_inside();
        Ok(any)
    }

    fn obey_all(&mut self) -> Result<bool, ()> {
        let mut any = false;
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => return Ok(any),
                Err(TryRecvError::Disconnected) => return Err(()),
            }
            any = true;
        }
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
                for hello in self.pairs.remove(&number).map_or_else(Vec::new, Pair::into_hellos) {
                    // Who does not know yet that it waits in vain.
                    if let Err(Broken::Trunk(cause)) = self.deny(hello, number) {
                        self.cut(hello.trunk, &cause);
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

    /// How much the device says.
    fn look_outside(&mut self, batch: &mut [Completion]) -> usize {
        self.queues.outside.poll(batch).unwrap_or_else(|error| {
            let all: Vec<u32> = self.trunks.keys().copied().collect();
            all.into_iter().for_each(|trunk| self.cut(trunk, &error.to_string()));
            0
        })
    }

    fn take_outside(&mut self, came: &[Completion]) -> bool {
        for completion in came {
            let (trunk, way, is_recv) = named(completion.wr_id);
            if let Err(Broken::Trunk(cause)) = self.outside(trunk, way, is_recv, completion) {
                self.cut(trunk, &cause);
            }
        }
        !came.is_empty()
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
        if let Err(cause) = way.listen(trunk, &mut self.slots) {
            self.slots.give(slot);
            return Err(failed(cause));
        }
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
        let Header { to: number, from, session, kind, .. } = *header;
        let hello = Hello { trunk, from, session };
        let Some(pair) = self.pairs.get_mut(&number) else {
            self.slots.give(slot);
            // It is gone, and the other end does not know yet.
            return if kind == Kind::Gone { Ok(()) } else { self.deny(hello, number) };
        };
        let joined = pair.joined.as_mut().filter(|joined| (joined.trunk, joined.remote) == (trunk, from));
        let Some(joined) = joined else {
            self.slots.give(slot);
            match kind {
                Kind::Taken if header.peer == 0 => pair.remember(hello),
                Kind::Gone => drop(pair.take_hello(trunk, from)),
                // For a connection that is over.
                Kind::Taken | Kind::Message => {}
            }
            return Ok(());
        };
        let verdict = joined.judge(header);
        match verdict {
            Verdict::Old => {
                self.slots.give(slot);
                return Ok(());
            }
            Verdict::Next => {
                self.slots.give(slot);
                pair.remember(hello);
                self.part(number, false);
                return Ok(());
            }
            Verdict::Hello => {
                self.slots.give(slot);
                let answer = joined.header(Kind::Taken, number);
                let result = self.note(trunk, answer);
                self.settle(number, result);
                return Ok(());
            }
            Verdict::Own | Verdict::First => {}
        }
        // The peer may have been heard before it knew this connection, and then does not know that it is known.
        let answer = (verdict == Verdict::First && kind != Kind::Gone).then(|| joined.header(Kind::Taken, number));
        let mut result = joined.take(Arrived { header: *header, slot }, &mut self.slots)?;
        if let Some(answer) = answer {
            result = result.and_then(|()| self.note(trunk, answer));
        }
        if trunk != HERE {
            self.counts.received.fetch_add(u64::from(header.len), Ordering::Relaxed);
        }
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
            let more = joined.let_in(number, &mut self.slots);
            if trunk != HERE {
                self.counts.sent.fetch_add(len as u64, Ordering::Relaxed);
            }
            return self.push(trunk, header, slot).and(more);
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

    /// Answers who waits for a queue pair that is gone.
    fn deny(&mut self, hello: Hello, number: u32) -> Result<(), Broken> {
        let Hello { trunk, from, session } = hello;
        self.note(trunk, Header { kind: Kind::Gone, to: from, from: number, peer: session, ..BLANK })
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
        let peer = entry.take_hello(trunk, remote).map(|hello| hello.session);
        let joined = Joined::new((trunk, remote), self.sessions, peer, pair);
        let hello = joined.header(Kind::Taken, number);
        entry.joined = Some(joined);
        let result = self.note(trunk, hello);
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
            pair.cut(trunk);
        }
    }
}

#[cfg(test)]
mod tests;
