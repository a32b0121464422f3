//! The rules of the module's documentation, one by one.

use std::task::Poll;

use super::super::*;
use super::{carry, config, frame, memory, outcome, pair};

#[test]
fn a_short_message_is_one_frame_of_16_bytes_and_its_payload() {
    let (mut one, mut other) = pair(Rendezvous::Mapped);
    let header = one.eager(7, 5).unwrap();
    one.eager_sent();
    let mut bytes = header.to_vec();
    bytes.extend(b"hello");
    assert_eq!(bytes.len(), 21);
    let target = memory(8);
    let op = other.recv(7, Target::Memory { memory: target.clone(), direct: false });
    other.receive(bytes.as_slice(), &mut Lent::Nothing).unwrap();
    assert_eq!(outcome(&mut other, op), Some(Ok(5)));
    let mut read = [0; 8];
    target.read(0, &mut read);
    assert_eq!(&read, b"hello\0\0\0");
}

#[test]
fn both_ways_of_sending_a_short_message_give_the_same_frame() {
    let (one, mut other) = pair(Rendezvous::Mapped);
    let mut quick = one.eager(3, 4).unwrap().to_vec();
    quick.extend([0; 4]);
    other.send(3, Source::Memory(memory(4)));
    assert_eq!(frame(&mut other, &Lent::Nothing).unwrap(), quick);
}

#[test]
fn messages_that_wait_go_before_new_ones() {
    let (mut one, _) = pair(Rendezvous::Mapped);
    one.send(1, Source::Memory(memory(10)));
    assert_eq!(one.eager(1, 1), None, "it would overtake");
    frame(&mut one, &Lent::Nothing).unwrap();
    assert!(one.eager(1, 1).is_some());
    for (len, whole) in [(240, true), (241, false), (300, false), (301, true), (384, true), (385, false)] {
        assert_eq!(one.eager(1, len).is_some(), whole, "{len} bytes");
    }
}

/// A frame that comes in these steps, and then no further.
struct Slow<'a> {
    bytes: &'a [u8],
    steps: &'a [usize],
}

impl Incoming for Slow<'_> {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn come(&self, before: usize) -> usize {
        self.steps.iter().copied().find(|step| *step > before).unwrap_or(before)
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes[at..at + into.len()]);
    }

    fn copy_to(&self, at: usize, to: &fulmen_memory::Exposed, to_at: usize, len: usize) {
        to.write(to_at, &self.bytes[at..at + len]);
    }
}

#[test]
fn a_message_is_taken_as_it_comes_or_stays() {
    let (mut one, mut other) = pair(Rendezvous::Mapped);
    let message: Vec<u8> = (0..200).map(|at| at as u8).collect();
    let source = memory(200);
    source.write(0, &message);
    one.send(7, Source::Memory(source));
    let sent = frame(&mut one, &Lent::Nothing).unwrap();
    let all = sent.len();
    let (mut bytes, target) = ([0; 200], memory(200));
    // Whoever writes it keeps its reader waiting: nothing has happened.
    for steps in [&[][..], &[PREFIX + 1], &[PREFIX + 64, all - 1]] {
        let slow = Slow { bytes: &sent, steps };
        assert_eq!(other.take(7, &slow, &mut Landing::Bytes(&mut bytes)).unwrap(), None);
        assert_eq!(other.take(7, &slow, &mut Landing::Memory(&target)).unwrap(), None);
        assert!(other.takes() && !other.has_answers());
    }
    let slow = Slow { bytes: &sent, steps: &[PREFIX + 64, PREFIX + 65, all] };
    assert_eq!(other.take(7, &slow, &mut Landing::Memory(&target)).unwrap(), Some(200));
    target.read(0, &mut bytes);
    assert_eq!(bytes[..], message);
    let again = other.take(7, &slow, &mut Landing::Bytes(&mut bytes));
    assert!(matches!(again, Err(ProtocolError::Sequence { .. })), "it was taken once: {again:?}");
}

