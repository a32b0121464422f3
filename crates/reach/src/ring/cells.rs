//! Whose cells are whose.

use std::collections::VecDeque;
use std::fmt;

use super::{Frame, INLINE, LONGEST_CELL, Layout, MOST_CELLS, Producer, RingError};
use crate::shared::LINE;

/// Where a frame lies in a cell: which cell it is, counting those that the first end had at first and then those of the second, in the
/// lowest bits, and in the others the line in which it begins. (One word: what is read back at once as a whole must not be written in parts.)
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Spot(u32);

/// Bits that say which cell it is.
const CELL_BITS: u32 = (2 * MOST_CELLS).ilog2();

impl Spot {
    pub(super) const BITS: u32 = CELL_BITS + (LONGEST_CELL / LINE).ilog2();

    #[inline(always)]
    pub(super) fn new(cell: usize, line: usize) -> Spot {
        // Neither has more than these bits.
        Spot((line << CELL_BITS | cell) as u32)
    }

    #[inline(always)]
    pub(super) fn from_bits(bits: u32) -> Spot {
        Spot(bits)
    }

    #[inline(always)]
    pub(super) fn bits(self) -> u32 {
        self.0
    }

    #[inline(always)]
    fn line(self) -> usize {
        (self.0 >> CELL_BITS) as usize
    }

    /// Its first byte in the cell.
    #[inline(always)]
    pub(super) fn at(self) -> usize {
        self.line() * LINE
    }

    /// Which cell it is.
    #[inline(always)]
    #[must_use]
    pub fn cell(self) -> usize {
        (self.0 & ((1 << CELL_BITS) - 1)) as usize
    }
}

impl fmt::Debug for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of cell {}", self.line(), self.cell())
    }
}

/// The cells that one end of a pair of rings may write, of those that both rings share.
///
/// Each is one end's at any time, or on its way with a frame. An end writes first what it has read last: these lines are in its processor's
/// caches. It gives back what it has read more of than it writes, last what it has read last, and short frames take another place in a cell each
/// time, so that data that goes one way goes through all bytes of all cells in turn: what the other end is to write then is in nobody's
/// second-level cache any more.
#[derive(Debug)]
pub struct Cells {
    /// Those that it has read and not written since, the newest last.
    read: VecDeque<Spot>,
    /// All others, in the order in which they are to be written, and where.
    others: VecDeque<Spot>,
    /// By cell, the line behind what this end has last written there.
    behind: Box<[u32]>,
    /// Lines of a cell.
    lines: usize,
    /// By cell, whether it is one of either.
    owned: Box<[bool]>,
    /// How many it has at first.
    share: usize,
    /// With more than so many more it gives them back: fewer than the other end needs to have one.
    most_over: usize,
}

/// Lines between what is written in a cell and what is written there next: processors fetch ahead beyond what is read.
const APART: usize = 16;

/// Bytes that name a cell.
const NAME: usize = size_of::<u16>();

impl Cells {
    /// Frames that [give cells back](Cells::give_back) that may be unread, at most: room for so many slots more is to be had in each ring.
    pub const UNREAD: usize = 8;

    /// The cells that one end has at first: those of the first memory of [`Producer::with_cells`], or of the second.
    #[must_use]
    pub fn new(layout: Layout, second: bool) -> Cells {
        let share = layout.cells;
        let first = if second { share } else { 0 };
        let mut owned = vec![false; 2 * share].into_boxed_slice();
        owned[first..first + share].fill(true);
        let others = (first..first + share).map(|cell| Spot::new(cell, 0)).collect();
        let read = VecDeque::with_capacity(2 * share);
        let (behind, lines) = (vec![0; 2 * share].into_boxed_slice(), layout.cell / LINE);
        Cells { read, others, behind, lines, owned, share, most_over: share / 2 }
    }

    /// Where `len` bytes are to be written next, if this end has a cell.
    #[inline(always)]
    #[must_use]
    pub fn next(&self, len: usize) -> Option<Spot> {
        let spot = *self.read.back().or_else(|| self.others.front())?;
        let fits = spot.line() + len.div_ceil(LINE) <= self.lines;
        Some(if fits { spot } else { Spot::new(spot.cell(), 0) })
    }

