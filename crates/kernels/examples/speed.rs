use fulmen_kernels::*;
use std::time::Instant;
fn main() {
    for bytes in [16 << 10, 256 << 10, 4 << 20, 64 << 20usize] {
        for n in [2usize, 4, 8] {
            if n * bytes > 300 << 20 {
                continue;
            }
            let bufs: Vec<Vec<u8>> = (0..n).map(|k| (0..bytes).map(|i| ((i * 7 + k) % 60) as u8).collect()).collect();
            let mut out = vec![1u8; bytes];
            let srcs: Vec<*const u8> = bufs.iter().map(|b| b.as_ptr()).collect();
            let reps = ((256usize << 20) / bytes / n).max(3);
            let time = |f: &mut dyn FnMut()| {
                let mut best = f64::MAX;
                for _ in 0..5 {
                    let t = Instant::now();
                    for _ in 0..reps {
                        f()
                    }
                    best = best.min(t.elapsed().as_secs_f64() / reps as f64);
                }
                (bytes * (n + 1)) as f64 / best / 1e9
            };
            print!("{:>9} B n={n}", bytes);
            if n == 2 {
                let t = time(&mut || {
                    unsafe { std::ptr::copy_nonoverlapping(srcs[0], out.as_mut_ptr(), bytes) }
                    std::hint::black_box(&mut out);
                });
                print!(" memcpy {:.1}", t * 2.0 / 3.0);
            }
            for (op, d) in [
                (ReduceOp::Sum, DType::F32),
                (ReduceOp::Sum, DType::F64),
                (ReduceOp::Sum, DType::U8),
                (ReduceOp::Sum, DType::F16),
                (ReduceOp::Sum, DType::BF16),
                (ReduceOp::Max, DType::F32),
                (ReduceOp::Max, DType::F16),
                (ReduceOp::Max, DType::F64),
                (ReduceOp::Product, DType::U64),
                (ReduceOp::Product, DType::U8),
                (ReduceOp::Product, DType::Complex64),
                (ReduceOp::Sum, DType::Bool),
            ] {
                let t = time(&mut || unsafe { reduce_raw(op, d, out.as_mut_ptr(), &srcs, bytes / d.size()) });
                print!("  {op} {d} {t:.1}");
            }
            let t = time(&mut || unsafe {
                reduce_raw_with(ReduceOp::Sum, DType::F32, out.as_mut_ptr(), &srcs, bytes / 4, Stores::Streaming)
            });
            println!("  stream {t:.1}");
        }
    }
}
