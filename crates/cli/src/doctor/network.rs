//! Whether the coordinator's address can be reached, and whether what stands there speaks this version.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use fulmen::parts::fabric::bootstrap::{PROTOCOL_VERSION, version_of};

use super::ask::Asker;
use super::facts::AddressFacts;
use super::report::Check;

const ADDRESS: &str = "coordinator";
const VERSION: &str = "version";
/// How long an address may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Both checks of the coordinator's address.
pub fn checks(address: Option<&str>, asker: &Asker) -> [Check; 2] {
    let own = format!(
        "this is fulmen {} with version {PROTOCOL_VERSION} of the bootstrap protocol",
        env!("CARGO_PKG_VERSION")
    );
    let not_asked =
        || Check::not_applicable(VERSION, format!("{own}; no running coordinator was there to compare with"));
    let Some(address) = address else {
        let sentence =
            "no coordinator was named: `--coordinator ADDRESS:PORT` looks whether it can be reached, on each machine";
        return [Check::not_applicable(ADDRESS, sentence), not_asked()];
    };
    let facts = match asker.address(address) {
        Ok(facts) => facts,
        Err(trouble) => {
            let fix = "look whether name resolution works here (`getent hosts`), or name an IP address";
            return [Check::failure(ADDRESS, format!("{address} could not be asked: {trouble}"), fix), not_asked()];
        }
    };
    match facts {
        AddressFacts::Served(at, version) => [
            Check::ok(ADDRESS, format!("a coordinator answers at {at}")),
            match version {
                PROTOCOL_VERSION => Check::ok(VERSION, format!("{own}, and so speaks the coordinator at {at}")),
                _ => Check::failure(
                    VERSION,
                    format!("{own}, and the coordinator at {at} speaks version {version}"),
                    "install the same version of fulmen on all machines",
                ),
            },
        ],
        facts => [reached(facts), not_asked()],
    }
}

fn reached(facts: AddressFacts) -> Check {
    match facts {
        AddressFacts::Served(at, _) => Check::ok(ADDRESS, format!("a coordinator answers at {at}")),
        AddressFacts::Free(at) => Check::ok(
            ADDRESS,
            format!(
                "{at} is this machine's, and a listener there was reached from here; whether others reach it, the same check tells there while rank 0 waits"
            ),
        ),
        AddressFacts::Closed(at, cause) => Check::failure(
            ADDRESS,
            format!("{at} is this machine's, but its own listener there was not reached: {cause}"),
            format!("let the firewall pass TCP port {} (`nft list ruleset`, `iptables -L` show its rules)", at.port()),
        ),
        AddressFacts::NotAllowed(at) => Check::failure(
            ADDRESS,
            format!("{at} is this machine's and free, but this user may not listen on port {}", at.port()),
            "choose a port above 1023; where this is one, a sandbox or a security policy forbids it",
        ),
        AddressFacts::Foreign(at, cause) => Check::failure(
            ADDRESS,
            format!("something else than a coordinator has {at}: {cause}"),
            format!("choose another port, or end the program that has it (`ss -tlnp sport = :{}`)", at.port()),
        ),
        AddressFacts::Refused(at) => Check::failure(
            ADDRESS,
            format!("the machine of {at} answers, and nobody listens on port {}", at.port()),
            "start rank 0 first, which serves the coordinator; if it runs, its machine's firewall rejects the port",
        ),
        AddressFacts::Silent(at) => Check::failure(
            ADDRESS,
            format!("{at} did not answer within {} s", PATIENCE.as_secs()),
            format!(
                "look whether the machine is up and its firewall passes TCP port {} (a firewall that drops is silent)",
                at.port()
            ),
        ),
        AddressFacts::Unreachable(at, cause) => Check::failure(
            ADDRESS,
            format!("{at} cannot be reached: {cause}"),
            "give this machine an address in that network (`ip addr`, `ip route get` show what it has)",
        ),
        AddressFacts::Unknown(cause) => Check::failure(
            ADDRESS,
            cause,
            "give the name or an IP address of rank 0's machine and a port from 1 to 65535, such as 10.0.0.1:29500; IPv6 \
             addresses stand in brackets",
        ),
    }
}

/// Looks, in the child.
pub fn look(address: &str) -> AddressFacts {
    let found = match address.to_socket_addrs() {
        Ok(addresses) => first(addresses),
        Err(error) => return AddressFacts::Unknown(format!("{address:?} is no address: {error}")),
    };
    let Some(at) = found else { return AddressFacts::Unknown(format!("{address:?} has no address")) };
    if let Some(why) = unfit(at) {
        return AddressFacts::Unknown(format!("nobody can meet at {at}: {why}"));
    }
    match TcpListener::bind(at) {
        Ok(_listener) => own(at),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => match others(at) {
            AddressFacts::Refused(at) => AddressFacts::NotAllowed(at),
            facts => facts,
        },
        // Another machine's, or one that somebody serves already.
        Err(_) => others(at),
    }
}

/// Of several addresses that of IPv4, which is the one that ranks take.
pub fn first(addresses: impl Iterator<Item = SocketAddr>) -> Option<SocketAddr> {
    addresses.min_by_key(|address| !address.is_ipv4())
}

/// Why ranks refuse an address.
fn unfit(at: SocketAddr) -> Option<&'static str> {
    match at.ip() {
        ip if ip.is_unspecified() => Some("it stands for all addresses of a machine, and names none"),
        ip if ip.is_multicast() => Some("it is the address of a group (multicast), and names no machine"),
        _ if at.port() == 0 => Some("port 0 stands for any free port, and names none"),
        _ => None,
    }
}

/// Connects to an address where this process listens.
fn own(at: SocketAddr) -> AddressFacts {
    match TcpStream::connect_timeout(&at, PATIENCE) {
        Ok(_) => AddressFacts::Free(at),
        Err(error) => AddressFacts::Closed(at, error.to_string()),
    }
}

fn others(at: SocketAddr) -> AddressFacts {
    let mut stream = match TcpStream::connect_timeout(&at, PATIENCE) {
        Ok(stream) => stream,
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::ConnectionRefused => AddressFacts::Refused(at),
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => AddressFacts::Silent(at),
                _ => AddressFacts::Unreachable(at, error.to_string()),
            };
        }
    };
    match version_of(&mut stream, PATIENCE) {
        Ok(version) => AddressFacts::Served(at, version),
        Err(error) => AddressFacts::Foreign(at, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_addresses_that_of_ipv4_is_taken() {
        let read = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let several = ["[::1]:7117", "127.0.0.1:7117", "192.0.2.1:7117"].map(read);
        assert_eq!(first(several.into_iter()), Some(several[1]));
        assert_eq!(first(several.into_iter().take(1)), Some(several[0]));
        assert_eq!(first(std::iter::empty()), None);
    }
}
