//! Reliable ends over a channel that loses, repeats, reorders, damages and delays, on a clock of its own.

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

fn config(generation: u32) -> ReliableConfig {
    ReliableConfig::new(8, generation, 2000 * MS)
}

fn pair(generation: u32) -> [Reliable; 2] {
    [0, 1].map(|_| Reliable::new(config(generation)))
}

/// A new frame, as it goes over the wire.
fn send(end: &mut Reliable, now: Duration, frame: &[u8]) -> Vec<u8> {
    let slot = end.begin(now);
    wire(end, slot, frame)
}

fn wire(end: &mut Reliable, slot: u32, frame: &[u8]) -> Vec<u8> {
    [end.seal(slot, frame).as_slice(), frame].concat()
}

#[test]
fn a_frame_is_kept_until_it_is_acknowledged() {
    let [mut one, mut two] = pair(u32::MAX);
    assert_eq!((one.next_slot(), one.in_flight(), one.deadline()), (7, 0, None));
    let frame = send(&mut one, MS, b"frame");
    assert_eq!((one.next_slot(), one.in_flight(), one.deadline()), (0, 1, Some(21 * MS)));
    assert_eq!(two.receive(2 * MS, frame.as_slice()), Verdict::Deliver);
    assert_eq!((two.deadline(), two.ack_due(5 * MS), two.ack_due(6 * MS)), (Some(6 * MS), false, true));
    let ack = two.acknowledgement();
    assert_eq!((two.deadline(), two.ack_due(6 * MS)), (None, false));
    assert_eq!(one.receive(7 * MS, ack.as_slice()), Verdict::Acknowledgement);
    assert_eq!((one.acked(), one.in_flight(), one.deadline()), (0, 0, None));
}

#[test]
fn acknowledgements_go_with_frames_and_alone_for_half_a_window() {
    let [mut one, mut two] = pair(5);
    for at in 0..4_u8 {
        assert!(!two.ack_due(MS));
        let frame = send(&mut one, MS, &[at]);
        assert_eq!(two.receive(MS, frame.as_slice()), Verdict::Deliver);
    }
    assert!(two.ack_due(MS));
    let answer = send(&mut two, MS, b"answer");
    assert!(!two.ack_due(MS));
    assert_eq!(one.receive(MS, answer.as_slice()), Verdict::Deliver);
    assert_eq!(one.in_flight(), 0);
}

#[test]
fn what_is_lost_comes_again_by_a_hint_or_by_the_timer() {
    let [mut one, mut two] = pair(u32::MAX - 1);
    let frames: Vec<_> = (0..4_u8).map(|at| send(&mut one, MS, &[at])).collect();
    assert_eq!(two.receive(MS, frames[0].as_slice()), Verdict::Deliver);
    assert_eq!(two.receive(MS, frames[2].as_slice()), Verdict::Gap);
    assert!(two.ack_due(MS), "at once");
    let hint = two.acknowledgement();
    assert_eq!(two.receive(MS, frames[3].as_slice()), Verdict::Gap);
    assert!(!two.ack_due(MS), "once");
    for time in [MS, 2 * MS] {
        assert_eq!(one.receive(time, hint.as_slice()), Verdict::Acknowledgement);
        let again: Vec<_> = std::iter::from_fn(|| one.due(time)).collect();
        assert_eq!(again, if time == MS { vec![7, 0, 1] } else { vec![] });
    }
    // The timer's turns become longer.
    let mut at = one.deadline().unwrap();
    for turn in 1..5 {
        assert_eq!(one.due(at - MS), None);
        assert_eq!(std::iter::from_fn(|| one.due(at)).count(), 3);
        let next = one.deadline().unwrap();
        assert_eq!(next - at, 20 * MS * (1 << turn));
        at = next;
    }
    let again = wire(&mut one, 7, &[1]);
    assert_eq!(two.receive(at, again.as_slice()), Verdict::Deliver);
    assert_eq!(two.receive(at, again.as_slice()), Verdict::Duplicate);
    assert!(two.ack_due(at), "the peer may have missed the first");
}

#[test]
fn a_peer_that_answers_nothing_is_dead_after_its_time_and_a_clock_that_jumps_kills_nobody() {
    let [mut one, mut two] = pair(1);
    let frame = send(&mut one, MS, b"frame");
    // This process was stopped for an hour.
    let mut now = Duration::from_secs(3600);
    assert!(one.due(now).is_some() && !one.is_dead());
    let began = now;
    while !one.is_dead() {
        now = one.deadline().unwrap();
        while one.due(now).is_some() {}
        assert!(now < began + 4000 * MS);
    }
    assert!(now >= began + 1500 * MS);
    two.receive(now, frame.as_slice());
    one.receive(now, two.acknowledgement().as_slice());
    assert!(!one.is_dead(), "it was only late");
}

