//! What one process of the demo does.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use fulmen::parts::kernels::as_bytes;
use fulmen::{DType, Group, ReduceOp};

use super::data::Dataset;
use super::model::{Model, PARAMETERS, Plan, shard, train_alone};
use super::report::{Event, Report};
use crate::bench::{self, Effort, Op, Spec, Subject, measure, measure_type};

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

    // What each rank has, and what it did, for all to compare. Who is who is part of it, so that an answer in the wrong place
    // is no agreement.
    let mine = Note { rank: group.rank(), all_reduces, digest: *blake3::hash(as_bytes(model.weights())).as_bytes() };
    let mut notes = vec![0u8; NOTE * size];
    group.all_gather(&mine.to_bytes(), &mut notes)?;
    let notes: Vec<Note> = notes.as_chunks().0.iter().map(Note::from_bytes).collect();
    let in_place = (0..).zip(&notes).all(|(rank, note)| note.rank == rank);
    anyhow::ensure!(in_place, "an all-gather gave the ranks' notes in another order");
    let same_on = notes.iter().filter(|note| note.digest == mine.digest).count();

    // The first rank repeats the work of all, while the others wait; then each rank compares with what it found, by itself.
    teller.progress("checking", 0, 1)?;
    let mut alone = [0; blake3::OUT_LEN];
    if first {
        alone = *blake3::hash(as_bytes(train_alone(&data, &plan, size)?.weights())).as_bytes();
    }
    let mut of_first = [mine.digest, alone].concat();
    group.broadcast(&mut of_first, 0)?;
    let (of_first, alone) = of_first.split_at(blake3::OUT_LEN);
    let same_alone = alone == mine.digest;

    teller.progress("measuring", 0, 3)?;
    let small = measure_type::<f32>(&group, &Spec::one(Op::AllReduce, SMALL, DType::F32, EFFORT), SMALL)?;
    teller.progress("measuring", 1, 3)?;
    let large = measure_type::<f32>(&group, &Spec::one(Op::AllReduce, LARGE, DType::F32, EFFORT), LARGE)?;
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
        same_bits_as_sequential: same_alone,
        all_reduces_of_ranks: notes.iter().map(|note| note.all_reduces).collect(),
        gradient_bytes: gradient,
        latency: small.row,
        bandwidth: large.row,
        memory_copy_gbps: LARGE as f64 / copying / 1e9,
    })))?;
    // A rank that fails ends the others, so the report comes first.
    group.barrier()?;
    // The report is the first rank's, and what it says of others came through operations under test. The exit code is not.
    anyhow::ensure!(same_on == size && of_first == mine.digest, "rank {}: ranks have different weights", mine.rank);
    let wrong = small.wrong_here + large.wrong_here;
    anyhow::ensure!(wrong == 0, "rank {}: all-reduces gave {wrong} wrong elements", mine.rank);
    anyhow::ensure!(same_alone, "rank {}: training in one process gives other weights", mine.rank);
    Ok(())
}

/// Bytes of a [`Note`].
const NOTE: usize = 4 + 8 + blake3::OUT_LEN;

/// What a rank says of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Note {
    rank: u32,
    /// How many all-reduces it took part in.
    all_reduces: u64,
    /// Of its weights.
    digest: [u8; blake3::OUT_LEN],
}

impl Note {
    fn to_bytes(self) -> [u8; NOTE] {
        let mut bytes = [0; NOTE];
        bytes[..4].copy_from_slice(&self.rank.to_ne_bytes());
        bytes[4..12].copy_from_slice(&self.all_reduces.to_ne_bytes());
        bytes[12..].copy_from_slice(&self.digest);
        bytes
    }

    fn from_bytes(bytes: &[u8; NOTE]) -> Note {
        let [r0, r1, r2, r3, a0, a1, a2, a3, a4, a5, a6, a7, digest @ ..] = *bytes;
        Note {
            rank: u32::from_ne_bytes([r0, r1, r2, r3]),
            all_reduces: u64::from_ne_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            digest,
        }
    }
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
    let mut copy = Copying { from: vec![1; LARGE as usize], to: vec![2; LARGE as usize] };
    let samples = measure(group, EFFORT, &mut copy)?;
    anyhow::ensure!(copy.to == copy.from, "a copy in memory differs from its original");
    Ok(samples.quantile(0.5).max(1e-12))
}

struct Copying {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Subject for Copying {
    fn call(&mut self, count: usize) -> anyhow::Result<()> {
        for _ in 0..count {
            self.to.copy_from_slice(std::hint::black_box(&self.from));
            std::hint::black_box(&mut self.to);
        }
        Ok(())
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_survive_the_way() {
        let note = Note { rank: 3, all_reduces: 1 << 40, digest: std::array::from_fn(|at| at as u8) };
        assert_eq!(Note::from_bytes(&note.to_bytes()), note);
    }
}
