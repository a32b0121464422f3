//! The checks that records have in common.

use crate::error::{AbiError, Field};
use crate::party::VERSION;

/// The words at the beginning of a record.
pub(crate) fn head(record: &'static str, magic: u32, found: u32, version: u32) -> Result<(), AbiError> {
    if found != magic {
        return Err(AbiError::Magic { record, found });
    }
    if version != VERSION {
        return Err(AbiError::Version { record, found: version });
    }
    Ok(())
}

/// Words without a meaning.
pub(crate) fn zero<T: Copy + Into<u64>>(of: &'static str, name: &'static str, words: &[T]) -> Result<(), AbiError> {
    if words.iter().all(|word| (*word).into() == 0) {
        Ok(())
    } else {
        Err(AbiError::NotZero { field: Field { of, name } })
    }
}

/// At most `max`.
pub(crate) fn at_most(of: &'static str, name: &'static str, value: u64, max: u64) -> Result<(), AbiError> {
    if value <= max { Ok(()) } else { Err(AbiError::TooLarge { field: Field { of, name }, value, max }) }
}

/// A number that means something.
pub(crate) fn code<W: Copy + Into<u64>, T>(
    of: &'static str,
    name: &'static str,
    word: W,
    known: impl Fn(W) -> Option<T>,
) -> Result<T, AbiError> {
    known(word).ok_or(AbiError::Unknown { field: Field { of, name }, value: word.into() })
}

/// A number that means something, or 0 for nothing.
pub(crate) fn optional<W: Copy + Into<u64>, T>(
    of: &'static str,
    name: &'static str,
    word: W,
    known: impl Fn(W) -> Option<T>,
) -> Result<Option<T>, AbiError> {
    if word.into() == 0 { Ok(None) } else { code(of, name, word, known).map(Some) }
}

/// 0 or 1.
pub(crate) fn truth<W: Copy + Into<u64>>(of: &'static str, name: &'static str, word: W) -> Result<bool, AbiError> {
    code(of, name, word, |word| match word.into() {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    })
}

/// Bits without a meaning.
pub(crate) fn zero_bits(of: &'static str, name: &'static str, unknown: u32) -> Result<(), AbiError> {
    if unknown == 0 { Ok(()) } else { Err(AbiError::Unknown { field: Field { of, name }, value: unknown.into() }) }
}
