//! Frames that no correct peer sends.

use std::task::Poll;

use fulmen_memory::Region;
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use super::super::frame::Prefix;
use super::super::*;
use super::{config, kinds};

/// A link with operations of every sort under way.
fn busy(rendezvous: Rendezvous) -> (Link, Vec<OpId>) {
    let mut link = Link::new(config(rendezvous));
    let memory = Region::alloc(1 << 16).unwrap().expose().unwrap();
    let ops = vec![
        link.send(1, Source::Memory(memory.slice(0..3000))),
        link.send(2, Source::Offered { memory: memory.slice(4096..9000), place: Place::default() }),
        link.send(3, Source::Memory(memory.slice(0..10))),
        link.recv(1, Target::Memory { memory: memory.slice(16384..20000), direct: true }),
        link.recv(1, Target::Memory { memory: memory.slice(20480..20580), direct: false }),
        link.recv(2, Target::Lent(500)),
    ];
    for _ in 0..4 {
        if let Some(frame) = link.transmit(&Lent::Nothing) {
            link.transmitted(&frame);
        }
    }
    (link, ops)
}

/// Fields that lead deep into the machine: small numbers, and the numbers of operations.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..8, (0u64..8).prop_map(|index| (1 << 32) | index), Just(u64::MAX), any::<u64>()]
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let fields = prop::collection::vec(number(), 0..5);
    let flags = prop_oneof![4 => 0u8..4, 1 => any::<u8>()];
    (0u8..10, flags, 0u16..4, number(), fields, prop::collection::vec(any::<u8>(), 0..230)).prop_map(
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
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_a_peer_sends_makes_it_panic_or_grow(
        frames in prop::collection::vec(frame(), 1..40),
        rendezvous in kinds(),
        raw in any::<bool>(),
    ) {
        let (mut link, ops) = busy(rendezvous);
        let mut lent_bytes = [0; 500];
        for mut bytes in frames {
            if !raw {
                // The right number, so that the rest of the frame is looked at.
                let (prefix, _) = Prefix::mut_from_prefix(&mut bytes).unwrap();
                prefix.sequence = link.next_in.into();
                // No credits beyond those used, mostly.
                prefix.credits = prefix.credits.get().min(16 - link.credits).into();
            }
            let mut lent = Lent::Target(ops[5], &mut lent_bytes);
            if link.receive(bytes.as_slice(), &mut lent).is_err() {
                link.sever();
                break;
            }
            prop_assert!(link.kept <= 2000 + 16 * (256 + 64));
            if let Some(copy) = link.next_copy(&mut lent) {
                match copy.into {
                    Into::Memory(memory) => prop_assert_eq!(memory.len() as u64, copy.len),
                    Into::Lent => prop_assert!(copy.len <= 500),
                }
                link.copied(copy.op, false);
            }
            while let Some(posting) = link.next_posting() {
                match posting {
                    Posting::Receive { op, memory } => {
                        link.granted(op, memory.len() as u64);
                        link.landed(op);
                    }
                    Posting::Send { memory, range, .. } => prop_assert!(range.end <= memory.len() as u64),
                }
            }
            if let Some(frame) = link.transmit(&Lent::Nothing) {
                link.transmitted(&frame);
            }
        }
        link.sever();
        for op in ops {
            let mut lent = Lent::Target(op, &mut lent_bytes);
            prop_assert!(matches!(link.poll(op, &mut lent), Poll::Ready(_)));
        }
    }

    #[test]
    fn random_bytes_are_an_error_or_harmless(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let (mut link, _) = busy(Rendezvous::Mapped);
        let _ = link.receive(bytes.as_slice(), &mut Lent::Nothing);
        prop_assert!(link.kept <= 300 + 64);
    }
}
