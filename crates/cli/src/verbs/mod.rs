//! Programs that speak libibverbs, run over the software device: `fulmen run --verbs` and `fulmen verbs`.
//!
//! The device comes as a shared object that stands in for the system's libibverbs and librdmacm ([`library`] finds it). A
//! [`folder`] of this user's holds it under the names that programs look for, and [`environment`] has them look there first.
//! [`lint`] sums up which rules of the hardware the programs broke.

mod environment;
mod folder;
mod library;
mod lint;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fulmen::parts::verbs::FaultPlan;

use crate::output;
use crate::run::Profile;
use environment::Settings;
use folder::Folder;
use lint::Report;

/// Make the software RDMA device known to programs that a script starts.
///
/// Prints shell commands that set the environment in which programs find Fulmen's libibverbs and librdmacm before the
/// system's: `eval "$(fulmen verbs --print-env)"`. They hold for as long as the runtime folder does, usually until the machine
/// restarts.
#[derive(clap::Args)]
pub struct Args {
    /// Print `export NAME=VALUE` lines.
    #[arg(long, required = true)]
    print_env: bool,
    /// Follow the limits and rules of this hardware [default: infiniband].
    #[arg(long, value_enum, env = "FULMEN_PROFILE")]
    profile: Option<Profile>,
    #[command(flatten)]
    options: Options,
}

/// What the device does beside following a profile.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Allow as little as the poorest hardware that was seen: 3 queue pairs, 6 completion queues, 6 protection domains.
    #[arg(long)]
    strict: bool,
    /// How many devices programs see, 1 to 8 [default: 1; 3 with the rules of Thunderbolt].
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u8).range(1..=8), allow_negative_numbers = true)]
    devices: Option<u8>,
    /// What becomes of a call that breaks a rule of the hardware although it would work here [default: off; log with the
    /// rules of Thunderbolt].
    #[arg(long, value_enum)]
    lint: Option<Lint>,
    /// Faults to make on purpose, for example drop@1/100,delay@5% or kill@1000 (docs/verbs.md has the grammar).
    #[arg(long, value_name = "SPEC", value_parser = faults)]
    faults: Option<String>,
    /// The seed of the faults' schedule [default: 0].
    #[arg(long, value_name = "N", requires = "faults")]
    seed: Option<u64>,
}

/// What becomes of a call that breaks a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Lint {
    /// Nothing.
    Off,
    /// A line says which call broke which rule.
    Log,
    /// The same, and the run ends with exit code 65.
    Fail,
}

impl Lint {
    fn name(self) -> &'static str {
        match self {
            Lint::Off => "off",
            Lint::Log => "log",
            Lint::Fail => "fail",
        }
    }
}

/// The exit code of a run whose programs succeeded, but broke rules that `--lint fail` guards.
pub const RULES_BROKEN: u8 = 65;

/// Why programs cannot be run over the software device.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// An option that has no meaning without another.
    #[error("{option} needs --verbs: it is about the RDMA device that --verbs gives to the program")]
    Alone {
        /// The option.
        option: &'static str,
    },
    /// The library is not where it should be.
    #[error(
        "cannot find Fulmen's verbs library: there is no {}; build it beside this program (`cargo build`, with \
         --release if this program was), or name its file in FULMEN_VERBS_DROPIN",
        tried.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    NoLibrary {
        /// Where it was looked for.
        tried: Vec<PathBuf>,
    },
    /// The folder for the links cannot be made, or is not safe.
    #[error("cannot use {} for the verbs library: {cause}; XDG_RUNTIME_DIR names another place", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
    /// What the programs reported cannot be read.
    #[error("cannot read which rules were broken ({}): {error}", path.display())]
    Report {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

impl Options {
    /// The first option that was given, to say that it needs another.
    fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("--strict", self.strict),
            ("--devices", self.devices.is_some()),
            ("--lint", self.lint.is_some()),
            ("--faults", self.faults.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }

    /// Refuses options that were given although there is no device for them.
    ///
    /// # Errors
    /// [`VerbsError::Alone`].
    pub fn check_unused(&self) -> Result<(), VerbsError> {
        self.first_given().map_or(Ok(()), |option| Err(VerbsError::Alone { option }))
    }
}

/// What it takes to run programs over the device, for as long as this lives.
pub struct DropIn {
    variables: Vec<(&'static str, OsString)>,
    report: Option<Report>,
    fails: bool,
    _folder: Folder,
}

impl DropIn {
    /// Sets up a folder for one run.
    ///
    /// # Errors
    /// [`VerbsError`]: no library, or no folder for it.
    pub fn for_run(profile: Option<Profile>, options: &Options) -> Result<DropIn, VerbsError> {
        let folder = Folder::of_run(&library::find()?)?;
        // Programs may be told by the environment of this command, too.
        let fails = options.lint.map_or_else(
            || std::env::var_os("FULMEN_LINT").is_some_and(|lint| lint == Lint::Fail.name()),
            |lint| lint == Lint::Fail,
        );
        let looks = fails || options.lint == Some(Lint::Log);
        let report = looks.then(|| Report::begin(std::env::var_os(lint::REPORT), folder.path()));
        let settings = Settings { profile, options, report: report.as_ref().map(Report::path) };
        let variables = settings.variables(folder.path(), |name| std::env::var_os(name));
        Ok(DropIn { variables, report, fails, _folder: folder })
    }

    /// The variables that programs need.
    pub fn variables(&self) -> &[(&'static str, OsString)] {
        &self.variables
    }

    /// After the run: says which rules were broken, and gives the exit code of a run that gave `code`.
    ///
    /// # Errors
    /// [`VerbsError::Report`].
    pub fn judge(&self, code: u8) -> Result<u8, VerbsError> {
        let Some(report) = &self.report else { return Ok(code) };
        let Some(summary) = report.summary()? else { return Ok(code) };
        output::say(&summary);
        Ok(if self.fails && code == 0 { RULES_BROKEN } else { code })
    }
}

/// Runs `fulmen verbs`.
pub fn verbs(args: Args) -> anyhow::Result<ExitCode> {
    let Args { print_env: _, profile, options } = args;
    let folder = Folder::lasting(&library::find()?)?;
    let settings = Settings { profile, options: &options, report: None };
    let variables = settings.variables(folder.path(), |name| std::env::var_os(name));
    let text: String = variables.iter().map(|(name, value)| environment::export(name, value)).collect();
    Ok(if output::show(&text)? { ExitCode::SUCCESS } else { ExitCode::from(output::NOBODY_LISTENS) })
}

/// Reads a plan of faults; programs get it in the same words.
fn faults(text: &str) -> Result<String, String> {
    text.parse::<FaultPlan>().map(|_| text.to_string()).map_err(|error| error.to_string())
}

/// A path in which the dynamic linker would see two.
fn splits(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().iter().any(|byte| matches!(byte, b':' | b';' | b' ' | b'\t' | b'\n'))
}
