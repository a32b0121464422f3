//! The device's own thread, which drives the queue pairs while the program does not.
//!
//! It is in one of two moods. While the program polls it looks up now and then whether it still does, drives what the
//! program does not poll, and peers do not ring. Otherwise it is *in charge*: it says so in the directory (`ASLEEP`), so
//! that peers ring its doorbell for whatever arrives, and sleeps until they do. Before it sleeps it arms the
//! [watch](crate::network::Watch) of the device's connections, which rings the same doorbell.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fulmen_memory::Exposed;
use fulmen_reach::{Doorbell, ShareKey, spawn_without_signals};

use crate::device::{DeviceCore, lock};
use crate::directory::Directory;
use crate::layout::directory as at;
use crate::network::Watch;
use crate::remote::Remote;

/// A program that did not poll for this long is asleep or computes.
const POLLED_LATELY: Duration = Duration::from_millis(1);
/// A program that polled so often while the thread was in charge drives for itself.
const POLLS_TO_LEAVE: u64 = 64;
/// The longest sleep. It bounds what a peer can do that spoils the doorbell's words, so that a wake-up is lost.
const LONGEST: Duration = Duration::from_millis(250);
/// While the program polls, the thread looks after queue pairs at rest each so many times.
const LOOKS_AT_REST: u32 = 16;
/// How long the thread looks for more before it sleeps: about what it costs to wake it. A look takes the longer the more queue
/// pairs there are, and others may need the processor.
const LOOKS: Duration = Duration::from_micros(40);

