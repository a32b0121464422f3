use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fulmen_memory::Region;
use rustix::io::Errno;

use crate::error::System;
use crate::hub::{Callback, Core, Hub};
use crate::link::Link;
use crate::platform::{self, Listener};
use crate::{NodeAddress, Peer, ReachError, moment_after, spawn_without_signals};

/// Names a region that a node shares. Whoever knows the node's address and the key can map it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShareKey(u64);

impl ShareKey {
    /// The key as a number, to be sent to a peer.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// The key that a peer sent.
    #[must_use]
    pub fn from_u64(key: u64) -> ShareKey {
        ShareKey(key)
    }
}

impl fmt::Debug for ShareKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The number is a secret.
        f.write_str("ShareKey(..)")
    }
}

/// Who is told of notices: by whom, and the two numbers. See [`Node::on_notice_while`].
pub type OnNotice = dyn Fn(&NodeAddress, u64, u64) + Send + Sync;

/// This process, as other processes of the same user on this host find it.
///
/// One thread, parked while nothing happens, hands over memory that was shared and notices the deaths of peers. A clone
/// is another handle to the same node, which closes when the last handle and the last [`Peer`] are gone; peers then see
/// it as dead. Nothing of it stays behind on Linux, however the process ends. On macOS a process that is killed leaves
/// an empty socket file in the user's temporary directory.
///
/// A child that was forked and did not execute another program has no use of the node: the node's thread is its
/// parent's. It may drop what it has of it, which does nothing there to the parent ([`Node::is_inherited`]), and it keeps
/// the node's sockets open. On Linux peers learn of the parent's death all the same, unless they are in another namespace
/// of processes, where the parent has no number; elsewhere they learn of it when the child has ended, too.
#[derive(Clone)]
pub struct Node {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<Core>,
    peers: Mutex<HashMap<NodeAddress, Weak<Peer>>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.core.is_inherited() {
            // Neither the thread nor what wakes it is this process's own.
            std::mem::forget(self.thread.take());
            return;
        }
        self.core.stop();
        if let Some(thread) = self.thread.take() {
            // A callback may drop the last handle: the thread cannot wait for itself, and ends after the callback.
            if thread.thread().id() != thread::current().id() {
                // It cannot panic: callbacks, which can, are caught.
                let _ = thread.join();
            }
        }
    }
}

impl Node {
    /// Opens a node under a new name that nobody can guess.
    ///
    /// # Errors
    /// [`ReachError::Descriptors`] and [`ReachError::System`].
    pub fn open() -> Result<Node, ReachError> {
        let address = NodeAddress::new()?;
        let listener = Listener::open(address.name()).system("open a node's socket")?;
        Node::start(address, listener)
    }

