//! Names of hosts and services.

use std::ffi::{c_char, c_int};
use std::ptr;

use libc::{addrinfo, sockaddr, socklen_t};
use rustix::io::Errno;

use super::ffi::*;
use super::refuse;
use crate::export::export;
use crate::ffi::*;

/// The kind of socket that the system's resolver is to think of.
fn socket_type(qp_type: c_int, ps: c_int) -> c_int {
    let datagram = qp_type == IBV_QPT_UD as c_int || ps == RDMA_PS_UDP as c_int;
    if datagram { libc::SOCK_DGRAM } else { libc::SOCK_STREAM }
}

/// A copy of memory that `free` frees; null of nothing.
///
/// # Safety
/// `from` points to `len` bytes, or is null.
unsafe fn copy<T>(from: *const T, len: usize) -> Result<*mut T, Errno> {
    if from.is_null() || len == 0 {
        return Ok(ptr::null_mut());
    }
    // SAFETY: the caller's promise; the new memory is as long.
    unsafe {
        let to = libc::malloc(len);
        if to.is_null() {
            return Err(Errno::NOMEM);
        }
        ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), len);
        Ok(to.cast())
    }
}

/// One result. What fails in between is freed by the caller with the rest.
///
/// # Safety
/// The hints live; `found` is a result of the resolver.
unsafe fn result(to: &mut rdma_addrinfo, hints: &rdma_addrinfo, found: Option<&addrinfo>) -> Result<(), Errno> {
    to.ai_flags = hints.ai_flags;
    let datagram = hints.ai_qp_type == IBV_QPT_UD as c_int || hints.ai_port_space == RDMA_PS_UDP as c_int;
    let (qp_type, ps) = if datagram { (IBV_QPT_UD, RDMA_PS_UDP) } else { (IBV_QPT_RC, RDMA_PS_TCP) };
    to.ai_qp_type = if hints.ai_qp_type == 0 { qp_type as c_int } else { hints.ai_qp_type };
    to.ai_port_space = if hints.ai_port_space == 0 { ps as c_int } else { hints.ai_port_space };
    to.ai_family = hints.ai_family;
    let passive = hints.ai_flags & RAI_PASSIVE != 0;
    // SAFETY: the caller's promise. An address is as long as it says.
    unsafe {
        if let Some(found) = found {
            to.ai_family = found.ai_family;
            let address: *mut sockaddr = copy(found.ai_addr, found.ai_addrlen as usize)?;
            let name: *mut c_char = match found.ai_canonname.as_ref() {
                Some(_) => copy(found.ai_canonname, libc::strlen(found.ai_canonname) + 1)?,
                None => ptr::null_mut(),
            };
            if passive {
                (to.ai_src_addr, to.ai_src_len, to.ai_src_canonname) = (address, found.ai_addrlen, name);
            } else {
                (to.ai_dst_addr, to.ai_dst_len, to.ai_dst_canonname) = (address, found.ai_addrlen, name);
            }
        }
        let hint = |address: *mut sockaddr, len: socklen_t| Ok::<_, Errno>((copy(address, len as usize)?, len));
        if to.ai_src_addr.is_null() && !hints.ai_src_addr.is_null() {
            (to.ai_src_addr, to.ai_src_len) = hint(hints.ai_src_addr, hints.ai_src_len)?;
        }
        if to.ai_dst_addr.is_null() && !passive && !hints.ai_dst_addr.is_null() {
            (to.ai_dst_addr, to.ai_dst_len) = hint(hints.ai_dst_addr, hints.ai_dst_len)?;
        }
    }
    if to.ai_family == 0 {
        let address = if passive { to.ai_src_addr } else { to.ai_dst_addr };
        // SAFETY: a copy of an address, or none.
        to.ai_family = unsafe { address.as_ref() }.map_or(0, |address| c_int::from(address.sa_family));
    }
    Ok(())
}

