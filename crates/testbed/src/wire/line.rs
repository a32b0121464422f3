//! One direction of a wire: frames in, frames out, a clock given from outside.

use std::collections::VecDeque;
use std::mem;

use crate::{Counts, Link};

/// Nanoseconds since the bed was made.
pub(crate) type Nanos = u64;

/// Bytes that may be under way at once: as much as crosses 10 Gb/s in 50 ms.
const MOST: usize = 64 << 20;
/// How much later a frame comes that was to be overtaken, and was not.
const HELD: Nanos = 10_000_000;
/// Bytes of Ethernet's header.
pub(crate) const HEADER: usize = 14;
/// Bytes of a frame in which no bit is turned over: the headers of Ethernet and of IPv4.
const INTACT: usize = HEADER + 20;

/// What is drawn for each frame: each has its own numbers, so that one setting never changes what another one draws.
#[derive(Clone, Copy)]
enum Drawn {
    Loss = 1,
    Duplicate,
    Corrupt,
    Bit,
    Jitter,
    Reorder,
    Overtakers,
}

/// SplitMix64's finish: every bit of the word changes every other one with a chance of a half.
fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Where one word is drawn from a seed and a place.
pub(crate) fn draw(seed: u64, place: u64) -> u64 {
    mix(seed.wrapping_add(mix(place.wrapping_add(0x9e37_79b9_7f4a_7c15))))
}

struct Parcel {
    due: Nanos,
    frame: Vec<u8>,
}

/// A frame that waits to be overtaken.
struct Held {
    /// By how many more.
    overtakers: u64,
    parcel: Parcel,
}

pub(crate) struct Line {
    link: Link,
    /// Tells this direction from the others of the net.
    direction: u64,
    is_blocked: bool,
    /// When the last bit of what was sent so far has left, under a rate.
    free_at: Nanos,
    /// In order.
    queue: VecDeque<Parcel>,
    last_due: Nanos,
    held: Vec<Held>,
    bytes: usize,
    counts: Counts,
}

impl Line {
    pub(crate) fn new(link: Link, direction: u64) -> Line {
        Line {
            link,
            direction,
            is_blocked: false,
            free_at: 0,
            queue: VecDeque::new(),
            last_due: 0,
            held: Vec::new(),
            bytes: 0,
            counts: Counts::default(),
        }
    }

    /// For the frames that enter from now on.
    pub(crate) fn set(&mut self, link: Link) {
        self.link = link;
    }

    /// Nothing enters any more, and what is under way is lost.
    pub(crate) fn block(&mut self, is_blocked: bool) {
        self.is_blocked = is_blocked;
        if is_blocked {
            self.cut();
        }
    }