    /// Whether that is what this end has read, and not written since.
    #[inline(always)]
    #[must_use]
    pub fn has_read(&self) -> bool {
        !self.read.is_empty()
    }

    /// A frame of which `len` bytes are in the [next](Cells::next) cell was published: it is the other end's.
    #[inline(always)]
    pub fn gone(&mut self, spot: Spot, len: usize) {
        let taken = self.read.pop_back().or_else(|| self.others.pop_front());
        debug_assert_eq!(taken.map(Spot::cell), Some(spot.cell()));
        self.owned[spot.cell()] = false;
        // Some thousands at most.
        self.behind[spot.cell()] = (spot.line() + len.div_ceil(LINE) + APART) as u32;
    }

    /// Frees a frame's room in its ring; the cell in which it lay is this end's.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] if it was so before.
    #[inline(always)]
    pub fn release(&mut self, frame: Frame<'_>) -> Result<(), RingError> {
        let spot = frame.spot();
        frame.release();
        let Some(spot) = spot else { return Ok(()) };
        self.own(spot.cell())?;
        self.read.push_back(spot);
        Ok(())
    }

    /// Whether this end has so many cells that it is to [give some back](Cells::give_back).
    #[inline(always)]
    #[must_use]
    pub fn has_too_many(&self) -> bool {
        self.read.len() + self.others.len() > self.share + self.most_over
    }

    /// Whether this end has that cell, and no frame is in it.
    #[must_use]
    pub fn has(&self, cell: usize) -> bool {
        self.owned.get(cell).is_some_and(|owned| *owned)
    }

    /// Gives some back, those that it has not read before those that it has, and of these the oldest first; false if the ring has no room to say
    /// so, and they stay this end's.
    ///
    /// # Errors
    /// As [`Producer::try_push`].
    #[cold]
    pub fn give_back(&mut self, producer: &mut Producer) -> Result<bool, RingError> {
        let over = (self.read.len() + self.others.len()).saturating_sub(self.share);
        let count = over.min(INLINE / NAME);
        let others = count.min(self.others.len());
        let mut names = [0; INLINE];
        for (name, spot) in names.chunks_exact_mut(NAME).zip(self.others.iter().chain(&self.read).take(count)) {
            // There are no more than 128.
            name.copy_from_slice(&(spot.cell() as u16).to_le_bytes());
        }
        if !producer.try_push_aside(&names[..count * NAME])? {
            return Ok(false);
        }
        for spot in self.others.drain(..others).chain(self.read.drain(..count - others)) {
            self.owned[spot.cell()] = false;
        }
        Ok(true)
    }

    /// Takes the cells back that the other end gives back in a frame that is [aside](Frame::is_aside), and frees that frame's room.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] if they are none, or this end's.
    #[cold]
    pub fn take_back(&mut self, frame: Frame<'_>) -> Result<(), RingError> {
        let mut names = [0; INLINE];
        let len = frame.len();
        if len == 0 || len > INLINE || !len.is_multiple_of(NAME) {
            return Err(RingError::Corrupt { what: "what gives cells back names none, or half of one" });
        }
        frame.read(0, &mut names[..len]);
        frame.release();
        for name in names[..len].chunks_exact(NAME) {
            let cell = usize::from(u16::from_le_bytes([name[0], name[1]]));
            self.own(cell)?;
            self.others.push_back(Spot::new(cell, self.behind[cell] as usize));
        }
        Ok(())
    }

    #[inline(always)]
    fn own(&mut self, cell: usize) -> Result<(), RingError> {
        match self.owned.get_mut(cell) {
            Some(owned) if !*owned => {
                *owned = true;
                Ok(())
            }
            _ => Err(RingError::Corrupt { what: "it handed over a cell that it did not have" }),
        }
    }
}

#[cfg(test)]
mod tests {
    use fulmen_memory::{Exposed, Region};
    use proptest::prelude::*;

    use super::*;
    use crate::ring::{BETWEEN_CELLS, Consumer, STEP};

