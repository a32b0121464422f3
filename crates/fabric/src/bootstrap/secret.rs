//! The secret that the ranks of a world share.

use std::fmt;

use fulmen_trust::{Authority, TrustError};

/// 32 random bytes that the coordinator and the ranks of one world share. Whoever has them belongs to it. `Debug` prints none of them.
#[derive(Clone)]
pub struct Secret([u8; 32]);

/// Why a secret could not be made or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The operating system gave no random bytes.
    #[error("the operating system gives no random bytes ({0}): check that getrandom is allowed here")]
    NoRandomness(String),
    /// The text is no secret.
    #[error("this is no secret: expected 64 lower-case hexadecimal digits")]
    Malformed,
}

impl Secret {
    /// Takes a new secret from the operating system.
    pub fn generate() -> Result<Secret, SecretError> {
        random().map(Secret)
    }

    /// Reads a secret from 64 lower-case hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Secret, SecretError> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(SecretError::Malformed);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Secret(bytes))
    }

    /// The secret as 64 lower-case hexadecimal digits, as `FULMEN_SECRET_FD` carries it. Keep it off the screen.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The authority of the world that has this secret: what its processes know each other by.
    ///
    /// # Errors
    /// [`TrustError::Keys`].
    pub fn authority(&self) -> Result<Authority, TrustError> {
        Authority::from_secret(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

pub(super) fn random<const N: usize>() -> Result<[u8; N], SecretError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| SecretError::NoRandomness(error.to_string()))?;
    Ok(bytes)
}

fn nibble(digit: u8) -> Result<u8, SecretError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(SecretError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trips_and_debug_says_nothing() {
        let secret = Secret::generate().unwrap();
        let hex = secret.to_hex();
        assert_eq!(hex.len(), 64);
        assert_eq!(Secret::from_hex(&hex).unwrap().0, secret.0);
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }

    #[test]
    fn anything_but_64_lower_case_digits_is_refused() {
        let good = "0123456789abcdef".repeat(4);
        assert!(Secret::from_hex(&good).is_ok());
        for bad in ["", &good[1..], &format!("{good}0"), &good.to_uppercase(), &good.replace('0', "g"), &"é".repeat(32)]
        {
            assert_eq!(Secret::from_hex(bad).unwrap_err(), SecretError::Malformed, "{bad}");
        }
    }
}
