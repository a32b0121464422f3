//! The software device over TCP, for ranks on several hosts.

use std::net::{IpAddr, SocketAddr};

use fulmen_fabric::{Muster, Providers, Tcp};
use fulmen_reach::Node;
use fulmen_soft::{NetworkOptions, Profile, SoftDevice, SoftOptions};

use crate::InitError;

/// The variable that says by which address others reach this host.
pub(crate) const ADDRESS: &str = "FULMEN_ADDRESS";
/// Whoever sets it says where processes are, whatever their addresses.
const HOST_ID: &str = "FULMEN_HOST_ID";

/// How ranks reach other hosts by TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// The address of this host by which others reach it; if none is given, that of the connection to the coordinator.
    pub address: Option<IpAddr>,
    /// Whether the network between the hosts is trusted: what ranks send over it is not sealed then, and whoever can look into
    /// the network reads it, or changes it. Ranks must agree on it.
    pub trusted: bool,
    /// Whether each rank acts as if it were alone on its host, so that ranks of one host talk by TCP, too.
    pub apart: bool,
}

/// Opens the device, for peers on this host and on others.
pub(crate) fn open(
    muster: &Muster<'_>,
    network: &Network,
    profile: Option<Profile>,
    instead: Option<String>,
) -> Result<Providers, InitError> {
    let session = muster.session();
    let (Some(own), Some(identity)) = (session.local_addr(), session.identity()) else {
        // Alone: there is nobody to reach.
        return Ok(Providers::default());
    };
    let listen = SocketAddr::new(address(network.address, own.ip(), muster.hosts().elsewhere())?, 0);
    let sealed = !network.trusted;
    let node = Node::open()?;
    let mut on = NetworkOptions::new(listen);
    on.seal = sealed.then(|| identity.clone());
    // No other node has the same name.
    on.host = network.apart.then(|| *node.address().name());
    let options = SoftOptions { network: Some(on), ..SoftOptions::new(profile.unwrap_or(Profile::Infiniband)) };
    let device = SoftDevice::open_as(&node, options)?;
    tracing::debug!(%listen, sealed, "opened the software device over TCP");
    let tcp = Some(Tcp { sealed, instead });
    Ok(Providers { node: Some(node), devices: vec![device], tcp, ..Providers::default() })
}

/// The address by which peers reach this host: the one that was given, or `own`, of the connection to the coordinator. `elsewhere` is a
/// rank on another host, if there is one.
fn address(given: Option<IpAddr>, own: IpAddr, elsewhere: Option<u32>) -> Result<IpAddr, InitError> {
    let address = given.unwrap_or(own).to_canonical();
    let named = std::env::var_os(HOST_ID).is_some_and(|id| !id.is_empty());
    match elsewhere {
        Some(rank) if is_near(address) && !named => Err(InitError::Near { address, rank }),
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

/// Reads what [`ADDRESS`] says.
pub(crate) fn parse(text: &str) -> Result<IpAddr, InitError> {
    let fits = |address: &IpAddr| !address.is_unspecified() && !address.is_multicast();
    text.trim().parse().ok().filter(fits).ok_or_else(|| InitError::Address(text.escape_debug().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_name_no_host_are_refused_with_the_way_out() {
        for good in ["10.0.0.1", " 127.0.0.1 ", "2001:db8::7", "fe80::1"] {
            assert_eq!(parse(good).unwrap(), good.trim().parse::<IpAddr>().unwrap());
        }
        for bad in ["", "host", "0.0.0.0", "::", "224.0.0.1", "10.0.0.1:7000", "10.0.0"] {
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