    /// What is under way is lost.
    pub(crate) fn cut(&mut self) {
        self.counts.blocked += (mem::take(&mut self.queue).len() + mem::take(&mut self.held).len()) as u64;
        self.bytes = 0;
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// The other host did not take a frame that was taken from here.
    pub(crate) fn refuse(&mut self) {
        self.counts.delivered -= 1;
        self.counts.refused += 1;
    }

    /// A frame is there for a cable that is pulled.
    pub(crate) fn pulled(&mut self) {
        self.counts.entered += 1;
        self.counts.blocked += 1;
    }

    pub(crate) fn enter(&mut self, frame: &[u8], now: Nanos) {
        self.counts.entered += 1;
        if self.is_blocked {
            self.counts.blocked += 1;
        } else if self.link.mtu.is_some_and(|mtu| frame.len() > HEADER + mtu) {
            self.counts.too_big += 1;
        } else if self.chance(Drawn::Loss, self.link.loss, 0) {
            self.counts.lost += 1;
        } else {
            self.send(frame, 0, now);
            if self.chance(Drawn::Duplicate, self.link.duplicate, 0) {
                self.counts.duplicated += 1;
                self.send(frame, 1, now);
            }
        }
    }

    /// When the next frame comes out.
    pub(crate) fn due(&self) -> Option<Nanos> {
        let held = self.held.iter().map(|held| held.parcel.due + HELD);
        self.queue.front().map(|parcel| parcel.due).into_iter().chain(held).min()
    }

    /// A frame that is due.
    pub(crate) fn take(&mut self, now: Nanos) -> Option<Vec<u8>> {
        if !self.held.is_empty() {
            let (late, held) = mem::take(&mut self.held).into_iter().partition(|held| held.parcel.due + HELD <= now);
            self.held = held;
            let late: Vec<Held> = late;
            late.into_iter().for_each(|held| self.append(held.parcel));
        }
        let parcel = self.queue.pop_front_if(|parcel| parcel.due <= now)?;
        self.bytes -= parcel.frame.len();
        self.counts.delivered += 1;
        Some(parcel.frame)
    }

    fn send(&mut self, frame: &[u8], copy: u64, now: Nanos) {
        let mut sent = now;
        if let Some(rate) = self.link.rate {
            let start = self.free_at.max(now);
            if start - now > nanos(self.link.queue) {
                self.counts.overflowed += 1;
                return;
            }
            let took = frame.len() as u128 * 8 * 1_000_000_000 / u128::from(rate.max(1));
            sent = start + took as u64;
            self.free_at = sent;
        }
        if self.bytes + frame.len() > MOST {
            self.counts.overflowed += 1;
            return;
        }
        let mut frame = frame.to_vec();
        if is_ip(&frame) && frame.len() > INTACT && self.chance(Drawn::Corrupt, self.link.corrupt, copy) {
            let bit = self.draw(Drawn::Bit, copy) % ((frame.len() - INTACT) as u64 * 8);
            frame[INTACT + (bit / 8) as usize] ^= 1 << (bit % 8);
            self.counts.corrupted += 1;
        }
        let jitter = unit(self.draw(Drawn::Jitter, copy)) * nanos(self.link.jitter) as f64;
        let due = sent + nanos(self.link.delay) + jitter as u64;
        self.bytes += frame.len();
        let parcel = Parcel { due, frame };
        if self.chance(Drawn::Reorder, self.link.reorder, copy) {
            self.counts.reordered += 1;
            let overtakers = 1 + self.draw(Drawn::Overtakers, copy) % 3;
            self.held.push(Held { overtakers, parcel });
        } else {
            self.append(parcel);
            self.overtake();
        }
    }

    /// Behind all others.
    fn append(&mut self, mut parcel: Parcel) {
        parcel.due = parcel.due.max(self.last_due);
        self.last_due = parcel.due;
        self.queue.push_back(parcel);
    }

    /// One more has overtaken those that are held back.
    fn overtake(&mut self) {
        self.held.iter_mut().for_each(|held| held.overtakers -= 1);
        let (overtaken, held) = mem::take(&mut self.held).into_iter().partition(|held| held.overtakers == 0);
        self.held = held;
        let overtaken: Vec<Held> = overtaken;
        overtaken.into_iter().for_each(|held| self.append(held.parcel));
    }

    /// For the frame that entered last.
    fn draw(&self, what: Drawn, copy: u64) -> u64 {
        let seed = draw(self.link.seed, self.direction);
        draw(seed, (self.counts.entered << 4) | (copy << 3) | what as u64)
    }

    fn chance(&self, what: Drawn, chance: f64, copy: u64) -> bool {
        chance > 0.0 && unit(self.draw(what, copy)) < chance
    }
}

/// From 0 to less than 1.
fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / (1u64 << 53) as f64
}

fn nanos(duration: std::time::Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX / 4)
}

