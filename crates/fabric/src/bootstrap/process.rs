//! Whether a process of this host has ended.

pub(super) use system::Watch;

/// Among whose processes this one has its id: those of its host (`FULMEN_HOST_ID` may say which that is), in its namespace of
/// processes. The first namespace has the same number on every host, so that number alone would not tell hosts apart, and a
/// rank of another host would be taken for whatever process has its id here. `None` where the system does not say.
pub(super) fn pids() -> Option<u64> {
    Some(among(fulmen_reach::this_host().ok()?, system::namespace()?))
}

fn among(host: [u8; 16], namespace: u64) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&host).update(&namespace.to_le_bytes());
    let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(target_os = "linux")]
mod system {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    /// The number of this process's PID namespace.
    pub fn namespace() -> Option<u64> {
        let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
        link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
    }

    /// A process, whatever becomes of its number. The descriptor is readable once it has ended.
    pub struct Watch(OwnedFd);

    impl Watch {
        /// `None` where the system knows no such process, or has no descriptor for it.
        pub fn open(pid: u32) -> Option<Watch> {
            let pid = Pid::from_raw(pid.try_into().ok()?)?;
            pidfd_open(pid, PidfdFlags::empty()).ok().map(Watch)
        }

        /// What to wait for.
        pub fn fd(&self) -> Option<BorrowedFd<'_>> {
            Some(self.0.as_fd())
        }

        /// Whether it has ended, by now.
        pub fn has_ended(&self) -> bool {
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::os::fd::BorrowedFd;

    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};

    /// All processes of the system have different ids.
    pub fn namespace() -> Option<u64> {
        Some(0)
    }

    /// A process by its number. There is nothing to wait for; a number that was given to another process counts as the
    /// process that had it, which is the careful mistake.
    pub struct Watch(Pid);

    impl Watch {
        /// `None` where the system knows no such process.
        pub fn open(pid: u32) -> Option<Watch> {
            let pid = Pid::from_raw(pid.try_into().ok()?)?;
            test_kill_process(pid).is_ok().then_some(Watch(pid))
        }

        /// What to wait for.
        pub fn fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        /// Whether it has ended, by now.
        pub fn has_ended(&self) -> bool {
            test_kill_process(self.0) == Err(Errno::SRCH)
        }
    }
}

/// The process that has this id among those `pids`. `None` where these are not the ones that this process sees: the id then
/// means another process here, or none.
pub(super) fn watch(pid: u32, pids: Option<u64>) -> Option<Watch> {
    if pids.is_some() && pids == self::pids() { Watch::open(pid) } else { None }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_has_ended_when_it_was_killed() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let watch = watch(child.id(), pids()).unwrap();
        let before = watch.has_ended();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!before && watch.has_ended());
        assert!(Watch::open(0).is_none() && Watch::open(u32::MAX).is_none());
    }
    #[test]
    fn an_id_of_other_processes_is_not_believed() {
        let (own, ours) = (std::process::id(), pids());
        assert!(ours.is_some() && watch(own, ours).is_some());
        assert!(watch(own, ours.map(|pids| pids ^ 1)).is_none() && watch(own, None).is_none());
    }

    #[test]
    fn equal_numbers_on_different_hosts_are_different_processes() {
        assert_eq!(among([1; 16], 7), among([1; 16], 7));
        assert_ne!(among([1; 16], 7), among([2; 16], 7));
        assert_ne!(among([1; 16], 7), among([1; 16], 8));
    }
}
