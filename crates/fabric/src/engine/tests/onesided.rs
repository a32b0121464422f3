//! The rules of one-sided operations, one by one.

use std::sync::atomic::Ordering;
use std::task::Poll;

use fulmen_memory::Exposed;

use super::super::*;
use super::{carry, config, frame, memory, outcome};

/// A link whose other end has exported so many bytes with all rights.
struct Pair {
    one: Link,
    other: Link,
    memory: Exposed,
    key: u64,
}

impl Pair {
    fn new(rendezvous: Rendezvous, len: usize) -> Pair {
        let (memory, exports) = (memory(len), Exports::new());
        let key = exports.add(memory.clone(), Rights::all()).unwrap();
        let (one, other) = (Link::new(config(rendezvous)), Link::with_exports(config(rendezvous), exports));
        Pair { one, other, memory, key }
    }

    fn at(&self, offset: u64) -> At {
        At { key: self.key, offset }
    }

    /// Carries frames both ways until none is left.
    fn settle(&mut self) {
        while carry(&mut self.one, &mut self.other) + carry(&mut self.other, &mut self.one) > 0 {}
    }

    fn finish(&mut self, op: OpId) -> Result<u64, OpError> {
        self.settle();
        outcome(&mut self.one, op).expect("it has ended")
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        read(&self.memory, at, len)
    }

    fn word(&self, at: usize) -> u64 {
        self.memory.atomic_u64(at).load(Ordering::Acquire)
    }

    /// Nothing is under way at either end.
    fn assert_idle(&self) {
        for link in [&self.one, &self.other] {
            assert_eq!(link.unfinished(), 0);
            assert!(link.one.is_idle(), "{:?}", link.one);
        }
    }
}

fn read(memory: &Exposed, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(at, &mut bytes);
    bytes
}

fn filled(bytes: &[u8]) -> Exposed {
    let memory = memory(bytes.len());
    memory.write(0, bytes);
    memory
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + 7) as u8).collect()
}

#[test]
fn a_short_put_is_one_frame_and_one_answer() {
    let mut pair = Pair::new(Rendezvous::Matched, 64);
    let op = pair.one.put(pair.at(8), Source::Memory(filled(b"hello")), None);
    assert_eq!(carry(&mut pair.one, &mut pair.other), 1);
    assert_eq!(pair.bytes(0, 16), b"\0\0\0\0\0\0\0\0hello\0\0\0");
    assert_eq!(outcome(&mut pair.one, op), None, "it ends with the answer");
    assert_eq!(carry(&mut pair.other, &mut pair.one), 1);
    assert_eq!(outcome(&mut pair.one, op), Some(Ok(5)));
    assert_eq!(pair.other.served(), 1);
    pair.assert_idle();
}

#[test]
fn puts_and_gets_of_any_length_and_source_bring_the_bytes() {
    for len in [0, 1, 100, 182, 183, 206, 207, 215, 216, 217, 255, 256, 257, 1000, 20_000] {
        for kind in 0..3 {
            let mut pair = Pair::new(Rendezvous::Matched, 1 << 15);
            let bytes = pattern(len);
            let source = match kind {
                0 => Source::Memory(filled(&bytes)),
                1 => Source::Bytes(bytes.clone().into()),
                // The owner's memory is not registered, so it asks for fragments.
                _ => Source::Offered { memory: filled(&bytes), place: Place::default() },
            };
            let op = pair.one.put(pair.at(16), source, None);
            assert_eq!(pair.finish(op), Ok(len as u64), "{len} bytes, kind {kind}");
            assert_eq!(pair.bytes(0, len + 17), [&[0; 16], &bytes[..], &[0]].concat());
            let into = memory(len);
            let op = pair.one.get(pair.at(16), Target::Memory { memory: into.clone(), direct: kind == 2 });
            assert_eq!(pair.finish(op), Ok(len as u64));
            assert_eq!(read(&into, 0, len), bytes);
            pair.assert_idle();
        }
    }
}

#[test]
fn atomics_tell_the_old_value() {
    let mut pair = Pair::new(Rendezvous::Matched, 64);
    let add = pair.one.atomic(pair.at(8), Atomic::FetchAdd(5));
    assert_eq!(pair.finish(add), Ok(0));
    let wrap = pair.one.atomic(pair.at(8), Atomic::FetchAdd(u64::MAX));
    assert_eq!(pair.finish(wrap), Ok(5));
    let miss = pair.one.atomic(pair.at(8), Atomic::CompareSwap { expect: 5, new: 9 });
    assert_eq!(pair.finish(miss), Ok(4));
    let swap = pair.one.atomic(pair.at(8), Atomic::CompareSwap { expect: 4, new: 9 });
    assert_eq!(pair.finish(swap), Ok(4));
    assert_eq!(pair.word(8), 9);
    pair.assert_idle();
}

