//! GID tables as they are found, and which entry is chosen.

use std::net::Ipv6Addr;

use fulmen_verbs::{Gid, GidEntry, GidError, GidKind, LinkLayer, select_gid};
use proptest::prelude::*;

fn entry(index: u8, address: &str, kind: GidKind, interface_up: Option<bool>) -> GidEntry {
    let address: Ipv6Addr = address.parse().expect("an address");
    GidEntry { index, gid: Gid(address.octets()), kind, interface_up }
}

fn apple(index: u8, address: &str) -> GidEntry {
    entry(index, address, GidKind::Unknown, None)
}

const FROM_MAC: &str = "fe80::1cd0:f0ff:fe53:12a0";
const MAPPED: &str = "::ffff:192.168.7.2";

fn chosen(link_layer: LinkLayer, table: &[GidEntry]) -> u8 {
    let entry = select_gid(link_layer, table).expect("an entry can be used");
    assert!(table.contains(&entry), "the index travels with its address");
    entry.index
}

#[test]
fn thunderbolt_tables() {
    let layer = LinkLayer::Thunderbolt;
    // Once the interface has IPv4, that address is used, wherever it stands.
    assert_eq!(chosen(layer, &[apple(0, FROM_MAC), apple(1, MAPPED)]), 1);
    assert_eq!(chosen(layer, &[apple(0, FROM_MAC), apple(2, MAPPED)]), 2);
    assert_eq!(chosen(layer, &[apple(0, FROM_MAC), apple(1, "fe80::9"), apple(2, MAPPED)]), 2);
    assert_eq!(chosen(layer, &[apple(0, FROM_MAC), apple(1, "::"), apple(2, MAPPED)]), 2);
    // Without IPv4, index 1 comes first, and one link-local address is better than none.
    assert_eq!(chosen(layer, &[apple(0, FROM_MAC)]), 0);
    assert_eq!(chosen(layer, &[apple(0, FROM_MAC), apple(1, "fe80::9")]), 1);
    assert_eq!(chosen(layer, &[apple(0, FROM_MAC), apple(2, "fe80::9"), apple(3, "fe80::8")]), 0);
}

#[test]
fn a_common_roce_table() {
    use GidKind::{RoceV1, RoceV2};
    let (up, down) = (Some(true), Some(false));
    let mut table = vec![
        entry(0, "fe80::a288:c2ff:fe12:3456", RoceV1, up),
        entry(1, "fe80::a288:c2ff:fe12:3456", RoceV2, up),
        entry(2, "::ffff:10.0.0.5", RoceV1, up),
        entry(3, "::ffff:10.0.0.5", RoceV2, up),
        entry(4, "::ffff:10.8.0.5", RoceV1, down),
        entry(5, "::ffff:10.8.0.5", RoceV2, down),
    ];
    assert_eq!(chosen(LinkLayer::Ethernet, &table), 3);
    // The VLAN's interface is up and the plain one is down.
    for entry in &mut table {
        entry.interface_up = Some(entry.index >= 4);
    }
    assert_eq!(chosen(LinkLayer::Ethernet, &table), 5);
    // Where the system does not say, no interface counts as down.
    for entry in &mut table {
        entry.interface_up = None;
    }
    assert_eq!(chosen(LinkLayer::Ethernet, &table), 3);
    // Link-local only.
    table.truncate(2);
    assert_eq!(chosen(LinkLayer::Ethernet, &table), 1);
    // All down.
    table[1].interface_up = down;
    assert_eq!(select_gid(LinkLayer::Ethernet, &table), Err(GidError::InterfacesDown { entries: 1 }));
    // Version 1 alone is of no use.
    table.truncate(1);
    assert_eq!(select_gid(LinkLayer::Ethernet, &table), Err(GidError::NoRoceV2 { entries: 1 }));
}

