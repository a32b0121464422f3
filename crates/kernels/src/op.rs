//! The operations of a reduction.

use std::fmt;
use std::str::FromStr;

use crate::DType;

/// How a reduction combines two elements.
///
/// The discriminants are part of the wire format: ranks compare them before they reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ReduceOp {
    /// Addition; logical or for bool.
    Sum = 0,
    /// Multiplication; logical and for bool.
    Product = 1,
    /// The smaller element; logical and for bool.
    Min = 2,
    /// The larger element; logical or for bool.
    Max = 3,
    /// The sum, divided by the number of ranks (of sources). Of floats and complex numbers.
    Mean = 4,
    /// Bits that are set in both. Of integers and bool, as the operations below.
    BitAnd = 5,
    /// Bits that are set in either.
    BitOr = 6,
    /// Bits that are set in one alone.
    BitXor = 7,
    /// 1 if both are not 0, else 0.
    LogicalAnd = 8,
    /// 1 if either is not 0, else 0.
    LogicalOr = 9,
    /// 1 if one alone is not 0, else 0.
    LogicalXor = 10,
}

impl ReduceOp {
    /// Every operation, in the order of the discriminants.
    pub const fn all() -> &'static [ReduceOp] {
        &[
            ReduceOp::Sum,
            ReduceOp::Product,
            ReduceOp::Min,
            ReduceOp::Max,
            ReduceOp::Mean,
            ReduceOp::BitAnd,
            ReduceOp::BitOr,
            ReduceOp::BitXor,
            ReduceOp::LogicalAnd,
            ReduceOp::LogicalOr,
            ReduceOp::LogicalXor,
        ]
    }

    /// The name by which [`FromStr`] finds the operation again, e.g. `sum`.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Product => "product",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Mean => "mean",
            ReduceOp::BitAnd => "bit-and",
            ReduceOp::BitOr => "bit-or",
            ReduceOp::BitXor => "bit-xor",
            ReduceOp::LogicalAnd => "and",
            ReduceOp::LogicalOr => "or",
            ReduceOp::LogicalXor => "xor",
        }
    }

    /// Whether elements of `dtype` can be combined in this way.
    ///
    /// # Errors
    /// Complex numbers have no order, so no minimum or maximum; integers and bool no mean, which would have to be rounded; floats
    /// and complex numbers no bits and no truth of their own.
    pub const fn supports(self, dtype: DType) -> Result<(), Unsupported> {
        use ReduceOp::{BitAnd, BitOr, BitXor, LogicalAnd, LogicalOr, LogicalXor, Max, Mean, Min, Product, Sum};
        let defined = match self {
            Sum | Product => true,
            Min | Max => !matches!(dtype, DType::Complex64),
            Mean => dtype.is_float(),
            BitAnd | BitOr | BitXor | LogicalAnd | LogicalOr | LogicalXor => !dtype.is_float(),
        };
        if defined { Ok(()) } else { Err(Unsupported { op: self, dtype }) }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The operation has no meaning for the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op} of {dtype} is not defined: {}", self.why())]
pub struct Unsupported {
    /// The operation that was asked for.
    pub op: ReduceOp,
    /// The type of the elements.
    pub dtype: DType,
}

impl Unsupported {
    fn why(&self) -> &'static str {
        match self.op {
            ReduceOp::Mean => "it would have to be rounded; reduce the sum and divide it, or floats",
            ReduceOp::Min | ReduceOp::Max => "complex numbers have no order; reduce magnitudes or parts instead",
            _ => "it is for integers and bool",
        }
    }
}

/// A text names no operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no reduction; use one of sum, product, min, max, mean, bit-and, bit-or, bit-xor, and, or, xor")]
pub struct UnknownOp(String);

impl FromStr for ReduceOp {
    type Err = UnknownOp;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::all().iter().copied().find(|op| op.name() == text).ok_or_else(|| UnknownOp(text.to_owned()))
    }
}

/// A byte from another rank stands for no operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no code of a reduction; do all ranks run the same version?")]
pub struct UnknownOpCode(u8);

impl TryFrom<u8> for ReduceOp {
    type Error = UnknownOpCode;

    fn try_from(code: u8) -> Result<Self, Self::Error> {
        Self::all().get(usize::from(code)).copied().ok_or(UnknownOpCode(code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_lead_back() {
        for &op in ReduceOp::all() {
            assert_eq!(op.name().parse(), Ok(op));
            assert_eq!(ReduceOp::try_from(op as u8), Ok(op));
        }
        assert_eq!("avg".parse::<ReduceOp>(), Err(UnknownOp("avg".into())));
        assert_eq!(ReduceOp::try_from(11), Err(UnknownOpCode(11)));
    }

    #[test]
    fn what_has_no_meaning_is_refused_with_the_reason() {
        let refused = |op: ReduceOp| {
            let refused = DType::all().iter().filter(|dtype| op.supports(**dtype).is_err());
            refused.copied().collect::<Vec<_>>()
        };
        let (floats, others): (Vec<DType>, Vec<DType>) = DType::all().iter().partition(|dtype| dtype.is_float());
        for &op in ReduceOp::all() {
            let expected = match op {
                ReduceOp::Sum | ReduceOp::Product => vec![],
                ReduceOp::Min | ReduceOp::Max => vec![DType::Complex64],
                ReduceOp::Mean => others.clone(),
                _ => floats.clone(),
            };
            assert_eq!(refused(op), expected, "{op}");
        }
        let text = ReduceOp::Mean.supports(DType::I32).unwrap_err().to_string();
        assert!(text.starts_with("mean of i32 is not defined: ") && text.contains("divide"), "{text}");
    }
}
