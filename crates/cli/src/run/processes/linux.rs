//! Linux: orphans can be adopted, and a process can be made to die with its parent.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use fulmen::parts::fabric::recorder::LISTENER;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, pidfd_open, set_child_subreaper, set_parent_process_death_signal,
};

use super::Recorder;

/// Makes this process the parent of all its descendants that lose their own. `true`: they will be seen in [`children`].
pub fn adopt_orphans() -> io::Result<bool> {
    set_child_subreaper(Some(getpid()))?;
    Ok(true)
}

/// Has this process, and the program that it executes, killed when its parent ends.
pub fn die_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// The children of this process, also those that have ended and were not waited for.
pub fn children() -> io::Result<Vec<Pid>> {
    let own = getpid();
    Ok(parents()?.into_iter().filter(|(_, parent)| *parent == own).map(|(pid, _)| pid).collect())
}

/// All processes with their parents.
fn parents() -> io::Result<Vec<(Pid, Pid)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else { continue };
        // A process that ended while this loop ran is no child that matters: what it left is seen next time.
        let Ok(stat) = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())) else { continue };
        found.extend(parent(&stat).map(|parent| (pid, parent)));
    }
    Ok(found)
}

/// The descendants of a launcher that write their records when they get SIGUSR1. A process that does not listen would be
/// ended by the signal, so it goes only to those that have the thread for it.
pub fn recorders(launcher: Pid) -> io::Result<Vec<Recorder>> {
    let parents: HashMap<Pid, Pid> = parents()?.into_iter().collect();
    let descends = |pid: Pid| {
        let mut at = pid;
        // No line of parents is longer than there are processes.
        (0..parents.len()).any(|_| match parents.get(&at) {
            Some(parent) if *parent == launcher => true,
            Some(parent) => {
                at = *parent;
                false
            }
            None => false,
        })
    };
    let mut found = Vec::new();
    for pid in parents.keys().copied().filter(|pid| descends(*pid)) {
        // The descriptor comes first: what is read afterwards is about the process that it names.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        let place = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        let threads = fs::read_dir(place.join("task")).into_iter().flatten().flatten();
        if !threads
            .filter_map(|thread| fs::read(thread.path().join("comm")).ok())
            .any(|name| name.trim_ascii_end() == LISTENER.as_bytes())
        {
            continue;
        }
        let environ = fs::read(place.join("environ")).unwrap_or_default();
        let variable = |name: &str| {
            let mut variables = environ.split(|byte| *byte == 0);
            variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
        };
        let rank = variable("FULMEN_RANK").and_then(|rank| str::from_utf8(rank).ok()?.parse().ok());
        let directory = variable("FULMEN_TRACE_DIR").map(|path| OsString::from_vec(path.to_vec()).into());
        if let (Some(rank), Some(directory)) = (rank, directory) {
            found.push(Recorder { rank, directory, process });
        }
    }
    Ok(found)
}

/// The parent in a line of `/proc/PID/stat`: `pid (name) state parent …`, where the name may contain anything.
fn parent(stat: &[u8]) -> Option<Pid> {
    let after = &stat[stat.iter().rposition(|&byte| byte == b')')? + 1..];
    let field = after.split(|byte| byte.is_ascii_whitespace()).filter(|field| !field.is_empty()).nth(1)?;
    Pid::from_raw(str::from_utf8(field).ok()?.parse().ok()?)
}

/// The signals that this process was started with ignored, as bits: signal 1 is bit 0.
pub fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// The file to execute to run this program again. It is still this program when its file was replaced or removed.
pub fn own_program() -> io::Result<PathBuf> {
    Ok(PathBuf::from("/proc/self/exe"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_found_behind_any_name() {
        assert_eq!(parent(b"12 (a) R) 3 (x) S 77 12 12 0"), Pid::from_raw(77));
        assert_eq!(parent(b"12 (a"), None);
        assert_eq!(parent(b""), None);
    }

    #[test]
    fn a_child_is_among_the_children() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let found = children().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&pid));
        assert!(!children().unwrap().contains(&pid));
    }
}
