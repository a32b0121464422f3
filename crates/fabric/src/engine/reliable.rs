//! Frames over carriers that promise nothing: numbers, acknowledgements, and sending again.
//!
//! A [`Reliable`] is one end, and pure arithmetic: it knows numbers and times, the bytes stay with its driver. Time is
//! given from outside, as what has passed since some fixed moment.
//!
//! Before each frame goes a *seal* of [`Reliable::OVERHEAD`] bytes, little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | CRC-32C of the rest of the seal and of the frame |
//! | 4..8 | generation: frames of another one are none of this link's |
//! | 8..12 | number of the frame; both directions begin with the generation, wrapping |
//! | 12..16 | acknowledgement: all frames before this number have come |
//!
//! A seal without a frame is an *acknowledgement* alone. In the place of a number, which it does not use up, it has the end
//! of what has come: if that is beyond what it acknowledges, a frame is missing between the two.
//!
//! - The receiver takes frames in their order and drops all others: what is missing comes again, and all after it
//!   (go-back-N). It acknowledges with every frame that goes the other way. If none goes, an acknowledgement goes alone: for
//!   half a window at once, else after [`ReliableConfig::ack_delay`]. It goes at once for a frame that came twice (the peer
//!   may have missed the first acknowledgement) and for the first one that came too early.
//! - The sender keeps frames in [`ReliableConfig::window`] slots until they are acknowledged, and sends them all again when
//!   it is told that one is missing (once for each first missing frame) and when a timer runs out. The timer follows the
//!   measured time of an answer and doubles with each turn, up to [`ReliableConfig::rto_most`].
//! - Whose answer it is that comes to a frame that was sent twice cannot be told. But the answer took no longer than since the
//!   frame first went: that bounds the timer from below until an answer is timed, else a link whose answers take longer than the
//!   timer would never learn so. Until the first answer of all, a turn of the timer sends the oldest frame alone: it may well be
//!   that nothing is lost, and the link is long.
//! - If no frame is acknowledged for [`ReliableConfig::patience`] although all were sent again and again, the link is
//!   [dead](Reliable::is_dead). Only the timer's turns count, so that a process that was itself stopped for long blames nobody.

use std::time::Duration;

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum;
use super::frame::{self, Incoming};

/// How one end is set up. The same at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReliableConfig {
    /// Frames that may be unacknowledged: a power of two.
    pub window: u32,
    /// Of the link.
    pub generation: u32,
    /// The shortest time after which a frame is sent again for want of an answer, and the one to begin with.
    pub rto: Duration,
    /// The longest such time.
    pub rto_most: Duration,
    /// How long an acknowledgement waits for a frame to go with: less than `rto`.
    pub ack_delay: Duration,
    /// How long the peer may acknowledge nothing before the link is dead.
    pub patience: Duration,
    /// A bug that a simulator is to find.
    #[cfg(feature = "planted-bugs")]
    pub planted: Option<super::Planted>,
}

