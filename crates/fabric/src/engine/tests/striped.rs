//! Messages over several channels, of which some fail.

use std::collections::VecDeque;

use fulmen_memory::Exposed;
use proptest::prelude::*;

use super::super::*;
use super::{Dice, carry, cases, frame, memory, outcome, pair};

const LEN: usize = 10_000;

fn part(offset: u64, len: u64) -> Part {
    Part { offset, len, rail: 0, incarnation: 0 }
}

/// A message that its receiver's driver knows of.
fn offered() -> (Link, Link, OpId, OpId) {
    let (mut one, mut other) = pair(Rendezvous::Striped);
    let send = one.send(1, Source::Offered { memory: memory(LEN), place: Place::default() });
    let recv = other.recv(1, Target::Memory { memory: memory(LEN), direct: true });
    carry(&mut one, &mut other);
    assert!(matches!(other.next_posting(), Some(Posting::Receive { op, .. }) if op == recv));
    (one, other, send, recv)
}

#[test]
fn a_send_ends_when_its_receiver_and_its_device_are_done() {
    let (mut one, mut other, send, recv) = offered();
    other.grant(recv, part(6000, 4000));
    other.grant(recv, part(0, 6000));
    // What did not come is granted again.
    other.grant(recv, part(0, 6000));
    carry(&mut other, &mut one);
    let parts: Vec<_> = std::iter::from_fn(|| one.next_posting()).collect();
    assert_eq!(parts.len(), 3);
    assert!(matches!(&parts[0], Posting::Part { memory, part, .. } if memory.len() == 4000 && part.offset == 6000));
    assert!(other.landed(recv));
    carry(&mut other, &mut one);
    for len in [4000, 6000] {
        one.parted(send, len);
        assert!(!one.is_done(send) && one.is_moving(send));
    }
    one.parted(send, 6000);
    assert_eq!((outcome(&mut one, send), outcome(&mut other, recv)), (Some(Ok(LEN as u64)), Some(Ok(LEN as u64))));
}

#[test]
fn a_grant_beyond_the_message_breaks_the_link() {
    for bad in [part(LEN as u64, 1), part(0, LEN as u64 + 1), part(5, 0), part(u64::MAX, 2)] {
        let (mut one, mut other, _, recv) = offered();
        other.grant(recv, bad);
        let bytes = frame(&mut other, &Lent::Nothing).unwrap();
        let error = one.receive(bytes.as_slice(), &mut Lent::Nothing).unwrap_err();
        assert!(error.to_string().contains("what a Grant grants"), "{error}");
    }
}

#[test]
fn links_over_one_channel_take_no_grants_and_no_words() {
    for rendezvous in [Rendezvous::Mapped, Rendezvous::Matched] {
        let (_, mut other, _, recv) = offered();
        other.grant(recv, part(0, 5));
        other.tell(Word::new(b"something").unwrap());
        let (mut link, _) = pair(rendezvous);
        for words in ["one channel", "nothing to say"] {
            let mut bytes = frame(&mut other, &Lent::Nothing).unwrap();
            bytes[2..8].fill(0);
            let error = link.receive(bytes.as_slice(), &mut Lent::Nothing).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
            (link, _) = pair(rendezvous);
        }
    }
}

#[test]
fn words_come_in_their_order_and_no_longer_than_they_may_be() {
    assert_eq!(Word::new(&[1; Word::MOST + 1]), None);
    let (mut one, mut other) = pair(Rendezvous::Striped);
    for len in [0, 1, Word::MOST] {
        one.tell(Word::new(&vec![len as u8; len]).unwrap());
    }
    carry(&mut one, &mut other);
    let lens: Vec<_> = std::iter::from_fn(|| other.next_told()).map(|word| word.as_bytes().len()).collect();
    assert_eq!(lens, [0, 1, Word::MOST]);
}

#[test]
fn grants_that_crossed_the_end_of_the_channels_mean_nothing() {
    let (mut one, mut other, send, recv) = offered();
    other.grant(recv, part(0, LEN as u64));
    one.give_up_moves();
    for _ in 0..100 {
        carry(&mut other, &mut one);
        assert!(one.next_posting().is_none());
        carry(&mut one, &mut other);
        if other.is_forsaken() {
            other.give_up_moves();
        }
    }
    assert_eq!((outcome(&mut one, send), outcome(&mut other, recv)), (Some(Ok(LEN as u64)), Some(Ok(LEN as u64))));
}

/// A receive that a driver has posted on a channel.
struct Posted {
    op: OpId,
    part: Part,
}

