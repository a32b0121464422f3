//! What the checks found, for people and for programs.

use std::fmt::Write as _;

use serde::Serialize;

/// How a check ended. The later ones are worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// There is nothing to check here.
    NotApplicable,
    /// All is well.
    Ok,
    /// It works, but less well than it could, or not for everything.
    Warning,
    /// It does not work.
    Failure,
}

impl Outcome {
    /// What stands before a line.
    fn mark(self) -> &'static str {
        match self {
            Outcome::NotApplicable => "-",
            Outcome::Ok => "ok",
            Outcome::Warning => "warning",
            Outcome::Failure => "FAILURE",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub struct Check {
    /// What was looked at, in a word or two. Things of which there are several have a check each, with the same name.
    pub name: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// What was found. It names the thing.
    pub sentence: String,
    /// The way out, if one is needed.
    pub fix: Option<String>,
    /// What was looked at crashed or hung, as it does in every process that does the same.
    #[serde(skip)]
    pub deadly: bool,
}

impl Check {
    /// All is well.
    pub fn ok(name: &'static str, sentence: impl Into<String>) -> Check {
        Check { name, outcome: Outcome::Ok, sentence: sentence.into(), fix: None, deadly: false }
    }

    /// There is nothing to check.
    pub fn not_applicable(name: &'static str, sentence: impl Into<String>) -> Check {
        Check { name, outcome: Outcome::NotApplicable, sentence: sentence.into(), fix: None, deadly: false }
    }

    /// It works, but could work better.
    pub fn warning(name: &'static str, sentence: impl Into<String>, fix: impl Into<String>) -> Check {
        Check { name, outcome: Outcome::Warning, sentence: sentence.into(), fix: Some(fix.into()), deadly: false }
    }

    /// It does not work.
    pub fn failure(name: &'static str, sentence: impl Into<String>, fix: impl Into<String>) -> Check {
        Check { name, outcome: Outcome::Failure, sentence: sentence.into(), fix: Some(fix.into()), deadly: false }
    }
}

/// All that was found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Of this program.
    version: &'static str,
    checks: Vec<Check>,
    /// The worst outcome; `ok` where nothing else was found.
    verdict: Outcome,
}

impl Report {
    /// Sums up.
    pub fn new(checks: Vec<Check>) -> Report {
        let verdict = checks.iter().map(|check| check.outcome).fold(Outcome::Ok, Outcome::max);
        Report { version: env!("CARGO_PKG_VERSION"), checks, verdict }
    }

    /// The command's exit code.
    pub fn code(&self) -> u8 {
        match self.verdict {
            Outcome::NotApplicable | Outcome::Ok => 0,
            Outcome::Warning => 1,
            Outcome::Failure => 2,
        }
    }

    /// One line a check, and its fix below it.
    pub fn describe(&self) -> String {
        let width = self.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for check in &self.checks {
            let _ =
                writeln!(text, "{:<7}  {:<width$}  {}", check.outcome.mark(), check.name, one_line(&check.sentence));
            if let Some(fix) = &check.fix {
                let _ = writeln!(text, "{:<7}  {:<width$}    {}", "", "", one_line(fix));
            }
        }
        let count = |outcome| self.checks.iter().filter(|check| check.outcome == outcome).count();
        let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let (failures, warnings) = (count(Outcome::Failure), count(Outcome::Warning));
        let _ = match self.verdict {
            Outcome::NotApplicable | Outcome::Ok => writeln!(text, "all is well"),
            _ => writeln!(text, "{}, {}", plural(failures, "failure"), plural(warnings, "warning")),
        };
        text
    }
}

/// Names and words that come from elsewhere break no line and command no terminal.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for character in text.chars() {
        if character.is_control() { line.extend(character.escape_default()) } else { line.push(character) }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_outcome_decides() {
        let with = |checks| Report::new(checks);
        let ok = || Check::ok("a", "is well");
        assert_eq!(with(vec![]).code(), 0);
        assert_eq!(with(vec![ok(), Check::not_applicable("b", "is not here")]).code(), 0);
        assert_eq!(with(vec![Check::warning("b", "is slow", "make it fast"), ok()]).code(), 1);
        let report = with(vec![Check::failure("b", "is broken", "mend it"), Check::warning("c", "x", "y"), ok()]);
        assert_eq!(report.code(), 2);
        let text = report.describe();
        assert!(text.starts_with("FAILURE  b  is broken\n              mend it\n"), "{text:?}");
        assert!(text.ends_with("1 failure, 1 warning\n"), "{text:?}");
    }

    #[test]
    fn a_line_stays_one() {
        let text = Report::new(vec![Check::ok("a", "named x\n\u{1b}[2J")]).describe();
        assert_eq!(text, "ok       a  named x\\n\\u{1b}[2J\nall is well\n");
    }
}
