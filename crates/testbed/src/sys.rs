//! What neither the standard library nor rustix offers as safe calls.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{self, Setter, Updater};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// `TUNSETIFF` and `TUNSETCARRIER` of linux/if_tun.h.
const ATTACH: ioctl::Opcode = 0x4004_54ca;
const CARRIER: ioctl::Opcode = 0x4004_54e2;
/// A TAP device whose frames come without a header of the kernel's before them: `IFF_TAP` and `IFF_NO_PI`.
const PLAIN_TAP: i16 = 0x1002;

/// `struct ifreq` of linux/if.h, with the member for flags.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

/// The namespaces of a host.
#[derive(Debug)]
pub(crate) struct Namespaces {
    pub network: OwnedFd,
    pub hostname: OwnedFd,
}

/// Puts this thread into new namespaces.
pub(crate) fn leave_this_host() -> io::Result<()> {
    // SAFETY: what makes this call unsafe is a table of descriptors of the thread's own; it keeps the process's.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWUTS)? };
    Ok(())
}

/// Puts this thread into them.
pub(crate) fn enter(namespaces: &Namespaces) -> io::Result<()> {
    rustix::thread::move_into_link_name_space(namespaces.network.as_fd(), Some(LinkNameSpaceType::Network))?;
    let hostname = LinkNameSpaceType::HostNameAndNISDomainName;
    Ok(rustix::thread::move_into_link_name_space(namespaces.hostname.as_fd(), Some(hostname))?)
}

/// Has the command's process start in them.
pub(crate) fn start_in(command: &mut Command, namespaces: Arc<Namespaces>) {
    // SAFETY: between fork and exec this makes two system calls and nothing else: no allocation, no lock.
    unsafe { command.pre_exec(move || enter(&namespaces)) };
}

/// Makes a TAP device of this name in this thread's namespace. It ends with the descriptor, which never blocks.
pub(crate) fn tap(name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let tap = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
    let mut request = Request { name: [0; 16], flags: PLAIN_TAP, rest: [0; 22] };
    // The last byte stays zero.
    request.name[..15].iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
    // SAFETY: the call takes a `struct ifreq`, which `Request` is, and may write the name into it.
    unsafe { ioctl::ioctl(&tap, Updater::<ATTACH, Request>::new(&mut request))? };
    Ok(tap)
}

/// Says whether a cable is plugged into a TAP device.
pub(crate) fn set_carrier(tap: &OwnedFd, is_there: bool) -> io::Result<()> {
    // SAFETY: the call takes a pointer to an int, and only reads it.
    unsafe { ioctl::ioctl(tap, Setter::<CARRIER, c_int>::new(is_there.into()))? };
    Ok(())
}
