//! Which connections have something, and who is woken for it.
//!
//! All connections of a device are in one set of the system's, which tells of each once when something changes (edges).
//! *Sweeping* the set asks, without waiting, what changed, and notes it at each connection. Whoever polls sweeps first, even
//! for one connection: on Linux 6.18 that costs 190 ns, and to try a read in vain 620 ns.
//!
//! While the program polls, nobody waits on the set, and no thread is woken. When the device's thread is in charge and is about
//! to sleep, it *arms* the set: the network's thread, which sleeps on a set of sets, is then woken by the next change, once,
//! and kicks the device's thread.
//!
//! No change is missed between the last look and the sleep:
//! - The device's thread remembers its doorbell's count and `swept` before it drives the queue pairs, and arms after that.
//!   A change after a queue pair was driven is in the set, or somebody has swept it out.
//! - If it is in the set, arming finds it there (the system looks when a set is armed, not only at what comes later), and
//!   so does the sweep just before: the network's thread kicks, or the device's thread does not sleep.
//! - If somebody has swept it out, this one has noted it first and then counted `swept`, and after that looks at `armed`;
//!   the device's thread says `armed` first and looks at `swept` after that. All four are in one order (SeqCst), so either
//!   the device's thread sees the count and drives once more, or the other one sees `armed` and kicks.
//! - A kick between the remembered count of the doorbell and the sleep makes the sleep return at once.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::socket::{self, Event, Poller};
use super::stream::Core;
use crate::device::lock;
use crate::progress::Progress;

/// Changes that are asked for at once.
pub(super) const AT_ONCE: usize = 64;
/// A host that owes an answer for this long and does not give any is gone, or the way to it is.
const SILENCE: Duration = Duration::from_secs(10);

const SOCKETS: u64 = 0;
const LISTENER: u64 = 1;
const BELL: u64 = 2;

/// Names a connection within the set: its place, and which of those who have had that place it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    place: u32,
    generation: u32,
}

impl Token {
    fn number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.place)
    }
}

#[derive(Default)]
struct Table {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Default)]
struct Place {
    generation: u32,
    core: Weak<Core>,
    /// Since when the peer's host has owed an answer and has given none.
    owing: Option<Instant>,
}

/// Why the network's thread woke.
#[derive(Default)]
pub(super) struct Woken {
    /// Somebody connects.
    pub(super) listener: bool,
    /// Something changed while the set was armed.
    pub(super) sockets: bool,
}

pub(crate) struct Watch {
    progress: Weak<Progress>,
    /// The set of the connections.
    sockets: Poller,
    /// The set of that set, the listener and the bell.
    outer: Poller,
    /// By which the network's thread is woken for other reasons.
    bell: [UnixStream; 2],
    table: Mutex<Table>,
    count: AtomicUsize,
    swept: AtomicU64,
    armed: AtomicBool,
    /// How often an armed set has woken the network's thread.
    alarms: AtomicU64,
}

impl Watch {
    pub(super) fn new(progress: &Arc<Progress>, listener: &TcpListener) -> io::Result<Watch> {
        let (sockets, outer) = (Poller::new()?, Poller::new()?);
        let bell = UnixStream::pair().map(|(one, other)| [one, other])?;
        bell.iter().try_for_each(|end| end.set_nonblocking(true))?;
        outer.add_set(&sockets, SOCKETS)?;
        outer.add_level(listener, LISTENER)?;
        outer.add_level(&bell[1], BELL)?;
        Ok(Watch {
            progress: Arc::downgrade(progress),
            sockets,
            outer,
            bell,
            table: Mutex::default(),
            count: AtomicUsize::new(0),
            swept: AtomicU64::new(0),
            armed: AtomicBool::new(false),
            alarms: AtomicU64::new(0),
        })
    }

    pub(super) fn add(&self, core: &Arc<Core>) -> io::Result<Token> {
        let mut table = lock(&self.table);
        let place = table.free.pop().unwrap_or(table.places.len() as u32);
        if place as usize == table.places.len() {
            table.places.push(Place::default());
        }
        let entry = &mut table.places[place as usize];
        let token = Token { place, generation: entry.generation };
        // Under the lock, so that the first change finds the connection.
        if let Err(error) = self.sockets.add_edges(core.line.tcp(), token.number()) {
            table.free.push(place);
            return Err(error);
        }
        (entry.core, entry.owing) = (Arc::downgrade(core), None);
        drop(table);
        if self.count.fetch_add(1, Ordering::Relaxed) == 0 {
            // From now on somebody looks after it.
            self.wake();
        }
        Ok(token)
    }

