//! Reductions over raw memory and over slices.

use std::mem::MaybeUninit;

use half::{bf16, f16};

use crate::lane::{BitAnd, BitOr, BitXor, LogicalAnd, LogicalOr, LogicalXor, Max, Mean, Min, Product, Sum};
use crate::level::Choice;
use crate::stores::Stores;
use crate::sweep::{Sweep, sweep_for};
use crate::{Complex64, DType, Element, ReduceOp, Unsupported};

/// Why a reduction was refused; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReduceError {
    /// The operation has no meaning for the type.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// There is nothing to reduce.
    #[error("a reduction needs at least one source")]
    NoSources,
    /// A source and the output differ in length.
    #[error(
        "source {source_index} has {source_bytes} bytes but the output has {output_bytes}; give all the same length"
    )]
    Length {
        /// Which source, from 0.
        source_index: usize,
        /// Its length in bytes.
        source_bytes: usize,
        /// The output's length in bytes.
        output_bytes: usize,
    },
    /// The output ends inside an element.
    #[error("{bytes} bytes are no whole number of {dtype} elements of {} bytes; give a multiple", dtype.size())]
    PartialElement {
        /// The output's length in bytes.
        bytes: usize,
        /// The type of the elements.
        dtype: DType,
    },
    /// The output's region cannot be written.
    #[error("the output's region is mapped read-only; map it for writing or give another output")]
    ReadOnly,
    /// Two outputs overlap.
    #[error("outputs overlap: give each memory of its own")]
    Outputs,
    /// The output overlaps a source without being the same memory.
    #[error("the output overlaps source {source_index} in part; give the same memory or memory apart from it")]
    Overlap {
        /// Which source, from 0.
        source_index: usize,
    },
}

/// `dst[i] = srcs[0][i] op srcs[1][i] op …` for `i < count`, strictly from left to right; see the crate's bit rules.
///
/// Nothing needs to be aligned. One pass: every source is read once, and the output is written once, after the sources of
/// the same elements were read.
///
/// # Panics
/// If `srcs` is empty or [`ReduceOp::supports`] refuses the type.
///
/// # Safety
/// Each source may be read and `dst` written for `count` elements of `dtype`. `dst` is exactly one of `srcs` (any of them)
/// or overlaps none; sources may overlap one another. If others write the sources meanwhile, the results are unspecified
/// values of the type.
pub unsafe fn reduce_raw(op: ReduceOp, dtype: DType, dst: *mut u8, srcs: &[*const u8], count: usize) {
    // SAFETY: the caller's promise.
    unsafe { reduce_raw_with(op, dtype, dst, srcs, count, Stores::Cached) }
}

/// [`reduce_raw`] with a choice of how the output is stored.
///
/// # Panics
/// As [`reduce_raw`].
///
/// # Safety
/// As [`reduce_raw`].
pub unsafe fn reduce_raw_with(
    op: ReduceOp,
    dtype: DType,
    dst: *mut u8,
    srcs: &[*const u8],
    count: usize,
    stores: Stores,
) {
    // SAFETY: the caller's promise; the best level is one that the machine has.
    unsafe { reduce_at(Choice::best(), op, dtype, &[dst], stores.past(1), srcs, count) }
}

/// # Safety
/// As [`reduce_raw`] for each output, which overlaps no other one, and the machine has `level`. The last `past` of the outputs, of which
/// there are as many, are written past the caches.
pub(crate) unsafe fn reduce_at(
    level: Choice,
    op: ReduceOp,
    dtype: DType,
    dsts: &[*mut u8],
    past: usize,
    srcs: &[*const u8],
    count: usize,
) {
    assert!(!srcs.is_empty(), "a reduction needs at least one source");
    // A sum or mean of complex numbers is one of twice as many real numbers.
    let parts = dtype == DType::Complex64 && matches!(op, ReduceOp::Sum | ReduceOp::Mean);
    let count = if parts { count * 2 } else { count };
    let sweep = sweep(level, op, dtype).unwrap_or_else(|refused| panic!("{refused}"));
    // SAFETY: the sweep's elements have the size of `dtype`'s (or of its halves, counted twice); the rest is the
    // caller's promise, and the assertion.
    unsafe { sweep(dsts, past, srcs, count) }
}

