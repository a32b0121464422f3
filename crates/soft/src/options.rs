//! How a soft device is to be.

use std::net::SocketAddr;
use std::time::Duration;

use fulmen_trust::Identity;
use fulmen_verbs::DeviceLimits;

use crate::Profile;

/// How peers of the same host find a device that has no [`NetworkOptions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Addressing {
    /// By its GID, which is the node's name.
    Node,
    /// By a LID, or a GID that holds the LID: eight times this number, which is the node's own
    /// ([`Node::open_numbered`](fulmen_reach::Node::open_numbered)), and the device's number on it (at most 8 devices).
    /// Whoever knows the LID and a queue pair's number can connect.
    Numbered(u16),
}

/// How a soft device is to be: [`SoftDevice::open_as`](crate::SoftDevice::open_as).
#[derive(Clone, Debug)]
pub struct SoftOptions {
    /// Whose rules it keeps.
    pub profile: Profile,
    /// Its limits: the profile's, or those of a host that has fewer of everything.
    pub limits: DeviceLimits,
    /// Its name; `soft0` and so on without one.
    pub name: Option<String>,
    /// How peers find it.
    pub addressing: Addressing,
    /// How long a message over UC or UD that finds no RECV is kept before it is lost. After it was kept in vain,
    /// further ones of the same queue pair are lost at once until a RECV is posted. 0: all are lost at once, as on most
    /// hardware.
    pub recv_patience: Duration,
    /// Whether memory that is not mapped by both sides may be copied by the system (`process_vm_readv` and
    /// `process_vm_writev`), where the system allows it. Otherwise it goes through rings.
    pub process_vm: bool,
    /// Where devices of other hosts find it; without this, only those of its own host do. A device with an address is found
    /// by that alone, on its own host, too, so all that are to connect need one.
    pub network: Option<NetworkOptions>,
}

/// How a soft device is on the network: [`SoftOptions::network`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NetworkOptions {
    /// Where it listens. The IP address, which has to be one by which peers reach this host, becomes the port's GID; the TCP
    /// port (0: any that is free) becomes its LID.
    pub listen: SocketAddr,
    /// What connections are sealed with, on both sides. `None`: they are plain, and whoever is on the network can read and
    /// change what goes over them, and connect.
    pub seal: Option<Identity>,
    /// Which host this is. Devices that say the same connect through shared memory. `None`: what
    /// [`this_host`](fulmen_reach::this_host) says. For tests, which reach the network within one process by it.
    pub host: Option<[u8; 16]>,
    /// Whether a queue pair's connection to a peer on another host is opened by the first request of either side. The transition
    /// to RTR looks for the peer's device alone then, and that there is no such queue pair is found out by that request. For programs
    /// with many queue pairs, of which they use few. `false`: it is opened in the transition.
    pub on_first_use: bool,
}

impl NetworkOptions {
    /// A device that listens there, without a seal.
    #[must_use]
    pub fn new(listen: SocketAddr) -> NetworkOptions {
        NetworkOptions { listen, seal: None, host: None, on_first_use: false }
    }
}

impl SoftOptions {
    /// A device with the limits of its profile, found by its GID, that loses at once what finds no RECV.
    #[must_use]
    pub fn new(profile: Profile) -> SoftOptions {
        SoftOptions {
            profile,
            limits: profile.limits(),
            name: None,
            addressing: Addressing::Node,
            recv_patience: Duration::ZERO,
            process_vm: true,
            network: None,
        }
    }
}
