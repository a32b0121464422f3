//! Memory without cgroups: what belongs to a process is looked for, and what it uses added up, again and again.
//!
//! To a process belong its group and its session, and all that descends from these, as long as it was seen once: what has left the group
//! and lost its parent between two looks is missed.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::stat::{self, Stat};

/// How often it is looked, at most.
const LOOK: Duration = Duration::from_millis(50);
/// Looking may take a processor this part of the time, where there are very many processes.
const PART: u32 = 10;

/// What all processes were at a moment: one look is enough for all watches of that moment.
#[derive(Default)]
pub(super) struct Looks(Mutex<Option<Look>>);

#[derive(Clone)]
struct Look {
    at: Instant,
    all: Arc<Vec<(Pid, Stat)>>,
}

impl Looks {
    fn latest(&self) -> Look {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(look) if look.at.elapsed() < LOOK / 2 => look.clone(),
            _ => {
                let all = Arc::new(stat::all());
                last.insert(Look { at: Instant::now(), all }).clone()
            }
        }
    }
}

/// The watch over a process and what belongs to it.
pub(super) struct Watch {
    looks: Arc<Looks>,
    bytes: u64,
    /// With when they were started, so that a number that is used again is not taken for them.
    members: Mutex<HashMap<Pid, u64>>,
}

impl Watch {
    pub(super) fn new(looks: Arc<Looks>, bytes: u64) -> Watch {
        Watch { looks, bytes, members: Mutex::default() }
    }

    fn members(&self) -> MutexGuard<'_, HashMap<Pid, u64>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns as soon as more is used than may be.
    pub(super) async fn exceeded(self: &Arc<Watch>, leader: Pid) {
        loop {
            let watch = self.clone();
            let look = tokio::task::spawn_blocking(move || {
                let began = Instant::now();
                (watch.is_exceeded(leader), began.elapsed())
            });
            match look.await {
                Ok((true, _)) => return,
                Ok((false, took)) => tokio::time::sleep(LOOK.max(PART * took)).await,
                // A panic in there is in the log, and the next look may do better.
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    fn is_exceeded(&self, leader: Pid) -> bool {
        let look = self.looks.latest();
        let resident = self.gather(leader, &look.all);
        // Shared memory is in there once for each process that has it, and the system's own counters lag behind a little. The exact
        // sum takes the system much longer.
        if resident < self.bytes / 2 {
            return false;
        }
        let members: Vec<(Pid, u64)> = self.members().iter().map(|(pid, started)| (*pid, *started)).collect();
        let exact = members.into_iter().filter_map(|(pid, started)| {
            let stat = stat::of(pid).filter(|stat| stat.started == started)?;
            Some(own_memory(pid).unwrap_or(stat.resident))
        });
        let used: u64 = exact.sum();
        tracing::debug!(%leader, used, limit = self.bytes, "memory was looked at");
        used > self.bytes
    }

    /// Finds all members; gives the sum of what they have in use.
    fn gather(&self, leader: Pid, all: &[(Pid, Stat)]) -> u64 {
        let number = leader.as_raw_nonzero().get();
        let mut members = self.members();
        let old = std::mem::take(&mut *members);
        let mut rest: Vec<&(Pid, Stat)> = all.iter().collect();
        loop {
            let before = members.len();
            rest.retain(|(pid, stat)| {
                let belongs = stat.group == number
                    || stat.session == number
                    || old.get(pid) == Some(&stat.started)
                    || Pid::from_raw(stat.parent).is_some_and(|parent| members.contains_key(&parent));
                if belongs {
                    members.insert(*pid, stat.started);
                }
                !belongs
            });
            if members.len() == before {
                break;
            }
        }
        all.iter().filter(|(pid, _)| members.contains_key(pid)).map(|(_, stat)| stat.resident).sum()
    }

    /// Kills the members, as far as they were seen: whether there were any.
    pub(super) fn kill(&self) -> bool {
        let mut any = false;
        for (&pid, &started) in self.members().iter() {
            // The descriptor comes first: what is read afterwards is about the process that it names.
            let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            if stat::of(pid).is_some_and(|stat| stat.started == started) {
                any |= pidfd_send_signal(&process, Signal::KILL).is_ok();
            }
        }
        any
    }
}

/// What would be free if the process ended and all others that share with it did: its memory and its part of what is shared, but no
/// files, which the system drops when it needs the room. `None` if nobody may know.
fn own_memory(pid: Pid) -> Option<u64> {
    parse(&fs::read_to_string(format!("/proc/{}/smaps_rollup", pid.as_raw_nonzero())).ok()?)
}

fn parse(rollup: &str) -> Option<u64> {
    let field = |name: &str| {
        let value = rollup.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    };
    // Older systems give the sum with files alone.
    field("Pss_Anon").zip(field("Pss_Shmem")).map(|(own, shared)| own + shared).or_else(|| field("Pss"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(number: i32) -> Pid {
        Pid::from_raw(number).unwrap()
    }

    fn process(number: i32, parent: i32, group: i32, started: u64) -> (Pid, Stat) {
        (pid(number), Stat { parent, group, session: 1, started, resident: 100 })
    }

    #[test]
    fn all_that_descends_belongs_as_long_as_it_was_seen() {
        let watch = Watch::new(Arc::default(), 1);
        let found = |all: &[(Pid, Stat)]| {
            let sum = watch.gather(pid(10), all);
            let mut found: Vec<i32> = watch.members().keys().map(|pid| pid.as_raw_nonzero().get()).collect();
            found.sort_unstable();
            assert_eq!(sum, 100 * found.len() as u64);
            found
        };
        // A child in a group of its own, with a child; an orphan in the group; a stranger.
        let first = [
            process(13, 12, 12, 6),
            process(12, 10, 12, 5),
            process(10, 2, 10, 4),
            process(14, 2, 10, 7),
            process(20, 2, 20, 1),
        ];
        assert_eq!(found(&first), [10, 12, 13, 14]);
        // It has lost its parent, and another's number is used again.
        assert_eq!(found(&[process(10, 2, 10, 4), process(13, 2, 12, 6), process(12, 2, 12, 9)]), [10, 13]);
        assert_eq!(found(&[process(30, 13, 30, 11), process(13, 2, 12, 6)]), [13, 30]);
    }

    #[test]
    fn files_are_not_its_own_memory() {
        let text = "1-2 ---p 00 00:00 0 [rollup]\nRss: 900 kB\nPss:  500 kB\nPss_Anon:  300 kB\nPss_File: 150 kB\nPss_Shmem: 50 kB\n";
        assert_eq!(parse(text), Some(350 << 10));
        assert_eq!(parse("Rss: 900 kB\nPss: 500 kB\n"), Some(500 << 10));
        assert_eq!(parse(""), None);
    }
}
