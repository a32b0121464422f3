use std::fmt;

use crate::platform;
use crate::{ReachError, error::System};

const FORM: u32 = 1;

/// How names start: `fe80`, ten random bytes, the process.
const LINK_LOCAL: [u8; 2] = [0xfe, 0x80];

/// How names of numbered nodes start: `fe80`, zeros, and a word that no random name has but by a chance of 2⁻⁶⁴. The user
/// and the number follow.
const NUMBERED: [u8; 10] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0x46];
/// Bits below the number, for whatever a node has several of.
const NUMBER_SHIFT: u32 = 3;

/// Where a [`Node`](crate::Node) is found: on which host, in which process, under which secret name.
///
/// Whoever has it, and runs as the same user on the same host, can connect. It is given to peers and shown to nobody:
/// `Debug` and `Display` leave the name out.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeAddress {
    host: [u8; 16],
    pid: u32,
    name: [u8; 16],
}

impl NodeAddress {
    /// Bytes of [`NodeAddress::to_bytes`].
    pub const SIZE: usize = 48;

    /// The highest number of a [numbered](crate::Node::open_numbered) node; the lowest is 1. Eight times a number, and
    /// seven more, is then a unicast LID as InfiniBand has them (up to 0xBFFF).
    pub const MOST_NUMBERED: u16 = 0xBFFF >> NUMBER_SHIFT;

    /// The address of a new node of this process.
    pub(crate) fn new() -> Result<NodeAddress, ReachError> {
        let mut name = [0; 16];
        getrandom::fill(&mut name).system("get random bytes for a node's name")?;
        let pid = std::process::id();
        // A name serves as a device's GID, too: link-local, and enough to find the node on its host.
        name[..2].copy_from_slice(&LINK_LOCAL);
        name[12..].copy_from_slice(&pid.to_le_bytes());
        Ok(NodeAddress { host: this_host()?, pid, name })
    }

    /// The address of this user's node of this number on this host, whether there is one or not. Its process is not known.
    ///
    /// # Errors
    /// [`ReachError::Address`] if `number` is not 1 to [`NodeAddress::MOST_NUMBERED`], [`ReachError::System`] if this host's
    /// id is not known.
    pub fn numbered(number: u16) -> Result<NodeAddress, ReachError> {
        if !(1..=Self::MOST_NUMBERED).contains(&number) {
            return Err(ReachError::Address);
        }
        let mut name = [0; 16];
        name[..10].copy_from_slice(&NUMBERED);
        name[10..14].copy_from_slice(&rustix::process::geteuid().as_raw().to_be_bytes());
        name[14..].copy_from_slice(&(number << NUMBER_SHIFT).to_be_bytes());
        Ok(NodeAddress { host: this_host()?, pid: 0, name })
    }

    /// The number of a numbered node.
    #[must_use]
    pub fn number(&self) -> Option<u16> {
        let number = u16::from_be_bytes([self.name[14], self.name[15]]) >> NUMBER_SHIFT;
        (self.name[..10] == NUMBERED).then_some(number)
    }

    /// The address of the node of this name on this host.
    ///
    /// # Errors
    /// [`ReachError::Address`] if no node has such a name, [`ReachError::System`] if this host's id is not known.
    pub fn on_this_host(name: [u8; 16]) -> Result<NodeAddress, ReachError> {
        if name[..2] != LINK_LOCAL {
            return Err(ReachError::Address);
        }
        let pid = match name[..10] == NUMBERED {
            true => 0,
            false => u32::from_le_bytes([name[12], name[13], name[14], name[15]]),
        };
        Ok(NodeAddress { host: this_host()?, pid, name })
    }

    /// Tells hosts apart: processes with equal ids can map each other's memory.
    ///
    /// It is made of the boot's id and the network namespace (in which the names of nodes live), or of the variable
    /// `FULMEN_HOST_ID` where that is set.
    #[must_use]
    pub fn host_id(&self) -> [u8; 16] {
        self.host
    }

    /// The process, as its own namespace of processes numbers it; 0 for a numbered node, whose process is not in its
    /// address.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The name of its node, which tells it apart from all others of its host.
    #[must_use]
    pub fn name(&self) -> &[u8; 16] {
        &self.name
    }

