//! What the environment of a process says about its rank.
//!
//! Programs are started by `fulmen run`, or by launchers that know nothing of Fulmen. Each *dialect* has a module:
//!
//! | launcher | rank | size | where ranks meet |
//! |---|---|---|---|
//! | `fulmen run` | `FULMEN_RANK` | `FULMEN_SIZE` | `FULMEN_COORDINATOR`; the launcher serves |
//! | `jaccl`: `mlx.launch` | `JACCL_RANK`, `MLX_RANK` | the device file's | `JACCL_COORDINATOR`, `MLX_JACCL_COORDINATOR`, `MLX_IBV_COORDINATOR` |
//! | `torchrun` | `RANK` | `WORLD_SIZE` | `MASTER_ADDR`, 117 ports beyond `MASTER_PORT` |
//! | `openmpi` | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_SIZE` | `FULMEN_COORDINATOR`; not needed on one host |
//! | `pmi`: MPICH and others | `PMI_RANK` | `PMI_SIZE` | `FULMEN_COORDINATOR`; not needed on one host |
//! | `slurm`: `srun` | `SLURM_PROCID` | `SLURM_STEP_NUM_TASKS` | the step's first node, at a port made of job and step |
//!
//! The first whose variables are there is taken, in this order; `FULMEN_LAUNCHER` names another one, or `none`. Without
//! any, or with a size of 1, the process is a world of one. What is half set is an error, since a program that was started as
//! a rank and runs alone would give wrong results. A variable of another launcher that is empty counts as not set.
//!
//! `fulmen run` hands each rank the secret by a descriptor, `FULMEN_SECRET_FD`: a pipe or a memory file that holds 64
//! lower-case hexadecimal digits and at most a newline after them; so the secret is in no argument and in no variable, which
//! other processes could read. The other launchers hand over none: ranks read the file that `FULMEN_SECRET_FILE` names, or the
//! user's key file (`~/.local/state/fulmen/secret`, or below `XDG_STATE_HOME`), which the first one makes. On several
//! hosts it must be the same file. Nobody but its owner may have a right to it.
//!
//! With the other launchers, rank 0 serves the coordinator, so that the world ends with it: the others cannot go on, as they
//! could with `fulmen run`. `FULMEN_COORDINATOR` (`host:port`) gives it another address. Where all ranks are on one host, as
//! the launcher says, no address is needed: rank 0 serves on loopback and says where in a file of the user's runtime folder.
//!
//! Both sides of a connection show that they hold the secret before anything that they say is parsed, and nobody between them
//! can read or change it: see [`fulmen_trust`].

mod devices;
mod environment;
mod error;
pub mod hostfile;
mod jaccl;
mod meeting;
mod mpi;
mod own;
mod place;
mod secret;
mod slurm;
#[cfg(test)]
mod tests;
mod torchrun;

use std::ffi::OsString;
use std::time::Duration;

pub use error::LaunchError;
pub use meeting::{Address, Meeting};

use fulmen_trust::{Authority, TrustError};

use crate::bootstrap::{JoinError, Secret, Session};
use crate::{Cables, FabricOptions};
use environment::Environment;

const COORDINATOR: &str = "FULMEN_COORDINATOR";
const LAUNCHER: &str = "FULMEN_LAUNCHER";

/// Where rank 0 serves if nothing says a port.
pub const DEFAULT_PORT: u16 = 7117;

/// How this process was launched.
#[derive(Debug, Clone)]
pub enum Launch {
    /// As a world of one.
    Alone,
    /// As one rank of a world.
    #[non_exhaustive]
    Rank {
        /// Its rank, below `size`.
        rank: u32,
        /// How many ranks there are.
        size: u32,
        /// Where they meet.
        meeting: Meeting,
        /// What they share.
        secret: Secret,
        /// Which devices lead to which rank, where the launcher says so.
        cables: Option<Cables>,
        /// Whose variables say all this.
        dialect: Dialect,
    },
}

/// Whose variables say how a process was launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `fulmen run`.
    Fulmen,
    /// JACCL and MLX: `mlx.launch`.
    Jaccl,
    /// PyTorch's `torchrun`.
    Torchrun,
    /// OpenMPI's `mpirun`.
    OpenMpi,
    /// PMI, which MPICH, Intel MPI and others speak.
    Pmi,
    /// Slurm's `srun`.
    Slurm,
}

