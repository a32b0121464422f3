//! The node's thread: it accepts peers, hands memory over, and watches the links that this process opened.

mod incoming;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use fulmen_memory::Region;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::error::System;
use crate::link::{Ended, Link, Reply};
use crate::node::OnNotice;
use crate::platform::{self, Listener};
use crate::socket::{Inbox, Received, send};
use crate::wire::{Frame, Unreadable};
use crate::{NodeAddress, ReachError, Refusal};
use incoming::Incoming;

/// Connections that a node serves at most.
const MOST_CONNECTIONS: usize = 1024;

/// How long no connection is accepted after the descriptors ran out, or nothing polled after polling failed.
const PAUSE: Duration = Duration::from_millis(50);

/// Frames taken from one connection before the others have their turn.
const FRAMES_A_TURN: usize = 16;

type OnDeath = dyn Fn(&NodeAddress) + Send + Sync;

/// What is called when a peer dies: for as long as the node is open, or as somebody else keeps it.
pub(crate) enum Callback {
    Owned(Arc<OnDeath>),
    Lent(Weak<OnDeath>),
}

impl Callback {
    fn get(&self) -> Option<Arc<OnDeath>> {
        match self {
            Callback::Owned(callback) => Some(callback.clone()),
            Callback::Lent(callback) => callback.upgrade(),
        }
    }
}

/// What the node's handles and its thread share.
pub(crate) struct Core {
    address: NodeAddress,
    /// The process that opened the node.
    process: u32,
    shares: Mutex<HashMap<u64, Region>>,
    on_death: Mutex<Vec<Callback>>,
    on_notice: Mutex<Vec<Weak<OnNotice>>>,
    /// Links for the thread to watch.
    adopted: Mutex<Vec<Arc<Link>>>,
    stopped: AtomicBool,
    wake: UnixStream,
}

impl Core {
    /// The shared part, and what becomes readable when the thread is to look at it.
    pub(crate) fn new(address: NodeAddress) -> io::Result<(Core, UnixStream)> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let core = Core {
            address,
            process: std::process::id(),
            shares: Mutex::default(),
            on_death: Mutex::default(),
            on_notice: Mutex::default(),
            adopted: Mutex::default(),
            stopped: AtomicBool::new(false),
            wake,
        };
        Ok((core, woken))
    }

    pub(crate) fn address(&self) -> &NodeAddress {
        &self.address
    }

    /// Whether this process is not the one that opened the node.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    pub(crate) fn share(&self, key: u64, region: Region) {
        lock(&self.shares).insert(key, region);
    }

    /// False if the key is taken.
    pub(crate) fn share_new(&self, key: u64, region: Region) -> bool {
        match lock(&self.shares).entry(key) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(region);
                true
            }
        }
    }

    pub(crate) fn unshare(&self, key: u64) -> bool {
        // The lock goes before the region, whose unmapping takes time.
        let region = lock(&self.shares).remove(&key);
        region.is_some()
    }

    fn shared(&self, key: u64) -> Option<Region> {
        lock(&self.shares).get(&key).cloned()
    }

    pub(crate) fn on_death(&self, callback: Callback) {
        let mut callbacks = lock(&self.on_death);
        // Those whose owners are gone go with the next one that comes, so that they cannot pile up.
        callbacks.retain(|known| match known {
            Callback::Owned(_) => true,
            Callback::Lent(callback) => callback.strong_count() > 0,
        });
        callbacks.push(callback);
    }

    pub(crate) fn on_notice(&self, callback: Weak<OnNotice>) {
        let mut callbacks = lock(&self.on_notice);
        callbacks.retain(|known| known.strong_count() > 0);
        callbacks.push(callback);
    }

    /// Tells whoever listens what the peer at `from` said.
    fn notice(&self, from: &NodeAddress, a: u64, b: u64) {
        let callbacks: Vec<Arc<OnNotice>> = lock(&self.on_notice).iter().filter_map(Weak::upgrade).collect();
        for callback in callbacks {
            // A callback that panics has said so by the panic's own message; the others are still served.
            let _ = catch_unwind(AssertUnwindSafe(|| callback(from, a, b)));
        }
    }

    #[cfg(test)]
    pub(crate) fn callbacks(&self) -> usize {
        lock(&self.on_death).len()
    }

    /// Has the thread watch a link, which it greets first.
    pub(crate) fn adopt(&self, link: Arc<Link>) -> Result<(), ReachError> {
        let hello = Frame::Hello(self.address).to_bytes();
        match send(link.socket(), &hello, None) {
            Ok(()) => {}
            // The other side hung up already, and may have said why: the thread reads it.
            Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(error) => return Err(error).system("greet a node"),
        }
        lock(&self.adopted).push(link);
        self.wake();
        Ok(())
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        // When there is no room, there are bytes to wake up by.
        let _ = (&self.wake).write(&[1]);
    }
}

