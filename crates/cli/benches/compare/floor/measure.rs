//! Checks a case, finds its fastest plan, and times it; to the definitions at the top of the benchmark.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use super::{
    ops::{Plan, Rank},
    plans::plans,
    shared::{Line, MAX_SAMPLES},
};
use crate::{
    case::{Memory, Op},
    record::Record,
};

/// A sample is a batch of calls of about this length, so that neither the clock nor the way out of the barrier counts.
const BATCH: f64 = 100e-6;
/// Batches that a plan is tried for.
const TRIALS: usize = 5;
/// No fewer samples than these, however slow the case is.
const FEWEST: usize = 7;

/// Calls of a check, back to back, so that one which runs into the next shows.
const CHECKED: u32 = 3;

/// What lies in word `i` of a rank's buffer before a check, and is worked on while times are taken: some processors move lines of
/// zeroes faster than any other, so that no contender is timed on those.
fn given(rank: usize, i: usize) -> f32 {
    ((rank + 1) * (i % 64)) as f32
}

/// What the calls of a check must leave in word `i` of the rank's output; `None` where it must leave what was there.
fn expected(op: Op, rank: usize, ranks: usize, words: usize, i: usize) -> Option<f32> {
    let sum = |i: usize| (ranks * (ranks + 1) / 2 * (i % 64)) as f32;
    let share = words / ranks;
    match op {
        Op::P2p => (rank < 2).then(|| given(1 - rank, i)),
        Op::AllReduce => Some(sum(i)),
        Op::AllGather => Some(given(i / share, i % share)),
        Op::ReduceScatter => (i < share).then(|| sum(rank * share + i)),
        Op::Broadcast => Some(given(0, i)),
        _ => None,
    }
}

impl Rank {
    /// Puts flags and counts back to the start, for the next plan.
    fn reset(&mut self) {
        self.meet();
        self.turn = 0;
        let control = self.shared.control;
        for flags in [&control.posted, &control.reduced, &control.taken] {
            flags[self.rank].0.store(0, Ordering::Relaxed);
        }
        control.lines[self.rank].iter().for_each(|line: &Line| line.sequence.store(0, Ordering::Relaxed));
        self.meet();
    }

    /// Tells all ranks a number, and gives everyone's.
    pub fn tell(&mut self, number: u64) -> Vec<u64> {
        self.meet();
        let told = &self.shared.control.told;
        told[self.rank].store(number, Ordering::Relaxed);
        self.meet();
        told[..self.ranks].iter().map(|cell| cell.load(Ordering::Relaxed)).collect()
    }

    /// The slowest rank's time.
    fn slowest(&mut self, seconds: f64) -> f64 {
        self.tell(seconds.to_bits()).into_iter().map(f64::from_bits).fold(0.0, f64::max)
    }

    /// Makes calls on known numbers and counts, over all ranks, the words that came out wrong.
    fn check(&mut self, op: Op, bytes: usize, plan: Plan) -> u64 {
        let words = bytes / 4;
        for i in 0..words {
            self.input.set(i, given(self.rank, i));
            self.output.set(i, given(self.rank, i));
        }
        self.meet();
        for _ in 0..CHECKED {
            self.call(op, bytes, plan);
        }
        self.meet();
        let (rank, ranks) = (self.rank, self.ranks);
        let want = |i| expected(op, rank, ranks, words, i).unwrap_or(given(rank, i));
        let wrong = (0..words).filter(|&i| self.output.get(i) != want(i)).count();
        self.tell(wrong as u64).into_iter().sum()
    }

    /// Seconds per call of one batch.
    fn batch(&mut self, op: Op, bytes: usize, plan: Plan, calls: usize) -> f64 {
        self.meet();
        let start = Instant::now();
        for _ in 0..calls {
            self.call(op, bytes, plan);
        }
        start.elapsed().as_secs_f64() / calls as f64
    }
}

fn calls_in_a_batch(once: f64) -> usize {
    ((BATCH / once.max(1e-9)) as usize).clamp(1, 20_000)
}

/// Measures one case; every rank calls it alike, and rank 0's result is the one that counts.
pub fn measure(rank: &mut Rank, op: Op, memory: Memory, bytes: usize, budget: Duration) -> Record {
    let (mut wrong, mut best) = (0, (f64::INFINITY, Plan::Lines, 1));
    for plan in plans(rank, op, memory, bytes) {
        rank.reset();
        wrong += rank.check(op, bytes, plan);
        let first = rank.batch(op, bytes, plan, 3);
        let calls = calls_in_a_batch(rank.slowest(first));
        let mut trials: Vec<f64> = (0..TRIALS).map(|_| rank.batch(op, bytes, plan, calls)).collect();
        trials.sort_by(f64::total_cmp);
        let median = rank.slowest(trials[TRIALS / 2]);
        if median < best.0 {
            best = (median, plan, calls_in_a_batch(median));
        }
    }
    let (once, plan, calls) = best;
    rank.reset();
    if rank.rank == 0 {
        rank.shared.control.stop_at.store(MAX_SAMPLES as u64, Ordering::Relaxed);
    }
    rank.meet();
    let wanted = ((budget.as_secs_f64() / (once * calls as f64)) as usize).clamp(FEWEST, MAX_SAMPLES);
    let start = Instant::now();
    let mut taken = 0;
    while taken < wanted && (taken as u64) < rank.shared.control.stop_at.load(Ordering::Relaxed) {
        // On a busy machine the budget ends the case; every rank still sees this before it could take one sample more.
        if rank.rank == 0 && taken + 1 >= FEWEST && start.elapsed() > 2 * budget {
            rank.shared.control.stop_at.store(taken as u64 + 1, Ordering::Relaxed);
        }
        let seconds = rank.batch(op, bytes, plan, calls);
        rank.shared.control.samples[rank.rank][taken].store(seconds.to_bits(), Ordering::Relaxed);
        taken += 1;
    }
    rank.meet();
    let per_call = if op == Op::P2p { 2.0 } else { 1.0 };
    let mut samples: Vec<f64> = (0..taken).map(|sample| slowest_sample(rank, sample) / per_call).collect();
    samples.sort_by(f64::total_cmp);
    rank.reset();
    wrong += rank.check(op, bytes, plan);
    record(rank, op, memory, bytes, &samples, wrong)
}

fn slowest_sample(rank: &Rank, sample: usize) -> f64 {
    let seconds = |cell: &AtomicU64| f64::from_bits(cell.load(Ordering::Relaxed));
    rank.shared.control.samples[..rank.ranks].iter().map(|of| seconds(&of[sample])).fold(0.0, f64::max)
}

fn record(rank: &Rank, op: Op, memory: Memory, bytes: usize, samples: &[f64], wrong: u64) -> Record {
    let ranks = rank.ranks as f64;
    let factor = match op {
        Op::AllReduce => 2.0 * (ranks - 1.0) / ranks,
        Op::AllGather | Op::ReduceScatter => (ranks - 1.0) / ranks,
        _ => 1.0,
    };
    let median = samples[samples.len() / 2];
    let bandwidth = bytes as f64 / median / 1e9;
    Record {
        op: op.name().into(),
        bytes: bytes as u64,
        ranks: rank.ranks as u32,
        dtype: "f32".into(),
        memory: memory.name().into(),
        samples: samples.len() as u64,
        min_us: samples[0] * 1e6,
        p50_us: median * 1e6,
        p99_us: samples[samples.len() * 99 / 100] * 1e6,
        algbw_gbps: bandwidth,
        busbw_gbps: bandwidth * factor,
        wrong,
    }
}
