//! Addresses: which one an identifier has, and whether there is a way to another.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use libc::sockaddr;
use rustix::io::Errno;

use super::address;
use super::endpoint::Phase;
use super::events::complete;
use super::ffi::*;
use super::id::Id;
use super::refuse;
use crate::export::export;

/// Gives the identifier a local address: one of this host, or any.
fn bind(this: &Id, local: SocketAddr) -> Result<(), Errno> {
    let ip = address::plain(local.ip());
    if !ip.is_unspecified() && !is_local(ip)? {
        return Err(Errno::ADDRNOTAVAIL);
    }
    this.endpoint.bind(local)?;
    this.show_addresses();
    // One address is one device's.
    if ip.is_unspecified() { Ok(()) } else { this.attach() }
}

fn is_local(ip: IpAddr) -> Result<bool, Errno> {
    address::is_local(ip).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// The work of [`rdma_resolve_addr`]: an error for what cannot be asked, an event for what comes of it.
///
/// # Safety
/// Both point to addresses, or `from` is null.
unsafe fn resolve(this: &Id, from: *const sockaddr, to: *const sockaddr) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let mut peer = unsafe { address::read(to) }.map_err(Errno::from_raw_os_error)?;
    let phase = this.endpoint.lock().phase;
    let local = match phase {
        // SAFETY: the caller's promise.
        Phase::Idle if !from.is_null() => Some(unsafe { address::read(from) }.map_err(Errno::from_raw_os_error)?),
        Phase::Idle => Some(any_like(peer)),
        Phase::Bound => None,
        _ => return Err(Errno::INVAL),
    };
    if let Some(local) = local {
        bind(this, local)?;
    }
    let ip = address::plain(peer.ip());
    let near = ip.is_unspecified() || is_local(ip)?;
    let mut state = this.endpoint.lock();
    if !near {
        tracing::warn!(%peer, "not an address of this host: connections reach processes of this host alone");
        let status = -Errno::NETUNREACH.raw_os_error();
        this.endpoint.raise(&mut state, RDMA_CM_EVENT_ADDR_ERROR, status, None);
        return Ok(());
    }
    let Some(mut local) = state.local else { return Err(Errno::INVAL) };
    // "Any" address of the peer is this host's, and so is the way to it.
    match (ip.is_unspecified(), local.ip().is_unspecified()) {
        (true, true) => {
            let loopback =
                if peer.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { std::net::Ipv6Addr::LOCALHOST.into() };
            peer.set_ip(loopback);
            local.set_ip(loopback);
        }
        (true, false) => peer.set_ip(local.ip()),
        (false, true) => local = with_port(peer, local.port()),
        (false, false) => {}
    }
    (state.local, state.peer, state.phase) = (Some(local), Some(peer), Phase::AddressResolved);
    this.endpoint.raise(&mut state, RDMA_CM_EVENT_ADDR_RESOLVED, 0, None);
    Ok(())
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Any address of the same family, and any port.
fn any_like(address: SocketAddr) -> SocketAddr {
    let ip = if address.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(ip, 0)
}

fn route(this: &Id) -> Result<(), Errno> {
    let mut state = this.endpoint.lock();
    if state.phase != Phase::AddressResolved {
        return Err(Errno::INVAL);
    }
    state.phase = Phase::RouteResolved;
    this.endpoint.raise(&mut state, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, None);
    Ok(())
}

fn listen(this: &Id, backlog: c_int) -> Result<(), Errno> {
    if this.endpoint.lock().phase == Phase::Idle {
        bind(this, SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0))?;
    }
    this.endpoint.listen(backlog)
}

export! {
    /// Gives an identifier a local address.
    "RDMACM_1.0" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
        // SAFETY: the manual page asks for an identifier and an address.
        let Some(this) = (unsafe { Id::find("rdma_bind_addr", id) }) else { return -1 };
        // SAFETY: as above.
        let local = unsafe { address::read(addr) };
        match local.map_err(Errno::from_raw_os_error).and_then(|local| bind(this, local)) {
            Ok(()) => 0,
            Err(error) => refuse("rdma_bind_addr", error, format_args!("{local:?} cannot be bound")),
        }
    }

    /// Finds out which device leads to an address.
    "RDMACM_1.0" fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        src_addr: *mut sockaddr,
        dst_addr: *mut sockaddr,
        _timeout_ms: c_int,
    ) -> c_int {
        // SAFETY: the manual page asks for an identifier and addresses, of which the first may be missing.
        let Some(this) = (unsafe { Id::find("rdma_resolve_addr", id) }) else { return -1 };
        // SAFETY: as above.
        match unsafe { resolve(this, src_addr, dst_addr) } {
            Ok(()) => complete("rdma_resolve_addr", this),
            Err(error) => refuse("rdma_resolve_addr", error, "the address cannot be resolved"),
        }
    }

    /// Finds out the way to the address that was resolved.
    "RDMACM_1.0" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
        // SAFETY: the manual page asks for an identifier.
        let Some(this) = (unsafe { Id::find("rdma_resolve_route", id) }) else { return -1 };
        match route(this) {
            Ok(()) => complete("rdma_resolve_route", this),
            Err(error) => refuse("rdma_resolve_route", error, "its address is not resolved"),
        }
    }

    /// Lets others connect to the local address.
    "RDMACM_1.0" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
        // SAFETY: the manual page asks for an identifier.
        let Some(this) = (unsafe { Id::find("rdma_listen", id) }) else { return -1 };
        let listens = listen(this, backlog);
        this.show_addresses();
        match listens {
            Ok(()) => 0,
            Err(error) => refuse("rdma_listen", error, "it cannot listen"),
        }
    }

    /// The local port, in network byte order; 0 if there is none.
    "RDMACM_1.0" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
        // SAFETY: the manual page asks for an identifier.
        let Some(this) = (unsafe { Id::find("rdma_get_src_port", id) }) else { return 0 };
        let local = this.endpoint.lock().local;
        local.map_or(0, |address| address.port().to_be())
    }

    /// The peer's port, in network byte order; 0 if there is none.
    "RDMACM_1.0" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
        // SAFETY: the manual page asks for an identifier.
        let Some(this) = (unsafe { Id::find("rdma_get_dst_port", id) }) else { return 0 };
        let peer = this.endpoint.lock().peer;
        peer.map_or(0, |address| address.port().to_be())
    }
}
