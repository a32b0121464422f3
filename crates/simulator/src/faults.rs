//! What goes wrong, and how often.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How often each fault strikes. Written as a list such as `drop=0.02,delay=10ms`, or `none`.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// Of the frames on carriers that promise nothing: this share is lost.
    pub drop: f64,
    /// Comes twice.
    pub dup: f64,
    /// Is held up, for up to [`Faults::delay`], while later ones overtake it.
    pub reorder: f64,
    /// Comes with wrong bits.
    pub corrupt: f64,
    /// The longest time for which a frame is held up.
    pub delay: Duration,
    /// At this share of the steps, some nodes are cut off from the others for a while.
    pub partition: f64,
    /// One node does nothing for a while.
    pub pause: f64,
    /// One link breaks, at both ends.
    pub cut: f64,
    /// One node dies. At least one stays.
    pub kill: f64,
    /// A dead node comes back, if there is one.
    pub rejoin: f64,
}

/// Why a list of faults is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultsError {
    /// A part without `=`.
    #[error("`{part}` is no fault: write `none`, or a list such as `drop=0.02,delay=10ms`")]
    Shape {
        /// The part.
        part: String,
    },
    /// There is no such fault.
    #[error("there is no fault `{name}`: known are {}", NAMES.join(", "))]
    Unknown {
        /// Its name.
        name: String,
    },
    /// A share that is no number from 0 to 1.
    #[error("`{name}={value}`: a share from 0 to 1 is expected, such as 0.02")]
    Share {
        /// The fault.
        name: String,
        /// What was given.
        value: String,
    },
    /// No time, or one beyond a second.
    #[error("`delay={value}`: a time of up to 1s is expected, such as 500us or 10ms")]
    Delay {
        /// What was given.
        value: String,
    },
}

const NAMES: [&str; 10] = ["drop", "dup", "reorder", "corrupt", "delay", "partition", "pause", "cut", "kill", "rejoin"];

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            drop: 0.02,
            dup: 0.01,
            reorder: 0.05,
            corrupt: 0.01,
            delay: Duration::from_millis(2),
            partition: 0.001,
            pause: 0.001,
            cut: 0.0005,
            kill: 0.0005,
            rejoin: 0.01,
        }
    }
}

impl Faults {
    /// No faults at all.
    #[must_use]
    pub fn none() -> Faults {
        Faults {
            drop: 0.0,
            dup: 0.0,
            reorder: 0.0,
            corrupt: 0.0,
            delay: Duration::from_millis(2),
            partition: 0.0,
            pause: 0.0,
            cut: 0.0,
            kill: 0.0,
            rejoin: 0.0,
        }
    }

    fn share(&mut self, name: &str) -> Option<&mut f64> {
        Some(match name {
            "drop" => &mut self.drop,
            "dup" => &mut self.dup,
            "reorder" => &mut self.reorder,
            "corrupt" => &mut self.corrupt,
            "partition" => &mut self.partition,
            "pause" => &mut self.pause,
            "cut" => &mut self.cut,
            "kill" => &mut self.kill,
            "rejoin" => &mut self.rejoin,
            _ => return None,
        })
    }
}

impl FromStr for Faults {
    type Err = FaultsError;

    /// A fault that the list does not name does not strike.
    fn from_str(text: &str) -> Result<Faults, FaultsError> {
        let mut faults = Faults::none();
        if text == "none" {
            return Ok(faults);
        }
        for part in text.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(|| FaultsError::Shape { part: part.into() })?;
            if name == "delay" {
                faults.delay = delay(value).ok_or_else(|| FaultsError::Delay { value: value.into() })?;
                continue;
            }
            let share = faults.share(name).ok_or_else(|| FaultsError::Unknown { name: name.into() })?;
            let wrong = || FaultsError::Share { name: name.into(), value: value.into() };
            *share = value.parse().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(wrong)?;
        }
        Ok(faults)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut faults = self.clone();
        let mut separator = "";
        for name in NAMES {
            let Some(share) = faults.share(name).map(|share| *share) else { continue };
            if share > 0.0 {
                write!(f, "{separator}{name}={share}")?;
                separator = ",";
            }
        }
        if separator.is_empty() {
            return f.write_str("none");
        }
        let micros = self.delay.as_micros();
        if micros.is_multiple_of(1000) {
            write!(f, ",delay={}ms", micros / 1000)
        } else {
            write!(f, ",delay={micros}us")
        }
    }
}

fn delay(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..digits].parse().ok()?;
    let micros = match &text[digits..] {
        "us" => number,
        "ms" => number.checked_mul(1000)?,
        "s" => number.checked_mul(1_000_000)?,
        _ => return None,
    };
    (micros <= 1_000_000).then(|| Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_read() {
        for text in ["none", "drop=0.5", "drop=0.02,kill=1,delay=1500us", "reorder=0.25,delay=1s"] {
            let faults: Faults = text.parse().unwrap();
            assert_eq!(faults.to_string().parse::<Faults>().unwrap(), faults, "{text}");
        }
        let faults = Faults::default();
        assert_eq!(faults.to_string().parse::<Faults>().unwrap(), faults);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for text in ["", "drop", "drip=1", "drop=x", "drop=-1", "drop=1.5", "drop=NaN", "delay=1", "delay=2s", "delay="]
        {
            let error = text.parse::<Faults>().unwrap_err().to_string();
            assert!(!error.contains('\n') && error.len() > 30, "{error}");
        }
    }
}
