//! Which ways a case may go.

use super::{
    ops::{Plan, Rank},
    shared::{LINE_WORDS, PIECE},
};
use crate::case::{Memory, Op};

/// The ways to try for a case; the first is also right for any size.
pub fn plans(rank: &Rank, op: Op, memory: Memory, bytes: usize) -> Vec<Plan> {
    let registered = memory == Memory::Registered;
    if op == Op::Barrier {
        return vec![Plan::Direct { stream: false }];
    }
    let posted = if op == Op::AllGather { bytes / rank.ranks } else { bytes };
    if posted <= LINE_WORDS * 4 {
        return vec![Plan::Lines];
    }
    let mut plans = Vec::new();
    if registered {
        plans.push(Plan::Direct { stream: false });
        if bytes >= 256 << 10 {
            plans.push(Plan::Direct { stream: true });
        }
    }
    // With registered memory staging pays for short messages alone, where it saves a barrier.
    if !registered || bytes <= PIECE * 4 {
        for piece in [1 << 10, 4 << 10, PIECE] {
            plans.push(Plan::Staged { piece, stream: false });
            if piece > 1 << 10 && bytes > 16 << 10 {
                plans.push(Plan::Staged { piece, stream: true });
            }
            if bytes <= piece * 4 {
                break;
            }
        }
    }
    let sums = matches!(op, Op::AllReduce | Op::ReduceScatter);
    if !registered && !sums && rank.can_pull && bytes >= 4 << 10 {
        plans.push(Plan::Pull);
    }
    plans
}