/// The results of what the resolver found, linked.
///
/// # Safety
/// As [`result`], for each of the list.
unsafe fn results(hints: &rdma_addrinfo, mut found: *const addrinfo) -> Result<*mut rdma_addrinfo, Errno> {
    let mut first = ptr::null_mut();
    let mut place: *mut *mut rdma_addrinfo = &mut first;
    loop {
        // SAFETY: `calloc` gives zeros, which are a result without anything; the list is the resolver's.
        unsafe {
            let new = libc::calloc(1, size_of::<rdma_addrinfo>()).cast::<rdma_addrinfo>();
            if new.is_null() {
                rdma_freeaddrinfo(first);
                return Err(Errno::NOMEM);
            }
            *place = new;
            place = &raw mut (*new).ai_next;
            if let Err(error) = result(&mut *new, hints, found.as_ref()) {
                rdma_freeaddrinfo(first);
                return Err(error);
            }
            found = found.as_ref().map_or(ptr::null(), |found| found.ai_next.cast_const());
            if found.is_null() {
                return Ok(first);
            }
        }
    }
}

export! {
    /// Finds the addresses of a host and a service, or makes a result of hints alone.
    "RDMACM_1.0" fn rdma_getaddrinfo(
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
        res: *mut *mut rdma_addrinfo,
    ) -> c_int {
        const NAME: &str = "rdma_getaddrinfo";
        if node.is_null() && service.is_null() && hints.is_null() {
            return refuse(NAME, Errno::INVAL, "neither a host nor a service nor hints");
        }
        // SAFETY: zeros are hints without anything.
        let none: rdma_addrinfo = unsafe { std::mem::zeroed() };
        // SAFETY: the manual page asks for hints or none.
        let hints = unsafe { hints.as_ref() }.unwrap_or(&none);
        let mut found = ptr::null_mut();
        if !node.is_null() || !service.is_null() {
            // SAFETY: numbers and pointers, all of which may be zero.
            let mut asked: addrinfo = unsafe { std::mem::zeroed() };
            if hints.ai_flags & RAI_PASSIVE != 0 {
                asked.ai_flags |= libc::AI_PASSIVE;
            }
            if hints.ai_flags & RAI_NUMERICHOST != 0 {
                asked.ai_flags |= libc::AI_NUMERICHOST;
            }
            if hints.ai_flags & RAI_FAMILY != 0 {
                asked.ai_family = hints.ai_family;
            }
            asked.ai_socktype = socket_type(hints.ai_qp_type, hints.ai_port_space);
            // SAFETY: the names are the program's; the list is freed below.
            let failed = unsafe { libc::getaddrinfo(node, service, &asked, &mut found) };
            if failed != 0 {
                // One of the resolver's own numbers, as the manual page says.
                tracing::info!(number = failed, "{NAME} failed: the host or the service is not known");
                return failed;
            }
        }
        // SAFETY: the hints and the list live.
        let made = unsafe { results(hints, found) };
        if !found.is_null() {
            // SAFETY: it came from `getaddrinfo`, and was copied.
            unsafe { libc::freeaddrinfo(found) };
        }
        match made {
            Ok(made) => {
                // SAFETY: the manual page asks for a place.
                unsafe { *res = made };
                0
            }
            Err(error) => refuse(NAME, error, "no memory for the result"),
        }
    }

    /// Frees a result.
    "RDMACM_1.0" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) -> () {
        let mut next = res;
        // SAFETY: it came from `rdma_getaddrinfo`, which allocated each part of it on its own.
        unsafe {
            while let Some(this) = next.as_ref().copied() {
                libc::free(this.ai_src_addr.cast());
                libc::free(this.ai_dst_addr.cast());
                libc::free(this.ai_src_canonname.cast());
                libc::free(this.ai_dst_canonname.cast());
                libc::free(this.ai_route);
                libc::free(this.ai_connect);
                libc::free(next.cast());
                next = this.ai_next;
            }
        }
    }
}
