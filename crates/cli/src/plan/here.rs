//! How fast ranks of this machine reach one another, measured; and what their calls take.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use fulmen::parts::collectives::plan::{self, Links, Mapped, Operation, Shape};
use fulmen::parts::kernels::{ReduceOp, reduce_into};
use fulmen::{Algorithm, DType, TCP};

use super::fit::{ENDS, FITTED, fit};
use super::text::size;
use crate::bench::{Effort, Op, Row, Spec};
use crate::machine;
use crate::run::{self, Job, Output, Profile};

/// How ranks of this machine talk.
pub struct Over {
    pub device: Option<String>,
    pub profile: Option<Profile>,
    pub verbose: u8,
}

/// A call that was measured with the figures, by which it is seen later whether the machine is still as fast: others use it as well, and a
/// hypervisor moves its processors.
pub struct Standard {
    op: Op,
    ranks: u32,
    bytes: u64,
    dtype: DType,
    algorithm: Option<Algorithm>,
    took_us: f64,
}

impl Standard {
    /// How long it takes now, as a multiple of what it took.
    pub fn drift(&self, over: &Over) -> anyhow::Result<f64> {
        let Standard { op, ranks, bytes, dtype, algorithm, took_us } = *self;
        Ok(over.time(&Spec::one(op, bytes, dtype, EFFORT).by(algorithm), ranks, None)? / took_us)
    }

    pub fn name(&self) -> String {
        let by = self.algorithm.map(|algorithm| format!(" by {}", algorithm.name())).unwrap_or_default();
        format!("{} of {}{by}", self.op.name(), size(self.bytes))
    }
}

/// Whether the machine is another one than the one that was measured: a quarter slower or faster.
pub fn is_drift(drift: f64) -> bool {
    !(0.8..1.25).contains(&drift)
}

/// How ranks go about a call.
pub enum How<'a> {
    /// As they choose by a link file.
    Chosen(&'a Path),
    By(Algorithm),
}

/// How much is measured of each call that is by itself.
const EFFORT: Effort = Effort { samples: 2000, time: Duration::from_millis(300) };

/// Calls in mapped memory are measured from the shortest to the longest, twice as long each, and so several times: what else the machine has
/// to do changes from one moment to the next. The middle one of what a length took is told.
const SHORTEST: u64 = 8;
pub const LONGEST: u64 = 64 << 20;
const SWEEPS: usize = 3;
const OF_A_SWEEP: Effort = Effort { samples: 300, time: Duration::from_millis(150) };

/// The longest call of those by which it is seen whether times hold: longer ones hang on what else is in the caches.
const STANDARD: usize = 1 << 20;

/// Figures of messages that do not belong together, since the machine changed while they were measured, are measured once more; so often in all.
const ATTEMPTS: usize = 3;

/// The all-reduce by which it is seen whether messages still take as long; one of those to which figures are fitted.
const OF_MESSAGES: u64 = 4 << 20;

/// Messages of which the bytes count.
const LONG: u64 = 256 << 10;

/// Bytes of which copies and reductions are measured: messages are about as long.
const COPIED: usize = 256 << 10;

impl Over {
    fn is_mapped(&self) -> bool {
        self.device.is_none() && self.profile.is_none()
    }

    pub fn name(&self) -> String {
        match (&self.device, self.profile) {
            (Some(device), _) => device.clone(),
            (None, Some(profile)) => format!("software {} device", profile.name()),
            (None, None) => "shared memory".to_owned(),
        }
    }

    /// What one operation of ranks takes: the median of many, in microseconds.
    pub fn measure(&self, op: Op, ranks: u32, bytes: u64, dtype: DType, how: &How<'_>) -> anyhow::Result<f64> {
        let (links, algorithm) = match how {
            How::Chosen(links) => (Some(links), None),
            How::By(algorithm) => (None, Some(*algorithm)),
        };
        let env = links.map(|links| ("FULMEN_LINKS", links.to_string_lossy().into_owned()));
        self.time(&Spec::one(op, bytes, dtype, EFFORT).by(algorithm), ranks, env)
    }

