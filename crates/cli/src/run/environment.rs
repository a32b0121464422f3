//! What ranks find in their environment, on this host and on others.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use fulmen::parts::fabric::Cables;
use fulmen::parts::fabric::launch::hostfile::cables_variable;

use super::hosts::{Hosts, Place, Placed, Secret, Task, bytes};
use super::meeting::Meeting;
use super::starter::reads;
use super::{Job, RunError, records};

/// Fulmen's variables that mean something for one process or one host alone. All others go along to other hosts.
const OF_ONE: [&str; 14] = [
    "FULMEN_RANK",
    "FULMEN_SIZE",
    "FULMEN_LOCAL_RANK",
    "FULMEN_LOCAL_SIZE",
    "FULMEN_COORDINATOR",
    "FULMEN_SECRET_FD",
    "FULMEN_SECRET_FILE",
    "FULMEN_ADDRESS",
    "FULMEN_HOST_ID",
    "FULMEN_CABLES",
    "FULMEN_LAUNCHER",
    "FULMEN_SSH",
    "FULMEN_STATE",
    records::DIRECTORY,
];

/// Variables by name and value.
type Variables = Vec<(OsString, OsString)>;

/// Reads a variable for the ranks: `NAME=VALUE`, or `NAME` for the value that it has here.
fn variable(given: &OsStr) -> Result<(OsString, OsString), RunError> {
    let refuse = |reason| Err(RunError::Variable { given: given.to_string_lossy().into_owned(), reason });
    let bytes = given.as_bytes();
    match bytes.iter().position(|byte| *byte == b'=') {
        Some(0) => refuse("it has no name"),
        None if bytes.is_empty() => refuse("it has no name"),
        Some(at) => Ok((OsString::from_vec(bytes[..at].to_vec()), OsString::from_vec(bytes[at + 1..].to_vec()))),
        None => match std::env::var_os(given) {
            Some(value) => Ok((given.to_owned(), value)),
            None => refuse("it is not set here; NAME=VALUE gives it a value"),
        },
    }
}

/// Whether a variable would change what this program itself does before it becomes the rank's: the dynamic linker's.
fn is_for_program_alone(name: &OsStr) -> bool {
    [b"LD_".as_slice(), b"DYLD_"].iter().any(|linker| name.as_bytes().starts_with(linker))
}

/// The variables that a hostfile and the user have given: for ranks, and for their programs alone.
pub fn variables_of(hosts: &Option<Hosts>, given: &[OsString]) -> Result<(Variables, Variables), RunError> {
    let of_file = hosts.iter().flat_map(|hosts| &hosts.variables);
    let of_file = of_file.map(|(name, value)| Ok((OsString::from(name), OsString::from(value))));
    let all = of_file.chain(given.iter().map(|given| variable(given))).collect::<Result<Variables, _>>()?;
    let (linker, others) = all.into_iter().partition(|(name, _)| is_for_program_alone(name));
    Ok((others, linker))
}

/// Goes where the ranks work, and says where that is. If none are here, it need not be here.
pub fn enter(workdir: Option<PathBuf>, hosts: &Option<Hosts>) -> anyhow::Result<PathBuf> {
    let Some(directory) = workdir else {
        return std::env::current_dir().context("cannot find the current directory");
    };
    let directory = std::path::absolute(directory).context("cannot find the current directory")?;
    if hosts.as_ref().is_none_or(|hosts| hosts.placement.here().is_some()) {
        std::env::set_current_dir(&directory)
            .map_err(|error| RunError::Directory { path: directory.clone(), reason: error.to_string() })?;
    }
    Ok(directory)
}

/// What the ranks of one host are told of where they are.
struct Spot<'a> {
    count: u32,
    coordinator: SocketAddr,
    own: Option<IpAddr>,
    cables: Option<&'a Cables>,
}

impl Job {
    /// The variables of the ranks of this host.
    pub fn here(&self, hosts: &Option<Hosts>, meeting: &Meeting, trace: &Path) -> Variables {
        let placed = hosts.as_ref().and_then(|hosts| Some(&hosts.placement.hosts[hosts.placement.here()?]));
        let mut coordinator = meeting.address();
        if let Some(place) = &self.place {
            coordinator.set_ip(place.meet);
        }
        let mut env = self.variables(Spot {
            count: placed.map_or(self.ranks, |placed| placed.count),
            coordinator,
            own: self.place.as_ref().and_then(|place| place.own),
            cables: placed.and_then(|placed| placed.cables.as_ref()),
        });
        env.push((records::DIRECTORY.into(), trace.into()));
        env
    }

    /// What another host is to run.
    pub fn task(&self, host: &Placed, place: &Place, secret: &str, port: u16) -> Task {
        let of_one = |name: &OsStr| OF_ONE.iter().any(|known| name == *known);
        let mut env: Variables =
            std::env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(b"FULMEN_") && !of_one(name)).collect();
        env.extend(self.variables(Spot {
            count: host.count,
            coordinator: SocketAddr::new(place.meet, port),
            own: place.own,
            cables: host.cables.as_ref(),
        }));
        let cross = |variables: &Variables| variables.iter().map(|(name, value)| (bytes(name), bytes(value))).collect();
        Task {
            first: host.first,
            count: host.count,
            directory: bytes(self.directory.as_os_str()),
            own: self.own,
            program: self.program.iter().map(|word| bytes(word)).collect(),
            env: cross(&env),
            program_env: cross(&self.program_env),
            grace: self.grace.as_millis().try_into().unwrap_or(u64::MAX),
            silence: self.silence.as_millis().try_into().unwrap_or(u64::MAX),
            trace: self.trace.as_ref().map(|trace| bytes(trace.as_os_str())),
            reads: host.first == 0 && reads(),
            secret: Secret(secret.to_owned()),
        }
    }

    /// The variables of the ranks of one host. Later ones count.
    fn variables(&self, spot: Spot<'_>) -> Variables {
        let Spot { count, coordinator, own, cables } = spot;
        let mut variables: Variables = self.given.clone();
        let mut set = |name: &str, value: String| variables.push((name.into(), value.into()));
        set("FULMEN_SIZE", self.ranks.to_string());
        set("FULMEN_LOCAL_SIZE", count.to_string());
        set("FULMEN_SILENCE", self.silence.as_secs_f64().to_string());
        set("FULMEN_COORDINATOR", coordinator.to_string());
        self.env.iter().for_each(|(name, value)| set(name, value.clone()));
        if let Some(profile) = self.profile {
            set("FULMEN_PROFILE", profile.name().to_owned());
        }
        if let Some(own) = own {
            // By it the host is reached in any case; others that lead there are looked for.
            set("FULMEN_ADDRESS", format!("{own},any"));
        }
        if let Some(cables) = cables {
            set("FULMEN_CABLES", cables_variable(cables));
        }
        variables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_has_a_value_or_the_one_from_here() {
        let read = |given: &str| variable(OsStr::new(given)).map_err(|error| error.to_string());
        assert_eq!(read("A=x=y").unwrap(), ("A".into(), "x=y".into()));
        assert_eq!(read("A=").unwrap(), ("A".into(), "".into()));
        assert_eq!(read("PATH").unwrap().1, std::env::var_os("PATH").unwrap());
        for (given, part) in [("", "no name"), ("=x", "no name"), ("NO_SUCH_VARIABLE_HERE", "not set here")] {
            assert!(read(given).unwrap_err().contains(part), "{given}");
        }
        assert!(is_for_program_alone(OsStr::new("LD_PRELOAD")) && !is_for_program_alone(OsStr::new("OLD_PATH")));
    }
}
