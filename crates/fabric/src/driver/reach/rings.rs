//! The rings of a link, one in each direction, which carry its frames, and the cells that both share.
//!
//! A ring is short enough to stay in the caches of whoever writes it. The bytes of messages that are longer than [`NARROW`] lie in
//! [cells](Cells), each of which goes with its frame: of what is asked and answered in turn, each end writes the lines that it has just read,
//! and what goes one way goes through all cells, which are so many that what is written anew is in nobody's second-level cache any more. (Measured
//! of two ranks whose processors share the last cache, 32 MiB, with second-level caches of 1 MiB, by hand: messages to and fro of 16 to 256 KiB take
//! 0.87 to 0.9 of the time that they take through a ring of 2 MiB each way, and 0.69 to 0.78 where the processors are far apart.) Among so many
//! ranks that there is no room for them, there are none.

use std::sync::atomic::Ordering;

use fulmen_memory::Exposed;
use fulmen_reach::Ticks;
use fulmen_reach::ring::{Cells, Consumer, INLINE, Layout, Producer, Reservation, RingError, Spot};

use super::ways::{LEAST, Ways};
use crate::driver::check::TRAILER;
use crate::engine::{FRAGMENT_HEADER, Long, PREFIX};
use crate::options::Flow;

/// Bytes of the longest message that goes through the ring's slots, where there are cells.
const NARROW: usize = 2 << 10;
/// Bytes of the shortest frame that goes in a cell: if the peer has taken all frames, or has just sent one in a cell, it is likely to answer.
const LEAST_IN_CELL: usize = 192;
/// Bytes of the longest message that goes whole in a cell. (Measured of messages to and fro of 96 KiB, where processors are near: whole 0.7 of
/// the time that halves take; of 192 KiB 0.95; where they are far apart, 1.04 and 1.2.)
const WHOLE: usize = 128 << 10;
/// Bytes of the longest parts of longer ones: at least and at most, and between these a share of the room for cells, so that one cell less has room
/// with what is between them.
const SHORTEST_PART: usize = 64 << 10;
const LONGEST_PART: usize = 256 << 10;
const SHARES: usize = 8;
/// Bytes of all cells in the region of a rank, and of those of one link, at most.
const CELLS_IN_ALL: usize = 8 << 20;
const CELLS_OF_LINK: usize = 2 << 20;
/// With fewer cells at either end there are none.
const FEWEST_CELLS: usize = 2;
/// Bytes of pages that the system is asked for at a time, at least and at most: see [`Ahead`].
const LEAST_AHEAD: usize = 256 << 10;
const MOST_AHEAD: usize = 1 << 20;
/// Where systems have larger pages, some are touched more than once.
const PAGE: usize = 4096;
/// Bytes of a ring's slot.
const SLOT: usize = 64;

/// Bytes that a frame takes in a ring.
const fn taken(len: usize) -> usize {
    (len + SLOT - INLINE).div_ceil(SLOT) * SLOT
}

/// What one rank's region has of a link between two of so many ranks: the ring into it, and half of the cells.
#[derive(Clone, Copy)]
pub(super) struct Rings {
    ring: Layout,
    /// Bytes of the longest frame in the slots, and in a cell; the latter is zero where there are none.
    longest: usize,
    longest_in_cell: usize,
}

impl Rings {
    /// A ring with room for all frames that credits allow, as long as `flow` says, and `more` short frames that need none; and cells.
    pub(super) fn new(size: u32, flow: &Flow, more: usize) -> Rings {
        let longest = flow.frame as usize;
        let frames = usize::from(flow.credits) * taken(longest) + (more + Cells::UNREAD) * SLOT;
        let room = (CELLS_IN_ALL / size.max(1) as usize).min(CELLS_OF_LINK);
        let part = (room / SHARES).clamp(SHORTEST_PART, LONGEST_PART);
        let in_cell = (longest + TRAILER).max(FRAGMENT_HEADER + part + TRAILER);
        let ring = Layout::new(frames);
        let with_cells = ring.with_cells(in_cell - PREFIX, room);
        if with_cells.cells() < FEWEST_CELLS {
            return Rings { ring, longest, longest_in_cell: 0 };
        }
        Rings { ring: with_cells, longest, longest_in_cell: in_cell }
    }

    /// What goes in longer frames; nothing where there are no cells.
    pub(super) fn long(self) -> Option<Long> {
        let frame = self.longest_in_cell.checked_sub(TRAILER)?;
        Some(Long { beyond: NARROW as u64, whole: PREFIX + WHOLE.min(frame - FRAGMENT_HEADER), frame })
    }

