use std::collections::VecDeque;
use std::thread;

use fulmen_memory::{Exposed, Region};
use proptest::prelude::*;

use super::*;

/// Where a head has its lap, and how many are told apart.
const LAP_AT: u32 = 52;
const LAPS: u64 = 16;

fn ring(capacity: usize) -> (Producer, Consumer, Exposed) {
    let layout = Layout::new(capacity);
    let memory = Region::alloc(layout.size()).unwrap().expose().unwrap();
    let producer = Producer::new(memory.clone(), layout).unwrap();
    (producer, Consumer::new(memory.clone(), layout).unwrap(), memory)
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize, u8),
    /// Payload that looks like heads of frames, should one take it for them.
    PushTrap(usize),
    /// A reservation that is given up after some bytes.
    GiveUp(usize),
    Pop,
}

fn steps(longest: usize) -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![3 => 0..=INLINE + 8, 2 => 0..=longest, 1 => Just(longest)];
    let step = prop_oneof![
        4 => (len.clone(), any::<u8>()).prop_map(|(len, byte)| Step::Push(len, byte)),
        2 => len.clone().prop_map(Step::PushTrap),
        1 => len.prop_map(Step::GiveUp),
        4 => Just(Step::Pop),
    ];
    prop::collection::vec(step, 1..200)
}

fn payload(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| seed.wrapping_add(at as u8)).collect()
}

