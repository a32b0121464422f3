//! One program with one set of options.

use std::env;
use std::process::Command;

use fulmen_testbed::Tier;

/// What a test finds wrong.
pub type Outcome = Result<(), String>;

/// A program of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    /// How it is called, and looked for in `PATH`.
    pub name: &'static str,
    /// Debian's package.
    pub package: &'static str,
}

/// A test.
pub struct Case {
    pub program: Program,
    /// What is special about it, for its name.
    pub title: String,
    /// The least tier that it is part of.
    pub tier: Tier,
    pub run: Box<dyn Fn() -> Outcome + Send>,
}

impl Case {
    pub fn new(
        program: Program,
        title: impl Into<String>,
        fast: bool,
        run: impl Fn() -> Outcome + Send + 'static,
    ) -> Case {
        let tier = if fast { Tier::Fast } else { Tier::Full };
        Case { program, title: title.into(), tier, run: Box::new(run) }
    }

    /// The same as part of this tier.
    pub fn of(self, tier: Tier) -> Case {
        Case { tier, ..self }
    }

    /// The test's name.
    pub fn name(&self) -> String {
        format!("{}: {}", self.program.name, self.title)
    }
}

impl Program {
    pub const fn of(package: &'static str, name: &'static str) -> Program {
        Program { name, package }
    }

    /// Whether it is there.
    pub fn is_installed(self) -> bool {
        env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(self.name).is_file()))
    }

    /// The version of its package, as far as that is known.
    pub fn version(self) -> String {
        let mut query = Command::new("dpkg-query");
        let output = query.args(["-W", "-f=${Version}", self.package]).output();
        let version = output.ok().filter(|output| output.status.success());
        version.map_or("unknown".into(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// A number of rounds, at least and at most.
pub fn rounds(least: u32, most: u32) -> String {
    fulmen_testbed::by_tier(least, least, most).to_string()
}

/// Fails with what was seen unless a condition holds.
pub fn expect(holds: bool, what: &str, seen: &str) -> Outcome {
    if holds { Ok(()) } else { Err(format!("{what}; it said:\n{}", last_lines(seen))) }
}

/// The end of what a program said.
pub fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}