    /// Bytes of both.
    pub(super) fn size(self) -> usize {
        self.cells_at() + self.ring.cells_size()
    }

    fn cells_at(self) -> usize {
        self.ring.size().next_multiple_of(2 * SLOT)
    }

    /// The ring and the cells in memory of [`Rings::size`] bytes.
    fn of(self, memory: &Exposed) -> [Exposed; 2] {
        let at = self.cells_at();
        [memory.slice(0..self.ring.size()), memory.slice(at..at + self.ring.cells_size())]
    }

    /// One end of a link: with this rank's memory and the peer's. `second`: the other end is the first.
    pub(super) fn end(self, own: &Exposed, theirs: &Exposed, second: bool) -> Result<End, RingError> {
        let ([incoming, cells], [outgoing, other_cells]) = (self.of(own), self.of(theirs));
        let ahead = Ahead::new(self.ring, cells.clone(), second);
        let all = if second { [other_cells, cells] } else { [cells, other_cells] };
        Ok(End {
            incoming: Consumer::with_cells(incoming, all.clone(), self.ring)?,
            cells: Cells::new(self.ring, second),
            outgoing: Producer::with_cells(outgoing, all, self.ring)?,
            rings: self,
            ahead,
            ways: [Ways::new(Ticks::new()); 2],
            open: Open::Slots,
        })
    }
}

/// Where the frame lies that is being written.
#[derive(Clone, Copy, PartialEq)]
enum Open {
    Slots,
    /// In a cell with so many of its bytes; `read`: which this end has read last.
    Cell {
        spot: Spot,
        len: usize,
        read: bool,
    },
}

/// One end of a link's rings.
pub(super) struct End {
    pub(super) incoming: Consumer,
    pub(super) cells: Cells,
    outgoing: Producer,
    rings: Rings,
    ahead: Ahead,
    /// Of slots, and of cells that were not read last.
    ways: [Ways; 2],
    open: Open,
}

/// How much of the memory of this end's first cells has pages. The system gives each when it is first used, which takes 3 µs, longer than what it is
/// used for: so it is asked for as many as there are at once, which few messages have to wait for. Some of these cells the peer may have meanwhile,
/// who writes them: they are left out.
struct Ahead {
    memory: Exposed,
    /// The first of these cells, and the bytes from each to the next one.
    first: usize,
    stride: usize,
    touched: usize,
}

impl Ahead {
    fn new(ring: Layout, memory: Exposed, second: bool) -> Ahead {
        let stride = memory.len().checked_div(ring.cells()).unwrap_or(0);
        Ahead { memory, first: if second { ring.cells() } else { 0 }, stride, touched: 0 }
    }

    /// A cell is about to be used.
    #[inline]
    fn go(&mut self, cell: usize, cells: &Cells) {
        let after = (cell + 1).saturating_sub(self.first) * self.stride;
        if after > self.touched && after <= self.memory.len() {
            self.touch(after, cells);
        }
    }

    #[cold]
    fn touch(&mut self, after: usize, cells: &Cells) {
        let end = after.max(self.touched + self.touched.clamp(LEAST_AHEAD, MOST_AHEAD)).min(self.memory.len());
        for at in (self.touched..end).step_by(PAGE) {
            if cells.has(self.first + at / self.stride) {
                self.memory.atomic_u32(at).store(0, Ordering::Relaxed);
            }
        }
        self.touched = end;
    }
}

