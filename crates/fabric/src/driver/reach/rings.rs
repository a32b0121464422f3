//! The rings of a link, two in each direction, which carry its frames in one order.
//!
//! Most go through one ring that is short enough to stay in the caches of whoever writes it. Messages that are longer than [`NARROW`] take
//! another one, which is long: what is written anew there is in nobody's second-level cache any more, and to
//! take it from there costs more than all else. (Measured of two ranks whose processors share the last cache, 32 MiB, with second-level
//! caches of 1 MiB: through the long one, messages of 5 to 8 KiB take 0.55 to 0.65 of the time that they take through the short one, of 8 KiB
//! to 2 MiB 0.5 to 0.8, and those of 64 to 512 bytes two to three times as long.) Among so many ranks that it could not be longer, there is none. A frame without bytes says that the
//! next one is in the other ring.
//!
//! What is asked and answered in turn goes in the narrow ring's cell: once the peer has given back all credits, it has read all frames that
//! need one, and those that need none are too short for the cell.

use std::sync::atomic::Ordering;

use fulmen_memory::Exposed;
use fulmen_reach::Ticks;
use fulmen_reach::ring::{Consumer, Frame, INLINE, Layout, Producer, Reservation, RingError};

use super::ways::{LEAST, OF_CELLS, OF_RINGS, Ways};
use crate::driver::check::TRAILER;
use crate::engine::{FRAGMENT_HEADER, PREFIX};
use crate::options::Flow;

/// Bytes of the longest message that goes through the narrow ring, where there is another. (Measured near: through the wide one, messages to and
/// fro of 1 to 2 KiB take 1.15 of the time that they take in the cell, of 2.25 to 3.25 KiB the same, and of 4 KiB 0.75; streams of up to 2 KiB
/// as long as through the narrow one, and of 2.25 to 4 KiB 0.55 to 0.85.)
const NARROW: usize = 2 << 10;
/// Bytes of the shortest and of the longest frame that goes in the narrow ring's [cell](fulmen_reach::ring), where it is free; those of more than
/// [`NARROW`], where there is no wide ring. (Measured of messages to and fro, near: 256 bytes to 4 KiB take 0.75 to 0.85 of the time that they take
/// through the narrow ring, and 6 KiB as long, or 1.3 of it far.)
const LEAST_IN_CELL: usize = 192;
const IN_CELL: usize = (4 << 10) + FRAGMENT_HEADER + TRAILER;
const _: () = assert!(NARROW + PREFIX + TRAILER <= IN_CELL);
const _: () =
    assert!(PREFIX + TRAILER < LEAST_IN_CELL, "a frame that needs no credit may be unread when all credits are back");
/// Bytes of the longest parts of what goes through the wide one, where it has room for as many as credits allow. (Measured near: with these,
/// messages of 16 KiB to 1 MiB take 0.9 to 0.97 of the time that they take in parts of 16 KiB.)
const PART: usize = 32 << 10;
/// Bytes of all wide rings into which a rank is sent, and of one of them, at most. (Measured near: with twice as much, messages of 16 KiB take
/// 0.96 of the time, of 64 KiB and 1 MiB the same, and of 4 MiB, which need the room in the last cache, 1.2 to 1.5 times as long.)
const WIDE_IN_ALL: usize = 8 << 20;
const WIDEST: usize = 2 << 20;
/// Bytes of a gap behind a short part, which is a message's first, last or only one: beyond it, the reader's processor is not to fetch ahead what is
/// written next. (Measured near: with these, messages of 8 KiB and 16 KiB take 0.85 to 0.9 of the time, those of 64 KiB 0.95. Behind the long
/// parts, which come one after the other, those of 1 MiB take 1.05 with it.)
const GAP: usize = 1 << 10;
const BEFORE_GAP: usize = 9 << 10;
/// Bytes of pages that the system is asked for at a time, at least and at most: see [`Ahead`].
const LEAST_AHEAD: usize = 256 << 10;
const MOST_AHEAD: usize = 1 << 20;
/// Where systems have larger pages, some are touched more than once.
const PAGE: usize = 4096;
/// Bytes of a ring's slot, and of its head word.
const SLOT: usize = 64;

/// Bytes that a frame takes in a ring.
const fn taken(len: usize) -> usize {
    (len + SLOT - INLINE).div_ceil(SLOT) * SLOT
}