/// A frame whose first byte is another one each time that it is read.
struct Fickle(Vec<u8>, std::cell::Cell<u8>);

impl Incoming for Fickle {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0[at..at + into.len()]);
        if at == 0 {
            into[0] = self.1.get();
        }
    }

    fn copy_to(&self, at: usize, to: &fulmen_memory::Exposed, to_at: usize, len: usize) {
        to.write(to_at, &self.0[at..at + len]);
    }
}

#[test]
fn a_frame_in_parts_is_a_fragment_and_what_its_header_said_first() {
    let (mut one, mut other) = pair(Rendezvous::Mapped);
    one.send(7, Source::Memory(memory(2000)));
    let sent = frame(&mut one, &Lent::Nothing).unwrap();
    let (fragment, half, all) = (sent[0], sent.len() / 2, sent.len());
    assert!(comes_in_parts(fragment));
    let fickle = Fickle(sent.clone(), fragment.into());
    other.receive_part(&fickle, 0..half, &mut Lent::Nothing).unwrap();
    fickle.1.set(u8::MAX);
    other.receive_part(&fickle, half..all, &mut Lent::Nothing).unwrap();
    assert_eq!(other.kept(), (all - FRAGMENT_HEADER) as u64 + 64);
    // Each other kind.
    for kind in (0..=u8::MAX).filter(|kind| *kind != fragment) {
        let (_, mut other) = pair(Rendezvous::Mapped);
        let error = other.receive_part(&Fickle(sent.clone(), kind.into()), 0..half, &mut Lent::Nothing);
        assert!(
            matches!(error, Err(ProtocolError::Malformed { .. } | ProtocolError::Kind { .. })),
            "{kind}: {error:?}"
        );
    }
    // And no beginning.
    let (_, mut other) = pair(Rendezvous::Mapped);
    assert!(other.receive_part(sent.as_slice(), half..all, &mut Lent::Nothing).is_err());
}

#[test]
fn a_link_knows_when_the_peer_has_taken_all() {
    let (mut one, mut other) = pair(Rendezvous::Mapped);
    assert!(one.all_taken());
    for tag in 1..3 {
        one.send(tag, Source::Memory(memory(10)));
        let sent = frame(&mut one, &Lent::Nothing).unwrap();
        assert!(!one.all_taken(), "it is under way");
        other.receive(sent.as_slice(), &mut Lent::Nothing).unwrap();
    }
    assert!(!one.all_taken(), "the peer said nothing yet");
    other.send(1, Source::Memory(memory(10)));
    carry(&mut other, &mut one);
    assert!(one.all_taken(), "any frame of the peer's says it");
    assert!(!other.all_taken());
}

#[test]
fn a_message_that_is_given_up_while_it_is_held_holds_no_other() {
    let (mut one, mut other) = pair(Rendezvous::Mapped);
    let long = one.send(5, Source::Memory(memory(12_000)));
    for _ in 0..4 {
        carry(&mut one, &mut other);
        carry(&mut other, &mut one);
    }
    assert!(!one.is_done(long), "more than is kept for a receive that never comes");
    assert_eq!(one.cancel(long), Cancel::Released);
    one.send(6, Source::Memory(memory(10)));
    let op = other.recv(6, Target::Memory { memory: memory(10), direct: false });
    for _ in 0..4 {
        carry(&mut one, &mut other);
        carry(&mut other, &mut one);
    }
    assert_eq!(outcome(&mut other, op), Some(Ok(10)));
}

