//! What a rank calls, as ranks compare it.

use std::fmt;

use fulmen_fabric::{Action, OpName};
use fulmen_kernels::{DType, Element, ReduceOp};

use crate::plan::Algorithm;

/// The operations that all ranks take part in. The discriminants are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Barrier = 1,
    AllReduce = 2,
    AllGather = 3,
    ReduceScatter = 4,
    Broadcast = 5,
    Reduce = 6,
    Gather = 7,
    Scatter = 8,
    AllToAll = 9,
    Scan = 10,
}

impl Kind {
    pub(crate) const ALL: [Kind; 10] = [
        Kind::Barrier,
        Kind::AllReduce,
        Kind::AllGather,
        Kind::ReduceScatter,
        Kind::Broadcast,
        Kind::Reduce,
        Kind::Gather,
        Kind::Scatter,
        Kind::AllToAll,
        Kind::Scan,
    ];

    pub(crate) fn name(self) -> OpName {
        self.action().name()
    }

    pub(crate) fn action(self) -> Action {
        match self {
            Kind::Barrier => Action::Barrier,
            Kind::AllReduce => Action::AllReduce,
            Kind::AllGather => Action::AllGather,
            Kind::ReduceScatter => Action::ReduceScatter,
            Kind::Broadcast => Action::Broadcast,
            Kind::Reduce => Action::Reduce,
            Kind::Gather => Action::Gather,
            Kind::Scatter => Action::Scatter,
            Kind::AllToAll => Action::AllToAll,
            Kind::Scan => Action::Scan,
        }
    }

    /// Whether one rank gives all, or gets all.
    pub(crate) fn has_root(self) -> bool {
        matches!(self, Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter)
    }

    /// Whether one rank gives all.
    pub(crate) fn is_given_by_one(self) -> bool {
        matches!(self, Kind::Broadcast | Kind::Scatter)
    }

    /// Whether all ranks give, and each takes from all.
    pub(crate) fn is_mutual(self) -> bool {
        matches!(self, Kind::AllReduce | Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll)
    }

    /// Whether ranks need different parts of a contribution, and not all of it.
    pub(crate) fn is_by_parts(self) -> bool {
        matches!(self, Kind::ReduceScatter | Kind::Scatter | Kind::AllToAll)
    }
}

/// What is made of several calls. Ranks tell such calls from those that programs make: what one of them tells others is not to be taken
/// for anybody's data. The discriminants are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Composite {
    AllToAllV = 1,
    Split = 2,
    FromRanks = 3,
}

impl Composite {
    const ALL: [Composite; 3] = [Composite::AllToAllV, Composite::Split, Composite::FromRanks];

    pub(crate) fn name(self) -> OpName {
        match self {
            Composite::AllToAllV => "all_to_all_v",
            Composite::Split => "split",
            Composite::FromRanks => "from_ranks",
        }
    }
}

/// One call. All ranks must make the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) kind: Kind,
    pub(crate) dtype: DType,
    /// Of reductions; else the sum, which nobody looks at.
    pub(crate) op: ReduceOp,
    /// Of an operation that has one, less than 2^16; else 0.
    pub(crate) root: u32,
    /// Elements: of the vector (all_reduce, reduce, scan, broadcast), or of one rank's part of it. Where parts differ, a digest of
    /// their lengths.
    pub(crate) count: u64,
    /// Whether the ranks' parts have different lengths.
    pub(crate) by_counts: bool,
    /// How it goes by messages.
    pub(crate) algorithm: Option<Algorithm>,
    /// What it is a part of, if it is not what a program called.
    pub(crate) part_of: Option<Composite>,
    /// What the program calls it by.
    pub(crate) tag: u16,
}

/// In the first byte of a call's words: parts have different lengths.
const BY_COUNTS: u8 = 0x80;

/// In the first byte, above the kind: what it is a part of.
const PART_OF: u32 = 4;

/// In the second byte, above the type: the algorithm.
const ALGORITHM: u32 = 4;

/// The low bits of a byte, below its upper half.
const LOW: u8 = 0xf;

/// In the first word, above what takes 32 bits: the root, which is less than a group may have ranks, and above it the tag.
const ROOT: u32 = 32;
const TAG: u32 = 48;

/// Where the words of a call keep what ranks may differ in.
const FLAGS: u64 = 0xff << 24;

impl Call {
    /// One without a root, of a sum if it reduces.
    pub(crate) fn of<T: Element>(kind: Kind, count: usize) -> Call {
        Call {
            kind,
            dtype: T::DTYPE,
            op: ReduceOp::Sum,
            root: 0,
            count: count as u64,
            by_counts: false,
            algorithm: None,
            part_of: None,
            tag: 0,
        }
    }

    /// Two words. `flags` says what ranks may differ in.
    pub(crate) fn encode(&self, flags: u8) -> [u64; 2] {
        let by_counts = if self.by_counts { BY_COUNTS } else { 0 };
        let algorithm = self.algorithm.map_or(0, |algorithm| algorithm as u8);
        let kind = self.kind as u8 | self.part_of.map_or(0, |part_of| part_of as u8) << PART_OF | by_counts;
        let what = [kind, self.dtype as u8 | algorithm << ALGORITHM, self.op as u8, flags];
        let what = u64::from(u32::from_le_bytes(what));
        [what | u64::from(self.root as u16) << ROOT | u64::from(self.tag) << TAG, self.count]
    }

    /// Whether the words are those of the same call, whatever their flags are.
    #[inline]
    pub(crate) fn is_same(words: [u64; 2], others: [u64; 2]) -> bool {
        (words[0] ^ others[0]) & !FLAGS == 0 && words[1] == others[1]
    }

