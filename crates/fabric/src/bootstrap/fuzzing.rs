//! Doors for fuzz targets.

use super::greeting::{Greeting, HELLO};
use super::message::{ADMISSION, FROM_COORDINATOR, SEATED, ToCoordinator, ToRank};
use super::wire::{Decoder, head};

/// What comes over one connection of the coordinator.
pub struct FromRank(Decoder);

impl Default for FromRank {
    fn default() -> FromRank {
        FromRank(Decoder::new(ADMISSION))
    }
}

impl FromRank {
    /// The rank has its seat.
    pub fn seat(&mut self) {
        self.0.set_limits(SEATED);
    }

    /// Takes bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.push(bytes);
    }

    /// The next message that is whole, and its body; an error, in words, is the connection's end.
    #[expect(clippy::should_implement_trait, reason = "an error ends it")]
    pub fn next(&mut self) -> Result<Option<(ToCoordinator, Vec<u8>)>, String> {
        let Some(frame) = self.0.next().map_err(|error| error.to_string())? else { return Ok(None) };
        let message = frame.message().map_err(|error| error.to_string())?;
        Ok(Some((message, frame.body)))
    }
}

/// Hears what a stranger says first, in pieces of `cut` bytes, and returns how many of them were taken before it was refused
/// or the seal began.
pub fn from_stranger(bytes: &[u8], cut: usize) -> usize {
    let mut greeting = Greeting::default();
    let mut taken = 0;
    while taken < bytes.len() {
        let count = cut.clamp(1, greeting.missing()).min(bytes.len() - taken);
        match greeting.push(&bytes[taken..taken + count]) {
            Ok(false) => taken += count,
            Ok(true) => return taken + count,
            Err(refusal) => {
                assert!(!refusal.to_string().contains('\n'), "{refusal}");
                break;
            }
        }
    }
    assert!(taken < HELLO, "more than a hello was taken");
    taken
}

/// Reads what the coordinator sends, cut into pieces of `cut` bytes; true if all of it is whole messages.
pub fn from_coordinator(bytes: &[u8], cut: usize) -> bool {
    let mut decoder = Decoder::new(FROM_COORDINATOR);
    for piece in bytes.chunks(cut.max(1)) {
        decoder.push(piece);
        loop {
            match decoder.next() {
                Ok(Some(frame)) if frame.message::<ToRank>().is_err() => return false,
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return false,
            }
        }
    }
    true
}

/// What a rank sends, without a body.
pub fn to_coordinator(message: &ToCoordinator) -> Vec<u8> {
    head(message, 0)
}