    /// Sixteen bytes of host, four of process (little-endian), four of form, sixteen of name, eight of zeros.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..16].copy_from_slice(&self.host);
        bytes[16..20].copy_from_slice(&self.pid.to_le_bytes());
        bytes[20..24].copy_from_slice(&FORM.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.name);
        bytes
    }

    /// The address that these bytes mean.
    ///
    /// # Errors
    /// [`ReachError::Address`] if they are none.
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Result<NodeAddress, ReachError> {
        let field = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        if u32::from_le_bytes(field(20)) != FORM || bytes[40..] != [0; 8] {
            return Err(ReachError::Address);
        }
        let mut address = NodeAddress { host: [0; 16], pid: u32::from_le_bytes(field(16)), name: [0; 16] };
        address.host.copy_from_slice(&bytes[..16]);
        address.name.copy_from_slice(&bytes[24..40]);
        Ok(address)
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on host ", crate::error::process(self.pid))?;
        self.host[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeAddress({self})")
    }
}

/// What [`NodeAddress::host_id`] says of each node of this process.
///
/// # Errors
/// [`ReachError::System`] if the system does not tell this boot's id.
pub fn this_host() -> Result<[u8; 16], ReachError> {
    if let Some(chosen) = std::env::var_os("FULMEN_HOST_ID").filter(|chosen| !chosen.is_empty()) {
        return Ok(digest(chosen.as_encoded_bytes()));
    }
    Ok(digest(&platform::host_identity().system("read this host's boot id")?))
}

/// The same for all processes whose machine has booted once, whichever network they see and whatever `FULMEN_HOST_ID` says: they share
/// its processors.
///
/// # Errors
/// [`ReachError::System`] if the system does not tell this boot's id.
pub fn this_machine() -> Result<[u8; 16], ReachError> {
    Ok(digest(&platform::machine_identity().system("read this machine's boot id")?))
}

/// FNV-1a of 128 bits: it tells a few hosts apart and protects nothing.
fn digest(bytes: &[u8]) -> [u8; 16] {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_are_the_address_or_refused(bytes in prop::array::uniform32(any::<u8>()), form in 0u32..3, tail in 0u8..2) {
            let mut all = [0; NodeAddress::SIZE];
            all[..32].copy_from_slice(&bytes);
            all[20..24].copy_from_slice(&form.to_le_bytes());
            all[47] = tail;
            match NodeAddress::from_bytes(&all) {
                Ok(address) => prop_assert_eq!(address.to_bytes(), all),
                Err(_) => prop_assert!(form != FORM || tail != 0),
            }
        }
    }

    #[test]
    fn the_name_is_not_shown() {
        let address = NodeAddress { host: [1; 16], pid: 7, name: [0xab; 16] };
        let shown = format!("{address} {address:?}");
        assert!(shown.contains("process 7"), "{shown}");
        assert!(!shown.contains("ab") && !shown.contains("171"), "{shown}");
    }

    #[test]
    fn two_nodes_of_a_process_differ_in_name_only() {
        let (one, other) = (NodeAddress::new().unwrap(), NodeAddress::new().unwrap());
        assert_ne!(one, other);
        assert_eq!((one.host_id(), one.pid()), (other.host_id(), other.pid()));
    }

    #[test]
    fn a_name_is_enough_on_its_host() {
        let address = NodeAddress::new().unwrap();
        assert_eq!(NodeAddress::on_this_host(*address.name()).unwrap(), address);
        assert!(NodeAddress::on_this_host([0; 16]).is_err());
    }

    #[test]
    fn numbers_are_names() {
        let address = NodeAddress::numbered(7).unwrap();
        assert_eq!(address.number(), Some(7));
        assert_eq!(NodeAddress::new().unwrap().number(), None);
        assert_eq!(NodeAddress::on_this_host(*address.name()).unwrap(), address);
        assert_ne!(address, NodeAddress::numbered(8).unwrap());
        assert!(!format!("{address}").contains("process 0"), "nobody is process 0: {address}");
        for number in [0, NodeAddress::MOST_NUMBERED + 1, u16::MAX] {
            assert!(NodeAddress::numbered(number).is_err(), "{number}");
        }
        assert!(NodeAddress::numbered(NodeAddress::MOST_NUMBERED).is_ok());
    }

    #[test]
    fn digests_tell_hosts_apart() {
        assert_ne!(digest(b"host-1"), digest(b"host-2"));
        assert_ne!(digest(b""), digest(b"\0"));
    }
}
