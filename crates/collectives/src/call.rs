//! What a rank calls, as ranks compare it.

use std::fmt;

use fulmen_fabric::{Action, OpName};
use fulmen_kernels::{DType, ReduceOp};

/// The operations that all ranks take part in. The discriminants are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Barrier = 1,
    AllReduce = 2,
    AllGather = 3,
    ReduceScatter = 4,
    Broadcast = 5,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Barrier, Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter, Kind::Broadcast];

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
    /// Of a broadcast; else 0.
    pub(crate) root: u32,
    /// Elements: of the vector (all_reduce, broadcast), or of one rank's part of it (all_gather, reduce_scatter).
    pub(crate) count: u64,
}

/// Where the words of a call keep what ranks may differ in.
const FLAGS: u64 = 0xff << 24;

impl Call {
    /// Two words. `flags` says what ranks may differ in.
    pub(crate) fn encode(&self, flags: u8) -> [u64; 2] {
        let what = [self.kind as u8, self.dtype as u8, self.op as u8, flags];
        [u64::from(u32::from_le_bytes(what)) | u64::from(self.root) << 32, self.count]
    }

    /// The flags in the words of a call, if it is this one.
    #[inline]
    pub(crate) fn matches(&self, words: [u64; 2]) -> Option<u8> {
        let mine = self.encode(0);
        (mine[0] == words[0] & !FLAGS && mine[1] == words[1]).then_some((words[0] >> 24) as u8)
    }

    /// The call in two words, unless they are none.
    pub(crate) fn decode(words: [u64; 2]) -> Option<Call> {
        let [kind, dtype, op, _] = (words[0] as u32).to_le_bytes();
        Some(Call {
            kind: *Kind::ALL.iter().find(|known| **known as u8 == kind)?,
            dtype: DType::try_from(dtype).ok()?,
            op: ReduceOp::try_from(op).ok()?,
            root: (words[0] >> 32) as u32,
            count: words[1],
        })
    }

    /// What the words of another rank's call say, for an error's text.
    pub(crate) fn describe(words: [u64; 2]) -> String {
        Call::decode(words).map_or_else(|| "something unknown".to_owned(), |call| call.to_string())
    }

    /// Bytes of `count` elements.
    pub(crate) fn bytes(&self) -> usize {
        self.count as usize * self.dtype.size()
    }

    /// Bytes that `rank` contributes.
    pub(crate) fn contribution(&self, rank: u32, size: u32) -> usize {
        match self.kind {
            Kind::Barrier => 0,
            Kind::AllReduce | Kind::AllGather => self.bytes(),
            Kind::ReduceScatter => self.bytes() * size as usize,
            Kind::Broadcast if rank == self.root => self.bytes(),
            Kind::Broadcast => 0,
        }
    }

    /// The most that any rank contributes.
    pub(crate) fn longest(&self, size: u32) -> usize {
        self.contribution(self.root, size)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { kind, dtype, op, root, count } = self;
        let name = kind.name();
        match kind {
            Kind::Barrier => f.write_str(name),
            Kind::AllReduce => write!(f, "{name} ({op}) of {count} {dtype}"),
            Kind::AllGather => write!(f, "{name} of {count} {dtype} a rank"),
            Kind::ReduceScatter => write!(f, "{name} ({op}) of {count} {dtype} a rank"),
            Kind::Broadcast => write!(f, "{name} from rank {root} of {count} {dtype}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_differ_in_each_of_their_fields_but_not_in_flags() {
        let call = Call { kind: Kind::Broadcast, dtype: DType::F32, op: ReduceOp::Sum, root: 3, count: 1 << 40 };
        for flags in [0, 1, 0xff] {
            assert_eq!(call.matches(call.encode(flags)), Some(flags));
            assert_eq!(Call::decode(call.encode(flags)), Some(call));
        }
        let others = [
            Call { kind: Kind::AllReduce, ..call },
            Call { dtype: DType::I32, ..call },
            Call { op: ReduceOp::Max, ..call },
            Call { root: 2, ..call },
            Call { count: 1, ..call },
        ];
        for other in others {
            assert_eq!(call.matches(other.encode(0)), None, "{other}");
        }
    }

    #[test]
    fn words_that_are_no_call_are_told_apart() {
        assert_eq!(Call::describe([0, 0]), "something unknown");
        assert_eq!(Call::describe([u64::MAX, 0]), "something unknown");
        let call = Call { kind: Kind::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, root: 0, count: 4 };
        assert_eq!(Call::describe(call.encode(3)), "all_reduce (sum) of 4 f32");
    }
}
