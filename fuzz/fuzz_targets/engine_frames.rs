//! Frames that no correct peer sends, into a link with operations under way and memory exported.
//!
//! Whatever comes is taken or ends the link with an error: nothing panics, no byte is written outside of the memory that
//! was given, and when the link is severed every operation has an outcome.
//!
//! Keys are random, so that an input names them by [`KEYS`]; sequence numbers and credits are set right most of the time,
//! so that the rest of a frame is looked at.
#![no_main]

use std::task::Poll;

use fulmen_fabric::Rights;
use fulmen_fabric::engine::{
    At, Atomic, Cancel, Config, Counter, Exports, Into, Landing, Lent, Link, Long, OpError, OpId, Part, Place, Posting,
    Rendezvous, Request, Source, Target,
};
use fulmen_fuzz::{Guarded, Input, with_memory};
use libfuzzer_sys::fuzz_target;

/// How inputs name the exported memories.
const KEYS: [[u8; 8]; 3] = [*b"readable", *b"writable", *b"allright"];
/// The kind of the frames that take no credit.
const CREDIT: u8 = 6;

/// A link and everything that was given to it.
struct Rig<'a> {
    link: Link,
    memory: &'a Guarded,
    keys: [u64; 3],
    ops: Vec<OpId>,
    lent: Vec<u8>,
    /// The operation that has the lent bytes.
    borrower: Option<OpId>,
    /// The sequence number that is due.
    next: u32,
    /// Frames that went out and whose credits did not come back.
    out: u16,
}

fuzz_target!(|data: &[u8]| with_memory!(&[1024, 1000, 1024, 3000, 4000, 3600, 100], |memory| run(data, memory)));

fn run(data: &[u8], memory: &Guarded) {
    let mut input = Input::new(data);
    let flags = input.byte().unwrap_or(0);
    let rendezvous = match flags & 5 {
        0 | 4 => Rendezvous::Mapped,
        1 => Rendezvous::Matched,
        _ => Rendezvous::Striped,
    };
    let long = (rendezvous == Rendezvous::Mapped).then_some(Long { beyond: 300, whole: 400, frame: 500 });
    let config = Config { frame: 256, long, credits: 16, unexpected: 2000, rendezvous, verify: flags & 2 != 0 };
    let exports = Exports::new();
    let rights = [Rights::READ, Rights::WRITE, Rights::all()];
    let keys = [0, 1, 2].map(|index| exports.add(memory.piece(index), rights[index]).expect("random numbers"));
    let link = Link::with_exports(config, exports.clone());
    let mut rig = Rig { link, memory, keys, ops: Vec::new(), lent: vec![0; 500], borrower: None, next: 0, out: 0 };
    while let Some(action) = input.byte() {
        match action & 7 {
            0..=4 => {
                let piece = input.piece();
                if !rig.receive(piece, action) {
                    break;
                }
            }
            5 => rig.start(action >> 3, input.byte().unwrap_or(0)),
            6 => rig.cancel(usize::from(action >> 3)),
            _ if action == 0xFF => drop(exports.remove(rig.keys[2])),
            _ => {}
        }
        rig.drive(action);
    }
    rig.finish();
}

