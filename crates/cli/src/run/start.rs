//! The last step before a rank's program: the supervisor's child that becomes the program.
//!
//! It exists because a process can only ask for itself to be killed with its parent, and that wish survives the execution of
//! another program. The supervisor hands it the program's standard input over its own, which is a socket, and learns over
//! the same socket whether the execution worked: the socket closes with it, or carries the system error.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, getppid};

use super::{BIND, control, local_place, processes};
use crate::machine;
use crate::output::say;

/// The arguments of the hidden command.
#[derive(clap::Args)]
pub struct Args {
    /// The supervisor's process id.
    #[arg(long)]
    parent: i32,
    /// The file to execute.
    #[arg(long)]
    path: PathBuf,
    /// Variables for the program alone: NAME=VALUE.
    #[arg(long)]
    set: Vec<OsString>,
    /// The program's name and arguments.
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// Becomes the program. It returns only if that fails, and then it has told the supervisor why.
pub fn start(args: Args) -> anyhow::Result<ExitCode> {
    let socket = UnixStream::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
    let error = match prepare(&args, &socket) {
        Ok(()) => {
            let variables = args.set.iter().filter_map(|variable| split(variable));
            Command::new(&args.path).arg0(&args.program[0]).args(&args.program[1..]).envs(variables).exec()
        }
        Err(error) => error,
    };
    (&socket).write_all(&error.raw_os_error().unwrap_or(0).to_ne_bytes())?;
    Ok(ExitCode::from(126))
}

/// Arguments that hand over variables for the program alone. Some would change what this program itself does, if they were in
/// its own environment: the dynamic linker's.
pub fn set(variables: &[(OsString, OsString)]) -> impl Iterator<Item = OsString> {
    variables.iter().flat_map(|(name, value)| {
        let mut variable = name.clone();
        variable.push("=");
        variable.push(value);
        [OsString::from("--set"), variable]
    })
}

/// The name and the value.
fn split(variable: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = variable.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    Some((OsStr::from_bytes(&bytes[..at]), OsStr::from_bytes(&bytes[at + 1..])))
}

fn prepare(args: &Args, socket: &UnixStream) -> io::Result<()> {
    let [stdin]: [OwnedFd; 1] = control::receive(socket)?;
    rustix::stdio::dup2_stdin(&stdin)?;
    processes::die_with_parent()?;
    // If the supervisor died before the line above, nobody would end the program: it must not begin.
    if getppid() != Pid::from_raw(args.parent) {
        return Err(rustix::io::Errno::SRCH.into());
    }
    if std::env::var_os(BIND).is_some_and(|value| value == "1")
        && let Some((rank, ranks)) = local_place()
        && let Err(error) = machine::bind(&machine::part(&machine::cores(), rank, ranks))
    {
        say(&format!("not bound to processors, and runs on any: {error}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_come_over_as_they_are() {
        let given = [("A".into(), OsString::from("x=y z")), ("B".into(), OsString::new())];
        let handed: Vec<OsString> = set(&given).collect();
        assert_eq!(handed, ["--set", "A=x=y z", "--set", "B="]);
        assert_eq!(split(&handed[1]), Some((OsStr::new("A"), OsStr::new("x=y z"))));
        assert_eq!(split(&handed[3]), Some((OsStr::new("B"), OsStr::new(""))));
        assert_eq!(split(OsStr::new("A")), None);
    }
}