#[test]
fn many_short_operations_share_a_frame_and_so_do_their_answers() {
    let mut pair = Pair::new(Rendezvous::Matched, 1024);
    let add = |word: u64| Request::Atomic { at: pair.at(word * 8), atomic: Atomic::FetchAdd(word + 1) };
    let mut requests: Vec<_> = (0..10).map(add).collect();
    // One in the middle is refused, for itself.
    requests.insert(5, Request::Put { at: pair.at(1020), bytes: [1; 5].into(), then: None });
    let ops = pair.one.batch(requests);
    // 16 + 5 * 42 bytes are the most that fit into 256.
    assert_eq!(carry(&mut pair.one, &mut pair.other), 3);
    assert_eq!(carry(&mut pair.other, &mut pair.one), 1);
    for (index, op) in ops.into_iter().enumerate() {
        let due = match index {
            5 => Err(OpError::OutOfBounds { offset: 1020, len: 5, size: 1024 }),
            _ => Ok(0),
        };
        assert_eq!(outcome(&mut pair.one, op), Some(due));
    }
    assert_eq!((pair.word(0), pair.word(72)), (1, 10));
    assert_eq!(pair.bytes(1020, 4), [0; 4]);
    pair.assert_idle();
}

#[test]
fn a_counter_moves_after_the_last_fragment_and_is_checked_before_the_first() {
    let mut pair = Pair::new(Rendezvous::Matched, 2048);
    let then = |offset| Some(Counter { at: pair.at(offset), add: 3 });
    let (good, bad) = (then(8), then(2044));
    let bytes = pattern(1000);
    let op = pair.one.put(pair.at(16), Source::Memory(filled(&bytes)), good);
    for _ in 0..5 {
        assert_eq!(pair.word(8), 0);
        let next = frame(&mut pair.one, &Lent::Nothing).unwrap();
        pair.other.receive(next.as_slice(), &mut Lent::Nothing).unwrap();
    }
    assert_eq!(pair.word(8), 3);
    assert_eq!(pair.bytes(16, 1000), bytes);
    assert_eq!(pair.finish(op), Ok(1000));

    let before = pair.bytes(0, 2048);
    for source in [Source::Memory(filled(&bytes)), Source::Memory(filled(b"short"))] {
        let op = pair.one.put(pair.at(16), source, bad);
        assert_eq!(pair.finish(op), Err(OpError::OutOfBounds { offset: 2044, len: 8, size: 2048 }));
        assert_eq!(pair.bytes(0, 2048), before);
    }
    pair.assert_idle();
}

#[test]
fn the_rest_of_a_refused_put_is_not_sent() {
    let mut pair = Pair::new(Rendezvous::Matched, 64);
    let op = pair.one.put(pair.at(0), Source::Memory(memory(100_000)), None);
    let first = frame(&mut pair.one, &Lent::Nothing).unwrap();
    pair.other.receive(first.as_slice(), &mut Lent::Nothing).unwrap();
    carry(&mut pair.other, &mut pair.one);
    assert_eq!(outcome(&mut pair.one, op), Some(Err(OpError::OutOfBounds { offset: 0, len: 100_000, size: 64 })));
    assert!(carry(&mut pair.one, &mut pair.other) <= 2);
    let next = pair.one.put(pair.at(0), Source::Memory(filled(&pattern(64))), None);
    assert_eq!(pair.finish(next), Ok(64));
    pair.assert_idle();
}