impl ReliableConfig {
    /// For links of a few microseconds between processes that a busy machine may keep waiting.
    #[must_use]
    pub fn new(window: u32, generation: u32, patience: Duration) -> ReliableConfig {
        ReliableConfig {
            window,
            generation,
            rto: Duration::from_millis(20),
            rto_most: Duration::from_millis(500).min(patience / 4).max(Duration::from_millis(20)),
            ack_delay: Duration::from_millis(4),
            patience,
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Seal {
    crc: U32,
    generation: U32,
    sequence: U32,
    ack: U32,
}

/// What came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The next frame: it is to be delivered.
    Deliver,
    /// An acknowledgement alone.
    Acknowledgement,
    /// A frame that has come before.
    Duplicate,
    /// A frame that came before another one that is missing.
    Gap,
    /// The checksum is wrong.
    Corrupt,
    /// A frame of another generation.
    OldGeneration,
    /// Numbers that this peer cannot have meant, or too few bytes.
    Malformed,
}

#[derive(Clone, Copy, Debug)]
struct Timed {
    frame: u32,
    /// When it was first sent.
    at: Duration,
    is_once: bool,
}

/// One end of a link over a carrier that promises nothing.
#[derive(Clone, Debug)]
pub struct Reliable {
    config: ReliableConfig,
    /// The first frame that is not acknowledged, and the next one to be sent.
    unacked: u32,
    next: u32,
    /// What is to be sent again: up to the second number.
    again: Option<(u32, u32)>,
    /// The frame for which a gap was last reported, and answered.
    hinted: Option<u32>,
    /// When the timer runs out, how long it runs this time, and how long its turns without an answer were.
    timer: Option<Duration>,
    interval: Duration,
    waited: Duration,
    /// The frame whose answer is timed.
    timed: Option<Timed>,
    /// The time of an answer, smoothed, and how much it varies.
    answer: Option<(Duration, Duration)>,
    /// What the last answer took at most, if it came to a frame that was sent more than once.
    bound: Option<Duration>,
    /// The frame that is due, and the end of what has come.
    expected: u32,
    seen: u32,
    /// Frames that came since the last acknowledgement went.
    unanswered: u32,
    /// When it is to go alone.
    answer_at: Option<Duration>,
    /// It is to go alone whatever else goes.
    urgent: bool,
}

impl Reliable {
    /// Bytes of a seal.
    pub const OVERHEAD: usize = size_of::<Seal>();

    /// One end of a new link.
    ///
    /// # Panics
    /// If the window is no power of two, or acknowledgements come later than frames are sent again.
    #[must_use]
    pub fn new(config: ReliableConfig) -> Reliable {
        assert!(config.window.is_power_of_two() && config.window < 1 << 16, "a window is a power of two below 65536");
        assert!(config.ack_delay < config.rto && config.rto <= config.rto_most, "times in their order");
        let first = config.generation;
        Reliable {
            config,
            unacked: first,
            next: first,
            again: None,
            hinted: None,
            timer: None,
            interval: config.rto,
            waited: Duration::ZERO,
            timed: None,
            answer: None,
            bound: None,
            expected: first,
            seen: first,
            unanswered: 0,
            answer_at: None,
            urgent: false,
        }
    }

    /// How it was set up.
    #[must_use]
    pub fn config(&self) -> &ReliableConfig {
        &self.config
    }

    /// Whether there is a slot for one more frame.
    #[inline]
    #[must_use]
    pub fn can_send(&self) -> bool {
        self.in_flight() < self.config.window
    }

    /// Frames that were sent and are not acknowledged.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.next.wrapping_sub(self.unacked)
    }

    /// The slot of the next new frame. Slots are used in a circle.
    #[inline]
    #[must_use]
    pub fn next_slot(&self) -> u32 {
        self.slot(self.next)
    }

    /// The number of the first frame that is not acknowledged.
    #[must_use]
    pub fn acked(&self) -> u32 {
        self.unacked
    }

    /// Whether the peer has a frame that is not a future one.
    #[must_use]
    pub fn has_acknowledged(&self, sequence: u32) -> bool {
        self.unacked.wrapping_sub(sequence).wrapping_sub(1) <= u32::MAX / 2
    }

    /// The number of the next new frame.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.next
    }

    fn slot(&self, sequence: u32) -> u32 {
        sequence & (self.config.window - 1)
    }

    /// A new frame is in the [next slot](Reliable::next_slot): it is to be [sealed](Reliable::seal) and sent.
    ///
    /// # Panics
    /// If there is no slot.
    pub fn begin(&mut self, now: Duration) -> u32 {
        assert!(self.can_send(), "a frame beyond the window");
        let slot = self.slot(self.next);
        if self.timer.is_none() {
            self.interval = self.rto();
            self.timer = Some(now + self.interval);
        }
        if self.timed.is_none() {
            self.timed = Some(Timed { frame: self.next, at: now, is_once: true });
        }
        self.next = self.next.wrapping_add(1);
        slot
    }

    /// The seal of the frame in a slot, which goes with it now, for the first time or again. It brings the newest
    /// acknowledgement.
    ///
    /// # Panics
    /// If there is no frame in the slot.
    pub fn seal(&mut self, slot: u32, frame: &(impl Incoming + ?Sized)) -> [u8; Reliable::OVERHEAD] {
        let sequence = self.unacked.wrapping_add(slot.wrapping_sub(self.unacked) & (self.config.window - 1));
        assert!(sequence.wrapping_sub(self.unacked) < self.in_flight(), "a slot without a frame");
        self.unanswered = 0;
        self.answer_at = None;
        self.sealed(sequence, frame)
    }

