use std::fmt;
use std::net::Ipv6Addr;

use crate::LinkLayer;

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

/// Why no entry of a GID table can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GidError {
    /// The table has no entries.
    #[error(
        "the port has no GID: connect the cable, bring its network interface up, and take the interface out of bridges"
    )]
    Empty,
    /// Every entry is zero.
    #[error("all {entries} GIDs of the port are zero: bring its network interface up, and take it out of bridges")]
    AllZero {
        /// How many there are.
        entries: usize,
    },
    /// A RoCE port has entries of version 1 only.
    #[error(
        "the RoCE port has no GID of version 2 among {entries}: give its network interface an IP address, and allow RoCE v2"
    )]
    NoRoceV2 {
        /// How many there are.
        entries: usize,
    },
    /// All entries that could be used belong to interfaces that are down.
    #[error("the network interfaces behind all {entries} usable GIDs are down: bring one up (`ip link set … up`)")]
    InterfacesDown {
        /// How many could be used otherwise.
        entries: usize,
    },
    /// An InfiniBand port has no GID at index 0.
    #[error("the InfiniBand port has no GID at index 0: wait for the subnet manager, or start one")]
    NoIndexZero,
}

/// Which entry of a port's GID table a queue pair should use; its index and its address belong together.
///
/// On InfiniBand that is index 0. On RoCE only entries of version 2 (or of a kind that the device does not tell) whose
/// interface is not down come into question. There and on Thunderbolt, an entry that holds an IPv4 address comes first
/// (the lowest such index), then index 1, then the lowest index.
///
/// # Errors
/// [`GidError`] tells what the table lacks.
pub fn select_gid(link_layer: LinkLayer, table: &[GidEntry]) -> Result<GidEntry, GidError> {
    if table.is_empty() {
        return Err(GidError::Empty);
    }
    let mut usable: Vec<GidEntry> = table.iter().copied().filter(|entry| !entry.gid.is_zero()).collect();
    if usable.is_empty() {
        return Err(GidError::AllZero { entries: table.len() });
    }
    match link_layer {
        LinkLayer::Infiniband => {
            return usable.into_iter().find(|entry| entry.index == 0).ok_or(GidError::NoIndexZero);
        }
        LinkLayer::Ethernet => {
            usable.retain(|entry| matches!(entry.kind, GidKind::RoceV2 | GidKind::Unknown));
            if usable.is_empty() {
                return Err(GidError::NoRoceV2 { entries: table.len() });
            }
        }
        LinkLayer::Thunderbolt => {}
    }
    let entries = usable.len();
    let preference = |entry: &GidEntry| match entry.gid.is_ipv4_mapped() {
        true => (0, entry.index),
        false => (1, if entry.index == 1 { 0 } else { entry.index.saturating_add(1) }),
    };
    usable
        .into_iter()
        .filter(|entry| entry.interface_up != Some(false))
        .min_by_key(preference)
        .ok_or(GidError::InterfacesDown { entries })
}