#[test]
fn a_sender_without_a_receiver_is_held_at_the_bound_and_goes_on_after_receives() {
    let (mut one, mut other) = pair(Rendezvous::Mapped);
    let sends: Vec<_> = (0..100).map(|_| one.send(5, Source::Memory(memory(200)))).collect();
    carry(&mut one, &mut other);
    carry(&mut other, &mut one);
    carry(&mut one, &mut other);
    let gone = sends.iter().filter(|op| one.is_done(**op)).count();
    // 2000 bytes are kept at 264 each, and then as many as there are credits for messages.
    assert!((8..=8 + 16).contains(&gone), "{gone} messages went out");
    for round in 0..100 {
        let op = other.recv(5, Target::Memory { memory: memory(200), direct: false });
        carry(&mut other, &mut one);
        carry(&mut one, &mut other);
        assert_eq!(outcome(&mut other, op), Some(Ok(200)), "message {round}");
    }
}

#[test]
fn answers_get_through_while_messages_are_held() {
    let (mut one, mut other) = pair(Rendezvous::Mapped);
    let place = Place { key: 1, ..Place::default() };
    let offered = other.send(1, Source::Offered { memory: memory(100), place });
    for _ in 0..100 {
        one.send(5, Source::Memory(memory(200)));
    }
    carry(&mut one, &mut other);
    carry(&mut other, &mut one);
    carry(&mut one, &mut other);
    // `one` has no credit for messages left, yet its Fin comes.
    let op = one.recv(1, Target::Memory { memory: memory(100), direct: false });
    let copy = one.next_copy(&mut Lent::Nothing).unwrap();
    assert_eq!((copy.op, copy.from, copy.len), (op, place, 100));
    one.copied(op, Ok(()));
    carry(&mut one, &mut other);
    assert_eq!(outcome(&mut other, offered), Some(Ok(100)));
    assert_eq!(outcome(&mut one, op), Some(Ok(100)));
}

#[test]
fn a_message_in_fragments_to_a_posted_receive_flows_although_others_are_kept() {
    let (mut one, mut other) = pair(Rendezvous::Mapped);
    // Kept, a bit more than the bound.
    for _ in 0..8 {
        one.send(5, Source::Memory(memory(200)));
    }
    carry(&mut one, &mut other);
    carry(&mut other, &mut one);
    let op = other.recv(6, Target::Memory { memory: memory(100_000), direct: false });
    one.send(6, Source::Memory(memory(100_000)));
    for _ in 0..1000 {
        carry(&mut one, &mut other);
        carry(&mut other, &mut one);
    }
    assert_eq!(outcome(&mut other, op), Some(Ok(100_000)));
}

#[test]
fn the_sender_of_fragments_hears_that_they_do_not_fit_and_the_link_goes_on() {
    let (mut one, mut other) = pair(Rendezvous::Mapped);
    let short = other.recv(6, Target::Memory { memory: memory(10), direct: false });
    let send = one.send(6, Source::Memory(memory(100_000)));
    let first = frame(&mut one, &Lent::Nothing).unwrap();
    other.receive(first.as_slice(), &mut Lent::Nothing).unwrap();
    assert_eq!(outcome(&mut other, short), Some(Err(OpError::Truncated { len: 100_000, room: 10 })));
    carry(&mut other, &mut one);
    assert_eq!(outcome(&mut one, send), Some(Err(OpError::Refused { len: 100_000 })));
    let next = other.recv(6, Target::Memory { memory: memory(10), direct: false });
    one.send(6, Source::Memory(memory(10)));
    assert!(carry(&mut one, &mut other) <= 3, "the rest is not sent");
    assert_eq!(outcome(&mut other, next), Some(Ok(10)));
    assert_eq!(one.unfinished(), 0);
}

