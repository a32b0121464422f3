//! The software device over TCP, for ranks on several hosts.

mod interfaces;
mod paths;
pub(crate) mod probe;

use std::net::{IpAddr, SocketAddr};

use fulmen_fabric::{Muster, Providers, Tcp};
use fulmen_reach::Node;
use fulmen_soft::{NetworkOptions, Profile, SoftDevice, SoftOptions};

use self::interfaces::Address;
use self::paths::Home;
use self::probe::Open;
use crate::InitError;

/// The variable that says by which addresses others reach this host.
pub(crate) const ADDRESS: &str = "FULMEN_ADDRESS";
/// In it, all other addresses that this host has.
const ANY: &str = "any";
/// Whoever sets it says where processes are, whatever their addresses.
const HOST_ID: &str = "FULMEN_HOST_ID";

/// So many ranks connect each to each at the start. More of them open a link's connections when either end has something to send.
const FEW: u32 = 16;

/// How ranks reach other hosts by TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// The addresses of this host by which others reach it. If none is given: that of the connection to the coordinator first, and
    /// all others that its interfaces have.
    pub addresses: Vec<IpAddr>,
    /// Whether all others that its interfaces have count beside those that are given.
    pub any: bool,
    /// Whether the network between the hosts is trusted: what ranks send over it is not sealed then, and whoever can look into
    /// the network reads it, or changes it. Ranks must agree on it.
    pub trusted: bool,
    /// Whether each rank acts as if it were alone on its host, so that ranks of one host talk by TCP, too.
    pub apart: bool,
}

/// Opens devices, for peers on this host and on others: one for each address that leads to any of them. `named` says whether the program
/// says itself on which host this is.
pub(crate) fn open(
    (muster, named): (&Muster<'_>, bool),
    network: &Network,
    profile: Option<Profile>,
    instead: Option<String>,
) -> Result<Providers, InitError> {
    let session = muster.session();
    let (Some(own), Some(identity)) = (session.local_addr(), session.identity()) else {
        // Alone: there is nobody to reach.
        return Ok(Providers::default());
    };
    let hosts = muster.hosts();
    let named = named || std::env::var_os(HOST_ID).is_some_and(|id| !id.is_empty());
    let elsewhere = hosts.elsewhere().filter(|_| !named);
    let first = address(network.addresses.first().copied(), own.ip(), elsewhere)?;
    let node = Node::open()?;
    let name = *node.address().name();
    let host = if network.apart { name } else { node.address().host_id() };
    let named = if network.addresses.is_empty() { &[first][..] } else { &network.addresses };
    // Ranks that talk already are not asked which other ways lead to them. Nor does one lead elsewhere where all are here.
    let others = (network.any || network.addresses.is_empty()) && !hosts.are_one();
    let found = interfaces::found();
    let home = Home { host, addresses: interfaces::choose(named, others, &found) };
    let sealed = !network.trusted;
    let open = |at: usize| -> Result<Open, InitError> {
        let listen = SocketAddr::new(home.addresses[at].ip, 0);
        let mut on = NetworkOptions::new(listen);
        on.seal = sealed.then(|| identity.clone());
        // No other node has the same name.
        on.host = network.apart.then_some(name);
        on.on_first_use = session.size() > FEW;
        let options = SoftOptions {
            network: Some(on),
            name: device_name(&home.addresses, at),
            ..SoftOptions::new(profile.unwrap_or(Profile::Infiniband))
        };
        let (device, scout) = SoftDevice::open_with_scout(&node, options)?;
        tracing::debug!(%listen, sealed, "opened the software device over TCP");
        Ok(Open { device, scout })
    };
    let first = open(0)?;
    let (devices, cables) = match hosts.means() {
        None => probe::probe(muster, &home, first, open)?,
        Some(_) => (vec![first.device], None),
    };
    let tcp = Some(Tcp { sealed, instead });
    Ok(Providers { node: Some(node), devices, cables, tcp })
}

/// What the device at an address is called: as its interface, if that has no other one. Else it gets a number.
fn device_name(addresses: &[Address], at: usize) -> Option<String> {
    let Address { ip, interface, .. } = &addresses[at];
    let is_taken = addresses[..at].iter().any(|address| address.interface == *interface);
    match is_taken {
        // It is not used beside the other one.
        true => Some(format!("{interface}/{ip}")),
        false if *interface == ip.to_string() && addresses.len() == 1 => None,
        false => Some(interface.clone()),
    }
}

/// The address by which peers reach this host: the one that was given, or `own`, of the connection to the coordinator. `elsewhere` is a
/// rank that is really on another host, if there is one.
fn address(given: Option<IpAddr>, own: IpAddr, elsewhere: Option<u32>) -> Result<IpAddr, InitError> {
    let address = given.unwrap_or(own).to_canonical();
    match elsewhere {
        Some(rank) if is_near(address) => Err(InitError::Near { address, rank }),
        _ => Ok(address),
    }
}

/// Whether an address leads nowhere from another host: loopback, or one of a single link, which means nothing without the name of an
/// interface there.
fn is_near(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local(),
    }
}

/// Reads what [`ADDRESS`] says: addresses, and whether all others count, too.
pub(crate) fn parse(text: &str) -> Result<(Vec<IpAddr>, bool), InitError> {
    let fits = |address: &IpAddr| !address.is_unspecified() && !address.is_multicast();
    let (mut addresses, mut any) = (Vec::new(), false);
    for part in text.split(',').map(str::trim) {
        match part.parse().ok().filter(fits) {
            Some(address) if !addresses.contains(&address) => addresses.push(address),
            None if part == ANY && !any => any = true,
            _ => return Err(InitError::Address(text.escape_debug().collect())),
        }
    }
    Ok((addresses, any))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_addresses_are_read_and_those_that_name_no_host_refused_with_the_way_out() {
        for good in ["10.0.0.1", " 127.0.0.1 ", "2001:db8::7", "fe80::1"] {
            assert_eq!(parse(good).unwrap(), (vec![good.trim().parse().unwrap()], false));
        }
        let two: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        assert_eq!(parse("10.0.0.1, fd00::1").unwrap(), (two.clone(), false));
        assert_eq!(parse("10.0.0.1,any,fd00::1").unwrap(), (two, true));
        assert_eq!(parse("any").unwrap(), (vec![], true));
        for bad in [
            "",
            "host",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "10.0.0.1:7000",
            "10.0.0",
            ",",
            "10.0.0.1,",
            ",10.0.0.1",
            "any,any",
            "10.0.0.1,10.0.0.1",
            "10.0.0.1;10.0.0.2",
            "10.0.0.1 10.0.0.2",
            "Any",
        ] {
            let text = parse(bad).unwrap_err().to_string();
            assert!(text.contains(ADDRESS) && text.contains(bad) && text.contains("10.0.0.1"), "{text}");
        }
    }

    #[test]
    fn an_address_that_leads_nowhere_from_other_hosts_is_refused_where_there_are_any() {
        let [near, far] = ["127.0.0.1", "192.0.2.1"].map(|text| text.parse::<IpAddr>().unwrap());
        assert_eq!(address(None, near, None).unwrap(), near);
        assert_eq!(address(Some(far), near, Some(1)).unwrap(), far);
        assert_eq!(address(None, "::ffff:192.0.2.1".parse().unwrap(), Some(1)).unwrap(), far);
        for (given, own) in [(None, near), (Some(near), far), (Some("fe80::1".parse().unwrap()), far)] {
            let text = address(given, own, Some(3)).unwrap_err().to_string();
            assert!(text.contains(ADDRESS) && text.contains("rank 3"), "{text}");
        }
    }
}
