//! What a rank of a benchmark does. The first rank writes one line of JSON for each size.

use std::io::{self, Write};

use fulmen::{Complex64, DType, Group, ReduceOp, bf16, f16};

use super::cases::{Case, case};
use super::machine;
use super::measure::{Effort, measure};
use super::operation::{Op, Row};
use super::value::Value;
use super::{Spec, machine::processors};

/// Rounds of checked calls before a size is measured, as long as they are short.
const ROUNDS: u64 = 8;
/// Operations of more bytes are checked in fewer rounds.
const SHORT: u64 = 64 << 10;

/// Measures all sizes as one rank of the group.
pub fn run(spec: &Spec) -> anyhow::Result<()> {
    let group = fulmen::init()?;
    pin();
    let ranks = group.size();
    for bytes in spec.sizes(ranks) {
        let row = measure_size(&group, spec, bytes)?;
        // When nobody reads any more, all ranks stop together.
        let stop = group.rank() == 0 && tell(&row)? == Told::NobodyListens;
        let mut stop = [u8::from(stop)];
        group.broadcast(&mut stop, 0)?;
        if stop[0] != 0 {
            break;
        }
    }
    Ok(())
}

/// Gives this rank a processor of its own if there are enough. To be called by the thread that makes the calls, when the
/// group is there: how a rank waits depends on how many processors it is seen to have, and its other threads stay free.
pub fn pin() {
    let variable = |name| std::env::var(name).ok()?.parse::<usize>().ok();
    let place = variable("FULMEN_LOCAL_RANK").zip(variable("FULMEN_LOCAL_SIZE"));
    let processors = processors();
    if let Some((rank, size)) = place
        && size <= processors.len()
        && rank < size
        && let Err(error) = machine::pin(processors[rank])
    {
        tracing::warn!(%error, processor = processors[rank], "not bound to a processor");
    }
}

#[derive(PartialEq, Eq)]
enum Told {
    Done,
    NobodyListens,
}

fn tell(row: &Row) -> anyhow::Result<Told> {
    let mut line = serde_json::to_string(row)?;
    line.push('\n');
    let mut out = io::stdout().lock();
    match out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(Told::Done),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Told::NobodyListens),
        Err(error) => Err(error.into()),
    }
}

fn measure_size(group: &Group, spec: &Spec, bytes: u64) -> anyhow::Result<Row> {
    let of = match spec.dtype {
        DType::Bool => measure_type::<bool>,
        DType::I8 => measure_type::<i8>,
        DType::I16 => measure_type::<i16>,
        DType::I32 => measure_type::<i32>,
        DType::I64 => measure_type::<i64>,
        DType::U8 => measure_type::<u8>,
        DType::U16 => measure_type::<u16>,
        DType::U32 => measure_type::<u32>,
        DType::U64 => measure_type::<u64>,
        DType::F16 => measure_type::<f16>,
        DType::BF16 => measure_type::<bf16>,
        DType::F32 => measure_type::<f32>,
        DType::F64 => measure_type::<f64>,
        DType::Complex64 => measure_type::<Complex64>,
    };
    of(group, spec, bytes)
}

/// Measures one size and checks results before, during and after.
pub fn measure_type<T: Value>(group: &Group, spec: &Spec, bytes: u64) -> anyhow::Result<Row> {
    let mut case = case::<T>(group, spec.op, spec.memory, bytes as usize)?;
    let mut wrong = 0;
    let mut check = |case: &mut dyn Case, round| -> anyhow::Result<()> {
        case.set(round);
        case.call(1)?;
        wrong += case.wrong(round);
        Ok(())
    };
    let rounds = if bytes <= SHORT { ROUNDS } else { 1 };
    for round in 0..rounds {
        check(&mut *case, round)?;
    }
    case.set(rounds);
    let effort = Effort { samples: spec.samples, time: spec.time };
    let fewest = case.fewest_calls();
    let samples = measure(group, effort, fewest, |calls| case.call(calls))?;
    let during = case.wrong(rounds);
    check(&mut *case, rounds + 1)?;
    let mut wrong = [wrong + during];
    group.all_reduce(&mut wrong, ReduceOp::Sum)?;

    let micros = |seconds: f64| round(seconds * 1e6 / case.parts_of_a_call());
    let p50 = samples.quantile(0.5) / case.parts_of_a_call();
    let bandwidth = if spec.op == Op::Barrier { 0.0 } else { bytes as f64 / p50.max(1e-12) / 1e9 };
    Ok(Row {
        op: spec.op.name().to_string(),
        bytes,
        ranks: group.size(),
        dtype: spec.dtype.name().to_string(),
        memory: spec.memory.name().to_string(),
        samples: samples.len(),
        min_us: micros(samples.min()),
        p50_us: micros(samples.quantile(0.5)),
        p99_us: micros(samples.quantile(0.99)),
        algbw: round(bandwidth),
        busbw: round(bandwidth * spec.op.bus_factor(group.size())),
        wrong: wrong[0],
    })
}

/// To four decimals: more say nothing.
fn round(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}
