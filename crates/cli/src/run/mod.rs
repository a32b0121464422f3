//! `fulmen run`: starts ranks on this machine and on others, shows their output, passes signals on, and leaves nothing behind.
//!
//! Each rank is a chain of two processes: the launcher's child is a *supervisor* (this program again, hidden command), whose
//! child is the rank's program. [`begin`] starts them, [`launcher`] drives the run, [`mod@supervise`] says what a supervisor does and what is out of its
//! reach, [`relay`] passes output on, [`control`] is what launcher and supervisors say to each other.
//! [`hosts`] is what it takes where ranks are on other machines.

mod begin;
pub mod control;
mod environment;
mod hosts;
mod launcher;
pub mod lines;
mod meeting;
pub mod processes;
mod program;
mod rank;
mod records;
mod relay;
pub mod signals;
mod start;
mod starter;
mod supervise;
mod verdict;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use std::{io, iter};

use anyhow::Context;
use fulmen::parts::fabric::bootstrap::Heartbeat;
use fulmen::parts::soft;
use rustix::process::{Resource, getrlimit};

use crate::verbs::{self, DropIn};
use hosts::{HostError, Hosts, HostsError, Place};

pub use control::now;
pub use hosts::{HOST, Options as HostOptions, helper};
pub use processes::recorders;
pub use records::{Asked, LOOK};
pub use relay::Reader;
pub use start::{Args as StartArgs, start};
pub use supervise::{Args as SuperviseArgs, supervise};
pub use verdict::{Seconds, name_ranks};

/// The hidden command of a rank's supervisor.
pub const SUPERVISE: &str = "__supervise";
/// The hidden command of the process that becomes a rank's program.
pub const START: &str = "__start";

/// The variable that names the machine's device over which ranks talk.
pub const DEVICE: &str = "FULMEN_DEVICE";

/// The variable that has ranks bound to processors.
const BIND: &str = "FULMEN_BIND";

/// The time between SIGTERM and SIGKILL for ranks that are this program.
const GRACE: Duration = Duration::from_secs(2);

/// The shortest silence that can be asked for.
const SHORTEST_SILENCE: Duration = Duration::from_millis(100);

/// Most ranks of one run.
const MAX_RANKS: u32 = 1024;

/// The exit code when the time is up.
const TIMED_OUT: u8 = 124;

