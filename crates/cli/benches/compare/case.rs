//! What is compared: operations, memories, sizes.

use std::{fmt, str::FromStr};

/// An operation. `bytes` of a case counts as nccl-tests does: of p2p, streams and one-sided operations one way; of all-reduce, reduce,
/// scan and broadcast a rank's data; of all-gather and gather what a rank gets in all; of reduce-scatter, scatter and all-to-all what
/// a rank gives in all; of a barrier nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    P2p,
    Stream,
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    AllToAll,
    Scan,
    Barrier,
    Put,
    Get,
    PutLatency,
    FetchAdd,
    CompareSwap,
}

impl Op {
    pub const ALL: [Op; 17] = [
        Op::P2p,
        Op::Stream,
        Op::AllReduce,
        Op::AllGather,
        Op::ReduceScatter,
        Op::Broadcast,
        Op::Reduce,
        Op::Gather,
        Op::Scatter,
        Op::AllToAll,
        Op::Scan,
        Op::Barrier,
        Op::Put,
        Op::Get,
        Op::PutLatency,
        Op::FetchAdd,
        Op::CompareSwap,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Op::P2p => "p2p",
            Op::Stream => "stream",
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

    /// Whether a rank works on another's memory by itself.
    pub fn is_one_sided(self) -> bool {
        matches!(self, Op::Put | Op::Get | Op::PutLatency | Op::FetchAdd | Op::CompareSwap)
    }

    /// Whether the floor has it.
    pub fn has_floor(self) -> bool {
        let written = [Op::P2p, Op::AllReduce, Op::AllGather, Op::ReduceScatter, Op::Broadcast, Op::Barrier];
        written.contains(&self)
    }

    /// Whether its size is given by what it is: none, or a word.
    pub fn has_one_size(self) -> bool {
        matches!(self, Op::Barrier | Op::FetchAdd | Op::CompareSwap)
    }

    /// The sizes, of those asked for, that the operation can have: whole words, and equal shares where ranks divide them.
    pub fn sizes(self, asked: &[usize], ranks: usize) -> Vec<usize> {
        let unit = match self {
            Op::Barrier => return vec![0],
            Op::FetchAdd | Op::CompareSwap => return vec![8],
            Op::AllGather | Op::ReduceScatter | Op::Gather | Op::Scatter | Op::AllToAll => 4 * ranks,
            _ => 4,
        };
        asked.iter().copied().filter(|bytes| *bytes > 0 && bytes.is_multiple_of(unit)).collect()
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = || Op::ALL.map(Op::name).join(", ");
        Op::ALL
            .into_iter()
            .find(|op| op.name() == name)
            .ok_or_else(|| format!("no operation '{name}': there are {}", names()))
    }
}

/// Where the users' buffers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Memory that peers can reach: they may read and write it in place.
    Registered,
    /// Any memory of the process.
    Plain,
}

impl Memory {
    pub fn name(self) -> &'static str {
        match self {
            Memory::Registered => "registered",
            Memory::Plain => "plain",
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "registered" => Ok(Memory::Registered),
            "plain" => Ok(Memory::Plain),
            _ => Err(format!("no memory '{name}': there are registered and plain")),
        }
    }
}

/// What carries the data from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Over {
    /// Whatever a contender takes between processes of one machine.
    Machine,
    /// TCP on the loopback interface, as if every rank were on a host of its own.
    Tcp,
}

/// Reads `8`, `4K`, `64M`, `1G` (powers of 1024).
pub fn parse_size(text: &str) -> Result<usize, String> {
    let unreadable = || format!("'{text}' is no size: write bytes, or a number with K, M or G");
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: usize = digits.parse().map_err(|_| unreadable())?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes <= 1 << 30).ok_or_else(unreadable)
}

/// Writes 65536 as `64 KiB`.
pub fn format_size(bytes: usize) -> String {
    match bytes {
        0 => "–".into(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}
