//! The device on the network: where others find it, and how its queue pairs meet those of other hosts.
//!
//! A device with [`NetworkOptions`](crate::NetworkOptions) listens at an IP address and a TCP port, which are its GID and
//! its LID. On the way to RTR the peer's device is asked on which host it is ([`Network::place`]). On this host, queue pairs
//! connect through shared memory. On another one, each pair of queue pairs has one TCP connection ([`Network::meet`]).
//!
//! Of two ends the smaller one (address, port, number) opens the connection. The other one only asks, so that its program
//! learns whether there is such a queue pair, and waits for nobody: the connection comes when the peer goes to RTR. One that
//! comes before this side's RTR waits, unread, for [`Network::collect`]. Neither side's RTR needs the other one's program,
//! only its device, whose thread and short-lived helpers answer ([`listen`]).
//!
//! With [`on_first_use`](crate::NetworkOptions::on_first_use) that happens when there is something to send, on a helper's thread
//! ([`Network::meet_later`]), and who is asked by the other end opens the connection then. It is collected at either end.
//!
//! Whoever polls reads and writes the sockets. While nobody does, the device's thread sleeps, and [`watch`] wakes it.

mod address;
mod dial;
mod error;
pub(crate) mod hello;
mod line;
mod listen;
pub(crate) mod scout;
#[allow(unsafe_code)]
mod socket;
mod stream;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fulmen_reach::{Node, NodeAddress, spawn_without_signals};
use fulmen_trust::Identity;
use fulmen_verbs::Gid;

use crate::device::lock;
use crate::progress::Progress;
use crate::{NetworkOptions, OpenError, Profile};
pub(crate) use error::{Ended, Failure, Unreached};
pub(crate) use hello::{End, PeerEnd, Verdict};
use listen::Crowd;
pub(crate) use stream::{Out, Room, Stream};
pub(crate) use watch::Watch;

/// Connections of peers that wait for one queue pair. A newer one drives out the oldest.
const MOST_WAITING: usize = 4;
/// How long a connection may wait for a queue pair that its program does not connect.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// How long what was sent last may take to arrive once its queue pair is gone.
const LEAVE_TIME: Duration = Duration::from_secs(10);

/// Where a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On this host, on this node.
    Here(NodeAddress),
    /// On another one.
    There,
}

/// What [`Network::meet`] gives.
pub(crate) struct Met {
    /// The peer, with the incarnation that it had.
    pub(crate) peer: End,
    /// The connection, at the end that opens it. At the other end it comes later.
    pub(crate) stream: Option<Stream>,
}

/// Why a queue pair has no connection, although one was to be opened for it later.
struct Missed {
    number: u32,
    incarnation: u64,
    why: String,
}

/// Who knows the queue pairs of a device.
pub(crate) trait Door: Send + Sync {
    /// How queue pair `number` takes it that `from` wants to connect to it. It is welcome as long as the queue pair has no
    /// peer, and when `from` is its peer and their connection has not come yet. Called without any lock of the network.
    fn knock(&self, from: &End, number: u32) -> Verdict;

    /// Has queue pair `number` look for its connection: false if there is none of this incarnation any more. Called without any
    /// lock of the network.
    fn rouse(&self, number: u32, incarnation: u64) -> bool;
}

/// A connection that came before its queue pair wanted it.
struct Waiting {
    number: u32,
    /// What the queue pair was when the connection came.
    incarnation: u64,
    from: End,
    stream: Stream,
    since: Instant,
}

/// A connection whose queue pair is gone, while what was sent last goes to the peer. To close it at once, with something
/// unread in it, could take that back.
struct Leaving {
    stream: Stream,
    /// What the system does not have yet.
    rest: Vec<u8>,
    /// The peer was not told yet that nothing more comes.
    sends: bool,
    until: Instant,
}