/// Start a program N times, on this machine or on several, as the ranks of one group.
///
/// Each rank finds its place in its environment (FULMEN_RANK, FULMEN_SIZE, FULMEN_COORDINATOR and others), which
/// `fulmen::init()` reads. Rank 0 reads the command's standard input unless that is a terminal; the others read nothing.
///
/// Output is shown line by line, with the rank in front. Signals (HUP, INT, QUIT, TERM, USR1, USR2, TSTP, CONT) are passed on
/// to each rank's process group once. When a rank fails, the others get SIGTERM, and SIGKILL after the grace time; the same
/// is done with processes that a rank leaves behind when its program ends. When this command is killed, its ranks are too.
///
/// The ranks map one another's memory, unless --profile or --device names a device to talk over. Where a device of the machine
/// does not work, `fulmen doctor` tells why.
///
/// With --verbs, the program is any that uses libibverbs or librdmacm: it finds Fulmen's instead of the system's, and with them
/// the software RDMA device, whose --profile sets the rules. It needs no ranks, and reaches programs of this user on this
/// machine, of whatever run.
///
/// With --restart, a rank that fails is started again under its number while others run: they go on with it once they call
/// `rejoin`. The run fails only when a rank fails more often than that.
///
/// With --hosts or --hostfile, ranks run on other machines too, which ssh reaches without asking; this program is there at the same
/// path (or --remote-fulmen), in the same version, and so are the program and the working directory. All hosts are reached before a
/// rank is started. FULMEN_ADDRESS begins with the address by which others reach a rank's host. Other variables go along with --env, and Fulmen's own do
/// without it. When this command is killed, or its connection to a host breaks, the ranks there are killed. With --cluster, the agents of
/// a cluster take ssh's place.
///
/// Exit code: 0 when all ranks succeed, else that of the rank that failed first (128 + signal for a signal), 124 when the
/// time is up, 127 and 126 for a program that is not found or cannot be executed, 255 for a host that is not reached
/// or lost, 2 for other bad input; 65 when all succeed,
/// but broke rules that --lint fail guards.
#[derive(clap::Args)]
pub struct Args {
    /// How many ranks to start, 1 to 1024 [default: 1 with --verbs, as many as there are places for with --hosts and --cluster].
    #[arg(
        short = 'n',
        long = "ranks",
        value_name = "N",
        value_parser = rank_count,
        allow_negative_numbers = true,
        required_unless_present_any = ["verbs", "hosts", "hostfile", "cluster"]
    )]
    ranks: Option<u32>,
    #[command(flatten)]
    hosts: hosts::Options,
    /// A variable for the ranks on all hosts: NAME=VALUE, or NAME for the value that it has here.
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    variables: Vec<OsString>,
    /// Where the ranks work, on every host [default: this directory].
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// Run a program that uses libibverbs over the software RDMA device.
    #[arg(long, conflicts_with_all = ["hosts", "hostfile", "cluster"])]
    verbs: bool,
    #[command(flatten)]
    verbs_options: verbs::Options,
    /// Use the software RDMA device with the limits and rules of this hardware, instead of shared memory.
    #[arg(long, value_enum, env = "FULMEN_PROFILE")]
    profile: Option<Profile>,
    /// Use this RDMA device of the machine (`fulmen devices` lists them), or `any` that works, instead of shared memory; or
    /// `tcp`: the software device over TCP between hosts.
    #[arg(long, value_name = "NAME", env = DEVICE, value_parser = device_name, conflicts_with = "profile")]
    device: Option<String>,
    /// Fail rather than take something slower: `rdma` refuses TCP between hosts.
    #[arg(long, value_name = "WHAT", env = "FULMEN_REQUIRE", value_parser = ["rdma"])]
    require: Option<String>,
    /// Do not seal TCP between hosts: the network is trusted (one's own cable or switch).
    #[arg(long)]
    trusted_rail: bool,
    /// End the run with exit code 124 when it takes longer than this.
    #[arg(long, value_name = "SECONDS", value_parser = positive_seconds, allow_negative_numbers = true)]
    timeout: Option<Duration>,
    /// The time between SIGTERM and SIGKILL.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value = "2")]
    grace: Duration,
    /// Start a rank that fails again, up to so many times, instead of ending the others.
    #[arg(long, value_name = "TIMES", default_value = "0", allow_negative_numbers = true)]
    restart: u32,
    /// How long a rank may be stopped, or have no processor, before the others take it for lost; at least 0.1.
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = silence,
        allow_negative_numbers = true,
        env = "FULMEN_SILENCE",
        default_value = "10"
    )]
    silence: Duration,
    /// Bind each rank to its part of the processors: as many for each, neighbouring ones; or one, in turn, if there are more ranks than
    /// processors. It helps ranks that have no more threads than that, while nothing else needs the processors. Linux alone can.
    #[arg(long, env = BIND, value_parser = binds, action = clap::ArgAction::SetTrue)]
    bind: bool,
    /// Have ranks verify what they send one another by checksums. Memory that ranks map needs none.
    #[arg(long)]
    verify_data: bool,
    /// Pass the ranks' output on without labels and without changing a byte.
    #[arg(long)]
    no_labels: bool,
    /// Where ranks write what they did last, when an operation fails or they get SIGUSR1 (`fulmen trace` shows it) [default:
    /// a directory that is removed when the run succeeds].
    #[arg(long, value_name = "DIR", env = records::DIRECTORY)]
    trace: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

/// What the launcher runs.
pub struct Job {
    /// How many ranks.
    pub ranks: u32,
    /// The device's profile, if ranks are to use one.
    pub profile: Option<Profile>,
    /// When to give up.
    pub timeout: Option<Duration>,
    /// The time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// How often a rank that fails is started again.
    pub restart: u32,
    /// How long a rank may be silent before it counts as lost.
    pub silence: Duration,
    /// Whether the ranks are this program itself, on each host that which is there.
    pub own: bool,
    /// The file to execute.
    pub path: PathBuf,
    /// The program's name and its arguments.
    pub program: Vec<OsString>,
    /// Where they work.
    pub directory: PathBuf,
    /// Where the ranks write their records, if the user chose it.
    pub trace: Option<PathBuf>,
    /// The hosts, if there are several.
    pub hosts: Option<Hosts>,
    /// How the ranks of this host meet the others, where some are on others.
    pub place: Option<Place>,
    /// Variables that the user has given for the ranks.
    pub given: Vec<(OsString, OsString)>,
    /// Variables that the ranks get beside those that say their place.
    pub env: Vec<(&'static str, String)>,
    /// Variables that only the ranks' programs get, and not the processes of this program that start them.
    pub program_env: Vec<(OsString, OsString)>,
    /// Where the ranks' output goes.
    pub output: Output,
}

/// Where the ranks' output goes.
pub enum Output {
    /// To this command's streams, each line with its rank.
    Labelled,
    /// To this command's streams, as it is.
    Plain,
    /// The first rank's standard output to a part of this program, the rest as with labels.
    Read(Reader),
}

impl Job {
    /// A job whose ranks are this program itself, with these arguments and as many `-v` as were given to it.
    pub fn own(
        ranks: u32,
        profile: Option<Profile>,
        verbose: u8,
        args: Vec<OsString>,
        output: Output,
    ) -> anyhow::Result<Job> {
        let path = processes::own_program().context("cannot find the file of this program")?;
        let verbose = iter::repeat_n(OsString::from("-v"), verbose.into());
        let program = iter::once(OsString::from("fulmen")).chain(verbose).chain(args).collect();
        let trace = std::env::var_os(records::DIRECTORY).filter(|path| !path.is_empty()).map(PathBuf::from);
        let silence = Heartbeat::default().silence;
        Ok(Job {
            ranks,
            profile,
            timeout: None,
            grace: GRACE,
            restart: 0,
            silence,
            own: true,
            path,
            program,
            directory: PathBuf::new(),
            trace,
            hosts: None,
            place: None,
            given: Vec::new(),
            env: Vec::new(),
            program_env: Vec::new(),
            output,
        })
    }

