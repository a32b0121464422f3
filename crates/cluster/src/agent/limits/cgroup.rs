//! Control groups (v2): the system itself holds a group of processes to its limits, and knows all that descends from it.
//!
//! The agent makes a group for each process inside its own, called `fulmen-AGENT-NUMBER`. Only the system's first group may have both
//! processes and groups that are limited; anywhere else the agent moves into a group beside them first, with all that belongs to it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::process::{Pid, getpid, getppid};

use super::super::api::Limit;
use super::linux::LOOK;
use super::stat;

/// How the agent gets a group of its own.
const WAY_OUT: &str = "start the agent in a cgroup of its own, by contrib/fulmen.service or by `systemd-run --user --scope -p Delegate=yes \
                       fulmen up`, or as root outside of all cgroups";
/// Microseconds in which a group may use its part of the processors.
const PERIOD: u64 = 100_000;
/// How often the agent's own processes are moved: some may start others meanwhile.
const MOVES: u32 = 100;

/// What can be limited.
#[derive(Clone, Copy)]
enum Controller {
    Memory,
    Cpu,
}

impl Controller {
    fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Cpu => "cpu",
        }
    }
}

/// Where groups can be made.
pub(super) struct Cgroups {
    own: PathBuf,
    /// Why something cannot be limited.
    memory: Result<(), String>,
    cpu: Result<(), String>,
}

impl Cgroups {
    /// Prepares the agent's own group. If that cannot be used, says why.
    pub(super) fn find() -> Result<Cgroups, String> {
        let own = own_group()?;
        if ![Controller::Memory, Controller::Cpu].iter().any(|controller| has(&own, "cgroup.controllers", *controller))
        {
            return Err(not_given(&own, "memory or cpu"));
        }
        remove_stale(&own);
        let leaf = own.join(format!("fulmen-{}", getpid()));
        match fs::create_dir(&leaf) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(format!("{}: {error}; {WAY_OUT}", leaf.display()));
            }
            _ => {}
        }
        let prepared = prepare(&own, &leaf);
        // It stays where the agent is in it.
        let _ = fs::remove_dir(&leaf);
        prepared?;
        let [memory, cpu] = [Controller::Memory, Controller::Cpu].map(|controller| enable(&own, controller));
        Ok(Cgroups { own, memory, cpu })
    }

    /// Whether memory can be limited.
    pub(super) fn memory(&self) -> Result<(), String> {
        self.memory.clone()
    }

    /// Whether processors can be limited.
    pub(super) fn cpu(&self) -> Result<(), String> {
        self.cpu.clone()
    }

    /// Makes a group with these limits.
    pub(super) fn create(&self, limit: Limit, id: u64) -> io::Result<Cgroup> {
        let path = self.own.join(format!("fulmen-{}-{id}", getpid()));
        fs::create_dir(&path).map_err(|cause| named(&path, &cause))?;
        let group = Cgroup { path };
        if let Some(bytes) = limit.memory_bytes {
            group.set("memory.max", bytes)?;
            group.set("memory.oom.group", 1)?;
            // Swapping would only put the end off. Not every system accounts for it.
            if group.path.join("memory.swap.max").exists() {
                group.set("memory.swap.max", 0)?;
            }
        }
        if let Some(millis) = limit.cpu_millis {
            group.set("cpu.max", format!("{} {PERIOD}", millis * PERIOD / 1000))?;
        }
        Ok(group)
    }
}

