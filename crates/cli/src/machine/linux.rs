//! Linux: threads can be bound to processors, and the system says how much memory it could still give.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this thread may use, core by core, those of a package one after the other.
pub fn cores() -> Vec<Vec<usize>> {
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    let mut cores: BTreeMap<(u32, u32), Vec<usize>> = BTreeMap::new();
    for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)) {
        let told = |what: &str| {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{what}");
            fs::read_to_string(path).ok()?.trim().parse::<u32>().ok()
        };
        // Where the system does not say, each is a core.
        let core = told("physical_package_id").zip(told("core_id")).unwrap_or((u32::MAX, cpu as u32));
        cores.entry(core).or_default().push(cpu);
    }
    cores.into_values().collect()
}

/// Binds this thread, and those that it will start, to these processors. The others of this process stay as they are.
pub fn bind(processors: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    processors.iter().for_each(|&cpu| set.set(cpu));
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
        assert!(cores().iter().all(|core| !core.is_empty()) && !cores().is_empty());
        assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn a_thread_is_bound_where_it_was_asked_to_be() {
        std::thread::spawn(move || {
            let last = *cores().last().unwrap().last().unwrap();
            bind(&[last]).unwrap();
            assert_eq!(cores(), [[last]]);
        })
        .join()
        .unwrap();
    }
}
