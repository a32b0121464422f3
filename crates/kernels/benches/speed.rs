//! How fast reductions of two sources are, beside the memory: `cargo bench -p fulmen-kernels`.
//!
//! A copy moves two bytes for each of its own, a reduction of two sources three: at the memory's speed, it makes two thirds of
//! what a copy of the same length does. Each figure is the median of paired rounds, copy and reduction by turns.

use std::hint::black_box;
use std::time::Instant;

use fulmen_kernels::{DType, ReduceOp, Stores, reduce_raw_with};

/// In the caches of one processor, of all, and beyond.
const SIZES: [usize; 3] = [256 << 10, 4 << 20, 64 << 20];
const ROUNDS: usize = 11;

const OPERATIONS: [(ReduceOp, DType); 14] = [
    (ReduceOp::Sum, DType::F32),
    (ReduceOp::Sum, DType::F64),
    (ReduceOp::Sum, DType::F16),
    (ReduceOp::Sum, DType::BF16),
    (ReduceOp::Mean, DType::F32),
    (ReduceOp::Max, DType::F32),
    (ReduceOp::Max, DType::F16),
    (ReduceOp::Product, DType::Complex64),
    (ReduceOp::Sum, DType::I8),
    (ReduceOp::Max, DType::I8),
    (ReduceOp::Sum, DType::I32),
    (ReduceOp::Product, DType::I64),
    (ReduceOp::BitXor, DType::U32),
    (ReduceOp::Sum, DType::Bool),
];

fn main() {
    println!("Gigabytes of results a second, and the share of the memory's speed (2/3 of a copy's).\n");
    println!("| operation | 256 KiB | 4 MiB | 64 MiB |\n|---|---|---|---|");
    for (op, dtype) in OPERATIONS {
        let cells = SIZES.map(|bytes| {
            let (rate, share) = measure(op, dtype, bytes);
            format!("{rate:.1} ({share:.2})")
        });
        println!("| {op} of {dtype} | {} |", cells.join(" | "));
    }
}

/// Gigabytes a second, and that by two thirds of a copy's.
fn measure(op: ReduceOp, dtype: DType, bytes: usize) -> (f64, f64) {
    // Two values, so that no operation makes zeroes of them, which some processors move faster.
    let (one, other, mut to) = (vec![1_u8; bytes], vec![3_u8; bytes], vec![0_u8; bytes]);
    let repeats = ((16 << 20) / bytes).max(1);
    let mut time = |run: &mut dyn FnMut(&mut [u8])| {
        let start = Instant::now();
        (0..repeats).for_each(|_| run(black_box(&mut to)));
        start.elapsed().as_secs_f64() / repeats as f64
    };
    // What has no room in the caches is written past them, as collectives do.
    let stores = if bytes > 32 << 20 { Stores::Streaming } else { Stores::Cached };
    let mut rounds: Vec<(f64, f64)> = (0..ROUNDS)
        .map(|_| {
            let copy = time(&mut |to| to.copy_from_slice(black_box(&one)));
            let reduction = time(&mut |to| {
                let sources = [black_box(&one).as_ptr(), black_box(&other).as_ptr()];
                // SAFETY: all three have as many bytes, of any values, and do not overlap.
                unsafe { reduce_raw_with(op, dtype, to.as_mut_ptr(), &sources, bytes / dtype.size(), stores) };
            });
            (bytes as f64 / reduction / 1e9, 1.5 * copy / reduction)
        })
        .collect();
    let mut median = |of: fn(&(f64, f64)) -> f64| {
        rounds.sort_by(|one, other| of(one).total_cmp(&of(other)));
        of(&rounds[ROUNDS / 2])
    };
    (median(|round| round.0), median(|round| round.1))
}
