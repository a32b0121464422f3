//! One-sided operations in the [virtual network](super::network), and a model of the memory on which they work.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::task::Poll;

use fulmen_memory::{Exposed, Pool};
use proptest::prelude::*;

use super::super::*;
use super::network::{End, World};
use super::{CANARY, Dice, cases, kinds};

/// Bytes before and after exported memory that nobody may write.
const GUARD: usize = 256;
const AREA: usize = 16 << 10;
const WORDS: usize = 16;
/// Room for puts of which each has its own.
const SLOTS: usize = 64 << 10;

/// Exported memory between its guards, and what lies in it once all that was started has ended.
struct Area {
    key: u64,
    whole: Exposed,
    memory: Exposed,
    model: Vec<u8>,
}

impl Area {
    fn new(pool: &Pool, len: usize) -> Area {
        let whole = pool.take(len + 2 * GUARD).unwrap().into_exposed();
        whole.fill(0..whole.len(), CANARY);
        let memory = whole.slice(GUARD..GUARD + len);
        memory.fill(0..len, 0);
        Area { key: 0, whole, memory, model: vec![0; len] }
    }

    fn check_guards(&self) {
        let mut bytes = vec![0; self.whole.len()];
        self.whole.read(0, &mut bytes);
        let guards = bytes[..GUARD].iter().chain(&bytes[bytes.len() - GUARD..]);
        assert!(guards.copied().all(|byte| byte == CANARY), "written outside of what was exported");
    }

    fn word(&mut self, index: usize) -> &mut [u8] {
        &mut self.model[index * 8..index * 8 + 8]
    }
}

/// An operation of this end on the peer's memory.
struct Asked {
    op: Option<OpId>,
    /// What a put brings; what a get brought.
    bytes: Vec<u8>,
    /// Its memory, if that is exposed.
    memory: Option<Exposed>,
    is_get: bool,
    lent: bool,
    cancelled: bool,
    /// How it must end, and what a get must bring.
    due: Result<u64, OpError>,
    brings: Vec<u8>,
    outcome: Option<Result<u64, OpError>>,
}

/// A put into memory of its own whose counter must not move before its bytes are there.
struct Counted {
    slot: Range<usize>,
    bytes: Vec<u8>,
    counter: usize,
}

/// What an end has to do with one-sided operations: memory for the peer, and operations on the peer's.
pub(super) struct Remote {
    exports: Exports,
    area: Area,
    words: Area,
    read_only: Area,
    slots: Area,
    used: usize,
    counted: Vec<Counted>,
    asked: Vec<Asked>,
    /// Where operations of this end work at a time of their own, by key.
    loose: Vec<(u64, Range<usize>)>,
}

impl Remote {
    pub(super) fn new(pool: &Pool, dice: &mut Dice, places: &mut HashMap<u64, Exposed>) -> (Remote, Exports) {
        let exports = Exports::new();
        let mut area = |len, rights| {
            let mut area = Area::new(pool, len);
            area.key = if dice.below(2) == 0 {
                exports.add(area.memory.clone(), rights).unwrap()
            } else {
                let key = places.len() as u64 + 100;
                places.insert(key, area.whole.clone());
                let place = Place { key, offset: GUARD as u64, ..Place::default() };
                exports.add_direct(area.memory.clone(), rights, place).unwrap()
            };
            area
        };
        let remote = Remote {
            area: area(AREA, Rights::READ | Rights::WRITE),
            words: area(8 * WORDS, Rights::ATOMIC),
            read_only: area(1000, Rights::READ),
            slots: area(SLOTS, Rights::all()),
            used: 0,
            counted: Vec::new(),
            asked: Vec::new(),
            loose: Vec::new(),
            exports: exports.clone(),
        };
        (remote, exports)
    }

    pub(super) fn lends(&self) -> bool {
        self.asked.iter().any(|asked| asked.lent && asked.op.is_some())
    }