/// In each slot that a frame at `position` goes on through: the head of an empty frame of that slot's next lap.
fn trap(position: u64, len: usize, capacity: usize) -> Vec<u8> {
    let slots = (capacity / LINE) as u64;
    let mut bytes = vec![0xaa; len];
    for (more, slot) in (INLINE..len).step_by(LINE).zip(position + 1..) {
        let head = 1 << 63 | ((slot / slots + 1) % LAPS) << LAP_AT;
        let end = len.min(more + HEAD);
        bytes[more..end].copy_from_slice(&u64::to_ne_bytes(head)[..end - more]);
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_a_queue(capacity in prop_oneof![Just(256), Just(512), Just(4096)], cuts in any::<(u8, u8)>(),
                          steps in steps(4096 / 2 - HEAD)) {
        let (mut producer, mut consumer, _memory) = ring(capacity);
        let mut model = VecDeque::new();
        let mut position = 0;
        for step in steps {
            let len = match step {
                Step::Push(len, _) | Step::PushTrap(len) | Step::GiveUp(len) => len % (producer.max_frame() + 1),
                Step::Pop => 0,
            };
            match step {
                Step::Push(..) | Step::PushTrap(_) => {
                    let bytes = match step {
                        Step::Push(_, seed) => payload(len, seed),
                        _ => trap(position, len, capacity),
                    };
                    let (one, other) = (cuts.0 as usize * len / 255, cuts.1 as usize * len / 255);
                    let (one, other) = (one.min(other), one.max(other));
                    let pushed = producer.try_push(&[&bytes[..one], &bytes[one..other], &bytes[other..]]).unwrap();
                    // An empty ring takes every frame.
                    prop_assert!(pushed || !model.is_empty());
                    if pushed {
                        model.push_back(bytes);
                        position += (len + HEAD).div_ceil(LINE) as u64;
                    }
                }
                Step::GiveUp(_) => {
                    if let Some(mut room) = producer.reserve(len).unwrap() {
                        room.write(&trap(position, len, capacity));
                    }
                }
                Step::Pop => {
                    let popped = consumer.try_pop(|frame| frame.to_vec()).unwrap();
                    prop_assert_eq!(popped, model.pop_front());
                }
            }
            prop_assert_eq!(consumer.peek().unwrap().is_none(), model.is_empty());
        }
        while let Some(expected) = model.pop_front() {
            prop_assert_eq!(consumer.try_pop(|frame| frame.to_vec()).unwrap(), Some(expected));
        }
        prop_assert!(consumer.peek().unwrap().is_none());
    }

    /// Whatever the other process writes, both sides go on or end with an error.
    #[test]
    fn corrupt_bytes_do_no_harm(steps in steps(512 / 2 - HEAD), writes in prop::collection::vec((0usize..1024, any::<u64>(), 0..3u8), 1..50)) {
        let (mut producer, mut consumer, memory) = ring(512);
        let mut writes = writes.into_iter().cycle();
        for step in steps.into_iter().chain(std::iter::repeat_n(Step::Pop, 20)) {
            let (at, word, plausible) = writes.next().unwrap();
            let at = at % (memory.len() / 8) * 8;
            // A head that passes the first look, or anything.
            let head = word & 0x3ff | (word >> 40 & 3) << LAP_AT | 1 << 63;
            let word = [word, head, head | 1 << 30][usize::from(plausible)];
            memory.write(at, &word.to_ne_bytes());
            match step {
                Step::Push(len, seed) => { let _ = producer.try_push(&[&payload(len, seed)]); }
                Step::PushTrap(len) | Step::GiveUp(len) => { let _ = producer.reserve(len); }
                Step::Pop => {
                    let popped = consumer.try_pop(|frame| frame.to_vec());
                    if let Ok(Some(bytes)) = popped {
                        prop_assert!(bytes.len() <= producer.max_frame());
                    }
                }
            }
        }
    }
}

#[test]
fn payload_that_looks_like_a_later_head_is_not_taken_for_one() {
    let (mut producer, mut consumer, _memory) = ring(256);
    let mut position = 0;
    // Two slots and one in turn, so that each slot is led to from either.
    for round in 0..200 {
        let len = if round % 2 == 0 { 120 } else { 8 };
        let bytes = trap(position, len, 256);
        position += (len + HEAD).div_ceil(LINE) as u64;
        assert!(producer.try_push(&[&bytes]).unwrap());
        assert_eq!(consumer.try_pop(|frame| frame.to_vec()).unwrap(), Some(bytes));
        assert!(consumer.peek().unwrap().is_none(), "payload was taken for a frame in round {round}");
    }
}

#[test]
fn a_frame_of_one_line_is_in_one_line() {
    let (mut producer, _consumer, memory) = ring(4096);
    assert!(producer.try_push(&[&[0xff; INLINE]]).unwrap());
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    let touched: Vec<usize> =
        bytes.chunks(LINE).enumerate().filter(|(_, line)| **line != [0; LINE]).map(|it| it.0).collect();
    assert_eq!(touched, [SLOTS_AT / LINE]);
}

#[test]
fn impossible_words_are_named() {
    let (mut producer, mut consumer, memory) = ring(256);
    while producer.try_push(&[b"frame"]).unwrap() {}
    memory.write(0, &7u64.to_ne_bytes());
    assert!(matches!(producer.try_push(&[b"frame"]), Err(RingError::Corrupt { .. })));
    memory.write(0, &u64::MAX.to_ne_bytes());
    assert!(matches!(producer.try_push(&[b"frame"]), Err(RingError::Corrupt { .. })));

    let head = 1u64 << 63 | (consumer.try_pop(|frame| frame.len()).unwrap().unwrap() as u64);
    assert_eq!(head as u32, 5);
    memory.write(SLOTS_AT + LINE, &(1u64 << 63 | 121).to_ne_bytes());
    assert!(matches!(consumer.peek(), Err(RingError::Corrupt { .. })));
    // It has no cells.
    memory.write(SLOTS_AT + LINE, &(1u64 << 63 | 1 << 31 | 57).to_ne_bytes());
    assert!(matches!(consumer.peek(), Err(RingError::Corrupt { what }) if what.contains("cell")));
    memory.write(SLOTS_AT + LINE, &(1u64 << 63 | 120).to_ne_bytes());
    assert_eq!(consumer.peek().unwrap().unwrap().len(), 120);
}

#[test]
fn the_length_is_read_once() {
    let (mut producer, mut consumer, memory) = ring(256);
    assert!(producer.try_push(&[&[1; 40]]).unwrap());
    let frame = consumer.peek().unwrap().unwrap();
    memory.write(SLOTS_AT, &(1u64 << 63 | 0xffff_ffff).to_ne_bytes());
    assert_eq!((frame.len(), frame.to_vec()), (40, vec![1; 40]));
    frame.release();
    assert!(producer.try_push(&[b"next"]).unwrap());
    assert_eq!(consumer.try_pop(|frame| frame.to_vec()).unwrap().as_deref(), Some(&b"next"[..]));
}

#[test]
fn exposed_memory_goes_in_and_out_across_the_end() {
    let (mut producer, mut consumer, _memory) = ring(1024);
    let source = Region::alloc(4096).unwrap().expose().unwrap();
    let target = Region::alloc(4096).unwrap().expose().unwrap();
    for round in 0..100usize {
        let len = round * 37 % 480;
        source.write(0, &payload(len, round as u8));
        let mut room = producer.reserve(len + 3).unwrap().unwrap();
        room.write(b"abc");
        room.copy_from(&source.slice(0..len));
        assert_eq!(room.left(), 0);
        room.publish();
        let frame = consumer.peek().unwrap().unwrap();
        target.fill(0..4096, 0);
        frame.copy_to(3, &target, 5, len);
        frame.release();
        let mut copied = vec![0; len + 1];
        target.read(5, &mut copied);
        assert_eq!(copied.split_last(), Some((&0, &payload(len, round as u8)[..])));
    }
}

/// Long enough to go past the caches.
#[test]
fn what_is_written_past_the_caches_comes_as_it_is_across_the_end() {
    let (mut producer, mut consumer, _memory) = ring(32 << 10);
    let source = Region::alloc(8 << 10).unwrap().expose().unwrap();
    for round in 0..100usize {
        let (len, from) = (2000 + round * 61 % 3000, round * 7 % 64);
        let bytes = payload(len, round as u8);
        source.write(from, &bytes);
        let mut room = producer.reserve(3 + 2 * len).unwrap().unwrap();
        room.past_caches(true);
        room.write(b"abc");
        room.write(&bytes);
        room.copy_from(&source.slice(from..from + len));
        room.publish();
        let expected = [b"abc", &bytes[..], &bytes].concat();
        let mut into = vec![0; expected.len() + 64];
        let (at, rest) = (round % 3, round % 64);
        let popped = consumer.try_pop(|frame| {
            frame.read_past(at, &mut into[rest..rest + frame.len() - at]);
            frame.to_vec()
        });
        assert!(popped.unwrap().as_ref() == Some(&expected), "round {round}");
        assert!(
            into[rest..].starts_with(&expected[at..]) && into[..rest].iter().all(|byte| *byte == 0),
            "round {round}"
        );
    }
}

#[test]
fn layouts_round_up_and_fit_only_themselves() {
    assert_eq!(Layout::new(0).capacity(), 256);
    assert_eq!(Layout::new(257).capacity(), 512);
    assert_eq!(Layout::new(1 << 20).size(), (1 << 20) + SLOTS_AT);
    let layout = Layout::new(4096);
    let memory = Region::alloc(layout.size()).unwrap().expose().unwrap();
    for (range, fits) in
        [(0..4096 + 128, true), (0..4096, false), (8..4096 + 128, false), (0..64, false), (0..0, false)]
    {
        assert_eq!(Producer::new(memory.slice(range.clone()), layout).is_ok(), fits, "{range:?}");
        assert_eq!(Consumer::new(memory.slice(range.clone()), layout).is_ok(), fits, "{range:?}");
    }
    let unaligned = Region::alloc(4096 + 256).unwrap().expose().unwrap().slice(8..8 + 4096 + 128);
    assert!(matches!(Producer::new(unaligned, layout), Err(RingError::Misfit { size, .. }) if size == layout.size()));
}

#[test]
#[should_panic(expected = "3 bytes unwritten")]
fn a_frame_with_a_hole_is_not_published() {
    let (mut producer, ..) = ring(256);
    let mut room = producer.reserve(10).unwrap().unwrap();
    room.write(b"seven b");
    room.publish();
}

#[test]
fn too_long_a_frame_is_refused_with_the_limit() {
    let (mut producer, ..) = ring(256);
    assert_eq!(producer.try_push(&[&[0; 121]]), Err(RingError::TooLong { len: 121, max: 120 }));
    assert_eq!(producer.try_push(&[&[0; 120]]), Ok(true));
}

#[test]
fn two_threads_pass_frames_in_order() {
    let (mut producer, mut consumer, _memory) = ring(2048);
    const FRAMES: usize = 20_000;
    let sender = thread::spawn(move || {
        for number in 0..FRAMES {
            let bytes = payload(number * 7 % 900, number as u8);
            while !producer.try_push(&[&bytes]).unwrap() {
                thread::yield_now();
            }
        }
    });
    for number in 0..FRAMES {
        let frame = loop {
            match consumer.try_pop(|frame| frame.to_vec()).unwrap() {
                Some(frame) => break frame,
                None => thread::yield_now(),
            }
        };
        assert_eq!(frame, payload(number * 7 % 900, number as u8), "frame {number}");
    }
    sender.join().unwrap();
}
