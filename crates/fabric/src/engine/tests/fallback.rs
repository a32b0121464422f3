//! The channel of large moves is given up at every moment, by either end or both.

use super::super::*;
use super::{carry, config, memory, outcome, pair};

const LEN: usize = 1000;

fn bytes(memory: &fulmen_memory::Exposed) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    memory.read(0, &mut bytes);
    bytes
}

/// Whoever was told gives its end up too, as its driver does.
fn answer(link: &mut Link) {
    if link.is_forsaken() {
        while link.next_posting().is_some() {}
        link.give_up_moves();
    }
}

fn talk(one: &mut Link, other: &mut Link) {
    for _ in 0..20 {
        carry(one, other);
        answer(other);
        carry(other, one);
        answer(one);
    }
}

/// How far a message has come when the channel is given up.
const MOMENTS: [&str; 5] = ["offered", "granted", "granted and heard", "sent", "landed"];

#[test]
fn a_message_arrives_once_whenever_and_by_whomever_the_channel_is_given_up() {
    for (moment, at) in MOMENTS.iter().enumerate() {
        for (sender, receiver) in [(true, false), (false, true), (true, true)] {
            let (mut one, mut other) = pair(Rendezvous::Matched);
            let (data, into) = (memory(LEN), memory(LEN));
            data.fill(0..LEN, 7);
            let send = one.send(1, Source::Offered { memory: data, place: Place::default() });
            let recv = other.recv(1, Target::Memory { memory: into.clone(), direct: true });
            carry(&mut one, &mut other);
            assert!(matches!(other.next_posting(), Some(Posting::Receive { .. })));
            if moment >= 1 {
                other.granted(recv, LEN as u64);
            }
            if moment >= 2 {
                carry(&mut other, &mut one);
                assert!(one.is_moving(send) && matches!(one.next_posting(), Some(Posting::Send { .. })));
            }
            if moment >= 3 {
                one.sent(send, LEN as u64);
            }
            if moment >= 4 {
                into.fill(0..LEN, 7);
                assert!(other.landed(recv));
            }
            if sender {
                one.give_up_moves();
            }
            if receiver {
                other.give_up_moves();
            }
            talk(&mut one, &mut other);
            let when = format!("{at}, by the sender: {sender}, by the receiver: {receiver}");
            assert_eq!(outcome(&mut other, recv), Some(Ok(LEN as u64)), "{when}");
            assert_eq!(outcome(&mut one, send), Some(Ok(LEN as u64)), "{when}");
            assert!(bytes(&into) == [7; LEN], "{when}");
            // The next one, the other way round, has no channel.
            let send = other.send(2, Source::Offered { memory: into, place: Place::default() });
            let again = memory(LEN);
            let recv = one.recv(2, Target::Memory { memory: again.clone(), direct: true });
            talk(&mut one, &mut other);
            assert!(one.next_posting().is_none() && other.next_posting().is_none());
            assert_eq!(outcome(&mut one, recv), Some(Ok(LEN as u64)));
            assert_eq!(outcome(&mut other, send), Some(Ok(LEN as u64)));
            assert!(bytes(&again) == [7; LEN]);
        }
    }
}

#[test]
fn a_message_of_which_the_peer_has_said_that_it_came_ends_without_the_device() {
    let (mut one, mut other) = pair(Rendezvous::Matched);
    let send = one.send(1, Source::Offered { memory: memory(LEN), place: Place::default() });
    let recv = other.recv(1, Target::Memory { memory: memory(LEN), direct: true });
    carry(&mut one, &mut other);
    other.granted(recv, LEN as u64);
    carry(&mut other, &mut one);
    assert!(other.landed(recv));
    carry(&mut other, &mut one);
    assert_eq!(outcome(&mut one, send), None, "the device still holds the memory");
    one.give_up_moves();
    assert_eq!(outcome(&mut one, send), Some(Ok(LEN as u64)));
}

#[test]
fn a_message_that_came_damaged_has_not_come() {
    let verified = Config { verify: true, ..config(Rendezvous::Matched) };
    let (mut one, mut other) = (Link::new(verified), Link::new(verified));
    let (data, into) = (memory(LEN), memory(LEN));
    data.fill(0..LEN, 7);
    let send = one.send(1, Source::Offered { memory: data, place: Place::default() });
    let recv = other.recv(1, Target::Memory { memory: into.clone(), direct: true });
    carry(&mut one, &mut other);
    other.granted(recv, LEN as u64);
    carry(&mut other, &mut one);
    one.sent(send, LEN as u64);
    into.fill(0..LEN, 7);
    into.write(500, &[6]);
    assert!(!other.landed(recv));
    assert_eq!(outcome(&mut other, recv), None);
    other.give_up_moves();
    talk(&mut one, &mut other);
    assert_eq!(outcome(&mut other, recv), Some(Ok(LEN as u64)));
    assert_eq!(outcome(&mut one, send), Some(Ok(LEN as u64)));
    assert!(bytes(&into) == [7; LEN]);
}

#[test]
fn nothing_is_given_up_where_the_receiver_copies() {
    let (mut one, _) = pair(Rendezvous::Matched);
    let (mut mapped, _) = pair(Rendezvous::Mapped);
    one.give_up_moves();
    let forsake = super::frame(&mut one, &Lent::Nothing).unwrap();
    let error = mapped.receive(forsake.as_slice(), &mut Lent::Nothing).unwrap_err();
    assert!(matches!(error, ProtocolError::Malformed { .. }), "{error}");
}
