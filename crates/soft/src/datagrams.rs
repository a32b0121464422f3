//! Datagrams: queue pairs without a connection, whose messages say where they go.
//!
//! All that goes from one device to another one, whichever queue pairs it is between, goes through one *datagram wire*:
//! a ring in shared memory, made on the first message to that device and kept while there is an address handle for it
//! (and a moment longer). The sender connects to the receiver's node and gives it *notice* of the wire; the receiver's
//! thread connects back, which proves who the sender is, maps the wire and takes what comes out of it from then on, as
//! does whoever polls a completion queue of a datagram queue pair. Messages that go out meanwhile wait for that.
//!
//! A datagram is done when it is in the ring, and from then on arrives whatever becomes of the sender. It is lost without
//! a word if nobody is there, the key or the number is wrong, or no RECV is posted
//! ([`SoftOptions::recv_patience`](crate::SoftOptions::recv_patience)). A receiver that lives is waited for while its ring
//! is full, since the programs that people run are written for networks that seldom lose anything.

mod address;
mod incoming;
mod message;
mod pair;
mod receive;
mod route;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

use fulmen_reach::{Node, NodeAddress, OnNotice, ShareKey};
use fulmen_verbs::Budget;

use crate::device::{DeviceCore, lock};
use crate::pair::Driven;
use crate::progress::Progress;
use address::Address;
use incoming::{Attach, Attached, Attaching, Incoming};
use pair::UdPair;
use route::{Route, Sought};

pub(crate) use address::create as create_address;
pub(crate) use pair::create as create_pair;

/// How long the way to a device is kept that no address handle names.
const IDLE_FOR: Duration = Duration::from_secs(1);
/// How long the device's thread connects to peers before it looks at its other work.
const PEERS_A_TURN: Duration = Duration::from_millis(200);
/// Senders that a device listens to, and notices that it has not looked at.
const MOST_SENDERS: usize = 4096;

/// By what one device tells another one of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Notice {
    /// The sender's number on its node.
    from: u32,
    /// The receiver's number on its node.
    to: u32,
    share: ShareKey,
}

impl Notice {
    const TAG: u64 = u32::from_be_bytes(*b"FLMD") as u64;

    fn to_numbers(self) -> (u64, u64) {
        (Self::TAG << 32 | u64::from(self.from) << 16 | u64::from(self.to), self.share.to_u64())
    }

    fn from_numbers(a: u64, b: u64) -> Option<Notice> {
        let [from, to] = [a >> 16, a].map(|number| number as u32 & 0xFFFF);
        let devices = from < crate::device::MOST_DEVICES && to < crate::device::MOST_DEVICES;
        (a >> 32 == Self::TAG && devices).then_some(Notice { from, to, share: ShareKey::from_u64(b) })
    }
}

/// Messages that came and were dropped, by reason.
#[derive(Default)]
struct Counts {
    damaged: AtomicU64,
    no_pair: AtomicU64,
    wrong_key: AtomicU64,
    no_recv: AtomicU64,
}

impl Counts {
    fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A route, and since when nobody uses it.
struct Kept {
    route: Arc<Route>,
    idle_since: Option<Instant>,
}

/// The datagrams of one device.
pub(crate) struct Datagrams {
    pairs: RwLock<HashMap<u32, Arc<UdPair>>>,
    addresses: RwLock<HashMap<u32, Arc<Address>>>,
    next_address: AtomicU32,
    budget: Budget,
    routes: Mutex<HashMap<(NodeAddress, u32), Kept>>,
    /// Routes whose receiver is to be found, how often that was tried, and when it is tried again.
    sought: Mutex<VecDeque<(Arc<Route>, u32, Instant)>>,
    incoming: Mutex<Vec<Incoming>>,
    attaching: Arc<Mutex<Attaching>>,
    counts: Counts,
    /// Called by the node as long as the device is there.
    _on_notice: Arc<OnNotice>,
}

impl Datagrams {
    /// Those of device `index` of `node`, which is called `name`.
    pub(crate) fn new(node: &Node, index: u32, name: &str, progress: &Arc<Progress>) -> Datagrams {
        let attaching = Arc::new(Mutex::new(Attaching::default()));
        let (noted, kicked) = (attaching.clone(), progress.clone());
        let on_notice: Arc<OnNotice> = Arc::new(move |from, a, b| {
            if let Some(notice) = Notice::from_numbers(a, b).filter(|notice| notice.to == index) {
                lock(&noted).note(Attach::new(*from, notice));
                kicked.kick();
            }
        });
        node.on_notice_while(Arc::downgrade(&on_notice));
        Datagrams {
            pairs: RwLock::default(),
            addresses: RwLock::default(),
            next_address: AtomicU32::new(1),
            budget: Budget::new(name, "address handles", address::MOST_HANDLES),
            routes: Mutex::default(),
            sought: Mutex::default(),
            incoming: Mutex::default(),
            attaching,
            counts: Counts::default(),
            _on_notice: on_notice,
        }
    }

