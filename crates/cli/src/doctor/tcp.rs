//! Whether ranks of this machine can talk by TCP with those of others, and by which address these would reach them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use super::ask::Asker;
use super::facts::ReachFacts;
use super::network::first;
use super::report::Check;

const NAME: &str = "tcp";
const VARIABLE: &str = "FULMEN_ADDRESS";
/// How long an own listener may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Addresses that documentation uses (RFC 5737 and 3849): the way to them is the default route. Nothing is sent there.
const FAR: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
/// The port for discard. Nothing is sent there.
const DISCARD: u16 = 9;

/// The check. `own` is what the environment names.
pub fn check(own: Option<IpAddr>, coordinator: Option<&str>, asker: &Asker) -> Check {
    let why = match (own, coordinator) {
        (Some(_), _) => format!("as {VARIABLE} says"),
        (None, Some(coordinator)) => format!("from which the way leads to the coordinator at {coordinator}"),
        (None, None) => {
            "from which the default route leads; it is another one if the way to the coordinator leads from there"
                .to_owned()
        }
    };
    let give = format!("set {VARIABLE} to the IP address of this machine by which the others reach it");
    match asker.reach(own, coordinator) {
        Ok(ReachFacts::Reached(address)) => Check::ok(
            NAME,
            format!("ranks of other hosts would reach this one at {address}, {why}; a listener there was reached"),
        ),
        Ok(ReachFacts::Near(address)) if own.is_some() => {
            Check::failure(NAME, format!("{VARIABLE} is {address}, which no other host reaches"), give)
        }
        Ok(ReachFacts::Near(address)) => Check::not_applicable(
            NAME,
            format!(
                "ranks would be reached at {address}, {why}: from this host alone ({VARIABLE} names another address)"
            ),
        ),
        Ok(ReachFacts::None) => Check::not_applicable(
            NAME,
            format!(
                "no route leads to other hosts: ranks of several hosts could not talk by TCP ({VARIABLE} names an address)"
            ),
        ),
        Ok(ReachFacts::NotOwn(address, cause)) => {
            Check::failure(NAME, format!("ranks cannot listen at {address}, {why}: {cause}"), give)
        }
        Ok(ReachFacts::Closed(address, cause)) => Check::failure(
            NAME,
            format!("a listener at {address}, {why}, was not reached: {cause}"),
            "let the firewall pass TCP between the hosts, on any port (`nft list ruleset`, `iptables -L` show its rules)",
        ),
        Err(trouble) => {
            Check::failure(NAME, format!("it cannot be told by which address this machine is reached: {trouble}"), give)
        }
    }
}

/// Looks, in the child.
pub fn look(own: Option<IpAddr>, coordinator: Option<&str>) -> ReachFacts {
    let address = own.or_else(|| match coordinator {
        Some(coordinator) => source(first(coordinator.to_socket_addrs().ok()?)?),
        None => FAR.into_iter().find_map(|far| source(SocketAddr::new(far, DISCARD))),
    });
    let Some(address) = address.map(|address| address.to_canonical()) else { return ReachFacts::None };
    if address.is_loopback() {
        return ReachFacts::Near(address);
    }
    let listener = match TcpListener::bind((address, 0)) {
        Ok(listener) => listener,
        Err(error) => return ReachFacts::NotOwn(address, error.to_string()),
    };
    let reached = listener.local_addr().and_then(|at| TcpStream::connect_timeout(&at, PATIENCE));
    match reached {
        Ok(_) => ReachFacts::Reached(address),
        Err(error) => ReachFacts::Closed(address, error.to_string()),
    }
}

/// The address of this machine from which the way to `there` leads. A socket for datagrams knows it without sending any.
fn source(there: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = if there.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(there).ok()?;
    socket.local_addr().ok().map(|own| own.ip()).filter(|own| !own.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_this_host_leads_from_it() {
        let near: IpAddr = Ipv4Addr::LOCALHOST.into();
        assert_eq!(source(SocketAddr::new(near, 7117)), Some(near));
        assert!(matches!(look(None, Some("127.0.0.1:7117")), ReachFacts::Near(address) if address == near));
        assert!(matches!(look(None, Some("nonsense")), ReachFacts::None));
        assert!(matches!(look(Some(FAR[0]), None), ReachFacts::NotOwn(address, _) if address == FAR[0]));
    }
}
