//! What happens when the system gives no more: each case runs in a process of its own.
#![cfg(target_os = "linux")]

use std::os::fd::AsRawFd;
use std::process::Command;

use fulmen_memory::kinds::{KindError, MemoryKind};
use fulmen_memory::{FileAccess, Pool, Region, RegionError};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};

const ROLE: &str = "FULMEN_MEMORY_TEST_ROLE";

/// Runs the test `name` once more, alone in a process, where `body` is what it does.
fn alone(name: &str, body: impl FnOnce()) {
    if std::env::var_os(ROLE).is_some() {
        set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
        return body();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, name)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{}: {text}", output.status);
}

fn limit(resource: Resource, current: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(current), maximum }).unwrap();
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mapped_lines() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("memfd:fulmen")).count()
}

#[test]
fn no_address_space() {
    alone("no_address_space", || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let used = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let used: u64 = used.trim().trim_end_matches(" kB").parse().unwrap();
        let before = open_descriptors();
        limit(Resource::As, used * 1024 + (64 << 20));
        let error = Region::alloc(256 << 20).unwrap_err();
        assert!(matches!(error, RegionError::NoMemory { len, .. } if len == 256 << 20), "{error}");
        assert!(error.to_string().contains("`ulimit -v`"), "{error}");
        assert_eq!(open_descriptors(), before, "the descriptor of a region that could not be mapped is closed");
        Region::alloc(1 << 20).unwrap();
    });
}

#[test]
fn no_descriptors() {
    alone("no_descriptors", || {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1).unwrap();
        let allowed = getrlimit(Resource::Nofile).current.unwrap();
        // A new descriptor is the lowest that is free: all below this one are taken.
        limit(Resource::Nofile, file.as_raw_fd() as u64 + 1);
        let error = Region::alloc(4096).unwrap_err();
        assert!(matches!(error, RegionError::NoDescriptor { len: 4096, .. }), "{error}");
        assert!(error.to_string().contains("`ulimit -n`"), "{error}");
        let error = Region::map_file(&file, FileAccess::ReadOnly).unwrap_err();
        assert!(matches!(error, RegionError::NoDescriptor { .. }), "{error}");
        limit(Resource::Nofile, allowed);
        Region::alloc(4096).unwrap();
    });
}

#[test]
fn no_large_files() {
    alone("no_large_files", || {
        limit(Resource::Fsize, 1 << 20);
        // The system would end the process here.
        let error = Region::alloc((1 << 20) + 1).unwrap_err();
        assert!(matches!(error, RegionError::FileSizeLimit { .. }), "{error}");
        assert!(error.to_string().contains("`ulimit -f`"), "{error}");
        Region::alloc(1 << 20).unwrap();
        for kind in [MemoryKind::Memfd, MemoryKind::File, MemoryKind::ShmOpen] {
            let error = kind.allocate((1 << 20) + 1).unwrap_err();
            assert!(matches!(error, KindError::Region(RegionError::FileSizeLimit { .. })), "{error}");
            kind.allocate(1 << 20).unwrap();
        }
    });
}

#[test]
fn everything_is_given_back() {
    alone("everything_is_given_back", || {
        let before = (open_descriptors(), mapped_lines());
        assert_eq!(before.1, 0);
        for round in 0..1000 {
            let region = Region::alloc(4096 + round).unwrap();
            assert_eq!(mapped_lines(), 1);
            let received = Region::from_fd(region.fd().unwrap().try_clone_to_owned().unwrap(), 4096).unwrap();
            let pool = Pool::new(&region).unwrap();
            let exposed = pool.take(64).unwrap().into_exposed();
            drop((region, received));
            exposed.slice(0..8).into_block().unwrap_err();
        }
        assert_eq!((open_descriptors(), mapped_lines()), before);
    });
}

/// Whether the process maps something at the address.
fn is_mapped(addr: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let bound = |text| usize::from_str_radix(text, 16).unwrap();
        (bound(start)..bound(end)).contains(&addr)
    })
}

#[test]
fn every_kind_is_given_back() {
    alone("every_kind_is_given_back", || {
        for &kind in MemoryKind::all() {
            let before = open_descriptors();
            for round in 0..4 {
                // So long that the C library maps it, too.
                let region = match kind.allocate((64 << 20) + round) {
                    Ok(region) => region,
                    Err(error @ (KindError::NoHugePages { .. } | KindError::NoSpace { .. })) => {
                        eprintln!("SKIPPED: {}, because {error}", kind.name());
                        break;
                    }
                    Err(error) => panic!("{}: {error}", kind.name()),
                };
                let (addr, len) = (region.addr(), region.len());
                assert!(is_mapped(addr) && is_mapped(addr + len - 1), "{}", kind.name());
                drop(region);
                assert!(!is_mapped(addr) && !is_mapped(addr + len - 1), "{}", kind.name());
            }
            assert_eq!(open_descriptors(), before, "{}", kind.name());
        }
        let own = format!("fulmen.{}.", std::process::id());
        for place in ["/var/tmp", "/tmp", "/dev/shm"] {
            let Ok(entries) = std::fs::read_dir(place) else { continue };
            for entry in entries.flatten() {
                assert!(
                    !entry.file_name().to_string_lossy().starts_with(&own),
                    "{place} keeps {:?}",
                    entry.file_name()
                );
            }
        }
    });
}
