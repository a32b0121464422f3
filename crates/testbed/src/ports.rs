//! Addresses at which nobody listens.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::fd::AsFd;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};

/// Takes an address of this host, with a port that the system chooses for port 0: while the result lives nobody listens there, so that
/// connections are refused, and the system gives it to nobody else. Who names it may listen there all the same, if it does not mind that
/// the port is in use (SO_REUSEADDR).
///
/// # Errors
/// What the system says: somebody listens there.
pub fn reserve_port(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let reserved = socket(family, SocketType::STREAM, None)?;
    fcntl_setfd(reserved.as_fd(), FdFlags::CLOEXEC)?;
    // What is left of connections to who was there before does not matter.
    sockopt::set_socket_reuseaddr(&reserved, true)?;
    bind(&reserved, &address)?;
    let address = SocketAddr::try_from(getsockname(&reserved)?)?;
    Ok((reserved, address))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn nobody_is_given_a_port_that_is_reserved_and_connections_are_refused() {
        let (reserved, address) = reserve_port((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        // By its name, it is to be had.
        drop(TcpListener::bind(address).unwrap());
        drop(reserved);
        let listener = TcpListener::bind(address).unwrap();
        assert_eq!(reserve_port(listener.local_addr().unwrap()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
