//! What a case is, what it needs, and how it ends.

use fulmen_memory::RegionError;

use super::seat::Seat;
use crate::{FabricError, FabricOptions, Flow, RecoveryError, StartError};

/// How a case ends when it does not pass.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// The fabric broke a promise.
    Failed(String),
    /// The carrier has not what the case needs.
    Missing(String),
}

pub(super) type Outcome<T = ()> = Result<T, Failure>;

impl From<FabricError> for Failure {
    fn from(error: FabricError) -> Failure {
        Failure::Failed(error.to_string())
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Failure {
        Failure::Failed(format!("the fabric did not start: {error}"))
    }
}

impl From<RecoveryError> for Failure {
    fn from(error: RecoveryError) -> Failure {
        Failure::Failed(format!("no new generation: {error}"))
    }
}

impl From<RegionError> for Failure {
    fn from(error: RegionError) -> Failure {
        Failure::Failed(format!("no memory to test with: {error}"))
    }
}

/// Ends a case as failed unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            return Err($crate::conformance::case::Failure::Failed(format!($($words)+)));
        }
    };
}

/// Ends a case as failed unless both are equal.
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($words:tt)+) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            let what = format!($($words)+);
            return Err($crate::conformance::case::Failure::Failed(format!("{what}: {left:?}, and not {right:?}")));
        }
    }};
}

/// Ends a case as failed unless an outcome is an error of this pattern, and gives the error's text.
macro_rules! ensure_error {
    ($outcome:expr, $pattern:pat $(if $guard:expr)?, $($words:tt)+) => {
        match $outcome {
            Err(error) => {
                let text = error.to_string();
                match &error {
                    $pattern $(if $guard)? => text,
                    _ => return Err($crate::conformance::case::Failure::Failed(
                        format!("{}: another error: {text}", format_args!($($words)+)),
                    )),
                }
            }
            Ok(value) => return Err($crate::conformance::case::Failure::Failed(
                format!("{}: {value:?}, and no error", format_args!($($words)+)),
            )),
        }
    };
}
pub(super) use {ensure, ensure_eq, ensure_error};

/// What a world must have for a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Ranks map one another's memory.
    Windows,
}

/// How much a link of the case's world carries at once.
#[derive(Clone, Copy, Debug)]
pub(super) enum Load {
    /// As by default.
    Usual,
    /// Frames as short and credits as few as are allowed, and next to nothing is kept.
    Narrow,
}

/// One promise, and how it is checked.
pub(super) struct Case {
    pub name: &'static str,
    pub ranks: u32,
    pub load: Load,
    pub needs: &'static [Need],
    /// Run by each rank.
    pub run: fn(&mut Seat<'_>) -> Outcome,
}

impl Case {
    /// A case for so many ranks.
    pub(super) const fn new(name: &'static str, ranks: u32, run: fn(&mut Seat<'_>) -> Outcome) -> Case {
        Case { name, ranks, load: Load::Usual, needs: &[], run }
    }

    /// The same over links that carry little at once.
    pub(super) const fn narrow(self) -> Case {
        Case { load: Load::Narrow, ..self }
    }

    /// The same where there is this.
    pub(super) const fn needs(self, needs: &'static [Need]) -> Case {
        Case { needs, ..self }
    }

    pub(super) fn options(&self) -> FabricOptions {
        let flow = match self.load {
            // What is long is the same over every carrier.
            Load::Usual => Flow { rendezvous_tcp: Flow::default().rendezvous, ..Flow::default() },
            Load::Narrow => Flow { frame: 256, credits: 16, rendezvous: 3000, rendezvous_tcp: 3000, unexpected: 1000 },
        };
        FabricOptions {
            pool: 32 << 20,
            timeout: super::PATIENCE,
            farewell: super::PATIENCE,
            flow,
            ..FabricOptions::default()
        }
    }
}
