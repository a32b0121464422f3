//! Plans of faults in words, as people write them on a command line.

use std::str::FromStr;
use std::time::Duration;

use super::plan::{CablePull, FaultPlan, Kill, KillMode, Odds};
use crate::CompletionStatus;

/// Why words are no plan of faults.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultSpecError {
    /// There is no such fault.
    #[error(
        "{name:?} is no fault: use drop, delay, duplicate, corrupt, fail-post, error, cable, device-loss, hang or kill"
    )]
    UnknownFault {
        /// What was written.
        name: String,
    },
    /// It does not say when.
    #[error("{fault:?} does not say when: write {fault}@N for the N-th time, {fault}@1/N or {fault}@P% for a rate")]
    NoTime {
        /// The fault.
        fault: String,
    },
    /// It says when in a way that makes no sense.
    #[error("{fault}@{when}: write N for the N-th time (from 1), 1/N or P% for a rate up to 100 %")]
    Time {
        /// The fault.
        fault: String,
        /// What was written.
        when: String,
    },
    /// What follows the colon makes no sense.
    #[error("{fault}:{argument}: {needed}")]
    Argument {
        /// The fault.
        fault: String,
        /// What was written.
        argument: String,
        /// What can be written.
        needed: &'static str,
    },
    /// One fault was named twice.
    #[error("{fault} is named twice: give it one rate or one time")]
    Twice {
        /// The fault.
        fault: String,
    },
}

/// Completion statuses by the names that a specification uses.
const STATUSES: [(&str, CompletionStatus); 10] = [
    ("local-length", CompletionStatus::LocalLength),
    ("local-queue-pair", CompletionStatus::LocalQueuePair),
    ("local-protection", CompletionStatus::LocalProtection),
    ("remote-invalid-request", CompletionStatus::RemoteInvalidRequest),
    ("remote-access", CompletionStatus::RemoteAccess),
    ("remote-operation", CompletionStatus::RemoteOperation),
    ("retry-exceeded", CompletionStatus::RetryExceeded),
    ("rnr-retry-exceeded", CompletionStatus::RnrRetryExceeded),
    ("fatal", CompletionStatus::Fatal),
    ("general", CompletionStatus::General),
];

/// Parses faults that are separated by commas, each `NAME[:ARGUMENT]@WHEN`:
///
/// | fault | what happens | argument |
/// |---|---|---|
/// | `drop` | a send request is lost; RC ends with retry-exceeded | |
/// | `delay` | a completion is withheld | how many polls (10) |
/// | `duplicate` | a SEND arrives twice (unreliable queue pairs) | |
/// | `corrupt` | a bit of a received message flips (unreliable queue pairs) | |
/// | `fail-post` | a post to the send queue is refused | |
/// | `error` | a send request ends with an error | its status, such as `remote-access` (general) |
/// | `cable` | the cable is pulled | for how long: `200ms`, `3s` (for ever) |
/// | `device-loss` | the device fails everything from then on | |
/// | `hang` | the device says nothing more | |
/// | `kill` | the process ends as by `kill -9` | |
///
/// `WHEN` is `N` (the N-th time that it could happen on the device, from 1), `1/N` or `P%` (a rate). The seed is 0 until
/// [`FaultPlan::seed`] is set.
impl FromStr for FaultPlan {
    type Err = FaultSpecError;