#[test]
fn a_message_of_another_label_meets_its_receive_and_ends_it() {
    let labelled = |label: u64| 5 | label << LABEL.trailing_zeros();
    for rendezvous in [Rendezvous::Mapped, Rendezvous::Matched] {
        // One frame, fragments, an offer; before and after its receive.
        for (len, offered) in [(10, false), (100_000, false), (100_000, true)] {
            for early in [false, true] {
                let (mut one, mut other) = pair(rendezvous);
                let target = || Target::Memory { memory: memory(100_000), direct: false };
                let early = early.then(|| other.recv(labelled(2), target()));
                let source = match offered {
                    true => Source::Offered { memory: memory(len), place: Place::default() },
                    false => Source::Memory(memory(len)),
                };
                let send = one.send(labelled(1), source);
                let first = frame(&mut one, &Lent::Nothing).unwrap();
                other.receive(first.as_slice(), &mut Lent::Nothing).unwrap();
                let recv = early.unwrap_or_else(|| other.recv(labelled(2), target()));
                assert_eq!(outcome(&mut other, recv), Some(Err(OpError::Mislabelled { label: 1 })));
                carry(&mut other, &mut one);
                let refused = if len == 10 { Ok(10) } else { Err(OpError::Refused { len: len as u64 }) };
                assert_eq!(outcome(&mut one, send), Some(refused));
                // Another one of the tag is not held up.
                one.send(labelled(2), Source::Memory(memory(10)));
                let next = other.recv(labelled(2), target());
                carry(&mut one, &mut other);
                assert_eq!(outcome(&mut other, next), Some(Ok(10)));
            }
        }
    }
}

#[test]
fn an_offer_that_is_asked_for_in_frames_passes_messages_that_nobody_asks_for() {
    let (mut one, mut other) = pair(Rendezvous::Matched);
    let offered = one.send(1, Source::Offered { memory: memory(100_000), place: Place::default() });
    let later = one.send(1, Source::Memory(memory(100_000)));
    let settle = |one: &mut Link, other: &mut Link| while carry(one, other) + carry(other, one) > 0 {};
    settle(&mut one, &mut other);
    // What is kept of the second message is all that may be, and its sender is held.
    let target = || Target::Memory { memory: memory(100_000), direct: false };
    let first = other.recv(1, target());
    settle(&mut one, &mut other);
    assert_eq!(outcome(&mut other, first), Some(Ok(100_000)));
    assert_eq!(outcome(&mut one, offered), Some(Ok(100_000)));
    assert_eq!(outcome(&mut one, later), None);
    let second = other.recv(1, target());
    settle(&mut one, &mut other);
    assert_eq!(outcome(&mut other, second), Some(Ok(100_000)));
    assert_eq!(outcome(&mut one, later), Some(Ok(100_000)));
}

#[test]
fn lent_bytes_go_only_with_their_thread() {
    let (mut one, mut other) = pair(Rendezvous::Mapped);
    let bytes = [9; 1000];
    let send = one.send(1, Source::Lent(1000));
    assert_eq!(frame(&mut one, &Lent::Nothing), None);
    let recv = other.recv(1, Target::Lent(1000));
    let mut target = [0; 1000];
    let mut moved = 0;
    while let Some(frame) = frame(&mut one, &Lent::Source(send, &bytes)) {
        moved += 1;
        // Another thread reads every other frame.
        let mut lent = if moved % 2 == 0 { Lent::Target(recv, &mut target) } else { Lent::Nothing };
        other.receive(frame.as_slice(), &mut lent).unwrap();
    }
    assert_eq!(outcome(&mut one, send), Some(Ok(1000)));
    assert_eq!(outcome(&mut other, recv), None, "its thread has not been here");
    assert_eq!(other.poll(recv, &mut Lent::Target(recv, &mut target)), Poll::Ready(Ok(1000)));
    assert_eq!(target, bytes);
}

#[test]
fn a_sender_that_gives_up_midway_ends_the_receive() {
    let (mut one, mut other) = pair(Rendezvous::Mapped);
    let recv = other.recv(1, Target::Memory { memory: memory(1000), direct: false });
    let send = one.send(1, Source::Memory(memory(1000)));
    let first = frame(&mut one, &Lent::Nothing).unwrap();
    other.receive(first.as_slice(), &mut Lent::Nothing).unwrap();
    assert_eq!(one.cancel(send), Cancel::Released);
    carry(&mut one, &mut other);
    assert_eq!(outcome(&mut other, recv), Some(Err(OpError::Cancelled)));
    assert_eq!((one.unfinished(), other.unfinished()), (0, 0));
}

