//! Frames that no correct peer sends.

use std::task::Poll;

use fulmen_memory::Exposed;
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use super::super::frame::{Kind, Prefix};
use super::super::link::Inbound;
use super::super::ops::{Op, Recv, RecvPhase};
use super::super::*;
use super::{CANARY, cases, config, kinds, memory};

const SIZE: usize = 1000;

/// A link with operations of every sort under way, and what its peer may reach.
struct Busy {
    link: Link,
    ops: Vec<OpId>,
    /// In one region: memory to read, to write, for atomics, and that was taken back; canaries between them.
    region: Exposed,
    keys: [u64; 4],
}

impl Busy {
    fn new(rendezvous: Rendezvous) -> Busy {
        let region = memory(4 * 2 * SIZE);
        region.fill(0..region.len(), CANARY);
        let exports = Exports::new();
        let rights = [Rights::READ, Rights::WRITE, Rights::ATOMIC, Rights::all()];
        let mut index = 0;
        let keys = rights.map(|rights| {
            let part = region.slice(index * 2 * SIZE..index * 2 * SIZE + SIZE);
            index += 1;
            let place = Place { key: index as u64, ..Place::default() };
            let key = match index % 2 {
                0 => exports.add(part, rights),
                _ => exports.add_direct(part, rights, place),
            };
            key.unwrap()
        });
        exports.remove(keys[3]);
        let mut link = Link::with_exports(config(rendezvous), exports);
        let memory = memory(1 << 16);
        let offered = |range| Source::Offered { memory: memory.slice(range), place: Place::default() };
        let (key, at) = (7, At { key: 7, offset: 8 });
        let mut ops = vec![
            link.send(1, Source::Memory(memory.slice(0..3000))),
            link.send(2, offered(4096..9000)),
            link.send(3, Source::Memory(memory.slice(0..10))),
            link.recv(1, Target::Memory { memory: memory.slice(16384..20000), direct: true }),
            link.recv(1, Target::Memory { memory: memory.slice(20480..20580), direct: false }),
            link.recv(2, Target::Lent(500)),
        ];
        ops.extend([
            link.atomic(at, Atomic::FetchAdd(1)),
            link.get(at, Target::Memory { memory: memory.slice(30000..30100), direct: true }),
            link.get(at, Target::Memory { memory: memory.slice(30100..33100), direct: false }),
            link.put(at, offered(33100..35000), Some(Counter { at: At { key, offset: 0 }, add: 1 })),
            link.put(at, Source::Memory(memory.slice(35000..35010)), None),
            link.put(at, Source::Memory(memory.slice(35000..45000)), None),
            link.atomic(at, Atomic::FetchAdd(1)),
        ]);
        for _ in 0..6 {
            if let Some(frame) = link.transmit(&Lent::Nothing) {
                link.transmitted(&frame);
            }
        }
        Busy { link, ops, region, keys }
    }

    /// Nothing was written but where the peer may write.
    fn check(&self) {
        let mut bytes = vec![0; self.region.len()];
        self.region.read(0, &mut bytes);
        for (index, part) in bytes.chunks(SIZE).enumerate() {
            let writable = index == 2 || index == 4;
            assert!(writable || part.iter().all(|byte| *byte == CANARY), "part {index} was written");
        }
    }
}

/// Fields that lead deep into the machine: small numbers, and the numbers of operations.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..8, (0u64..8).prop_map(|index| (1 << 32) | index), Just(u64::MAX), any::<u64>()]
}

/// What stands for the key of the memory of this index.
const KEY: u64 = 0xfeed_0000;

fn key() -> impl Strategy<Value = u64> {
    prop_oneof![8 => (0u64..4).prop_map(|index| KEY + index), 1 => any::<u64>()]
}

/// Offsets and lengths about the edges.
fn extent() -> impl Strategy<Value = u64> {
    let edge = SIZE as u64;
    prop_oneof![0u64..64, (0u64..16).prop_map(|at| at * 8), edge - 16..edge + 2, any::<u64>(), u64::MAX - 64..=u64::MAX]
}

/// A request that is right but for what it names, mostly.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let words = (key(), extent(), number(), extent(), prop::collection::vec(any::<u8>(), 0..150));
    let odd = prop_oneof![9 => Just(None), 1 => (0usize..34, any::<u8>()).prop_map(Some)];
    (0u8..8, any::<bool>(), words, odd).prop_map(|(kind, counted, (key, offset, op, extent, bytes), odd)| {
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        // Its counter is in the memory for atomics, or in the same.
        let counter = if counted { words(&[if op % 2 == 0 { KEY + 2 } else { key }, extent, 1]) } else { Vec::new() };
        let (verb, flags, len, tail) = match kind {
            0..=2 => (1, u8::from(counted), bytes.len() as u64, [counter, bytes].concat()),
            3 => (1, 2 | u8::from(counted), bytes.len() as u64 + extent % 900, [counter, bytes].concat()),
            4 => (1, 4 | u8::from(counted), extent, [counter, words(&[key, offset])].concat()),
            5 => (2, 8 * u8::from(counted), extent, Vec::new()),
            6 => (3, 0, 8, words(&[extent])),
            _ => (4, 0, 8, words(&[u64::from_le_bytes([CANARY; 8]), extent])),
        };
        let mut request = [&[verb, flags][..], &words(&[op, key, offset, len]), &tail].concat();
        if let Some((at, byte)) = odd {
            request[at] = byte;
        }
        request
    })
}

