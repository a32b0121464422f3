//! Reductions and copies where one side is memory that others may write.

use fulmen_memory::Exposed;

use crate::reduce::{ReduceError, reduce_raw, reduce_raw_with, with_pointers};
use crate::{DType, Element, ReduceOp, Stores, stores};

/// `dst[i] = srcs[0][i] op srcs[1][i] op …` over whole pieces of exposed memory, strictly from left to right.
///
/// All lengths are in bytes and equal; nothing needs to be aligned. `dst` may be the same memory as one of `srcs`. What
/// is the same memory is told by addresses: two mappings of one region count as apart, and if they overlap in part, the
/// results are unspecified values of the type. So are those of elements that somebody writes meanwhile.
pub fn reduce(op: ReduceOp, dtype: DType, dst: &Exposed, srcs: &[Exposed]) -> Result<(), ReduceError> {
    op.supports(dtype)?;
    let bytes = dst.len();
    if !bytes.is_multiple_of(dtype.size()) {
        return Err(ReduceError::PartialElement { bytes, dtype });
    }
    if !dst.is_writable() {
        return Err(ReduceError::ReadOnly);
    }
    let pointers = srcs.iter().enumerate().map(|(source_index, src)| {
        if src.len() != bytes {
            return Err(ReduceError::Length { source_index, source_bytes: src.len(), output_bytes: bytes });
        }
        match src.addr().abs_diff(dst.addr()) {
            distance if (1..bytes).contains(&distance) => Err(ReduceError::Overlap { source_index }),
            _ => Ok(src.as_ptr().cast_const()),
        }
    });
    // SAFETY: all pieces have `bytes` bytes, which their handles keep mapped, the output's in a writable region; each source starts
    // where the output does or lies apart from it. There are no references to exposed memory.
    let run = |pointers: &[_]| unsafe { reduce_raw(op, dtype, dst.as_ptr(), pointers, bytes / dtype.size()) };
    with_pointers(pointers, run)
}

/// Copies elements into exposed memory, to byte offset `at`, which needs no alignment.
///
/// # Panics
/// If they do not lie inside, or the region cannot be written.
#[track_caller]
pub fn copy_in<T: Element>(from: &[T], to: &Exposed, at: usize) {
    copy_in_with(from, to, at, Stores::Cached);
}

/// [`copy_in`] with a choice of how the bytes are stored.
///
/// # Panics
/// As [`copy_in`].
#[track_caller]
pub fn copy_in_with<T: Element>(from: &[T], to: &Exposed, at: usize, stores: Stores) {
    check(to, at, size_of_val(from));
    assert!(to.is_writable(), "the region is mapped read-only");
    // SAFETY: the target lies inside a writable mapping that its handle keeps; a slice never overlaps exposed memory.
    unsafe { stores::copy_in(from.as_ptr().cast(), to.as_ptr().add(at), size_of_val(from), stores) };
}

/// Copies elements out of exposed memory, from byte offset `at`, which needs no alignment. A byte that stands for a
/// `bool` is true if it is not zero.
///
/// # Panics
/// If they do not lie inside.
#[track_caller]
pub fn copy_out<T: Element>(from: &Exposed, at: usize, to: &mut [T]) {
    copy_out_with(from, at, to, Stores::Cached);
}

/// [`copy_out`] with a choice of how the elements are stored.
///
/// # Panics
/// As [`copy_out`].
#[track_caller]
pub fn copy_out_with<T: Element>(from: &Exposed, at: usize, to: &mut [T], stores: Stores) {
    check(from, at, size_of_val(to));
    let target = to.as_mut_ptr().cast::<u8>();
    // SAFETY: the source lies inside a mapping that its handle keeps, the target is a slice, and the two do not overlap.
    // Every bit pattern is a value of `T`, except for bool, where the reduction of one source stores 0 or 1 only.
    unsafe {
        let source = from.as_ptr().add(at).cast_const();
        match T::DTYPE {
            DType::Bool => reduce_raw_with(ReduceOp::Max, DType::Bool, target, &[source], to.len(), stores),
            _ => stores::copy_out(source, target, size_of_val(to), stores),
        }
    }
}