#[test]
fn the_timer_follows_the_time_of_an_answer() {
    let [mut one, mut two] = pair(1);
    let mut now = MS;
    for _ in 0..50 {
        let frame = send(&mut one, now, b"frame");
        now += 100 * MS;
        two.receive(now, frame.as_slice());
        one.receive(now, two.acknowledgement().as_slice());
    }
    send(&mut one, now, b"frame");
    let wait = one.deadline().unwrap() - now;
    assert!(wait > 100 * MS && wait < 200 * MS, "{wait:?}");
}

#[test]
fn what_does_not_belong_to_the_link_is_dropped() {
    let [mut one, mut two] = pair(7);
    let frame = send(&mut one, MS, b"frame");
    for at in 0..frame.len() {
        let mut bad = frame.clone();
        bad[at] ^= 0x10;
        assert_eq!(two.receive(MS, bad.as_slice()), Verdict::Corrupt);
        assert!(matches!(two.receive(MS, &frame[..at]), Verdict::Corrupt | Verdict::Malformed));
    }
    // Whole, and of the generation before: its number is one of this one's.
    let mut old = Reliable::new(config(6));
    send(&mut old, MS, b"old");
    let old = send(&mut old, MS, b"old");
    assert_eq!(two.receive(MS, old.as_slice()), Verdict::OldGeneration);
    // It acknowledges what was never sent.
    let mut liar = Reliable::new(config(7));
    for at in 0..3_u8 {
        let frame = send(&mut one.clone(), MS, &[at]);
        liar.receive(MS, frame.as_slice());
        liar.expected = 9 + u32::from(at);
    }
    assert_eq!(two.receive(MS, liar.acknowledgement().as_slice()), Verdict::Malformed);
    assert_eq!((two.ack_due(60 * MS), two.in_flight(), two.deadline()), (false, 0, None), "nothing of it counts");
    // It sends beyond the window.
    let mut far = Reliable::new(config(7));
    far.next = 7 + 8;
    far.unacked = far.next;
    let far = send(&mut far, MS, b"far");
    assert_eq!(two.receive(MS, far.as_slice()), Verdict::Malformed);
    assert_eq!(two.receive(MS, frame.as_slice()), Verdict::Deliver);
}

#[test]
fn a_peer_that_has_left_is_sent_nothing_more() {
    let [mut one, mut two] = pair(7);
    let frame = send(&mut one, MS, b"frame");
    two.receive(MS, frame.as_slice());
    one.give_up();
    assert_eq!((one.in_flight(), one.deadline(), one.due(5000 * MS)), (0, None, None));
    assert_eq!(one.receive(MS, two.acknowledgement().as_slice()), Verdict::Acknowledgement);
    assert_eq!(two.receive(MS, frame.as_slice()), Verdict::Duplicate);
    assert!(two.ack_due(MS));
}

/// What may happen to a frame, in percent.
#[derive(Clone, Copy, Debug)]
struct Odds {
    lose: u8,
    repeat: u8,
    damage: u8,
    /// The longest delay in milliseconds: frames overtake one another.
    delay: u8,
}

fn odds() -> impl Strategy<Value = Odds> {
    (0..50_u8, 0..50_u8, 0..30_u8, 0..40_u8).prop_map(|(lose, repeat, damage, delay)| Odds {
        lose,
        repeat,
        damage,
        delay,
    })
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % bound.max(1)
    }

    fn strikes(&mut self, percent: u8) -> bool {
        self.below(100) < percent.into()
    }
}

/// Two ends and what is under way between them.
struct World {
    ends: [Reliable; 2],
    /// The frames in the slots of each end.
    slots: [Vec<Vec<u8>>; 2],
    /// Where it goes, and when it comes.
    wires: Vec<(usize, Duration, Vec<u8>)>,
    now: Duration,
    dice: Dice,
    odds: Odds,
    /// What each frame takes at least.
    distance: Duration,
    /// Frames that left, also again.
    left: usize,
}