fn is_ready(events: PollFlags) -> bool {
    !events.is_empty()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What there is to do after a wait.
struct Ready {
    woken: bool,
    acceptable: bool,
    outgoing: Vec<PollFlags>,
    /// Of each outgoing connection, whether the peer's process has ended.
    ended: Vec<bool>,
    incoming: Vec<PollFlags>,
}

struct Outgoing {
    link: Arc<Link>,
    inbox: Inbox,
}

pub(crate) struct Hub {
    core: Arc<Core>,
    listener: Listener,
    woken: UnixStream,
    outgoing: Vec<Outgoing>,
    incoming: Vec<Incoming>,
    /// When connections are accepted again.
    accept_from: Option<Instant>,
}

impl Hub {
    pub(crate) fn new(core: Arc<Core>, listener: Listener, woken: UnixStream) -> Hub {
        Hub { core, listener, woken, outgoing: Vec::new(), incoming: Vec::new(), accept_from: None }
    }

    pub(crate) fn run(mut self) {
        while !self.core.stopped.load(Ordering::Acquire) {
            self.outgoing.extend(lock(&self.core.adopted).drain(..).map(|link| Outgoing { link, inbox: Inbox::new() }));
            let Some(ready) = self.poll() else {
                std::thread::sleep(PAUSE);
                continue;
            };
            if ready.woken {
                self.drain_wake_ups();
            }
            self.serve_outgoing(&ready.outgoing, &ready.ended);
            self.serve_incoming(&ready.incoming);
            if ready.acceptable {
                self.accept();
            }
        }
    }

    /// Parks until something happens; what wake-ups, listener, outgoing and incoming connections are ready for.
    fn poll(&mut self) -> Option<Ready> {
        let now = Instant::now();
        self.accept_from = self.accept_from.filter(|from| *from > now);
        let greeting_due = self.incoming.iter().filter_map(Incoming::greeting_due).min();
        let until = greeting_due.into_iter().chain(self.accept_from).min();
        let timeout = until.map(|until| until.saturating_duration_since(now));
        // Rounded up, since the clock is looked at again.
        let timeout = timeout.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());

        let listening = if self.accept_from.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let watched = PollFlags::IN | platform::HANG_UP;
        let mut polled = Vec::with_capacity(2 + 2 * self.outgoing.len() + self.incoming.len());
        polled.push(PollFd::new(&self.woken, PollFlags::IN));
        polled.push(PollFd::new(self.listener.socket(), listening));
        polled.extend(self.outgoing.iter().map(|it| PollFd::from_borrowed_fd(it.link.socket(), watched)));
        polled.extend(self.incoming.iter().map(|it| PollFd::from_borrowed_fd(it.socket(), it.awaited())));
        let processes = self.outgoing.iter().filter_map(|it| it.link.process());
        polled.extend(processes.map(|process| PollFd::from_borrowed_fd(process, PollFlags::IN)));
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // More descriptors than the limit allows, or no memory: it may pass.
            Err(_) => return None,
        }
        let mut ready = polled.iter().map(PollFd::revents);
        let mut next = || ready.next().is_some_and(is_ready);
        let (woken, acceptable) = (next(), next());
        let outgoing = ready.by_ref().take(self.outgoing.len()).collect();
        let incoming = ready.by_ref().take(self.incoming.len()).collect();
        let watched = self.outgoing.iter().map(|it| it.link.process().is_some());
        let ended = watched.map(|watched| watched && ready.next().is_some_and(is_ready)).collect();
        Some(Ready { woken, acceptable, outgoing, ended, incoming })
    }

    fn drain_wake_ups(&mut self) {
        let mut bytes = [0; 64];
        while matches!((&self.woken).read(&mut bytes), Ok(read) if read == bytes.len()) {}
    }

    fn serve_outgoing(&mut self, ready: &[PollFlags], ended: &[bool]) {
        let mut ready = ready.iter().zip(ended);
        let mut deaths = Vec::new();
        self.outgoing.retain_mut(|outgoing| {
            let Some((events, ended)) = ready.next() else { return true };
            if !is_ready(*events) && !ended {
                return true;
            }
            let end = match outgoing.serve() {
                Ok(()) if *ended => Ended::HungUp,
                Ok(()) => return true,
                Err(end) => end,
            };
            if outgoing.link.end(end) {
                deaths.push(*outgoing.link.peer());
            }
            false
        });
        if deaths.is_empty() {
            return;
        }
        // A callback may register another one, so the lock is not held.
        let callbacks: Vec<Arc<OnDeath>> = lock(&self.core.on_death).iter().filter_map(Callback::get).collect();
        for death in &deaths {
            for callback in &callbacks {
                // A callback that panics has said so by the panic's own message; the others are still served.
                let _ = catch_unwind(AssertUnwindSafe(|| callback(death)));
            }
        }
    }

    fn serve_incoming(&mut self, ready: &[PollFlags]) {
        let mut ready = ready.iter();
        let now = Instant::now();
        let core = &self.core;
        self.incoming.retain_mut(|incoming| {
            let events = ready.next().copied().unwrap_or(PollFlags::empty());
            let hung_up = events.intersects(platform::HANG_UP | PollFlags::HUP);
            let served = !is_ready(events) || incoming.serve(core, hung_up);
            served && incoming.greeting_due().is_none_or(|due| due > now)
        });
    }

    fn accept(&mut self) {
        for _ in 0..FRAMES_A_TURN {
            let socket = match self.listener.socket().accept() {
                Ok((socket, _)) => socket,
                Err(error) => {
                    match Errno::from_io_error(&error) {
                        Some(Errno::AGAIN) => {}
                        Some(Errno::INTR | Errno::CONNABORTED) => continue,
                        // No descriptor or memory: the connection stays in the queue until the pause is over.
                        _ => self.accept_from = Some(Instant::now() + PAUSE),
                    }
                    return;
                }
            };
            let same_user =
                platform::peer_user(socket.as_fd()).is_ok_and(|user| user == rustix::process::geteuid().as_raw());
            if !same_user || socket.set_nonblocking(true).is_err() {
                continue;
            }
            if self.incoming.len() >= MOST_CONNECTIONS {
                let refused = Frame::Refused { request: 0, reason: Refusal::Busy }.to_bytes();
                // It has room: nothing was sent before.
                let _ = send(&socket, &refused, None);
                continue;
            }
            self.incoming.push(Incoming::new(socket.into()));
        }
    }
}

impl Outgoing {
    fn serve(&mut self) -> Result<(), Ended> {
        for _ in 0..FRAMES_A_TURN {
            let (bytes, descriptor) = match self.inbox.receive(self.link.socket()) {
                Received::Frame(bytes, descriptor) => (bytes, descriptor),
                Received::Nothing => break,
                Received::End => return Err(Ended::HungUp),
            };
            let frame = Frame::from_bytes(&bytes).map_err(|unreadable| match unreadable {
                Unreadable::Foreign => Ended::Foreign,
                Unreadable::Version(theirs) => Ended::Version(theirs),
            })?;
            let greeted = self.link.is_alive();
            match frame {
                Frame::Hello(address) if !greeted && address == *self.link.peer() => self.link.greet(),
                Frame::Refused { reason, .. } if !greeted => return Err(Ended::Refused(reason)),
                Frame::Mapped { request, len } if greeted => self.link.reply(request, Reply::Mapped(len, descriptor)),
                Frame::Refused { request, reason } if greeted => self.link.reply(request, Reply::Refused(reason)),
                _ => return Err(Ended::Foreign),
            }
        }
        Ok(())
    }
}