#[test]
fn every_edge_of_the_memory_is_watched() {
    let mut pair = Pair::new(Rendezvous::Matched, 100);
    let outside = |offset, len| Err(OpError::OutOfBounds { offset, len, size: 100 });
    for (offset, len, due) in [
        (100, 0, Ok(0)),
        (99, 1, Ok(1)),
        (0, 100, Ok(100)),
        (101, 0, outside(101, 0)),
        (100, 1, outside(100, 1)),
        (0, 101, outside(0, 101)),
        (u64::MAX, 1, outside(u64::MAX, 1)),
        (u64::MAX - 49, 50, outside(u64::MAX - 49, 50)),
        (u64::MAX - 49, 5000, outside(u64::MAX - 49, 5000)),
    ] {
        let op = pair.one.put(pair.at(offset), Source::Memory(memory(len)), None);
        assert_eq!(pair.finish(op), due, "put of {len} at {offset}");
        let op = pair.one.get(pair.at(offset), Target::Memory { memory: memory(len), direct: true });
        assert_eq!(pair.finish(op), due, "get of {len} at {offset}");
    }
    for (offset, due) in [
        (96, outside(96, 8)),
        (88, Ok(0)),
        (90, Err(OpError::Misaligned { offset: 90 })),
        (93, outside(93, 8)),
        (u64::MAX - 7, outside(u64::MAX - 7, 8)),
    ] {
        let op = pair.one.atomic(pair.at(offset), Atomic::FetchAdd(1));
        assert_eq!(pair.finish(op), due, "a word at {offset}");
    }
    pair.assert_idle();
}

#[test]
fn each_operation_needs_its_right_and_a_key_that_is_good() {
    let all = [Rights::READ, Rights::WRITE, Rights::ATOMIC];
    for rights in all {
        let exports = Exports::new();
        let key = exports.add(memory(64), rights).unwrap();
        let mut one = Link::new(config(Rendezvous::Matched));
        let mut other = Link::with_exports(config(Rendezvous::Matched), exports.clone());
        let at = At { key, offset: 0 };
        for live in [true, false] {
            let ops = [
                (Rights::READ, one.get(at, Target::Memory { memory: memory(8), direct: false })),
                (Rights::WRITE, one.put(at, Source::Memory(memory(8)), None)),
                (Rights::ATOMIC, one.atomic(at, Atomic::FetchAdd(0))),
            ];
            while carry(&mut one, &mut other) + carry(&mut other, &mut one) > 0 {}
            for (need, op) in ops {
                match outcome(&mut one, op).unwrap() {
                    Ok(_) => assert!(live && rights == need),
                    Err(OpError::NotPermitted { need: told }) => assert!(live && rights != need && told == need),
                    Err(error) => assert!(!live && error == OpError::NoSuchKey),
                }
            }
            assert_eq!(exports.remove(key), live);
        }
    }
}

#[test]
fn a_put_that_was_accepted_keeps_its_memory_after_the_key_is_removed() {
    let mut pair = Pair::new(Rendezvous::Matched, 2048);
    let op = pair.one.put(pair.at(0), Source::Memory(filled(&pattern(1000))), None);
    let first = frame(&mut pair.one, &Lent::Nothing).unwrap();
    pair.other.receive(first.as_slice(), &mut Lent::Nothing).unwrap();
    assert!(pair.other.exports().remove(pair.key));
    assert_eq!(pair.finish(op), Ok(1000));
    assert_eq!(pair.bytes(0, 1000), pattern(1000));
    let late = pair.one.put(pair.at(0), Source::Memory(memory(1)), None);
    assert_eq!(pair.finish(late), Err(OpError::NoSuchKey));
}

/// A pair whose exported memory large moves reach.
fn direct(rendezvous: Rendezvous, len: usize) -> Pair {
    let pair = Pair::new(rendezvous, len);
    let exports = pair.other.exports().clone();
    exports.remove(pair.key);
    let key = exports
        .add_direct(pair.memory.clone(), Rights::all(), Place { key: 77, offset: 1000, ..Place::default() })
        .unwrap();
    Pair { key, ..pair }
}

#[test]
fn a_device_lands_a_put_in_the_exported_memory_and_the_counter_moves_then() {
    let mut pair = direct(Rendezvous::Matched, 4096);
    let bytes = pattern(3000);
    let source = Source::Offered { memory: filled(&bytes), place: Place::default() };
    let op = pair.one.put(pair.at(64), source, Some(Counter { at: pair.at(8), add: 1 }));
    pair.settle();
    let Some(Posting::Receive { op: served, memory }) = pair.other.next_posting() else { panic!("no receive") };
    assert_eq!((memory.len(), memory.addr()), (3000, pair.memory.addr() + 64), "right where it belongs");
    pair.other.granted(served, 3000);
    pair.settle();
    let Some(Posting::Send { memory: from, range, .. }) = pair.one.next_posting() else { panic!("no send") };
    assert_eq!(range, 0..3000);
    from.copy_to(0, &memory, 0, 3000);
    assert_eq!(pair.word(8), 0);
    assert!(pair.other.landed(served));
    assert_eq!((pair.word(8), pair.other.served()), (1, 1));
    pair.settle();
    assert_eq!(outcome(&mut pair.one, op), None, "the device still holds the memory");
    pair.one.sent(op, 3000);
    assert_eq!(outcome(&mut pair.one, op), Some(Ok(3000)));
    pair.assert_idle();
}

