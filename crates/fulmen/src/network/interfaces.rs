//! The addresses of this host.

use std::net::IpAddr;

use if_addrs::{IfAddr, Interface};
use serde::{Deserialize, Serialize};

/// Addresses of one host that are looked at: each takes a device, and each pair of them a question.
const MOST: usize = 8;

/// An address by which others may reach this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Address {
    pub ip: IpAddr,
    /// How many of its bits name the subnet; all of them where that is not known.
    pub prefix: u8,
    /// What it belongs to, and what is one end of a cable: an interface, or the address by itself where the user names it.
    pub interface: String,
    /// Whether the user, or a launcher, has named it.
    pub named: bool,
}

impl Address {
    /// Whether both are of one subnet, and are not the same.
    pub fn is_beside(&self, other: &Address) -> bool {
        let shared = self.prefix.max(other.prefix);
        self.ip != other.ip
            && match (self.ip, other.ip) {
                (IpAddr::V4(own), IpAddr::V4(other)) => {
                    let differ = u32::from(own) ^ u32::from(other);
                    differ.leading_zeros() >= shared.into()
                }
                (IpAddr::V6(own), IpAddr::V6(other)) => {
                    let differ = u128::from(own) ^ u128::from(other);
                    differ.leading_zeros() >= shared.into()
                }
                _ => false,
            }
    }

    fn of(interface: Interface) -> Address {
        let (ip, prefix) = match interface.addr {
            IfAddr::V4(addr) => (IpAddr::V4(addr.ip), addr.prefixlen),
            IfAddr::V6(addr) => (IpAddr::V6(addr.ip), addr.prefixlen),
        };
        Address { ip, prefix, interface: interface.name, named: false }
    }
}

/// The addresses of the interfaces that are up, without those that lead nowhere from another host: IPv4 first.
pub(super) fn found() -> Vec<Address> {
    let all = if_addrs::get_if_addrs().unwrap_or_else(|error| {
        tracing::warn!(%error, "the addresses of this host cannot be listed: it is reached by one");
        Vec::new()
    });
    let usable = |interface: &Interface| {
        interface.is_oper_up()
            && !interface.is_loopback()
            && !interface.is_link_local()
            && !interface.ip().is_unspecified()
    };
    let mut found: Vec<Address> = all.into_iter().filter(usable).map(Address::of).collect();
    found.sort_by_key(|address| address.ip.is_ipv6());
    found
}

/// The addresses of this host by which others may reach it: those that are `named`, in their order, and then those that were `found`,
/// if others count.
pub(super) fn choose(named: &[IpAddr], others: bool, found: &[Address]) -> Vec<Address> {
    let mut addresses: Vec<Address> = Vec::new();
    for ip in named.iter().map(IpAddr::to_canonical) {
        let known = found.iter().find(|address| address.ip == ip);
        let prefix = known.map_or(if ip.is_ipv4() { 32 } else { 128 }, |address| address.prefix);
        let interface = match known {
            // Of two addresses on one interface that the user names, each counts.
            Some(known) if others || addresses.iter().all(|address| address.interface != known.interface) => {
                known.interface.clone()
            }
            _ => ip.to_string(),
        };
        if addresses.iter().all(|address| address.ip != ip) {
            addresses.push(Address { ip, prefix, interface, named: true });
        }
    }
    if others {
        let more = found.iter().filter(|address| named.iter().all(|ip| ip.to_canonical() != address.ip));
        addresses.extend(more.cloned());
    }
    addresses.truncate(MOST);
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str, interface: &str) -> Address {
        let (ip, prefix) = text.split_once('/').unwrap();
        Address { ip: ip.parse().unwrap(), prefix: prefix.parse().unwrap(), interface: interface.into(), named: false }
    }

    #[test]
    fn subnets_are_told_apart() {
        for (one, other, beside) in [
            ("10.0.0.1/24", "10.0.0.2/24", true),
            ("10.0.0.1/24", "10.0.0.1/24", false),
            ("10.0.0.1/24", "10.0.1.1/24", false),
            ("10.0.0.1/16", "10.0.1.1/24", false),
            ("10.0.0.1/0", "192.168.0.1/0", true),
            ("10.0.0.1/32", "10.0.0.2/32", false),
            ("fd00::1/64", "fd00::2/64", true),
            ("fd00::1/64", "fd00:0:0:1::1/64", false),
            ("::1/128", "::2/128", false),
            ("10.0.0.1/0", "fd00::1/0", false),
        ] {
            let (one, other) = (address(one, "a"), address(other, "b"));
            assert_eq!((one.is_beside(&other), other.is_beside(&one)), (beside, beside), "{one:?} {other:?}");
        }
    }

    #[test]
    fn named_addresses_come_first_and_others_only_where_they_count() {
        let found = [address("10.0.0.1/24", "eth0"), address("10.0.1.1/24", "eth1"), address("fd00::1/64", "eth1")];
        let ips = |addresses: &[Address]| addresses.iter().map(|address| address.ip.to_string()).collect::<Vec<_>>();
        let named: Vec<IpAddr> = ["10.0.1.1", "192.0.2.9", "10.0.1.1"].map(|text| text.parse().unwrap()).to_vec();
        let only = choose(&named, false, &found);
        assert_eq!(ips(&only), ["10.0.1.1", "192.0.2.9"]);
        assert_eq!((only[0].prefix, only[0].interface.as_str(), only[0].named), (24, "eth1", true));
        assert_eq!((only[1].prefix, only[1].interface.as_str()), (32, "192.0.2.9"));
        assert_eq!(ips(&choose(&named[..1], true, &found)), ["10.0.1.1", "10.0.0.1", "fd00::1"]);
        // Two of one interface are two ends if the user says so.
        let both: Vec<IpAddr> = ["10.0.1.1", "fd00::1"].map(|text| text.parse().unwrap()).to_vec();
        let both = choose(&both, false, &found);
        assert_ne!(both[0].interface, both[1].interface);
    }

    #[test]
    fn what_is_found_leads_somewhere() {
        for address in found() {
            assert!(!address.ip.is_loopback() && !address.interface.is_empty(), "{address:?}");
        }
    }
}
