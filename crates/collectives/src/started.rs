//! Calls that go on while the program does other things: a thread of the group's makes them, one after the other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::{CollectiveError, Group, Handle};

type Job = Box<dyn FnOnce() + Send>;

/// What a group has started.
#[derive(Default)]
pub(crate) struct Started {
    /// Made with the first; `None` if the system gives no thread.
    worker: OnceLock<Option<Worker>>,
    pending: Arc<Pending>,
}

struct Worker {
    jobs: Sender<Job>,
    thread: ThreadId,
}

/// How many calls are started and have not ended.
#[derive(Default)]
struct Pending {
    count: AtomicUsize,
    /// How many have.
    ended: AtomicUsize,
    lock: Mutex<()>,
    none: Condvar,
}

impl Pending {
    fn end_one(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Whoever found some has the lock until it waits.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.none.notify_all();
        }
    }
}

impl Started {
    /// Whether this is the thread that makes the calls.
    pub(crate) fn is_here(&self) -> bool {
        let worker = self.worker.get().and_then(Option::as_ref);
        worker.is_some_and(|worker| worker.thread == thread::current().id())
    }

    /// Waits until all that was started before has ended: calls come in the same order on all ranks. What is called from within
    /// waits for nothing. Says whether it has; not if none of it ends for so long.
    #[inline]
    pub(crate) fn settle(&self, patience: Duration) -> bool {
        self.pending.count.load(Ordering::Acquire) == 0 || self.is_here() || self.wait(patience)
    }

    #[cold]
    fn wait(&self, patience: Duration) -> bool {
        let Pending { count, ended, lock, none } = &*self.pending;
        let mut guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // Each call ends by its deadline. But one may wait for another group's, and that for this group's.
            let before = ended.load(Ordering::Relaxed);
            let waited = none.wait_timeout_while(guard, patience, |()| count.load(Ordering::Acquire) > 0);
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            guard = again;
            if !timeout.timed_out() {
                return true;
            }
            if ended.load(Ordering::Relaxed) == before {
                return false;
            }
        }
    }

    fn push(&self, job: Job) {
        if self.is_here() {
            // What is started within another one is a part of it, which may wait for it.
            return job();
        }
        let worker = self.worker.get_or_init(|| {
            let (jobs, queue) = mpsc::channel::<Job>();
            let run = move || {
                // Beside a program that has bound itself to a processor, and not after it.
                fulmen_fabric::unbind_thread();
                queue.into_iter().for_each(|job| job());
            };
            match thread::Builder::new().name("fulmen-group".into()).spawn(run) {
                Ok(handle) => Some(Worker { jobs, thread: handle.thread().id() }),
                Err(cause) => {
                    tracing::warn!(%cause, "no thread for calls that are started: each is made at once instead");
                    None
                }
            }
        });
        match worker {
            // The thread takes jobs as long as there is a sender.
            Some(worker) => worker.jobs.send(job).unwrap_or_else(|mpsc::SendError(job)| job()),
            None => job(),
        }
    }
}

impl Group {
    /// Starts a call, or several, on data that is given away meanwhile, and returns at once.
    ///
    /// ```no_run
    /// # use fulmen_collectives::{Buffer, CollectiveError, Group, ReduceOp};
    /// # fn step(group: &Group, gradients: Buffer<f32>) -> Result<Buffer<f32>, CollectiveError> {
    /// let reduced = group.start(gradients, |group, gradients| group.all_reduce(gradients, ReduceOp::Mean));
    /// // … compute something else …
    /// let (gradients, outcome) = reduced.wait();
    /// outcome?;
    /// # Ok(gradients)
    /// # }
    /// ```
    ///
    /// Any number can be under way. They are made one after the other, in the order in which they were started, by a thread of
    /// the group's; operations of all ranks that are called on the group directly wait for all that were started before. So ranks may
    /// differ in which calls they start, as long as they make the same ones in the same order. The deadline counts from when a call's
    /// turn has come. Where ranks have no processor to spare, the thread shares that of the program.
    ///
    /// [Messages](Group::send) that are called directly wait for nothing, and overtake those that are called in here. For messages by
    /// themselves there are [`Group::start_send`] and [`Group::start_recv`], which need no thread.
    ///
    /// What the call returns, the handle gives. Wait for all of them before the program ends.
    pub fn start<D, R, F>(&self, mut data: D, call: F) -> Handle<D, R>
    where
        D: Send + 'static,
        R: Send + 'static,
        F: FnOnce(&Group, &mut D) -> Result<R, CollectiveError> + Send + 'static,
    {
        let (tell, outcome) = mpsc::sync_channel(1);
        let started = self.started();
        let (group, pending) = (self.clone(), started.pending.clone());
        pending.count.fetch_add(1, Ordering::AcqRel);
        started.push(Box::new(move || {
            let ended = catch_unwind(AssertUnwindSafe(move || {
                let result = call(&group, &mut data);
                (data, result)
            }));
            // Before it is told: what comes next need not wait.
            pending.end_one();
            // Nobody may want to know.
            let _ = tell.send(ended);
        }));
        Handle::of_call(outcome)
    }
}
