//! A clock that costs a few nanoseconds to read.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// A clock that only counts: the processor's counter where that runs at one pace on all processors, else the system's
/// monotonic clock in nanoseconds, which costs some tens of them. What a tick is worth is found by reading it and another
/// clock twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    counter: bool,
}

impl Ticks {
    /// The best clock of this machine.
    #[must_use]
    pub fn new() -> Ticks {
        Ticks { counter: counter::is_constant() }
    }

    /// Ticks since some moment before this process began. Reading it orders nothing: the processor may read the clock a little
    /// before or after what stands around it.
    #[inline]
    #[must_use]
    pub fn now(self) -> u64 {
        if self.counter { counter::read() } else { monotonic() }
    }

    /// Nanoseconds of the system's monotonic clock as they were at its last tick, which costs less than any clock of this
    /// kind where the system offers it (Linux); elsewhere, as they are.
    #[inline]
    #[must_use]
    pub fn last_tick() -> u64 {
        nanoseconds(clock_gettime(TICKED))
    }

    /// How old [`Ticks::last_tick`] is at most, in nanoseconds.
    #[must_use]
    pub fn tick() -> u64 {
        nanoseconds(rustix::time::clock_getres(TICKED))
    }

    /// What is counted, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        if self.counter { counter::NAME } else { "monotonic clock" }
    }
}

impl Default for Ticks {
    fn default() -> Ticks {
        Ticks::new()
    }
}

#[cfg(target_os = "linux")]
const TICKED: ClockId = ClockId::MonotonicCoarse;
#[cfg(not(target_os = "linux"))]
const TICKED: ClockId = ClockId::Monotonic;

fn monotonic() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

#[inline]
fn nanoseconds(time: Timespec) -> u64 {
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::arch::x86_64::{__cpuid, _rdtsc};

    pub const NAME: &str = "time-stamp counter";

    /// Whether the processor says that its counter keeps its pace whatever the clock of the cores does.
    pub fn is_constant() -> bool {
        const LAST: u32 = 0x8000_0000;
        const POWER: u32 = 0x8000_0007;
        const INVARIANT: u32 = 1 << 8;
        __cpuid(LAST).eax >= POWER && __cpuid(POWER).edx & INVARIANT != 0
    }

    #[inline]
    pub fn read() -> u64 {
        // SAFETY: every processor with 64 bits has the instruction. A system that forbids it to programs (prctl) does so
        // for programs that asked for it.
        unsafe { _rdtsc() }
    }
}

#[cfg(target_arch = "aarch64")]
mod counter {
    pub const NAME: &str = "virtual counter";

    /// The architecture promises one pace.
    pub fn is_constant() -> bool {
        true
    }

    #[inline]
    pub fn read() -> u64 {
        let ticks: u64;
        // SAFETY: the instruction reads a register that Linux and macOS let programs read, and touches nothing else.
        unsafe {
            std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags));
        }
        ticks
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod counter {
    pub const NAME: &str = "none";

    pub fn is_constant() -> bool {
        false
    }

    pub fn read() -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_last_tick_is_behind_the_clock_and_follows_it() {
        let (first, now) = (Ticks::last_tick(), monotonic());
        assert!(first <= now && Ticks::tick() >= 1);
        std::thread::sleep(Duration::from_millis(100));
        let second = Ticks::last_tick();
        assert!(second > now && second <= monotonic(), "{first} {now} {second}");
    }

    #[test]
    fn it_counts_up_at_one_pace() {
        for clock in [Ticks::new(), Ticks { counter: false }] {
            // A busy machine may take this thread off its processor between two readings, but hardly each time.
            let near = (0..10).any(|_| {
                let (began, first) = (Instant::now(), clock.now());
                std::thread::sleep(Duration::from_millis(20));
                let (middle, second) = (began.elapsed(), clock.now());
                std::thread::sleep(Duration::from_millis(100));
                let (end, third) = (began.elapsed(), clock.now());
                assert!(first < second && second < third, "{clock:?}");
                let pace = |ticks: u64, time: Duration| ticks as f64 / time.as_secs_f64();
                (0.2..5.0).contains(&(pace(second - first, middle) / pace(third - first, end)))
            });
            assert!(near, "{clock:?}");
        }
    }
}