fn is_ip(frame: &[u8]) -> bool {
    matches!(frame.get(12..HEADER), Some([0x08, 0x00] | [0x86, 0xdd]))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    const MS: Nanos = 1_000_000;

    /// An IPv4 frame of so many bytes that tells its number.
    fn frame(number: u32, len: usize) -> Vec<u8> {
        let mut frame = vec![0; len];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14..18].copy_from_slice(&number.to_le_bytes());
        frame
    }

    fn number(frame: &[u8]) -> u32 {
        u32::from_le_bytes(frame[14..18].try_into().unwrap())
    }

    /// Sends so many frames, one each millisecond, and gives those that come, and when.
    fn cross(line: &mut Line, count: u32, len: usize) -> Vec<(Nanos, Vec<u8>)> {
        let mut come = Vec::new();
        let mut out = |line: &mut Line, until: Nanos| {
            while let Some(due) = line.due().filter(|due| *due <= until) {
                come.extend(line.take(due).map(|frame| (due, frame)));
            }
        };
        for each in 0..count {
            let now = u64::from(each) * MS;
            out(line, now);
            line.enter(&frame(each, len), now);
        }
        out(line, Nanos::MAX);
        let counts = line.counts();
        assert_eq!(counts.entered + counts.duplicated, counts.delivered + counts.dropped(), "{counts:?}");
        assert_eq!(line.bytes, 0);
        come
    }

    #[test]
    fn frames_cross_as_they_are() {
        let mut line = Line::new(Link::new(), 0);
        let come = cross(&mut line, 100, 60);
        for (each, (when, bytes)) in (0..).zip(&come) {
            assert_eq!((*when, bytes), (each * MS, &frame(each as u32, 60)));
        }
        assert_eq!(come.len(), 100);
    }

    #[test]
    fn delays_are_exact_and_jitter_keeps_the_order() {
        let link = Link::new().delay(Duration::from_millis(5));
        let come = cross(&mut Line::new(link, 0), 100, 60);
        assert!((0..).zip(&come).all(|(each, (when, _))| *when == (each + 5) * MS));
        let come = cross(&mut Line::new(link.jitter(Duration::from_millis(8)), 0), 1000, 60);
        assert!((0..).zip(&come).all(|(each, (_, frame))| number(frame) == each));
        let late = |(each, (when, _)): (u64, &(Nanos, Vec<u8>))| *when - each * MS;
        let lates: Vec<Nanos> = (0..).zip(&come).map(late).collect();
        assert!(lates.iter().all(|late| (5 * MS..=13 * MS).contains(late)));
        assert!(lates.iter().any(|late| *late < 7 * MS) && lates.iter().any(|late| *late > 11 * MS));
    }

    #[test]
    fn chances_are_what_was_set_and_the_same_each_time() {
        let link = Link::new().loss(0.05).duplicate(0.02).corrupt(0.03).reorder(0.04).seed(11);
        let run = |link: Link, direction| {
            let mut line = Line::new(link, direction);
            let come: Vec<Vec<u8>> = cross(&mut line, 100_000, 100).into_iter().map(|(_, frame)| frame).collect();
            (come, line.counts())
        };
        let (come, counts) = run(link, 3);
        // Five standard deviations are less than 350 of 100,000 here.
        for (count, expected) in
            [(counts.lost, 5000), (counts.duplicated, 1900), (counts.corrupted, 2907), (counts.reordered, 3876)]
        {
            assert!((expected - 350..expected + 350).contains(&count), "{expected}: {counts:?}");
        }
        assert_eq!(run(link, 3), (come.clone(), counts));
        assert_ne!(run(link, 4).0, come);
        assert_ne!(run(link.seed(12), 3).0, come);
        // Each setting draws by itself: without the others, the same frames are lost.
        let those = |come: Vec<Vec<u8>>| come.iter().map(|frame| number(frame)).collect::<BTreeSet<u32>>();
        let plain = Link::new().loss(0.05).seed(11);
        assert_eq!(those(run(plain, 3).0), those(come));
    }

    #[test]
    fn overtaken_frames_come_after_the_next_or_late() {
        let mut line = Line::new(Link::new().reorder(1.0), 0);
        // Nobody overtakes anybody where all are held back.
        let come = cross(&mut line, 1, 60);
        assert_eq!(come[0].0, HELD);
        let mut line = Line::new(Link::new().reorder(0.1).seed(5), 0);
        let come: Vec<i64> = cross(&mut line, 1000, 60).iter().map(|(_, frame)| number(frame).into()).collect();
        assert_eq!(come.len(), 1000);
        let moved = (0..).zip(&come).filter(|(at, number)| at != *number).count();
        assert!(moved > 100, "{moved}");
        assert!((0i64..).zip(&come).all(|(at, number)| (at - number).abs() <= 10), "{come:?}");
    }

    #[test]
    fn a_rate_is_kept_and_what_waits_too_long_is_dropped() {
        // 1 Mb/s is one frame of 125 bytes a millisecond.
        let link = Link::new().rate(1_000_000);
        let come = cross(&mut Line::new(link, 0), 100, 125);
        assert!((0..).zip(&come).all(|(each, (when, _))| *when == (each + 1) * MS));
        let mut line = Line::new(link.queue(Duration::from_millis(20)), 0);
        (0..100).for_each(|each| line.enter(&frame(each, 125), 0));
        assert_eq!(line.counts().overflowed, 79);
        assert_eq!(cross(&mut line, 0, 0).last().unwrap().0, 21 * MS);
    }

    #[test]
    fn frames_that_are_too_long_vanish() {
        let mut line = Line::new(Link::new().mtu(1400), 0);
        line.enter(&frame(0, HEADER + 1400), 0);
        line.enter(&frame(1, HEADER + 1401), 0);
        assert_eq!((line.counts().too_big, cross(&mut line, 0, 0).len()), (1, 1));
    }

    #[test]
    fn a_block_takes_what_is_under_way() {
        let mut line = Line::new(Link::new().delay(Duration::from_millis(5)), 0);
        line.enter(&frame(0, 60), 0);
        line.block(true);
        line.enter(&frame(1, 60), 0);
        line.block(false);
        line.enter(&frame(2, 60), 0);
        let come = cross(&mut line, 0, 0);
        assert_eq!((come.len(), number(&come[0].1), line.counts().blocked), (1, 2, 2));
    }

    #[test]
    fn one_bit_of_the_payload_is_turned_over() {
        let mut line = Line::new(Link::new().corrupt(1.0), 0);
        for each in 0..1000 {
            let sent = frame(each, 64);
            line.enter(&sent, 0);
            let come = line.take(0).unwrap();
            assert_eq!(sent[..INTACT], come[..INTACT]);
            assert_eq!(sent.iter().zip(&come).map(|(one, other)| (one ^ other).count_ones()).sum::<u32>(), 1);
        }
        // Nothing protects an ARP packet, and the hardware's checksum would have dropped it.
        let mut arp = frame(0, 60);
        arp[13] = 0x06;
        line.enter(&arp, 0);
        assert_eq!(line.take(0).unwrap(), arp);
    }
}
