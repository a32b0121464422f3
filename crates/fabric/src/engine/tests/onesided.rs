//! The rules of one-sided operations, one by one.

use std::sync::atomic::Ordering;

use fulmen_memory::Exposed;

use super::super::*;
use super::{carry, config, memory, outcome};

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
