//! What child processes tell: plain facts, from which the checks draw their conclusions.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use fulmen::parts::fabric::{FabricOptions, Need, needs};
use fulmen::parts::system::{OpenError, Symbol};
use fulmen::parts::verbs::{DeviceInfo, GidEntry, GidKind, LinkLayer, PortInfo, PortState, select_gid};
use serde::{Deserialize, Serialize};

/// What was refused, and the way out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    pub kind: RefusalKind,
    pub sentence: String,
    pub fix: String,
}

/// The refusals that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalKind {
    NoLibrary,
    MissingSymbol,
    NoDevices,
    SwitchedOff,
    Other,
}

impl From<OpenError> for Refusal {
    fn from(error: OpenError) -> Refusal {
        let whole = error.to_string();
        let (kind, way_out) = match &error {
            OpenError::NoLibrary { way_out, .. } => (RefusalKind::NoLibrary, Some(*way_out)),
            OpenError::NoDevices { way_out } => (RefusalKind::NoDevices, Some(*way_out)),
            OpenError::SwitchedOff { way_out, .. } => (RefusalKind::SwitchedOff, Some(*way_out)),
            OpenError::MissingSymbol { .. } => (RefusalKind::MissingSymbol, None),
            _ => (RefusalKind::Other, None),
        };
        // Every message of this enum ends with the way out; where the error does not have it by itself, the message is cut.
        let (sentence, fix) = match way_out {
            Some(way_out) => (whole.strip_suffix(way_out).unwrap_or(&whole).trim_end_matches([':', ' ']), way_out),
            None => whole.rsplit_once(": ").unwrap_or((&whole, "see the system's log")),
        };
        Refusal { kind, sentence: sentence.to_owned(), fix: fix.to_owned() }
    }
}

/// The library, opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LibraryFacts {
    pub path: String,
    pub symbols: usize,
    /// The optional entry points that it lacks, with what they are for.
    pub missing: Vec<(String, String)>,
}

impl LibraryFacts {
    pub fn new(path: String, symbols: &[Symbol]) -> LibraryFacts {
        let missing = symbols.iter().filter(|symbol| !symbol.present);
        let missing = missing.map(|symbol| (symbol.name.to_owned(), symbol.purpose.to_owned())).collect();
        LibraryFacts { path, symbols: symbols.len(), missing }
    }
}

/// A device of the library's list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListedFacts {
    pub name: String,
    pub transport: String,
}

/// A device, opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceFacts {
    pub firmware: String,
    pub ports: u8,
    pub capabilities: Vec<String>,
    pub needs: Result<NeedsFacts, String>,
}

/// What links need of a device, beside what it has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NeedsFacts {
    pub needs: Vec<NeedFacts>,
    /// What device-driven one-sided operations need besides; they are a convenience.
    pub one_sided: Vec<NeedFacts>,
    /// Bytes that are locked in memory.
    pub locked: u64,
}

/// One thing that a device has a number of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NeedFacts {
    /// In the plural.
    pub what: String,
    pub needed: u64,
    pub limit: u64,
}

/// A port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortFacts {
    pub state: String,
    pub active: bool,
    pub link_layer: String,
    pub ethernet: bool,
    pub mtu: u32,
    /// On the wire, if the device says.
    pub gigabits: Option<f64>,
    pub gids: Vec<GidFacts>,
    /// The index of the one that would be used and why that one, or why there is none and what to do.
    pub chosen: Result<(u8, String), (String, String)>,
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GidFacts {
    pub index: u8,
    pub gid: String,
    pub kind: String,
    pub ipv4: bool,
    pub link_local: bool,
}

impl PortFacts {
    pub fn new(port: &PortInfo, gigabits: Option<f64>, table: &[GidEntry]) -> PortFacts {
        let gids = table.iter().map(|entry| GidFacts {
            index: entry.index,
            gid: entry.gid.to_string(),
            kind: match entry.kind {
                GidKind::Infiniband => "InfiniBand",
                GidKind::RoceV1 => "RoCE v1",
                GidKind::RoceV2 => "RoCE v2",
                GidKind::Unknown => "of no told kind",
            }
            .to_owned(),
            ipv4: entry.gid.is_ipv4_mapped(),
            link_local: Ipv6Addr::from(entry.gid.0).is_unicast_link_local(),
        });
        PortFacts {
            state: state(port.state).to_owned(),
            active: port.state == PortState::Active,
            link_layer: port.link_layer.to_string(),
            ethernet: port.link_layer == LinkLayer::Ethernet,
            mtu: port.active_mtu.bytes(),
            gigabits,
            gids: gids.collect(),
            chosen: choice(port.link_layer, table),
        }
    }
}

