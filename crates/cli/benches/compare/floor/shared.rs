//! The memory that the floor's ranks share: flags, small lines, staging windows and the ranks' buffers, all in one mapping.

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64},
};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

use crate::platform;

/// The most ranks that the floor runs.
pub const MAX_RANKS: usize = 8;
/// The most samples of one case.
pub const MAX_SAMPLES: usize = 4000;
/// Small messages that a rank may have under way.
pub const LINES: usize = 8;
/// Words of a rank's staging window.
pub const WINDOW: usize = 1 << 20;
/// Words of payload that share a cache line with their sequence number.
pub const LINE_WORDS: usize = 14;
const PAGE: usize = 4096;

/// A number that one rank writes and the others wait for. Two cache lines, since processors fetch them in pairs.
#[repr(C, align(128))]
pub struct Flag(pub AtomicU64);

/// A small message: payload and sequence number arrive together, in one cache line.
#[repr(C, align(128))]
pub struct Line {
    pub sequence: AtomicU64,
    pub words: [AtomicU32; LINE_WORDS],
}

/// What the ranks tell one another. All zeroes is its first state, so a fresh mapping needs no set-up.
#[repr(C)]
pub struct Control {
    /// The barrier: how many each rank has reached.
    pub arrived: [Flag; MAX_RANKS],
    /// Pieces that each rank has put into its window.
    pub posted: [Flag; MAX_RANKS],
    /// Pieces whose slice each rank has reduced.
    pub reduced: [Flag; MAX_RANKS],
    /// Pieces that each rank is finished with.
    pub taken: [Flag; MAX_RANKS],
    /// Small messages of each rank.
    pub lines: [[Line; LINES]; MAX_RANKS],
    /// Each rank's process, and where its input and output lie there.
    pub process: [[AtomicU64; 3]; MAX_RANKS],
    /// A number of each rank that all look at after a barrier (bits of an f64, or a count).
    pub told: [AtomicU64; MAX_RANKS],
    /// The sample that no rank takes any more.
    pub stop_at: AtomicU64,
    /// Seconds per call (bits of an f64).
    pub samples: [[AtomicU64; MAX_SAMPLES]; MAX_RANKS],
}

/// Words of f32 in a mapping that lasts as long as the process.
#[derive(Clone, Copy)]
pub struct Span {
    start: *mut f32,
    words: usize,
}

impl Span {
    pub fn words(self) -> usize {
        self.words
    }

    /// The words from `from` up to `to`; panics outside, as slices do.
    pub fn part(self, from: usize, to: usize) -> Span {
        assert!(from <= to && to <= self.words, "{from}..{to} of {} words", self.words);
        // SAFETY: `from` lies inside the span or at its end.
        Span { start: unsafe { self.start.add(from) }, words: to - from }
    }

    pub fn as_ptr(self) -> *mut f32 {
        self.start
    }

    pub fn get(self, at: usize) -> f32 {
        let word = self.part(at, at + 1);
        // SAFETY: inside the span; the flags order this read after the write of whoever wrote the word last.
        unsafe { word.start.read() }
    }

    pub fn set(self, at: usize, value: f32) {
        let word = self.part(at, at + 1);
        // SAFETY: inside the span; the flags give the word to this rank alone for the moment.
        unsafe { word.start.write(value) }
    }
}

/// This process's view of the shared mapping.
pub struct Shared {
    pub control: &'static Control,
    memory: Span,
    largest: usize,
}

fn control_bytes() -> usize {
    size_of::<Control>().next_multiple_of(PAGE)
}

/// Bytes of the mapping for `ranks` ranks whose buffers hold `largest` words each.
fn total_bytes(ranks: usize, largest: usize) -> usize {
    control_bytes() + ranks * (WINDOW + 2 * largest) * size_of::<f32>()
}

/// Whole pages, so that every buffer starts on one.
fn whole_pages(words: usize) -> usize {
    words.max(1).next_multiple_of(PAGE / size_of::<f32>())
}

/// Makes the file of a mapping that suits `ranks` ranks and buffers of `words` words.
pub fn create(ranks: usize, words: usize) -> std::io::Result<OwnedFd> {
    platform::shared_file(total_bytes(ranks, whole_pages(words)) as u64)
}

impl Shared {
    /// Maps the file that [`create`] made for the same `ranks` and `words`.
    pub fn map(file: BorrowedFd<'_>, ranks: usize, words: usize) -> std::io::Result<Self> {
        let largest = whole_pages(words);
        let bytes = total_bytes(ranks, largest);
        // SAFETY: a fresh mapping at an address that the kernel picks touches no memory of Rust.
        let start = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)?
        };
        let start = NonNull::new(start).expect("mmap gives no null");
        // SAFETY: the mapping is page-aligned, at least as long as `Control`, never unmapped, and was zeroed when it was
        // made; every field is an atomic, so other processes may write at any time.
        let control = unsafe { start.cast::<Control>().as_ref() };
        // SAFETY: the control block is shorter than the mapping.
        let memory = unsafe { start.as_ptr().cast::<u8>().add(control_bytes()) };
        let memory = Span { start: memory.cast(), words: (bytes - control_bytes()) / size_of::<f32>() };
        Ok(Shared { control, memory, largest })
    }

    /// Words of the rank's staging window, from `at` on.
    pub fn window(&self, rank: usize, at: usize, words: usize) -> Span {
        assert!(at + words <= WINDOW, "{words} words at {at} of the window");
        let start = rank * (WINDOW + 2 * self.largest) + at;
        self.memory.part(start, start + words)
    }

    /// The rank's input in shared memory.
    pub fn input(&self, rank: usize) -> Span {
        let start = rank * (WINDOW + 2 * self.largest) + WINDOW;
        self.memory.part(start, start + self.largest)
    }

    /// The rank's output in shared memory.
    pub fn output(&self, rank: usize) -> Span {
        let start = rank * (WINDOW + 2 * self.largest) + WINDOW + self.largest;
        self.memory.part(start, start + self.largest)
    }
}

/// Zeroed memory of this process alone, never given back.
pub fn private(words: usize) -> std::io::Result<Span> {
    let words = whole_pages(words);
    let bytes = words * size_of::<f32>();
    // SAFETY: a fresh mapping at an address that the kernel picks touches no memory of Rust.
    let start =
        unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)? };
    Ok(Span { start: start.cast(), words })
}