    /// One of the operations under way whose memory is a thread's own.
    pub(super) fn lent(&mut self, puts: bool, dice: &mut Dice) -> Lent<'_> {
        let fits = |asked: &&mut Asked| asked.lent && asked.op.is_some() && asked.is_get != puts;
        let count = self.asked.iter_mut().filter(fits).count();
        if count == 0 {
            return Lent::Nothing;
        }
        let asked = self.asked.iter_mut().filter(fits).nth(dice.below(count)).unwrap();
        let op = asked.op.unwrap();
        if puts { Lent::Source(op, &asked.bytes) } else { Lent::Target(op, &mut asked.bytes) }
    }

    /// No counter has moved before the bytes were there.
    fn check_counted(&self) {
        for Counted { slot, bytes, counter } in &self.counted {
            if self.slots.memory.atomic_u64(*counter).load(Ordering::Acquire) > 0 {
                let mut found = vec![0; slot.len()];
                self.slots.memory.read(slot.start, &mut found);
                assert_eq!(&found, bytes, "the counter moved before the bytes");
            }
        }
    }

    fn areas(&self) -> [&Area; 4] {
        [&self.area, &self.words, &self.read_only, &self.slots]
    }
}

impl End {
    pub(super) fn collect_remote(&mut self) -> bool {
        let End { link, remote, .. } = self;
        remote.check_counted();
        let mut any = false;
        for asked in &mut remote.asked {
            let Some(op) = asked.op else { continue };
            let mut lent = match (asked.lent, asked.is_get) {
                (true, true) => Lent::Target(op, &mut asked.bytes),
                _ => Lent::Nothing,
            };
            if let Poll::Ready(outcome) = link.poll(op, &mut lent) {
                (asked.op, asked.outcome, any) = (None, Some(outcome), true);
                if let Some(memory) = asked.memory.as_ref().filter(|_| asked.is_get) {
                    memory.read(0, &mut asked.bytes);
                }
            }
        }
        any
    }

    fn start(&mut self, op: OpId, asked: Asked) {
        self.remote.asked.push(Asked { op: Some(op), ..asked });
    }

    /// Orders an operation after those on the same bytes that work at a time of their own.
    fn order(&mut self, works_on: &[(u64, Range<usize>)], loose: bool) {
        let meets = |(one, here): &(u64, Range<usize>), (other, there): &(u64, Range<usize>)| {
            one == other && there.start < here.end && here.start < there.end
        };
        if self.remote.loose.iter().any(|there| works_on.iter().any(|here| meets(here, there))) {
            self.link.fence();
            self.remote.loose.clear();
        }
        if loose {
            self.remote.loose.extend_from_slice(works_on);
        }
    }
}

fn put(bytes: Vec<u8>, memory: Option<Exposed>, lent: bool, due: Result<u64, OpError>) -> Asked {
    let (brings, outcome) = (Vec::new(), None);
    Asked { op: None, bytes, memory, is_get: false, lent, cancelled: false, due, brings, outcome }
}

impl World {
    pub(super) fn start_remote(&mut self, side: usize) {
        match self.dice.below(10) {
            0..=3 => self.start_put(side),
            4 => self.start_counted(side),
            5 | 6 => self.start_get(side),
            7 => self.start_refused(side),
            8 => self.start_atomic(side),
            _ => self.start_batch(side),
        }
    }

    /// A source of these bytes.
    fn source(&mut self, bytes: &[u8]) -> (Source, Option<Exposed>) {
        let kind = self.dice.below(4);
        match kind {
            0 => return (Source::Lent(bytes.len() as u64), None),
            1 => return (Source::Bytes(bytes.into()), None),
            _ => {}
        }
        let memory = self.take(bytes.len());
        memory.write(0, bytes);
        let source = match kind {
            2 => Source::Memory(memory.clone()),
            _ => Source::Offered { place: self.offer(&memory), memory: memory.clone() },
        };
        (source, Some(memory))
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let salt = self.dice.below(256);
        (0..len).map(|at| (at * 29 + salt) as u8 | 1).collect()
    }

