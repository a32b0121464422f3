//! Every sweep against a naive reference, bit by bit: all types, operations, levels and ways to store, over random bytes
//! that are rich in the values where floats go wrong.

use half::{bf16, f16};
use proptest::prelude::*;

use crate::level::Choice;
use crate::reduce::reduce_at;
use crate::{Complex64, DType, Element, ReduceOp, Stores, reduce_into};

/// One element's result from its operands, written as the bit rules read, with none of the sweeps' parts.
fn expected(op: ReduceOp, dtype: DType, operands: &[&[u8]]) -> Vec<u8> {
    macro_rules! integer {
        ($int:ty) => {{
            let combine = |a: $int, b: $int| match op {
                ReduceOp::Sum => a.wrapping_add(b),
                ReduceOp::Product => a.wrapping_mul(b),
                ReduceOp::Min => a.min(b),
                ReduceOp::Max => a.max(b),
                ReduceOp::BitAnd | ReduceOp::LogicalAnd => a & b,
                ReduceOp::BitOr | ReduceOp::LogicalOr => a | b,
                ReduceOp::BitXor | ReduceOp::LogicalXor => a ^ b,
                ReduceOp::Mean => unreachable!("integers have none"),
            };
            let logical = matches!(op, ReduceOp::LogicalAnd | ReduceOp::LogicalOr | ReduceOp::LogicalXor);
            let values = operands.iter().map(|bytes| <$int>::from_ne_bytes((*bytes).try_into().unwrap()));
            let values = values.map(|value| if logical { <$int>::from(value != 0) } else { value });
            values.reduce(combine).unwrap().to_ne_bytes().to_vec()
        }};
    }
    macro_rules! float {
        ($float:ty, $wide:ty, $widen:expr, $narrow:expr, $nan:expr) => {{
            let values = operands.iter().map(|bytes| $widen(<$float>::from_ne_bytes((*bytes).try_into().unwrap())));
            let value: $wide = values.reduce(|a: $wide, b: $wide| combine_floats!(a, b)).unwrap();
            let value = if op == ReduceOp::Mean { value / operands.len() as $wide } else { value };
            let bits = if value.is_nan() { $nan } else { $narrow(value).to_bits() };
            bits.to_ne_bytes().to_vec()
        }};
    }
    macro_rules! combine_floats {
        ($a:expr, $b:expr) => {
            match op {
                ReduceOp::Sum | ReduceOp::Mean => $a + $b,
                ReduceOp::Product => $a * $b,
                _ if $a.is_nan() || $b.is_nan() => $a + $b,
                ReduceOp::Min if $a == $b => {
                    if $a.is_sign_negative() {
                        $a
                    } else {
                        $b
                    }
                }
                ReduceOp::Max if $a == $b => {
                    if $a.is_sign_negative() {
                        $b
                    } else {
                        $a
                    }
                }
                ReduceOp::Min => {
                    if $a < $b {
                        $a
                    } else {
                        $b
                    }
                }
                ReduceOp::Max => {
                    if $a > $b {
                        $a
                    } else {
                        $b
                    }
                }
                _ => unreachable!("floats have no bits"),
            }
        };
    }
    match dtype {
        DType::Bool => {
            let mut values = operands.iter().map(|bytes| bytes[0] != 0);
            vec![u8::from(match op {
                ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr | ReduceOp::LogicalOr => values.any(|value| value),
                ReduceOp::BitXor | ReduceOp::LogicalXor => values.filter(|value| *value).count() % 2 == 1,
                _ => values.all(|value| value),
            })]
        }
        DType::I8 => integer!(i8),
        DType::I16 => integer!(i16),
        DType::I32 => integer!(i32),
        DType::I64 => integer!(i64),
        DType::U8 => integer!(u8),
        DType::U16 => integer!(u16),
        DType::U32 => integer!(u32),
        DType::U64 => integer!(u64),
        DType::F16 => float!(f16, f32, f16::to_f32, f16::from_f32, 0x7e00u16),
        DType::BF16 => float!(bf16, f32, bf16::to_f32, bf16::from_f32, 0x7fc0u16),
        DType::F32 => float!(f32, f32, |value: f32| value, |value: f32| value, 0x7fc0_0000u32),
        DType::F64 => float!(f64, f64, |value: f64| value, |value: f64| value, 0x7ff8_0000_0000_0000u64),
        DType::Complex64 => {
            let part = |bytes: &[u8]| f32::from_ne_bytes(bytes.try_into().unwrap());
            let values = operands.iter().map(|bytes| (part(&bytes[..4]), part(&bytes[4..])));
            let product = |a: (f32, f32), b: (f32, f32)| (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0);
            let sum = |a: (f32, f32), b: (f32, f32)| (a.0 + b.0, a.1 + b.1);
            let combine = |a, b| if op == ReduceOp::Product { product(a, b) } else { sum(a, b) };
            let (re, im) = values.reduce(combine).unwrap();
            let by = if op == ReduceOp::Mean { operands.len() as f32 } else { 1.0 };
            let (re, im) = (re / by, im / by);
            let bits = |value: f32| if value.is_nan() { 0x7fc0_0000 } else { value.to_bits() };
            [bits(re).to_ne_bytes(), bits(im).to_ne_bytes()].concat()
        }
    }
}