/// Both rings in one direction of a link between two of so many ranks.
#[derive(Clone, Copy)]
pub(super) struct Rings {
    narrow: Layout,
    wide: Layout,
    /// Bytes of the longest frame that goes in the narrow one's cell.
    cell: usize,
    /// The longest message that goes through the narrow one.
    longest: usize,
    /// Bytes of the longest frame of what goes through the wide one; zero where there is none.
    frame: usize,
}

impl Rings {
    /// Rings with room for all frames that credits allow, as long as `flow` and [`Rings::long`] say, each with a word before it that says in
    /// which ring it is, and `more` short frames that need none.
    pub(super) fn new(size: u32, flow: &Flow, more: usize) -> Rings {
        let credits = usize::from(flow.credits);
        let frames = credits * (taken(flow.frame as usize) + SLOT);
        let share = 1 << (WIDE_IN_ALL / size as usize).clamp(1, WIDEST).ilog2();
        let cell = IN_CELL.min(flow.frame as usize);
        let narrow = Layout::new(frames + more * SLOT).with_cell(cell);
        if share <= narrow.capacity() {
            return Rings { narrow, cell, wide: Layout::new(0), longest: usize::MAX, frame: 0 };
        }
        let most = (share / credits / SLOT * SLOT).saturating_sub(GAP + SLOT + (SLOT - INLINE));
        let frame = most.min(FRAGMENT_HEADER + PART + TRAILER).max(flow.frame as usize);
        Rings { narrow, cell, wide: Layout::new(share).with_gap(GAP), longest: NARROW, frame }
    }

    /// Messages of more bytes than that may go in frames of up to so many, without a checksum; none where there is but one ring.
    pub(super) fn long(self) -> Option<(usize, usize)> {
        (self.frame > 0).then(|| (self.longest, self.frame - TRAILER))
    }

    /// Bytes of both.
    pub(super) fn size(self) -> usize {
        self.wide_at() + self.wide.size()
    }

    fn wide_at(self) -> usize {
        self.narrow.size().next_multiple_of(2 * SLOT)
    }

    /// The memory of both, of that of [`Rings::size`] bytes.
    fn of(self, memory: &Exposed) -> [Exposed; 2] {
        let wide = self.wide_at();
        [memory.slice(0..self.narrow.size()), memory.slice(wide..wide + self.wide.size())]
    }

    /// The end that writes.
    pub(super) fn outgoing(self, memory: &Exposed) -> Result<Outgoing, RingError> {
        let [narrow, wide] = self.of(memory);
        let ahead = Ahead { memory: wide.clone(), touched: 0 };
        let ticks = Ticks::new();
        Ok(Outgoing {
            rings: [Producer::new(narrow, self.narrow)?, Producer::new(wide, self.wide)?],
            at: NARROW_ONE,
            longest: self.longest,
            cell: self.cell,
            ahead,
            ways: [OF_RINGS, OF_RINGS, OF_CELLS].map(|margin| Ways::new(ticks, margin)),
            open: NARROW_ONE,
        })
    }

    /// The end that reads.
    pub(super) fn incoming(self, memory: &Exposed) -> Result<Incoming, RingError> {
        let [narrow, wide] = self.of(memory);
        Ok(Incoming { rings: [Consumer::new(narrow, self.narrow)?, Consumer::new(wide, self.wide)?], at: NARROW_ONE })
    }
}

/// Their places.
const NARROW_ONE: usize = 0;
const WIDE_ONE: usize = 1;
/// The narrow one's cell, as a place of its own.
const CELL: usize = 2;

/// See [`Rings::outgoing`].
pub(super) struct Outgoing {
    rings: [Producer; 2],
    at: usize,
    longest: usize,
    /// Bytes of the longest frame that goes in the cell.
    cell: usize,
    ahead: Ahead,
    ways: [Ways; 3],
    /// The place of the frame that is being written.
    open: usize,
}

/// How much of the wide ring's memory has pages. The system gives each when it is first used, which takes 3 µs, longer than what it is used
/// for: so it is asked for as many as there are at once, which few messages have to wait for.
struct Ahead {
    memory: Exposed,
    touched: usize,
}

impl Ahead {
    /// The memory is about to be used up to here.
    #[inline]
    fn go(&mut self, extent: usize) {
        if extent > self.touched {
            self.touch(extent);
        }
    }

