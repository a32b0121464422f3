//! Addresses of the network as GIDs and LIDs hold them: the IP address is the GID, the TCP port the LID.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fulmen_verbs::Gid;

/// An address in the one form that is compared: IPv4 as IPv4, and nothing about the interface, which is this host's own
/// business.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether a device can go by this address.
pub(crate) fn is_usable(ip: IpAddr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast() && ip != IpAddr::V4(Ipv4Addr::BROADCAST)
}

pub(crate) fn gid_of(ip: IpAddr) -> Gid {
    Gid(wide(ip))
}

/// The IP address that a GID holds.
pub(crate) fn ip_of(gid: Gid) -> Option<IpAddr> {
    let ip = IpAddr::V6(Ipv6Addr::from(gid.0)).to_canonical();
    is_usable(ip).then_some(ip)
}

/// By what the order of devices is decided, the same on every host.
pub(super) fn rank(address: SocketAddr) -> ([u8; 16], u16) {
    (wide(address.ip()), address.port())
}

/// Sixteen bytes of IP address, two of port (little-endian).
pub(super) fn to_bytes(address: SocketAddr) -> [u8; 18] {
    let mut bytes = [0; 18];
    bytes[..16].copy_from_slice(&wide(address.ip()));
    bytes[16..].copy_from_slice(&address.port().to_le_bytes());
    bytes
}

/// The address that [`to_bytes`] wrote; `None` if no device has it.
pub(super) fn from_bytes(bytes: &[u8; 18]) -> Option<SocketAddr> {
    let [ip @ .., p0, p1] = *bytes;
    let port = u16::from_le_bytes([p0, p1]);
    ip_of(Gid(ip)).filter(|_| port != 0).map(|ip| SocketAddr::new(ip, port))
}

fn wide(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}
