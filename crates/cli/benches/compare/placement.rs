//! Where the processors sit: how long a flag takes from one to the other.

use std::{
    fmt,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Instant,
};

use crate::platform;

/// Flags between processors that share a cache take 30 to 60 ns, others 120 ns and more.
const FAR_FROM: f64 = 100.0;
const BATCHES: usize = 200;
const ROUND_TRIPS: u32 = 200;

/// One-way latency of a flag between the first two processors, in nanoseconds; nothing where there is only one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Placement {
    Alone,
    Near(f64),
    Far(f64),
}

impl Placement {
    /// Whether two probes tell the same kind of placement.
    pub fn like(self, other: Placement) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    /// `near`, `far` or `one processor`.
    pub fn name(self) -> &'static str {
        match self {
            Placement::Alone => "one processor",
            Placement::Near(_) => "near",
            Placement::Far(_) => "far",
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Alone => f.write_str("one processor"),
            Placement::Near(ns) | Placement::Far(ns) => write!(f, "{} ({ns:.0} ns)", self.name()),
        }
    }
}

#[repr(align(128))]
struct Flag(AtomicU32);

/// Sends a flag to and fro between two threads on the first two of `cpus`. The best of many short batches counts, which a busy
/// machine disturbs least.
pub fn probe(cpus: &[usize]) -> anyhow::Result<Placement> {
    let &[here, there, ..] = cpus else { return Ok(Placement::Alone) };
    let flags = [Flag(AtomicU32::new(0)), Flag(AtomicU32::new(0))];
    let total = BATCHES as u32 * ROUND_TRIPS;
    let best = std::thread::scope(|scope| -> anyhow::Result<f64> {
        let echo = scope.spawn(|| -> std::io::Result<()> {
            let pinned = platform::pin(&[there]);
            for k in 1..=total {
                wait(&flags[0], k);
                flags[1].0.store(k, Ordering::Release);
            }
            pinned
        });
        // A thread of its own, so that the caller's binding stays as it is.
        let ask = scope.spawn(|| -> std::io::Result<f64> {
            let pinned = platform::pin(&[here]);
            let mut best = f64::INFINITY;
            for batch in 0..BATCHES as u32 {
                let start = Instant::now();
                for k in batch * ROUND_TRIPS + 1..=(batch + 1) * ROUND_TRIPS {
                    flags[0].0.store(k, Ordering::Release);
                    wait(&flags[1], k);
                }
                best = best.min(start.elapsed().as_secs_f64() / f64::from(ROUND_TRIPS));
            }
            pinned.map(|()| best)
        });
        echo.join().expect("the echo ends")?;
        Ok(ask.join().expect("the asking thread ends")?)
    })?;
    let ns = best / 2.0 * 1e9;
    Ok(if ns < FAR_FROM { Placement::Near(ns) } else { Placement::Far(ns) })
}

/// The other thread answers always: it lives in this process and runs to its end, so the wait is as long as that takes.
fn wait(flag: &Flag, want: u32) {
    let mut spins = 0u32;
    while flag.0.load(Ordering::Acquire) < want {
        spins += 1;
        if spins.is_multiple_of(1 << 14) { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
}

/// The processor's name and how many there are.
pub fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim()));
    let virtual_machine = if info.contains(" hypervisor") { ", a virtual machine" } else { "" };
    let count = std::thread::available_parallelism().map_or(1, |n| n.get());
    format!(
        "{}, {count} processors{virtual_machine}, {}",
        model.unwrap_or(std::env::consts::ARCH),
        std::env::consts::OS
    )
}

/// The date, as YYYY-MM-DD.
pub fn today() -> String {
    let output = Command::new("date").args(["-u", "+%Y-%m-%d"]).output();
    output.map_or("unknown".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_string())
}