    /// Runs the ranks until all have ended, and gives the exit code.
    pub fn run(self) -> anyhow::Result<u8> {
        let here = |hosts: &Hosts| hosts.placement.here().map_or(0, |here| hosts.placement.hosts[here].count);
        let here = self.hosts.as_ref().map_or(self.ranks, here);
        check_descriptors(here, self.ranks - here)?;
        begin::run(self)
    }
}

/// Which of this host's ranks this process is, and how many those are, if it is one.
pub fn local_place() -> Option<(usize, usize)> {
    let variable = |name| std::env::var(name).ok()?.parse().ok();
    variable("FULMEN_LOCAL_RANK").zip(variable("FULMEN_LOCAL_SIZE"))
}

/// What has ranks verify what they send one another.
pub fn verified() -> (&'static str, String) {
    ("FULMEN_VERIFY_DATA", "1".into())
}

/// What has TCP between hosts go unsealed.
pub fn trusted() -> (&'static str, String) {
    ("FULMEN_TRUSTED_RAIL", "1".into())
}

/// What refuses anything slower than this.
pub fn required(what: String) -> (&'static str, String) {
    ("FULMEN_REQUIRE", what)
}

/// What has ranks talk over a device of the machine.
pub fn over(device: String) -> (&'static str, String) {
    (DEVICE, device)
}

/// The hardware that the software device stands in for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// Everything that the verbs know.
    Infiniband,
    /// Apple's contract: unreliable connections, SEND and RECV only.
    Thunderbolt,
}

impl Profile {
    /// Its name on the command line and in the ranks' environment.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Infiniband => "infiniband",
            Profile::Thunderbolt => "thunderbolt",
        }
    }

    /// What a software device of this profile allows.
    pub fn rules(self) -> soft::Profile {
        match self {
            Profile::Infiniband => soft::Profile::Infiniband,
            Profile::Thunderbolt => soft::Profile::Thunderbolt,
        }
    }
}

/// Why a run could not begin.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no such program.
    #[error("cannot find the program `{name}`: {reason}")]
    NotFound {
        /// The name as it was given.
        name: String,
        /// Why, or where it was looked for.
        reason: String,
    },
    /// The program is there, but may not be executed.
    #[error("cannot execute {}: {reason}", path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The limit of descriptors is too low for so many ranks.
    #[error(
        "{ranks} ranks need about {needed} open files, but the limit is {limit}; raise it with `ulimit -n {needed}` or \
         start fewer ranks"
    )]
    Descriptors {
        /// How many ranks were wanted.
        ranks: u32,
        /// How many descriptors that takes.
        needed: u64,
        /// How many there may be.
        limit: u64,
    },
    /// A limit of the system was hit while the run was being set up.
    #[error("cannot start {ranks} ranks: {limit}; raise it or start fewer ranks")]
    Limit {
        /// How many ranks were wanted.
        ranks: u32,
        /// Which limit, and how to see it.
        limit: &'static str,
    },
    /// The list of hosts is refused.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// A host cannot be used.
    #[error(transparent)]
    Host(Box<HostError>),
    /// The ranks have no place to work.
    #[error("cannot work in {}: {reason}; --workdir names another directory, for all hosts", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// A variable for the ranks makes no sense.
    #[error("--env {given}: {reason}")]
    Variable {
        /// As it was given.
        given: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// The system refused something else.
    #[error("cannot {doing}: {error}")]
    System {
        /// What was being done.
        doing: String,
        /// What the system said.
        error: io::Error,
    },
}

impl RunError {
    /// The exit code, as a shell would choose it.
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::NotFound { .. } => 127,
            RunError::NotExecutable { .. } => 126,
            RunError::Host(error) => error.exit_code(),
            RunError::Descriptors { .. }
            | RunError::Limit { .. }
            | RunError::Hosts(_)
            | RunError::Directory { .. }
            | RunError::Variable { .. } => 2,
            RunError::System { .. } => 1,
        }
    }
}