impl World {
    /// Two ends that have sent nothing, and never give up.
    fn new(generation: u32, odds: Odds, seed: u64) -> World {
        let patient = ReliableConfig { patience: Duration::from_secs(3600), ..config(generation) };
        World {
            ends: [0, 1].map(|_| Reliable::new(patient)),
            slots: [0, 1].map(|_| vec![Vec::new(); 8]),
            wires: Vec::new(),
            now: Duration::ZERO,
            dice: Dice(seed),
            odds,
            distance: Duration::ZERO,
            left: 0,
        }
    }

    fn put(&mut self, from: usize, mut bytes: Vec<u8>) {
        let copies = if self.dice.strikes(self.odds.repeat) { 2 } else { 1 };
        for _ in 0..copies {
            if self.dice.strikes(self.odds.lose) {
                continue;
            }
            if self.dice.strikes(self.odds.damage) {
                let at = self.dice.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.dice.below(8);
            }
            let delay = MS * self.dice.below(u64::from(self.odds.delay) + 1) as u32 / 4;
            self.wires.push((1 - from, self.now + self.distance + delay, bytes.clone()));
        }
    }

    /// Everything that end does at this moment.
    fn step(&mut self, end: usize, wanted: &mut std::slice::Iter<'_, Vec<u8>>) {
        while let Some(slot) = self.ends[end].due(self.now) {
            let frame = self.slots[end][slot as usize].clone();
            let bytes = wire(&mut self.ends[end], slot, &frame);
            self.left += 1;
            self.put(end, bytes);
        }
        while self.ends[end].can_send()
            && let Some(frame) = wanted.next()
        {
            let slot = self.ends[end].begin(self.now);
            self.slots[end][slot as usize].clone_from(frame);
            let bytes = wire(&mut self.ends[end], slot, frame);
            self.left += 1;
            self.put(end, bytes);
        }
        if self.ends[end].ack_due(self.now) {
            let bytes = self.ends[end].acknowledgement().to_vec();
            self.put(end, bytes);
        }
    }

    /// What comes now.
    fn arrivals(&mut self, got: &mut [Vec<Vec<u8>>; 2]) {
        let (due, later) = self.wires.drain(..).partition(|(_, at, _)| *at <= self.now);
        self.wires = later;
        let due: Vec<(usize, Duration, Vec<u8>)> = due;
        for (end, _, bytes) in due {
            if self.ends[end].receive(self.now, bytes.as_slice()) == Verdict::Deliver {
                got[end].push(bytes[Reliable::OVERHEAD..].to_vec());
            }
        }
    }

    fn advance(&mut self) {
        let wires = self.wires.iter().map(|(_, at, _)| *at);
        let ends = self.ends.iter().filter_map(Reliable::deadline);
        let next = wires.chain(ends).min().expect("something is to come as long as not all has ended");
        self.now = self.now.max(next);
    }

    /// Until each end has sent its frames and both rest: what came to each.
    fn run(&mut self, frames: &[Vec<Vec<u8>>; 2]) -> [Vec<Vec<u8>>; 2] {
        let mut wanted = [frames[0].iter(), frames[1].iter()];
        let mut got = [Vec::new(), Vec::new()];
        for steps in 0.. {
            assert!(steps < 100_000 && self.now < Duration::from_secs(1000), "it does not end");
            for end in [0, 1] {
                self.step(end, &mut wanted[end]);
            }
            let resting = self.ends.iter().all(|end| end.in_flight() == 0 && end.deadline().is_none());
            if resting && self.wires.is_empty() && wanted.iter().all(|wanted| wanted.len() == 0) {
                break;
            }
            self.advance();
            self.arrivals(&mut got);
        }
        got
    }
}

const CLEAN: Odds = Odds { lose: 0, repeat: 0, damage: 0, delay: 0 };

fn numbered(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|at| at.to_le_bytes().to_vec()).collect()
}

/// How many frames left in vain over a link that loses nothing, on which a frame takes so long.
fn in_vain(world: &mut World, distance: Duration, counts: [usize; 2]) -> usize {
    (world.distance, world.left) = (distance, 0);
    let frames = counts.map(numbered);
    let got = world.run(&frames);
    assert!(got[0] == frames[1] && got[1] == frames[0], "{distance:?}");
    world.left - counts[0] - counts[1]
}

