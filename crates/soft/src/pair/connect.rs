//! Finding the peer, in the transition to RTR.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_reach::ring::Consumer;
use fulmen_verbs::{Path, VerbsError};

use super::Pair;
use super::link::{Link, Near};
use super::network::Far;
use crate::Profile;
use crate::device::{pair_device, pair_slot};
use crate::directory::SharedPair;
use crate::network::{self, End, Network, PeerEnd, Place};
use crate::remote::Remote;
use crate::wire::{Cause, PeerWire};

/// How long connecting to a peer may take. A peer that takes longer is stopped, or does not want to.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two looks at a peer that cannot be connected to yet. Nothing tells when it can.
const PAUSE: Duration = Duration::from_millis(1);

/// Why the peer cannot be connected to.
enum Failure {
    /// Its queue pair is that of an earlier connection, and stays it.
    Stale(&'static str),
    Other(Cause),
}

impl From<network::Failure> for Failure {
    fn from(failure: network::Failure) -> Failure {
        match failure {
            network::Failure::Stale(problem) => Failure::Stale(problem),
            network::Failure::Unreached(cause) => Failure::Other(cause.into()),
        }
    }
}

impl<E: Into<Cause>> From<E> for Failure {
    fn from(cause: E) -> Failure {
        Failure::Other(cause.into())
    }
}

/// What a look for the peer found.
enum Found {
    /// It can be connected to.
    Free(Near),
    /// Its wire is an old connection's, or just being changed: it has to be reset, which may be on its way.
    NotYet(&'static str, Option<Near>),
}

impl Pair {
    /// Finds the peer of this queue pair, whose wire is `own`.
    pub(super) fn connect(&self, path: &Path, own: u64) -> Result<Link, VerbsError> {
        let peer = || match path.remote_gid.is_zero() {
            true => format!("LID {}", path.remote_lid),
            false => path.remote_gid.to_string(),
        };
        self.find(path, own).map_err(|failure| match failure {
            Failure::Stale(problem) => VerbsError::Stale {
                qp_num: self.number,
                peer: peer(),
                remote_qp: path.remote_qp,
                problem: format!("{problem}: reset both sides before either connects"),
            },
            Failure::Other(cause) => {
                VerbsError::Unreachable { qp_num: self.number, peer: peer(), cause: cause.to_string() }
            }
        })
    }

    fn find(&self, path: &Path, own: u64) -> Result<Link, Failure> {
        let number = path.remote_qp;
        let until = Instant::now() + PATIENCE;
        let device = &self.domain.device;
        let remote = match &device.network {
            None => {
                let (address, index) = device.find(path.remote_gid, path.remote_lid, number)?;
                device.remote(address, index, until)?
            }
            Some(network) => {
                let peer = network.peer_at(path.remote_gid, path.remote_lid)?;
                match self.neighbour(network, peer, number, until)? {
                    Some(remote) => remote,
                    None => return self.meet(network, PeerEnd { device: peer, number }, own, until),
                }
            }
        };
        // Keeps what is mapped until the next look.
        let mut _last = None;
        loop {
            match self.look(&remote, number, own, until)? {
                Found::Free(link) => {
                    self.check_gids(&link, path, own)?;
                    return Ok(Link::Near(Box::new(link)));
                }
                Found::NotYet(problem, _) if Instant::now() >= until => return Err(Failure::Stale(problem)),
                Found::NotYet(_, link) => _last = link,
            }
            thread::sleep(PAUSE);
        }
    }

    /// The device at an address of the network, if it is on this host.
    fn neighbour(
        &self,
        network: &Network,
        peer: SocketAddr,
        number: u32,
        until: Instant,
    ) -> Result<Option<Arc<Remote>>, Cause> {
        let device = &self.domain.device;
        let mut known = true;
        loop {
            let Place::Here(node) = network.place(peer, until)? else { return Ok(None) };
            match device.remote(node, pair_device(number), until) {
                // Another process may have its address now.
                Err(_) if std::mem::take(&mut known) => network.forget(peer),
                found => return found.map(Some),
            }
        }
    }

    /// Meets a queue pair of another host.
    fn meet(&self, network: &Network, peer: PeerEnd, own: u64, until: Instant) -> Result<Link, Failure> {
        let own = End { device: network.address(), number: self.number, incarnation: own, kind: self.kind };
        let credited = self.is_reliable() || self.holds();
        let far = match network.is_on_first_use() {
            true => Far::dormant(own, peer, self.is_reliable(), credited),
            false => {
                let met = network.meet(&own, &peer, until)?;
                Far::new(own, met.peer, met.stream, self.is_reliable(), credited)
            }
        };
        Ok(Link::Far(Box::new(far)))
    }

    /// Thunderbolt finds a peer only by the GID whose index it gave; whichever side connects last learns of it.
    fn check_gids(&self, link: &Near, path: &Path, own: u64) -> Result<(), Cause> {
        let source = self.domain.device.gids()[usize::from(path.local_gid_index)];
        if self.profile() != Profile::Thunderbolt || link.wire.agrees(own, path.remote_gid, source) {
            return Ok(());
        }
        let index = path.local_gid_index;
        let problem = "its queue pair goes by another GID, or sends to another one";
        Err(format!("{problem} than that of index {index} here: each side's index is that of the GID it told").into())
    }

    fn look(&self, remote: &Arc<Remote>, number: u32, own: u64, until: Instant) -> Result<Found, Cause> {
        let slot = pair_slot(number);
        if !remote.directory.has_pair(slot, number) {
            return Err(format!("it has no queue pair {number}").into());
        }
        let Some(pair) = remote.directory.pair(slot, number) else {
            return Ok(Found::NotYet("changes all the time", None));
        };
        let (wire, ring, answers) = match self.open(remote, number, pair, until) {
            Ok(opened) => opened,
            // It was reset meanwhile.
            Err(_) if remote.is_alive() && remote.directory.pair(slot, number) != Some(pair) => {
                return Ok(Found::NotYet("changes all the time", None));
            }
            Err(cause) => return Err(cause),
        };
        let problem = if wire.is_over() {
            Some("is in the error state")
        } else if wire.is_taken(own) {
            Some("is connected to another one")
        } else {
            None
        };
        let link = Near { remote: remote.clone(), wire, ring, answers };
        Ok(match problem {
            None => Found::Free(link),
            Some(problem) => Found::NotYet(problem, Some(link)),
        })
    }

    fn open(
        &self,
        remote: &Remote,
        number: u32,
        pair: SharedPair,
        until: Instant,
    ) -> Result<(PeerWire, Consumer, Consumer), Cause> {
        let region = remote.peer.map(pair.wire, until.saturating_duration_since(Instant::now()))?;
        PeerWire::open(&region, number, self.kind, pair.incarnation)
    }
}
