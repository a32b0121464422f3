//! What can be said only of several calls together: completions that were taken for deliveries, and loops that wait for
//! peers that are gone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use fulmen_verbs::{Completion, CompletionOpcode, CompletionStatus, QueuePair, VerbsError};

use super::Lint;
use super::rule::Rule;

/// Empty polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 1024;
/// How long a program may poll for a peer that is gone. One that has a deadline of its own mostly has a shorter one.
const PATIENCE: Duration = Duration::from_secs(10);

/// The queue pairs of this process.
#[derive(Default)]
pub(super) struct Watch {
    pairs: Mutex<HashMap<u32, Watched>>,
}

struct Watched {
    pair: Weak<dyn QueuePair>,
    /// The completion queues of its sends and of its receives.
    queues: [u32; 2],
    /// A SEND completed, and nothing came from the peer since.
    unconfirmed: bool,
}

/// What a completion queue remembers of polls that brought nothing.
#[derive(Default)]
pub(crate) struct Idle {
    polls: AtomicU32,
    /// When the first look of this row of empty polls was.
    since: Mutex<Option<Instant>>,
}

impl Watch {
    fn pairs(&self) -> MutexGuard<'_, HashMap<u32, Watched>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lint {
    /// A queue pair was made. `queues`: what its two completion queues are called in other calls.
    pub(crate) fn created(&self, pair: &Arc<dyn QueuePair>, queues: [u32; 2]) {
        let watched = Watched { pair: Arc::downgrade(pair), queues, unconfirmed: false };
        self.watch.pairs().insert(pair.qp_num(), watched);
    }

    /// A queue pair is to be destroyed.
    pub(crate) fn destroy_qp(&self, qp_num: u32) -> Option<i32> {
        let refused = self.leaving("ibv_destroy_qp", qp_num);
        if refused.is_none() {
            self.watch.pairs().remove(&qp_num);
        }
        refused
    }

    /// A queue pair is to go to ERR.
    pub(crate) fn modify_to_error(&self, qp_num: u32) -> Option<i32> {
        let what = format!("queue pair {qp_num} goes to ERR");
        self.broken(Rule::DestroyBeforeErr, "ibv_modify_qp", qp_num.into(), what)
    }

    /// A queue pair is to go to RESET.
    pub(crate) fn modify_to_reset(&self, qp_num: u32) -> Option<i32> {
        self.leaving("ibv_modify_qp", qp_num)
    }

    fn leaving(&self, call: &str, qp_num: u32) -> Option<i32> {
        let unconfirmed = self.watch.pairs().get(&qp_num).is_some_and(|watched| watched.unconfirmed);
        if !unconfirmed {
            return None;
        }
        let what = format!("queue pair {qp_num} goes, and nothing came from its peer since its last SEND completed");
        self.broken(Rule::CompletionIsNotDelivery, call, qp_num.into(), what)
    }

    /// A poll of completion queue `queue`, and what it brought.
    #[inline]
    pub(crate) fn polled(&self, idle: &Idle, queue: u32, completions: &[Completion]) -> Result<(), VerbsError> {
        if !completions.is_empty() {
            idle.stop();
            self.completed(completions);
            return Ok(());
        }
        let polls = idle.polls.fetch_add(1, Ordering::Relaxed);
        if polls % POLLS_PER_LOOK == POLLS_PER_LOOK - 1 && idle.is_long(PATIENCE) {
            return self.waits_for_nobody(queue);
        }
        Ok(())
    }

    fn completed(&self, completions: &[Completion]) {
        let mut unequal = None;
        {
            let mut pairs = self.watch.pairs();
            for completion in completions {
                let Some(watched) = pairs.get_mut(&completion.qp_num) else { continue };
                match (completion.status, completion.opcode) {
                    (CompletionStatus::Success, CompletionOpcode::Send) => watched.unconfirmed = true,
                    (CompletionStatus::Success, CompletionOpcode::Recv) => watched.unconfirmed = false,
                    (CompletionStatus::LocalLength, _) => unequal = Some(*completion),
                    _ => {}
                }
            }
        }
        if let Some(Completion { qp_num, wr_id, .. }) = unequal {
            let what = format!("the RECV with wr_id {wr_id:#x} of queue pair {qp_num} met a SEND of another length");
            let _ = self.broken(Rule::EqualFrames, "ibv_poll_cq", qp_num.into(), what);
        }
    }

    #[cold]
    fn waits_for_nobody(&self, queue: u32) -> Result<(), VerbsError> {
        let waiting = |watched: &Watched| watched.queues.contains(&queue);
        let pairs: Vec<_> =
            self.watch.pairs().values().filter(|pair| waiting(pair)).map(|it| it.pair.clone()).collect();
        // Without the lock: the device has locks of its own.
        let Some(gone) = pairs.iter().filter_map(Weak::upgrade).find(|pair| pair.is_peer_gone()) else { return Ok(()) };
        let cause = format!("the peer of queue pair {} is gone", gone.qp_num());
        let what = format!("still polling 10 s after the last completion, and {cause}");
        match self.broken(Rule::PollForever, "ibv_poll_cq", queue.into(), what) {
            None => Ok(()),
            Some(_) => Err(VerbsError::System { device: "the lint".to_owned(), call: "poll_cq", cause }),
        }
    }
}

impl Idle {
    /// Something came.
    fn stop(&self) {
        if self.polls.swap(0, Ordering::Relaxed) >= POLLS_PER_LOOK {
            *self.since.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    fn is_long(&self, patience: Duration) -> bool {
        let now = Instant::now();
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        now.duration_since(*since.get_or_insert(now)) >= patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_long_once_nothing_came_for_long() {
        let idle = Idle::default();
        assert!(!idle.is_long(Duration::from_secs(3600)), "it begins");
        assert!(idle.is_long(Duration::ZERO));
        idle.polls.store(POLLS_PER_LOOK, Ordering::Relaxed);
        idle.stop();
        assert!(idle.since.lock().unwrap().is_none(), "something came");
    }
}
