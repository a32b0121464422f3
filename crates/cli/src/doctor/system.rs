//! The system below: its version, its policies and its clock.

use std::time::{Duration, Instant, SystemTime};

use super::platform;
use super::report::Check;
use super::root::Root;

/// Clocks that a program reads without a system call. Others cost a microsecond or more each time.
const FAST_CLOCKS: [&str; 4] = ["tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page"];
/// Nobody had this program before: 1 November 2026.
const RELEASED: Duration = Duration::from_secs(1_793_491_200);

/// The operating system and its version.
pub fn version(root: &Root) -> Check {
    const NAME: &str = "system";
    let names = rustix::system::uname();
    let (release, machine) = (names.release().to_string_lossy(), names.machine().to_string_lossy());
    let release = root.read("/proc/sys/kernel/osrelease").unwrap_or_else(|| release.into_owned());
    platform::system(NAME, leading_numbers(&release), &release, &machine)
}

fn leading_numbers(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether processes may look into each other's memory: what the policy says, and whether it can be done.
pub fn single_copy(root: &Root) -> Check {
    const NAME: &str = "single copy";
    const PATH: &str = "/proc/sys/kernel/yama/ptrace_scope";
    const COSTS: &str = "programs of `fulmen run --verbs`, MPI and UCX copy twice instead of straight out of another process \
                         (process_vm_readv), and a WRITE or READ of memory that no one maps waits for its owner's process";
    let maps = "Fulmen maps the memory of ranks on its host, so its own single copies do not need more";
    if cfg!(not(target_os = "linux")) {
        return Check::not_applicable(NAME, "this system has no calls that copy between processes");
    }
    match root.read(PATH).as_deref() {
        Some(scope @ ("2" | "3")) => Check::warning(
            NAME,
            format!("ptrace_scope is {scope}: no debugger can attach to a rank that is stuck; {COSTS}; {maps}"),
            match scope {
                "3" => "set kernel.yama.ptrace_scope to 1 in /etc/sysctl.d and restart the machine: 3 holds until then",
                _ => "sysctl kernel.yama.ptrace_scope=1",
            },
        ),
        scope => match copies_from_a_child() {
            Ok(()) => {
                let policy =
                    scope.map_or("no policy (Yama) forbids it".to_string(), |scope| format!("ptrace_scope is {scope}"));
                Check::ok(NAME, format!("{policy}, and a process was copied from; {maps}"))
            }
            Err(cause) => Check::warning(
                NAME,
                format!("no process can be copied from: {cause}; {COSTS}; {maps}"),
                "let the container's seccomp profile allow process_vm_readv and process_vm_writev",
            ),
        },
    }
}

/// A descendant may be looked into under the policies 0 and 1.
fn copies_from_a_child() -> Result<(), String> {
    let child = std::process::Command::new("cat")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn();
    let mut child = child.map_err(|error| format!("no child to copy from could be started ({error})"))?;
    let found = fulmen::parts::soft::process_vm_check(child.id());
    // It ends by itself, too, at the end of its input.
    let _ = child.kill();
    let _ = child.wait();
    found
}

/// What the system offers of pages larger than usual.
pub fn huge_pages(root: &Root) -> Check {
    const NAME: &str = "huge pages";
    let number = |key| root.field("/proc/meminfo", key)?.split(' ').next()?.parse::<u64>().ok();
    let Some(size) = number("Hugepagesize") else {
        return Check::not_applicable(NAME, "this system has no huge pages");
    };
    let (all, free) = (number("HugePages_Total").unwrap_or(0), number("HugePages_Free").unwrap_or(0));
    let shared = root.chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let shared = shared.as_deref().unwrap_or("never");
    let reserved = match all {
        0 => "none are reserved".to_string(),
        _ => format!("{free} of {all} reserved pages of {size} KiB are free"),
    };
    let sentence = format!("{reserved}; shared memory gets them by itself: {shared}");
    if all > 0 && free == 0 {
        let fix = "end the program that holds them, or reserve more: sysctl vm.nr_hugepages";
        return Check::warning(NAME, format!("huge pages: {sentence}"), fix);
    }
    Check::ok(NAME, sentence)
}

/// Whether the clocks can be trusted and are cheap.
pub fn clock(root: &Root) -> Check {
    const NAME: &str = "clock";
    let before = Instant::now();
    let now = SystemTime::now();
    if now < SystemTime::UNIX_EPOCH + RELEASED {
        return Check::failure(
            NAME,
            "the time of day is before this program was made, so that records of nodes cannot be laid side by side",
            "set the time, and have it kept: `timedatectl set-ntp true`",
        );
    }
    if Instant::now() < before {
        return Check::failure(
            NAME,
            "the monotonic clock goes backwards",
            "choose another clock source for the kernel",
        );
    }
    let synchronised = match root.has("/run/systemd/timesync/synchronized") {
        true => "the time of day is kept by a time server",
        false => "whether a time server keeps the time of day is not known here",
    };
    match root.read("/sys/devices/system/clocksource/clocksource0/current_clocksource") {
        Some(source) if !FAST_CLOCKS.contains(&source.as_str()) => Check::warning(
            NAME,
            format!("the kernel reads the time from {source}, which costs a microsecond and more each time"),
            "find out with `dmesg | grep -i clocksource` why tsc was given up, and boot with tsc=reliable if it is sound",
        ),
        Some(source) => Check::ok(NAME, format!("monotonic, from {source}; {synchronised}")),
        None => Check::ok(NAME, format!("monotonic; {synchronised}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_their_front() {
        assert_eq!(leading_numbers("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(leading_numbers("25.2.0"), Some((25, 2)));
        assert_eq!(leading_numbers("strange"), None);
    }
}
