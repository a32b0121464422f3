//! What one process of the demo does.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use fulmen::parts::kernels::as_bytes;
use fulmen::{DType, Group, ReduceOp};

use super::data::Dataset;
use super::model::{Model, PARAMETERS, Plan, shard, train_alone};
use super::report::{Event, Report};
use crate::bench::{self, Effort, Op, Spec, measure, measure_type};

/// Bytes whose all-reduce shows latency, and bandwidth.
const SMALL: u64 = 8;
const LARGE: u64 = 8 << 20;

/// How long each of the measurements takes.
const EFFORT: Effort = Effort { samples: 1000, time: Duration::from_millis(250) };

/// Trains, compares and measures as one rank of the group.
pub fn run() -> anyhow::Result<()> {
    let group = fulmen::init()?;
    bench::pin();
    let first = group.rank() == 0;
    let size = group.size() as usize;
    let data = Dataset::load()?;
    let plan = Plan::default();
    let teller = Teller { speaks: first };

    let began = Instant::now();
    let (model, all_reduces) = train(&group, &data, &plan, &teller)?;
    let training = began.elapsed();

    // What each rank has, and what it did, for all to compare.
    let mine = blake3::hash(as_bytes(model.weights()));
    let mut digests = vec![0u8; blake3::OUT_LEN * size];
    group.all_gather(mine.as_bytes(), &mut digests)?;
    let same_on = digests.chunks_exact(blake3::OUT_LEN).filter(|digest| *digest == mine.as_bytes()).count();
    let mut calls = vec![0u64; size];
    group.all_gather(&[all_reduces], &mut calls)?;

    // The first rank repeats the work of all, while the others wait.
    teller.progress("checking", 0, 1)?;
    let mut same_alone = [false];
    if first {
        let alone = train_alone(&data, &plan, size)?;
        same_alone[0] = as_bytes(alone.weights()) == as_bytes(model.weights());
    }
    group.broadcast(&mut same_alone, 0)?;

    teller.progress("measuring", 0, 3)?;
    let latency = measure_type::<f32>(&group, &Spec::one(Op::AllReduce, SMALL, DType::F32, EFFORT), SMALL)?;
    teller.progress("measuring", 1, 3)?;
    let bandwidth = measure_type::<f32>(&group, &Spec::one(Op::AllReduce, LARGE, DType::F32, EFFORT), LARGE)?;
    teller.progress("measuring", 2, 3)?;
    let copying = time_of_copies(&group)?;

    let gradient = (PARAMETERS * size_of::<f32>()) as u64;
    teller.tell(&Event::Report(Box::new(Report {
        ranks: group.size(),
        train_rows: data.train.len(),
        held_out_rows: data.held_out.len(),
        epochs: plan.epochs,
        steps: plan.steps(data.train.len()) as u64,
        batch: plan.batch,
        training_seconds: training.as_secs_f64(),
        accuracy: model.accuracy(&data.held_out),
        majority: data.held_out.majority(),
        weights: PARAMETERS,
        ranks_with_same_bits: same_on as u32,
        same_bits_as_sequential: same_alone[0],
        all_reduces_of_ranks: calls,
        gradient_bytes: gradient,
        latency,
        bandwidth,
        memory_copy_gbps: LARGE as f64 / copying / 1e9,
    })))
}

/// Data-parallel gradient descent. Gives the model and how many all-reduces this rank took part in.
fn train(group: &Group, data: &Dataset, plan: &Plan, teller: &Teller) -> anyhow::Result<(Model, u64)> {
    let (rank, size) = (group.rank() as usize, group.size() as usize);
    let mut model = Model::new(plan.seed);
    let mut gradient = group.alloc::<f32>(PARAMETERS)?;
    let mut all_reduces = 0;
    for epoch in 0..plan.epochs {
        teller.progress("training", epoch, plan.epochs)?;
        for batch in plan.batches(data.train.len()) {
            model.gradient(&data.train, shard(batch.clone(), rank, size), &mut gradient);
            group.all_reduce(&mut gradient, ReduceOp::Sum)?;
            model.step(&gradient, batch.len(), plan.learning_rate);
            all_reduces += 1;
        }
    }
    Ok((model, all_reduces))
}

/// Seconds that copies of [`LARGE`] bytes take when each rank makes one at the same time: an all-reduce of so many bytes
/// reads and writes at least as much.
fn time_of_copies(group: &Group) -> anyhow::Result<f64> {
    let from = vec![1u8; LARGE as usize];
    let mut to = vec![2u8; LARGE as usize];
    let samples = measure(group, EFFORT, 1, |calls| {
        for _ in 0..calls {
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&mut to);
        }
        Ok(())
    })?;
    anyhow::ensure!(to == from, "a copy in memory differs from its original");
    Ok(samples.quantile(0.5).max(1e-12))
}

/// The first rank's voice.
struct Teller {
    speaks: bool,
}

impl Teller {
    fn progress(&self, doing: &str, done: usize, of: usize) -> anyhow::Result<()> {
        self.tell(&Event::Progress { doing: doing.to_string(), done, of })
    }

    fn tell(&self, event: &Event) -> anyhow::Result<()> {
        if self.speaks {
            let mut line = serde_json::to_string(event)?;
            line.push('\n');
            let mut out = io::stdout().lock();
            out.write_all(line.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    }
}
