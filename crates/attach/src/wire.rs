//! What programs and owners say to each other: over a socket of the system's, and over the device.

use std::fmt;
use std::io::{self, Read, Write};

use fulmen_verbs::{Gid, GidEntry, GidKind, LinkLayer, Mtu, PortInfo, PortState};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Bytes of the longest message of a program.
pub const LONGEST_MESSAGE: usize = 64 << 10;
/// Messages of a queue pair that are on their way at most: taken from one program, and not yet by the other.
pub const WINDOW: u32 = 16;

/// Queue pairs of one program.
pub(crate) const PAIRS: u32 = 64;

/// Changes with what is said here.
pub(crate) const VERSION: u32 = 1;
/// The longest of it.
const LONGEST: usize = 64 << 10;

/// What a program asks. A connection is for one device, and what was made over it ends with it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Which devices there are.
    Offer { version: u32 },
    /// To use one of them. `gid` is that of the program's software device.
    Attach { version: u32, device: String, gid: [u8; 16] },
    /// How the device's port is.
    Port { number: u8 },
    /// A number for a queue pair, of which the software device has another one.
    Create { soft: u32 },
    /// The way to its peer.
    Connect { number: u32, gid_index: u8, to: Place, remote: u32 },
    /// It has no peer any more.
    Disconnect { number: u32 },
    /// It is gone.
    Remove { number: u32 },
}

/// What the owner answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    Offer(Vec<String>),
    Attached {
        ports: u8,
    },
    Port {
        port: Port,
        gids: Vec<Entry>,
    },
    Created {
        number: u32,
    },
    /// The queue pair of the software device to connect to.
    Connected {
        gid: [u8; 16],
        pair: u32,
    },
    Done,
    Refused(Refusal),
}

/// Why an owner does not do it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("it speaks version {0} of the protocol and this program {VERSION}: run one version of Fulmen")]
    Version(u32),
    #[error("it owns no device {0}")]
    NoDevice(String),
    #[error("it has no room for more than {0} queue pairs of programs: end some")]
    Full(u64),
    #[error("a program has {PAIRS} queue pairs at most")]
    Many,
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Unreachable(String),
}

/// What one owner asks another one, by whatever joins them besides the device.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    /// To be the other end of a trunk. One that was there between the same addresses is over.
    Open { from: Place, to: Place, trunk: u64, ends: Vec<End> },
    /// Whether a trunk is still there.
    Look { from: Place, to: Place, trunk: u64 },
    /// To open one, since that is the other side's to do, unless this one is there at both ends.
    Please { from: Place, to: Place, trunk: Option<u64> },
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Opened(Vec<End>),
    Known(bool),
    Done,
}

/// Where a port is: its address, and the one within its subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Place {
    pub gid: [u8; 16],
    pub lid: u16,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Gid(self.gid).fmt(f)?;
        if self.lid == 0 { Ok(()) } else { write!(f, " (LID {})", self.lid) }
    }
}

/// A queue pair of a trunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    pub number: u32,
    pub psn: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Port {
    state: u8,
    link_layer: u8,
    mtu: u32,
    gid_entries: u16,
    lid: u16,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    index: u8,
    gid: [u8; 16],
    kind: u8,
    interface_up: Option<bool>,
}

const STATES: [PortState; 4] = [PortState::Down, PortState::Initializing, PortState::Armed, PortState::Active];
const LAYERS: [LinkLayer; 3] = [LinkLayer::Infiniband, LinkLayer::Ethernet, LinkLayer::Thunderbolt];
const KINDS: [GidKind; 4] = [GidKind::Infiniband, GidKind::RoceV1, GidKind::RoceV2, GidKind::Unknown];
const MTUS: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

fn place<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|each| each == one).unwrap_or(0) as u8
}

impl Port {
    pub(crate) fn of(port: &PortInfo) -> Port {
        Port {
            state: place(&STATES, &port.state),
            link_layer: place(&LAYERS, &port.link_layer),
            mtu: port.active_mtu.bytes(),
            gid_entries: port.gid_entries,
            lid: port.lid,
        }
    }

    /// None if it is none.
    pub(crate) fn read(&self, number: u8) -> Option<PortInfo> {
        Some(PortInfo {
            number,
            state: *STATES.get(usize::from(self.state))?,
            link_layer: *LAYERS.get(usize::from(self.link_layer))?,
            active_mtu: *MTUS.iter().find(|mtu| mtu.bytes() == self.mtu)?,
            gid_entries: self.gid_entries,
            lid: self.lid,
        })
    }
}

impl Entry {
    pub(crate) fn of(entry: &GidEntry) -> Entry {
        let GidEntry { index, gid, kind, interface_up } = *entry;
        Entry { index, gid: gid.0, kind: place(&KINDS, &kind), interface_up }
    }

    pub(crate) fn read(&self) -> Option<GidEntry> {
        let kind = *KINDS.get(usize::from(self.kind))?;
        Some(GidEntry { index: self.index, gid: Gid(self.gid), kind, interface_up: self.interface_up })
    }
}