/// A group of processes.
pub(super) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    fn set(&self, file: &str, value: impl ToString) -> io::Result<()> {
        let path = self.path.join(file);
        fs::write(&path, value.to_string()).map_err(|cause| named(&path, &cause))
    }

    /// Puts a process in.
    pub(super) fn enter(&self, pid: Pid) -> io::Result<()> {
        self.set("cgroup.procs", pid)
    }

    /// Whether the system has killed it because its limit was reached, and not because the whole machine had no memory left.
    pub(super) fn was_exceeded(&self) -> bool {
        let events = fs::read_to_string(self.path.join("memory.events")).unwrap_or_default();
        let count = |name: &str| events.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        count("oom ").is_some_and(|times| times > 0) && count("oom_kill ").is_some_and(|killed| killed > 0)
    }

    /// Kills all that is in it, also what is being started.
    pub(super) fn kill(&self) {
        if let Err(error) = self.set("cgroup.kill", 1) {
            tracing::warn!(%error, "what is left in a cgroup was not killed");
        }
    }

    /// Removes it, as soon as nothing lives in it.
    pub(super) async fn remove(&self, end: Instant) {
        while let Err(error) = fs::remove_dir(&self.path) {
            if Instant::now() >= end {
                tracing::warn!(path = %self.path.display(), %error, "a cgroup cannot be removed");
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for Cgroup {
    /// Of a process that was not started.
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

fn named(path: &Path, cause: &io::Error) -> io::Error {
    io::Error::new(cause.kind(), format!("{}: {cause}", path.display()))
}

/// The directory of this process's group.
fn own_group() -> Result<PathBuf, String> {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    place(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?)
        .ok_or_else(|| "no cgroup v2 is mounted here (mount -t cgroup2 none /sys/fs/cgroup)".into())
}

/// It may be mounted from any group on, under which processes of a container are.
fn place(groups: &str, mounts: &str) -> Option<PathBuf> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (mount, about) = line.split_once(" - ")?;
        about.starts_with("cgroup2 ").then_some(())?;
        let mut fields = mount.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        Some(Path::new(at).join(Path::new(group).strip_prefix(root).ok()?))
    })
}

/// Groups of agents that were killed. One that is in use cannot be removed.
fn remove_stale(own: &Path) {
    for entry in fs::read_dir(own).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let agent = name.to_str().and_then(|name| name.strip_prefix("fulmen-")?.split('-').next()?.parse().ok());
        if agent.and_then(Pid::from_raw).is_some_and(|agent| stat::of(agent).is_none()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn prepare(own: &Path, leaf: &Path) -> Result<(), String> {
    if !leaf.join("cgroup.kill").exists() {
        return Err("its system cannot kill cgroups: Linux 5.14 is needed".into());
    }
    // The system's first group has no type, and is the only one that has none.
    if own.join("cgroup.type").exists() { make_room(own, leaf) } else { Ok(()) }
}

/// Moves the agent and all that belongs to it to the leaf.
fn make_room(own: &Path, leaf: &Path) -> Result<(), String> {
    let group = own.display();
    for _ in 0..MOVES {
        let listed = fs::read_to_string(own.join("cgroup.procs")).map_err(|error| format!("{group}: {error}"))?;
        if listed.is_empty() {
            return Ok(());
        }
        for pid in listed.lines() {
            if !pid.parse().ok().and_then(Pid::from_raw).is_some_and(is_ours) {
                return Err(format!("its cgroup {group} also has process {pid}, which is not the agent's; {WAY_OUT}"));
            }
        }
        for pid in listed.lines() {
            match fs::write(leaf.join("cgroup.procs"), pid) {
                // It has ended.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
                moved => moved.map_err(|error| format!("{}: {error}; {WAY_OUT}", leaf.display()))?,
            }
        }
    }
    Err(format!("processes start in its cgroup {group} faster than they can be moved: ask again"))
}

/// Whether a process is the agent, its keeper, or descends from them; also if it has ended.
fn is_ours(pid: Pid) -> bool {
    let mut at = Some(pid);
    while let Some(pid) = at {
        if pid == getpid() || Some(pid) == getppid() {
            return true;
        }
        at = match stat::of(pid) {
            Some(stat) => Pid::from_raw(stat.parent),
            None => return true,
        };
    }
    false
}

/// Whether a controller is in a list.
fn has(own: &Path, file: &str, controller: Controller) -> bool {
    let text = fs::read_to_string(own.join(file)).unwrap_or_default();
    text.split_whitespace().any(|name| name == controller.name())
}

fn not_given(own: &Path, name: &str) -> String {
    format!(
        "its cgroup {} was not given the controller {name}: with systemd, Delegate=yes does that in the unit of the agent and in those \
         above it, and cgroups of the older version (v1) must not have it",
        own.display()
    )
}

/// Hands a controller on to the groups inside this one.
fn enable(own: &Path, controller: Controller) -> Result<(), String> {
    let name = controller.name();
    if !has(own, "cgroup.controllers", controller) {
        return Err(not_given(own, name));
    }
    if has(own, "cgroup.subtree_control", controller) {
        return Ok(());
    }
    fs::write(own.join("cgroup.subtree_control"), format!("+{name}"))
        .map_err(|error| format!("{} does not hand {name} on: {error}; {WAY_OUT}", own.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_below_its_mount() {
        let mounts = "21 1 0:2 / /proc rw - proc proc rw\n\
                      30 1 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(place("0::/\n", mounts), Some("/sys/fs/cgroup/".into()));
        assert_eq!(place("1:cpu:/a\n0::/user.slice/x\n", mounts), Some("/sys/fs/cgroup/user.slice/x".into()));
        let part = "30 1 0:26 /docker/7 /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        assert_eq!(place("0::/docker/7/agent\n", part), Some("/sys/fs/cgroup/agent".into()));
        assert_eq!(place("0::/elsewhere\n", part), None);
        assert_eq!(place("1:cpu:/\n", mounts), None);
        assert_eq!(place("0::/\n", "21 1 0:2 / /proc rw - proc proc rw\n"), None);
    }

    #[test]
    fn what_descends_from_it_is_the_agents() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let ours = [is_ours(Pid::from_child(&child)), is_ours(getpid())];
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(ours, [true, true]);
        assert!(!is_ours(Pid::from_raw(1).unwrap()) || getppid() == Pid::from_raw(1));
    }
}