#[test]
fn an_offer_is_withdrawn_or_its_memory_stays() {
    let (mut one, mut other) = pair(Rendezvous::Mapped);
    let place = Place { key: 1, ..Place::default() };
    let send = one.send(1, Source::Offered { memory: memory(100), place });
    carry(&mut one, &mut other);
    assert_eq!(one.cancel(send), Cancel::Busy);
    assert_eq!(outcome(&mut one, send), None, "the peer may read it still");
    carry(&mut one, &mut other);
    carry(&mut other, &mut one);
    assert_eq!(outcome(&mut one, send), Some(Err(OpError::Cancelled)));
    // It is not there any more.
    let recv = other.recv(1, Target::Memory { memory: memory(100), direct: false });
    assert!(other.next_copy(&mut Lent::Nothing).is_none());
    assert_eq!(other.cancel(recv), Cancel::Released);
}

#[test]
fn a_copy_under_way_cannot_be_cancelled_and_one_that_has_not_begun_can() {
    let (mut one, mut other) = pair(Rendezvous::Mapped);
    for taken in [false, true] {
        let send = one.send(1, Source::Offered { memory: memory(100), place: Place::default() });
        let recv = other.recv(1, Target::Memory { memory: memory(100), direct: false });
        carry(&mut one, &mut other);
        if taken {
            other.next_copy(&mut Lent::Nothing).unwrap();
            assert_eq!(other.cancel(recv), Cancel::Copying);
            other.copied(recv, Ok(()));
            assert_eq!(outcome(&mut other, recv), Some(Ok(100)));
        } else {
            assert_eq!(other.cancel(recv), Cancel::Released);
            assert!(other.next_copy(&mut Lent::Nothing).is_none());
        }
        carry(&mut other, &mut one);
        let expected = if taken { Ok(100) } else { Err(OpError::Cancelled) };
        assert_eq!(outcome(&mut one, send), Some(expected));
    }
}

#[test]
fn detached_operations_go_on_and_leave_nothing() {
    let (mut one, mut other) = pair(Rendezvous::Mapped);
    let (from, to) = (memory(1000), memory(1000));
    let send = one.send(1, Source::Memory(from.clone()));
    one.detach(send);
    let recv = other.recv(1, Target::Memory { memory: to.clone(), direct: false });
    other.detach(recv);
    from.fill(0..1000, 3);
    carry(&mut one, &mut other);
    let mut bytes = [0; 1000];
    to.read(0, &mut bytes);
    assert_eq!(bytes, [3; 1000]);
    assert_eq!((one.unfinished(), other.unfinished()), (0, 0));
}

#[test]
fn bye_ends_what_waits_and_leaves_what_has_come() {
    let (mut one, mut other) = pair(Rendezvous::Mapped);
    let waiting = other.recv(9, Target::Memory { memory: memory(10), direct: false });
    one.send(1, Source::Memory(memory(10)));
    one.close();
    carry(&mut one, &mut other);
    assert!(other.peer_left());
    assert_eq!(outcome(&mut other, waiting), Some(Err(OpError::Left)));
    let late = other.recv(9, Target::Memory { memory: memory(10), direct: false });
    assert_eq!(outcome(&mut other, late), Some(Err(OpError::Left)));
    let send = other.send(9, Source::Memory(memory(10)));
    assert_eq!(outcome(&mut other, send), Some(Err(OpError::Left)));
    let there = other.recv(1, Target::Memory { memory: memory(10), direct: false });
    assert_eq!(outcome(&mut other, there), Some(Ok(10)));
}