    /// An acknowledgement that goes alone.
    pub fn acknowledgement(&mut self) -> [u8; Reliable::OVERHEAD] {
        self.unanswered = 0;
        self.answer_at = None;
        self.urgent = false;
        self.sealed(self.seen, [].as_slice())
    }

    fn sealed(&self, sequence: u32, frame: &(impl Incoming + ?Sized)) -> [u8; Reliable::OVERHEAD] {
        let generation = self.config.generation.into();
        let mut seal = Seal { crc: 0.into(), generation, sequence: sequence.into(), ack: self.expected.into() };
        seal.crc = seal.checksum(frame, 0).into();
        zerocopy::transmute!(seal)
    }

    /// Takes what came: a seal, and perhaps a frame. If the verdict is [`Verdict::Deliver`], what follows the seal is to be
    /// delivered; else it is of no use.
    pub fn receive(&mut self, now: Duration, bytes: &(impl Incoming + ?Sized)) -> Verdict {
        let Ok(seal) = frame::read::<Seal>(bytes, 0, "a seal") else { return Verdict::Malformed };
        if seal.checksum(bytes, Self::OVERHEAD) != seal.crc.get() {
            return Verdict::Corrupt;
        }
        let old = seal.generation.get() != self.config.generation;
        #[cfg(feature = "planted-bugs")]
        let old = old && !self.has(super::Planted::NoGenerationCheck);
        if old {
            return Verdict::OldGeneration;
        }
        if !self.acknowledge(now, seal.ack.get()) {
            return Verdict::Malformed;
        }
        if bytes.len() == Self::OVERHEAD {
            return self.hint(seal.ack.get(), seal.sequence.get());
        }
        self.number(now, seal.sequence.get())
    }

    /// All frames before `ack` have come to the peer. False if it cannot say so.
    fn acknowledge(&mut self, now: Duration, ack: u32) -> bool {
        let count = ack.wrapping_sub(self.unacked);
        if count == 0 || count > self.in_flight() {
            // What is behind was said before other acknowledgements that overtook it.
            return count == 0 || count > u32::MAX / 2;
        }
        if let Some(timed) = self.timed
            && ack.wrapping_sub(timed.frame).wrapping_sub(1) < count
        {
            self.timed = None;
            let took = now.saturating_sub(timed.at);
            if timed.is_once {
                self.measure(took);
            } else {
                self.bound = Some(took);
            }
        }
        self.unacked = ack;
        self.waited = Duration::ZERO;
        self.interval = self.rto();
        self.timer = (self.in_flight() > 0).then(|| now + self.interval);
        if let Some((from, to)) = &mut self.again {
            if to.wrapping_sub(ack).wrapping_sub(1) >= self.config.window {
                self.again = None;
            } else if from.wrapping_sub(ack) > self.config.window {
                *from = ack;
            }
        }
        true
    }

    /// An acknowledgement alone: something has come that is beyond what it acknowledges.
    fn hint(&mut self, ack: u32, seen: u32) -> Verdict {
        if seen.wrapping_sub(ack) > self.config.window {
            return Verdict::Malformed;
        }
        if seen != ack && ack == self.unacked && self.in_flight() > 0 && self.hinted != Some(ack) {
            self.hinted = Some(ack);
            self.send_again(self.next);
        }
        Verdict::Acknowledgement
    }

    fn number(&mut self, now: Duration, sequence: u32) -> Verdict {
        let ahead = sequence.wrapping_sub(self.expected);
        if ahead == 0 {
            self.expected = self.expected.wrapping_add(1);
            // Whatever came too early was dropped.
            self.seen = self.expected;
            self.unanswered += 1;
            let at = if self.unanswered >= self.config.window.div_ceil(2) { now } else { now + self.config.ack_delay };
            self.answer_at = Some(self.answer_at.map_or(at, |before| before.min(at)));
            Verdict::Deliver
        } else if ahead < self.config.window {
            let end = sequence.wrapping_add(1);
            // Told for the first of them: the others left with it.
            self.urgent |= self.seen == self.expected;
            if self.seen.wrapping_sub(self.expected) < end.wrapping_sub(self.expected) {
                self.seen = end;
            }
            Verdict::Gap
        } else if ahead > u32::MAX / 2 {
            // The peer may have missed the acknowledgement.
            self.urgent = true;
            #[cfg(feature = "planted-bugs")]
            if self.has(super::Planted::LostAck) {
                self.urgent = false;
            }
            Verdict::Duplicate
        } else {
            Verdict::Malformed
        }
    }

