//! The stage of the agent's: a process that becomes a program, as soon as it is where the program has to be.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use fulmen_cluster::agent::Orders;
use rustix::process::{ioctl_tiocsctty, setsid};

use crate::run::control;

/// The hidden subcommand.
pub const BECOME: &str = "become-program";

/// Becomes what the agent says. It returns only if that fails, and then the agent was told why.
pub fn become_program() -> anyhow::Result<ExitCode> {
    let mut socket = UnixStream::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
    let error = match prepare(&mut socket) {
        Ok(Orders { command, env, .. }) => match command.split_first() {
            Some((program, args)) => Command::new(program).args(args).envs(env).exec(),
            None => io::ErrorKind::InvalidInput.into(),
        },
        Err(error) => error,
    };
    socket.write_all(&error.raw_os_error().unwrap_or(0).to_ne_bytes())?;
    Ok(ExitCode::from(126))
}

fn prepare(socket: &mut UnixStream) -> io::Result<Orders> {
    let [stdin]: [OwnedFd; 1] = control::receive(socket)?;
    rustix::stdio::dup2_stdin(&stdin)?;
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes)?;
    let orders: Orders = serde_json::from_slice(&bytes)?;
    if orders.terminal {
        setsid()?;
        ioctl_tiocsctty(rustix::stdio::stdin())?;
    }
    Ok(orders)
}