impl End {
    /// Room for a frame of `len` bytes, `header` of which are its header, of a message of `message` bytes; `None` if there is none now.
    /// `all_taken`: the peer has taken all frames that need a credit. Once it is published, [`End::published`] is told.
    #[inline(always)]
    pub(super) fn reserve(
        &mut self,
        len: usize,
        header: usize,
        message: usize,
        all_taken: bool,
    ) -> Result<Option<Reservation<'_>>, RingError> {
        let has_read = self.cells.has_read();
        let in_cell = len >= LEAST_IN_CELL && (message > NARROW || has_read || all_taken);
        let header = header.min(INLINE);
        let spot = if in_cell { self.cells.next(len - header) } else { None };
        let Some(spot) = spot else {
            if len > self.rings.longest {
                return Ok(None);
            }
            self.open = Open::Slots;
            let Some(mut room) = self.outgoing.reserve(len)? else { return Ok(None) };
            room.past_caches(self.ways[0].begin(len));
            return Ok(Some(room));
        };
        let Some(mut room) = self.outgoing.reserve_in(spot, len, header)? else { return Ok(None) };
        // Of what follows other messages, the reader has others to read.
        room.may_open(has_read || all_taken);
        self.open = Open::Cell { spot, len: len - header, read: has_read };
        if !has_read {
            self.ahead.go(spot.cell(), &self.cells);
            room.past_caches(self.ways[1].begin(len));
        }
        Ok(Some(room))
    }

    /// The frame for which there was room is published.
    #[inline]
    pub(super) fn published(&mut self) {
        match self.open {
            Open::Slots => self.ways[0].end(),
            Open::Cell { spot, len, read } => {
                if !read {
                    self.ways[1].end();
                }
                self.cells.gone(spot, len);
            }
        }
    }

    /// Sends a frame of these pieces, the first of which is its header, with all of a message of `message` bytes; false if there is no room for
    /// it now. `all_taken` as there; it `opens`: the peer may read it while it is written.
    #[inline]
    pub(super) fn try_push(
        &mut self,
        pieces: &[&[u8]],
        message: usize,
        all_taken: bool,
        opens: bool,
    ) -> Result<bool, RingError> {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        // What is short takes up to a tenth longer by way of a reservation.
        if len < LEAST_IN_CELL || len < LEAST && !all_taken && !self.cells.has_read() {
            return self.outgoing.try_push(pieces);
        }
        let header = pieces.first().map_or(0, |header| header.len());
        let Some(mut room) = self.reserve(len, header, message, all_taken)? else { return Ok(false) };
        for (number, piece) in pieces.iter().enumerate() {
            room.write(piece);
            if opens && number == 0 {
                room.open();
            }
        }
        room.publish();
        self.published();
        Ok(true)
    }

    /// Whether a message of so many bytes has to wait for a cell. In slots it would take as long as some others.
    #[inline]
    pub(super) fn is_short_of_cells(&mut self, message: usize) -> Result<bool, RingError> {
        if message <= NARROW || self.rings.longest_in_cell == 0 || self.cells.next(0).is_some() {
            return Ok(false);
        }
        // What the peer has given back may be the next that has come.
        while let Some(frame) = self.incoming.peek()?
            && frame.is_aside()
        {
            self.cells.take_back(frame)?;
        }
        Ok(self.cells.next(0).is_none())
    }

    /// Gives cells back if this end has too many of them: true if the peer is to look.
    #[inline]
    pub(super) fn give_back(&mut self) -> Result<bool, RingError> {
        Ok(self.cells.has_too_many() && self.cells.give_back(&mut self.outgoing)?)
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
    const HEADER: usize = 16;

    fn ends(rings: Rings) -> [End; 2] {
        let [one, other] = [(); 2].map(|()| Region::alloc(rings.size()).unwrap().expose().unwrap());
        [rings.end(&one, &other, false).unwrap(), rings.end(&other, &one, true).unwrap()]
    }

    impl End {
        /// The next frame, if there is one.
        fn take(&mut self) -> Option<Vec<u8>> {
            loop {
                let frame = self.incoming.peek().unwrap()?;
                if frame.is_aside() {
                    self.cells.take_back(frame).unwrap();
                    continue;
                }
                let bytes = frame.to_vec();
                self.cells.release(frame).unwrap();
                return Some(bytes);
            }
        }

        fn send(&mut self, bytes: &[u8], message: usize, all_taken: bool) -> bool {
            let room = self.reserve(bytes.len(), HEADER.min(bytes.len()), message, all_taken).unwrap();
            let Some(mut room) = room else { return false };
            room.write(bytes);
            room.publish();
            self.published();
            true
        }
    }

    #[test]
    fn all_frames_that_credits_allow_have_room() {
        for size in [1, 2, 3, 8, 64, 1024] {
            for (frame, credits) in [(256, 16), (256, 3000), (8184, 60), (32_768, 60), (65_536, 16), (65_536, 64)] {
                let flow = Flow { frame, credits, ..Flow::default() };
                let [mut one, mut other] = ends(Rings::new(size, &flow, MORE));
                // From anywhere in the rings; of short messages, of long ones as long as there are cells, and in turn.
                for round in 0..30 {
                    let is_long = |number: usize| [false, true, number.is_multiple_of(2)][round % 3];
                    for number in 0..usize::from(credits) {
                        let message = if is_long(number) { NARROW + 1 } else { 1 };
                        let bytes = vec![number as u8; frame as usize];
                        assert!(one.send(&bytes, message, number == 0), "{size} ranks, {flow:?}: frame {number}");
                        if number < MORE {
                            // One that needs no credit.
                            let sent = one.try_push(&[&[1; 16]], 0, false, true).unwrap();
                            assert!(sent, "{size} ranks, {flow:?}: {number}");
                        }
                    }
                    for number in 0..usize::from(credits) {
                        let came = other.take().expect("it was sent");
                        assert_eq!((came.len(), came[0]), (frame as usize, number as u8));
                        if number < MORE {
                            assert_eq!(other.take().as_deref(), Some(&[1; 16][..]));
                        }
                        other.give_back().unwrap();
                    }
                    assert_eq!(other.take(), None);
                    assert_eq!(one.take(), None);
                }
            }
        }
    }

    #[test]
    fn there_are_cells_where_there_is_room_for_some() {
        let rings = |ranks| Rings::new(ranks, &Flow::default(), MORE);
        let cells = |ranks| rings(ranks).ring.cells();
        assert_eq!([2, 4, 8, 16, 32, 64, 1024].map(cells), [7, 7, 7, 7, 3, 0, 0]);
        assert!(rings(64).long().is_none() && rings(64).size() < 524 << 10);
        for (ranks, part) in [(2, LONGEST_PART), (8, 128 << 10), (16, SHORTEST_PART), (32, SHORTEST_PART)] {
            let long = rings(ranks).long().unwrap();
            assert_eq!((long.whole, long.frame), (PREFIX + part.min(WHOLE), FRAGMENT_HEADER + part));
            assert!(rings(ranks).size() < (2 << 20) + (524 << 10));
        }
    }

    #[test]
    fn pages_that_are_asked_for_ahead_leave_alone_what_the_peer_wrote() {
        let [mut one, mut other] = ends(Rings::new(2, &Flow::default(), MORE));
        let frame = |number: usize| vec![number as u8 + 1; 10_000];
        let mut sent = 0;
        let mut send_all = |other: &mut End| {
            while other.send(&frame(sent), NARROW + 1, false) {
                sent += 1;
            }
            sent
        };
        send_all(&mut other);
        // `one` gives some back that it never used, and `other` writes these.
        let came = (0..).take_while(|_| !one.give_back().unwrap() && one.take().is_some()).count();
        assert_eq!(other.take(), None);
        let sent = send_all(&mut other);
        assert_eq!(one.ahead.touched, 0);
        while one.send(&[7; 10_000], NARROW + 1, false) {}
        assert!(one.ahead.touched > 0);
        for number in came..sent {
            assert!(one.take() == Some(frame(number)), "frame {number}");
        }
    }

    #[test]
    fn what_is_longer_than_a_frame_waits_for_a_cell() {
        let rings = Rings::new(32, &Flow::default(), MORE);
        let [mut one, mut other] = ends(rings);
        let bytes = vec![7; rings.long().unwrap().frame];
        let sent = (0..10).take_while(|_| one.send(&bytes, NARROW + 1, false)).count();
        assert_eq!(sent, rings.ring.cells());
        while other.take().is_some() {}
        assert!(other.give_back().unwrap());
        assert!(!one.send(&bytes, NARROW + 1, false), "it has not heard of it");
        assert_eq!(one.take(), None);
        assert!(one.send(&bytes, NARROW + 1, false));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn frames_come_in_the_order_in_which_they_were_sent(
            size in prop_oneof![Just(2_u32), Just(16), Just(32), Just(64)],
            steps in proptest::collection::vec((0..2_usize, 0..3_u8, any::<(bool, bool)>(), 1..8184_usize), 0..2000),
        ) {
            let rings = Rings::new(size, &Flow { frame: 1024, credits: 16, ..Flow::default() }, MORE);
            let longest = rings.long().map_or(1024, |long| long.frame.min(8184));
            let mut ends = ends(rings);
            let mut under_way = [VecDeque::new(), VecDeque::new()];
            for (number, (end, step, (is_long, opens), len)) in steps.into_iter().enumerate() {
                if step > 0 {
                    let longest = if is_long { longest } else { 1024 };
                    let bytes: Vec<u8> = (0..1 + len % longest).map(|at| (at * 31 + number) as u8).collect();
                    let (header, body) = bytes.split_at(HEADER.min(bytes.len()));
                    let message = if is_long { NARROW + 1 } else { 1 };
                    let all_taken = under_way[end].is_empty();
                    let sent = ends[end].try_push(&[header, body], message, all_taken, opens).unwrap();
                    prop_assert!(sent || !under_way.iter().all(VecDeque::is_empty), "there is room in empty rings");
                    under_way[end].extend(sent.then_some(bytes));
                } else {
                    prop_assert_eq!(ends[end].take(), under_way[1 - end].pop_front());
                    ends[end].give_back().unwrap();
                }
            }
            for (end, sent) in [(1, 0), (0, 1)] {
                while let Some(bytes) = under_way[sent].pop_front() {
                    prop_assert_eq!(ends[end].take(), Some(bytes));
                }
                prop_assert_eq!(ends[end].take(), None);
            }
        }
    }
}
