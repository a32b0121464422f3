//! The operations of a schedule.

use fulmen_fabric::engine::{Cancel, Place, Source, Target};

use crate::end::{Live, What};
use crate::messages::{CANARY, CANCELLING, Lane, TAGS};
use crate::network::{Carrier, EndId, MICRO};
use crate::random::Dice;
use crate::report::Broken;
use crate::schedule::Choice;
use crate::world::{Checked, Draw, World};

/// The longest message.
const LONGEST: usize = 6000;
/// Messages of a tag that wait for receives, and the other way round.
const WAITING: i64 = 6;
/// Operations of one end that are under way.
const LIVE: usize = 48;

impl World<'_> {
    /// Chooses the operation of this step.
    pub(crate) fn operate(&mut self) -> Checked {
        let choice = Choice::Operation { step: self.step };
        if !self.keeps(choice) {
            return Ok(());
        }
        let mut dice = self.dice(Draw::Operation, &[self.step]);
        let count = self.nodes.len();
        let from = dice.index(count);
        let to = (from + 1 + dice.index(count - 1)) % count;
        let end = self.end_of(from, to);
        // A node that does nothing starts nothing either.
        let acts = self.nodes[from].alive && self.nodes[from].paused <= self.clock.now;
        let Some(own) = self.end(end).filter(|own| acts && own.live.len() < LIVE) else { return Ok(()) };
        let any = !own.live.is_empty();
        match dice.below(20) {
            0 if any => self.cancel(choice, end, &mut dice),
            1..=9 => self.remote(choice, end, &mut dice),
            _ => self.message(choice, end, &mut dice),
        }
    }

    fn length(dice: &mut Dice) -> usize {
        let eager = 240;
        match dice.below(16) {
            0 => 0,
            1 => eager,
            2 => eager + 1,
            3 | 4 => dice.index(2000),
            5 => dice.index(LONGEST),
            6 => 216 * dice.index(8),
            _ => dice.index(eager),
        }
    }

    /// A message to the peer, or a receive for one of its messages.
    fn message(&mut self, choice: Choice, end: EndId, dice: &mut Dice) -> Checked {
        let tag = dice.below(TAGS);
        let (len, offered, short, sends) =
            (Self::length(dice), dice.below(3) == 0, dice.below(12) == 0, dice.below(2) == 0);
        let ahead = |side: usize| self.pairs[end.pair].lanes[side][tag as usize].ahead();
        let sends = match (ahead(end.side), ahead(1 - end.side)) {
            (mine, _) if sends && mine >= WAITING => false,
            (_, theirs) if !sends && theirs <= -WAITING => true,
            _ => sends,
        };
        if sends {
            self.send(choice, end, tag, len, offered)
        } else {
            let room = if short { len } else { LONGEST };
            self.recv(Some(choice), end, tag, room)
        }
    }

    fn send(&mut self, choice: Choice, end: EndId, tag: u64, len: usize, offered: bool) -> Checked {
        let (node, peer) = (self.node(end), self.node(end.peer()));
        let carrier = self.pairs[end.pair].carrier;
        let (number, bytes) = self.pairs[end.pair].lanes[end.side][tag as usize].send(len, |number| {
            offered
                && match carrier {
                    Carrier::Mapped => true,
                    Carrier::Matched => is_direct(tag, number),
                    // It goes in fragments, the last of which may be lost with the link.
                    Carrier::Unreliable => false,
                }
        });
        let memory = self.take(node, bytes.len())?;
        memory.write(0, &bytes);
        let offered = offered && !bytes.is_empty();
        let key = offered.then(|| self.key(node));
        let own = self.end(end).expect("operations are started on links");
        let source = match key {
            Some(key) => {
                own.places.insert(key, memory.clone());
                Source::Offered { memory: memory.clone(), place: Place { key, ..Place::default() } }
            }
            None => Source::Memory(memory.clone()),
        };
        let op = own.link.send(tag, source);
        own.live.push(Live { op, what: What::Send { tag, number }, memory: Some(memory), key });
        self.started(end);
        let (len, how) = (bytes.len(), if offered { "offered" } else { "in frames" });
        self.tell(choice, &[node, peer], || {
            format!("rank {node} sends {len} bytes to rank {peer} with tag {tag}, {how}")
        });
        Ok(())
    }

    fn recv(&mut self, choice: Option<Choice>, end: EndId, tag: u64, room: usize) -> Checked {
        let (node, peer) = (self.node(end), self.node(end.peer()));
        let number = self.pairs[end.pair].lanes[1 - end.side][tag as usize].recv(room);
        let memory = self.take(node, room)?;
        memory.fill(0..room, CANARY);
        // Over a carrier that promises nothing, no device can be trusted to fill memory in order.
        let direct = self.pairs[end.pair].carrier == Carrier::Matched && is_direct(tag, number);
        let own = self.end(end).expect("operations are started on links");
        let op = own.link.recv(tag, Target::Memory { memory: memory.clone(), direct });
        own.live.push(Live { op, what: What::Recv { tag, number }, memory: Some(memory), key: None });
        self.started(end);
        if let Some(choice) = choice {
            self.tell(choice, &[node, peer], || {
                format!("rank {node} receives up to {room} bytes from rank {peer} with tag {tag}")
            });
        }
        Ok(())
    }

    /// An operation was started: it goes on soon, perhaps together with others.
    pub(crate) fn started(&mut self, end: EndId) {
        self.counts.operations += 1;
        self.pump_soon(end, 6 * MICRO);
    }

    pub(crate) fn key(&mut self, node: usize) -> u64 {
        let key = self.nodes[node].next_key;
        self.nodes[node].next_key += 1;
        key
    }

    /// Gives one of the operations up that may be.
    fn cancel(&mut self, choice: Choice, end: EndId, dice: &mut Dice) -> Checked {
        let (node, peer) = (self.node(end), self.node(end.peer()));
        let Some(own) = self.end(end) else { return Ok(()) };
        let whats: Vec<What> = own.live.iter().map(|live| live.what).collect();
        let book = &self.pairs[end.pair].books[end.side];
        let may = |what: &What| match *what {
            What::Send { tag, .. } | What::Recv { tag, .. } => tag >= CANCELLING,
            What::Remote { number } => book.may_be_given_up(number),
        };
        let able: Vec<usize> = (0..whats.len()).filter(|at| may(&whats[*at])).collect();
        if able.is_empty() {
            return Ok(());
        }
        let at = able[dice.index(able.len())];
        let what = whats[at];
        let described = match what {
            What::Remote { number } if self.options.story => book.describe(number),
            _ => String::new(),
        };
        self.tell(choice, &[node, peer], || match what {
            What::Send { tag, number } => format!("rank {node} gives message {number} with tag {tag} up"),
            What::Recv { tag, number } => format!("rank {node} gives receive {number} with tag {tag} up"),
            What::Remote { .. } => format!("rank {node} gives {described} up"),
        });
        self.give_up(end, at)
    }

    fn give_up(&mut self, end: EndId, at: usize) -> Checked {
        let node = self.node(end);
        let own = self.end(end).expect("its operation is under way");
        let (op, what) = (own.live[at].op, own.live[at].what);
        let verdict = own.link.cancel(op);
        let gone = match verdict {
            Cancel::Released => true,
            Cancel::Busy => false,
            Cancel::Finished => return Ok(()),
            Cancel::Copying => {
                return Err(self.failure(Broken::Outcome, "a copy is under way that nobody makes".into()));
            }
        };
        let released = gone.then(|| own.live.remove(at));
        let checked = match what {
            What::Send { tag, number } => {
                let checked = self.pairs[end.pair].lanes[end.side][tag as usize].cancelled_send(number, gone);
                checked.map_err(|wrong| self.wrong(end, tag, wrong))
            }
            What::Recv { tag, number } => {
                let from = end.peer();
                let checked = self.pairs[end.pair].lanes[from.side][tag as usize].cancelled_recv(number, gone);
                checked.map_err(|wrong| self.wrong(from, tag, wrong))
            }
            What::Remote { number } => {
                let book = &mut self.pairs[end.pair].books[end.side];
                if gone {
                    book.orphan(number)
                } else {
                    book.give_up(number)
                }
                Ok(())
            }
        };
        checked?;
        if let Some(live) = released {
            self.counts.failed += 1;
            if let Some(key) = live.key {
                self.end(end).expect("it was there").places.remove(&key);
            }
            if let Some(memory) = live.memory {
                self.watch(node, memory)?;
            }
        }
        self.pump_soon(end, 6 * MICRO);
        Ok(())
    }

    /// Posts receives for all messages that wait for one: whether there were any.
    pub(crate) fn ask_for_the_rest(&mut self) -> Checked<bool> {
        let mut any = false;
        for pair in 0..self.pairs.len() {
            if !self.pairs[pair].open {
                continue;
            }
            for side in 0..2 {
                let receiver = EndId { pair, side: 1 - side };
                let stuck = self.pairs[pair].lanes[side].iter().any(Lane::is_sending);
                for tag in 0..TAGS {
                    for _ in 0..self.pairs[pair].lanes[side][tag as usize].missing(stuck) {
                        self.recv(None, receiver, tag, LONGEST)?;
                        any = true;
                    }
                }
            }
        }
        Ok(any)
    }

    /// Gives all receives up for which nothing comes.
    pub(crate) fn give_up_receives(&mut self) -> Checked {
        for pair in 0..self.pairs.len() {
            for side in 0..2 {
                let end = EndId { pair, side };
                let waits = |live: &Live| matches!(live.what, What::Recv { .. });
                while let Some(at) = self.end(end).and_then(|own| own.live.iter().rposition(waits)) {
                    let before = self.end(end).map_or(0, |own| own.live.len());
                    self.give_up(end, at)?;
                    if self.end(end).map_or(0, |own| own.live.len()) == before {
                        let what = format!("rank {}: a receive is half done when all is at rest", self.node(end));
                        return Err(self.failure(Broken::Hang, what));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether a device fills the memory of a receive, if there is one.
fn is_direct(tag: u64, number: u64) -> bool {
    tag >= CANCELLING || number % 4 != 3
}
