//! The last step before a rank's program: the supervisor's child that becomes the program.
//!
//! It exists because a process can only ask for itself to be killed with its parent, and that wish survives the execution of
//! another program. The supervisor hands it the program's standard input over its own, which is a socket, and learns over
//! the same socket whether the execution worked: the socket closes with it, or carries the system error.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, getppid};

use super::{control, processes};

/// The arguments of the hidden command.
#[derive(clap::Args)]
pub struct Args {
    /// The supervisor's process id.
    #[arg(long)]
    parent: i32,
    /// The file to execute.
    #[arg(long)]
    path: PathBuf,
    /// The program's name and arguments.
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// Becomes the program. It returns only if that fails, and then it has told the supervisor why.
pub fn start(args: Args) -> anyhow::Result<ExitCode> {
    let socket = UnixStream::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
    let error = match prepare(&args, &socket) {
        Ok(()) => Command::new(&args.path).arg0(&args.program[0]).args(&args.program[1..]).exec(),
        Err(error) => error,
    };
    (&socket).write_all(&error.raw_os_error().unwrap_or(0).to_ne_bytes())?;
    Ok(ExitCode::from(126))
}

fn prepare(args: &Args, socket: &UnixStream) -> io::Result<()> {
    let [stdin]: [OwnedFd; 1] = control::receive(socket)?;
    rustix::stdio::dup2_stdin(&stdin)?;
    processes::die_with_parent()?;
    // If the supervisor died before the line above, nobody would end the program: it must not begin.
    if getppid() != Pid::from_raw(args.parent) {
        return Err(rustix::io::Errno::SRCH.into());
    }
    Ok(())
}