/// Bit patterns of floats, as the upper bits of 64: zeros, subnormals, ones, largest, infinities, quiet and signalling NaN.
fn special(dtype: DType, which: usize, random: u64) -> u64 {
    let (bits, mantissa) = match dtype {
        DType::F16 => (16, 10),
        DType::BF16 => (16, 7),
        DType::F64 => (64, 52),
        _ => (32, 23),
    };
    let infinity = ((1u64 << (bits - 1 - mantissa)) - 1) << mantissa;
    let magnitude = match which / 2 {
        0 => 0,
        1 => 1,
        2 => random & ((1 << mantissa) - 1),
        3 => infinity - 1,
        4 => infinity,
        5 => infinity | 1,
        6 => infinity | (1 << (mantissa - 1)) | (random & 1),
        // A number near one: its sums and products round rather than overflow.
        _ => (infinity / 2).wrapping_add(random % (4 << mantissa)) & (u64::MAX >> (65 - bits)),
    };
    magnitude | ((which as u64 & 1) << (bits - 1))
}

/// `bytes` of elements: some special, some of random bits.
fn fill(dtype: DType, bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let part = if dtype == DType::Complex64 { 4 } else { dtype.size() };
    let mut filled = Vec::with_capacity(bytes);
    while filled.len() < bytes {
        let (choice, value) = (random() >> 32, random());
        let bits = if choice % 4 == 0 { value } else { special(dtype, (choice / 4 % 20) as usize, value) };
        filled.extend_from_slice(&bits.to_le_bytes()[..part]);
    }
    filled
}

/// The element `at` of a source of elements of `size` bytes.
fn element(source: &[u8], size: usize, at: usize) -> &[u8] {
    &source[at * size..(at + 1) * size]
}

#[derive(Clone, Debug)]
struct Case {
    op: ReduceOp,
    dtype: DType,
    count: usize,
    seeds: Vec<u64>,
    /// Of the output and of the sources, in bytes past a line.
    shifts: Vec<usize>,
    /// The output is this source.
    in_place: Option<usize>,
    stores: Stores,
}

fn cases() -> impl Strategy<Value = Case> {
    let supported = || {
        let pairs = ReduceOp::all().iter().flat_map(|&op| DType::all().iter().map(move |&dtype| (op, dtype)));
        pairs.filter(|(op, dtype)| op.supports(*dtype).is_ok()).collect::<Vec<_>>()
    };
    let count = prop_oneof![0..20usize, 50..80usize, 0..700usize];
    let sources = prop_oneof![6 => 1..10usize, 1 => 250..300usize];
    let stores = prop_oneof![Just(Stores::Cached), Just(Stores::Streaming)];
    (prop::sample::select(supported()), count, sources, stores).prop_flat_map(
        |((op, dtype), count, sources, stores)| {
            let seeds = prop::collection::vec(any::<u64>(), sources);
            let shift = prop_oneof![Just(0), Just(8), 0..64usize];
            let shifts = prop::collection::vec(shift, sources + 1);
            let in_place = prop::option::of(0..sources);
            (seeds, shifts, in_place).prop_map(move |(seeds, shifts, in_place)| Case {
                op,
                dtype,
                count,
                seeds,
                shifts,
                in_place,
                stores,
            })
        },
    )
}

/// Runs the case at `level` and compares; the bytes around the output must stay as they were.
fn check(case: &Case, level: Choice) -> Result<(), TestCaseError> {
    const GUARD: usize = 64;
    let size = case.dtype.size();
    let bytes = case.count * size;
    let sources: Vec<Vec<u8>> = case.seeds.iter().map(|&seed| fill(case.dtype, bytes, seed)).collect();
    let mut buffers: Vec<Vec<u8>> = case.shifts.iter().map(|_| vec![0xa5u8; bytes + 3 * GUARD]).collect();
    let starts: Vec<usize> = std::iter::zip(&buffers, &case.shifts)
        .map(|(buffer, shift)| GUARD + (buffer.as_ptr().addr().wrapping_neg() + shift) % 64)
        .collect();
    for index in 0..sources.len() {
        buffers[index + 1][starts[index + 1]..][..bytes].copy_from_slice(&sources[index]);
    }
    let output = case.in_place.map_or(0, |source| source + 1);
    let pointers: Vec<*mut u8> =
        std::iter::zip(&mut buffers, &starts).map(|(buffer, start)| buffer[*start..].as_mut_ptr()).collect();
    let srcs: Vec<*const u8> = pointers[1..].iter().map(|pointer| pointer.cast_const()).collect();
    // SAFETY: each pointer has `bytes` bytes after it in its own vector; the output is one of the sources or a vector of
    // its own; the caller gives a level that the machine has.
    unsafe { reduce_at(level, case.op, case.dtype, &[pointers[output]], case.stores.past(1), &srcs, case.count) };

    let (start, buffer) = (starts[output], &buffers[output]);
    for at in 0..case.count {
        let operands: Vec<&[u8]> = sources.iter().map(|source| element(source, size, at)).collect();
        let (got, want) = (element(&buffer[start..], size, at), expected(case.op, case.dtype, &operands));
        prop_assert!(got == want, "element {at} at {level:?}: {got:02x?} instead of {want:02x?} from {operands:02x?}");
    }
    let around = buffer[..start].iter().chain(&buffer[start + bytes..]);
    prop_assert!(around.into_iter().all(|&byte| byte == 0xa5), "bytes beside the output were written");
    Ok(())
}

