//! Which ways a case may go.

use super::{
    ops::{Plan, Rank, Staging},
    shared::{LINE_WORDS, WINDOW},
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
    if !registered || bytes <= 64 << 10 {
        for piece in [1 << 10, 4 << 10, 16 << 10, 64 << 10] {
            // Over and over in the caches, or through the whole window: what is written anew is in nobody's nearest cache any more.
            for places in [8, WINDOW / piece] {
                plans.push(Plan::Staged(Staging { piece, places, stream: false }));
                if piece > 1 << 10 && bytes > 16 << 10 {
                    plans.push(Plan::Staged(Staging { piece, places, stream: true }));
                }
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
