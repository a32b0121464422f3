//! The processes of a network namespace.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

/// How long processes that were stopped may take to stand still, and those that were killed to end.
const ENDING: Duration = Duration::from_secs(20);

/// Those whose network namespace has this inode, this process left out. The caller holds the namespace, so that the number means
/// no other one.
pub(crate) fn of(namespace: u64) -> Vec<Pid> {
    let own = rustix::process::getpid();
    let entries = fs::read_dir("/proc").expect("/proc lists processes");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter_map(Pid::from_raw);
    pids.filter(|pid| *pid != own && is_in(*pid, namespace)).collect()
}

/// Sends all of them a signal, and says to how many.
pub(crate) fn signal(namespace: u64, signal: Signal) -> usize {
    let send = |pid: &Pid| {
        // Held by a descriptor, the process that is looked at is the one that gets the signal.
        let Ok(process) = rustix::process::pidfd_open(*pid, PidfdFlags::empty()) else { return false };
        is_in(*pid, namespace) && rustix::process::pidfd_send_signal(process, signal).is_ok()
    };
    of(namespace).iter().filter(|pid| send(pid)).count()
}

/// Stops all of them and those that they started meanwhile, and returns once none runs; says how many there are.
pub(crate) fn stop(namespace: u64) -> io::Result<usize> {
    let end = Instant::now() + ENDING;
    loop {
        let all = of(namespace);
        if all.iter().all(|pid| stands_still(*pid)) {
            return Ok(all.len());
        }
        signal(namespace, Signal::STOP);
        wait_until(end, || format!("processes {all:?} were stopped {ENDING:?} ago and still run"))?;
    }
}

/// Kills all of them and those that they started meanwhile, and returns once none runs; says how many there were. None does
/// anything about the end of another one, since all are stopped before.
pub(crate) fn kill(namespace: u64) -> io::Result<usize> {
    // One that cannot be stopped may still be killed.
    let stopped = stop(namespace).unwrap_or(0);
    let end = Instant::now() + ENDING;
    while !of(namespace).is_empty() {
        signal(namespace, Signal::KILL);
        wait_until(end, || format!("processes {:?} were killed {ENDING:?} ago and still run", of(namespace)))?;
    }
    Ok(stopped)
}

fn wait_until(end: Instant, failure: impl FnOnce() -> String) -> io::Result<()> {
    if Instant::now() > end {
        return Err(io::Error::other(failure()));
    }
    std::thread::sleep(Duration::from_millis(1));
    Ok(())
}

/// Stopped; or in the kernel, from where it does not come back before it stops, and where the parent of a process that is
/// about to become a program waits for that.
fn stands_still(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    // The name before it is in parentheses, and may have some.
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    !matches!(state, Some('R' | 'S' | 'I'))
}

/// A process that has ended, whether it was waited for or not, is in none.
fn is_in(pid: Pid, namespace: u64) -> bool {
    fs::metadata(format!("/proc/{}/ns/net", pid.as_raw_nonzero())).is_ok_and(|found| found.ino() == namespace)
}
