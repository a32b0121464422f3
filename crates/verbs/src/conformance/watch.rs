//! Waiting for completions, with an end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::PATIENCE;
use super::bed::{Failure, Outcome, ensure};
use crate::{Completion, CompletionOpcode, CompletionQueue, CompletionStatus};

/// How often the queues are polled before it counts as quiet. A device that moves messages while it is polled has had
/// its chance after that.
pub(super) const QUIET_POLLS: u32 = 300;

/// Polls some completion queues and keeps what came, each queue apart.
pub(super) struct Watch {
    queues: Vec<(Arc<dyn CompletionQueue>, VecDeque<Completion>)>,
}

impl Watch {
    pub(super) fn new(queues: impl IntoIterator<Item = Arc<dyn CompletionQueue>>) -> Watch {
        Watch { queues: queues.into_iter().map(|queue| (queue, VecDeque::new())).collect() }
    }

    /// Polls every queue once, and tells whether something came.
    pub(super) fn poll(&mut self) -> Outcome<bool> {
        let mut some = false;
        for (queue, inbox) in &mut self.queues {
            let mut room = [nothing(); 16];
            let count = queue.poll(&mut room)?;
            ensure!(count <= room.len(), "poll said {count} completions into room for {}", room.len());
            inbox.extend(&room[..count]);
            some |= count > 0;
        }
        Ok(some)
    }

    /// The next completion of a queue.
    pub(super) fn next(&mut self, queue: usize) -> Outcome<Completion> {
        self.until("a completion", |watch| Ok(watch.queues[queue].1.pop_front()))
    }

    /// The next `count` completions of a queue.
    pub(super) fn take(&mut self, queue: usize, count: usize) -> Outcome<Vec<Completion>> {
        (0..count).map(|_| self.next(queue)).collect()
    }

    /// A completion that has come already.
    pub(super) fn pending(&mut self, queue: usize) -> Option<Completion> {
        self.queues[queue].1.pop_front()
    }

    /// Fails if a completion comes while the queues are polled for a while.
    pub(super) fn quiet(&mut self, queue: usize, why: &str) -> Outcome {
        for _ in 0..QUIET_POLLS {
            self.poll()?;
            if let Some(completion) = self.pending(queue) {
                return Err(Failure::Failed(format!("{why}, and yet this completed: {completion:?}")));
            }
            thread::yield_now();
        }
        Ok(())
    }

    /// Polls for a while, so that what comes has come.
    pub(super) fn settle(&mut self) -> Outcome {
        for _ in 0..QUIET_POLLS {
            self.poll()?;
            thread::yield_now();
        }
        Ok(())
    }

    /// Polls until `ready` gives something; fails after [`PATIENCE`].
    pub(super) fn until<T>(
        &mut self,
        what: &str,
        mut ready: impl FnMut(&mut Watch) -> Outcome<Option<T>>,
    ) -> Outcome<T> {
        let start = Instant::now();
        loop {
            let some = self.poll()?;
            if let Some(value) = ready(self)? {
                return Ok(value);
            }
            ensure!(start.elapsed() < PATIENCE, "waited {} s for {what}", PATIENCE.as_secs());
            if !some {
                thread::yield_now();
            }
        }
    }
}

/// A completion to poll into.
pub(super) fn nothing() -> Completion {
    Completion {
        wr_id: u64::MAX,
        status: CompletionStatus::General,
        opcode: CompletionOpcode::Send,
        byte_len: u32::MAX,
        imm: None,
        qp_num: u32::MAX,
        origin: None,
    }
}

/// Fails unless the request of this number succeeded.
pub(super) fn check_done(completion: &Completion, wr_id: u64, opcode: CompletionOpcode) -> Outcome {
    check_status(completion, wr_id, CompletionStatus::Success)?;
    ensure!(completion.opcode == opcode, "a {opcode:?} completed as {:?}", completion.opcode);
    Ok(())
}

/// Fails unless the request of this number ended so.
pub(super) fn check_status(completion: &Completion, wr_id: u64, status: CompletionStatus) -> Outcome {
    check_one_of(completion, wr_id, &[status])
}

/// Fails unless the request of this number ended in one of these ways.
pub(super) fn check_one_of(completion: &Completion, wr_id: u64, wanted: &[CompletionStatus]) -> Outcome {
    ensure!(completion.wr_id == wr_id, "request {wr_id} was to complete, and {completion:?} did");
    let status = completion.status;
    ensure!(wanted.contains(&status), "request {wr_id} ended with {status:?} ({status}), and not {wanted:?}");
    Ok(())
}
