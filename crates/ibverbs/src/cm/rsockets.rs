//! rsockets, of which there are none: programs that link the library for other calls need the symbols to start.
//!
//! No descriptor is ever an rsocket's, so that the calls on one say `EBADF`; `rpoll` and `rselect`, which take other
//! descriptors as well, are `poll` and `select`.

use std::ffi::{c_int, c_uint, c_void};

use libc::{fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, timeval};
use rustix::io::Errno;

use super::refuse;
use crate::export::export;

/// Calls on a descriptor that is none of an rsocket.
macro_rules! not_an_rsocket {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(export! {
            /// Refused: no descriptor is an rsocket's.
            "RDMACM_1.0" fn $name($($argument: $type),*) -> $result {
                refuse(stringify!($name), Errno::BADF, "no descriptor is an rsocket's") as $result
            }
        })*
    };
}

not_an_rsocket! {
    rbind(_socket: c_int, _addr: *const sockaddr, _len: socklen_t) -> c_int;
    rlisten(_socket: c_int, _backlog: c_int) -> c_int;
    raccept(_socket: c_int, _addr: *mut sockaddr, _len: *mut socklen_t) -> c_int;
    rconnect(_socket: c_int, _addr: *const sockaddr, _len: socklen_t) -> c_int;
    rshutdown(_socket: c_int, _how: c_int) -> c_int;
    rclose(_socket: c_int) -> c_int;
    rrecv(_socket: c_int, _buf: *mut c_void, _len: usize, _flags: c_int) -> isize;
    rrecvfrom(_socket: c_int, _buf: *mut c_void, _len: usize, _flags: c_int, _from: *mut sockaddr, _from_len: *mut socklen_t) -> isize;
    rrecvmsg(_socket: c_int, _message: *mut msghdr, _flags: c_int) -> isize;
    rsend(_socket: c_int, _buf: *const c_void, _len: usize, _flags: c_int) -> isize;
    rsendto(_socket: c_int, _buf: *const c_void, _len: usize, _flags: c_int, _to: *const sockaddr, _to_len: socklen_t) -> isize;
    rsendmsg(_socket: c_int, _message: *const msghdr, _flags: c_int) -> isize;
    rread(_socket: c_int, _buf: *mut c_void, _count: usize) -> isize;
    rreadv(_socket: c_int, _vector: *const iovec, _count: c_int) -> isize;
    rwrite(_socket: c_int, _buf: *const c_void, _count: usize) -> isize;
    rwritev(_socket: c_int, _vector: *const iovec, _count: c_int) -> isize;
    rgetpeername(_socket: c_int, _addr: *mut sockaddr, _len: *mut socklen_t) -> c_int;
    rgetsockname(_socket: c_int, _addr: *mut sockaddr, _len: *mut socklen_t) -> c_int;
    rsetsockopt(_socket: c_int, _level: c_int, _name: c_int, _value: *const c_void, _len: socklen_t) -> c_int;
    rgetsockopt(_socket: c_int, _level: c_int, _name: c_int, _value: *mut c_void, _len: *mut socklen_t) -> c_int;
    riounmap(_socket: c_int, _buf: *mut c_void, _len: usize) -> c_int;
    riomap(_socket: c_int, _buf: *mut c_void, _len: usize, _protection: c_int, _flags: c_int, _offset: off_t) -> off_t;
    riowrite(_socket: c_int, _buf: *const c_void, _count: usize, _offset: off_t, _flags: c_int) -> usize;
}

export! {
    /// Refused: there are no rsockets.
    "RDMACM_1.0" fn rsocket(_domain: c_int, _type: c_int, _protocol: c_int) -> c_int {
        refuse("rsocket", Errno::OPNOTSUPP, "there are no rsockets: use plain sockets, which are as near on one host")
    }

    /// Refused: no descriptor is an rsocket's. (C passes an argument more to some commands.)
    "RDMACM_1.0" fn rfcntl(_socket: c_int, _command: c_int, _argument: c_uint) -> c_int {
        refuse("rfcntl", Errno::BADF, "no descriptor is an rsocket's")
    }

    /// `poll`, since no descriptor is an rsocket's.
    "RDMACM_1.0" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        // SAFETY: the program's arguments, which mean the same there.
        unsafe { libc::poll(fds, count, timeout) }
    }

    /// `select`, since no descriptor is an rsocket's.
    "RDMACM_1.0" fn rselect(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int {
        // SAFETY: the program's arguments, which mean the same there.
        unsafe { libc::select(count, read, write, except, timeout) }
    }
}
