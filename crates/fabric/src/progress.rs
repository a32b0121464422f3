//! The progress thread: it moves messages on while nobody waits.
//!
//! A thread that waits moves everything on by itself. Where operations are under way and no thread of the program waits,
//! or looks at them often, a thread of the fabric takes over within two milliseconds. Where peers rely on acknowledgements
//! it is always there. It is started by the first operation that may need it, parks on the rank's doorbell, and parks apart
//! from it while the program waits by itself, so that nobody pays for waking it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::lanes::{Lanes, OFTEN};
use crate::processors::unbind_thread;

/// How often it looks whether the program still waits by itself.
const NAP: Duration = Duration::from_millis(1);
/// How many naps it takes without anything to do before it parks until it is needed.
const NAPS: u32 = 20;
/// The longest park on the doorbell: a bound for a wake-up that got lost with a process.
const CAP: Duration = Duration::from_millis(50);

pub(crate) struct Progress {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    lanes: Arc<Lanes>,
    /// Operations may be under way: the thread is awake, or looks again soon.
    armed: AtomicBool,
    stop: AtomicBool,
    gate: Mutex<()>,
    opened: Condvar,
}

impl Progress {
    pub(crate) fn new(lanes: Arc<Lanes>) -> Progress {
        let (armed, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Shared { lanes, armed, stop, gate: Mutex::new(()), opened: Condvar::new() };
        let progress = Progress { shared: Arc::new(shared), thread: Mutex::new(None) };
        if progress.shared.lanes.is_demanding() {
            progress.need();
        }
        progress
    }

    /// An operation is under way for which nobody may wait.
    pub(crate) fn need(&self) {
        if self.shared.armed.load(Ordering::Relaxed) {
            return;
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if self.shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let gate = self.shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.armed.store(true, Ordering::Relaxed);
        drop(gate);
        self.shared.opened.notify_one();
        if thread.is_none() {
            let shared = self.shared.clone();
            let spawned = thread::Builder::new().name("fulmen-progress".into()).spawn(move || {
                unbind_thread();
                shared.run();
            });
            match spawned {
                Ok(handle) => *thread = Some(handle),
                // Operations then move on whenever the program waits or tests.
                Err(error) => tracing::warn!(%error, "no progress thread"),
            }
        }
    }
}

impl Progress {
    /// Ends the thread, for good.
    pub(crate) fn stop(&self) {
        // Held throughout, so that nobody starts another thread.
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.stop.store(true, Ordering::SeqCst);
        let gate = self.shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
        drop(gate);
        self.shared.opened.notify_one();
        self.shared.lanes.parker.wake();
        if let Some(thread) = thread.take() {
            // It owns no handle to the fabric, so that this is never the thread itself. It cannot panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn run(&self) {
        let (mut idle, mut looks, mut often) = (0, 0, OFTEN);
        while !self.stop.load(Ordering::SeqCst) {
            // Between two calls of a program that waits in most of them nobody does: whoever took over there would be in its
            // way. It may find then that all has come whenever it looks, and not wait any more: one look tells that it is back.
            if self.lanes.looks_since(&mut looks) >= std::mem::replace(&mut often, 1) {
                self.nap(Some(NAP));
                self.lanes.pump_for_others();
                often = OFTEN;
                continue;
            }
            let moved = self.lanes.pump_all();
            self.lanes.sweep();
            if moved {
                idle = 0;
                continue;
            }
            if self.lanes.is_busy() {
                idle = 0;
                let (stop, longest) = (&self.stop, self.lanes.until_deadline(CAP));
                self.lanes.parker.park(longest, &mut || self.lanes.pump_all() || stop.load(Ordering::SeqCst));
                continue;
            }
            idle += 1;
            if idle <= NAPS {
                self.nap(Some(NAP));
            } else {
                idle = 0;
                self.armed.store(false, Ordering::Relaxed);
                // Whoever started one before this look at the lanes may have found the thread armed; later ones do not.
                if self.lanes.is_busy() {
                    self.armed.store(true, Ordering::Relaxed);
                } else {
                    self.nap(None);
                }
            }
        }
    }

    /// Parks for a time, or until it is needed.
    fn nap(&self, time: Option<Duration>) {
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let stopped = || self.stop.load(Ordering::SeqCst);
        match time {
            Some(time) => drop(self.opened.wait_timeout_while(gate, time, |()| !stopped())),
            None => drop(self.opened.wait_while(gate, |()| !self.armed.load(Ordering::Relaxed) && !stopped())),
        }
    }
}
