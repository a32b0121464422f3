//! A door for fuzz targets: two sides, while somebody damages everything that they share; and what devices of other hosts
//! say ([`network`]).

pub mod network;

mod frames;

use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use fulmen_memory::Exposed;
use fulmen_reach::Node;
use fulmen_verbs::{QueuePairKind, RecvRequest, RemoteAddr, SendOp, SendRequest};

use crate::Profile;
use crate::layout::{directory, wire};
use crate::sides::{FENCED, LEN, Side, plain_side, shared_words, side};
pub use frames::{HostileStream, Said, Transport};

/// What is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// RC over memory that peers map.
    Reliable,
    /// UC over memory that peers map.
    Unreliable,
    /// UC of the `thunderbolt` profile.
    Thunderbolt,
    /// RC over memory that the system copies.
    Copied,
    /// RC over memory for which its owner is asked.
    Asked,
    /// The same over UC.
    AskedUnreliably,
}

impl Sort {
    /// All of them.
    pub const ALL: [Sort; 6] =
        [Sort::Reliable, Sort::Unreliable, Sort::Thunderbolt, Sort::Copied, Sort::Asked, Sort::AskedUnreliably];

    fn side(self) -> Side {
        match self {
            Sort::Reliable => side(Profile::Infiniband, QueuePairKind::Rc),
            Sort::Unreliable => side(Profile::Infiniband, QueuePairKind::Uc),
            Sort::Thunderbolt => side(Profile::Thunderbolt, QueuePairKind::Uc),
            Sort::Copied => plain_side(QueuePairKind::Rc, true),
            Sort::Asked => plain_side(QueuePairKind::Rc, false),
            Sort::AskedUnreliably => plain_side(QueuePairKind::Uc, false),
        }
    }
}

/// A table or a wire that is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// The directory of one side's device.
    Directory(bool),
    /// The wire of one side's queue pair.
    Wire(bool),
}

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A word becomes `value`. Words are counted in the parts of an area that are used, the first ones first.
    Damage {
        /// Where.
        area: Area,
        /// Which word.
        word: usize,
        /// What it becomes.
        value: u64,
    },
    /// A word, counted as before, grows: an address stays near to what it was.
    Shift {
        /// Where.
        area: Area,
        /// Which word.
        word: usize,
        /// By how much, with wrap-around.
        by: u64,
    },
    /// One side does one of eight things.
    Act(bool, u8),
}

/// Two sides in this process, each the other's hostile peer.
pub struct Hostile {
    sort: Sort,
    sides: [Side; 2],
    /// Directory and wire of each side.
    areas: [Vec<Exposed>; 2],
    /// What lies in memory that is not registered: nobody can guess it.
    guard: [u8; 8],
    _reader: Node,
}

impl Hostile {
    /// Connects two sides.
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    pub fn new(sort: Sort) -> Hostile {
        count_panics();
        let sides = [sort.side(), sort.side()];
        sides[0].connect(&sides[1]);
        sides[1].connect(&sides[0]);
        let reader = Node::open().unwrap();
        let areas = [0, 1].map(|index: usize| shared_words(&sides[index], &reader, wire::SIZE));
        let guard = getrandom::u64().unwrap().to_ne_bytes();
        let hostile = Hostile { sort, sides, areas, guard, _reader: reader };
        for side in &hostile.sides {
            let pattern: Vec<u8> = guard.into_iter().cycle().take(LEN).collect();
            side.memory.write(0, &pattern);
            side.memory.fill(FENCED, 0x11);
        }
        hostile
    }

    /// Does one step.
    pub fn step(&self, step: Step) {
        match step {
            Step::Damage { area, word, value } => self.word(area, word).store(value, Ordering::SeqCst),
            Step::Shift { area, word, by } => {
                self.word(area, word).fetch_add(by, Ordering::SeqCst);
            }
            Step::Act(which, what) => self.act(usize::from(which), what),
        }
    }

    fn word(&self, area: Area, word: usize) -> &AtomicU64 {
        match area {
            Area::Directory(which) => self.areas[usize::from(which)][0].atomic_u64(word_of_directory(word)),
            Area::Wire(which) => self.areas[usize::from(which)][1].atomic_u64(word % (wire::SIZE / 8) * 8),
        }
    }

    fn act(&self, which: usize, what: u8) {
        let (side, peer) = (&self.sides[which], &self.sides[1 - which]);
        let remote = RemoteAddr { addr: peer.memory.addr() as u64 + 8192, rkey: peer.key };
        let (op, len) = match what % 8 {
            0 => (SendOp::Send { imm: Some(1) }, 64),
            1 => (SendOp::Send { imm: None }, 4096),
            2 => (SendOp::Write { remote, imm: None }, 4096),
            3 => (SendOp::Write { remote, imm: Some(2) }, 100),
            4 => (SendOp::Read { remote }, 4096),
            5 => (SendOp::FetchAdd { remote, add: 1 }, 8),
            6 => {
                // Full and broken queues are some of the things that a hostile peer can bring about.
                let _ = side.qp.post_recv(&[RecvRequest::new(1, [side.piece(4096..8192)])]);
                return;
            }
            _ => {
                for completion in side.poll() {
                    assert!(completion.byte_len <= 4096, "no more than there was room for: {completion:?}");
                }
                return;
            }
        };
        let _ = side.qp.post_send(&[SendRequest::new(7, op, [side.piece(8192..8192 + len)])]);
    }

    /// Looks at everything that nobody may have read or written.
    ///
    /// # Panics
    /// If somebody has, or a device's thread has panicked.
    pub fn check(&self) {
        assert_eq!(PANICS.load(Ordering::SeqCst), 0, "a device's thread panicked");
        for side in &self.sides {
            for outside in [0..FENCED.start, FENCED.end..LEN] {
                let mut seen = vec![0; outside.len()];
                side.memory.read(outside.start, &mut seen);
                assert!(seen.chunks(8).all(|word| word == self.guard), "memory outside of the registration");
            }
        }
        // What the system is told to copy out of a peer is that peer's own to name, and here both are one process.
        if self.sort != Sort::Copied {
            for areas in &self.areas {
                let mut seen = vec![0; wire::SIZE];
                areas[1].read(0, &mut seen);
                let read = seen.windows(8).any(|word| word == self.guard);
                assert!(!read, "a peer was shown memory outside of the registration");
            }
        }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        // A peer that seems to be at work for ever is waited for, for seconds.
        for areas in &self.areas {
            areas[1].atomic_u64(wire::WORKING_ON).store(0, Ordering::SeqCst);
        }
    }
}

/// The words of a directory that two sides use: its head, and the first entries of both tables.
fn word_of_directory(word: usize) -> usize {
    const USED: [(usize, usize); 3] = [(0, 512), (directory::PAIRS, 64), (directory::KEYS, 128)];
    let mut at = word * 8 % USED.iter().map(|(_, len)| len).sum::<usize>();
    for (start, len) in USED {
        if at < len {
            return start + at;
        }
        at -= len;
    }
    unreachable!("it is less than their sum")
}

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Counts the panics of devices' threads, which nobody waits for.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name().is_some_and(|name| name.starts_with("soft")) {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            before(info);
        }));
    });
}

#[cfg(test)]
mod tests;