impl Leaving {
    /// Does what can be done now; false once it is over.
    fn go_on(&mut self) -> bool {
        if self.sends {
            match self.stream.send(&[Out::Bytes(&self.rest)]) {
                Ok(sent) => drop(self.rest.drain(..sent)),
                Err(_) => return false,
            }
            self.sends = !self.rest.is_empty() || !self.stream.flush().unwrap_or(true);
            if !self.sends {
                self.stream.end_sending();
            }
        }
        // What the peer still sends is for nobody.
        let mut nothing = [0; 16 << 10];
        for _ in 0..64 {
            match self.stream.receive(&mut [Room::Bytes(&mut nothing)]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

pub(crate) struct Network {
    address: SocketAddr,
    /// Of link-local addresses: on which interface they are.
    scope: u32,
    host: [u8; 16],
    node: NodeAddress,
    profile: Profile,
    seal: Option<Identity>,
    listener: TcpListener,
    watch: Arc<Watch>,
    progress: Arc<Progress>,
    door: OnceLock<Weak<dyn Door>>,
    places: Mutex<HashMap<SocketAddr, Place>>,
    waiting: Mutex<Vec<Waiting>>,
    missed: Mutex<Vec<Missed>>,
    leaving: Mutex<Vec<Leaving>>,
    arrivals: AtomicU64,
    on_first_use: bool,
    crowd: Crowd,
    stopped: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Network {
    /// Listens as `options` say. Nobody is answered before [`Network::start`].
    pub(crate) fn open(
        node: &Node,
        profile: Profile,
        options: &NetworkOptions,
        progress: &Arc<Progress>,
    ) -> Result<Network, OpenError> {
        let asked = options.listen;
        if !address::is_usable(asked.ip()) {
            return Err(OpenError::Unspecified { address: asked });
        }
        let failed = |cause| OpenError::Listen { address: asked, cause };
        let listener = listen::open(asked).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let scope = if let SocketAddr::V6(asked) = asked { asked.scope_id() } else { 0 };
        let watch =
            Watch::new(progress, &listener).map_err(|cause| OpenError::System { action: "watch sockets", cause })?;
        Ok(Network {
            address: address::plain(bound),
            scope,
            host: options.host.unwrap_or_else(|| node.address().host_id()),
            node: node.address(),
            profile,
            seal: options.seal.clone(),
            listener,
            watch: Arc::new(watch),
            progress: progress.clone(),
            door: OnceLock::new(),
            places: Mutex::default(),
            waiting: Mutex::default(),
            missed: Mutex::default(),
            leaving: Mutex::default(),
            arrivals: AtomicU64::new(0),
            on_first_use: options.on_first_use,
            crowd: Crowd::default(),
            stopped: AtomicBool::new(false),
            thread: Mutex::default(),
        })
    }

    /// Answers peers from now on, by what `door` says of queue pairs.
    pub(crate) fn start(self: &Arc<Network>, door: Weak<dyn Door>) -> io::Result<()> {
        // It is called once.
        let _ = self.door.set(door);
        self.progress.watch(&self.watch);
        let network = self.clone();
        let handle = spawn_without_signals("fulmen-soft-net", move || listen::run(&network))?;
        *lock(&self.thread) = Some(handle);
        Ok(())
    }

    /// Ends the thread and all that waits.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.watch.wake();
        self.crowd.send_away();
        let handle = lock(&self.thread).take();
        if let Some(handle) = handle.filter(|handle| handle.thread().id() != thread::current().id()) {
            // It cannot have panicked but for a bug, which its own message has told.
            let _ = handle.join();
        }
        lock(&self.waiting).clear();
        // What they still have to send, the system sends.
        for mut one in lock(&self.leaving).drain(..) {
            one.go_on();
        }
    }

    /// Where peers find the device.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn gid(&self) -> Gid {
        address::gid_of(self.address.ip())
    }

    pub(crate) fn lid(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.seal.is_some()
    }

    /// Whether connections are opened when there is something to send.
    pub(crate) fn is_on_first_use(&self) -> bool {
        self.on_first_use
    }

    /// The address that a path names.
    pub(crate) fn peer_at(&self, gid: Gid, lid: u16) -> Result<SocketAddr, Unreached> {
        match address::ip_of(gid) {
            Some(ip) if lid != 0 => Ok(SocketAddr::new(ip, lid)),
            _ => Err(Unreached::Address { gid, lid }),
        }
    }

    /// Where the device at `peer` is. It is asked once, and again after [`Network::forget`].
    pub(crate) fn place(&self, peer: SocketAddr, until: Instant) -> Result<Place, Unreached> {
        let peer = address::plain(peer);
        if peer == self.address {
            return Ok(Place::Here(self.node));
        }
        if let Some(place) = lock(&self.places).get(&peer) {
            return Ok(*place);
        }
        let place = self.ask_place(peer, until)?;
        lock(&self.places).insert(peer, place);
        Ok(place)
    }

    /// Has the device at `peer` asked anew: what was known of it has turned out wrong. (Another device may have its address
    /// now.)
    pub(crate) fn forget(&self, peer: SocketAddr) {
        lock(&self.places).remove(&address::plain(peer));
    }

    /// Opens the connection of two queue pairs, or finds out that the peer may open it.
    ///
    /// A peer that is in error, or connected otherwise, is asked again until the deadline, since it may be about to be reset.
    pub(crate) fn meet(&self, own: &End, peer: &PeerEnd, until: Instant) -> Result<Met, Failure> {
        let met = self.dial_for(own, peer, until);
        if met.is_err() {
            self.forget(peer.device);
        }
        met
    }

    /// Does that on another thread, in `patience` at most. What comes of it, [`Network::collect`] gives. It may be called with the
    /// queue pair locked.
    pub(crate) fn meet_later(self: &Arc<Network>, own: End, peer: PeerEnd, patience: Duration) {
        let network = self.clone();
        let opened = spawn_without_signals("fulmen-soft-dial", move || {
            match network.meet(&own, &peer, Instant::now() + patience) {
                Ok(Met { peer, stream: Some(stream) }) => network.admit(peer, own.number, own.incarnation, stream),
                // The peer opens it.
                Ok(Met { stream: None, .. }) => {}
                Err(failure) => network.miss(&own, failure.to_string()),
            }
        });
        if let Err(cause) = opened {
            // Whoever called is at the queue pair.
            self.note_miss(&own, format!("no thread to open a connection: {cause}"));
            self.arrivals.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Notes why a queue pair has no connection.
    fn note_miss(&self, own: &End, why: String) {
        lock(&self.missed).push(Missed { number: own.number, incarnation: own.incarnation, why });
    }

    /// Tells a queue pair why it has no connection.
    fn miss(&self, own: &End, why: String) {
        let (number, incarnation) = (own.number, own.incarnation);
        self.note_miss(own, why);
        if !self.announce(number, incarnation) {
            lock(&self.missed).retain(|one| (one.number, one.incarnation) != (number, incarnation));
        }
    }

    /// Something has come for a queue pair: false if there is none of this incarnation any more.
    fn announce(&self, number: u32, incarnation: u64) -> bool {
        self.arrivals.fetch_add(1, Ordering::SeqCst);
        let known = self.door.get().and_then(Weak::upgrade).is_some_and(|door| door.rouse(number, incarnation));
        self.progress.kick();
        known
    }

    /// How many connections have come. Who misses one looks with [`Network::collect`] whenever this changes.
    #[inline]
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals.load(Ordering::SeqCst)
    }

    /// The connection of the queue pair `own` with `peer`, if it has come, or why it does not. All others that wait for this queue
    /// pair came for an earlier connection of it, or from somebody else, and end here.
    pub(crate) fn collect(&self, own: &End, peer: &PeerEnd) -> Option<Result<(End, Stream), String>> {
        let mut missed = lock(&self.missed);
        if let Some(at) = missed.iter().position(|one| (one.number, one.incarnation) == (own.number, own.incarnation)) {
            return Some(Err(missed.swap_remove(at).why));
        }
        drop(missed);
        let mut found = None;
        let mut ended = Vec::new();
        let mut waiting = lock(&self.waiting);
        while let Some(at) = waiting.iter().position(|one| one.number == own.number) {
            let one = waiting.remove(at);
            let right = one.from.named() == *peer && one.incarnation == own.incarnation && one.from.kind == own.kind;
            // The newest is the last.
            match right {
                true => ended.extend(found.replace(one)),
                false => ended.push(one),
            }
        }
        drop(waiting);
        drop(ended);
        found.map(|one| Ok((one.from, one.stream)))
    }

    /// Ends what waits for queue pair `number`: it is reset, in error, or gone.
    pub(crate) fn part(&self, number: u32) {
        lock(&self.missed).retain(|one| one.number != number);
        let mut waiting = lock(&self.waiting);
        let (gone, kept) = waiting.drain(..).partition(|one| one.number == number);
        *waiting = kept;
        drop(waiting);
        let _: Vec<Waiting> = gone;
    }

    /// Gives a connection up whose queue pair is gone. What was sent over it still arrives, if the peer takes it soon.
    /// `rest` goes last.
    pub(crate) fn let_go(&self, stream: Stream, rest: &[u8]) {
        let mut one = Leaving { stream, rest: rest.to_vec(), sends: true, until: Instant::now() + LEAVE_TIME };
        if one.go_on() {
            lock(&self.leaving).push(one);
            self.watch.wake();
        }
    }

    /// Finds out which connections have something.
    #[inline]
    pub(crate) fn sweep(&self) {
        if !self.watch.is_empty() {
            self.watch.sweep();
        }
    }

    /// Keeps a connection until its queue pair wants it.
    fn admit(&self, from: End, number: u32, incarnation: u64, stream: Stream) {
        let mut ended = Vec::new();
        let mut waiting = lock(&self.waiting);
        let mut of_pair = 0;
        // From the newest on. What the same peer opened before for the same connection of it, it has given up; one for a later connection of it may
        // have been admitted before this one.
        for at in (0..waiting.len()).rev() {
            let one = &waiting[at];
            if one.number != number {
                continue;
            }
            let again = one.from.named() == from.named() && one.incarnation == incarnation;
            if again || of_pair + 1 >= MOST_WAITING {
                ended.push(waiting.remove(at));
            } else {
                of_pair += 1;
            }
        }
        waiting.push(Waiting { number, incarnation, from, stream, since: Instant::now() });
        drop(waiting);
        drop(ended);
        if !self.announce(number, incarnation) {
            // It was reset, or has gone, meanwhile.
            let mut waiting = lock(&self.waiting);
            let (gone, kept) =
                waiting.drain(..).partition(|one| (one.number, one.incarnation) == (number, incarnation));
            *waiting = kept;
            drop(waiting);
            let _: Vec<Waiting> = gone;
        }
    }

    /// Looks after what waits and leaves; how soon to look again, if ever.
    fn tidy(&self) -> Option<Duration> {
        let now = Instant::now();
        let mut waiting = lock(&self.waiting);
        let (late, kept) = waiting.drain(..).partition(|one: &Waiting| now - one.since > LONGEST_WAIT);
        *waiting = kept;
        let waits = !waiting.is_empty();
        drop(waiting);
        for one in Vec::from_iter(late) {
            let (number, from) = (one.number, one.from.device);
            tracing::warn!(number, %from, "a connection waited too long for its queue pair, which was never connected");
        }
        let mut leaving = lock(&self.leaving);
        if !leaving.is_empty() {
            // Perhaps nobody else does.
            self.watch.sweep();
        }
        leaving.retain_mut(|one| one.go_on() && now < one.until);
        match (leaving.is_empty(), waits) {
            (false, _) => Some(Duration::from_millis(50)),
            (true, true) => Some(Duration::from_secs(10)),
            (true, false) => None,
        }
    }

    /// The interface of a link-local address: that of the device's own, which is the one cable or switch both are on.
    fn scoped(&self, peer: SocketAddr) -> SocketAddr {
        match peer {
            SocketAddr::V6(mut peer) if peer.ip().is_unicast_link_local() => {
                peer.set_scope_id(self.scope);
                peer.into()
            }
            _ => peer,
        }
    }

    /// What connections to `peer` come from: the device's own address, so that they take its interface, if it is of the
    /// same family.
    fn source(&self, peer: SocketAddr) -> Option<SocketAddr> {
        let own = self.scoped(SocketAddr::new(self.address.ip(), 0));
        matches!((own.ip(), peer.ip()), (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_))).then_some(own)
    }
}
