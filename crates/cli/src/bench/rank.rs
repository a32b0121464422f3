//! What a rank of a benchmark does. The first rank writes one line of JSON for each size.

use std::io::{self, Write};

use fulmen::{Complex64, DType, Group, Options, ReduceOp, bf16, f16};

use super::Spec;
use super::cases::{Case, case};
use super::measure::{Effort, Subject, measure};
use super::operation::{Op, Row};
use super::value::Value;
use crate::{machine, run};

/// Rounds of checked calls before a size is measured, as long as they are short.
const ROUNDS: u64 = 8;
/// Operations of more bytes are checked in fewer rounds.
const SHORT: u64 = 64 << 10;

/// Measures all sizes as one rank of the group.
///
/// `apart`: those of this host talk as between hosts.
pub fn run(spec: &Spec, apart: bool) -> anyhow::Result<()> {
    let options = Options::from_env()?;
    let group = if apart { options.apart() } else { options }.init()?.with_algorithm(spec.algorithm);
    pin();
    let ranks = group.size();
    let mut wrong = 0;
    for bytes in spec.sizes(ranks) {
        let Measured { row, wrong_here } = measure_size(&group, spec, bytes)?;
        wrong += wrong_here;
        // When nobody reads any more, all ranks stop together.
        let stop = group.rank() == 0 && tell(&row)? == Told::NobodyListens;
        let mut stop = [u8::from(stop)];
        group.broadcast(&mut stop, 0)?;
        if stop[0] != 0 {
            break;
        }
    }
    // The first rank tells the sum, which is itself a result of an all-reduce.
    anyhow::ensure!(wrong == 0, "rank {}: {wrong} elements of results were wrong here", group.rank());
    Ok(())
}

/// Binds this rank to a processor, of its own if there are enough. To be called by the thread that makes the calls, when the group is
/// there: its other threads stay free.
pub fn pin() {
    let Some((rank, ranks)) = run::local_place() else { return };
    let processors = machine::processors();
    if !processors.is_empty() && rank < ranks {
        let processor = processors[rank % processors.len()];
        if let Err(error) = machine::bind(&[processor]) {
            tracing::warn!(%error, processor, "not bound to a processor");
        }
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

fn measure_size(group: &Group, spec: &Spec, bytes: u64) -> anyhow::Result<Measured> {
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

/// What one rank knows of a size.
pub struct Measured {
    /// What all ranks found.
    pub row: Row,
    /// The elements that are wrong on this rank. It is known without any of the operations under test.
    pub wrong_here: u64,
}

/// A case under check: every batch has a round's data of its own, and poisoned outputs before it, as long as it is `short`.
/// Otherwise those of the last round stay.
struct Checked<'a> {
    case: &'a mut dyn Case,
    short: bool,
    round: u64,
    wrong: u64,
}

impl Checked<'_> {
    /// One call with fresh data.
    fn once(&mut self) -> anyhow::Result<()> {
        self.refresh();
        self.case.call(1)?;
        self.compare()
    }

    fn refresh(&mut self) {
        self.round += 1;
        self.case.set(self.round);
    }

    fn compare(&mut self) -> anyhow::Result<()> {
        self.wrong += self.case.wrong(self.round)?;
        Ok(())
    }
}

impl Subject for Checked<'_> {
    fn fewest_calls(&self) -> usize {
        self.case.fewest_calls()
    }

    fn prepare(&mut self) {
        if self.short {
            self.refresh();
        }
    }

    fn call(&mut self, count: usize) -> anyhow::Result<()> {
        self.case.call(count)
    }

    fn inspect(&mut self) -> anyhow::Result<()> {
        if self.short { self.compare() } else { Ok(()) }
    }
}

/// Measures one size and checks results before, during and after.
pub fn measure_type<T: Value>(group: &Group, spec: &Spec, bytes: u64) -> anyhow::Result<Measured> {
    let mut case = case::<T>(group, spec.op, spec.memory, bytes as usize)?;
    measure_case(group, spec, bytes, &mut *case)
}