    fn start_put(&mut self, side: usize) {
        let len = self.length();
        let offset = self.dice.below(AREA - len);
        let bytes = self.bytes(len);
        let (source, memory) = self.source(&bytes);
        let lent = matches!(source, Source::Lent(_));
        let (range, loose) = (offset..offset + len, matches!(source, Source::Offered { .. }));
        let counter = (self.dice.below(3) == 0).then(|| (self.dice.below(WORDS), self.dice.below(1000) as u64));
        let (own, peer) = self.both(side);
        let mut works_on = vec![(peer.remote.area.key, range.clone())];
        let then = counter.map(|(word, add)| {
            let key = peer.remote.words.key;
            works_on.push((key, word * 8..word * 8 + 8));
            grow(peer.remote.words.word(word), add);
            Counter { at: At { key, offset: word as u64 * 8 }, add }
        });
        own.order(&works_on, loose);
        peer.remote.area.model[range].copy_from_slice(&bytes);
        let op = own.link.put(At { key: peer.remote.area.key, offset: offset as u64 }, source, then);
        own.start(op, put(bytes, memory, lent, Ok(len as u64)));
    }

    /// A put into bytes of its own, with a counter of its own.
    fn start_counted(&mut self, side: usize) {
        let len = 1 + self.length();
        let bytes = self.bytes(len);
        let (counter, start) = {
            let used = &mut self.ends[1 - side].remote.used;
            let counter = *used;
            *used = (*used + 8 + len).next_multiple_of(8);
            (counter, counter + 8)
        };
        if start + len > SLOTS {
            return;
        }
        let (source, memory) = self.source(&bytes);
        let lent = matches!(source, Source::Lent(_));
        let (own, peer) = self.both(side);
        let slots = &mut peer.remote.slots;
        slots.model[start..start + len].copy_from_slice(&bytes);
        grow(&mut slots.model[counter..counter + 8], 1);
        let at = |offset: usize| At { key: slots.key, offset: offset as u64 };
        let op = own.link.put(at(start), source, Some(Counter { at: at(counter), add: 1 }));
        own.start(op, put(bytes.clone(), memory, lent, Ok(len as u64)));
        peer.remote.counted.push(Counted { slot: start..start + len, bytes, counter });
    }

    fn start_get(&mut self, side: usize) {
        let len = self.length();
        let offset = self.dice.below(AREA - len);
        let kind = self.dice.below(3);
        let memory = (kind > 0).then(|| self.take(len));
        let (own, peer) = self.both(side);
        own.order(&[(peer.remote.area.key, offset..offset + len)], true);
        let into = match &memory {
            Some(memory) => {
                memory.fill(0..len, CANARY);
                Target::Memory { memory: memory.clone(), direct: kind == 1 }
            }
            None => Target::Lent(len as u64),
        };
        let op = own.link.get(At { key: peer.remote.area.key, offset: offset as u64 }, into);
        let brings = peer.remote.area.model[offset..offset + len].to_vec();
        let (bytes, lent) = (vec![CANARY; len], memory.is_none());
        let (cancelled, outcome, due) = (false, None, Ok(len as u64));
        own.start(op, Asked { op: None, bytes, memory, is_get: true, lent, cancelled, due, brings, outcome });
    }

    fn start_atomic(&mut self, side: usize) {
        let (word, add, miss) = (self.dice.below(WORDS), self.dice.below(1 << 20) as u64, self.dice.below(3));
        let (own, peer) = self.both(side);
        let key = peer.remote.words.key;
        own.order(&[(key, word * 8..word * 8 + 8)], false);
        let model = peer.remote.words.word(word);
        let old = u64::from_le_bytes(model.try_into().unwrap());
        let atomic = match miss {
            0 => Atomic::FetchAdd(add),
            1 => Atomic::CompareSwap { expect: old, new: add },
            _ => Atomic::CompareSwap { expect: old + 1, new: add },
        };
        match miss {
            0 => grow(model, add),
            1 => model.copy_from_slice(&add.to_le_bytes()),
            _ => {}
        }
        let op = own.link.atomic(At { key, offset: word as u64 * 8 }, atomic);
        own.start(op, put(Vec::new(), None, false, Ok(old)));
    }

