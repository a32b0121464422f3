//! Internet addresses of C, and which of them are this host's.

use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

/// Reads an address that a program gave.
///
/// # Errors
/// `EINVAL` for no address, `EAFNOSUPPORT` for another family than the internet's two.
///
/// # Safety
/// `address` is null, or points to an address that is as long as its family says.
pub(super) unsafe fn read(address: *const sockaddr) -> Result<SocketAddr, c_int> {
    if address.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise; each family's structure starts with the family. C may have packed it anywhere.
    unsafe {
        match c_int::from(ptr::read_unaligned(&raw const (*address).sa_family)) {
            libc::AF_INET => {
                let it = ptr::read_unaligned(address.cast::<sockaddr_in>());
                let ip = Ipv4Addr::from(u32::from_be(it.sin_addr.s_addr));
                Ok(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(it.sin_port))))
            }
            libc::AF_INET6 => {
                let it = ptr::read_unaligned(address.cast::<sockaddr_in6>());
                let ip = Ipv6Addr::from(it.sin6_addr.s6_addr);
                let port = u16::from_be(it.sin6_port);
                Ok(SocketAddr::V6(SocketAddrV6::new(ip, port, it.sin6_flowinfo, it.sin6_scope_id)))
            }
            _ => Err(libc::EAFNOSUPPORT),
        }
    }
}

/// An address as C has it, and its length.
pub(super) fn to_c(address: &SocketAddr) -> (sockaddr_storage, socklen_t) {
    // SAFETY: zeros are a value of this structure, whose members are numbers.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let len = match address {
        SocketAddr::V4(it) => {
            // SAFETY: a storage is larger than each family's structure, and aligned for it; nothing else refers to it.
            let c = unsafe { &mut *(&raw mut storage).cast::<sockaddr_in>() };
            c.sin_family = libc::AF_INET as libc::sa_family_t;
            c.sin_port = it.port().to_be();
            c.sin_addr.s_addr = u32::from(*it.ip()).to_be();
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(it) => {
            // SAFETY: as above.
            let c = unsafe { &mut *(&raw mut storage).cast::<sockaddr_in6>() };
            c.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            c.sin6_port = it.port().to_be();
            c.sin6_flowinfo = it.flowinfo();
            c.sin6_addr.s6_addr = it.ip().octets();
            c.sin6_scope_id = it.scope_id();
            size_of::<sockaddr_in6>()
        }
    };
    (storage, socklen_t::try_from(len).expect("the length of an address"))
}

/// An IPv4 address that is written as an IPv6 one is the IPv4 one.
pub(super) fn plain(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// Whether a process on this host has this address: a loopback address, or one of an interface.
///
/// # Errors
/// The system does not say what its interfaces are.
pub(super) fn is_local(ip: IpAddr) -> io::Result<bool> {
    let ip = plain(ip);
    Ok(ip.is_loopback() || interfaces()?.contains(&ip))
}

/// The addresses of this host's interfaces.
fn interfaces() -> io::Result<Vec<IpAddr>> {
    let mut first = ptr::null_mut();
    // SAFETY: it writes the address of a list, which is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: the list is whole until it is freed; an address in it is null or as long as its family says.
        unsafe {
            if let Ok(address) = read((*next).ifa_addr) {
                found.push(plain(address.ip()));
            }
            next = (*next).ifa_next;
        }
    }
    // SAFETY: the list is freed once, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_from_c() {
        for text in ["127.0.0.1:7471", "0.0.0.0:0", "[::1]:65535", "[fe80::1%3]:12"] {
            let address: SocketAddr = text.parse().unwrap();
            let (storage, len) = to_c(&address);
            assert_eq!(len as usize, if address.is_ipv4() { 16 } else { 28 });
            // SAFETY: `storage` holds a whole address.
            assert_eq!(unsafe { read((&raw const storage).cast()) }, Ok(address));
        }
    }

    #[test]
    fn other_families_are_refused() {
        // SAFETY: as in `to_c`.
        let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
        storage.ss_family = libc::AF_UNIX as libc::sa_family_t;
        // SAFETY: the storage is whole, or there is none.
        unsafe {
            assert_eq!(read((&raw const storage).cast()), Err(libc::EAFNOSUPPORT));
            assert_eq!(read(ptr::null()), Err(libc::EINVAL));
        }
    }

    #[test]
    fn loopback_is_local_and_a_documentation_address_is_not() {
        for local in ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"] {
            assert!(is_local(local.parse().unwrap()).unwrap(), "{local}");
        }
        for ip in interfaces().unwrap() {
            assert!(is_local(ip).unwrap(), "{ip}");
        }
        for remote in ["192.0.2.1", "2001:db8::1"] {
            assert!(!is_local(remote.parse().unwrap()).unwrap(), "{remote}");
        }
    }
}