impl Rig<'_> {
    /// False if the link is over.
    fn receive(&mut self, piece: &[u8], action: u8) -> bool {
        let mut bytes = piece.to_vec();
        for at in (8..bytes.len().saturating_sub(7)).step_by(2) {
            for (name, key) in KEYS.iter().zip(self.keys) {
                if bytes[at..at + 8] == *name {
                    bytes[at..at + 8].copy_from_slice(&key.to_le_bytes());
                }
            }
        }
        if action != 4 && bytes.len() >= 8 {
            bytes[4..8].copy_from_slice(&self.next.to_le_bytes());
            let credits = u16::from_le_bytes([bytes[2], bytes[3]]).min(self.out);
            bytes[2..4].copy_from_slice(&credits.to_le_bytes());
            self.out -= credits;
        }
        let mut lent = match self.borrower {
            Some(op) if action & 0x80 == 0 => Lent::Target(op, &mut self.lent),
            _ => Lent::Nothing,
        };
        let mut room = [0; 100];
        let taken = match self.link.takes() && action & 0x40 != 0 {
            true => self.link.take(u64::from(action >> 3 & 3), bytes.as_slice(), &mut Landing::Bytes(&mut room)),
            false => Ok(None),
        };
        let taken = match taken {
            Ok(None) => self.link.receive(bytes.as_slice(), &mut lent).map(drop),
            other => other.map(drop),
        };
        self.next = self.next.wrapping_add(1);
        taken.is_ok()
    }

    /// Starts one of the things that a program does.
    fn start(&mut self, what: u8, tag: u8) {
        if self.ops.len() > 200 {
            return;
        }
        let (link, tag) = (&mut self.link, u64::from(tag % 4));
        let at = At { key: 7, offset: tag };
        let counter = (tag & 1 == 1).then_some(Counter { at, add: 1 });
        let source = |piece: usize| Source::Memory(self.memory.piece(piece));
        let offered = Source::Offered { memory: self.memory.piece(4), place: Place::default() };
        let target = |piece: usize, direct| Target::Memory { memory: self.memory.piece(piece), direct };
        let op = match what % 16 {
            0 => link.send(tag, source(3)),
            1 => link.send(tag, offered),
            2 => link.send(tag, source(6)),
            3 => link.recv(tag, target(5, true)),
            4 => link.recv(tag, target(5, false)),
            5 => link.recv(tag, target(6, false)),
            6 if self.borrower.is_none() => {
                let op = link.recv(tag, Target::Lent(500));
                self.borrower = Some(op);
                op
            }
            7 => link.put(at, source(6), counter),
            8 => link.put(at, source(3), counter),
            9 => link.put(at, offered, counter),
            10 => link.get(at, target(6, false)),
            11 => link.get(at, target(5, true)),
            12 => link.atomic(at, Atomic::FetchAdd(1)),
            13 => link.atomic(at, Atomic::CompareSwap { expect: 0, new: 1 }),
            14 => {
                let requests = vec![
                    Request::Put { at, bytes: Box::new([1; 9]), then: counter },
                    Request::Get { at, into: target(6, false) },
                    Request::Atomic { at, atomic: Atomic::FetchAdd(2) },
                ];
                self.ops.extend(link.batch(requests));
                return;
            }
            _ => {
                link.fence();
                return;
            }
        };
        self.ops.push(op);
    }

    fn cancel(&mut self, index: usize) {
        if index < self.ops.len() {
            let op = self.ops[index];
            if self.link.cancel(op) == Cancel::Released {
                self.ops.remove(index);
                if self.borrower == Some(op) {
                    self.borrower = None;
                }
            }
        }
    }

    /// What a driver does.
    fn drive(&mut self, action: u8) {
        let mut lent = match self.borrower {
            Some(op) => Lent::Target(op, &mut self.lent),
            None => Lent::Nothing,
        };
        while let Some(copy) = self.link.next_copy(&mut lent) {
            match copy.into {
                Into::Memory(memory) => assert_eq!(memory.len() as u64, copy.len),
                Into::Lent => assert!(copy.len <= 500),
            }
            self.link.copied(copy.op, if action & 8 == 0 { Ok(()) } else { Err(OpError::Unreachable) });
        }
        while self.link.next_told().is_some() {}
        while let Some(posting) = self.link.next_posting() {
            match posting {
                Posting::Receive { op, memory } => {
                    let len = memory.len() as u64;
                    if self.link.config().rendezvous == Rendezvous::Striped {
                        self.link.grant(op, Part { offset: 0, len, rail: 0, incarnation: 0 });
                    } else {
                        self.link.granted(op, len);
                    }
                    memory.fill(0..memory.len(), 1);
                    // Bytes that fail their checksum end the link, as the driver would.
                    if !self.link.landed(op) {
                        self.link.sever();
                    }
                }
                Posting::Send { op, memory, range } => {
                    assert!(range.end <= memory.len() as u64 && range.start <= range.end);
                    self.link.sent(op, range.end);
                }
                Posting::Part { op, memory, part } => {
                    assert_eq!(memory.len() as u64, part.len);
                    self.link.parted(op, part.len);
                }
            }
        }
        for _ in 0..action >> 5 {
            let Some(frame) = self.link.transmit(&lent) else { break };
            if frame.header.as_bytes()[0] != CREDIT {
                self.out += 1;
            }
            self.link.transmitted(&frame);
        }
        // Some operations are asked for their outcome in between.
        if let Some(op) = self.ops.get(usize::from(action >> 4)).copied()
            && self.link.is_done(op)
        {
            let outcome = self.link.poll(op, &mut lent);
            assert!(outcome.is_ready(), "an operation that is done has no outcome");
            self.forget(op);
        }
    }

    fn forget(&mut self, op: OpId) {
        self.ops.retain(|other| *other != op);
        if self.borrower == Some(op) {
            self.borrower = None;
        }
    }

    fn finish(mut self) {
        self.link.sever();
        for op in std::mem::take(&mut self.ops) {
            let mut lent = match self.borrower {
                Some(borrower) if borrower == op => Lent::Target(op, &mut self.lent),
                _ => Lent::Nothing,
            };
            let outcome = self.link.poll(op, &mut lent);
            assert!(matches!(outcome, Poll::Ready(_)), "an operation of a severed link has no outcome");
        }
        assert_eq!(self.link.unfinished(), 0);
        self.memory.check();
        // What may only be read keeps its value.
        let mut bytes = [1; 1024];
        self.memory.piece(0).read(0, &mut bytes);
        assert_eq!(bytes, [0; 1024], "memory without the right to write was written");
    }
}