/// More rounds where the tier has time.
fn rounds(few: u32) -> u32 {
    few * fulmen_testbed::by_tier(1, 10, 50)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(rounds(400)) })]

    #[test]
    fn any_reduction_has_the_bits_of_the_rules(case in cases()) {
        for level in Choice::available() {
            check(&case, level)?;
        }
    }
}

/// The random cases may miss a combination; this meets each one, on every level, in blocks, small blocks and rests.
#[test]
fn every_type_and_operation_has_the_bits_of_the_rules() {
    for &dtype in DType::all() {
        for &op in ReduceOp::all() {
            if op.supports(dtype).is_err() {
                continue;
            }
            for (sources, stores) in
                [(1, Stores::Cached), (2, Stores::Streaming), (2, Stores::Cached), (5, Stores::Cached)]
            {
                let seeds = (1..=sources as u64)
                    .map(|source| (source + dtype as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
                    .collect();
                let shifts = vec![0; sources + 1];
                let case = Case { op, dtype, count: 1000 + 13, seeds, shifts, in_place: None, stores };
                for level in Choice::available() {
                    check(&case, level)
                        .unwrap_or_else(|failure| panic!("{op} of {dtype}, {sources} sources: {failure}"));
                }
            }
        }
    }
}

/// Blocks, small blocks and single elements may have ways of their own to tell which of two values comes first.
#[test]
fn every_pair_of_special_values_has_its_order_at_every_place() {
    const COUNT: usize = 64 + 8 + 1;
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let value = |which| special(dtype, which, 1).to_le_bytes()[..dtype.size()].repeat(COUNT);
        for (op, one, other) in [ReduceOp::Min, ReduceOp::Max]
            .into_iter()
            .flat_map(|op| (0..256).map(move |pair| (op, pair / 16, pair % 16)))
        {
            let sources = [value(one), value(other)];
            let want = expected(op, dtype, &sources.each_ref().map(|source| element(source, dtype.size(), 0)));
            for level in Choice::available() {
                let mut output = vec![0; COUNT * dtype.size()];
                let pointers = sources.each_ref().map(|source| source.as_ptr());
                // SAFETY: all have `COUNT` elements, the output is a vector of its own, and the machine has the level.
                unsafe { reduce_at(level, op, dtype, &[output.as_mut_ptr()], 0, &pointers, COUNT) };
                assert_eq!(output, want.repeat(COUNT), "{op} of {dtype} at {level:?}: {sources:02x?}");
            }
        }
    }
}

/// Rounding each partial sum to f16 would lose the ones: 2048 + 1 is 2048 there.
#[test]
fn halves_are_rounded_once() {
    let term = |value| [f16::from_f32(value)];
    let (large, one) = (term(2048.0), term(1.0));
    let mut sum = [f16::ZERO];
    reduce_into(ReduceOp::Sum, &mut sum, &[&large, &one, &one, &one, &one]).unwrap();
    assert_eq!(sum[0].to_f32(), 2052.0);
}

/// Another order gives 1 or 0.
#[test]
fn the_order_is_left_to_right() {
    let mut sum = [0f32];
    reduce_into(ReduceOp::Sum, &mut sum, &[&[1e30], &[-1e30], &[1.0], &[1e30], &[-1e30], &[2.0]]).unwrap();
    assert_eq!(sum, [2.0]);
}

/// More sources than the addresses that fit on the stack.
#[test]
fn slices_reduce_over_any_number_of_sources() {
    fn sum_of<T: Element + PartialEq + std::fmt::Debug>(one: T, zero: T, total: impl Fn(usize) -> T) {
        for sources in [1, 2, 255, 256, 257, 600] {
            let (ones, mut sum) = (vec![one; 3], vec![zero; 3]);
            reduce_into(ReduceOp::Sum, &mut sum, &vec![&ones[..]; sources]).unwrap();
            assert_eq!(sum, vec![total(sources); 3]);
        }
    }
    sum_of(1u16, 0, |sources| sources as u16);
    sum_of(true, false, |_| true);
    sum_of(Complex64::new(1.0, 2.0), Complex64::default(), |n| Complex64::new(n as f32, 2.0 * n as f32));
    let mut output = [0u8; 2];
    assert!(reduce_into(ReduceOp::Sum, &mut output, &[]).is_err());
    assert!(reduce_into(ReduceOp::Sum, &mut output, &[&[1, 2], &[1]]).is_err());
}