    /// Opens the node of this number (1 to [`NodeAddress::MOST_NUMBERED`]), which others of this user find by the number
    /// alone: [`NodeAddress::numbered`]. `None` if another process has it: try the next one. The system frees the number
    /// when the process ends, however it ends.
    ///
    /// Anybody can guess its name. That lets nobody in but processes of the same user, and nothing is shared unless it is
    /// asked for by its key; a process of another user that took the name first is no peer of anybody.
    ///
    /// # Errors
    /// [`ReachError::Address`] for another number, [`ReachError::Descriptors`] and [`ReachError::System`].
    pub fn open_numbered(number: u16) -> Result<Option<Node>, ReachError> {
        let address = NodeAddress::numbered(number)?;
        match Listener::open_fixed(address.name()) {
            Ok(listener) => Node::start(address, listener).map(Some),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error).system("open a node's socket"),
        }
    }

    fn start(address: NodeAddress, listener: Listener) -> Result<Node, ReachError> {
        let (core, woken) = Core::new(address).system("make a node's wake-up socket")?;
        let core = Arc::new(core);
        let hub = Hub::new(core.clone(), listener, woken);
        let thread = spawn_without_signals("fulmen-reach", move || hub.run()).system("start a node's thread")?;
        Ok(Node { inner: Arc::new(Inner { core, peers: Mutex::default(), thread: Some(thread) }) })
    }

    /// Where peers find it.
    #[must_use]
    pub fn address(&self) -> NodeAddress {
        *self.inner.core.address()
    }

    /// Whether this process was forked off the one that opened the node, which alone can use it.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.inner.core.is_inherited()
    }

    /// Lets peers map a region, until [`Node::unshare`] or the node's end. The node keeps the region mapped meanwhile.
    /// Each call gives a new key.
    ///
    /// # Errors
    /// [`ReachError::NotShareable`] if the region was not made by [`Region::alloc`].
    pub fn share(&self, region: &Region) -> Result<ShareKey, ReachError> {
        if region.fd().is_none() {
            return Err(ReachError::NotShareable);
        }
        let key = getrandom::u64().system("get random bytes for a region's key")?;
        self.inner.core.share(key, region.clone());
        Ok(ShareKey(key))
    }

    /// Lets peers map a region under a key that they know beforehand; false, and nothing done, if the key is taken.
    /// Only the node's name protects it then.
    ///
    /// # Errors
    /// [`ReachError::NotShareable`] if the region was not made by [`Region::alloc`].
    pub fn share_as(&self, key: ShareKey, region: &Region) -> Result<bool, ReachError> {
        if region.fd().is_none() {
            return Err(ReachError::NotShareable);
        }
        Ok(self.inner.core.share_new(key.0, region.clone()))
    }

    /// Lets nobody else map the region; false if the key is unknown. Peers that have mapped it keep it.
    pub fn unshare(&self, key: ShareKey) -> bool {
        self.inner.core.unshare(key.0)
    }

    /// Connects to a peer, or gives the connection that exists already and is alive.
    ///
    /// Returns at the latest when `deadline` (at most a year) has passed. It must not be called from an
    /// [`on_death`](Node::on_death) callback, which holds up the thread that receives the answer.
    ///
    /// # Errors
    /// [`ReachError::OtherHost`], [`ReachError::Gone`] if nobody listens, [`ReachError::TimedOut`] if the peer is
    /// stopped, [`ReachError::Refused`], [`ReachError::OtherUser`], [`ReachError::Version`], [`ReachError::Foreign`],
    /// [`ReachError::Descriptors`] and [`ReachError::System`].
    pub fn connect(&self, address: &NodeAddress, deadline: Duration) -> Result<Arc<Peer>, ReachError> {
        if address.host_id() != self.address().host_id() {
            return Err(ReachError::OtherHost { peer: *address });
        }
        if let Some(peer) = known(&self.peers(), address) {
            return Ok(peer);
        }
        let until = moment_after(deadline);
        let pid = address.pid();
        let socket = loop {
            match platform::connect(address.name()) {
                Ok(socket) => break socket,
                Err(Errno::CONNREFUSED) => return Err(ReachError::Gone { pid }),
                Err(Errno::INTR) => {}
                // Its queue is full, and nothing tells when it has room.
                Err(Errno::AGAIN) if Instant::now() < until => thread::sleep(Duration::from_millis(2)),
                Err(Errno::AGAIN) => {
                    return Err(ReachError::TimedOut { pid, action: "accept a connection", waited: deadline });
                }
                Err(error) => return Err(error).system("connect to a node"),
            }
        };
        let user = platform::peer_user(&socket).system("ask for a peer's user")?;
        if user != rustix::process::geteuid().as_raw() {
            return Err(ReachError::OtherUser { pid, user });
        }
        let process = match platform::process_end(&socket) {
            Ok(process) => process,
            // A child that it forked keeps its socket open.
            Err(_) => return Err(ReachError::Gone { pid }),
        };
        let link = Arc::new(Link::new(socket, process, *address));
        self.inner.core.adopt(link.clone())?;
        // From here on the peer's end closes the link, also when this returns early.
        let peer = Arc::new(Peer::new(link.clone(), self.clone()));
        link.wait_until_greeted(deadline, until)?;
        let mut peers = self.peers();
        if let Some(first) = known(&peers, address) {
            // Another thread was faster.
            return Ok(first);
        }
        peers.retain(|_, peer| peer.strong_count() > 0);
        peers.insert(*address, Arc::downgrade(&peer));
        Ok(peer)
    }

    /// Calls back, from the node's thread, when a connected peer's node closes, which is when its process ends at the
    /// latest. [`Peer::is_alive`] is false by then. Dropping the [`Peer`] is no death; a peer that died before this call
    /// is not announced.
    ///
    /// The callback must not wait: the node serves nobody meanwhile. It stays until the node closes, so it should not
    /// own a handle to the node.
    pub fn on_death(&self, callback: Box<dyn Fn(&NodeAddress) + Send + Sync>) {
        self.inner.core.on_death(Callback::Owned(callback.into()));
    }

    /// The same for a callback that somebody else owns: it is called for as long as it exists.
    pub fn on_death_while(&self, callback: Weak<dyn Fn(&NodeAddress) + Send + Sync>) {
        self.inner.core.on_death(Callback::Lent(callback));
    }

    /// Calls back, from the node's thread, for each [`Peer::notify`](crate::Peer::notify) of a peer that connected to this
    /// node: with the address that the peer says is its own, and its two numbers. Whoever means to rely on that address
    /// connects to it.
    ///
    /// The callback must not wait: the node serves nobody meanwhile. It is called for as long as it exists.
    pub fn on_notice_while(&self, callback: Weak<OnNotice>) {
        self.inner.core.on_notice(callback);
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<NodeAddress, Weak<Peer>>> {
        self.inner.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn known(peers: &HashMap<NodeAddress, Weak<Peer>>, address: &NodeAddress) -> Option<Arc<Peer>> {
    // A dead one is dropped here, with the lock held by the caller, who holds a handle to the node.
    peers.get(address)?.upgrade().filter(|peer| peer.is_alive())
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Node").field(self.inner.core.address()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(60);

    #[test]
    fn lent_callbacks_go_with_their_owners() {
        let node = Node::open().unwrap();
        node.on_death(Box::new(|_| {}));
        for _ in 0..10 {
            let callback: Arc<dyn Fn(&NodeAddress) + Send + Sync> = Arc::new(|_| {});
            node.on_death_while(Arc::downgrade(&callback));
        }
        assert_eq!(node.inner.core.callbacks(), 2, "the one that stays, and the last one");
    }

    #[test]
    fn a_number_is_taken_until_its_node_closes() {
        // Other tests of this user may have some of the numbers.
        let (number, node) = (1..=NodeAddress::MOST_NUMBERED)
            .rev()
            .find_map(|number| Some((number, Node::open_numbered(number).unwrap()?)))
            .unwrap();
        assert!(Node::open_numbered(number).unwrap().is_none(), "it is taken");
        let other = Node::open().unwrap();
        let peer = other.connect(&NodeAddress::numbered(number).unwrap(), WAIT).unwrap();
        assert_eq!((peer.address(), peer.is_alive()), (node.address(), true));
        drop(peer);
        drop(node);
        assert!(Node::open_numbered(number).unwrap().is_some(), "it is free again");
        assert!(Node::open_numbered(0).is_err());
    }

    #[test]
    fn notices_arrive_in_order_and_say_whose_they_are() {
        const NOTICES: u64 = 5_000;
        let (node, other) = (Node::open().unwrap(), Node::open().unwrap());
        let (said, heard) = std::sync::mpsc::channel();
        let callback: Arc<OnNotice> = Arc::new(move |from, a, b| {
            let _ = said.send((*from, a, b));
        });
        node.on_notice_while(Arc::downgrade(&callback));
        let peer = other.connect(&node.address(), WAIT).unwrap();
        // More than a socket holds.
        for number in 0..NOTICES {
            peer.notify(number, !number, WAIT).unwrap();
        }
        for number in 0..NOTICES {
            assert_eq!(heard.recv_timeout(WAIT), Ok((other.address(), number, !number)));
        }
        // Nobody is called any more, and nobody minds.
        drop(callback);
        peer.notify(1, 2, WAIT).unwrap();
        assert!(heard.recv_timeout(WAIT).is_err());
        drop(node);
        let gone = || matches!(peer.notify(1, 2, WAIT), Err(ReachError::Gone { .. }));
        let until = Instant::now() + WAIT;
        while !gone() {
            assert!(Instant::now() < until, "a closed node is gone");
        }
    }

    #[test]
    fn another_region_under_the_same_key_is_mapped_anew() {
        let (node, other) = (Node::open().unwrap(), Node::open().unwrap());
        let peer = other.connect(&node.address(), WAIT).unwrap();
        let key = ShareKey::from_u64(7);
        assert!(node.share_as(key, &Region::alloc(4096).unwrap()).unwrap());
        let stale = peer.map(key, WAIT).unwrap();
        assert!(node.unshare(key));
        assert!(node.share_as(key, &Region::alloc(8192).unwrap()).unwrap());
        assert_eq!(peer.map(key, WAIT).unwrap().len(), 4096, "it is still in use");
        let region = peer.map_anew(key, &stale, WAIT).unwrap();
        assert_eq!(region.len(), 8192);
        assert_eq!(peer.map(key, WAIT).unwrap().id(), region.id());
        assert_eq!(peer.map_anew(key, &stale, WAIT).unwrap().id(), region.id(), "one mapping for all");
    }
}