/// Frames of one-sided operations that are nearly right. Keys are still to be put in.
fn one_sided() -> impl Strategy<Value = Vec<u8>> {
    let own = || (0u64..14).prop_map(|index| (1 << 32) | index);
    let answer = (own(), 0u8..8, number())
        .prop_map(|(op, code, value)| [&op.to_le_bytes()[..], &[code], &value.to_le_bytes()].concat());
    let fragment = (any::<bool>(), prop::collection::vec(any::<u8>(), 1..200)).prop_map(|(abort, rest)| {
        let rest = if abort { &[][..] } else { &rest };
        whole(11, 2 * u8::from(abort), 0, [&[0; 24], rest].concat())
    });
    // Of the gets under way.
    let matched = (own(), prop_oneof![Just(100u64), Just(3000)], 1usize..100)
        .prop_map(|(op, total, len)| whole(2, 1, op, [&total.to_le_bytes()[..], &[0; 16], &vec![9; len]].concat()));
    let offer = (own(), prop_oneof![Just(100u64), Just(3000)], number()).prop_map(|(op, total, number)| {
        whole(3, 1, op, [number, total, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect())
    });
    prop_oneof![
        40 => request().prop_map(|request| whole(9, 0, 1, request)),
        4 => (request(), request()).prop_map(|(one, other)| whole(9, 0, 2, [one, other].concat())),
        1 => prop::collection::vec(answer, 1..3)
            .prop_map(|answers| whole(10, 0, answers.len() as u64, answers.concat())),
        20 => fragment,
        1 => matched,
        1 => offer,
    ]
}

/// A frame of this kind.
fn whole(kind: u8, flags: u8, word: u64, body: Vec<u8>) -> Vec<u8> {
    let prefix = Prefix { kind, flags, credits: 0.into(), sequence: 0.into(), word: word.into() };
    [prefix.as_bytes(), &body].concat()
}

/// Puts the keys in for what stands for them.
fn with_keys(bytes: &mut [u8], keys: &[u64; 4]) {
    for at in 0..bytes.len().saturating_sub(7) {
        let word = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        if let Some(key) = word.checked_sub(KEY).and_then(|index| keys.get(index as usize)) {
            bytes[at..at + 8].copy_from_slice(&key.to_le_bytes());
        }
    }
}

/// Lets a fragment of a put follow what has come: false if none is due.
fn follow(bytes: &mut Vec<u8>, link: &Link) -> bool {
    let due = match link.one.landing {
        Inbound::Op(op) => match link.ops.peek(op) {
            Op::Recv(Recv { phase: RecvPhase::Filling { got, total }, .. }) => Some((*total, *got)),
            _ => None,
        },
        Inbound::Discard { got, total } => Some((total, got)),
        _ => None,
    };
    let Some((total, got)) = due else { return false };
    if let Some(place) = bytes.get_mut(16..32) {
        place[..8].copy_from_slice(&total.to_le_bytes());
        place[8..].copy_from_slice(&got.to_le_bytes());
        bytes.truncate(FRAGMENT_HEADER.saturating_add((total - got) as usize));
    }
    true
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let fields = prop::collection::vec(number(), 0..5);
    let flags = prop_oneof![4 => 0u8..4, 1 => any::<u8>()];
    (0u8..17, flags, 0u16..4, number(), fields, prop::collection::vec(any::<u8>(), 0..230)).prop_map(
        |(kind, flags, credits, word, fields, rest)| {
            let prefix = Prefix { kind, flags, credits: credits.into(), sequence: 0.into(), word: word.into() };
            let mut bytes = prefix.as_bytes().to_vec();
            fields.iter().for_each(|field| bytes.extend(field.to_le_bytes()));
            bytes.extend(rest);
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(20_000, 1000), ..ProptestConfig::default() })]

    #[test]
    fn nothing_a_peer_sends_makes_it_panic_or_grow(
        frames in prop::collection::vec(prop_oneof![1 => frame(), 40 => one_sided()], 1..40),
        rendezvous in prop_oneof![kinds(), Just(Rendezvous::Striped)],
        raw in prop::bool::weighted(0.1),
    ) {
        let mut busy = Busy::new(rendezvous);
        let mut lent_bytes = [0; 500];
        for mut bytes in frames {
            with_keys(&mut bytes, &busy.keys);
            let Busy { link, ops, .. } = &mut busy;
            if !raw {
                // The right number, so that the rest of the frame is looked at.
                let (prefix, _) = Prefix::mut_from_prefix(&mut bytes).unwrap();
                prefix.sequence = link.next_in.into();
                // No credits beyond those used, mostly.
                prefix.credits = prefix.credits.get().min(16 - link.credits).into();
                if prefix.kind == Kind::PutFragment as u8 && !follow(&mut bytes, link) && bytes.len() % 16 > 0 {
                    continue;
                }
            }
            let mut lent = Lent::Target(ops[5], &mut lent_bytes);
            let cut = FRAGMENT_HEADER + 1 + bytes.len() / 2;
            let received = match comes_in_parts(bytes.first().copied().unwrap_or(0)) && cut < bytes.len() {
                true => link
                    .receive_part(bytes.as_slice(), 0..cut, &mut lent)
                    .and_then(|()| link.receive_part(bytes.as_slice(), cut..bytes.len(), &mut lent)),
                false => link.receive(bytes.as_slice(), &mut lent),
            };
            if received.is_err() {
                link.sever();
                break;
            }
            prop_assert!(link.kept <= 2000 + 16 * (500 + 64));
            if let Some(copy) = link.next_copy(&mut lent) {
                match copy.into {
                    Into::Memory(memory) => prop_assert_eq!(memory.len() as u64, copy.len),
                    Into::Lent => prop_assert!(copy.len <= 500),
                }
                link.copied(copy.op, Err(OpError::Unreachable));
            }
            while link.next_told().is_some() {}
            while let Some(posting) = link.next_posting() {
                match posting {
                    Posting::Receive { op, memory } => {
                        if rendezvous == Rendezvous::Striped {
                            link.grant(op, Part { offset: 0, len: memory.len() as u64, rail: 1, incarnation: 0 });
                        } else {
                            link.granted(op, memory.len() as u64);
                        }
                        assert!(link.landed(op));
                    }
                    Posting::Part { op, memory, part } => {
                        prop_assert_eq!(memory.len() as u64, part.len);
                        link.parted(op, part.len);
                    }
                    Posting::Send { memory, range, .. } => prop_assert!(range.end <= memory.len() as u64),
                }
            }
            if let Some(frame) = link.transmit(&Lent::Nothing) {
                link.transmitted(&frame);
            }
        }
        busy.check();
        let Busy { mut link, ops, .. } = busy;
        link.sever();
        for op in ops {
            let mut lent = Lent::Target(op, &mut lent_bytes);
            prop_assert!(matches!(link.poll(op, &mut lent), Poll::Ready(_)));
        }
    }

    #[test]
    fn random_bytes_are_an_error_or_harmless(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let Busy { mut link, .. } = Busy::new(Rendezvous::Mapped);
        let _ = link.receive(bytes.as_slice(), &mut Lent::Nothing);
        prop_assert!(link.kept <= 300 + 64);
    }
}