/// Channels that lose what is on them when they fail.
#[derive(Default)]
struct Rail {
    incarnation: u32,
    receives: VecDeque<Posted>,
    /// Sent, with its bytes, and whether the sender's device still holds the memory.
    flying: VecDeque<(OpId, Part, Vec<u8>)>,
}

/// What is left of a message at its receiver.
struct Coming {
    op: OpId,
    memory: Exposed,
    missing: VecDeque<(u64, u64)>,
    left: u64,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(5000, 300), ..ProptestConfig::default() })]
    #[test]
    fn every_message_comes_whole_whichever_channels_fail(seed in any::<u64>(), lens in prop::collection::vec(1usize..4000, 1..8)) {
        let mut dice = Dice::new(seed);
        let (mut one, mut other) = pair(Rendezvous::Striped);
        let mut rails: Vec<Rail> = (0..3).map(|_| Rail::default()).collect();
        let mut ops = Vec::new();
        for (tag, len) in (0u64..).zip(&lens) {
            let (data, into) = (memory(*len), memory(*len));
            for at in 0..*len {
                data.write(at, &[dice.below(256) as u8]);
            }
            let send = one.send(tag, Source::Offered { memory: data.clone(), place: Place::default() });
            let recv = other.recv(tag, Target::Memory { memory: into.clone(), direct: true });
            ops.push((send, recv, data, into));
        }
        let mut coming: Vec<Coming> = Vec::new();
        let (mut failures, mut rounds) = (40, 0);
        while !ops.iter().all(|(send, recv, ..)| one.is_done(*send) && other.is_done(*recv)) {
            rounds += 1;
            prop_assert!(rounds < 100_000, "it does not end");
            carry(&mut one, &mut other);
            carry(&mut other, &mut one);
            while let Some(posting) = other.next_posting() {
                let Posting::Receive { op, memory } = posting else { panic!("it receives") };
                let left = memory.len() as u64;
                coming.push(Coming { op, missing: VecDeque::from([(0, left)]), memory, left });
            }
            while let Some(posting) = one.next_posting() {
                let Posting::Part { op, memory, part } = posting else { panic!("it sends") };
                let rail = &mut rails[part.rail as usize];
                if rail.incarnation == part.incarnation {
                    let mut bytes = vec![0; memory.len()];
                    memory.read(0, &mut bytes);
                    rail.flying.push_back((op, part, bytes));
                } else {
                    one.parted(op, part.len);
                }
            }
            let at = dice.below(3);
            let rail = &mut rails[at];
            match dice.below(6) {
                0 if failures > 0 => {
                    failures -= 1;
                    rail.incarnation += 1;
                    for Posted { op, part } in rail.receives.drain(..) {
                        let message = coming.iter_mut().find(|message| message.op == op).unwrap();
                        message.missing.push_back((part.offset, part.len));
                    }
                    for (op, part, _) in rail.flying.drain(..) {
                        one.parted(op, part.len);
                    }
                }
                1..3 => {
                    let Some(message) = coming.iter_mut().find(|message| !message.missing.is_empty()) else { continue };
                    let (offset, len) = message.missing.pop_front().unwrap();
                    let now = len.min(1 + dice.below(900) as u64);
                    if now < len {
                        message.missing.push_front((offset + now, len - now));
                    }
                    let part = Part { offset, len: now, rail: at as u32, incarnation: rail.incarnation };
                    rail.receives.push_back(Posted { op: message.op, part });
                    other.grant(message.op, part);
                }
                _ => {
                    let Some((send, sent, bytes)) = rail.flying.pop_front() else { continue };
                    let Posted { op, part } = rail.receives.pop_front().unwrap();
                    prop_assert_eq!(sent, part);
                    let message = coming.iter_mut().find(|message| message.op == op).unwrap();
                    message.memory.write(part.offset as usize, &bytes);
                    message.left -= part.len;
                    one.parted(send, part.len);
                    if message.left == 0 {
                        prop_assert!(other.landed(op));
                    }
                }
            }
        }
        for ((send, recv, data, into), len) in ops.into_iter().zip(lens) {
            prop_assert_eq!(outcome(&mut one, send), Some(Ok(len as u64)));
            prop_assert_eq!(outcome(&mut other, recv), Some(Ok(len as u64)));
            let read = |memory: &Exposed| {
                let mut bytes = vec![0; len];
                memory.read(0, &mut bytes);
                bytes
            };
            prop_assert_eq!(read(&data), read(&into));
        }
    }
}
