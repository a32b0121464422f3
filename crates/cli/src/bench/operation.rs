//! What can be measured, and what its numbers mean.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Op {
    /// Half the round trip of a message between two ranks.
    Latency,
    /// A stream of messages from one rank to another.
    Bandwidth,
    /// The sum over all ranks, for all ranks.
    AllReduce,
    /// The parts of all ranks, for all ranks.
    AllGather,
    /// The sum over all ranks, a part for each.
    ReduceScatter,
    /// Data of rank 0, for all ranks.
    Broadcast,
    /// The sum over all ranks, for rank 0.
    Reduce,
    /// The parts of all ranks, for rank 0.
    Gather,
    /// Data of rank 0, a part for each rank.
    Scatter,
    /// A part of each rank, for each rank.
    AllToAll,
    /// The sum over all ranks up to each, for that one.
    Scan,
    /// All ranks wait for each other.
    Barrier,
    /// A write into memory that another rank shares.
    Put,
    /// A read out of memory that another rank shares.
    Get,
    /// Half the round trip of writes that the other rank waits for.
    PutLatency,
    /// An addition to a word that another rank shares.
    FetchAdd,
    /// A comparison and swap of a word that another rank shares.
    CompareSwap,
}

impl Op {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Op::Latency => "latency",
            Op::Bandwidth => "bandwidth",
            Op::AllReduce => "all-reduce",
            Op::AllGather => "all-gather",
            Op::ReduceScatter => "reduce-scatter",
            Op::Broadcast => "broadcast",
            Op::Reduce => "reduce",
            Op::Gather => "gather",
            Op::Scatter => "scatter",
            Op::AllToAll => "all-to-all",
            Op::Scan => "scan",
            Op::Barrier => "barrier",
            Op::Put => "put",
            Op::Get => "get",
            Op::PutLatency => "put-latency",
            Op::FetchAdd => "fetch-add",
            Op::CompareSwap => "compare-swap",
        }
    }

    /// Whether pairs of ranks talk.
    pub fn is_between_pairs(self) -> bool {
        matches!(self, Op::Latency | Op::Bandwidth) || self.is_one_sided()
    }

    /// Whether a rank works on memory that another one shares.
    pub fn is_one_sided(self) -> bool {
        matches!(self, Op::Put | Op::Get | Op::PutLatency) || self.is_on_words()
    }

    /// Whether it works on words of eight bytes.
    pub fn is_on_words(self) -> bool {
        matches!(self, Op::FetchAdd | Op::CompareSwap)
    }

    /// Bytes that go over the slowest link of an ideal machine, for each byte of the operation: the factor from algorithm
    /// bandwidth to bus bandwidth.
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let ranks = f64::from(ranks);
        match self {
            Op::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            Op::AllGather | Op::ReduceScatter | Op::Gather | Op::Scatter | Op::AllToAll => (ranks - 1.0) / ranks,
            Op::Barrier => 0.0,
            _ => 1.0,
        }
    }

    /// Bytes of one rank's input and output for an operation of `bytes`.
    pub fn buffers(self, bytes: u64, ranks: u32) -> (u64, u64) {
        let part = bytes / u64::from(ranks);
        match self {
            Op::AllGather | Op::Gather => (part, bytes),
            Op::ReduceScatter | Op::Scatter => (bytes, part),
            Op::Broadcast => (0, bytes),
            Op::Barrier => (0, 0),
            _ => (bytes, bytes),
        }
    }

    /// The sizes from `min` to `max`, each `factor` times the one before. Where ranks have parts, a size is cut to the
    /// next multiple of `ranks` elements below it, and is one element a rank at least.
    pub fn sizes(self, min: u64, max: u64, factor: u64, element: u64, ranks: u32) -> Vec<u64> {
        if self == Op::Barrier {
            return vec![0];
        }
        if self.is_on_words() {
            return vec![8];
        }
        let unit = match self {
            Op::AllGather | Op::ReduceScatter | Op::Gather | Op::Scatter | Op::AllToAll => element * u64::from(ranks),
            _ => element,
        };
        let steps = std::iter::successors(Some(min), |size| size.checked_mul(factor)).take_while(|&size| size <= max);
        let mut sizes: Vec<u64> = steps.map(|size| (size / unit).max(1) * unit).collect();
        sizes.dedup();
        sizes
    }
}

/// Which memory operations work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Memory of the group, which peers reach.
    Registered,
    /// Any other memory.
    Plain,
}

impl Kind {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Registered => "registered",
            Kind::Plain => "plain",
        }
    }
}

/// What was measured for one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The operation's name.
    pub op: String,
    /// Bytes of the operation.
    pub bytes: u64,
    /// How many ranks.
    pub ranks: u32,
    /// The elements' type.
    pub dtype: String,
    /// The kind of memory.
    pub memory: String,
    /// How many samples were taken.
    pub samples: usize,
    /// The shortest, in microseconds.
    pub min_us: f64,
    /// The median.
    pub p50_us: f64,
    /// What 99 of 100 samples do not exceed.
    pub p99_us: f64,
    /// Bytes of the operation by its median time, in 10⁹ bytes a second.
    #[serde(rename = "algbw_GBps")]
    pub algbw: f64,
    /// What an ideal link would have carried.
    #[serde(rename = "busbw_GBps")]
    pub busbw: f64,
    /// Checked elements that differ from the expected result, over all ranks.
    pub wrong: u64,
    /// Of one-sided operations: microseconds of the target's processor that an operation takes while the target sleeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_cpu_us: Option<f64>,
    /// If asked for: the share of a call's time that a program has for itself while a handle makes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_multiply_up_to_the_largest() {
        assert_eq!(Op::AllReduce.sizes(8, 64, 2, 4, 3), [8, 16, 32, 64]);
        assert_eq!(Op::Latency.sizes(8, 100, 4, 1, 2), [8, 32]);
        assert_eq!(Op::AllReduce.sizes(8, 8, 2, 8, 1), [8]);
        assert_eq!(Op::AllReduce.sizes(1 << 62, u64::MAX, 4, 1, 2), [1 << 62]);
    }

    #[test]
    fn sizes_of_parts_are_whole_elements_for_each_rank() {
        assert_eq!(Op::AllGather.sizes(8, 64, 2, 4, 3), [12, 24, 60]);
        assert_eq!(Op::ReduceScatter.sizes(8, 16, 2, 8, 4), [32]);
        assert_eq!(Op::Barrier.sizes(8, 64, 2, 4, 3), [0]);
        assert_eq!(Op::FetchAdd.sizes(64, 128, 2, 4, 3), [8]);
    }

    #[test]
    fn bus_factors_are_those_of_rings() {
        assert_eq!(Op::AllReduce.bus_factor(4), 1.5);
        assert_eq!(Op::ReduceScatter.bus_factor(4), 0.75);
        assert_eq!(Op::AllGather.bus_factor(1), 0.0);
        assert_eq!(Op::Broadcast.bus_factor(4), 1.0);
    }
}
