//! The ring under loom: every order of both sides' steps that the memory model allows.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::algorithm::{Place, Reader, Words, Writer};
use super::{BETWEEN_CELLS, HEAD, Layout, Spot};
use crate::shared::LINE;

/// Shared memory as loom sees it: heads and position are its atomics, and it finds any access to a slot's bytes that
/// races with another.
struct Model {
    heads: Vec<AtomicU64>,
    /// How much of an open frame has come, by slot.
    come: Vec<AtomicU64>,
    /// Of the slots, and of the cells.
    slots: Vec<UnsafeCell<[u8; LINE]>>,
    cells: Arc<Vec<UnsafeCell<[u8; LINE]>>>,
    read: AtomicU64,
}

impl Model {
    fn new(layout: Layout) -> Arc<Model> {
        let [ring, _] = Model::pair(layout);
        ring
    }

    /// The rings of both directions, with the same cells.
    fn pair(layout: Layout) -> [Arc<Model>; 2] {
        let lines = |count: usize| (0..count).map(|_| UnsafeCell::new([0; LINE])).collect();
        let words = || (0..layout.slots).map(|_| AtomicU64::new(0)).collect();
        let cells = Arc::new(lines(2 * layout.cells_size() / LINE));
        [(); 2].map(|()| {
            let (heads, come, slots) = (words(), words(), lines(layout.slots));
            Arc::new(Model { heads, come, slots, cells: cells.clone(), read: AtomicU64::new(0) })
        })
    }

    fn line(&self, at: usize) -> &UnsafeCell<[u8; LINE]> {
        self.slots.get(at).unwrap_or_else(|| &self.cells[at - self.slots.len()])
    }

    fn slot(&self, position: u64) -> usize {
        position as usize % self.heads.len()
    }
}

/// Cuts a run of bytes at the borders of slots: slot, offset in it, range of the run.
fn cut(at: usize, len: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let here = at + done;
        let take = (len - done).min(LINE - here % LINE);
        let range = done..done + take;
        done += take;
        (take > 0).then_some((here / LINE, here % LINE, range))
    })
}

impl Words for Arc<Model> {
    fn head(&self, position: u64) -> u64 {
        self.heads[self.slot(position)].load(Ordering::Acquire)
    }

    fn set_head(&self, position: u64, head: u64) {
        self.heads[self.slot(position)].store(head, Ordering::Release);
    }

    fn clear_head(&self, position: u64) {
        self.heads[self.slot(position)].store(0, Ordering::Relaxed);
    }

    fn come(&self, position: u64) -> u64 {
        self.come[self.slot(position)].load(Ordering::Acquire)
    }

    fn set_come(&self, position: u64, bytes: u64) {
        self.come[self.slot(position)].store(bytes, Ordering::Release);
    }

    fn read_position(&self) -> u64 {
        self.read.load(Ordering::Acquire)
    }

    fn set_read_position(&self, position: u64) {
        self.read.store(position, Ordering::Release);
    }

    fn write(&self, at: usize, from: &[u8], _past: bool) {
        for (slot, offset, range) in cut(at, from.len()) {
            let piece = &from[range];
            // SAFETY: loom panics if another access is under way.
            self.line(slot)
                .with_mut(|bytes| unsafe { (&mut *bytes)[offset..offset + piece.len()].copy_from_slice(piece) });
            if offset == 0 && slot < self.heads.len() {
                // Payload of a long frame lies where the head was.
                let mut head = [0; HEAD];
                let len = piece.len().min(HEAD);
                head[..len].copy_from_slice(&piece[..len]);
                self.heads[slot].store(u64::from_le_bytes(head), Ordering::Relaxed);
            }
        }
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        for (slot, offset, range) in cut(at, into.len()) {
            let piece = &mut into[range];
            // SAFETY: loom panics if a write is under way.
            self.line(slot).with(|bytes| unsafe { piece.copy_from_slice(&(&*bytes)[offset..offset + piece.len()]) });
        }
    }
}