#[test]
fn a_missing_or_repeated_frame_is_noticed() {
    let (mut one, mut other) = pair(Rendezvous::Mapped);
    for _ in 0..3 {
        one.send(1, Source::Memory(memory(10)));
    }
    let frames: Vec<_> = (0..3).map(|_| frame(&mut one, &Lent::Nothing).unwrap()).collect();
    other.receive(frames[0].as_slice(), &mut Lent::Nothing).unwrap();
    for wrong in [&frames[0], &frames[2]] {
        let error = other.receive(wrong.as_slice(), &mut Lent::Nothing).unwrap_err();
        assert!(matches!(error, ProtocolError::Sequence { expected: 1, .. }), "{error}");
    }
}

#[test]
fn a_device_moves_exactly_what_was_granted() {
    let (mut one, mut other) = pair(Rendezvous::Matched);
    let send = one.send(1, Source::Offered { memory: memory(1000), place: Place::default() });
    let recv = other.recv(1, Target::Memory { memory: memory(2000), direct: true });
    carry(&mut one, &mut other);
    let Some(Posting::Receive { op, memory }) = other.next_posting() else { panic!("nothing to post") };
    assert_eq!((op, memory.len()), (recv, 1000), "as long as the message");
    for (upto, range) in [(400, 0..400), (1000, 400..1000)] {
        other.granted(recv, upto);
        carry(&mut other, &mut one);
        let Some(Posting::Send { range: to_send, .. }) = one.next_posting() else { panic!("nothing to send") };
        assert_eq!(to_send, range);
    }
    one.sent(send, 400);
    assert_eq!(outcome(&mut one, send), None, "a send has ended when it was delivered");
    assert!(other.landed(recv));
    carry(&mut other, &mut one);
    assert_eq!(outcome(&mut other, recv), Some(Ok(1000)));
    assert_eq!(outcome(&mut one, send), None, "the device still holds the memory");
    one.sent(send, 1000);
    assert_eq!(outcome(&mut one, send), Some(Ok(1000)));
}

#[test]
fn a_send_that_was_delivered_stays_so_when_the_peer_leaves_or_is_lost() {
    for lost in [false, true] {
        let (mut one, mut other) = pair(Rendezvous::Matched);
        let send = one.send(1, Source::Offered { memory: memory(1000), place: Place::default() });
        let recv = other.recv(1, Target::Memory { memory: memory(1000), direct: true });
        carry(&mut one, &mut other);
        other.granted(recv, 1000);
        carry(&mut other, &mut one);
        assert!(other.landed(recv));
        assert_eq!(outcome(&mut other, recv), Some(Ok(1000)));
        other.close();
        carry(&mut other, &mut one);
        if lost {
            one.sever();
        }
        // The device has not said that the bytes are gone, and never will.
        assert_eq!(outcome(&mut one, send), Some(Ok(1000)));
    }
}

#[test]
#[should_panic(expected = "16 to 1024 credits")]
fn too_few_credits_are_refused() {
    let _ = Link::new(Config { credits: 15, ..config(Rendezvous::Mapped) });
}

#[test]
fn fragments_of_long_messages_are_as_long_as_they_may_be() {
    let config = config(Rendezvous::Mapped);
    let long = config.long.unwrap();
    let most = (long.frame - FRAGMENT_HEADER) as u64;
    assert_eq!(config.fragment(&Source::Lent(10 * most), 0), most);
    assert_eq!(config.fragment(&Source::Lent(10 * most), 9 * most + 1), most - 1);
    // Of one that would have room in one, or nearly, there are two.
    let whole = (long.whole - PREFIX) as u64;
    assert!(config.goes_whole(whole) && !config.goes_whole(whole + 1));
    let half = (whole + 1).div_ceil(2).next_multiple_of(ALIGNED);
    assert_eq!(config.fragment(&Source::Lent(whole + 1), 0), half);
    assert_eq!(config.fragment(&Source::Lent(whole + 1), half), whole + 1 - half);
    // Others go as they always did.
    assert_eq!(config.fragment(&Source::Lent(long.beyond), 0), (config.frame - FRAGMENT_HEADER) as u64);
    assert_eq!(config.fragment(&Source::Bytes(vec![0; 2000].into()), 1900), 100);
}