    /// Many short operations, some of which are refused.
    fn start_batch(&mut self, side: usize) {
        let mut requests = Vec::new();
        let mut dues = Vec::new();
        for _ in 0..self.dice.below(40) {
            let (word, len, add) = (self.dice.below(WORDS), self.dice.below(40), self.dice.below(9) as u64);
            let (offset, pick, bytes) = (self.dice.below(AREA - len), self.dice.below(4), self.bytes(len));
            let (own, peer) = self.both(side);
            let (area, words) = (&mut peer.remote.area, &mut peer.remote.words);
            // Ordered before the whole batch, which is well for operations in order.
            if pick < 2 {
                own.order(&[(area.key, offset..offset + len)], false);
            } else {
                own.order(&[(words.key, word * 8..word * 8 + 8)], false);
            }
            let (request, due) = match pick {
                0 => {
                    area.model[offset..offset + len].copy_from_slice(&bytes);
                    let at = At { key: area.key, offset: offset as u64 };
                    (Request::Put { at, bytes: bytes.into(), then: None }, Ok(len as u64))
                }
                1 => {
                    let at = At { key: peer.remote.read_only.key, offset: 0 };
                    let refused = OpError::NotPermitted { need: Rights::WRITE };
                    (Request::Put { at, bytes: bytes.into(), then: None }, Err(refused))
                }
                2 => {
                    let at = At { key: words.key, offset: word as u64 * 8 };
                    let old = u64::from_le_bytes(words.word(word).try_into().unwrap());
                    grow(words.word(word), add);
                    (Request::Atomic { at, atomic: Atomic::FetchAdd(add) }, Ok(old))
                }
                _ => {
                    let offset = word as u64 * 8 + 1 + add % 7;
                    let at = At { key: words.key, offset };
                    let refused = match offset + 8 > words.memory.len() as u64 {
                        true => OpError::OutOfBounds { offset, len: 8, size: words.memory.len() as u64 },
                        false => OpError::Misaligned { offset },
                    };
                    (Request::Atomic { at, atomic: Atomic::FetchAdd(add) }, Err(refused))
                }
            };
            requests.push(request);
            dues.push(due);
        }
        let own = &mut self.ends[side];
        for (op, due) in own.link.batch(requests).into_iter().zip(dues) {
            own.start(op, put(Vec::new(), None, false, due));
        }
    }

    /// A put that the owner refuses, whatever its length.
    fn start_refused(&mut self, side: usize) {
        let len = 1 + self.length();
        let bytes = self.bytes(len);
        let (source, memory) = self.source(&bytes);
        let lent = matches!(source, Source::Lent(_));
        let pick = self.dice.below(6);
        let (own, peer) = self.both(side);
        let Remote { area, words, read_only, .. } = &peer.remote;
        let (key, size, len) = (area.key, AREA as u64, len as u64);
        let good = At { key, offset: 0 };
        let counter = |key, offset| Some(Counter { at: At { key, offset }, add: 1 });
        let outside = |offset| OpError::OutOfBounds { offset, len, size };
        let (at, then, error) = match pick {
            0 => (At { key: key ^ 1, offset: 0 }, None, OpError::NoSuchKey),
            1 => (At { key: read_only.key, offset: 0 }, None, OpError::NotPermitted { need: Rights::WRITE }),
            2 => (At { key, offset: size - len + 1 }, None, outside(size - len + 1)),
            3 => (At { key, offset: u64::MAX - len + 1 }, None, outside(u64::MAX - len + 1)),
            4 => (good, counter(area.key, 0), OpError::NotPermitted { need: Rights::ATOMIC }),
            _ => (good, counter(words.key, 4), OpError::Misaligned { offset: 4 }),
        };
        let op = own.link.put(at, source, then);
        own.start(op, put(bytes, memory, lent, Err(error)));
    }

    pub(super) fn cancel_remote(&mut self, side: usize) {
        let pick = self.dice.below(8);
        let End { link, remote, .. } = &mut self.ends[side];
        let under_way = |asked: &&mut Asked| asked.op.is_some() && !asked.cancelled;
        let Some(asked) = remote.asked.iter_mut().filter(under_way).nth(pick) else { return };
        match link.cancel(asked.op.unwrap()) {
            Cancel::Released => {
                (asked.op, asked.cancelled) = (None, true);
                // Nothing may write it from now on, or care what it has.
                if let Some(memory) = &asked.memory {
                    memory.fill(0..memory.len(), CANARY);
                }
            }
            Cancel::Busy => asked.cancelled = true,
            Cancel::Finished => {}
            Cancel::Copying => panic!("no copy is under way"),
        }
    }

