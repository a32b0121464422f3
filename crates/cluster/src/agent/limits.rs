//! Holding processes to their limits of memory and processors, where systems differ.

#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod stat;
#[cfg(target_os = "linux")]
mod watch;
#[cfg(target_os = "linux")]
pub(super) use linux::{Bound, Limits};

#[cfg(not(target_os = "linux"))]
mod macos;
#[cfg(not(target_os = "linux"))]
pub(super) use macos::{Bound, Limits};

use super::api::Limit;

/// The fewest thousandths of a processor that the system can hold a process to, and more than any machine has.
const MILLIS: std::ops::RangeInclusive<u64> = 10..=10_000_000;

/// What is wrong with a limit, wherever it is asked for.
pub(super) fn check(limit: Limit) -> Result<(), String> {
    match limit {
        Limit { memory_bytes: None, cpu_millis: None } => {
            Err("a limit without anything limited: give memory_bytes, cpu_millis or both".into())
        }
        Limit { memory_bytes: Some(0), .. } => Err("a program cannot run without memory: give more bytes".into()),
        Limit { cpu_millis: Some(millis), .. } if !MILLIS.contains(&millis) => {
            let (least, most) = MILLIS.into_inner();
            Err(format!("{millis} thousandths of a processor cannot be had: give from {least} to {most}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_sensible_bounds() {
        let checked = |memory_bytes, cpu_millis| check(Limit { memory_bytes, cpu_millis }).is_ok();
        assert!(checked(Some(1), None) && checked(None, Some(10)) && checked(Some(u64::MAX), Some(2500)));
        assert!(!checked(None, None) && !checked(Some(0), Some(1000)) && !checked(None, Some(9)));
        assert!(!checked(Some(1), Some(u64::MAX)));
    }
}
