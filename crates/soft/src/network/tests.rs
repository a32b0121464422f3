//! Devices' networks without devices: two in one process, which take each other for other hosts.

mod hostile;
mod meeting;
mod streams;
#[cfg(target_os = "linux")]
mod vanishing;
mod waking;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fulmen_memory::Region;
use fulmen_reach::Node;
use fulmen_trust::{Authority, Identity};
use fulmen_verbs::QueuePairKind;

use super::*;
use crate::directory::Directory;
use crate::layout::directory as at;

/// For whatever has to happen.
const LONG: Duration = Duration::from_secs(60);

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

fn soon() -> Instant {
    Instant::now() + LONG
}

/// The loopback addresses of this machine.
fn loopbacks() -> Vec<IpAddr> {
    let has_v6 = std::net::TcpListener::bind((V6, 0)).is_ok();
    if !has_v6 {
        eprintln!("SKIPPED: connections over IPv6: this machine has no ::1");
    }
    [Some(V4), has_v6.then_some(V6)].into_iter().flatten().collect()
}

fn identity(secret: u8) -> Identity {
    Authority::from_secret(&[secret; 32]).unwrap().identity("a test").unwrap()
}

/// What a door says of each number.
#[derive(Default)]
struct Book(Mutex<HashMap<u32, Verdict>>);

impl Book {
    fn set(&self, number: u32, verdict: Verdict) {
        lock(&self.0).insert(number, verdict);
    }
}

impl Door for Book {
    fn knock(&self, from: &End, number: u32) -> Verdict {
        match lock(&self.0).get(&number) {
            Some(Verdict::Welcome { .. }) if from.kind != QueuePairKind::Rc => Verdict::OtherKind,
            Some(verdict) => *verdict,
            None => Verdict::NoSuchPair,
        }
    }

    fn rouse(&self, number: u32, _incarnation: u64) -> bool {
        lock(&self.0).contains_key(&number)
    }
}

/// A device's network, and what stands in for the device.
struct Host {
    network: Arc<Network>,
    progress: Arc<Progress>,
    book: Arc<Book>,
    _node: Node,
}

impl Host {
    fn open(options: &NetworkOptions, profile: Profile) -> Host {
        let node = Node::open().unwrap();
        let words = Region::alloc(at::SIZE).unwrap().expose().unwrap();
        let progress = Arc::new(Progress::new(Directory::new(words.clone()), &words));
        let network = Arc::new(Network::open(&node, profile, options, &progress).unwrap());
        let book = Arc::new(Book::default());
        let door: Weak<dyn Door> = Arc::downgrade(&(book.clone() as Arc<dyn Door>));
        network.start(door).unwrap();
        Host { network, progress, book, _node: node }
    }

    /// One on a host of its own.
    fn new(ip: IpAddr, seal: Option<Identity>) -> Host {
        static HOSTS: AtomicU64 = AtomicU64::new(1);
        let host = u128::from(HOSTS.fetch_add(1, Ordering::Relaxed)).to_le_bytes();
        let options = NetworkOptions { seal, host: Some(host), ..NetworkOptions::new(SocketAddr::new(ip, 0)) };
        Host::open(&options, Profile::Infiniband)
    }

    fn end(&self, number: u32) -> End {
        End { device: self.network.address(), number, incarnation: u64::from(number) + 1000, kind: QueuePairKind::Rc }
    }

    /// The end of a queue pair that peers may connect to.
    fn open_end(&self, number: u32) -> End {
        let end = self.end(number);
        self.book.set(number, Verdict::Welcome { incarnation: end.incarnation });
        end
    }

    /// Waits for the connection that the peer opened.
    fn collect(&self, own: &End, peer: &PeerEnd) -> (End, Stream) {
        let until = soon();
        loop {
            let seen = self.progress.doorbell().sequence();
            if let Some(found) = self.network.collect(own, peer) {
                return found.unwrap();
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the connection comes");
            let _ = self.progress.doorbell().wait(seen, left);
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.network.stop();
    }
}

/// Two hosts.
fn hosts(ip: IpAddr, sealed: bool) -> [Host; 2] {
    let identity = sealed.then(|| identity(7));
    [(); 2].map(|()| Host::new(ip, identity.clone()))
}

/// The two ends of one connection between queue pairs of this number.
fn connect(hosts: &[Host; 2], number: u32) -> [Stream; 2] {
    let ends = hosts.each_ref().map(|host| host.open_end(number));
    let met = [0, 1].map(|at: usize| {
        let met = hosts[at].network.meet(&ends[at], &ends[1 - at].named(), soon()).unwrap();
        assert_eq!(met.peer, ends[1 - at]);
        met.stream
    });
    assert_ne!(met[0].is_some(), met[1].is_some(), "one of both opens it");
    let mut at = 0;
    met.map(|stream| {
        let (own, other) = (at, 1 - at);
        at += 1;
        stream.unwrap_or_else(|| {
            let (from, stream) = hosts[own].collect(&ends[own], &ends[other].named());
            assert_eq!(from, ends[other]);
            stream
        })
    })
}

/// Waits until it is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = soon();
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        thread::yield_now();
    }
}

/// What a connection says when it is over.
fn end_of(stream: &mut Stream) -> Ended {
    let mut ended = None;
    until("the end is told", || {
        let mut bytes = [0; 1024];
        ended = stream.receive(&mut [Room::Bytes(&mut bytes)]).err();
        ended.is_some()
    });
    ended.unwrap()
}
