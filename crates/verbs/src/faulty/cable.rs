//! The cable of a faulty device, and what is on its way while it is out.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fulmen_memory::Region;

use super::lock;
use crate::{Piece, SendRequest, VerbsError};

/// Whether the cable is in.
#[derive(Debug, Default)]
pub(super) struct Cable {
    out: AtomicBool,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    In,
    OutUntil(Instant),
    Gone,
}

/// What a look at the cable found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    In,
    /// It has just come back.
    Back,
    Out,
    /// It is out for ever.
    Gone,
}

impl Cable {
    /// Pulls it, until then or for ever; false if it is out already.
    pub(super) fn pull(&self, until: Option<Instant>) -> bool {
        let mut state = lock(&self.state);
        if *state != State::In {
            return false;
        }
        *state = until.map_or(State::Gone, State::OutUntil);
        self.out.store(true, Ordering::Release);
        true
    }

    pub(super) fn look(&self) -> Look {
        if !self.out.load(Ordering::Acquire) {
            return Look::In;
        }
        let mut state = lock(&self.state);
        match *state {
            State::In => Look::In,
            State::Gone => Look::Gone,
            State::OutUntil(until) if Instant::now() < until => Look::Out,
            State::OutUntil(_) => {
                *state = State::In;
                self.out.store(false, Ordering::Release);
                Look::Back
            }
        }
    }
}

/// A request as it can be posted later: inline bytes are the caller's to change once it was posted.
pub(super) fn keep(request: SendRequest) -> Result<SendRequest, VerbsError> {
    if !request.inline || request.bytes() == 0 {
        return Ok(request);
    }
    let len = request.bytes() as usize;
    let kept = Region::alloc(len).and_then(|region| region.expose()).map_err(|cause| VerbsError::System {
        device: "the faulty device".to_owned(),
        call: "post_send",
        cause: format!("no memory to keep inline bytes while the cable is out: {cause}"),
    })?;
    let mut at = 0;
    for piece in &request.pieces {
        piece.memory.copy_to(0, &kept, at, piece.memory.len());
        at += piece.memory.len();
    }
    let pieces = [Piece { memory: kept.slice(0..len), lkey: 0 }].into_iter().collect();
    Ok(SendRequest { pieces, ..request })
}