/// Runs the ranks until all have ended.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { ranks, hosts, variables, workdir, verbs, verbs_options, mut profile, device, require, .. } = args;
    let Args { timeout, grace, restart, silence, bind, verify_data, trusted_rail, no_labels, trace, program, .. } =
        args;
    let hosts = hosts.hosts(ranks, silence)?;
    let ranks = hosts.as_ref().map_or(ranks.unwrap_or(1), |hosts| hosts.placement.ranks());
    let (given, linker) = environment::variables_of(&hosts, &variables)?;
    // With ranks on this machine alone, nothing differs from a run without a list.
    let hosts = hosts.filter(|hosts| !hosts.are_here());
    let trace = trace.map(std::path::absolute).transpose().context("cannot find the current directory")?;
    let directory = environment::enter(workdir, &hosts)?;
    let path = match &hosts {
        // Each host looks for it on its own.
        Some(hosts) if hosts.placement.here().is_none() => PathBuf::from(&program[0]),
        _ => program::find(&program[0])?,
    };
    let drop_in = match verbs {
        // The profile is that of the program's device. Ranks of Fulmen among the programs go their own way.
        true => Some(DropIn::for_run(profile.take(), &verbs_options)?),
        false => {
            verbs_options.check_unused()?;
            None
        }
    };
    let output = if no_labels { Output::Plain } else { Output::Labelled };
    let bound = bind.then(|| (BIND, "1".to_owned()));
    let options =
        [bound, verify_data.then(verified), trusted_rail.then(trusted), require.map(required), device.map(over)];
    let env = options.into_iter().flatten().collect();
    let of_drop_in = drop_in.iter().flat_map(|drop_in| drop_in.variables().iter().cloned());
    let program_env = of_drop_in.map(|(name, value)| (name.into(), value)).chain(linker).collect();
    let job = Job {
        ranks,
        profile,
        timeout,
        grace,
        restart,
        silence,
        own: false,
        path,
        program,
        directory,
        trace,
        hosts,
        place: None,
        given,
        env,
        program_env,
        output,
    };
    let code = job.run()?;
    Ok(ExitCode::from(drop_in.map_or(Ok(code), |drop_in| drop_in.judge(code))?))
}

/// Refuses a run that would fail half way for want of descriptors.
fn check_descriptors(here: u32, elsewhere: u32) -> Result<(), RunError> {
    // A rank takes its control socket, two pipes, its connection to the coordinator and the watch over its process. One on
    // another host has no process here, but the other ends of the first three. The rest is for the launcher and its ssh.
    let needed = 5 * u64::from(here) + 15 * u64::from(elsewhere) + 32;
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => Err(RunError::Descriptors { ranks: here + elsewhere, needed, limit }),
        _ => Ok(()),
    }
}

/// Reads a number of ranks.
pub fn rank_count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(count) if (1..=MAX_RANKS).contains(&count) => Ok(count),
        _ => Err(format!("a run has 1 to {MAX_RANKS} ranks")),
    }
}

/// Reads the name of a device. Whether there is such a device, each rank finds out on its own.
pub fn device_name(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("give the name of a device (`fulmen devices` lists them), or `any`".to_string()),
        name => Ok(name.to_string()),
    }
}

/// Reads a time span in seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    const LONGEST: f64 = 1e9;
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=LONGEST).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give a number of seconds, for example 90 or 0.5".to_string()),
    }
}

/// Reads a time span that is not zero.
pub fn positive_seconds(text: &str) -> Result<Duration, String> {
    seconds(text).and_then(|time| match time {
        Duration::ZERO => Err("give more than 0 seconds, or leave the option out for no limit".to_string()),
        time => Ok(time),
    })
}

/// Reads the variable that has ranks bound; the option itself counts as true.
fn binds(text: &str) -> Result<bool, String> {
    match text.trim() {
        "1" | "true" => Ok(true),
        "" | "0" | "false" => Ok(false),
        _ => Err("give 1 to bind ranks to processors, or 0".to_string()),
    }
}

/// Reads how long a rank may be silent.
fn silence(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        time if time < SHORTEST_SILENCE => {
            Err("give at least 0.1 seconds: a busy rank is silent for a moment".to_string())
        }
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_not_negative_and_not_endless() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        for wrong in ["-1", "nan", "inf", "1e10", "", "2s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert!(positive_seconds("0").is_err());
    }

    #[test]
    fn ranks_are_bound_if_the_variable_says_so() {
        assert_eq!(["1", "0", ""].map(binds), [Ok(true), Ok(false), Ok(false)]);
        assert!(binds("maybe").unwrap_err().contains("give 1"));
    }
}
