//! The ring under loom: every order of both sides' steps that the memory model allows.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::algorithm::{Reader, Words, Writer};
use super::{HEAD, Layout};
use crate::shared::LINE;

/// Shared memory as loom sees it: heads and position are its atomics, and it finds any access to a slot's bytes that
/// races with another.
struct Model {
    heads: Vec<AtomicU64>,
    /// Of the slots, and then of the cell.
    bytes: Vec<UnsafeCell<[u8; LINE]>>,
    read: AtomicU64,
}

impl Model {
    fn new(layout: Layout) -> Arc<Model> {
        Arc::new(Model {
            heads: (0..layout.slots).map(|_| AtomicU64::new(0)).collect(),
            bytes: (0..layout.slots + layout.cell / LINE).map(|_| UnsafeCell::new([0; LINE])).collect(),
            read: AtomicU64::new(0),
        })
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
            self.bytes[slot]
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
            self.bytes[slot].with(|bytes| unsafe { piece.copy_from_slice(&(&*bytes)[offset..offset + piece.len()]) });
        }
    }
}

/// Passes frames of these lengths through a ring of four slots, each filled with words that look like heads of the
/// second lap, and expects each to come out whole and in order. Those longer than all slots go in the cell, once the consumer has said
/// elsewhere that it read all before. Behind each is a gap of so many slots.
fn pass_with(gap: usize, frames: &'static [usize]) {
    let mut model = loom::model::Builder::new();
    // More switches between the two threads than this find nothing that fewer do not, and take minutes.
    model.preemption_bound = Some(3);
    model.check(move || {
        let layout = Layout { cell: 2 * LINE, gap, ..Layout::new(0) };
        let words = Model::new(layout);
        let said = Arc::new(AtomicU64::new(0));
        let heard = said.clone();
        let mut writer = Writer::new(words.clone(), layout);
        let mut reader = Reader::new(words, layout);
        let producer = thread::spawn(move || {
            for (number, len) in frames.iter().enumerate() {
                let bytes = frame(number, *len);
                let in_cell = *len > layout.max_frame();
                while in_cell && heard.load(Ordering::Acquire) < number as u64 {
                    thread::yield_now();
                }
                let place = loop {
                    let place = if in_cell { writer.reserve_cell(*len) } else { writer.reserve(*len) };
                    match place.expect("the consumer is correct") {
                        Some(place) => break place,
                        None => thread::yield_now(),
                    }
                };
                writer.write(place, 0, &bytes, false);
                writer.publish(place, *len, gap > 0);
            }
        });
        for (number, len) in frames.iter().enumerate() {
            let (found, place) = loop {
                match reader.peek().expect("the producer is correct") {
                    Some(found) => break found,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(found, *len, "the length of frame {number}");
            let mut bytes = vec![0; found];
            reader.read(place, 0, &mut bytes);
            assert_eq!(bytes, frame(number, *len), "frame {number}");
            reader.advance(place);
            said.store(number as u64 + 1, Ordering::Release);
        }
        assert!(matches!(reader.peek(), Ok(None)), "there is no frame after the last");
        producer.join().unwrap();
    });
}

fn pass(frames: &'static [usize]) {
    pass_with(0, frames);
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
fn frames_in_the_cell_between_others() {
    pass(&[130, 8, 130, 130]);
}

#[test]
fn a_frame_in_the_cell_behind_a_long_one() {
    pass(&[120, 130, 8, 130]);
}

#[test]
fn gaps_behind_frames() {
    pass_with(1, &[8, 100, 8, 100]);
    pass_with(2, &[100, 8, 8, 100]);
}