    #[cold]
    fn touch(&mut self, extent: usize) {
        let end = extent.max(self.touched + self.touched.clamp(LEAST_AHEAD, MOST_AHEAD)).min(self.memory.len());
        // Nothing was written there yet: behind what was touched there is one frame without bytes at most, and where the reader looks next.
        for at in ((self.touched + 2 * SLOT).next_multiple_of(PAGE)..end).step_by(PAGE) {
            self.memory.atomic_u32(at).store(0, Ordering::Relaxed);
        }
        self.touched = end;
    }
}

impl Outgoing {
    /// Room for a frame of `len` bytes, of a message of `message` bytes; `None` if there is none now. `all_taken`: the
    /// peer has taken all frames that need a credit. Once it is published, [`Outgoing::published`] is told.
    #[inline(always)]
    pub(super) fn reserve(
        &mut self,
        len: usize,
        message: usize,
        all_taken: bool,
    ) -> Result<Option<Reservation<'_>>, RingError> {
        let ring = if message > self.longest { WIDE_ONE } else { NARROW_ONE };
        if !self.goes_to(ring)? {
            return Ok(None);
        }
        if ring == WIDE_ONE {
            self.ahead.go(self.rings[WIDE_ONE].extent(len));
        }
        let in_cell = all_taken && ring == NARROW_ONE && (LEAST_IN_CELL..=self.cell).contains(&len);
        self.open = if in_cell { CELL } else { ring };
        let room = if in_cell { self.rings[ring].reserve_cell(len)? } else { self.rings[ring].reserve(len)? };
        let Some(mut room) = room else { return Ok(None) };
        let past = self.ways[self.open].begin(len);
        room.past_caches(past);
        if ring == WIDE_ONE && len <= BEFORE_GAP && !past {
            room.leave_gap();
        }
        Ok(Some(room))
    }

    /// The frame for which there was room is published.
    #[inline]
    pub(super) fn published(&mut self) {
        self.ways[self.open].end();
    }

    /// Sends a frame of these pieces, with all of a message of `message` bytes; false if there is no room for it now. `all_taken` as there.
    #[inline]
    pub(super) fn try_push(&mut self, pieces: &[&[u8]], message: usize, all_taken: bool) -> Result<bool, RingError> {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        // What is short takes up to a tenth longer by way of a reservation.
        if len < LEAST_IN_CELL || !all_taken && len < LEAST {
            return Ok(self.goes_to(NARROW_ONE)? && self.rings[NARROW_ONE].try_push(pieces)?);
        }
        let Some(mut room) = self.reserve(len, message, all_taken)? else { return Ok(false) };
        pieces.iter().for_each(|piece| room.write(piece));
        room.publish();
        self.published();
        Ok(true)
    }

    /// Has the next frame come from this ring, if there is room to say so.
    #[inline]
    fn goes_to(&mut self, ring: usize) -> Result<bool, RingError> {
        if ring != self.at {
            if !self.rings[self.at].try_push(&[])? {
                return Ok(false);
            }
            self.at = ring;
        }
        Ok(true)
    }
}

/// See [`Rings::incoming`].
pub(super) struct Incoming {
    rings: [Consumer; 2],
    at: usize,
}