impl Dialect {
    /// All, in the order in which they are looked for.
    pub const ALL: [Dialect; 6] =
        [Dialect::Fulmen, Dialect::Jaccl, Dialect::Torchrun, Dialect::OpenMpi, Dialect::Pmi, Dialect::Slurm];

    /// Its name, as `FULMEN_LAUNCHER` gives it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Fulmen => "fulmen",
            Dialect::Jaccl => "jaccl",
            Dialect::Torchrun => "torchrun",
            Dialect::OpenMpi => "openmpi",
            Dialect::Pmi => "pmi",
            Dialect::Slurm => "slurm",
        }
    }

    fn is_spoken(self, environment: &Environment<'_>) -> bool {
        match self {
            Dialect::Fulmen => own::is_spoken(environment),
            Dialect::Jaccl => jaccl::is_spoken(environment),
            Dialect::Torchrun => torchrun::is_spoken(environment),
            Dialect::OpenMpi => mpi::openmpi_is_spoken(environment),
            Dialect::Pmi => mpi::pmi_is_spoken(environment),
            Dialect::Slurm => slurm::is_spoken(environment),
        }
    }

    fn read(self, environment: &Environment<'_>) -> Result<Launch, LaunchError> {
        let place = match self {
            Dialect::Fulmen => return own::read(environment),
            Dialect::Jaccl => jaccl::read(environment),
            Dialect::Torchrun => torchrun::read(environment),
            Dialect::OpenMpi => mpi::read_openmpi(environment),
            Dialect::Pmi => mpi::read_pmi(environment),
            Dialect::Slurm => slurm::read(environment),
        };
        place::settle(environment, self, place?)
    }
}

impl Launch {
    /// Reads the environment of this process, and the secret from its descriptor: that is waited for at most 5 s. A pipe can
    /// be read only once, so a process calls this once.
    ///
    /// # Errors
    /// [`LaunchError`], which names the variable or the file.
    pub fn from_env() -> Result<Launch, LaunchError> {
        Launch::from_variables(|name| std::env::var_os(name))
    }

    /// Joins the world that the process was launched for; see [`Session::join`]. Where rank 0 serves the coordinator, it does so
    /// from here on as long as the session's last generation, and up to 10 s more for the others to leave.
    ///
    /// # Errors
    /// [`JoinError`], which names the address or the rank that is at fault. The deadline does not bound how long the system
    /// looks for the address of a host's name.
    pub fn join(&self, deadline: Duration) -> Result<Session, JoinError> {
        match *self {
            Launch::Alone => Ok(Session::alone()),
            Launch::Rank { rank, size, ref meeting, ref secret, .. } => {
                // Whoever reads the options says what is wrong with them.
                let silence = FabricOptions::from_env().unwrap_or_default().silence;
                meeting::Joining { rank, size, secret, deadline, silence }.at(meeting)
            }
        }
    }

    /// The authority of the world that the process was launched for: what those know each other by who belong to it. None for a
    /// world of one.
    ///
    /// # Errors
    /// [`TrustError::Keys`].
    #[must_use]
    pub fn authority(&self) -> Option<Result<Authority, TrustError>> {
        match self {
            Launch::Alone => None,
            Launch::Rank { secret, .. } => Some(secret.authority()),
        }
    }

    /// Which devices lead to which rank, where the launcher says so.
    #[must_use]
    pub fn cables(&self) -> Option<&Cables> {
        match self {
            Launch::Alone => None,
            Launch::Rank { cables, .. } => cables.as_ref(),
        }
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Launch, LaunchError> {
        let environment = Environment(&variable);
        if let Some(chosen) = environment.text(LAUNCHER)? {
            if chosen == "none" {
                return Ok(Launch::Alone);
            }
            let dialect = Dialect::ALL.into_iter().find(|dialect| dialect.name() == chosen);
            let dialect = dialect.ok_or_else(|| LaunchError::Malformed {
                name: LAUNCHER,
                value: chosen.escape_debug().collect(),
                expected: "fulmen, jaccl, torchrun, openmpi, pmi, slurm or none",
            })?;
            return dialect.read(&environment);
        }
        if let Some(dialect) = Dialect::ALL.into_iter().find(|dialect| dialect.is_spoken(&environment)) {
            return dialect.read(&environment);
        }
        // An address to meet at, and nobody who says which rank this is.
        own::read(&environment)
    }
}

/// A name of the job, where the launcher has none: all ranks of a host are its children.
fn of_parent() -> String {
    format!("parent {}", rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get()))
}