#[test]
fn a_get_is_offered_and_lands_directly_or_is_copied_by_the_reader() {
    let mut pair = direct(Rendezvous::Matched, 4096);
    let into = memory(3000);
    let op = pair.one.get(pair.at(64), Target::Memory { memory: into.clone(), direct: true });
    pair.settle();
    let Some(Posting::Receive { op: own, memory }) = pair.one.next_posting() else { panic!("no receive") };
    assert_eq!((own, memory.len()), (op, 3000));
    pair.one.granted(op, 3000);
    pair.settle();
    let Some(Posting::Send { op: served, memory, .. }) = pair.other.next_posting() else { panic!("no send") };
    assert_eq!(memory.addr(), pair.memory.addr() + 64);
    assert!(pair.one.landed(op));
    assert_eq!(outcome(&mut pair.one, op), Some(Ok(3000)));
    pair.settle();
    pair.other.sent(served, 3000);
    pair.assert_idle();

    let mut pair = direct(Rendezvous::Mapped, 4096);
    let op = pair.one.get(pair.at(64), Target::Memory { memory: into, direct: false });
    pair.settle();
    let copy = pair.one.next_copy(&mut Lent::Nothing).unwrap();
    assert_eq!((copy.op, copy.from, copy.len), (op, Place { key: 77, offset: 1064, ..Place::default() }, 3000));
    pair.one.copied(op, Ok(()));
    assert_eq!(outcome(&mut pair.one, op), Some(Ok(3000)));
    pair.settle();
    pair.assert_idle();
}

#[test]
fn a_get_that_is_given_up_takes_no_offer_and_no_bytes() {
    for rendezvous in [Rendezvous::Matched, Rendezvous::Mapped] {
        for exported in [Pair::new, direct] {
            for len in [10, 3000] {
                let mut pair = exported(rendezvous, 4096);
                pair.memory.fill(0..4096, 1);
                let into = memory(len);
                let op = pair.one.get(pair.at(64), Target::Memory { memory: into.clone(), direct: true });
                carry(&mut pair.one, &mut pair.other);
                assert_eq!(pair.one.cancel(op), Cancel::Released);
                pair.settle();
                assert_eq!(read(&into, 0, len), vec![0; len]);
                assert!(pair.one.next_posting().is_none());
                pair.assert_idle();
            }
        }
    }
}

#[test]
fn a_put_that_is_given_up_midway_ends_at_both_ends_and_does_not_count() {
    let mut pair = Pair::new(Rendezvous::Matched, 100_000);
    let then = Some(Counter { at: pair.at(0), add: 1 });
    let op = pair.one.put(pair.at(8), Source::Memory(memory(90_000)), then);
    let first = frame(&mut pair.one, &Lent::Nothing).unwrap();
    pair.other.receive(first.as_slice(), &mut Lent::Nothing).unwrap();
    assert_eq!(pair.one.cancel(op), Cancel::Released);
    pair.settle();
    assert_eq!(pair.word(0), 0);
    pair.assert_idle();
}

#[test]
fn one_sided_operations_go_on_while_messages_are_held_both_ways() {
    let mut pair = Pair::new(Rendezvous::Matched, 20_000);
    for link in [&mut pair.one, &mut pair.other] {
        for _ in 0..100 {
            link.send(5, Source::Memory(memory(200)));
        }
    }
    pair.settle();
    assert!(pair.one.withheld > 0 && pair.other.withheld > 0 && pair.one.credits <= RESERVE);
    let put = pair.one.put(pair.at(0), Source::Memory(filled(&pattern(10_000))), None);
    assert_eq!(pair.finish(put), Ok(10_000));
    let into = memory(10_000);
    let get = pair.one.get(pair.at(0), Target::Memory { memory: into.clone(), direct: false });
    assert_eq!(pair.finish(get), Ok(10_000));
    assert_eq!(read(&into, 0, 10_000), pattern(10_000));
    for _ in 0..1000 {
        let add = pair.one.atomic(pair.at(10_000), Atomic::FetchAdd(1));
        assert!(pair.finish(add).is_ok());
    }
    // Bytes that wait for their thread hold up nothing either.
    let get = pair.one.get(pair.at(0), Target::Lent(10_000));
    pair.settle();
    let mut bytes = vec![0; 10_000];
    assert_eq!(pair.one.poll(get, &mut Lent::Target(get, &mut bytes)), Poll::Ready(Ok(10_000)));
    assert_eq!(bytes, pattern(10_000));
}