    /// Whether this mistake was planted.
    #[cfg(feature = "planted-bugs")]
    fn has(&self, planted: super::Planted) -> bool {
        self.config.planted == Some(planted)
    }

    /// The slot of the next frame that is to be sent again, oldest first. To be asked until there is none.
    pub fn due(&mut self, now: Duration) -> Option<u32> {
        if self.timer.is_some_and(|at| at <= now) {
            self.waited += self.interval;
            self.interval = (self.interval * 2).min(self.config.rto_most);
            self.timer = Some(now + self.interval);
            let is_heard = self.answer.is_some() || self.bound.is_some();
            self.send_again(if is_heard { self.next } else { self.unacked.wrapping_add(1) });
        }
        let (from, to) = self.again?;
        self.again = Some((from.wrapping_add(1), to)).filter(|(from, to)| from != to);
        Some(self.slot(from))
    }

    /// Sends all again that is not acknowledged: over another way than before.
    pub fn resend(&mut self) {
        self.send_again(self.next);
    }

    /// The slots of all frames that are not acknowledged, oldest first.
    pub fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.in_flight()).map(|at| self.slot(self.unacked.wrapping_add(at)))
    }

    /// For how long the timer has run without an answer.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// The frames up to this one.
    fn send_again(&mut self, end: u32) {
        self.again = Some((self.unacked, end)).filter(|(from, to)| from != to);
        if let Some(timed) = &mut self.timed {
            timed.is_once = false;
        }
    }

    /// Whether an acknowledgement is to go alone, if no frame goes now.
    #[must_use]
    pub fn ack_due(&self, now: Duration) -> bool {
        self.urgent || self.answer_at.is_some_and(|at| at <= now)
    }

    /// When [`Reliable::due`] or [`Reliable::ack_due`] is to be asked again, if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let answer = if self.urgent { Some(Duration::ZERO) } else { self.answer_at };
        [answer, self.timer].into_iter().flatten().min()
    }

    /// When [`Reliable::due`] is to be asked again.
    #[must_use]
    pub fn resend_at(&self) -> Option<Duration> {
        self.timer
    }

    /// Whether nothing was acknowledged for longer than [`ReliableConfig::patience`]: the link is of no use any more. To be
    /// asked after everything that has come was taken.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.waited >= self.config.patience
    }

    /// Nothing that was sent is sent again: the peer wants none of it any more. It still gets its acknowledgements.
    pub fn give_up(&mut self) {
        (self.again, self.timer, self.timed) = (None, None, None);
        (self.unacked, self.waited) = (self.next, Duration::ZERO);
    }

    fn measure(&mut self, time: Duration) {
        self.bound = None;
        self.answer = Some(match self.answer {
            None => (time, time / 2),
            Some((mean, spread)) => ((mean * 7 + time) / 8, (spread * 3 + mean.abs_diff(time)) / 4),
        });
    }

    /// How long to wait for an answer, before any doubling.
    fn rto(&self) -> Duration {
        let measured = self.answer.map_or(Duration::ZERO, |(mean, spread)| mean + spread * 4);
        let at_most = self.bound.map_or(Duration::ZERO, |bound| bound + bound / 4);
        (measured.max(at_most) + self.config.ack_delay).clamp(self.config.rto, self.config.rto_most)
    }
}

impl Seal {
    /// The checksum of what follows it in the seal, and of the frame, which begins at `from`.
    fn checksum(&self, bytes: &(impl Incoming + ?Sized), from: usize) -> u32 {
        let rest = &self.as_bytes()[size_of::<U32>()..];
        checksum::append(crc32c::crc32c(rest), bytes, from)
    }
}

#[cfg(test)]
#[path = "tests/reliable.rs"]
mod tests;
