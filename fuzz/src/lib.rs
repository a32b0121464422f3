//! What fuzz targets share.

use fulmen_memory::{Exposed, Region};

/// Takes an input apart, from its beginning.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of it.
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(bytes)
    }

    /// The next byte; none at the end.
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Up to `len` bytes: fewer at the end.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// Bytes whose number comes before them.
    pub fn piece(&mut self) -> &'a [u8] {
        let len = self.byte().unwrap_or(0);
        self.bytes(usize::from(len))
    }
}

/// A value that stands in memory that nobody may write.
const GUARD: u8 = 0xA5;
/// Bytes of it around each piece of memory.
const AROUND: usize = 256;

/// Runs `target` with the memory of this thread, made once and as new.
#[macro_export]
macro_rules! with_memory {
    ($lens:expr, $target:expr) => {{
        std::thread_local! {
            static MEMORY: $crate::Guarded = $crate::Guarded::new($lens);
        }
        MEMORY.with(|memory| {
            memory.reset();
            $target(memory)
        })
    }};
}

/// Pieces of memory with bytes between them that must keep their value.
pub struct Guarded {
    whole: Exposed,
    pieces: Vec<(usize, usize)>,
}

impl Guarded {
    /// Pieces of these lengths, zeroed. Each starts at a multiple of 64.
    ///
    /// # Panics
    /// Without memory.
    pub fn new(lens: &[usize]) -> Guarded {
        let mut at = AROUND;
        let mut pieces = Vec::new();
        for len in lens {
            pieces.push((at, *len));
            at = (at + len + AROUND).next_multiple_of(64);
        }
        let whole = Region::alloc(at).expect("memory").expose().expect("memory");
        let guarded = Guarded { whole, pieces };
        guarded.reset();
        guarded
    }

    /// As new.
    pub fn reset(&self) {
        self.whole.fill(0..self.whole.len(), GUARD);
        self.pieces.iter().for_each(|(at, len)| self.whole.fill(*at..at + len, 0));
    }

    /// A piece.
    pub fn piece(&self, index: usize) -> Exposed {
        let (at, len) = self.pieces[index];
        self.whole.slice(at..at + len)
    }

    /// Checks all bytes that nobody may write.
    ///
    /// # Panics
    /// If somebody has.
    pub fn check(&self) {
        let mut bytes = vec![0; self.whole.len()];
        self.whole.read(0, &mut bytes);
        for (at, len) in &self.pieces {
            bytes[*at..at + len].fill(GUARD);
        }
        let wrong = bytes.iter().position(|byte| *byte != GUARD);
        assert_eq!(wrong, None, "a byte outside of all given memory was written");
    }
}
