//! Reductions and copies over every element type that Fulmen moves, as fast as memory allows.
//!
//! - [`reduce_raw`], [`reduce`] and [`reduce_into`] combine any number of sources in one pass: over raw memory, over
//!   exposed memory and over slices. Each source is read once and the output written once, without allocation up to 256
//!   sources.
//! - [`copy_in`] and [`copy_out`] move elements between plain and exposed memory.
//! - [`reduce_to_plain`], [`reduce_to_all`] and [`reduce_to_both`] take any mixture of the two, with the elements' type as a value.
//! - [`Stores`] says whether results go through the caches.
//!
//! # Bit rules
//!
//! A result's bits depend on the sources' bits, their order, the operation and the type, and on nothing else: not on the
//! machine, its vector instructions, lengths, alignment, or whether the output is one of the sources.
//!
//! 1. Elements are combined strictly from left to right: `((s0 op s1) op s2) op …`, starting with the first source itself
//!    (not with a zero or one, so a sum of negative zeros is a negative zero).
//! 2. Integers wrap around, signed ones in two's complement.
//! 3. `f32` and `f64` are IEEE 754 binary32 and binary64 with rounding to nearest, ties to even, after each operation.
//!    Subnormal numbers are kept. A multiplication and an addition are never fused.
//! 4. `f16` (binary16) and `bf16` are widened to `f32`, combined there by rule 3, and rounded once at the end, to
//!    nearest, ties to even; what is too large becomes infinite.
//! 5. Minimum and maximum of floats: NaN if any operand is NaN; otherwise the smaller or larger number, with -0 below +0.
//! 6. Every NaN result is one quiet NaN with sign and payload zero: `0x7e00` (f16), `0x7fc0` (bf16), `0x7fc00000` (f32),
//!    `0x7ff8000000000000` (f64).
//! 7. [`Complex64`]: a sum adds the parts; a product is `(a.re·b.re - a.im·b.im, a.re·b.im + a.im·b.re)`, each operation
//!    rounded by rule 3, with no repair of infinities; each part obeys rule 6 by itself. There is no minimum or maximum.
//! 8. `bool`: a byte that is not zero is true; sum, maximum and `or` of bits are `or`, product, minimum and `and` of bits are `and`;
//!    results are 0 or 1. So are those of logical operations on integers, of which any but zero is true.
//! 9. A mean is the sum by these rules (of `f16` and `bf16` not yet rounded), divided by the number of sources, which is one more
//!    rounding by rule 3. Complex numbers are divided part by part.
//! 10. A reduction of a single source is that source, with rules 6 and 8 applied.
//!
//! Rule 3 holds in Rust's default floating-point environment: do not set flush-to-zero or another rounding in threads that
//! reduce.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dtype;
mod element;
mod exposed;
mod halves;
mod lane;
mod level;
#[cfg(target_arch = "aarch64")]
mod neon;
mod op;
#[cfg(not(target_arch = "aarch64"))]
mod order;
mod partials;
mod reduce;
mod stores;
mod sweep;
mod views;

pub use dtype::{DType, UnknownDType, UnknownDTypeCode};
pub use element::{Complex64, Element, as_bytes};
pub use exposed::{copy_in, copy_in_with, copy_out, copy_out_with, reduce};
pub use op::{ReduceOp, UnknownOp, UnknownOpCode, Unsupported};
pub use partials::{finish, finish_in_place, widen};
pub use reduce::{ReduceError, reduce_into, reduce_raw, reduce_raw_with};
pub use stores::Stores;
pub use views::{Source, Sources, ValuesMut, copy_from_bytes, reduce_to_all, reduce_to_both, reduce_to_plain};

#[cfg(test)]
mod reference;
