//! Frames of others.

use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::super::frame::{Kind, Prefix};
use super::super::*;
use super::{carry, config, frame, memory, outcome, pair};

fn carrying() -> (Link, Link) {
    let (mut one, mut other) = pair(Rendezvous::Matched);
    one.carry_for_others();
    other.carry_for_others();
    (one, other)
}

fn carried(number: u8) -> Carried {
    Carried { source: 3, destination: 500, hops: 7, bytes: vec![number; usize::from(number)] }
}

/// A frame of a peer, the first of its link.
fn raw(word: u64, bytes: &[u8]) -> Vec<u8> {
    let (kind, word) = (Kind::Carried as u8, word.into());
    let prefix = Prefix { kind, flags: 0, credits: 0.into(), sequence: 0.into(), word };
    [prefix.as_bytes(), bytes].concat()
}

#[test]
fn they_come_as_they_went_and_in_their_order() {
    let (mut one, mut other) = carrying();
    for number in [0, 1, 240] {
        one.carry(carried(number));
    }
    assert_eq!(one.carrying(), 3);
    assert_eq!(carry(&mut one, &mut other), 3);
    assert_eq!(one.carrying(), 0);
    for number in [0, 1, 240] {
        assert_eq!(other.next_carried(), Some(carried(number)));
    }
    assert_eq!(other.next_carried(), None);
    assert!((0..3).all(|_| one.spare_carried().is_some()) && one.spare_carried().is_none());
}

#[test]
fn they_go_in_turn_with_messages_and_before_the_goodbye() {
    let (mut one, mut other) = carrying();
    let memory = memory(2000);
    one.send(1, Source::Memory(memory));
    one.carry(carried(1));
    one.carry(carried(2));
    one.close();
    let kinds: Vec<u8> = std::iter::from_fn(|| frame(&mut one, &Lent::Nothing)).take(5).map(|frame| frame[0]).collect();
    let (message, carried) = (Kind::EagerFragment as u8, Kind::Carried as u8);
    assert_eq!(kinds, [message, carried, message, carried, message]);
    assert!(!other.peer_left());
    carry(&mut other, &mut one);
}

#[test]
fn they_get_through_although_messages_are_held() {
    let (mut one, mut other) = carrying();
    let long = one.send(5, Source::Memory(memory(10_000)));
    let mut come = 0;
    for _ in 0..200 {
        one.carry(carried(100));
        carry(&mut one, &mut other);
        carry(&mut other, &mut one);
        come += std::iter::from_fn(|| other.next_carried()).count();
    }
    assert_eq!((come, one.carrying()), (200, 0));
    assert!(!one.is_done(long), "more than is kept for a receive that never comes");
    let op = other.recv(5, Target::Memory { memory: memory(10_000), direct: false });
    for _ in 0..20 {
        carry(&mut one, &mut other);
        carry(&mut other, &mut one);
    }
    assert_eq!(outcome(&mut other, op), Some(Ok(10_000)));
}

#[test]
fn a_link_that_carries_none_refuses_them() {
    let (mut one, _) = pair(Rendezvous::Matched);
    let refused = one.receive(raw(0, &[1]).as_slice(), &mut Lent::Nothing);
    assert_eq!(refused, Err(ProtocolError::Malformed { what: "a frame for others" }));
    assert_eq!(one.next_carried(), None);
}

#[test]
fn more_than_credits_are_refused() {
    let (_, mut other) = carrying();
    let refused = (0_u32..100).find_map(|sequence| {
        let mut bytes = raw(1, &[0; 100]);
        bytes[4..8].copy_from_slice(&sequence.to_le_bytes());
        other.receive(bytes.as_slice(), &mut Lent::Nothing).err()
    });
    assert_eq!(refused, Some(ProtocolError::Credits));
    let come = std::iter::from_fn(|| other.next_carried()).count();
    assert_eq!(come, usize::from(config(Rendezvous::Matched).credits));
}

proptest! {
    #[test]
    fn whatever_a_peer_says_is_handed_on_as_it_is_or_refused(
        word in prop_oneof![0..1_u64 << 40, any::<u64>()],
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let (_, mut other) = carrying();
        let taken = other.receive(raw(word, &bytes).as_slice(), &mut Lent::Nothing);
        prop_assert_eq!(taken.is_ok(), word >> 40 == 0 && bytes.len() <= other.longest_carried());
        match other.next_carried() {
            Some(Carried { source, destination, hops, bytes: come }) => {
                prop_assert!(taken.is_ok());
                prop_assert_eq!(u64::from(source) | u64::from(destination) << 16 | u64::from(hops) << 32, word);
                prop_assert_eq!(come, bytes);
            }
            None => prop_assert!(taken.is_err()),
        }
    }
}