    struct End {
        producer: Producer,
        consumer: Consumer,
        cells: Cells,
        /// What it sent and the other end has not read.
        sent: VecDeque<Vec<u8>>,
    }

    struct Pair {
        ends: [End; 2],
        rings: [Exposed; 2],
        layout: Layout,
    }

    /// Two ends with so many cells each at first, for so many bytes.
    fn pair(each: usize, bytes: usize) -> Pair {
        let layout = Layout::new(8 << 10).with_cells(bytes, each * (bytes.next_multiple_of(LINE) + BETWEEN_CELLS));
        assert_eq!(layout.cells(), each);
        let alloc = |len| Region::alloc(len).unwrap().expose().unwrap();
        let rings = [(); 2].map(|()| alloc(layout.size()));
        let cells = [(); 2].map(|()| alloc(layout.cells_size()));
        let ends = [0, 1].map(|end: usize| End {
            producer: Producer::with_cells(rings[end].clone(), cells.clone(), layout).unwrap(),
            consumer: Consumer::with_cells(rings[1 - end].clone(), cells.clone(), layout).unwrap(),
            cells: Cells::new(layout, end == 1),
            sent: VecDeque::new(),
        });
        Pair { ends, rings, layout }
    }

    impl End {
        /// Sends a frame of which so many bytes are in its slot, if it has a cell; shows it `open`, if it may. Where it lies.
        fn send(&mut self, bytes: &[u8], header: usize, open: bool) -> Option<Spot> {
            let len = bytes.len() - header;
            let spot = self.cells.next(len)?;
            let mut room = self.producer.reserve_in(spot, bytes.len(), header).unwrap()?;
            room.write(&bytes[..header]);
            room.may_open(open);
            room.open();
            let (one, other) = bytes[header..].split_at(len / 3);
            let memory = Region::alloc(one.len().max(1)).unwrap().expose().unwrap().slice(0..one.len());
            memory.write(0, one);
            room.copy_from(&memory);
            room.write(other);
            room.publish();
            self.cells.gone(spot, len);
            self.sent.push_back(bytes.to_vec());
            Some(spot)
        }

        /// The next frame, if there is one. Takes cells back before it.
        fn take(&mut self) -> Option<Vec<u8>> {
            loop {
                let frame = self.consumer.peek_open().unwrap()?;
                if frame.is_aside() {
                    self.cells.take_back(frame).unwrap();
                    continue;
                }
                assert_eq!(frame.come(0), frame.len());
                let bytes = frame.to_vec();
                self.cells.release(frame).unwrap();
                return Some(bytes);
            }
        }

        fn give_back(&mut self) {
            if self.cells.has_too_many() {
                assert!(self.cells.give_back(&mut self.producer).unwrap(), "there is room for all that may be unread");
            }
        }

        fn count(&self) -> usize {
            let owned = self.cells.owned.iter().filter(|owned| **owned).count();
            assert_eq!(owned, self.cells.read.len() + self.cells.others.len());
            owned
        }
    }

