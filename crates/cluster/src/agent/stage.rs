//! The last step before a program that has to be somewhere before it begins: a process that waits for that, and then becomes the program.
//!
//! It is a program of whoever runs the agent ([`Config::stage`](super::Config::stage)), as nothing can be done between fork and exec
//! without unsafe code. Its standard input is a socket, over which it gets the standard input of the program, and its [`Orders`]. It
//! answers with a system error; where the socket closes without one, it has become the program.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

/// How long it may take to become the program.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the stage becomes: JSON up to the end of what it reads, after one byte that comes with the standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// The program, a path or a name that is looked for in PATH, and its arguments.
    pub command: Vec<String>,
    /// Variables for it. They are none of the stage's, on which some would have an effect.
    pub env: BTreeMap<String, String>,
    /// Whether its standard input is to be the terminal of a session of its own.
    pub terminal: bool,
}

/// Starts a stage by this command, has it `placed`, and waits until it is the program.
pub(super) fn start(
    mut command: Command,
    orders: &Orders,
    stdin: OwnedFd,
    placed: impl FnOnce(Pid) -> io::Result<()>,
) -> io::Result<Child> {
    let (socket, theirs) = UnixStream::pair()?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut child = command.stdin(OwnedFd::from(theirs)).spawn()?;
    // It holds the other end of the socket.
    drop(command);
    // One that is not told what to become ends.
    placed(Pid::from_child(&child))?;
    match order(&socket, orders, stdin) {
        Ok(()) => Ok(child),
        Err(error) => {
            if error.kind() == io::ErrorKind::WouldBlock {
                // The socket did not close, so that it lives, and its number is its own.
                let _ = child.kill();
                return Err(io::Error::other(format!("it did not begin within {} s", PATIENCE.as_secs())));
            }
            Err(error)
        }
    }
}

fn order(mut socket: &UnixStream, orders: &Orders, stdin: OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [stdin.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)), "there is room for one");
    rustix::io::retry_on_intr(|| sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::empty()))?;
    drop(stdin);
    socket.write_all(&serde_json::to_vec(orders)?)?;
    socket.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer)?;
    match answer.try_into().map(i32::from_ne_bytes) {
        Ok(0) => Err(io::Error::other("it could not be begun")),
        Ok(errno) => Err(io::Error::from_raw_os_error(errno)),
        Err(answer) if answer.is_empty() => Ok(()),
        Err(_) => Err(io::Error::other("the step before it gave an answer that cannot be read")),
    }
}
