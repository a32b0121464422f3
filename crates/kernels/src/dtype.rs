//! The types of elements, as values that travel between ranks.

use std::fmt;
use std::str::FromStr;

/// The type of the elements in a buffer.
///
/// The discriminants are part of the wire format: ranks compare them before they reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DType {
    /// One byte; zero is false, anything else is read as true, and results are 0 or 1.
    Bool = 0,
    /// Signed 8-bit integer.
    I8 = 1,
    /// Signed 16-bit integer.
    I16 = 2,
    /// Signed 32-bit integer.
    I32 = 3,
    /// Signed 64-bit integer.
    I64 = 4,
    /// Unsigned 8-bit integer.
    U8 = 5,
    /// Unsigned 16-bit integer.
    U16 = 6,
    /// Unsigned 32-bit integer.
    U32 = 7,
    /// Unsigned 64-bit integer.
    U64 = 8,
    /// IEEE 754 binary16.
    F16 = 9,
    /// bfloat16: the upper half of a binary32.
    BF16 = 10,
    /// IEEE 754 binary32.
    F32 = 11,
    /// IEEE 754 binary64.
    F64 = 12,
    /// Two binary32: the real part, then the imaginary part.
    Complex64 = 13,
}

impl DType {
    /// Every type, in the order of the discriminants.
    pub const fn all() -> &'static [DType] {
        use DType::*;
        &[Bool, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64, Complex64]
    }

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        use DType::*;
        match self {
            Bool | I8 | U8 => 1,
            I16 | U16 | F16 | BF16 => 2,
            I32 | U32 | F32 => 4,
            I64 | U64 | F64 | Complex64 => 8,
        }
    }

    /// Whether elements are floats, or complex numbers of them: not integers, and not bool.
    pub const fn is_float(self) -> bool {
        use DType::*;
        matches!(self, F16 | BF16 | F32 | F64 | Complex64)
    }

    /// The name by which [`FromStr`] finds the type again, e.g. `f32`.
    pub const fn name(self) -> &'static str {
        use DType::*;
        match self {
            Bool => "bool",
            I8 => "i8",
            I16 => "i16",
            I32 => "i32",
            I64 => "i64",
            U8 => "u8",
            U16 => "u16",
            U32 => "u32",
            U64 => "u64",
            F16 => "f16",
            BF16 => "bf16",
            F32 => "f32",
            F64 => "f64",
            Complex64 => "complex64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text names no element type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no element type; use one of bool, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, complex64"
)]
pub struct UnknownDType(String);

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::all().iter().copied().find(|dtype| dtype.name() == text).ok_or_else(|| UnknownDType(text.to_owned()))
    }
}

/// A byte from another rank stands for no element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no code of an element type; do all ranks run the same version?")]
pub struct UnknownDTypeCode(u8);

impl TryFrom<u8> for DType {
    type Error = UnknownDTypeCode;

    fn try_from(code: u8) -> Result<Self, Self::Error> {
        Self::all().get(usize::from(code)).copied().ok_or(UnknownDTypeCode(code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_lead_back() {
        for &dtype in DType::all() {
            assert_eq!(dtype.name().parse(), Ok(dtype));
            assert_eq!(DType::try_from(dtype as u8), Ok(dtype));
        }
        assert_eq!("float".parse::<DType>(), Err(UnknownDType("float".into())));
        assert_eq!(DType::try_from(14), Err(UnknownDTypeCode(14)));
    }
}
