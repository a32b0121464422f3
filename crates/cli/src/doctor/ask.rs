//! Questions that a child process answers, since the answer may be a crash or none.

use std::process::ExitCode;
use std::time::Duration;

use fulmen::parts::reach::Node;

use super::ASK;
use crate::child::{self, Trouble};
use crate::devices::try_windows;

/// What a child is asked.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Question {
    /// Whether memory can be mapped over the path that peers take.
    Windows,
}

/// Answers, in the child.
pub fn answer(question: Question) -> anyhow::Result<ExitCode> {
    match question {
        Question::Windows => child::answer(|| try_windows(&Node::open()?)),
    }
}

/// Asks children.
pub struct Asker {
    /// How long each may take.
    pub patience: Duration,
}

impl Asker {
    /// Whether memory can be mapped over the path that peers take.
    pub fn windows(&self) -> Result<(), Trouble> {
        child::ask(&[ASK, "windows"], self.patience)
    }
}