fn measure_case(group: &Group, spec: &Spec, bytes: u64, case: &mut dyn Case) -> anyhow::Result<Measured> {
    // An algorithm is asked for in the case alone.
    let group = &group.with_algorithm(None);
    let parts_of_a_call = case.parts_of_a_call();
    let mut checked = Checked { case, short: bytes <= SHORT, round: 0, wrong: 0 };
    for _ in 0..if checked.short { ROUNDS } else { 1 } {
        checked.once()?;
    }
    checked.refresh();
    let samples = measure(group, Effort { samples: spec.samples, time: spec.time }, &mut checked)?;
    let hidden = if spec.overlap { checked.case.hidden(spec.time)? } else { None };
    checked.compare()?;
    checked.once()?;
    let target_time = checked.case.target_time()?;
    let wrong_here = checked.wrong;
    let mut wrong = [wrong_here];
    group.all_reduce(&mut wrong, ReduceOp::Sum)?;

    let micros = |seconds: f64| round(seconds * 1e6 / parts_of_a_call);
    let p50 = samples.quantile(0.5) / parts_of_a_call;
    let bandwidth = if spec.op == Op::Barrier { 0.0 } else { bytes as f64 / p50.max(1e-12) / 1e9 };
    let row = Row {
        op: spec.op.name().to_string(),
        bytes,
        ranks: group.size(),
        dtype: if spec.op.is_on_words() { DType::U64 } else { spec.dtype }.name().to_string(),
        memory: spec.memory.name().to_string(),
        samples: samples.len(),
        min_us: micros(samples.min()),
        p50_us: micros(samples.quantile(0.5)),
        p99_us: micros(samples.quantile(0.99)),
        algbw: round(bandwidth),
        busbw: round(bandwidth * spec.op.bus_factor(group.size())),
        wrong: wrong[0],
        overlap: hidden.map(round),
        target_cpu_us: target_time.map(|seconds| round(seconds * 1e6)),
    };
    Ok(Measured { row, wrong_here })
}

/// To four decimals: more say nothing.
fn round(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::operation::Kind;
    use super::*;

    /// Does its work only until some call.
    struct Lazy<'a> {
        inner: Box<dyn Case + 'a>,
        calls_left: usize,
    }

    impl Case for Lazy<'_> {
        fn set(&mut self, round: u64) {
            self.inner.set(round);
        }

        fn call(&mut self, count: usize) -> anyhow::Result<()> {
            let count = count.min(self.calls_left);
            self.calls_left -= count;
            if count == 0 { Ok(()) } else { self.inner.call(count) }
        }

        fn wrong(&self, round: u64) -> anyhow::Result<u64> {
            self.inner.wrong(round)
        }
    }

    #[test]
    fn work_that_is_not_done_is_wrong_work() {
        let group = fulmen::init().expect("a group of one");
        let effort = Effort { samples: 5, time: Duration::from_millis(1) };
        for op in [
            Op::AllReduce,
            Op::AllGather,
            Op::ReduceScatter,
            Op::Reduce,
            Op::Gather,
            Op::Scatter,
            Op::AllToAll,
            Op::Scan,
        ] {
            for (bytes, calls_left, right) in
                [(512, usize::MAX, true), (512, 0, false), (512, ROUNDS as usize, false), (2 * SHORT, 1, false)]
            {
                let spec = Spec::one(op, bytes, DType::F32, effort);
                let inner = case::<f32>(&group, op, Kind::Registered, bytes as usize).unwrap();
                let measured = measure_case(&group, &spec, bytes, &mut Lazy { inner, calls_left }).unwrap();
                assert_eq!(measured.row.wrong, measured.wrong_here);
                assert_eq!(measured.wrong_here == 0, right, "{op:?} {bytes} {calls_left}");
            }
        }
    }
}