#[test]
fn infiniband_tables() {
    let port = entry(0, "fe80::506b:4b03:f5:1234", GidKind::Infiniband, None);
    let alias = entry(1, "fec0::506b:4b03:f5:1234", GidKind::Infiniband, None);
    assert_eq!(chosen(LinkLayer::Infiniband, &[port]), 0);
    assert_eq!(chosen(LinkLayer::Infiniband, &[alias, port]), 0);
    assert_eq!(select_gid(LinkLayer::Infiniband, &[alias]), Err(GidError::NoIndexZero));
    let empty = entry(0, "::", GidKind::Infiniband, None);
    assert_eq!(select_gid(LinkLayer::Infiniband, &[empty, alias]), Err(GidError::NoIndexZero));
}

#[test]
fn tables_without_a_usable_entry() {
    for layer in [LinkLayer::Infiniband, LinkLayer::Ethernet, LinkLayer::Thunderbolt] {
        assert_eq!(select_gid(layer, &[]), Err(GidError::Empty));
        let zeros = [0, 1, 2].map(|index| apple(index, "::"));
        assert_eq!(select_gid(layer, &zeros), Err(GidError::AllZero { entries: 3 }));
        assert_eq!(select_gid(layer, &zeros[..1]), Err(GidError::AllZero { entries: 1 }));
        assert_eq!(chosen(layer, &[apple(0, FROM_MAC)]), 0, "one entry, of a device that does not tell its kind");
    }
    // Each message is one line, and tells the way out.
    let errors = [
        GidError::Empty,
        GidError::AllZero { entries: 2 },
        GidError::NoRoceV2 { entries: 2 },
        GidError::InterfacesDown { entries: 2 },
        GidError::NoIndexZero,
    ];
    for error in errors {
        let text = error.to_string();
        assert!(text.contains(':') && !text.contains('\n') && !text.contains("  "), "{text}");
    }
}

#[test]
fn gids_tell_what_they_are() {
    let mapped = apple(0, MAPPED).gid;
    assert!(mapped.is_ipv4_mapped() && !mapped.is_link_local() && !mapped.is_zero());
    assert_eq!(mapped.to_string(), MAPPED);
    let local = apple(0, FROM_MAC).gid;
    assert!(local.is_link_local() && !local.is_ipv4_mapped());
    assert!(Gid::default().is_zero() && !mapped.is_zero());
    assert_eq!(format!("{local:?}"), format!("Gid({FROM_MAC})"));
}

fn any_entry() -> impl Strategy<Value = GidEntry> {
    let address = prop_oneof![Just("::"), Just(FROM_MAC), Just(MAPPED), Just("2001:db8::1")];
    let kind =
        prop_oneof![Just(GidKind::Infiniband), Just(GidKind::RoceV1), Just(GidKind::RoceV2), Just(GidKind::Unknown)];
    (any::<u8>(), address, kind, any::<Option<bool>>())
        .prop_map(|(index, address, kind, up)| entry(index, address, kind, up))
}

proptest! {
    #[test]
    fn what_is_chosen_can_be_used(table in proptest::collection::vec(any_entry(), 0..12)) {
        for layer in [LinkLayer::Infiniband, LinkLayer::Ethernet, LinkLayer::Thunderbolt] {
            let Ok(chosen) = select_gid(layer, &table) else { continue };
            prop_assert!(table.contains(&chosen) && !chosen.gid.is_zero());
            match layer {
                LinkLayer::Infiniband => prop_assert_eq!(chosen.index, 0),
                LinkLayer::Ethernet => {
                    prop_assert!(matches!(chosen.kind, GidKind::RoceV2 | GidKind::Unknown));
                    prop_assert_ne!(chosen.interface_up, Some(false));
                }
                LinkLayer::Thunderbolt => prop_assert_ne!(chosen.interface_up, Some(false)),
            }
            // Both sides of a cable see the table in any order, and choose the same.
            let reversed: Vec<GidEntry> = table.iter().rev().copied().collect();
            let again = select_gid(layer, &reversed).expect("the same table");
            prop_assert_eq!(again.index, chosen.index);
        }
    }
}
