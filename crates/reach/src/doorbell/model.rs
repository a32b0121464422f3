//! The doorbell: under loom, every order of rings and waits that the memory model allows; and the real one.

use std::time::{Duration, Instant};

use fulmen_memory::{Exposed, Region};

use super::listen::{hint, listen, notify, wait_on};
use super::*;

/// The two words as loom sees them, and the system's parking place.
struct Model {
    sequence: loom::sync::atomic::AtomicU32,
    waiters: loom::sync::atomic::AtomicU32,
    data: loom::sync::atomic::AtomicU32,
    place: loom::sync::Mutex<()>,
    woken: loom::sync::Condvar,
}

impl Model {
    fn new() -> loom::sync::Arc<Model> {
        loom::sync::Arc::new(Model {
            sequence: loom::sync::atomic::AtomicU32::new(0),
            waiters: loom::sync::atomic::AtomicU32::new(0),
            data: loom::sync::atomic::AtomicU32::new(0),
            place: loom::sync::Mutex::new(()),
            woken: loom::sync::Condvar::new(),
        })
    }
}

impl Words for Model {
    fn advance(&self) {
        self.sequence.fetch_add(1, Ordering::AcqRel);
    }

    fn sequence(&self) -> u32 {
        self.sequence.load(Ordering::Acquire)
    }

    fn sequence_by_write(&self) -> u32 {
        self.sequence.fetch_add(0, Ordering::AcqRel)
    }

    fn enter(&self) {
        self.waiters.fetch_add(1, Ordering::AcqRel);
    }

    fn leave(&self) {
        self.waiters.fetch_sub(1, Ordering::Release);
    }

    fn waiters(&self) -> u32 {
        self.waiters.load(Ordering::Acquire)
    }

    fn fence(&self) {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Never times out, so that a lost wake-up is a deadlock, which loom reports.
    fn park(&self, seen: u32, _: Instant) -> bool {
        let place = self.place.lock().unwrap();
        if self.sequence.load(Ordering::Relaxed) == seen {
            drop(self.woken.wait(place).unwrap());
        }
        true
    }

    fn unpark(&self) {
        let _place = self.place.lock().unwrap();
        self.woken.notify_all();
    }
}

/// Waits, as users do, until the data is `wanted`.
fn wait_for(model: &Model, wanted: u32) {
    loop {
        let seen = model.sequence();
        if model.data.load(Ordering::Relaxed) == wanted {
            return;
        }
        assert!(wait(model, seen, Instant::now()));
    }
}

#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let model = Model::new();
        let ringer = model.clone();
        let ringing = loom::thread::spawn(move || {
            ringer.data.store(1, Ordering::Relaxed);
            ring(&*ringer);
        });
        wait_for(&model, 1);
        ringing.join().unwrap();
        assert_eq!(model.waiters.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn every_waiter_wakes() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let model = Model::new();
        let other = model.clone();
        let waiting = loom::thread::spawn(move || wait_for(&other, 1));
        let ringer = model.clone();
        let ringing = loom::thread::spawn(move || {
            ringer.data.store(1, Ordering::Relaxed);
            ring(&*ringer);
        });
        wait_for(&model, 1);
        waiting.join().unwrap();
        ringing.join().unwrap();
    });
}

/// Waits for data that is announced by [`notify`], as listeners do: look, listen, look again, wait. Data only grows.
fn listen_for(model: &Model, wanted: u32) {
    while model.data.load(Ordering::Relaxed) < wanted {
        let seen = listen(model);
        if model.data.load(Ordering::Relaxed) < wanted {
            assert!(wait_on(model, seen, Instant::now()));
        }
        model.leave();
    }
}

#[test]
fn no_notification_is_lost() {
    loom::model(|| {
        let model = Model::new();
        let notifier = model.clone();
        let notifying = loom::thread::spawn(move || {
            notifier.data.store(1, Ordering::Relaxed);
            notify(&*notifier);
        });
        listen_for(&model, 1);
        notifying.join().unwrap();
        assert_eq!(model.waiters.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn no_notification_of_several_is_lost() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let model = Model::new();
        let notifier = model.clone();
        let notifying = loom::thread::spawn(move || {
            for value in 1..=2 {
                notifier.data.store(value, Ordering::Relaxed);
                notify(&*notifier);
            }
        });
        let other = model.clone();
        let listening = loom::thread::spawn(move || listen_for(&other, 2));
        listen_for(&model, 2);
        listening.join().unwrap();
        notifying.join().unwrap();
    });
}

/// Who misses a hint is woken by the notification that follows it, also who listens for what the hint was about.
#[test]
fn what_a_hint_misses_the_notification_after_it_brings() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    for wanted in 1..=2 {
        builder.check(move || {
            let model = Model::new();
            let writer = model.clone();
            let writing = loom::thread::spawn(move || {
                writer.data.store(1, Ordering::Relaxed);
                hint(&*writer);
                writer.data.store(2, Ordering::Relaxed);
                notify(&*writer);
            });
            listen_for(&model, wanted);
            writing.join().unwrap();
            assert_eq!(model.waiters.load(Ordering::Relaxed), 0);
        });
    }
}

fn memory() -> Exposed {
    Region::alloc(4096).unwrap().expose().unwrap()
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_ring_before_the_wait_counts() {
    let bell = Doorbell::at(&memory(), 64);
    let seen = bell.sequence();
    bell.ring();
    assert!(bell.wait(seen, Duration::ZERO));
    assert!(!bell.wait(bell.sequence(), Duration::ZERO));
    assert!(!bell.wait(bell.sequence(), Duration::from_millis(1)));
}

#[test]
fn a_wait_that_timed_out_leaves_no_waiter() {
    let memory = memory();
    let bell = Doorbell::at(&memory, 8);
    assert!(!bell.wait(0, Duration::from_millis(1)));
    bell.ring();
    assert!(bell.wait(0, Duration::MAX));
    assert_eq!(memory.atomic_u32(12).load(Ordering::Relaxed), 0);
}

#[test]
fn two_threads_take_turns() {
    let memory = memory();
    let (ping, pong) = (Doorbell::at(&memory, 0), Doorbell::at(&memory, 64));
    const TURNS: u32 = 2_000;
    let (heard, answer) = (ping.clone(), pong.clone());
    let other = std::thread::spawn(move || {
        for turn in 0..TURNS {
            assert!(heard.wait(turn, LONG), "turn {turn}");
            answer.ring();
        }
    });
    for turn in 0..TURNS {
        ping.ring();
        assert!(pong.wait(turn, LONG), "turn {turn}");
    }
    other.join().unwrap();
}

#[test]
fn a_dead_waiter_costs_nothing_but_calls() {
    let memory = memory();
    let bell = Doorbell::at(&memory, 0);
    memory.atomic_u32(4).store(1, Ordering::Relaxed);
    bell.ring();
    assert!(bell.wait(0, Duration::ZERO));
    assert_eq!(bell.sequence(), 1);
}

#[test]
#[should_panic(expected = "not aligned to 8")]
fn a_doorbell_is_aligned() {
    let _ = Doorbell::at(&memory(), 4);
}
