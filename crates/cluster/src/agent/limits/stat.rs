//! What `/proc/PID/stat` says of processes.

use std::fs;

use rustix::process::Pid;

/// A process at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// When it was started, in ticks since the machine was: with its number, this is one process for ever.
    pub(super) started: u64,
    /// Bytes of memory that it has in use, those included that it shares.
    pub(super) resident: u64,
}

/// A process, if it is there.
pub(super) fn of(pid: Pid) -> Option<Stat> {
    parse(&fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?)
}

/// All processes.
pub(super) fn all() -> Vec<(Pid, Stat)> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let pids = names.filter_map(|name| Pid::from_raw(name.to_str()?.parse().ok()?));
    pids.filter_map(|pid| Some((pid, of(pid)?))).collect()
}

/// `pid (name) state parent group session …`, where the name may contain anything. proc(5) counts from 1, and the state is its third.
fn parse(stat: &[u8]) -> Option<Stat> {
    let after = str::from_utf8(&stat[stat.iter().rposition(|byte| *byte == b')')? + 1..]).ok()?;
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Stat {
        parent: field(4)?.parse().ok()?,
        group: field(5)?.parse().ok()?,
        session: field(6)?.parse().ok()?,
        started: field(22)?.parse().ok()?,
        resident: field(24)?.parse::<u64>().ok()? * rustix::param::page_size() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let text = b"7 (a) R 1) S 2 3 4 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 12345 999 10 18446744073709551615 1 1";
        let resident = 10 * rustix::param::page_size() as u64;
        assert_eq!(parse(text), Some(Stat { parent: 2, group: 3, session: 4, started: 12345, resident }));
        for bad in [&b""[..], b"7 (a", b"7 (a) S 2 3", b"7 (a) S x 3 4 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1 1 1"] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn this_process_is_among_all() {
        let own = rustix::process::getpid();
        let (_, stat) = all().into_iter().find(|(pid, _)| *pid == own).unwrap();
        assert_eq!(Some(stat.parent), rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get()));
        assert!(stat.resident > 100_000, "{stat:?}");
    }
}