/// Passes frames of these lengths through a ring of four slots, each filled with words that look like heads of the
/// second lap, and expects each to come out whole and in order.
fn pass(frames: &'static [usize]) {
    check(move || {
        let layout = Layout::new(0);
        let words = Model::new(layout);
        let mut writer = Writer::new(words.clone(), layout);
        let mut reader = Reader::new(words, layout);
        let producer = thread::spawn(move || {
            for (number, len) in frames.iter().enumerate() {
                let bytes = frame(number, *len);
                let place = loop {
                    match writer.reserve(*len, false).expect("the consumer is correct") {
                        Some(place) => break place,
                        None => thread::yield_now(),
                    }
                };
                writer.write(place, 0, &bytes, false);
                writer.publish(place, *len);
            }
        });
        for (number, len) in frames.iter().enumerate() {
            let (found, place) = next(&reader, false);
            assert_eq!(found, *len, "the length of frame {number}");
            let mut bytes = vec![0; found];
            reader.read(place, 0, &mut bytes);
            assert_eq!(bytes, frame(number, *len), "frame {number}");
            reader.advance(place);
        }
        assert!(matches!(reader.peek(false), Ok(None)), "there is no frame after the last");
        producer.join().unwrap();
    });
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // More switches between the two threads than this find nothing that fewer do not, and take minutes.
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn next(reader: &Reader<Arc<Model>>, open: bool) -> (usize, Place) {
    loop {
        match reader.peek(open).expect("the producer is correct") {
            Some(found) => break found,
            None => thread::yield_now(),
        }
    }
}

/// Bytes of a frame that are in its slot, and in all.
const HEADER: usize = 8;
const LEN: usize = HEADER + 2 * LINE;

/// Writes a frame in the first cell, in two steps if it is shown before.
fn write(writer: &mut Writer<Arc<Model>>, number: usize, open: bool) {
    let place = writer.reserve_in(Spot::new(0, 0), LEN, HEADER).unwrap().expect("no two frames are under way");
    let bytes = frame(number, LEN);
    let cut = if open { HEADER } else { 0 };
    writer.write(place, 0, &bytes[..cut], false);
    if open {
        writer.open(place, LEN);
    }
    let half = LEN - LINE;
    writer.write(place, cut, &bytes[cut..half], false);
    if open {
        writer.has_come(place, half);
    }
    writer.write(place, half, &bytes[half..], false);
    match open {
        true => writer.has_come(place, LEN),
        false => writer.publish(place, LEN),
    }
}

/// Reads the next frame; `open`: as much of it as has come, again and again.
fn read(reader: &mut Reader<Arc<Model>>, number: usize, open: bool) {
    let (len, place) = next(reader, open);
    assert_eq!((len, place.spot), (LEN, Some(Spot::new(0, 0))));
    let (mut bytes, mut come) = (vec![0; len], 0);
    while come < len {
        let end = reader.has_come(place, len);
        reader.read(place, come, &mut bytes[come..end]);
        if end == come {
            thread::yield_now();
        }
        come = end;
    }
    assert_eq!(bytes, frame(number, LEN), "frame {number}");
    reader.advance(place);
}

/// Two ends write frames in one cell in turn, each after it has read the other's.
fn to_and_fro(shown_open: bool, read_open: bool) {
    check(move || {
        let layout = Layout::new(0).with_cells(2 * LINE, 2 * LINE + BETWEEN_CELLS);
        let [one, other] = Model::pair(layout);
        let (mut writer, mut reader) = (Writer::new(one.clone(), layout), Reader::new(other.clone(), layout));
        let peer = thread::spawn(move || {
            let (mut writer, mut reader) = (Writer::new(other, layout), Reader::new(one, layout));
            read(&mut reader, 0, read_open);
            write(&mut writer, 1, shown_open);
            read(&mut reader, 2, read_open);
        });
        write(&mut writer, 0, shown_open);
        read(&mut reader, 1, read_open);
        write(&mut writer, 2, shown_open);
        peer.join().unwrap();
    });
}

fn frame(number: usize, len: usize) -> Vec<u8> {
    let head_of_second_lap = ((1u64 | 1 << 31) << 32).to_le_bytes();
    (0..len).map(|at| head_of_second_lap[at % 8] | if at % 8 == 0 { number as u8 } else { 0 }).collect()
}

#[test]
fn short_frames_around_the_ring() {
    pass(&[8, 1, 0, 8, 8, 2]);
}

#[test]
fn long_frames_leave_no_head_behind() {
    pass(&[120, 8, 120, 8]);
}

#[test]
fn a_long_frame_across_the_end() {
    pass(&[8, 8, 8, 100, 8]);
}

#[test]
fn a_cell_goes_to_and_fro() {
    to_and_fro(false, false);
}

#[test]
fn what_is_shown_before_it_is_written_is_read_as_it_comes_or_when_all_has() {
    to_and_fro(true, true);
    to_and_fro(true, false);
}
