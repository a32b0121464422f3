//! One-sided operations of a schedule.

use fulmen_fabric::engine::{At, Atomic, Counter, OpError, OpId, Place, Request, Rights, Source, Target};
use fulmen_memory::Exposed;

use crate::book::Asked;
use crate::end::{Live, What};
use crate::messages::{CANARY, Wrong};
use crate::network::{Carrier, EndId};
use crate::random::{Dice, mix, pattern};
use crate::schedule::Choice;
use crate::share::{AREA, Keys, LOOSE, Share, WORDS};
use crate::world::{Checked, World};

/// An operation that is about to be started.
struct Start {
    asked: Asked,
    /// It must come after those that work on the same bytes.
    fence: bool,
}

impl World<'_> {
    /// An operation on the peer's memory, or several at once.
    pub(crate) fn remote(&mut self, choice: Choice, end: EndId, dice: &mut Dice) -> Checked {
        match dice.below(10) {
            0 => return self.batch(choice, end, dice),
            1 => self.bad(choice, end, dice),
            _ => {
                let offered = dice.below(3) == 0;
                let longest = if dice.below(4) == 0 { LOOSE } else { 200 };
                let Start { asked, fence } = self.draw(end, dice, longest);
                if fence || dice.below(16) == 0 {
                    self.fence(end);
                }
                self.start(Some(choice), end, asked, offered)?;
            }
        }
        self.started(end);
        Ok(())
    }

    fn draw(&self, end: EndId, dice: &mut Dice, longest: usize) -> Start {
        let book = &self.pairs[end.pair].books[end.side];
        // The peer may be dead without anybody having noticed.
        let share = self.nodes[self.node(end.peer())].share.as_ref();
        let word = dice.index(WORDS);
        let salt = mix(u64::from(self.pairs[end.pair].generation), (end.pair * 2 + end.side) as u64);
        let number = book.next();
        let range = |dice: &mut Dice, from: usize, to: usize| {
            let len = 1 + dice.index(longest.min(to - from));
            let at = from + dice.index(to - from - len + 1);
            at..at + len
        };
        let asked = match dice.below(10) {
            0 | 1 => Asked::Add { word, add: 1 + dice.below(1 << 40) },
            2 => {
                // Sometimes what it is now, so that it succeeds.
                let now = share.map_or(0, |share| share.word(word).1);
                let expect = if dice.below(4) == 0 { dice.next() } else { now };
                let new = mix(mix(salt, number), dice.next());
                let (new, since) =
                    (if new == expect { new ^ 1 } else { new }, share.map_or(0, |share| share.age(word)));
                Asked::Swap { word, expect, new, since }
            }
            3 | 4 => {
                let range = range(dice, 0, AREA);
                Asked::Get { at: range.start, brings: book.ideal[range].to_vec() }
            }
            kind => {
                let range = if kind == 5 { range(dice, LOOSE, AREA) } else { range(dice, 0, LOOSE) };
                let mut bytes = vec![0; range.len()];
                pattern(mix(mix(self.options.seed, salt), number), &mut bytes);
                let add = (kind >= 8 && range.start < LOOSE).then(|| 1 + dice.below(1 << 40));
                Asked::Put { at: range.start, bytes, add }
            }
        };
        let fence = match &asked {
            Asked::Put { at, bytes, .. } => book.conflicts(&(*at..at + bytes.len()), true),
            Asked::Get { at, brings } => book.conflicts(&(*at..at + brings.len()), false),
            _ => false,
        };
        Start { asked, fence }
    }

    fn keys(&self, end: EndId) -> Keys {
        self.pairs[end.pair].books[end.side].keys
    }

    fn fence(&mut self, end: EndId) {
        self.end(end).expect("operations are started on links").link.fence();
        self.pairs[end.pair].books[end.side].fence();
    }

    /// The key under which this end reaches the peer's areas.
    fn data_key(&self, end: EndId, keys: Keys, direct: bool) -> u64 {
        // Over a carrier that promises nothing, no device can be trusted to fill memory in order.
        if direct && self.pairs[end.pair].carrier != Carrier::Unreliable { keys.direct } else { keys.data }
    }

    fn start(&mut self, choice: Option<Choice>, end: EndId, asked: Asked, offered: bool) -> Checked {
        let (node, peer) = (self.node(end), self.node(end.peer()));
        let keys = self.keys(end);
        let data = |at: usize| At { key: self.data_key(end, keys, offered), offset: (node * AREA + at) as u64 };
        let word = |word: usize| At { key: keys.words, offset: word as u64 * 8 };
        let carrier = self.pairs[end.pair].carrier;
        let (op, memory, key) = match &asked {
            Asked::Put { at, bytes, add } => {
                let (to, then) = (data(*at), add.map(|add| Counter { at: word(Share::counter(node)), add }));
                let memory = self.take(node, bytes.len())?;
                memory.write(0, bytes);
                let key = (offered && carrier != Carrier::Unreliable).then(|| self.key(node));
                let source = match key {
                    Some(key) => Source::Offered { memory: memory.clone(), place: Place { key, ..Place::default() } },
                    None => Source::Memory(memory.clone()),
                };
                let own = self.end(end).expect("operations are started on links");
                (own.link.put(to, source, then), Some(memory), key)
            }
            Asked::Get { at, brings } => {
                let from = data(*at);
                let memory = self.take(node, brings.len())?;
                memory.fill(0..memory.len(), CANARY);
                let direct = offered && carrier != Carrier::Unreliable;
                let into = Target::Memory { memory: memory.clone(), direct };
                let own = self.end(end).expect("operations are started on links");
                (own.link.get(from, into), Some(memory), None)
            }
            Asked::Add { word: index, add } => {
                let at = word(*index);
                let own = self.end(end).expect("operations are started on links");
                (own.link.atomic(at, Atomic::FetchAdd(*add)), None, None)
            }
            Asked::Swap { word: index, expect, new, .. } => {
                let at = word(*index);
                let own = self.end(end).expect("operations are started on links");
                (own.link.atomic(at, Atomic::CompareSwap { expect: *expect, new: *new }), None, None)
            }
            Asked::Bad { .. } => unreachable!("those are started elsewhere"),
        };
        let number = self.note(end, op, asked, memory, key);
        if let Some(choice) = choice.filter(|_| self.options.story) {
            let what = self.pairs[end.pair].books[end.side].describe(number);
            let how = if offered { ", offered" } else { "" };
            self.tell(choice, &[node, peer], || format!("rank {node} asks rank {peer} for {what}{how}"));
        }
        Ok(())
    }

    /// Enters an operation that was started into the books.
    fn note(&mut self, end: EndId, op: OpId, asked: Asked, memory: Option<Exposed>, key: Option<u64>) -> u64 {
        let number = self.pairs[end.pair].books[end.side].add(asked);
        let own = self.end(end).expect("operations are started on links");
        if let (Some(key), Some(memory)) = (key, &memory) {
            own.places.insert(key, memory.clone());
        }
        own.live.push(Live { op, what: What::Remote { number }, memory, key });
        number
    }

    /// Several small operations that go together.
    fn batch(&mut self, choice: Choice, end: EndId, dice: &mut Dice) -> Checked {
        let (node, peer) = (self.node(end), self.node(end.peer()));
        let count = 2 + dice.index(6);
        let mut drawn: Vec<Asked> = Vec::new();
        if dice.below(2) == 0 {
            self.fence(end);
        }
        for _ in 0..count {
            let Start { asked, fence } = self.draw(end, dice, 40);
            let meets = |other: &Asked| match (other.range(), asked.range()) {
                (Some(one), Some(other)) => one.start < other.end && other.start < one.end,
                _ => false,
            };
            // No order is promised inside of a batch.
            if !fence && !drawn.iter().any(meets) {
                drawn.push(asked);
            }
        }
        let keys = self.keys(end);
        let word = |word: usize| At { key: keys.words, offset: word as u64 * 8 };
        let (mut requests, mut memories) = (Vec::new(), Vec::new());
        for asked in &drawn {
            let data = |at: usize| At { key: keys.data, offset: (node * AREA + at) as u64 };
            let mut memory = None;
            requests.push(match asked {
                Asked::Put { at, bytes, add } => {
                    let then = add.map(|add| Counter { at: word(Share::counter(node)), add });
                    Request::Put { at: data(*at), bytes: bytes.clone().into(), then }
                }
                Asked::Get { at, brings } => {
                    let taken = self.take(node, brings.len())?;
                    taken.fill(0..taken.len(), CANARY);
                    memory = Some(taken.clone());
                    Request::Get { at: data(*at), into: Target::Memory { memory: taken, direct: false } }
                }
                Asked::Add { word: index, add } => Request::Atomic { at: word(*index), atomic: Atomic::FetchAdd(*add) },
                Asked::Swap { word: index, expect, new, .. } => {
                    Request::Atomic { at: word(*index), atomic: Atomic::CompareSwap { expect: *expect, new: *new } }
                }
                Asked::Bad { .. } => unreachable!("those are started elsewhere"),
            });
            memories.push(memory);
        }
        let ops = self.end(end).expect("operations are started on links").link.batch(requests);
        let count = ops.len();
        for ((op, asked), memory) in ops.into_iter().zip(drawn).zip(memories) {
            // What a swap expects was drawn before those in front of it: it may fail, which is known when it ends.
            self.note(end, op, asked, memory, None);
            self.started(end);
        }
        self.tell(choice, &[node, peer], || format!("rank {node} asks rank {peer} for {count} operations at once"));
        Ok(())
    }

    /// An operation that the owner must refuse.
    fn bad(&mut self, choice: Choice, end: EndId, dice: &mut Dice) {
        let (node, peer) = (self.node(end), self.node(end.peer()));
        let keys = self.keys(end);
        let size = keys.size;
        let bytes = || Source::Bytes(vec![0xbd; 24].into());
        let at = |key, offset| At { key, offset };
        let which = dice.below(6);
        let random = dice.next() | 1;
        let link = &mut self.end(end).expect("operations are started on links").link;
        let (op, error) = match which {
            0 => (link.put(at(random, 0), bytes(), None), OpError::NoSuchKey),
            1 => (link.put(at(keys.stale, 64), bytes(), None), OpError::NoSuchKey),
            2 => {
                let offset = size - 23;
                (link.put(at(keys.data, offset), bytes(), None), OpError::OutOfBounds { offset, len: 24, size })
            }
            3 => (link.put(at(keys.read, 0), bytes(), None), OpError::NotPermitted { need: Rights::WRITE }),
            4 => {
                let at = at(keys.data, 8);
                (link.atomic(at, Atomic::FetchAdd(1)), OpError::NotPermitted { need: Rights::ATOMIC })
            }
            _ => {
                let offset = 1 + random % 7;
                (link.atomic(at(keys.words, offset), Atomic::FetchAdd(1)), OpError::Misaligned { offset })
            }
        };
        self.note(end, op, Asked::Bad { error }, None, None);
        self.tell(choice, &[node, peer], || format!("rank {node} asks rank {peer} for what it must refuse ({error})"));
    }

    /// This end has perhaps done something for its peer.
    pub(crate) fn inspect(&mut self, end: EndId) -> Checked {
        let (node, peer) = (self.node(end), self.node(end.peer()));
        let Some(share) = self.nodes[node].share.as_mut() else { return Ok(()) };
        let book = &mut self.pairs[end.pair].books[end.peer().side];
        let checked = book.inspect(share, peer, &mut self.scratch);
        checked.map_err(|wrong| self.wrong_remote(end.peer(), wrong))
    }

    /// Nothing of a node's memory is other than it must be.
    pub(crate) fn inspect_all(&mut self, node: usize) -> Checked {
        let Some(share) = &self.nodes[node].share else { return Ok(()) };
        if share.is_whole(&mut self.scratch) {
            return Ok(());
        }
        let what = format!("rank {node}: bytes changed that no link was to write");
        Err(self.failure(crate::report::Broken::Memory, what))
    }

    /// A one-sided operation has ended.
    pub(crate) fn remote_ended(
        &mut self,
        end: EndId,
        number: u64,
        outcome: Result<u64, OpError>,
        over: bool,
        memory: Option<Exposed>,
    ) -> Checked {
        let (node, peer) = (self.node(end), self.node(end.peer()));
        if let Some(memory) = &memory {
            self.scratch.resize(memory.len(), 0);
            memory.read(0, &mut self.scratch);
        }
        let owner = self.nodes[peer].share.as_ref().map(|share| (share, node));
        let book = &mut self.pairs[end.pair].books[end.side];
        let checked = book.ended(number, outcome, &self.scratch, over, owner);
        checked.map_err(|wrong| self.wrong_remote(end, wrong))?;
        match memory {
            Some(memory) => self.watch(node, memory),
            None => Ok(()),
        }
    }

    fn wrong_remote(&self, from: EndId, (broken, what): Wrong) -> crate::report::Failure {
        let (from, to) = (self.node(from), self.node(from.peer()));
        self.failure(broken, format!("rank {from} on memory of rank {to}: {what}"))
    }
}

impl Asked {
    fn range(&self) -> Option<std::ops::Range<usize>> {
        match self {
            Asked::Put { at, bytes, .. } => Some(*at..at + bytes.len()),
            Asked::Get { at, brings } => Some(*at..at + brings.len()),
            _ => None,
        }
    }
}