#[test]
fn a_message_that_was_asked_for_in_frames_takes_no_credits_from_answers() {
    let mut pair = Pair::new(Rendezvous::Matched, 64);
    // Offered first, so that its offer is not held.
    pair.one.send(6, Source::Offered { memory: memory(5000), place: Place::default() });
    for _ in 0..100 {
        pair.one.send(5, Source::Memory(memory(200)));
    }
    pair.settle();
    let recv = pair.other.recv(6, Target::Lent(5000));
    pair.settle();
    // Its thread is elsewhere, and other messages are held, yet the link works.
    assert!(pair.other.withheld > 0);
    let add = pair.one.atomic(pair.at(0), Atomic::FetchAdd(1));
    assert_eq!(pair.finish(add), Ok(0));
    let mut bytes = vec![0; 5000];
    assert_eq!(pair.other.poll(recv, &mut Lent::Target(recv, &mut bytes)), Poll::Ready(Ok(5000)));
}

#[test]
fn messages_and_one_sided_operations_take_turns() {
    let mut pair = Pair::new(Rendezvous::Matched, 20_000);
    let recv = pair.other.recv(1, Target::Memory { memory: memory(2000), direct: false });
    let put = pair.one.put(pair.at(0), Source::Memory(memory(20_000)), None);
    let send = pair.one.send(1, Source::Memory(memory(2000)));
    while outcome(&mut pair.other, recv).is_none() {
        for _ in 0..4 {
            let next = frame(&mut pair.one, &Lent::Nothing).unwrap();
            pair.other.receive(next.as_slice(), &mut Lent::Nothing).unwrap();
        }
        carry(&mut pair.other, &mut pair.one);
    }
    assert!(pair.one.is_done(send) && !pair.one.is_done(put));
    assert_eq!(pair.finish(put), Ok(20_000));
}

#[test]
fn a_fence_holds_requests_until_bytes_that_were_asked_for_have_come() {
    let mut pair = Pair::new(Rendezvous::Matched, 4096);
    pair.memory.write(0, &pattern(1000));
    let into = memory(1000);
    let get = pair.one.get(pair.at(0), Target::Memory { memory: into.clone(), direct: false });
    pair.one.fence();
    let put = pair.one.put(pair.at(0), Source::Bytes(vec![0; 1000].into()), None);
    assert_eq!(carry(&mut pair.one, &mut pair.other), 1, "the put waits");
    assert_eq!(pair.finish(put), Ok(1000));
    assert_eq!(outcome(&mut pair.one, get), Some(Ok(1000)));
    assert_eq!(read(&into, 0, 1000), pattern(1000));
    // Nothing to wait for: what is in order anyway goes at once.
    pair.one.put(pair.at(0), Source::Bytes([1].into()), None);
    pair.one.fence();
    pair.one.put(pair.at(0), Source::Bytes([2].into()), None);
    carry(&mut pair.one, &mut pair.other);
    assert_eq!(pair.bytes(0, 1), [2]);
}

