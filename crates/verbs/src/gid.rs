use std::fmt;
use std::net::Ipv6Addr;

/// A global identifier of a port: 128 bits, written like an IPv6 address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether all its bits are zero: an empty entry of a table.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }

    /// Whether it holds an IPv4 address (`::ffff:a.b.c.d`).
    #[must_use]
    pub fn is_ipv4_mapped(&self) -> bool {
        Ipv6Addr::from(self.0).to_ipv4_mapped().is_some()
    }

    /// Whether it is link-local (`fe80::/10`).
    #[must_use]
    pub fn is_link_local(&self) -> bool {
        Ipv6Addr::from(self.0).is_unicast_link_local()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// What kind of address an entry of a GID table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidKind {
    /// InfiniBand's own.
    Infiniband,
    /// RoCE version 1: Ethernet frames of its own type.
    RoceV1,
    /// RoCE version 2: UDP.
    RoceV2,
    /// The device does not say (Thunderbolt, software devices).
    Unknown,
}

/// One entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index in the table. It travels with the address: a queue pair names its own address by it.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// What kind of address it is.
    pub kind: GidKind,
    /// Whether the network interface behind it is up; `None` if there is none or it is not known.
    pub interface_up: Option<bool>,
}