fn state(state: PortState) -> &'static str {
    match state {
        PortState::Down => "down",
        PortState::Initializing => "initializing",
        PortState::Armed => "armed",
        PortState::Active => "active",
    }
}

/// The entry that links use and the reason, in the words of `select_gid`'s rules.
fn choice(link_layer: LinkLayer, table: &[GidEntry]) -> Result<(u8, String), (String, String)> {
    let entry = select_gid(link_layer, table).map_err(|error| {
        let text = error.to_string();
        let (sentence, fix) = text.split_once(": ").unwrap_or((&text, "look at its network interface"));
        (sentence.to_owned(), fix.to_owned())
    })?;
    let why = match link_layer {
        LinkLayer::Infiniband => "InfiniBand's own is at index 0",
        _ if entry.gid.is_ipv4_mapped() => "the first that holds an IPv4 address",
        _ if entry.index == 1 => "none holds an IPv4 address, and index 1 comes next",
        _ => "none holds an IPv4 address, and it is the first that can be used",
    };
    Ok((entry.index, why.to_owned()))
}

/// What a device can do, in the words of `fulmen devices`.
pub fn capabilities(info: &DeviceInfo) -> Vec<String> {
    let can = &info.capabilities;
    let all = [
        ("RC", can.rc),
        ("UC", can.uc),
        ("WRITE", can.write),
        ("READ", can.read),
        ("atomics", can.atomics),
        ("immediate data", can.immediate),
        ("dma-buf", can.dma_buf),
    ];
    all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_owned()).collect()
}

impl Refusal {
    /// Of a call that has no way out of its own.
    pub fn of(error: &dyn std::error::Error) -> Refusal {
        Refusal {
            kind: RefusalKind::Other,
            sentence: error.to_string(),
            fix: "see the system's log (`dmesg`), and restart the device's driver or the machine".to_owned(),
        }
    }
}

/// What stands at a coordinator's address.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum AddressFacts {
    /// Nothing yet: it is this machine's, and a listener there was reached.
    Free(SocketAddr),
    /// It is this machine's and free, but its own listener was not reached.
    Closed(SocketAddr, String),
    /// A coordinator, which speaks this version of the protocol.
    Served(SocketAddr, u16),
    /// Something else.
    Foreign(SocketAddr, String),
    /// The machine answers, and nobody listens.
    Refused(SocketAddr),
    /// Nothing answers.
    Silent(SocketAddr),
    /// There is no way there.
    Unreachable(SocketAddr, String),
    /// It is this machine's and free, but this user may not listen there.
    NotAllowed(SocketAddr),
    /// It is no address, its name is not known, or it is none where ranks can meet.
    Unknown(String),
}

/// By which address other hosts would reach ranks here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ReachFacts {
    /// A listener there was reached.
    Reached(IpAddr),
    /// Only programs of this host reach it.
    Near(IpAddr),
    /// Nothing can listen there.
    NotOwn(IpAddr, String),
    /// A listener there was not reached.
    Closed(IpAddr, String),
    /// The machine has no such address.
    None,
}

impl NeedsFacts {
    pub fn new(peers: u32, options: &FabricOptions, info: &DeviceInfo) -> Result<NeedsFacts, String> {
        let needs = needs(peers, options, info).map_err(|error| error.to_string())?;
        let facts = |needs: Vec<Need>| -> Vec<NeedFacts> {
            let facts = |need: Need| NeedFacts { what: need.what.to_owned(), needed: need.needed, limit: need.limit };
            needs.into_iter().map(facts).collect()
        };
        Ok(NeedsFacts { needs: facts(needs.links), one_sided: facts(needs.one_sided), locked: needs.locked_bytes })
    }
}