    fn from_str(text: &str) -> Result<FaultPlan, FaultSpecError> {
        let mut plan = FaultPlan::quiet(0);
        let mut named = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (what, when) = match item.split_once('@') {
                Some((what, when)) => (what, Some(when)),
                None => (item, None),
            };
            let (name, argument) = match what.split_once(':') {
                Some((name, argument)) => (name, Some(argument)),
                None => (what, None),
            };
            let fault = || name.to_owned();
            let odds = || {
                let when = when.ok_or_else(|| FaultSpecError::NoTime { fault: fault() })?;
                odds(when).ok_or_else(|| FaultSpecError::Time { fault: fault(), when: when.to_owned() })
            };
            let wrong = |needed| {
                let argument = argument.unwrap_or_default().to_owned();
                FaultSpecError::Argument { fault: fault(), argument, needed }
            };
            let plain = |odds: Odds| match argument {
                None => Ok(odds),
                Some(_) => Err(wrong("it takes no argument")),
            };
            match name {
                "drop" => plan.drop = plain(odds()?)?,
                "duplicate" => plan.duplicate = plain(odds()?)?,
                "corrupt" => plan.corrupt = plain(odds()?)?,
                "fail-post" => plan.fail_post = plain(odds()?)?,
                "kill" => plan.kill_process = plain(odds()?)?,
                "delay" => {
                    plan.delay = odds()?;
                    if let Some(polls) = argument {
                        plan.delay_polls = polls.parse().map_err(|_| wrong("it takes a number of polls"))?;
                    }
                }
                "error" => {
                    plan.fail_completion = odds()?;
                    if let Some(status) = argument {
                        let known = STATUSES.iter().find(|(name, _)| *name == status);
                        plan.fail_status = known.map(|(_, status)| *status).ok_or_else(|| {
                            wrong(
                                "it takes a status: local-length, local-queue-pair, local-protection, \
                                   remote-invalid-request, remote-access, remote-operation, retry-exceeded, \
                                   rnr-retry-exceeded, fatal or general",
                            )
                        })?;
                    }
                }
                "cable" => {
                    let lasts = argument.map(|text| duration(text).ok_or_else(|| wrong("it takes a time: 200ms, 3s")));
                    plan.cable = Some(CablePull { when: odds()?, lasts: lasts.transpose()? });
                }
                "device-loss" => plan.kill = Some(Kill { when: plain(odds()?)?, mode: KillMode::FailsEverything }),
                "hang" => plan.kill = Some(Kill { when: plain(odds()?)?, mode: KillMode::Silent }),
                _ => return Err(FaultSpecError::UnknownFault { name: fault() }),
            }
            // A device dies once, in one way.
            let key = if name == "hang" { "device-loss" } else { name };
            if named.contains(&key) {
                return Err(FaultSpecError::Twice { fault: fault() });
            }
            named.push(key);
        }
        Ok(plan)
    }
}

fn odds(when: &str) -> Option<Odds> {
    if let Some(count) = when.strip_prefix("1/") {
        return count.parse().ok().filter(|count| (1..=1_000_000).contains(count)).map(Odds::one_in);
    }
    if let Some(percent) = when.strip_suffix('%') {
        let percent: f64 = percent.trim().parse().ok()?;
        let sensible = percent > 0.0 && percent <= 100.0;
        return sensible.then(|| Odds::per_million((percent * 10_000.0).round().max(1.0) as u32));
    }
    when.parse().ok().filter(|nth| *nth > 0).map(Odds::at)
}

fn duration(text: &str) -> Option<Duration> {
    if let Some(milliseconds) = text.strip_suffix("ms") {
        return milliseconds.parse().ok().map(Duration::from_millis);
    }
    text.strip_suffix('s')?.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_fault_is_understood() {
        let text = "drop@1/1000, delay:7@5%,duplicate@0.5%,corrupt@17,fail-post@3,error:remote-access@1/20,\
                    cable:200ms@100,device-loss@5000,kill@10000";
        let plan: FaultPlan = text.parse().unwrap();
        let expected = FaultPlan {
            drop: Odds::one_in(1000),
            delay: Odds::per_million(50_000),
            delay_polls: 7,
            duplicate: Odds::per_million(5_000),
            corrupt: Odds::at(17),
            fail_post: Odds::at(3),
            fail_completion: Odds::one_in(20),
            fail_status: CompletionStatus::RemoteAccess,
            cable: Some(CablePull { when: Odds::at(100), lasts: Some(Duration::from_millis(200)) }),
            kill: Some(Kill { when: Odds::at(5000), mode: KillMode::FailsEverything }),
            kill_process: Odds::at(10_000),
            ..FaultPlan::quiet(0)
        };
        assert_eq!(plan, expected);
        let hang: FaultPlan = "hang@2,cable@9".parse().unwrap();
        assert_eq!(hang.kill, Some(Kill { when: Odds::at(2), mode: KillMode::Silent }));
        assert_eq!(hang.cable, Some(CablePull { when: Odds::at(9), lasts: None }));
        assert_eq!("".parse(), Ok(FaultPlan::quiet(0)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| text.parse::<FaultPlan>().unwrap_err().to_string();
        assert!(error("explode@1").contains("\"explode\" is no fault: use drop"));
        assert!(error("drop").contains("drop@1/N"));
        for when in ["0", "1/0", "0%", "101%", "-3", "often", "1/2000000"] {
            assert!(error(&format!("drop@{when}")).contains("rate up to 100 %"), "{when}");
        }
        assert!(error("drop:3@1").contains("no argument"));
        assert!(error("error:sad@1").contains("remote-access"));
        assert!(error("cable:soon@1").contains("200ms"));
        assert!(error("delay:x@1").contains("polls"));
        assert!(error("drop@1,drop@2").contains("twice"));
        assert!(error("hang@1,device-loss@2").contains("twice"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-z@:,%/.0-9 -]{0,40}") {
            let _ = text.parse::<FaultPlan>();
        }
    }
}