impl Incoming {
    /// The next frame, if there is one. It stays until it is released. After one without bytes, the [other ring](Incoming::turn) is in turn.
    #[inline]
    pub(super) fn peek(&mut self) -> Result<Option<Frame<'_>>, RingError> {
        self.rings[self.at & WIDE_ONE].peek()
    }

    /// The next frame is in the other ring.
    pub(super) fn turn(&mut self) {
        self.at = WIDE_ONE - self.at;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use fulmen_memory::Region;
    use proptest::prelude::*;

    use super::*;

    /// Frames that need no credit.
    const MORE: usize = 4;

    fn ends(rings: Rings) -> (Outgoing, Incoming) {
        let memory = Region::alloc(rings.size()).unwrap().expose().unwrap();
        (rings.outgoing(&memory).unwrap(), rings.incoming(&memory).unwrap())
    }

    /// The next frame, if there is one.
    fn take(incoming: &mut Incoming) -> Option<Vec<u8>> {
        while let Some(frame) = incoming.peek().unwrap() {
            let bytes = frame.to_vec();
            frame.release();
            if !bytes.is_empty() {
                return Some(bytes);
            }
            incoming.turn();
        }
        None
    }

    fn send(outgoing: &mut Outgoing, bytes: &[u8], message: usize, all_taken: bool) -> bool {
        let Some(mut room) = outgoing.reserve(bytes.len(), message, all_taken).unwrap() else { return false };
        room.write(bytes);
        room.publish();
        outgoing.published();
        true
    }

    #[test]
    fn all_frames_that_credits_allow_have_room_in_either_ring() {
        for size in [1, 2, 3, 8, 64, 1024] {
            for (frame, credits) in [(256, 16), (256, 3000), (8184, 60), (32_768, 60), (65_536, 16), (65_536, 64)] {
                let flow = Flow { frame, credits, ..Flow::default() };
                let rings = Rings::new(size, &flow, MORE);
                let (mut outgoing, mut incoming) = ends(rings);
                // From anywhere in the rings: all in one, all in the other, and from ring to ring with each frame.
                for round in 0..60 {
                    let is_long =
                        |number: usize| [false, true, number.is_multiple_of(2), !number.is_multiple_of(2)][round % 4];
                    let longest = rings.long().map_or(frame as usize, |(_, longest)| longest + TRAILER);
                    // With a gap behind each, or without.
                    let longest = if round % 8 < 4 { longest } else { longest.min(BEFORE_GAP) };
                    let len = |number| if is_long(number) { longest } else { frame as usize };
                    for number in 0..usize::from(credits) {
                        let message = if is_long(number) { NARROW + 1 } else { 1 };
                        let bytes = vec![number as u8; len(number)];
                        assert!(
                            send(&mut outgoing, &bytes, message, number == 0),
                            "{size} ranks, {flow:?}: frame {number}"
                        );
                        if number < MORE {
                            // One that needs no credit.
                            assert!(
                                outgoing.try_push(&[&[1; 16]], 0, false).unwrap(),
                                "{size} ranks, {flow:?}: {number}"
                            );
                        }
                    }
                    for number in 0..usize::from(credits) {
                        let came = take(&mut incoming).expect("it was sent");
                        assert_eq!((came.len(), came[0]), (len(number), number as u8));
                        if number < MORE {
                            assert_eq!(take(&mut incoming).as_deref(), Some(&[1; 16][..]));
                        }
                    }
                    assert_eq!(take(&mut incoming), None);
                }
            }
        }
    }

    #[test]
    fn there_is_no_other_ring_where_it_would_not_be_longer() {
        let size = |ranks| Rings::new(ranks, &Flow::default(), MORE).size();
        assert_eq!([2, 4, 8].map(|ranks| size(ranks) >> 10), [2564, 2564, 1540]);
        assert_eq!(size(16), size(1024));
        assert!(size(16) < 524 << 10);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn frames_come_in_the_order_in_which_they_were_sent(
            sizes in prop_oneof![Just((512 << 10, 4 << 20, 8184)), Just((512, 1024, 240)), Just((4096, 1024, 480))],
            steps in proptest::collection::vec((0..3_u8, any::<bool>(), 1..8184_usize), 0..2000),
        ) {
            let (narrow, wide, longest) = sizes;
            let (narrow, wide) = (Layout::new(narrow), Layout::new(wide).with_gap(GAP.min(wide / 2)));
            let narrow = narrow.with_cell(240);
            let (mut outgoing, mut incoming) = ends(Rings { narrow, cell: 240, wide, longest: NARROW, frame: longest });
            let mut under_way = VecDeque::new();
            for (number, (step, is_long, len)) in steps.into_iter().enumerate() {
                if step > 0 {
                    let bytes: Vec<u8> = (0..1 + len % longest).map(|at| (at * 31 + number) as u8).collect();
                    let sent = match is_long {
                        true => send(&mut outgoing, &bytes, NARROW + 1, under_way.is_empty()),
                        false => outgoing.try_push(&[&bytes], 1, under_way.is_empty()).unwrap(),
                    };
                    prop_assert!(sent || !under_way.is_empty(), "there is room in empty rings");
                    under_way.extend(sent.then_some(bytes));
                } else {
                    prop_assert_eq!(take(&mut incoming), under_way.pop_front());
                }
            }
            while let Some(bytes) = under_way.pop_front() {
                prop_assert_eq!(take(&mut incoming), Some(bytes));
            }
            prop_assert_eq!(take(&mut incoming), None);
        }
    }
}