/// Offers that are taken back again, from a peer that gives back no credit, so that no answer goes out.
#[test]
fn offers_that_are_taken_back_do_not_pile_up() {
    for obeys in [true, false] {
        let mut link = Link::new(config(Rendezvous::Mapped));
        let mut credits = link.config.credits;
        let mut outcome = Ok(());
        let mut sequence = 0_u32;
        'peer: for number in 0..100_000_u64 {
            let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
            let rts = whole(Kind::Rts as u8, 0, 5, [words(&[number, 1000, 1, 0]), vec![0; 4]].concat());
            for mut bytes in [rts, whole(Kind::Cancel as u8, 0, number, Vec::new())] {
                while let Some(frame) = link.transmit(&Lent::Nothing) {
                    link.transmitted(&frame);
                    let (prefix, _) = Prefix::ref_from_prefix(frame.header.as_bytes()).unwrap();
                    credits += prefix.credits.get();
                }
                if obeys && credits == 0 {
                    break 'peer;
                }
                credits = credits.saturating_sub(1);
                let (prefix, _) = Prefix::mut_from_prefix(&mut bytes).unwrap();
                prefix.sequence = sequence.into();
                sequence += 1;
                outcome = link.receive(bytes.as_slice(), &mut Lent::Nothing);
                if outcome.is_err() {
                    break 'peer;
                }
                let answers = link.control.len() as u64;
                assert!(answers <= 2000 / 64 + 16, "{answers} answers wait");
            }
        }
        assert_eq!(outcome, if obeys { Ok(()) } else { Err(ProtocolError::Credits) });
        assert!(credits == 0 && sequence < 1000, "{sequence} frames were taken");
        link.sever();
        assert_eq!(link.kept, 0);
    }
}