pub(crate) fn to_bytes(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("a vector takes what is written to it")
}

/// Writes one thing that is said.
pub(crate) fn say(mut to: impl Write, value: &impl Serialize) -> io::Result<()> {
    let bytes = to_bytes(value);
    to.write_all(&[&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat())
}

/// Reads one.
pub(crate) fn hear<T: DeserializeOwned>(mut from: impl Read) -> io::Result<T> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > LONGEST {
        return Err(io::Error::other(format!("{len} bytes at once are no part of the protocol")));
    }
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

/// What stands before a program's message on a trunk, or alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: Kind,
    /// The message wakes those that wait for such ones alone.
    pub solicited: bool,
    /// The queue pair that it is for, and the one that it is of.
    pub to: u32,
    pub from: u32,
    /// Bytes of the message.
    pub len: u32,
    /// The message's number, from 0; of [`Kind::Gone`] the one that does not come any more.
    pub number: u32,
    /// How many messages of the other side were taken by now.
    pub taken: u32,
    /// Which of the connections of the queue pair it is of: a later one has a higher number, and 0 is none.
    pub session: u32,
    /// The same of the one that it is for, as far as that is known.
    pub peer: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Message = 1,
    Taken = 2,
    Gone = 3,
}

impl Header {
    /// Bytes before a message, which starts at a cache line.
    pub(crate) const ROOM: usize = 64;
    /// Bytes of it.
    pub(crate) const SIZE: usize = 32;

    pub(crate) fn to_bytes(self) -> [u8; Header::SIZE] {
        let mut bytes = [0; Header::SIZE];
        (bytes[0], bytes[1]) = (self.kind as u8, self.solicited.into());
        let words = [self.to, self.from, self.len, self.number, self.taken, self.session, self.peer];
        for (at, word) in (4..).step_by(4).zip(words) {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// What came in so many bytes; None if it is nothing that an owner says.
    pub(crate) fn from_bytes(bytes: &[u8; Header::SIZE], came: usize) -> Option<Header> {
        let kind = match bytes[0] {
            1 => Kind::Message,
            2 => Kind::Taken,
            3 => Kind::Gone,
            _ => return None,
        };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let [to, from, len, number, taken, session, peer] = [4, 8, 12, 16, 20, 24, 28].map(word);
        let fits = (len as usize) <= LONGEST_MESSAGE && Header::ROOM + len as usize <= came;
        let solicited = bytes[1] != 0;
        fits.then_some(Header { kind, solicited, to, from, len, number, taken, session, peer })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn headers_come_back(kind in 1_u8..4, solicited in any::<bool>(), words in any::<[u32; 7]>()) {
            let kind = [Kind::Message, Kind::Taken, Kind::Gone][usize::from(kind - 1)];
            let [to, from, len, number, taken, session, peer] = words;
            let len = len % (LONGEST_MESSAGE as u32 + 1);
            let header = Header { kind, solicited, to, from, len, number, taken, session, peer };
            let bytes = header.to_bytes();
            prop_assert_eq!(Header::from_bytes(&bytes, Header::ROOM + len as usize), Some(header));
            prop_assert_eq!(Header::from_bytes(&bytes, Header::ROOM + len as usize - 1), None);
        }

        #[test]
        fn bytes_are_a_header_or_refused(bytes in any::<[u8; 32]>(), came in 0_usize..100_000) {
            if let Some(header) = Header::from_bytes(&bytes, came) {
                prop_assert!(Header::ROOM + header.len as usize <= came);
                prop_assert!(header.len as usize <= LONGEST_MESSAGE);
            }
        }

        #[test]
        fn what_is_said_is_heard_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = hear::<Ask>(&bytes[..]);
            let _ = hear::<Told>(&bytes[..]);
            let _ = postcard::from_bytes::<Call>(&bytes);
            let _ = postcard::from_bytes::<Answer>(&bytes);
        }
    }

    #[test]
    fn ports_and_addresses_come_over() {
        for (state, link_layer, active_mtu) in STATES
            .iter()
            .flat_map(|state| LAYERS.iter().flat_map(move |layer| MTUS.iter().map(move |mtu| (*state, *layer, *mtu))))
        {
            let port = PortInfo { number: 1, state, link_layer, active_mtu, gid_entries: 2, lid: 7 };
            assert_eq!(Port::of(&port).read(1), Some(port));
        }
        for kind in KINDS {
            let entry = GidEntry { index: 3, gid: Gid([9; 16]), kind, interface_up: Some(true) };
            assert_eq!(Entry::of(&entry).read(), Some(entry));
        }
    }

    #[test]
    fn what_is_too_long_is_no_part_of_it() {
        let error = hear::<Ask>(&u32::MAX.to_le_bytes()[..]).unwrap_err();
        assert!(error.to_string().contains("no part"), "{error}");
        let mut bytes = Vec::new();
        say(&mut bytes, &Ask::Port { number: 1 }).unwrap();
        assert!(matches!(hear(&bytes[..]).unwrap(), Ask::Port { number: 1 }));
    }
}
