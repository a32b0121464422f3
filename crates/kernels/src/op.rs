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
}

impl ReduceOp {
    /// Every operation, in the order of the discriminants.
    pub const fn all() -> &'static [ReduceOp] {
        &[ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max]
    }

    /// The name by which [`FromStr`] finds the operation again, e.g. `sum`.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Product => "product",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
        }
    }

    /// Whether elements of `dtype` can be combined in this way: complex numbers have no order, so no minimum or maximum.
    pub const fn supports(self, dtype: DType) -> Result<(), Unsupported> {
        match (self, dtype) {
            (ReduceOp::Min | ReduceOp::Max, DType::Complex64) => Err(Unsupported { op: self, dtype }),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The operation has no meaning for the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op} of {dtype} is not defined: complex numbers have no order; reduce magnitudes or parts instead")]
pub struct Unsupported {
    /// The operation that was asked for.
    pub op: ReduceOp,
    /// The type of the elements.
    pub dtype: DType,
}

/// A text names no operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no reduction; use one of sum, product, min, max")]
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
        assert_eq!(ReduceOp::try_from(4), Err(UnknownOpCode(4)));
    }

    #[test]
    fn complex_numbers_have_no_order() {
        for &op in ReduceOp::all() {
            for &dtype in DType::all() {
                let refused = dtype == DType::Complex64 && matches!(op, ReduceOp::Min | ReduceOp::Max);
                assert_eq!(op.supports(dtype).is_err(), refused, "{op} of {dtype}");
            }
        }
    }
}
