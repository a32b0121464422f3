//! The measuring loop.
//!
//! Calls are timed in batches, long enough that reading the clock does not count; nothing is allocated in them. All ranks
//! begin a batch together, after a barrier. A sample is the time of one call in one batch: the mean on each rank, and of
//! those the longest.

use std::time::{Duration, Instant};

use fulmen::{Group, ReduceOp};

/// The shortest batch: a reading of the clock takes tens of nanoseconds.
const BATCH: Duration = Duration::from_micros(50);
/// Most calls of a batch.
const MOST_CALLS: usize = 1 << 14;
/// Fewest samples, if so many were allowed.
const FEWEST_SAMPLES: usize = 5;
/// Calls before anything counts, fewer of those that take long.
const WARM_UP: usize = 8;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Most samples.
    pub samples: usize,
    /// About how long to measure; a few samples are taken in any case.
    pub time: Duration,
}

/// Sorted seconds a call; the same on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// How many there are: at least one.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The shortest.
    pub fn min(&self) -> f64 {
        self.0[0]
    }

    /// The smallest that is not exceeded by `share` (0 to 1) of all.
    pub fn quantile(&self, share: f64) -> f64 {
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0[rank.clamp(1, self.0.len()) - 1]
    }
}

/// What is timed.
pub trait Subject {
    /// Fewest calls of a batch.
    fn fewest_calls(&self) -> usize {
        1
    }

    /// Makes ready for a batch. Takes no part in its time.
    fn prepare(&mut self) {}

    /// Makes `count` calls, and nothing else.
    fn call(&mut self, count: usize) -> anyhow::Result<()>;

    /// Looks at what came out of a batch. Takes no part in its time.
    fn inspect(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Times calls on all ranks.
pub fn measure(group: &Group, effort: Effort, subject: &mut impl Subject) -> anyhow::Result<Samples> {
    let fewest = subject.fewest_calls();
    let mut time = |batch: usize| -> anyhow::Result<f64> {
        subject.prepare();
        group.barrier()?;
        let start = Instant::now();
        subject.call(batch)?;
        let time = start.elapsed();
        // Where ranks share processors, whoever is ready first must not keep the others from their last call.
        group.barrier()?;
        subject.inspect()?;
        Ok(time.as_secs_f64())
    };
    // All ranks agree on each step of the calibration, so that they make the same calls.
    let mut longest = |batch: usize| -> anyhow::Result<f64> {
        let mut length = [time(batch)?];
        group.all_reduce(&mut length, ReduceOp::Max)?;
        Ok(length[0].max(1e-9))
    };
    let mut batch = fewest.max(1);
    let first = longest(batch)? / batch as f64;
    let warm_up = WARM_UP.min(effort.samples).min((effort.time.as_secs_f64() / first) as usize);
    if warm_up > batch {
        longest(warm_up - batch)?;
    }
    let length = loop {
        let length = longest(batch)?;
        if length >= BATCH.as_secs_f64() || batch >= MOST_CALLS {
            break length;
        }
        let wanted = batch as f64 * 1.25 * BATCH.as_secs_f64() / length;
        batch = (wanted as usize).clamp(batch + 1, (batch * 16).min(MOST_CALLS).max(batch + 1));
    };
    let most = effort.samples.max(1);
    let count = ((effort.time.as_secs_f64() / length) as usize).clamp(FEWEST_SAMPLES.min(most), most);
    let mut samples = vec![0.0; count];
    for sample in &mut samples {
        *sample = time(batch)? / batch as f64;
    }
    group.all_reduce(&mut samples, ReduceOp::Max)?;
    samples.sort_by(f64::total_cmp);
    Ok(Samples(samples))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let samples = Samples((1..=200).map(f64::from).collect());
        assert_eq!((samples.min(), samples.quantile(0.5), samples.quantile(0.99)), (1.0, 100.0, 198.0));
        let one = Samples(vec![7.0]);
        assert_eq!((one.len(), one.min(), one.quantile(0.0), one.quantile(1.0)), (1, 7.0, 7.0, 7.0));
    }
}