#[test]
fn requests_under_way_are_bounded_and_a_peer_that_sends_more_breaks_the_link() {
    let mut pair = Pair::new(Rendezvous::Matched, 64);
    let limit = pair.one.config().requests();
    let ops: Vec<_> = (0..limit + 100).map(|_| pair.one.atomic(pair.at(0), Atomic::FetchAdd(1))).collect();
    // Credits come back, answers do not.
    while let Some(next) = frame(&mut pair.one, &Lent::Nothing) {
        pair.other.receive(next.as_slice(), &mut Lent::Nothing).unwrap();
        pair.one.credits = 16;
        pair.other.owed = 0;
    }
    assert_eq!(pair.word(0), limit as u64);
    pair.other.owed = 0;
    pair.settle();
    for (index, op) in ops.into_iter().enumerate() {
        assert_eq!(outcome(&mut pair.one, op), Some(Ok(index as u64)));
    }
    pair.assert_idle();

    let mut count = 0;
    let error = loop {
        // Forgets what it has asked.
        pair.one.one.forget_asked();
        pair.one.atomic(pair.at(0), Atomic::FetchAdd(1));
        pair.one.credits = 16;
        pair.other.owed = 0;
        let next = frame(&mut pair.one, &Lent::Nothing).unwrap();
        match pair.other.receive(next.as_slice(), &mut Lent::Nothing) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((count, error), (2 * limit, ProtocolError::Requests { limit: 2 * limit }));
}

#[test]
fn a_peer_that_leaves_or_is_lost_ends_operations_and_frees_what_it_worked_on() {
    for leave in [true, false] {
        let mut pair = direct(Rendezvous::Matched, 8192);
        let offered = Source::Offered { memory: memory(3000), place: Place::default() };
        let put = pair.one.put(pair.at(0), offered, Some(Counter { at: pair.at(4096), add: 1 }));
        let get = pair.one.get(pair.at(0), Target::Memory { memory: memory(3000), direct: true });
        pair.settle();
        let queued = [Source::Bytes([1].into()), Source::Lent(1000)];
        let queued = queued.map(|source| pair.other.put(At { key: 1, offset: 0 }, source, None));
        if leave {
            pair.one.close();
            carry(&mut pair.one, &mut pair.other);
        } else {
            pair.other.sever();
        }
        while pair.other.next_posting().is_some() {}
        let Pair { mut one, mut other, memory, key } = pair;
        assert_eq!(other.unfinished(), 0);
        other.exports().remove(key);
        assert_eq!(memory.atomic_u64(4096).load(Ordering::Acquire), 0);
        let late = other.put(At { key, offset: 0 }, Source::Bytes([1].into()), None);
        let due = if leave { OpError::Left } else { OpError::Severed };
        for op in [late, queued[0], queued[1]] {
            assert_eq!(outcome(&mut other, op), Some(Err(due)));
        }
        assert_eq!(other.awaits_lender(), [None, None]);
        while frame(&mut other, &Lent::Nothing).is_some() {}
        one.sever();
        for op in [put, get] {
            assert_eq!(outcome(&mut one, op), Some(Err(OpError::Severed)));
        }
    }
}

#[test]
fn a_lent_put_goes_with_its_thread() {
    let mut pair = Pair::new(Rendezvous::Matched, 2000);
    let bytes = pattern(1000);
    let put = pair.one.put(pair.at(0), Source::Lent(1000), None);
    assert_eq!(pair.one.awaits_lender(), [None, Some(put)]);
    assert_eq!(frame(&mut pair.one, &Lent::Nothing), None);
    while let Some(next) = frame(&mut pair.one, &Lent::Source(put, &bytes)) {
        pair.other.receive(next.as_slice(), &mut Lent::Nothing).unwrap();
    }
    assert_eq!(pair.one.awaits_lender(), [None, None]);
    assert_eq!(pair.finish(put), Ok(1000));
    assert_eq!(pair.bytes(0, 1000), bytes);
}

#[test]
fn keys_differ_and_serve_once() {
    let exports = Exports::new();
    let mut keys = std::collections::HashSet::new();
    for _ in 0..1000 {
        let key = exports.add(memory(1), Rights::READ).unwrap();
        assert!(key != 0 && keys.insert(key));
        assert!(exports.remove(key) && !exports.remove(key));
    }
    assert!(exports.is_empty());
    assert_eq!(exports.find(*keys.iter().next().unwrap(), 0, 1, Rights::READ).unwrap_err(), OpError::NoSuchKey);
}

#[cfg(feature = "planted-bugs")]
#[test]
fn the_planted_credit_is_found() {
    let planted = Config { planted: Some(Planted::CreditOffByOne), ..config(Rendezvous::Matched) };
    let (mut one, mut other) = (Link::new(planted), Link::new(planted));
    let mut error = None;
    for _ in 0..200 {
        let recv = other.recv(1, Target::Memory { memory: memory(1), direct: false });
        one.send(1, Source::Memory(memory(1)));
        carry(&mut one, &mut other);
        outcome(&mut other, recv);
        while let Some(next) = frame(&mut other, &Lent::Nothing) {
            error = error.or(one.receive(next.as_slice(), &mut Lent::Nothing).err());
        }
    }
    assert_eq!(error, Some(ProtocolError::Credits));
}
