//! Why the environment makes no sense.

use std::path::PathBuf;

use super::secret::SECRET_WAIT;

/// Why the environment says nothing sensible about this process's rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Some of Fulmen's variables are set and some are not.
    #[error("{set} is set but {missing} is not: start the program with `fulmen run`, or unset {set} to run it alone")]
    Incomplete {
        /// A variable that is set.
        set: &'static str,
        /// A variable that is not.
        missing: &'static str,
    },
    /// Some of another launcher's variables are set and some are not.
    #[error(
        "{set} is set, as {launcher} does, but {missing} is not: start the program with {launcher}, set {missing}, or set FULMEN_LAUNCHER=none to run it alone"
    )]
    HalfSet {
        /// The launcher.
        launcher: &'static str,
        /// A variable that is set.
        set: &'static str,
        /// A variable that is not, and others that would do.
        missing: &'static str,
    },
    /// A launcher was named that has not started this process.
    #[error(
        "FULMEN_LAUNCHER={launcher}, but none of its variables is set: start the program with it, or unset FULMEN_LAUNCHER"
    )]
    NotLaunched {
        /// The launcher.
        launcher: &'static str,
    },
    /// A variable's value is not what it must be.
    #[error("{name}={value} is not {expected}: start the program with its launcher, or correct {name}")]
    Malformed {
        /// The variable.
        name: &'static str,
        /// Its value, escaped.
        value: String,
        /// What it must be.
        expected: &'static str,
    },
    /// The rank is not below the size.
    #[error("{rank_name}={rank} is outside a world of {size} ranks: ranks go from 0 to {}", .size - 1)]
    RankOutside {
        /// The variable that says so.
        rank_name: &'static str,
        /// The rank.
        rank: u32,
        /// The size.
        size: u32,
    },
    /// The size is impossible.
    #[error("{name}={size} is impossible: a world has 1 to {max} ranks", max = crate::bootstrap::MAX_RANKS)]
    Size {
        /// The variable that says so.
        name: &'static str,
        /// The size.
        size: u32,
    },
    /// Ranks of several hosts were started by a launcher that names no address.
    #[error(
        "{launcher} says that rank {rank} is one of {size} on several hosts, but not where they meet: set FULMEN_COORDINATOR to an address of rank 0's host and a free port, such as 192.0.2.1:7117, for all ranks"
    )]
    NoAddress {
        /// The launcher.
        launcher: &'static str,
        /// This rank.
        rank: u32,
        /// How many there are.
        size: u32,
    },
    /// The file of devices cannot be read.
    #[error("{name}: {} cannot be read: {cause}", .path.display())]
    DeviceFileUnreadable {
        /// The variable that names it.
        name: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
    /// The file of devices is no JSON, or has something else where a device should be.
    #[error("{}: {cause}: give an N×N matrix of null, a device's name or a list of names, or mlx.launch's hostfile", .path.display())]
    DeviceFileSyntax {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column.
        cause: String,
    },
    /// The file of devices makes no sense.
    #[error("{}: {cause}", .path.display())]
    DeviceFile {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what it should be.
        cause: String,
    },
    /// The descriptor does not exist in this process.
    #[error("FULMEN_SECRET_FD={fd} is not open here: pass the descriptor on to the program (do not close it on exec)")]
    SecretClosed {
        /// The descriptor.
        fd: u32,
    },
    /// The descriptor cannot be read.
    #[error("FULMEN_SECRET_FD={fd} cannot be read ({cause}): it must be the reading end of a pipe or a memory file")]
    SecretUnreadable {
        /// The descriptor.
        fd: u32,
        /// What the system said.
        cause: String,
    },
    /// Nothing came out of the descriptor.
    #[error("FULMEN_SECRET_FD={fd} gave no whole secret within {wait:?}: write 64 hexadecimal digits into it before the program starts", wait = SECRET_WAIT)]
    SecretLate {
        /// The descriptor.
        fd: u32,
    },
    /// The descriptor holds something else, or was read before.
    #[error(
        "FULMEN_SECRET_FD={fd} does not hold 64 lower-case hexadecimal digits: give it the world's secret (a pipe can be read only once)"
    )]
    SecretMalformed {
        /// The descriptor.
        fd: u32,
    },
    /// The key file cannot be used.
    #[error("the key file {} cannot be used: {cause}; FULMEN_SECRET_FILE names another one", .path.display())]
    SecretFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
    /// Others may read the key file, so it is no secret.
    #[error("the key file {path} may be used by others (mode {mode:o}): make a new one, or protect it by `chmod 600 {path}`", path = .path.display())]
    SecretExposed {
        /// The file.
        path: PathBuf,
        /// Who may do what with it.
        mode: u32,
    },
    /// There is no place for a key file.
    #[error(
        "ranks need a secret, and neither HOME nor XDG_STATE_HOME says where the user's key file is: set FULMEN_SECRET_FILE"
    )]
    NoKeyFile,
    /// There is no place where ranks of one host can meet.
    #[error("the ranks of this host cannot meet in {}: {cause}; FULMEN_COORDINATOR or XDG_RUNTIME_DIR, set for all of them, names another place", .path.display())]
    NoMeetingPlace {
        /// The folder.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
}
