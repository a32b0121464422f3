//! What a node needs of macOS, which has no abstract names: a socket file in the user's temporary directory.

use std::fmt::Write;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use rustix::event::PollFlags;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};

pub(crate) const SEND: SendFlags = SendFlags::empty();
pub(crate) const RECV: RecvFlags = RecvFlags::empty();

/// What tells that the other end is gone, beside the hang-up that is always told.
pub(crate) const HANG_UP: PollFlags = PollFlags::empty();

/// A listening socket, whose file is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    pub(crate) fn open(name: &[u8; 16]) -> io::Result<Listener> {
        let path = path(name);
        let listener = Listener { socket: UnixListener::bind(&path)?, path };
        std::fs::set_permissions(&listener.path, std::fs::Permissions::from_mode(0o600))?;
        listener.socket.set_nonblocking(true)?;
        Ok(listener)
    }

    /// The same for a name that others may have: `AddrInUse` then. A file that a killed process left behind is no other.
    pub(crate) fn open_fixed(name: &[u8; 16]) -> io::Result<Listener> {
        // One process at a time looks and removes, so that none removes what another one has just made.
        let lock = std::fs::File::create(std::env::temp_dir().join("fulmen-numbers.lock"))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        match Listener::open(name) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => match connect(name) {
                Err(Errno::CONNREFUSED) => {
                    std::fs::remove_file(path(name))?;
                    Listener::open(name)
                }
                Ok(_) | Err(_) => Err(error),
            },
            opened => opened,
        }
    }

    pub(crate) fn socket(&self) -> &UnixListener {
        &self.socket
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Nothing is lost if somebody cleaned up before.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A non-blocking connection: `AGAIN` while the listener's queue is full.
pub(crate) fn connect(name: &[u8; 16]) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    rustix::net::sockopt::set_socket_nosigpipe(&socket, true)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path(name))?).map_err(|error| match error {
        // No file is nobody who listens, and a full queue refuses here.
        Errno::NOENT => Errno::CONNREFUSED,
        error => error,
    })?;
    Ok(socket)
}

/// The user at the other end.
pub(crate) fn peer_user(socket: impl AsFd) -> Result<u32, Errno> {
    let (mut user, mut group) = (0, 0);
    // SAFETY: the descriptor is open, and both results are places of this function.
    let result = unsafe { libc::getpeereid(socket.as_fd().as_raw_fd(), &raw mut user, &raw mut group) };
    if result == 0 { Ok(user) } else { Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)) }
}

/// The process at the other end, if the system tells.
pub(crate) fn peer_process(socket: impl AsFd) -> Option<u32> {
    let mut pid: libc::pid_t = 0;
    let mut len = size_of::<libc::pid_t>() as libc::socklen_t;
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and both results are places of this function, of the size that is told.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            libc::SOL_LOCAL,
            libc::LOCAL_PEERPID,
            (&raw mut pid).cast::<libc::c_void>(),
            &raw mut len,
        )
    };
    u32::try_from(pid).ok().filter(|pid| result == 0 && *pid != 0)
}

/// What becomes readable when the process at the other end has ended: the system has no such thing.
pub(crate) fn process_end(_: impl AsFd) -> Result<Option<OwnedFd>, Errno> {
    Ok(None)
}

/// Makes a received descriptor stay in this process.
pub(crate) fn keep_private(descriptor: &OwnedFd) {
    // It can only fail for a descriptor that is not open.
    let _ = rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::CLOEXEC);
}

/// The machine: names are files, which all of its processes see.
pub(crate) fn host_identity() -> io::Result<Vec<u8>> {
    machine_identity()
}

/// The boot.
pub(crate) fn machine_identity() -> io::Result<Vec<u8>> {
    let mut identity = vec![0; 64];
    let mut len = identity.len();
    // SAFETY: the name is a C string, the buffer has `len` bytes, and nothing is set.
    let result = unsafe {
        libc::sysctlbyname(
            c"kern.bootsessionuuid".as_ptr(),
            identity.as_mut_ptr().cast(),
            &raw mut len,
            std::ptr::null_mut(),
            0,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    identity.truncate(len);
    Ok(identity)
}

fn path(name: &[u8; 16]) -> PathBuf {
    let file = name.iter().fold(String::from("fulmen-"), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all text");
        text
    });
    std::env::temp_dir().join(file)
}