fn sweep(level: Choice, op: ReduceOp, dtype: DType) -> Result<Sweep, Unsupported> {
    macro_rules! lane {
        ($lane:ident<$element:ty>) => {
            sweep_for::<$lane<$element>>(level)
        };
    }
    macro_rules! integers {
        ($lane:ident) => {
            match dtype.size() {
                1 => lane!($lane<u8>),
                2 => lane!($lane<u16>),
                4 => lane!($lane<u32>),
                _ => lane!($lane<u64>),
            }
        };
    }
    macro_rules! ordered {
        ($lane:ident) => {
            match dtype {
                DType::I8 => lane!($lane<i8>),
                DType::I16 => lane!($lane<i16>),
                DType::I32 => lane!($lane<i32>),
                DType::I64 => lane!($lane<i64>),
                DType::F16 => lane!($lane<f16>),
                DType::BF16 => lane!($lane<bf16>),
                DType::F32 => lane!($lane<f32>),
                DType::F64 => lane!($lane<f64>),
                _ => integers!($lane),
            }
        };
    }
    macro_rules! numbers {
        ($lane:ident) => {
            match dtype {
                DType::F16 => lane!($lane<f16>),
                DType::BF16 => lane!($lane<bf16>),
                DType::F32 | DType::Complex64 => lane!($lane<f32>),
                _ => lane!($lane<f64>),
            }
        };
    }
    op.supports(dtype)?;
    // A bool is a byte, of which any but 0 is true.
    Ok(match (op, dtype) {
        (ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr, DType::Bool) => lane!(LogicalOr<u8>),
        (ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd, DType::Bool) => lane!(LogicalAnd<u8>),
        (ReduceOp::BitXor, DType::Bool) => lane!(LogicalXor<u8>),

        (ReduceOp::Product, DType::Complex64) => lane!(Product<Complex64>),
        (ReduceOp::Sum, _) if dtype.is_float() => numbers!(Sum),
        (ReduceOp::Product, _) if dtype.is_float() => numbers!(Product),
        (ReduceOp::Sum, _) => integers!(Sum),
        (ReduceOp::Product, _) => integers!(Product),
        (ReduceOp::Min, _) => ordered!(Min),
        (ReduceOp::Max, _) => ordered!(Max),
        (ReduceOp::Mean, _) => numbers!(Mean),
        (ReduceOp::BitAnd, _) => integers!(BitAnd),
        (ReduceOp::BitOr, _) => integers!(BitOr),
        (ReduceOp::BitXor, _) => integers!(BitXor),
        (ReduceOp::LogicalAnd, _) => integers!(LogicalAnd),
        (ReduceOp::LogicalOr, _) => integers!(LogicalOr),
        (ReduceOp::LogicalXor, _) => integers!(LogicalXor),
    })
}

/// [`reduce_raw`] over slices: `dst[i] = srcs[0][i] op srcs[1][i] op …`.
pub fn reduce_into<T: Element>(op: ReduceOp, dst: &mut [T], srcs: &[&[T]]) -> Result<(), ReduceError> {
    op.supports(T::DTYPE)?;
    for (source_index, src) in srcs.iter().enumerate() {
        if src.len() != dst.len() {
            let (source_bytes, output_bytes) = (size_of_val(*src), size_of_val(dst));
            return Err(ReduceError::Length { source_index, source_bytes, output_bytes });
        }
    }
    let count = dst.len();
    let to = dst.as_mut_ptr().cast();
    // SAFETY: all slices have `count` elements, and `dst` is borrowed alone, so it overlaps no source.
    let run = |pointers: &[_]| unsafe { reduce_raw(op, T::DTYPE, to, pointers, count) };
    with_pointers(srcs.iter().map(|src| Ok(src.as_ptr().cast())), run)
}

/// Calls `run` with these addresses, gathered on the stack unless they are very many, if all of them are good.
#[inline]
pub(crate) fn with_pointers<P: Copy>(
    addresses: impl ExactSizeIterator<Item = Result<P, ReduceError>>,
    run: impl FnOnce(&[P]),
) -> Result<(), ReduceError> {
    const ON_STACK: usize = 256;
    if addresses.len() > ON_STACK {
        run(&addresses.collect::<Result<Vec<_>, _>>()?);
        return Ok(());
    }
    let mut pointers = [MaybeUninit::uninit(); ON_STACK];
    let mut count = 0;
    for (slot, address) in pointers.iter_mut().zip(addresses) {
        slot.write(address?);
        count += 1;
    }
    if count == 0 {
        return Err(ReduceError::NoSources);
    }
    // SAFETY: the loop has written the first `count` slots.
    run(unsafe { std::slice::from_raw_parts(pointers.as_ptr().cast(), count) });
    Ok(())
}
