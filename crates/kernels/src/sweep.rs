//! Loops over blocks of elements: for each block, all sources from left to right, then one store.
//!
//! A block's partial results live in registers, so memory is read once a source and written once an output, whatever the number
//! of either; and since a block is stored after all its sources were read, each output may be any one of the sources.

use std::mem::MaybeUninit;

use crate::lane::Lane;
use crate::level::{Baseline, Choice, Level};
#[cfg(target_arch = "x86_64")]
use crate::stores::{Stores, fence};

/// Elements of a block: whole cache lines of any type, enough independent operations to keep the processor busy, and the
/// size at which compilers were seen to vectorise the loops of every type.
const BLOCK: usize = 64;

/// Elements of the small blocks that do what is left of the last large one.
const SMALL: usize = 8;

/// A compiled loop: outputs, how many of them, from the last one on, are written past the caches, sources, elements.
pub(crate) type Sweep = unsafe fn(&[*mut u8], usize, &[*const u8], usize);

/// The loop of lane `K` for `level`.
pub(crate) fn sweep_for<K: Lane>(level: Choice) -> Sweep {
    match if K::WIDE { level } else { level.narrow() } {
        Choice::Baseline => baseline::<K>,
        #[cfg(target_arch = "x86_64")]
        Choice::Avx2 => avx2::<K>,
        #[cfg(target_arch = "x86_64")]
        Choice::Avx512 => avx512::<K>,
        #[cfg(target_arch = "aarch64")]
        Choice::Neon => neon::<K>,
    }
}

/// # Safety
/// As [`sweep`].
unsafe fn baseline<K: Lane>(dsts: &[*mut u8], past: usize, srcs: &[*const u8], count: usize) {
    // SAFETY: the caller's promise is the callee's.
    unsafe { sweep::<K, Baseline>(dsts, past, srcs, count) }
}

/// # Safety
/// As [`sweep`], and the machine has AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn avx2<K: Lane>(dsts: &[*mut u8], past: usize, srcs: &[*const u8], count: usize) {
    // SAFETY: the caller's promise is the callee's.
    unsafe { sweep::<K, crate::avx2::Avx2>(dsts, past, srcs, count) }
}

/// # Safety
/// As [`sweep`], and the machine has AVX-512 (F, BW, DQ, VL), AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
unsafe fn avx512<K: Lane>(dsts: &[*mut u8], past: usize, srcs: &[*const u8], count: usize) {
    // SAFETY: the caller's promise is the callee's.
    unsafe { sweep::<K, crate::avx512::Avx512>(dsts, past, srcs, count) }
}

/// # Safety
/// As [`sweep`].
#[cfg(target_arch = "aarch64")]
unsafe fn neon<K: Lane>(dsts: &[*mut u8], past: usize, srcs: &[*const u8], count: usize) {
    // SAFETY: the caller's promise is the callee's, and NEON belongs to AArch64.
    unsafe { sweep::<K, crate::neon::Neon>(dsts, past, srcs, count) }
}

/// # Safety
/// `srcs` is not empty; each source has `count` elements of `K::Raw` that may be read and each output as many that may be
/// written, at any alignment; an output is one of the sources or overlaps none, and overlaps no other output; `past` is at most
/// the number of outputs; the machine has the instructions of `L`.
#[inline(always)]
unsafe fn sweep<K: Lane, L: Level>(dsts: &[*mut u8], past: usize, srcs: &[*const u8], count: usize) {
    let mut at = 0;
    #[cfg(target_arch = "x86_64")]
    if past > 0 {
        // SAFETY: the caller's promise.
        at = unsafe { stream::<K, L>(dsts, past, srcs, count) };
    }
    // No other machine is told to write past its caches, and a detour through a block would be for nothing.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = past;
    // Partial results of this size fill AArch64's vector registers if a block is whole, which leaves none to combine them with. (Counted in
    // instructions, from two and from eight sources: by halves, sums of binary64 take 0.83 and 0.89, minima of it 0.61 and 0.41, minima of
    // 64-bit integers 1.12 and 1.06, and nearly all else less.)
    let half = cfg!(target_arch = "aarch64") && size_of::<K::Partial>() == 8;
    while !half && count - at >= BLOCK {
        // SAFETY: at + BLOCK <= count.
        unsafe { block::<K, L, BLOCK>(dsts, None, srcs, at) };
        at += BLOCK;
    }
    while half && count - at >= BLOCK / 2 {
        // SAFETY: at + BLOCK / 2 <= count.
        unsafe { block::<K, L, { BLOCK / 2 }>(dsts, None, srcs, at) };
        at += BLOCK / 2;
    }
    while count - at >= SMALL {
        // SAFETY: at + SMALL <= count.
        unsafe { block::<K, L, SMALL>(dsts, None, srcs, at) };
        at += SMALL;
    }
    while at < count {
        // SAFETY: at < count. One element needs no instructions but the baseline's.
        unsafe { block::<K, Baseline, 1>(dsts, None, srcs, at) };
        at += 1;
    }
}

