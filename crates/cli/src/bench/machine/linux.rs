//! Linux: threads can be bound to processors, and the system says how much memory it could still give.

use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this process may use, each core's first one before the second of any.
pub fn processors() -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    let mut found: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    found.sort_by_key(|&cpu| (!is_first_of_core(cpu), cpu));
    found
}

/// Whether a processor is the first of those that share its core. Where the system does not say, each is.
fn is_first_of_core(cpu: usize) -> bool {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let list = fs::read_to_string(path).unwrap_or_default();
    let first = list.split(|character: char| !character.is_ascii_digit()).next().unwrap_or_default();
    first.parse().map_or(true, |first: usize| first == cpu)
}

/// Binds this thread, and those that it will start, to one processor. The others of this process stay as they are.
pub fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Bytes that processes can still get without others losing theirs.
pub fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_known() {
        assert!(!processors().is_empty());
        assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn a_thread_is_bound_where_it_was_asked_to_be() {
        let processors = processors();
        std::thread::spawn(move || {
            let last = *processors.last().unwrap();
            pin(last).unwrap();
            assert_eq!(super::processors(), [last]);
        })
        .join()
        .unwrap();
    }
}