    fn bytes(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + at / 251 + seed) as u8).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_cell_is_one_ends_and_every_frame_comes_as_it_was_sent(
            each in 1..=6_usize,
            steps in prop::collection::vec((0..2_usize, 0..3_u8, 0..3000_usize, 0..=INLINE, any::<bool>()), 1..300),
        ) {
            let mut pair = pair(each, 3000);
            for (number, (end, step, len, header, open)) in steps.into_iter().enumerate() {
                let [one, other] = &mut pair.ends;
                let (this, that) = if end == 0 { (one, other) } else { (other, one) };
                if step == 0 {
                    let has_one = this.cells.next(len).is_some();
                    prop_assert_eq!(this.send(&bytes(header + len, number), header, open).is_some(), has_one);
                } else {
                    prop_assert_eq!(this.take(), that.sent.pop_front());
                    this.give_back();
                }
                let both = (0..2 * each).filter(|cell| pair.ends.iter().all(|end| end.cells.owned[*cell])).count();
                prop_assert_eq!(both, 0);
            }
            // Whoever reads all has no more than its due, and nothing is lost.
            for _ in 0..3 {
                for end in [0, 1] {
                    while let Some(came) = pair.ends[end].take() {
                        prop_assert_eq!(Some(came), pair.ends[1 - end].sent.pop_front());
                    }
                    pair.ends[end].give_back();
                }
            }
            prop_assert_eq!(pair.ends.iter().map(End::count).sum::<usize>(), 2 * each);
            prop_assert!(pair.ends.iter().all(|end| !end.cells.has_too_many() && end.cells.next(0).is_some()));
        }
    }

    /// Two ends with four cells each, three frames having gone one way.
    fn after_three() -> Pair {
        let mut pair = pair(4, 4096);
        for number in 0..3 {
            assert!(pair.ends[0].send(&bytes(500, number), 16, false).is_some());
            assert_eq!(pair.ends[1].take(), pair.ends[0].sent.pop_front());
        }
        pair
    }

    #[test]
    fn what_is_asked_and_answered_lies_in_the_same_lines() {
        let mut pair = after_three();
        let first = pair.ends[0].send(&bytes(500, 3), 16, false).unwrap();
        for number in 0..10 {
            let [one, other] = &mut pair.ends;
            let (asks, answers) = if number % 2 == 0 { (one, other) } else { (other, one) };
            assert_eq!(answers.take(), asks.sent.pop_front());
            assert!(answers.cells.has_read());
            assert_eq!(answers.send(&bytes(700 - number, number), 16, false), Some(first));
        }
    }

    #[test]
    fn what_was_read_last_is_given_back_last() {
        let mut pair = after_three();
        assert!(pair.ends[1].cells.has_too_many());
        pair.ends[1].give_back();
        assert_eq!((pair.ends[1].cells.read.len(), pair.ends[1].count()), (3, 4));
    }

    #[test]
    fn what_goes_one_way_goes_through_all_bytes_of_the_cells() {
        const EACH: usize = 4;
        let mut pair = pair(EACH, 8 << 10);
        let mut spots = std::collections::HashSet::new();
        for number in 0..200 {
            let sent = bytes(1000, number);
            spots.insert(pair.ends[0].send(&sent, 16, false).expect("cells come back").bits());
            assert_eq!(pair.ends[1].take(), Some(sent));
            pair.ends[1].give_back();
            while pair.ends[0].take().is_some() {}
        }
        // Places of a kilobyte and more behind one another, in what it had at first and some of the other end's.
        assert!(spots.len() >= EACH * 4, "{spots:?}");
    }

    #[test]
    fn frames_are_read_while_they_are_written() {
        let mut pair = pair(1, 3 * STEP);
        let sent = bytes(16 + 3 * STEP, 1);
        let [one, other] = &mut pair.ends;
        let spot = one.cells.next(3 * STEP).unwrap();
        let mut room = one.producer.reserve_in(spot, sent.len(), 16).unwrap().unwrap();
        room.write(&sent[..16]);
        room.open();
        assert!(other.consumer.peek_open().unwrap().is_none(), "it may not");
        room.may_open(true);
        room.open();
        assert!(other.consumer.peek().unwrap().is_none(), "all of it has not come");
        let mut come = 16;
        for step in 0..3 {
            let frame = other.consumer.peek_open().unwrap().unwrap();
            assert_eq!((frame.len(), frame.come(0), frame.come(come)), (sent.len(), come, come));
            room.write(&sent[come..come + STEP]);
            let mut read = vec![0; STEP];
            let frame = other.consumer.peek_open().unwrap().unwrap();
            assert_eq!(frame.come(come), come + STEP);
            frame.read(come, &mut read);
            assert!(read == sent[come..come + STEP], "step {step}");
            come += STEP;
        }
        room.publish();
        one.cells.gone(spot, 3 * STEP);
        assert!(other.take().as_ref() == Some(&sent));
        // Not if it is short, or has no room for the word.
        for (len, header) in [(STEP, 16), (2 * STEP, INLINE), (2 * STEP, INLINE - 7)] {
            assert!(other.send(&bytes(header + len, 2), header, true).is_some());
            one.consumer.peek().unwrap().expect("it was shown when all of it had come");
            one.take().unwrap();
            std::mem::swap(one, other);
        }
    }

    #[test]
    fn long_frames_that_are_shown_come_as_they_were_sent() {
        let mut pair = pair(1, 40 * STEP);
        for len in [STEP + 1, 3 * STEP - 1, 9 * STEP + 7, 33 * STEP, 40 * STEP] {
            let [one, other] = &mut pair.ends;
            assert!(one.send(&bytes(16 + len, len), 16, true).is_some());
            assert!(other.take() == one.sent.pop_front(), "{len} bytes");
            pair.ends.swap(0, 1);
        }
    }

    #[test]
    fn cells_that_are_not_the_other_ends_are_refused() {
        let head = |cell: u64, line: u64, len: u64, header: u64| {
            1u64 << 63 | 1 << 31 | (line << 7 | cell) << 32 | header << 57 | len
        };
        let slot = crate::ring::SLOTS_AT;
        let corrupt = |word: u64| {
            let mut pair = pair(2, 1024);
            pair.rings[0].write(slot, &word.to_ne_bytes());
            let other = &mut pair.ends[1];
            match other.consumer.peek_open() {
                Ok(Some(frame)) if frame.is_aside() => other.cells.take_back(frame).err(),
                Ok(Some(frame)) => other.cells.release(frame).err(),
                Ok(None) => None,
                Err(error) => Some(error),
            }
        };
        assert_eq!(corrupt(head(0, 0, 1024 + 16, 16)), None);
        assert_eq!(corrupt(head(1, 15, 64 + 16, 16)), None);
        // The end's own, none, too long, behind the end of a cell, and a header that is longer than a slot.
        for (cell, line, len, header) in [
            (2, 0, 100, 16),
            (4, 0, 100, 16),
            (127, 0, 0, 0),
            (0, 0, 1041, 16),
            (0, 15, 81, 16),
            (0, 4095, 17, 16),
            (0, 0, 100, 57),
        ] {
            let error = corrupt(head(cell, line, len, header));
            assert!(matches!(error, Some(RingError::Corrupt { .. })), "{cell} {line} {len} {header}: {error:?}");
        }
        // What gives cells back: an odd number of bytes, more than a line, a cell of its own.
        for len in [0, 1, 3, 57, 100] {
            assert!(corrupt(1 << 63 | 1 << 30 | len).is_some(), "{len}");
        }
        let mut pair = pair(2, 1024);
        assert!(pair.ends[0].producer.try_push_aside(&2u16.to_le_bytes()).unwrap());
        let other = &mut pair.ends[1];
        let frame = other.consumer.peek().unwrap().unwrap();
        assert!(frame.is_aside() && other.cells.take_back(frame).is_err());
    }

    #[test]
    fn what_a_frame_says_of_itself_is_no_more_than_it_has() {
        let mut pair = pair(1, 3 * STEP);
        let sent = bytes(16 + 2 * STEP, 1);
        assert!(pair.ends[0].send(&sent, 16, true).is_some());
        pair.rings[0].write(crate::ring::SLOTS_AT + crate::ring::COME_AT, &u64::MAX.to_ne_bytes());
        let frame = pair.ends[1].consumer.peek_open().unwrap().unwrap();
        assert_eq!(frame.come(0), sent.len());
        assert!(pair.ends[1].take() == Some(sent));
    }

    #[test]
    fn there_is_room_for_all_frames_that_give_cells_back() {
        for cells in 1..=MOST_CELLS {
            let (least, all) = (cells / 2 + 1, 2 * cells);
            assert!(all.div_ceil(least.min(INLINE / NAME)) <= Cells::UNREAD, "{cells}");
        }
        let layout = Layout::new(0).with_cells(1024, 1 << 30);
        assert_eq!((layout.cells(), layout.cells_size()), (MOST_CELLS, MOST_CELLS * (1024 + BETWEEN_CELLS)));
        assert_eq!(Layout::new(0).with_cells(1024, 1024).cells(), 0);
        let Pair { layout, .. } = pair(1, LONGEST_CELL);
        assert_eq!(layout.cells(), 1);
    }
}
