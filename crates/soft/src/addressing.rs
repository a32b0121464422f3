//! What addresses mean: which node of this host, and which of its devices.

use fulmen_reach::{Node, NodeAddress, ReachError};
use fulmen_verbs::Gid;

use crate::{Addressing, Profile};

/// Bits of a LID that name a device of its node; the node's number has those above.
const INDEX_BITS: u32 = 3;
/// Devices of a node that is found by its number.
pub(crate) const NUMBERED_DEVICES: u32 = 1 << INDEX_BITS;

const LINK_LOCAL: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
/// How the last eight bytes of an InfiniBand GID start; the LID follows.
const PORT: [u8; 6] = [0x02, 0x46, 0x4c, 0x4d, 0, 0];
/// The same of a GID that is made of the Ethernet address 02:46:4c:4d and the LID, with `ff:fe` in its middle and the
/// universal bit turned over, as IPv6 makes them.
const ETHERNET: [u8; 6] = [0x00, 0x46, 0x4c, 0xff, 0xfe, 0x4d];
/// IPv4, link-local: 169.254 and the LID.
const IPV4: [u8; 14] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 169, 254];

/// Where a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DeviceAddress {
    pub(crate) node: NodeAddress,
    /// Its number on the node; `None` if the numbers of its queue pairs alone tell.
    pub(crate) index: Option<u32>,
}

impl Addressing {
    /// Devices of one node.
    pub(crate) fn most_devices(self) -> u32 {
        match self {
            Addressing::Node => crate::device::MOST_DEVICES,
            Addressing::Numbered(_) => NUMBERED_DEVICES,
        }
    }

    /// Whether devices of `node` can be found in this way.
    pub(crate) fn suits(self, node: &Node) -> bool {
        match self {
            Addressing::Node => true,
            Addressing::Numbered(number) => NodeAddress::numbered(number).is_ok_and(|named| named == node.address()),
        }
    }

    /// The address within the subnet of device `index` of the node at `node`; 0 if it has none.
    pub(crate) fn lid(self, node: &NodeAddress, index: u32) -> u16 {
        match self {
            Addressing::Node => 0,
            Addressing::Numbered(_) => node.number().map_or(0, |number| number << INDEX_BITS | index as u16),
        }
    }

    /// The GIDs of device `index` of the node at `node`, in the order of its table.
    pub(crate) fn gids(self, node: &NodeAddress, index: u32, profile: Profile) -> Vec<Gid> {
        let lid = self.lid(node, index).to_be_bytes();
        let link_local = |end: [u8; 6]| {
            let mut gid = [0; 16];
            gid[..8].copy_from_slice(&LINK_LOCAL);
            gid[8..14].copy_from_slice(&end);
            gid[14..].copy_from_slice(&lid);
            Gid(gid)
        };
        let ipv4 = || {
            let mut gid = [0; 16];
            gid[..14].copy_from_slice(&IPV4);
            gid[14..].copy_from_slice(&lid);
            Gid(gid)
        };
        match (self, profile) {
            (Addressing::Node, _) => vec![Gid(*node.name())],
            (Addressing::Numbered(_), Profile::Infiniband) => vec![link_local(PORT)],
            // As Macs have them once the interface has an IPv4 address.
            (Addressing::Numbered(_), Profile::Thunderbolt) => vec![link_local(ETHERNET), ipv4()],
        }
    }

    /// Whom an address means: a GID, or a LID where the GID is zero.
    pub(crate) fn find(self, gid: Gid, lid: u16) -> Result<DeviceAddress, ReachError> {
        match self {
            Addressing::Node => Ok(DeviceAddress { node: NodeAddress::on_this_host(gid.0)?, index: None }),
            Addressing::Numbered(_) => {
                let lid = if gid.is_zero() { lid } else { lid_of(gid).ok_or(ReachError::Address)? };
                let index = u32::from(lid) % NUMBERED_DEVICES;
                Ok(DeviceAddress { node: NodeAddress::numbered(lid >> INDEX_BITS)?, index: Some(index) })
            }
        }
    }
}

/// The LID that a GID of a numbered device holds.
fn lid_of(gid: Gid) -> Option<u16> {
    let link_local = gid.0[..8] == LINK_LOCAL && (gid.0[8..14] == PORT || gid.0[8..14] == ETHERNET);
    (link_local || gid.0[..14] == IPV4).then(|| u16::from_be_bytes([gid.0[14], gid.0[15]]))
}

#[cfg(test)]
mod tests {
    use fulmen_verbs::{LinkLayer, select_gid};
    use proptest::prelude::*;

    use super::*;
    use crate::numbered;

    #[test]
    fn every_gid_and_the_lid_lead_to_the_device() {
        let (number, node) = numbered::open();
        let addressing = Addressing::Numbered(number);
        for index in 0..NUMBERED_DEVICES {
            let lid = addressing.lid(&node.address(), index);
            let here = DeviceAddress { node: node.address(), index: Some(index) };
            assert_eq!(addressing.find(Gid::default(), lid).unwrap(), here);
            for profile in Profile::ALL {
                for gid in addressing.gids(&node.address(), index, profile) {
                    assert_eq!(addressing.find(gid, 0).unwrap(), here, "{gid}");
                }
            }
        }
    }

    #[test]
    fn tables_are_those_that_programs_expect() {
        let (number, node) = numbered::open();
        let addressing = Addressing::Numbered(number);
        let gids = addressing.gids(&node.address(), 1, Profile::Thunderbolt);
        assert!(gids[0].is_link_local() && gids[1].is_ipv4_mapped(), "{gids:?}");
        let device = numbered::device(&node, number, Profile::Thunderbolt);
        let table = device.gid_table(1).unwrap();
        assert_eq!(select_gid(LinkLayer::Thunderbolt, &table).unwrap().index, 1);
        assert_eq!(device.port(1).unwrap().lid, 0, "only InfiniBand has LIDs");
        let device = numbered::device(&node, number, Profile::Infiniband);
        assert_eq!(device.port(1).unwrap().lid, number << 3 | 1);
        assert_eq!(device.port(1).unwrap().gid_entries, 1);
    }

    proptest! {
        #[test]
        fn foreign_addresses_are_refused(bytes in prop::array::uniform16(any::<u8>()), lid in any::<u16>()) {
            let addressing = Addressing::Numbered(1);
            let gid = Gid(bytes);
            prop_assert_eq!(addressing.find(gid, lid).is_ok(), lid_of(gid).is_some_and(|lid| (8..0xC000).contains(&lid)));
            prop_assert_eq!(addressing.find(Gid::default(), lid).is_ok(), (8..0xC000).contains(&lid));
        }
    }
}
