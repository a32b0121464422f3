//! Sizes as people write them.

use std::str::FromStr;

/// A number of bytes: `8`, `64K`, `16M`, `1G` (powers of 1024; `KiB` and `KB` mean the same).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
        let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
            "" | "B" => Some(0),
            "K" | "KB" | "KIB" => Some(10),
            "M" | "MB" | "MIB" => Some(20),
            "G" | "GB" | "GIB" => Some(30),
            _ => None,
        };
        let bytes = shift.and_then(|shift| digits.parse::<u64>().ok()?.checked_mul(1 << shift));
        bytes.map(Size).ok_or_else(|| "give a size such as 8, 64K or 16M".to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        for (text, bytes) in [("8", 8), ("64k", 64 << 10), ("16M", 16 << 20), ("2GiB", 2 << 30), ("0", 0), ("7b", 7)] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for wrong in ["", "K", "-1", "1.5K", "8T", "8 K", "99999999999999999999", "17179869184G", "é"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }
}