    /// The flags in the words of a call.
    #[inline]
    pub(crate) fn flags(words: [u64; 2]) -> u8 {
        (words[0] >> 24) as u8
    }

    /// The call in two words, unless they are none.
    pub(crate) fn decode(words: [u64; 2]) -> Option<Call> {
        let [kind, how, op, _] = (words[0] as u32).to_le_bytes();
        let (dtype, algorithm) = (how & LOW, how >> ALGORITHM);
        let part_of = (kind & !BY_COUNTS) >> PART_OF;
        Some(Call {
            kind: *Kind::ALL.iter().find(|known| **known as u8 == kind & LOW)?,
            dtype: DType::try_from(dtype).ok()?,
            op: ReduceOp::try_from(op).ok()?,
            root: u32::from((words[0] >> ROOT) as u16),
            count: words[1],
            by_counts: kind & BY_COUNTS != 0,
            algorithm: if algorithm == 0 { None } else { Some(Algorithm::of_code(algorithm)?) },
            part_of: match part_of {
                0 => None,
                code => Some(*Composite::ALL.iter().find(|known| **known as u8 == code)?),
            },
            tag: (words[0] >> TAG) as u16,
        })
    }

    /// What the words of another rank's call say, for an error's text.
    pub(crate) fn describe(words: [u64; 2]) -> String {
        Call::decode(words).map_or_else(|| "something unknown".to_owned(), |call| call.to_string())
    }

    /// Bytes of `count` elements; none where parts differ.
    pub(crate) fn bytes(&self) -> usize {
        if self.by_counts { 0 } else { self.count as usize * self.dtype.size() }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { kind, dtype, op, root, count, by_counts, algorithm, part_of, tag } = self;
        f.write_str(kind.name())?;
        match kind {
            Kind::Barrier => {}
            Kind::Reduce => write!(f, " ({op}) at rank {root}")?,
            Kind::Gather => write!(f, " at rank {root}")?,
            Kind::Broadcast | Kind::Scatter => write!(f, " from rank {root}")?,
            Kind::AllReduce | Kind::ReduceScatter | Kind::Scan => write!(f, " ({op})")?,
            Kind::AllGather | Kind::AllToAll => {}
        }
        match kind {
            Kind::Barrier => {}
            _ if *by_counts => write!(f, " of {dtype} by counts (their digest is {count:x})")?,
            Kind::AllReduce | Kind::Reduce | Kind::Scan | Kind::Broadcast => write!(f, " of {count} {dtype}")?,
            _ => write!(f, " of {count} {dtype} a rank")?,
        }
        if let Some(algorithm) = algorithm.filter(|_| *kind != Kind::Barrier) {
            write!(f, ", by the algorithm {algorithm}")?;
        }
        if let Some(part_of) = part_of {
            write!(f, ", a part of {}", part_of.name())?;
        }
        if *tag == 0 { Ok(()) } else { write!(f, ", with the tag {tag}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_differ_in_each_of_their_fields_but_not_in_flags() {
        let call = Call {
            kind: Kind::Broadcast,
            dtype: DType::F32,
            op: ReduceOp::Sum,
            root: 3,
            count: 1 << 40,
            by_counts: false,
            algorithm: Some(Algorithm::Chain),
            part_of: Some(Composite::FromRanks),
            tag: 0x8001,
        };
        for flags in [0, 1, 0xff] {
            assert!(Call::is_same(call.encode(0), call.encode(flags)));
            assert_eq!(Call::flags(call.encode(flags)), flags);
            assert_eq!(Call::decode(call.encode(flags)), Some(call));
        }
        let others = [
            Call { kind: Kind::AllReduce, ..call },
            Call { dtype: DType::I32, ..call },
            Call { op: ReduceOp::Max, ..call },
            Call { root: 2, ..call },
            Call { count: 1, ..call },
            Call { by_counts: true, ..call },
            Call { algorithm: Some(Algorithm::Hosts), ..call },
            Call { algorithm: None, ..call },
            Call { part_of: Some(Composite::Split), ..call },
            Call { part_of: None, ..call },
            Call { tag: 1, ..call },
            Call { tag: 0, ..call },
        ];
        for other in others {
            assert!(!Call::is_same(call.encode(0), other.encode(0)), "{other}");
        }
    }

    #[test]
    fn words_that_are_no_call_are_told_apart() {
        assert_eq!(Call::describe([0, 0]), "something unknown");
        assert_eq!(Call::describe([u64::MAX, 0]), "something unknown");
        let call = Call::of::<f32>(Kind::AllReduce, 4);
        assert_eq!(Call::describe(call.encode(3)), "all_reduce (sum) of 4 f32");
        let ring = Call { algorithm: Some(Algorithm::Ring), ..call };
        assert_eq!(Call::describe(ring.encode(0)), "all_reduce (sum) of 4 f32, by the algorithm ring");
        let call = Call { kind: Kind::Reduce, root: 2, ..call };
        assert_eq!(Call::describe(call.encode(0)), "reduce (sum) at rank 2 of 4 f32");
        let call = Call { kind: Kind::AllGather, count: 0xab, by_counts: true, ..call };
        assert_eq!(Call::describe(call.encode(0)), "all_gather of f32 by counts (their digest is ab)");
        let call = Call { tag: 7, ..Call::of::<f32>(Kind::Barrier, 0) };
        assert_eq!(Call::describe(call.encode(0)), "barrier, with the tag 7");
        let call = Call { part_of: Some(Composite::Split), ..Call::of::<u64>(Kind::AllGather, 4) };
        assert_eq!(Call::describe(call.encode(0)), "all_gather of 4 u64 a rank, a part of split");
    }
}
