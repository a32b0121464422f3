//! Queues that are full before they hold what they were made for.
//!
//! Some devices refuse requests before the depth that they reported is used up. Nothing is lost by that: what was refused
//! is posted later, when something that the queue holds has completed.

use fulmen_verbs::{PostError, VerbsError};

/// The queues of one queue pair.
#[derive(Debug, Default)]
pub(super) struct Fullness {
    told: bool,
}

impl Fullness {
    /// Whether requests were refused for want of room in a queue that holds `held` others: their completions make room.
    /// It is logged once. A queue that is full with nothing in it never has room.
    pub(super) fn passes(&mut self, error: &PostError, held: u64, peer: u32) -> bool {
        if !is_full(error) || held == 0 {
            return false;
        }
        if !self.told {
            self.told = true;
            let VerbsError::QueueFull { queue, qp_num, depth } = error.cause else { return true };
            tracing::warn!(
                rank = peer,
                qp_num,
                depth,
                held,
                "the {queue} queue of a link is full before it holds what the device reported: it is waited for room"
            );
        }
        true
    }
}

/// Whether a queue had no room.
pub(super) fn is_full(error: &PostError) -> bool {
    matches!(error.cause, VerbsError::QueueFull { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_passes_if_it_holds_something() {
        let full = VerbsError::QueueFull { queue: "send", qp_num: 5, depth: 64 };
        let full = PostError { index: 0, cause: full };
        let gone = PostError { index: 0, cause: VerbsError::Unsupported { device: "soft0".into(), what: "RECVs" } };
        let mut fullness = Fullness::default();
        assert!(fullness.passes(&full, 1, 2) && fullness.passes(&full, 3, 2));
        assert!(!fullness.passes(&full, 0, 2) && !fullness.passes(&gone, 1, 2));
    }
}