    fn pairs(&self) -> RwLockReadGuard<'_, HashMap<u32, Arc<UdPair>>> {
        self.pairs.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn pairs_mut(&self) -> RwLockWriteGuard<'_, HashMap<u32, Arc<UdPair>>> {
        self.pairs.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn addresses(&self) -> RwLockReadGuard<'_, HashMap<u32, Arc<Address>>> {
        self.addresses.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn addresses_mut(&self) -> RwLockWriteGuard<'_, HashMap<u32, Arc<Address>>> {
        self.addresses.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way to device `index` of the node at `node`.
    fn route(&self, node: NodeAddress, index: u32) -> Arc<Route> {
        let mut routes = lock(&self.routes);
        let fresh = || Kept { route: Arc::new(Route::new(node, index)), idle_since: None };
        routes.entry((node, index)).or_insert_with(fresh).route.clone()
    }

    /// Has the device's thread look for a route's receiver.
    fn seek(&self, route: Arc<Route>) {
        lock(&self.sought).push_back((route, 0, Instant::now()));
    }

    /// Does whatever can be done now, for a program that polls.
    #[inline]
    pub(crate) fn drive(&self) {
        // Whoever holds it takes what came.
        match self.incoming.try_lock() {
            Ok(mut incoming) => self.take(&mut incoming),
            Err(TryLockError::Poisoned(poisoned)) => self.take(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Driven::default(),
        };
        for pair in self.pairs().values().filter(|pair| pair.has_waiting()) {
            pair.drive();
        }
    }

    /// The same with all that takes time or depends on it, for the device's thread.
    pub(crate) fn serve(&self, device: &DeviceCore) -> Driven {
        let mut driven = Driven { next: self.find_peers(device), ..Driven::default() };
        driven.join(self.take(&mut lock(&self.incoming)));
        for pair in self.pairs().values() {
            driven.join(pair.drive());
            driven.join(pair.look_at_clock(&self.counts));
        }
        self.leave_idle_routes();
        driven
    }

    /// Waits for threads of this process that are just copying a message.
    pub(crate) fn wait_for_copies(&self) {
        self.pairs().values().for_each(|pair| drop(pair.inner()));
    }

    /// Takes what has come from all senders, and lets those go that are gone.
    fn take(&self, incoming: &mut Vec<Incoming>) -> Driven {
        let mut driven = Driven::default();
        incoming.retain_mut(|sender| {
            let look = sender.look(self);
            driven.join(Driven { worked: look.worked, next: look.next, ..Driven::default() });
            !look.over
        });
        driven
    }

    /// Connects to receivers and senders: when to go on with those that did not answer.
    fn find_peers(&self, device: &DeviceCore) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let mut again = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
        // Many peers that do not answer are asked by and by, with the other work in between.
        let end = Instant::now() + PEERS_A_TURN;
        let sought = lock(&self.sought).len();
        for _ in 0..sought {
            let Some((route, tried, at)) = lock(&self.sought).pop_front() else { break };
            let now = Instant::now();
            if at > now || now >= end {
                again(at);
                lock(&self.sought).push_back((route, tried, at));
            } else if let Sought::Again(at) = route.seek(device, tried) {
                again(at);
                lock(&self.sought).push_back((route, tried + 1, at));
            }
        }
        let attaching = lock(&self.attaching).len();
        for _ in 0..attaching {
            let Some((sender, at)) = lock(&self.attaching).next() else { break };
            let now = Instant::now();
            if at > now || now >= end {
                again(at);
                lock(&self.attaching).again(sender, at);
                continue;
            }
            match sender.attach(device) {
                Attached::Yes(sender) => self.add_sender(sender),
                Attached::Again(sender, at) => {
                    again(at);
                    lock(&self.attaching).again(sender, at);
                }
                Attached::No => {}
            }
        }
        next
    }

    fn add_sender(&self, sender: Incoming) {
        let mut incoming = lock(&self.incoming);
        // A wire has one reader, however often its sender gives notice.
        let known = incoming.iter().any(|known| known.notice.share == sender.notice.share);
        if !known && incoming.len() < MOST_SENDERS {
            incoming.push(sender);
        }
    }

    fn leave_idle_routes(&self) {
        let mut left = Vec::new();
        lock(&self.routes).retain(|_, kept| {
            kept.route.look_after();
            // Handles and messages hold it, too.
            if Arc::strong_count(&kept.route) > 1 {
                kept.idle_since = None;
                return true;
            }
            let now = Instant::now();
            let stays = now.saturating_duration_since(*kept.idle_since.get_or_insert(now)) < IDLE_FOR;
            if !stays {
                left.push(kept.route.clone());
            }
            stays
        });
    }
}
