//! How fast reductions run beside `memcpy`: gigabytes read and written a second, the best of five rounds.
//!
//! `cargo run --release -p fulmen-kernels --example speed`

use std::hint::black_box;
use std::time::Instant;

use fulmen_kernels::{DType, ReduceOp, Stores, reduce_raw_with};

/// Kinds of work for the processor; types and operations that are not here are much like one that is.
const KINDS: [(ReduceOp, DType); 9] = [
    (ReduceOp::Sum, DType::F32),
    (ReduceOp::Sum, DType::F64),
    (ReduceOp::Sum, DType::U8),
    (ReduceOp::Sum, DType::F16),
    (ReduceOp::Sum, DType::BF16),
    (ReduceOp::Max, DType::F32),
    (ReduceOp::Max, DType::F64),
    (ReduceOp::Product, DType::U64),
    (ReduceOp::Product, DType::Complex64),
];

/// Bytes that each round moves, so that small sizes are repeated.
const ROUND: usize = 512 << 20;

fn main() {
    for bytes in [64 << 10, 1 << 20, 64 << 20] {
        for sources in [2, 4] {
            // Bytes below 60 are ordinary numbers in every type.
            let buffers: Vec<Vec<u8>> =
                (0..sources).map(|source| (0..bytes).map(|at| ((at * 7 + source) % 60) as u8).collect()).collect();
            let srcs: Vec<*const u8> = buffers.iter().map(|buffer| buffer.as_ptr()).collect();
            let mut output = vec![1u8; bytes];
            println!("{bytes} bytes, {sources} sources");
            let copy = best_rate(2 * bytes, || black_box(&mut output).copy_from_slice(black_box(&buffers[0])));
            println!("  {:24} {copy:7.1} GB/s", "memcpy (one source)");
            for (op, dtype) in KINDS {
                let mut rate = |stores| {
                    best_rate((sources + 1) * bytes, || {
                        // SAFETY: the sources and the output are vectors of `bytes` bytes, each apart from the others.
                        unsafe { reduce_raw_with(op, dtype, output.as_mut_ptr(), &srcs, bytes / dtype.size(), stores) }
                    })
                };
                let (cached, streaming) = (rate(Stores::Cached), rate(Stores::Streaming));
                println!("  {:24} {cached:7.1} GB/s, streaming {streaming:7.1} GB/s", format!("{op} of {dtype}"));
            }
        }
    }
}

fn best_rate(moved: usize, mut work: impl FnMut()) -> f64 {
    let repeats = (ROUND / moved).max(1);
    let round = |_| {
        let start = Instant::now();
        (0..repeats).for_each(|_| work());
        (moved * repeats) as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    (0..5).map(round).fold(0.0, f64::max)
}