/// Writes the part of the last `past` outputs that consists of whole cache lines past the caches, and the same elements of the others through
/// them, if lines begin at the same elements in all of the last; returns how many elements are done.
///
/// # Safety
/// As [`sweep`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn stream<K: Lane, L: Level>(dsts: &[*mut u8], past: usize, srcs: &[*const u8], count: usize) -> usize {
    let size = size_of::<K::Raw>();
    let to_line = |dst: &*mut u8| dst.addr().wrapping_neg() % Stores::LINE;
    let (through, past) = dsts.split_at(dsts.len() - past);
    let Some(first) = past.first().map(to_line) else { return 0 };
    let head = first / size;
    if !first.is_multiple_of(size) || head > count || past.iter().any(|dst| to_line(dst) != first) {
        return 0;
    }
    for at in 0..head {
        // SAFETY: at < head <= count.
        unsafe { block::<K, Baseline, 1>(dsts, None, srcs, at) };
    }
    let mut at = head;
    let mut values = [MaybeUninit::<K::Raw>::uninit(); BLOCK];
    while count - at >= BLOCK {
        let values = values.as_mut_ptr().cast::<u8>();
        // SAFETY: at + BLOCK <= count, and `values` has room for a block.
        unsafe { block::<K, L, BLOCK>(through, Some(values), srcs, at) };
        // Line by line, so that what is written past the caches goes to all outputs at an even pace: 0.85 of the time of block by block.
        for line in (0..BLOCK * size).step_by(Stores::LINE) {
            for dst in past {
                // SAFETY: the line lies in the block at `at`, in the output as in `values`; it begins at a multiple of a
                // line, since the head ended at one and a block is `size` whole lines.
                unsafe { L::stream_line(dst.add(at * size + line), values.add(line)) };
            }
        }
        at += BLOCK;
    }
    fence();
    at
}

/// Writes the results of elements `at..at + N` to each output, and to the beginning of `values`, after all sources were read.
///
/// # Safety
/// Each source and each output has elements `at..at + N`, and `values` has room for `N`; there is a first source; the machine has the
/// instructions of `L`.
#[inline(always)]
unsafe fn block<K: Lane, L: Level, const N: usize>(
    dsts: &[*mut u8],
    values: Option<*mut u8>,
    srcs: &[*const u8],
    at: usize,
) {
    let mut partial = [MaybeUninit::uninit(); N];
    // SAFETY: there is a first source; all sources have the elements; the first fills `partial`.
    unsafe {
        let (first, rest) = srcs.split_first().unwrap_unchecked();
        K::load_block::<L, N>(element::<K>(*first, at), &mut partial);
        for &src in rest {
            K::combine_block::<L, N>(&mut partial, element::<K>(src, at));
        }
        K::finish_block::<N>(&mut partial, srcs.len());
        for dst in dsts {
            K::store_block::<L, N>(&partial, dst.add(at * size_of::<K::Raw>()).cast());
        }
        if let Some(values) = values {
            K::store_block::<L, N>(&partial, values.cast());
        }
    }
}

/// Where element `at` of a source lies. Nothing is asked for ahead: what processors fetch by themselves is enough, and instructions for it
/// were in their way (measured on an AMD EPYC: with them, lengths from 1 MiB on, from two to eight sources, took 1.1 to 2 times as long; on an
/// Intel Xeon with AMX they changed nothing).
///
/// # Safety
/// `src` has an element `at`.
#[inline(always)]
unsafe fn element<K: Lane>(src: *const u8, at: usize) -> *const K::Raw {
    // SAFETY: the caller's promise.
    unsafe { src.add(at * size_of::<K::Raw>()) }.cast()
}