    pub(super) fn remove(&self, token: Token, tcp: &TcpStream) {
        // Closing it removes it as well, unless a child that was forked has it, too.
        let _ = self.sockets.remove(tcp);
        let mut table = lock(&self.table);
        let entry = &mut table.places[token.place as usize];
        *entry = Place { generation: entry.generation.wrapping_add(1), ..Place::default() };
        table.free.push(token.place);
        drop(table);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Notes at each connection what changed; true if anything did.
    pub(super) fn sweep(&self) -> bool {
        let mut found = false;
        loop {
            let mut events = [Event::BLANK; AT_ONCE];
            let count = self.sockets.wait(&mut events, Some(Duration::ZERO)).unwrap_or(0);
            if count > 0 {
                found = true;
                let table = lock(&self.table);
                events[..count].iter().for_each(|event| table.note(event));
            }
            if count < AT_ONCE {
                break;
            }
        }
        if found {
            self.swept.fetch_add(1, Ordering::SeqCst);
            if self.armed.load(Ordering::SeqCst) {
                self.kick();
            }
        }
        found
    }

    /// What [`Watch::arm`] wants to know, taken before the queue pairs are driven.
    pub(crate) fn swept(&self) -> u64 {
        self.swept.load(Ordering::SeqCst)
    }

    /// Before the device's thread sleeps: from now on a change kicks it. False if something changed since `swept` was taken,
    /// for which it has to drive the queue pairs once more.
    pub(crate) fn arm(&self, swept: u64) -> bool {
        if self.is_empty() {
            return true;
        }
        // What piled up while the program polled is old, and would wake everybody for nothing.
        if self.sweep() {
            return false;
        }
        self.armed.store(true, Ordering::SeqCst);
        if self.swept.load(Ordering::SeqCst) != swept || self.outer.arm_set(&self.sockets, SOCKETS).is_err() {
            self.disarm();
            return false;
        }
        true
    }

    /// The device's thread does not sleep any more. The set stays armed, and wakes the network's thread at most once in vain.
    pub(crate) fn disarm(&self) {
        self.armed.store(false, Ordering::SeqCst);
    }

    /// Wakes the network's thread.
    pub(super) fn wake(&self) {
        // If it is full, the thread is about to wake.
        let _ = (&self.bell[0]).write(&[1]);
    }

    /// Sleeps until somebody connects, an armed set changes, [`Watch::wake`] or the time has passed.
    pub(super) fn sleep(&self, time: Option<Duration>) -> Woken {
        let mut events = [Event::BLANK; 4];
        let count = self.outer.wait(&mut events, time).unwrap_or(0);
        let mut woken = Woken::default();
        for event in &events[..count] {
            match event.token {
                SOCKETS => {
                    self.alarms.fetch_add(1, Ordering::Relaxed);
                    woken.sockets = true;
                }
                LISTENER => woken.listener = true,
                _ => while matches!((&self.bell[1]).read(&mut [0; 64]), Ok(64)) {},
            }
        }
        woken
    }

    fn kick(&self) {
        if let Some(progress) = self.progress.upgrade() {
            progress.kick();
        }
    }

    /// Ends the connections whose peer's host has owed an answer for too long.
    ///
    /// The system has a time-out for this (TCP_USER_TIMEOUT), which also ends connections to peers that are there and read
    /// nothing for a while, as a stopped process does. Theirs answer, though their window stays shut.
    pub(super) fn look_after(&self) {
        let now = Instant::now();
        let mut silent = Vec::new();
        for entry in &mut lock(&self.table).places {
            let Some(core) = entry.core.upgrade() else { continue };
            let owed = socket::owed(core.line.tcp());
            entry.owing = owed.map(|last_answer| {
                let since = entry.owing.unwrap_or(now);
                // An answer since then is an answer.
                now.checked_sub(last_answer).map_or(since, |answered| since.max(answered))
            });
            if entry.owing.is_some_and(|since| now - since >= SILENCE) {
                silent.push(core);
            }
        }
        for core in silent {
            let peer = core.line.tcp().peer_addr().ok();
            tracing::warn!(?peer, "a peer's host answers nothing for {SILENCE:?}: the connection is given up");
            core.give_up(format!("the peer's host has answered nothing for {SILENCE:?}: it is off, or the network is"));
        }
    }

    #[cfg(test)]
    pub(super) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn alarms(&self) -> u64 {
        self.alarms.load(Ordering::Relaxed)
    }
}

impl Table {
    fn note(&self, event: &Event) {
        let (place, generation) = (event.token as u32, (event.token >> 32) as u32);
        let entry = self.places.get(place as usize).filter(|entry| entry.generation == generation);
        if let Some(core) = entry.and_then(|entry| entry.core.upgrade()) {
            core.tell(event.readable, event.writable, event.hung_up);
        }
    }
}