pub(crate) struct Progress {
    directory: Directory,
    doorbell: Doorbell,
    /// Counts polls. Threads that race lose counts, which does not matter.
    polls: AtomicU64,
    in_charge: AtomicBool,
    /// `polls` when the thread took charge.
    polls_then: AtomicU64,
    /// Threads that wait on channels, and queues that promised a call: they rely on this thread.
    waiting: AtomicUsize,
    /// Mappings to be made, for as long as anybody needs their peer.
    jobs: Mutex<VecDeque<(Weak<Remote>, ShareKey)>>,
    /// Of the connections of a device that is on the network.
    watch: OnceLock<Arc<Watch>>,
    stopped: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Progress {
    pub(crate) fn new(directory: Directory, words: &Exposed) -> Progress {
        Progress {
            directory,
            doorbell: Doorbell::at(words, at::DOORBELL),
            polls: AtomicU64::new(0),
            in_charge: AtomicBool::new(false),
            polls_then: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            jobs: Mutex::default(),
            watch: OnceLock::new(),
            stopped: AtomicBool::new(false),
            thread: Mutex::default(),
        }
    }

    /// Called by each poll of a completion queue.
    #[inline]
    pub(crate) fn note_poll(&self) {
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        if polls.is_multiple_of(POLLS_TO_LEAVE)
            && self.in_charge.load(Ordering::Relaxed)
            && polls.wrapping_sub(self.polls_then.load(Ordering::Relaxed)) >= POLLS_TO_LEAVE
            && self.waiting.load(Ordering::Relaxed) == 0
        {
            // At once, since each message costs a call of the system until then, and the thread may get no processor for
            // long. It looks after this whether the program still polls; if it was just taking charge, it does so again.
            self.leave_charge();
            self.kick();
        }
    }

    /// Wakes the thread.
    pub(crate) fn kick(&self) {
        self.doorbell.ring();
    }

    /// Has the thread woken for connections, too.
    pub(crate) fn watch(&self, watch: &Arc<Watch>) {
        // A device has one network.
        let _ = self.watch.set(watch.clone());
    }

    /// Has the thread map what `remote` shares under `share`.
    pub(crate) fn map(&self, remote: Weak<Remote>, share: ShareKey) {
        lock(&self.jobs).push_back((remote, share));
        self.kick();
    }

    #[cfg(test)]
    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// Keeps the thread in charge as long as the guard lives.
    pub(crate) fn wait_for_events(self: &Arc<Progress>) -> Waiting {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if !self.in_charge.load(Ordering::SeqCst) {
            self.kick();
        }
        Waiting(self.clone())
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.kick();
        let handle = lock(&self.thread).take();
        // The thread itself may drop the last handle to the device; it ends after that.
        if let Some(handle) = handle.filter(|handle| handle.thread().id() != thread::current().id()) {
            // It cannot have panicked but for a bug, which its own message has told.
            let _ = handle.join();
        }
    }

    fn take_charge(&self) {
        if !self.in_charge.load(Ordering::Relaxed) {
            self.polls_then.store(self.polls.load(Ordering::Relaxed), Ordering::Relaxed);
            self.in_charge.store(true, Ordering::SeqCst);
        }
        self.directory.set_asleep(true);
        // Either a peer sees this and rings, or what it wrote is seen below.
        fence(Ordering::SeqCst);
    }

    fn leave_charge(&self) {
        self.directory.set_asleep(false);
        self.in_charge.store(false, Ordering::SeqCst);
    }

    fn run(&self, device: &Weak<DeviceCore>) {
        let mut polls = self.polls.load(Ordering::Relaxed);
        let mut idle: Option<Instant> = None;
        let mut looks = 0_u32;
        while !self.stopped.load(Ordering::SeqCst) {
            let seen = self.doorbell.sequence();
            let watch = self.watch.get().map(|watch| (watch, watch.swept()));
            let jobs = self.do_jobs();
            let polled = self.polls.load(Ordering::Relaxed).wrapping_sub(polls);
            polls = polls.wrapping_add(polled);
            let few = if self.in_charge.load(Ordering::Relaxed) {
                self.polls.load(Ordering::Relaxed).wrapping_sub(self.polls_then.load(Ordering::Relaxed))
                    < POLLS_TO_LEAVE
            } else {
                polled == 0
            };
            let waiting = self.waiting.load(Ordering::SeqCst) != 0;
            if waiting {
                // Who is called for each message polls a little after each, and drives nothing in between.
                self.polls_then.store(self.polls.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            if !few && !waiting {
                self.leave_charge();
                // Who came in between has seen the thread in charge, and did not wake it.
                if self.waiting.load(Ordering::SeqCst) == 0 {
                    let _ = self.doorbell.wait(seen, POLLED_LATELY);
                }
                // Whoever polls may poll one completion queue, and leave the others to this thread.
                looks = looks.wrapping_add(1);
                match device.upgrade() {
                    Some(device) => device.drive_idle(looks.is_multiple_of(LOOKS_AT_REST)),
                    None => return,
                }
                continue;
            }
            self.take_charge();
            let (worked, next) = match device.upgrade() {
                Some(device) => device.drive_all(),
                None => return,
            };
            let now = Instant::now();
            if worked {
                idle = None;
            }
            if now - *idle.get_or_insert(now) < LOOKS {
                // Answers often follow at once, and waking costs more than looking.
                std::hint::spin_loop();
                continue;
            }
            idle = None;
            if watch.is_some_and(|(watch, swept)| !watch.arm(swept)) {
                continue;
            }
            let next = next.into_iter().chain(jobs).min();
            let left = next.map_or(LONGEST, |next| next.saturating_duration_since(Instant::now()));
            let _ = self.doorbell.wait(seen, left.min(LONGEST));
            if let Some((watch, _)) = watch {
                watch.disarm();
            }
        }
    }

    /// Maps what was asked for: when to go on with what is left.
    fn do_jobs(&self) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let jobs = lock(&self.jobs).len();
        for _ in 0..jobs {
            let (weak, share) = lock(&self.jobs).pop_front()?;
            let Some(remote) = weak.upgrade().filter(|_| !self.stopped.load(Ordering::SeqCst)) else { continue };
            // Each peer that does not answer holds the others up once, and is left alone then.
            if remote.paused(Instant::now()).is_some() || !remote.map(share) {
                let again = remote.paused(Instant::now()).unwrap_or_else(Instant::now);
                next = Some(next.map_or(again, |next| next.min(again)));
                lock(&self.jobs).push_back((weak, share));
            }
        }
        next
    }
}

/// See [`Progress::wait_for_events`].
pub(crate) struct Waiting(Arc<Progress>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Starts a device's thread. It ends when the device is dropped.
pub(crate) fn start(device: &Arc<DeviceCore>) -> std::io::Result<()> {
    let progress = device.progress.clone();
    let weak = Arc::downgrade(device);
    let handle = spawn_without_signals("fulmen-soft", move || progress.run(&weak))?;
    *lock(&device.progress.thread) = Some(handle);
    Ok(())
}

#[cfg(test)]
mod tests {
    use fulmen_memory::Region;

    use super::*;

    #[test]
    fn who_polls_takes_charge_back_without_the_thread() {
        let words = Region::alloc(at::SIZE).unwrap().expose().unwrap();
        let progress = Arc::new(Progress::new(Directory::new(words.clone()), &words));
        let poll = |times| (0..times).for_each(|_| progress.note_poll());
        poll(POLLS_TO_LEAVE / 2);
        progress.take_charge();
        poll(POLLS_TO_LEAVE);
        assert!(progress.directory.is_asleep(), "so few polls since then do not say that the program drives");
        let before = progress.doorbell.sequence();
        poll(POLLS_TO_LEAVE);
        assert!(!progress.directory.is_asleep(), "peers need not ring");
        assert_eq!(progress.doorbell.sequence(), before.wrapping_add(1), "the thread looks whether polls go on, once");
        poll(4 * POLLS_TO_LEAVE);
        assert_eq!(progress.doorbell.sequence(), before.wrapping_add(1));
        // Whoever waits relies on the thread.
        progress.take_charge();
        let waiting = progress.wait_for_events();
        poll(4 * POLLS_TO_LEAVE);
        assert!(progress.directory.is_asleep());
        drop(waiting);
    }
}