    fn both(&mut self, side: usize) -> (&mut End, &mut End) {
        let [one, other] = &mut self.ends;
        if side == 0 { (one, other) } else { (other, one) }
    }

    /// Every operation ended as it had to, and the memory is what it must be.
    fn check_remote(&self) {
        for End { remote, link, .. } in &self.ends {
            for asked in &remote.asked {
                assert_eq!(asked.outcome, Some(asked.due));
                assert!(!asked.is_get || asked.bytes == asked.brings, "a get brought other bytes");
            }
            for area in remote.areas() {
                let mut found = vec![0; area.memory.len()];
                area.memory.read(0, &mut found);
                assert!(found == area.model, "the memory is not what was put there");
            }
            assert!(link.one.is_idle(), "{:?}", link.one);
        }
        self.check_guards();
    }

    fn check_guards(&self) {
        for End { remote, .. } in &self.ends {
            remote.check_counted();
            remote.areas().into_iter().for_each(Area::check_guards);
            for asked in &remote.asked {
                if let Some(memory) = asked.memory.as_ref().filter(|_| asked.cancelled && asked.op.is_none()) {
                    let mut bytes = vec![0; memory.len()];
                    memory.read(0, &mut bytes);
                    let untouched = asked.outcome.is_some() || bytes.iter().all(|byte| *byte == CANARY);
                    assert!(untouched, "written after its release");
                }
            }
        }
    }

    /// Everything that was started at this end has ended.
    fn all_ended(&self, side: usize) -> bool {
        self.ends[side].remote.asked.iter().all(|asked| asked.op.is_none())
    }

    /// Drops all that is not the links', which are over.
    fn into_links(self) -> (Pool, Vec<Link>) {
        let World { ends, pool, .. } = self;
        let links = ends.into_iter().map(|End { link, remote, .. }| {
            for area in remote.areas() {
                remote.exports.remove(area.key);
            }
            link
        });
        let links = links.collect();
        (pool, links)
    }
}

/// Adds to a word of a model.
fn grow(word: &mut [u8], add: u64) {
    let old = u64::from_le_bytes((&*word).try_into().unwrap());
    word.copy_from_slice(&old.wrapping_add(add).to_le_bytes());
}

fn rounds() -> u32 {
    cases(1500, 120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(), ..ProptestConfig::default() })]

    #[test]
    fn memory_is_what_was_put_there_in_order(
        seed in any::<u64>(),
        rendezvous in kinds(),
        steps in 50usize..1000,
        one_sided in 5usize..20,
    ) {
        let mut world = World::new(seed, rendezvous, false, one_sided);
        (0..steps).for_each(|_| world.step());
        world.receive_the_rest();
        world.settle();
        world.check_all();
        world.check_remote();
        let [one, other] = &world.ends;
        prop_assert_eq!(one.link.credits + other.link.owed, 16);
        prop_assert_eq!(other.link.credits + one.link.owed, 16);
    }

    #[test]
    fn whatever_is_cancelled_is_released_and_the_rest_goes_on(
        seed in any::<u64>(),
        rendezvous in kinds(),
        steps in 50usize..1000,
        one_sided in 5usize..20,
    ) {
        let mut world = World::new(seed, rendezvous, true, one_sided);
        (0..steps).for_each(|_| world.step());
        world.settle();
        world.check_received();
        world.check_guards();
        for side in 0..2 {
            // Nothing of a cancelled operation stays, and none hangs.
            prop_assert!(world.all_ended(side));
            prop_assert!(world.ends[side].link.one.is_idle(), "{:?}", world.ends[side].link.one);
        }
    }

    #[test]
    fn a_severed_link_lets_go_of_all_memory(
        seed in any::<u64>(),
        rendezvous in kinds(),
        steps in 0usize..400,
        cancels in any::<bool>(),
    ) {
        let mut world = World::new(seed, rendezvous, cancels, 6);
        (0..steps).for_each(|_| world.step());
        for side in 0..2 {
            world.ends[side].link.sever();
            world.collect(side);
            prop_assert!(world.all_ended(side));
            prop_assert!(!world.transmit(side));
        }
        world.check_received();
        world.check_guards();
        let (pool, links) = world.into_links();
        prop_assert_eq!(pool.stats().blocks, 0);
        drop(links);
    }
}