#[test]
fn a_long_link_gets_no_window_twice() {
    // The timer's turns before the first answer, at 20, 60, 140 and 300 ms: one frame each.
    for (millis, turns) in [(1, 0), (5, 0), (20, 1), (50, 2), (100, 3), (200, 4)] {
        for counts in [[400, 0], [400, 400], [1, 300], [3, 0]] {
            let mut world = World::new(7, CLEAN, 1);
            let ends = counts.iter().filter(|count| **count > 0).count();
            let vain = in_vain(&mut world, MS * millis, counts);
            assert!(vain <= turns * ends, "{millis} ms, {counts:?}: {vain} frames in vain");
            // Now it is known, also after a rest.
            assert_eq!(in_vain(&mut world, MS * millis, counts), 0, "{millis} ms, {counts:?}");
        }
    }
}

#[test]
fn a_link_that_becomes_longer_is_learnt() {
    let mut world = World::new(7, CLEAN, 1);
    assert_eq!(in_vain(&mut world, MS, [400, 0]), 0);
    // The timer's turns before the first late answer have nobody to warn them.
    let vain = in_vain(&mut world, 100 * MS, [400, 0]);
    assert!(vain <= 3 * 8, "{vain} frames in vain");
    assert_eq!(in_vain(&mut world, 100 * MS, [400, 0]), 0);
}

#[test]
fn a_first_window_that_is_lost_comes_again_soon() {
    let mut world = World::new(7, Odds { lose: 100, ..CLEAN }, 1);
    world.distance = MS;
    let frames = numbered(8);
    let mut wanted = frames.iter();
    world.step(0, &mut wanted);
    assert!(wanted.len() == 0 && world.wires.is_empty());
    world.odds = CLEAN;
    let mut got = [Vec::new(), Vec::new()];
    while got[1].len() < 8 {
        world.advance();
        world.arrivals(&mut got);
        [0, 1].into_iter().for_each(|end| world.step(end, &mut [].iter()));
    }
    assert!(got[1] == frames && world.now < 200 * MS, "{:?}", world.now);
}

fn cases() -> u32 {
    fulmen_testbed::by_tier(200, 1500, 5000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    /// Over any channel that lets some frames through, all frames come, once and in order, and both ends come to rest.
    #[test]
    fn every_frame_comes_once_and_in_order(
        odds in odds(),
        seed in any::<u64>(),
        generation in prop_oneof![any::<u32>(), u32::MAX - 200..u32::MAX],
        counts in prop::array::uniform2(0..60_usize),
    ) {
        let frames = counts.map(|count| (0..count).map(|at| vec![at as u8; 1 + at % 9]).collect::<Vec<_>>());
        let mut world = World::new(generation, odds, seed);
        let got = world.run(&frames);
        prop_assert_eq!(&got[0], &frames[1]);
        prop_assert_eq!(&got[1], &frames[0]);
    }

    #[test]
    fn garbage_is_dropped(bytes in prop::collection::vec(any::<u8>(), 0..40), sealed in any::<bool>()) {
        let mut end = Reliable::new(config(3));
        let mut bytes = bytes;
        if sealed && bytes.len() >= 8 {
            bytes[4..8].copy_from_slice(&3_u32.to_le_bytes());
            let crc = crc32c::crc32c(&bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
        }
        let verdict = end.receive(MS, bytes.as_slice());
        if !sealed {
            prop_assert!(matches!(verdict, Verdict::Corrupt | Verdict::Malformed));
        }
        prop_assert!(end.in_flight() == 0 && end.seen.wrapping_sub(end.expected) <= 8);
    }
}

#[cfg(feature = "planted-bugs")]
mod planted {
    use super::*;
    use crate::engine::Planted;

    #[test]
    fn frames_of_another_generation_are_taken() {
        let planted = ReliableConfig { planted: Some(Planted::NoGenerationCheck), ..config(7) };
        let mut end = Reliable::new(planted);
        let mut old = Reliable::new(config(6));
        send(&mut old, MS, b"old");
        let old = send(&mut old, MS, b"old");
        assert_eq!(end.receive(MS, old.as_slice()), Verdict::Deliver);
    }

    #[test]
    fn what_was_acknowledged_once_is_not_acknowledged_again() {
        let planted = ReliableConfig { planted: Some(Planted::LostAck), ..config(7) };
        let [mut one, mut two] = [planted, planted].map(Reliable::new);
        let frame = send(&mut one, MS, b"frame");
        assert_eq!(two.receive(MS, frame.as_slice()), Verdict::Deliver);
        // It is lost.
        two.acknowledgement();
        assert_eq!(two.receive(MS, frame.as_slice()), Verdict::Duplicate);
        assert!(!two.ack_due(100 * MS));
        // Until something else goes.
        let other = send(&mut two, MS, b"other");
        one.receive(MS, other.as_slice());
        assert_eq!(one.in_flight(), 0);
    }
}