    /// Has ranks measure one call, and says what it took.
    fn time(&self, spec: &Spec, ranks: u32, env: Option<(&'static str, String)>) -> anyhow::Result<f64> {
        match self.run(spec, ranks, env)?.as_slice() {
            [row] => Ok(row.p50_us),
            rows => {
                anyhow::bail!("the ranks that measure {} told {} times instead of one", spec.op().name(), rows.len())
            }
        }
    }

    /// Has ranks measure this, and say what it took.
    fn run(&self, spec: &Spec, ranks: u32, env: Option<(&'static str, String)>) -> anyhow::Result<Vec<Row>> {
        let mut words = spec.args();
        words.extend((self.device.as_deref() == Some(TCP)).then(|| "--apart".into()));
        let rows = Arc::new(Mutex::new(Vec::<Row>::new()));
        let told = rows.clone();
        let read = move |bytes: &[u8]| {
            for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let row = serde_json::from_slice(line).map_err(io::Error::other)?;
                told.lock().unwrap_or_else(PoisonError::into_inner).push(row);
            }
            Ok(())
        };
        let mut job = Job::own(ranks, self.profile, self.verbose, words, Output::Read(Box::new(read)))?;
        job.env.push(("FULMEN_POOL", (spec.buffers(ranks) * 5 / 4 + (64 << 20)).to_string()));
        job.env.extend(env);
        job.env.extend(self.device.clone().map(run::over));
        let code = job.run()?;
        let rows = std::mem::take(&mut *rows.lock().unwrap_or_else(PoisonError::into_inner));
        match code {
            0 if rows.iter().all(|row| row.wrong == 0) => Ok(rows),
            0 => anyhow::bail!("{} gave wrong results", spec.op().name()),
            _ => anyhow::bail!("the ranks that measure {} ended with code {code}", spec.op().name()),
        }
    }

    /// Measures calls in mapped memory up to so many bytes: bytes, and microseconds.
    fn sweeps(&self, op: Op, ranks: u32, dtype: DType, most: u64) -> anyhow::Result<Vec<(usize, f64)>> {
        let spec = Spec::range(op, SHORTEST, most, dtype, OF_A_SWEEP);
        let mut times: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for _ in 0..SWEEPS {
            for row in self.run(&spec, ranks, None)? {
                times.entry(row.bytes as usize).or_default().push(row.p50_us);
            }
        }
        Ok(times.into_iter().map(|(bytes, times)| (bytes, median(times))).collect())
    }

    /// Measures what the planner wants to know, for so many ranks. Of memory that they map, this operation and others on this type are measured,
    /// up to vectors of so many bytes, if that is no more than is measured at all. With it comes a call that tells later whether that still
    /// holds: there, the operation itself.
    pub fn links(
        &self,
        ranks: u32,
        operation: Operation,
        others: &[Operation],
        dtype: DType,
        most: u64,
    ) -> anyhow::Result<(Links, Standard)> {
        let ranks = ranks.max(2);
        let processors = machine::processors().len().max(1);
        let mut links = Links {
            name: format!("this machine, over {}", self.name()),
            source: String::new(),
            shape: Shape::Host,
            most_hosts: None,
            ranks_per_host: 1,
            processors,
            latency_us: 0.0,
            bandwidth: None,
            message_us: 0.0,
            byte_ns: 0.0,
            offered_from: None,
            offered_byte_ns: 0.0,
            hop_us: 0.0,
            wake_us: plan::WAKE,
            copy_ns: copy_ns(),
            staging: 1.0,
            reduce_ns: reduce_ns(),
            uncached_ns: Vec::new(),
            inside: None,
            mapped: None,
            ways: None,
        };
        if self.is_mapped() {
            let mut mapped = Mapped { ranks: ranks as usize, dtype, calls: BTreeMap::new() };
            let most = most.clamp(SHORTEST, LONGEST).next_power_of_two();
            let op = op_of(operation);
            let times = self.sweeps(op, ranks, dtype, most)?;
            let (bytes, took_us) =
                *times.iter().rfind(|(bytes, _)| *bytes <= STANDARD).context("the shortest call was measured")?;
            let standard = Standard { op, ranks, bytes: bytes as u64, dtype, algorithm: None, took_us };
            mapped.calls.insert(operation, times);
            for other in others {
                mapped.calls.insert(*other, self.sweeps(op_of(*other), ranks, dtype, most)?);
            }
            links.source = format!(
                "calls of {ranks} ranks on {dtype}, measured just now {SWEEPS} times at lengths from 8 B to {}",
                size(most)
            );
            links.mapped = Some(mapped);
            return Ok((links, standard));
        }
        settled(|| {
            let (measured, standard) = self.by_messages(&links, ranks)?;
            let drift = standard.drift(self)?;
            Ok(((measured, standard), drift))
        })
    }

    /// Completes figures by what messages take.
    fn by_messages(&self, links: &Links, ranks: u32) -> anyhow::Result<(Links, Standard)> {
        // Everybody talks with everybody.
        let by = How::By(Algorithm::Shares);
        let two = |op, bytes| self.measure(op, 2, bytes, DType::F32, &by);
        let all = |bytes| self.measure(Op::AllReduce, ranks, bytes, DType::F32, &by);
        let standard = Standard {
            op: Op::AllReduce,
            ranks,
            bytes: OF_MESSAGES,
            dtype: DType::F32,
            algorithm: Some(Algorithm::Shares),
            took_us: all(OF_MESSAGES)?,
        };
        let (short, stream, each) = (two(Op::Latency, 8)?, two(Op::Bandwidth, 8)?, two(Op::Bandwidth, LONG)?);
        let time = |bytes| if bytes == standard.bytes { Ok(standard.took_us) } else { all(bytes) };
        let times = FITTED.iter().map(|bytes| time(*bytes)).collect::<anyhow::Result<Vec<f64>>>()?;
        let times: [f64; FITTED.len()] = times.try_into().expect("there are as many");
        // By TCP, nobody else has read what is sent from.
        let ends = if self.device.as_deref() == Some(TCP) { None } else { Some(self.ends()?) };
        let told_of_ends = ends.map(|[both, one]| {
            format!(", a broadcast of {} in {one:.0} us and an all-reduce in {both:.0}", size(ENDS))
        });
        let message_us = stream.min(short * 0.9);
        let byte_ns = ((each - stream) / LONG as f64 * 1000.0).max(0.0);
        let told = FITTED.iter().zip(times).map(|(bytes, time)| format!("{} in {time:.0} us", size(*bytes)));
        let mut links = Links {
            message_us,
            latency_us: short - message_us,
            byte_ns,
            offered_byte_ns: byte_ns,
            source: format!(
                "measured just now: of two ranks, 8 B in {short:.2} us, one each {stream:.2} us in a stream, 256 KiB each {each:.1} us{}; of \
                 {ranks}, all-reduces by shares of {}",
                told_of_ends.unwrap_or_default(),
                told.collect::<Vec<_>>().join(", ")
            ),
            ..links.clone()
        };
        fit(&mut links, ranks, times, ends);
        Ok((links, standard))
    }

    /// What an all-reduce and a broadcast of two ranks take, in turns, since their ratio counts.
    fn ends(&self) -> anyhow::Result<[f64; 2]> {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..SWEEPS {
            times[0].push(self.measure(Op::AllReduce, 2, ENDS, DType::F32, &How::By(Algorithm::Shares))?);
            times[1].push(self.measure(Op::Broadcast, 2, ENDS, DType::F32, &How::By(Algorithm::Whole))?);
        }
        Ok(times.map(median))
    }
}

/// What is measured while the machine does not change, or else the last of some attempts: `measure` also tells the drift meanwhile.
fn settled<T>(mut measure: impl FnMut() -> anyhow::Result<(T, f64)>) -> anyhow::Result<T> {
    for _ in 1..ATTEMPTS {
        let (measured, drift) = measure()?;
        if !is_drift(drift) {
            return Ok(measured);
        }
    }
    Ok(measure()?.0)
}

/// What measures an operation.
pub fn op_of(operation: Operation) -> Op {
    match operation {
        Operation::AllReduce => Op::AllReduce,
        Operation::Reduce => Op::Reduce,
        Operation::Broadcast => Op::Broadcast,
        Operation::Scan => Op::Scan,
        Operation::AllGather => Op::AllGather,
    }
}

fn copy_ns() -> f64 {
    let (from, mut to) = (vec![1_u8; COPIED], vec![0_u8; COPIED]);
    often(|| black_box(&mut to).copy_from_slice(black_box(&from))) / COPIED as f64
}

fn reduce_ns() -> f64 {
    let (one, other, mut to) = (vec![1_f32; COPIED / 4], vec![2_f32; COPIED / 4], vec![0_f32; COPIED / 4]);
    let reduce = || {
        reduce_into(ReduceOp::Sum, black_box(&mut to), &[black_box(&one), black_box(&other)])
            .expect("all lengths are one");
    };
    often(reduce) / COPIED as f64
}

/// The median of many runs, in nanoseconds.
fn often(mut run: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64() * 1e9
    };
    median((0..201).map(time).collect())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_measured_again_if_the_machine_changes_meanwhile() {
        let kept = |drifts: &[f64]| {
            let mut next = drifts.iter().enumerate();
            settled(|| Ok(next.next().map(|(number, drift)| (number, *drift)).expect("no more attempts than that")))
                .unwrap()
        };
        assert_eq!((kept(&[1.2]), kept(&[3.5, 0.9]), kept(&[3.5, 0.3, 1.0]), kept(&[3.5, 0.3, 3.0])), (0, 1, 2, 2));
        assert!(settled::<()>(|| anyhow::bail!("a rank failed")).is_err());
    }
}
