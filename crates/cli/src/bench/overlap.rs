//! How much of a call a program has for itself while a handle makes it.

use std::hint::black_box;
use std::time::{Duration, Instant};

use fulmen::{CollectiveError, Group, ReduceOp};

/// Fewest rounds, and most.
const FEWEST: usize = 5;
const MOST: usize = 200;

/// Multiplications and additions between two looks at the clock when their rate is found out.
const PROBE: u64 = 1 << 18;

/// What a program computes meanwhile: in registers, so that it takes a processor and nothing else.
fn compute(steps: u64) {
    let mut value = black_box(1.0_f64);
    for _ in 0..steps {
        value = value * 0.999_999 + 1e-9;
    }
    black_box(value);
}

/// The share of a call's time, from 0 to 1, that is gained if as long is computed between its start and the wait for its end. Each round has
/// the call alone, the computation alone and both, each begun by all ranks together; the longest rank counts, and the median of the
/// rounds.
pub fn hidden<D: Send + 'static>(
    group: &Group,
    time: Duration,
    data: D,
    call: fn(&Group, &mut D) -> Result<(), CollectiveError>,
) -> anyhow::Result<(D, f64)> {
    let mut held = Some(data);
    let mut once = |calls: bool, steps: u64| -> anyhow::Result<f64> {
        group.barrier()?;
        let begun = Instant::now();
        let under_way = if calls { held.take().map(|data| group.start(data, call)) } else { None };
        compute(steps);
        if let Some(handle) = under_way {
            let (data, outcome) = handle.wait();
            held = Some(data);
            outcome?;
        }
        let mut longest = [begun.elapsed().as_secs_f64()];
        group.all_reduce(&mut longest, ReduceOp::Max)?;
        Ok(longest[0])
    };
    once(false, PROBE)?;
    let rate = PROBE as f64 / once(false, PROBE)?;
    once(true, 0)?;
    let steps = (once(true, 0)? * rate) as u64;
    let (mut shares, mut spent) = (Vec::new(), 0.0);
    while shares.len() < FEWEST || shares.len() < MOST && spent < time.as_secs_f64() {
        let (alone, computed, both) = (once(true, 0)?, once(false, steps)?, once(true, steps)?);
        shares.push(((alone + computed - both) / alone).clamp(0.0, 1.0));
        // The same on all ranks.
        spent += alone + computed + both;
    }
    shares.sort_by(f64::total_cmp);
    let data = held.expect("every handle has given it back");
    Ok((data, shares[shares.len() / 2]))
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use super::*;

    /// Every call is another thread's, its data comes back, and a share is one, however busy the machine.
    #[test]
    fn calls_are_made_beside_the_program() {
        let group = fulmen::init().expect("a group of one");
        let notes: fn(&Group, &mut Vec<ThreadId>) -> Result<(), CollectiveError> = |group, threads| {
            threads.push(thread::current().id());
            group.barrier()
        };
        let (threads, share) = hidden(&group, Duration::ZERO, Vec::new(), notes).unwrap();
        assert_eq!(threads.len(), 2 + 2 * FEWEST);
        assert!(!threads.contains(&thread::current().id()));
        assert!((0.0..=1.0).contains(&share), "{share}");
    }
}
