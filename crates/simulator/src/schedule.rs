//! The schedule of a run: a list of decisions, each of which can be left out.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// One decision of a schedule. Left out, it is as if it had been decided that nothing happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// What strikes nodes or links at this step. Written `17!`.
    Strike {
        /// The step, from 0.
        step: u64,
    },
    /// The operation of this step. Written `17`.
    Operation {
        /// The step.
        step: u64,
    },
    /// What becomes of a frame. Written `17:0-1.2`.
    Frame {
        /// The step in which it was sent.
        step: u64,
        /// Its sender.
        from: u32,
        /// Its receiver.
        to: u32,
        /// Which one of this step's, sender's and receiver's, from 0.
        nth: u32,
    },
}

impl Choice {
    /// The step to which it belongs.
    #[must_use]
    pub fn step(&self) -> u64 {
        match *self {
            Choice::Strike { step } | Choice::Operation { step } | Choice::Frame { step, .. } => step,
        }
    }
}

impl Ord for Choice {
    /// By step, and then in the order in which they are made.
    fn cmp(&self, other: &Choice) -> Ordering {
        let place = |choice: &Choice| match *choice {
            Choice::Strike { step } => (step, 0, 0, 0, 0),
            Choice::Operation { step } => (step, 1, 0, 0, 0),
            Choice::Frame { step, from, to, nth } => (step, 2, from, to, nth),
        };
        place(self).cmp(&place(other))
    }
}

impl PartialOrd for Choice {
    fn partial_cmp(&self, other: &Choice) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Strike { step } => write!(f, "{step}!"),
            Choice::Operation { step } => write!(f, "{step}"),
            Choice::Frame { step, from, to, nth } => write!(f, "{step}:{from}-{to}.{nth}"),
        }
    }
}

/// The choices of a schedule that are kept; all others are left out. Written as a list such as `3,17!,29:0-1.2`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    sorted: Vec<Choice>,
}

impl Keep {
    /// Keeps these.
    #[must_use]
    pub fn new(mut choices: Vec<Choice>) -> Keep {
        choices.sort_unstable();
        choices.dedup();
        Keep { sorted: choices }
    }

    /// Whether a choice is kept.
    #[must_use]
    pub fn has(&self, choice: Choice) -> bool {
        self.sorted.binary_search(&choice).is_ok()
    }

    /// Those that are kept, in order.
    #[must_use]
    pub fn choices(&self) -> &[Choice] {
        &self.sorted
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, choice) in self.sorted.iter().enumerate() {
            write!(f, "{}{choice}", if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// A list of choices that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{part}` is no choice of a schedule: one is written 17, 17! or 17:0-1.2")]
pub struct KeepError {
    part: String,
}

impl FromStr for Choice {
    type Err = KeepError;

    fn from_str(part: &str) -> Result<Choice, KeepError> {
        let read = || -> Option<Choice> {
            if let Some(step) = part.strip_suffix('!') {
                return Some(Choice::Strike { step: step.parse().ok()? });
            }
            let Some((step, frame)) = part.split_once(':') else {
                return Some(Choice::Operation { step: part.parse().ok()? });
            };
            let (from, rest) = frame.split_once('-')?;
            let (to, nth) = rest.split_once('.')?;
            let (step, from, to, nth) = (step.parse().ok()?, from.parse().ok()?, to.parse().ok()?, nth.parse().ok()?);
            Some(Choice::Frame { step, from, to, nth })
        };
        read().ok_or_else(|| KeepError { part: part.into() })
    }
}

impl FromStr for Keep {
    type Err = KeepError;

    /// An empty list keeps nothing.
    fn from_str(text: &str) -> Result<Keep, KeepError> {
        let parts = text.split([',', '\n']).map(str::trim).filter(|part| !part.is_empty());
        Ok(Keep::new(parts.map(str::parse).collect::<Result<_, _>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_read() {
        let text = "3,17!,17,29:0-1.2,30";
        let keep: Keep = text.parse().unwrap();
        assert_eq!(keep.to_string(), text);
        assert!(keep.has(Choice::Strike { step: 17 }) && keep.has(Choice::Operation { step: 17 }));
        assert!(!keep.has(Choice::Strike { step: 3 }));
        assert!(keep.has(Choice::Frame { step: 29, from: 0, to: 1, nth: 2 }));
        assert_eq!("".parse::<Keep>().unwrap(), Keep::default());
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["x", "1,-2", "3:0-1", "3:0.1", "!", "99999999999999999999"] {
            let error = text.parse::<Keep>().unwrap_err().to_string();
            assert!(error.contains('`') && !error.contains('\n'), "{error}");
        }
    }
}