/// # Panics
/// If `bytes` bytes at `at` do not lie inside.
#[track_caller]
pub(crate) fn check(memory: &Exposed, at: usize, bytes: usize) {
    let inside = at.checked_add(bytes).is_some_and(|end| end <= memory.len());
    assert!(inside, "{bytes} bytes at {at} do not lie in exposed memory of {} bytes", memory.len());
}

#[cfg(test)]
mod tests {
    use super::*;
    use fulmen_memory::Region;

    fn memory(len: usize) -> Exposed {
        Region::alloc(len).expect("a small region").expose().expect("no pool has it")
    }

    #[test]
    fn reduces_where_nothing_is_aligned() {
        let (a, b, out) = (memory(4096), memory(4096), memory(4096));
        copy_in(&[1.5f32, 2.0, -3.0], &a, 1);
        copy_in(&[10.0f32, 20.0, 30.0], &b, 3);
        let (a, b) = (a.slice(1..13), b.slice(3..15));
        reduce(ReduceOp::Sum, DType::F32, &out.slice(5..17), &[a.clone(), b.clone()]).unwrap();
        let mut sums = [0f32; 3];
        copy_out(&out, 5, &mut sums);
        assert_eq!(sums, [11.5, 22.0, 27.0]);
        reduce(ReduceOp::Product, DType::F32, &b, &[a, b.clone()]).unwrap();
        copy_out(&b, 0, &mut sums);
        assert_eq!(sums, [15.0, 40.0, -90.0]);
    }

    #[test]
    fn refuses_what_it_cannot_do_and_writes_nothing() {
        let (a, out) = (memory(4096), memory(4096));
        let sum = |dtype, dst: &Exposed, srcs: &[Exposed]| reduce(ReduceOp::Sum, dtype, dst, srcs);
        assert_eq!(sum(DType::F32, &out, &[]), Err(ReduceError::NoSources));
        assert_eq!(
            sum(DType::F32, &out.slice(0..6), &[a.slice(0..6)]),
            Err(ReduceError::PartialElement { bytes: 6, dtype: DType::F32 })
        );
        assert_eq!(
            sum(DType::U8, &out, &[out.clone(), a.slice(0..6)]),
            Err(ReduceError::Length { source_index: 1, source_bytes: 6, output_bytes: 4096 })
        );
        assert_eq!(
            sum(DType::U8, &out.slice(0..8), &[out.slice(7..15)]),
            Err(ReduceError::Overlap { source_index: 0 })
        );
        assert_eq!(sum(DType::U8, &out.slice(0..8), &[out.slice(8..16)]), Ok(()));
        assert!(matches!(reduce(ReduceOp::Min, DType::Complex64, &out, &[a]), Err(ReduceError::Unsupported(_))));
    }

    #[test]
    fn foreign_bytes_never_become_an_invalid_bool() {
        let bytes = memory(4096);
        let foreign: Vec<u8> = (0..=255).collect();
        bytes.write(1, &foreign);
        for stores in [Stores::Cached, Stores::Streaming] {
            let mut bools = [false; 256];
            copy_out_with(&bytes, 1, &mut bools, stores);
            assert_eq!(crate::as_bytes(&bools).iter().filter(|&&byte| byte == 1).count(), 255);
            assert!(!bools[0]);
        }
    }

    #[test]
    fn streaming_copies_place_every_byte() {
        let from: Vec<u8> = (0..1000u32).map(|i| (i * 31 % 251) as u8 + 1).collect();
        for (at, len) in [(0, 0), (0, 1000), (1, 63), (3, 64), (60, 68), (61, 700), (64, 128), (127, 1)] {
            let to = memory(4096);
            copy_in_with(&from[..len], &to, at, Stores::Streaming);
            let mut all = vec![0u8; 4096];
            copy_out_with(&to, 0, &mut all, Stores::Streaming);
            assert!(all[..at].iter().chain(&all[at + len..]).all(|&byte| byte == 0), "{len} bytes at {at} spill");
            assert_eq!(all[at..at + len], from[..len]);
        }
    }

    #[test]
    #[should_panic = "do not lie in exposed memory"]
    fn a_copy_outside_is_refused() {
        copy_in(&[0u64; 2], &memory(16), 8);
    }
}
