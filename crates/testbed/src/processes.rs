//! The processes of a network namespace.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

/// How long processes that were killed may take to end.
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

/// Kills all of them and those that they started meanwhile, and returns once none runs; says how many it killed.
pub(crate) fn kill(namespace: u64) -> io::Result<usize> {
    let end = Instant::now() + ENDING;
    let mut killed = 0;
    loop {
        match signal(namespace, Signal::KILL) {
            0 if of(namespace).is_empty() => return Ok(killed),
            more => killed = killed.max(more),
        }
        if Instant::now() > end {
            let left = of(namespace);
            return Err(io::Error::other(format!("processes {left:?} were killed {ENDING:?} ago and still run")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A process that has ended, whether it was waited for or not, is in none.
fn is_in(pid: Pid, namespace: u64) -> bool {
    fs::metadata(format!("/proc/{}/ns/net", pid.as_raw_nonzero())).is_ok_and(|found| found.ino() == namespace)
}
