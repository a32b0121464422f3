//! The `fulmen` command.
//!
//! Standard output carries results, standard error carries messages and logs. An error is one line that names the way out.
//! Exit codes: 0 for success, 1 for a failed operation, 2 for bad input; `fulmen run` has its own on top (see [`run`]).

#![forbid(unsafe_code)]

mod agent;
mod bench;
mod child;
mod demo;
mod devices;
mod doctor;
mod links;
mod logging;
mod machine;
mod output;
mod plan;
mod probe;
mod run;
mod simulate;
mod trace;
mod verbs;

use std::process::ExitCode;

use clap::{Parser, Subcommand, error::ErrorKind};

/// Makes a few machines work as one.
#[derive(Parser)]
#[command(name = "fulmen", version, disable_help_subcommand = true)]
struct Cli {
    /// Log more to standard error: -v for what happens, -vv for every step (FULMEN_LOG gives finer control).
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Demo(demo::Args),
    Bench(Box<bench::Args>),
    Links(Box<links::Args>),
    Devices(devices::Args),
    Probe(probe::Args),
    Doctor(doctor::Args),
    Trace(trace::Args),
    Simulate(simulate::Args),
    Plan(plan::Args),
    Verbs(verbs::Args),
    Up(agent::UpArgs),
    Down(agent::DownArgs),
    Token(agent::TokenArgs),
    Remove(agent::RemoveArgs),
    Role(agent::RoleArgs),
    Status(agent::StatusArgs),
    Top(agent::TopArgs),
    Spawn(agent::SpawnArgs),
    Ps(agent::PsArgs),
    Attach(agent::AttachArgs),
    Kill(agent::KillArgs),
    #[command(name = agent::KEEP, hide = true)]
    Keep(agent::KeepArgs),
    #[command(name = agent::AGENT, hide = true)]
    Agent(agent::AgentArgs),
    #[command(name = agent::BECOME, hide = true)]
    Become,
    #[command(name = run::SUPERVISE, hide = true)]
    Supervise(run::SuperviseArgs),
    #[command(name = run::HOST, hide = true)]
    Host,
    #[command(name = run::START, hide = true)]
    Start(run::StartArgs),
    #[command(name = bench::RANK, hide = true)]
    BenchRank(bench::RankArgs),
    #[command(name = links::RANK, hide = true)]
    LinksRank(links::RankArgs),
    #[command(name = demo::RANK, hide = true)]
    DemoRank,
    #[command(name = devices::LOOK, hide = true)]
    DevicesLook(devices::LookArgs),
    #[command(name = probe::WORKER, hide = true)]
    ProbeWorker(probe::WorkerArgs),
    #[command(name = doctor::ASK, hide = true, subcommand)]
    DoctorAsk(doctor::Question),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let verbose = cli.verbose;
    let outcome = match cli.command {
        Command::Run(args) => logged(verbose, || run::run(*args)),
        Command::Demo(args) => logged(verbose, || demo::demo(args, verbose)),
        Command::Bench(args) => logged(verbose, || bench::bench(*args, verbose)),
        Command::Links(args) => logged(verbose, || links::links(*args, verbose)),
        Command::Devices(args) => logged(verbose, || devices::devices(args)),
        Command::Doctor(args) => logged(verbose, || doctor::doctor(args)),
        Command::Trace(args) => logged(verbose, || trace::trace(args)),
        Command::Simulate(args) => logged(verbose, || simulate::simulate(args)),
        Command::Plan(args) => logged(verbose, || plan::plan(args, verbose)),
        Command::Verbs(args) => logged(verbose, || verbs::verbs(args)),
        Command::Up(args) => logged(verbose, || agent::up(args)),
        Command::Down(args) => logged(verbose, || agent::down(args)),
        Command::Token(args) => logged(verbose, || agent::token(args)),
        Command::Remove(args) => logged(verbose, || agent::remove(args)),
        Command::Role(args) => logged(verbose, || agent::role(args)),
        Command::Status(args) => logged(verbose, || agent::status(args)),
        Command::Top(args) => logged(verbose, || agent::top(args)),
        Command::Spawn(args) => logged(verbose, || agent::spawn(args)),
        Command::Ps(args) => logged(verbose, || agent::ps(args)),
        Command::Attach(args) => logged(verbose, || agent::attach(args)),
        Command::Kill(args) => logged(verbose, || agent::kill(args)),
        Command::Keep(args) => logged(verbose, || agent::keep(args)),
        Command::Agent(args) => logged(verbose, || agent::agent(args)),
        Command::BenchRank(args) => logged(verbose, || bench::rank(&args)),
        Command::LinksRank(args) => logged(verbose, || links::rank(&args)),
        Command::DemoRank => logged(verbose, demo::rank),
        Command::Probe(args) => logged(verbose, || probe::probe(args)),
        Command::DevicesLook(args) => logged(verbose, || devices::look(args)),
        Command::ProbeWorker(args) => logged(verbose, || probe::worker(args)),
        Command::DoctorAsk(question) => doctor::answer(question),
        Command::Host => logged(verbose, run::helper),
        // These have a standard error that belongs to another program: they keep no log.
        Command::Become => agent::become_program(),
        Command::Supervise(args) => run::supervise(args),
        Command::Start(args) => run::start(args),
    };
    outcome.unwrap_or_else(|error| {
        output::say(&chain(&error));
        ExitCode::from(exit_code(&error))
    })
}

/// Runs a command that keeps a log.
fn logged(verbose: u8, command: impl FnOnce() -> anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    logging::start(verbose)?;
    let outcome = command();
    logging::finish();
    outcome
}

/// An error with its causes, but for those that it names itself.
fn chain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// The code of an error that no rank has made.
fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<run::RunError>() {
        Some(error) => error.exit_code(),
        None if error.is::<agent::AgentError>()
            || error.is::<bench::BenchError>()
            || error.is::<logging::FilterError>()
            || error.is::<links::LinksError>()
            || error.is::<plan::PlanError>()
            || error.is::<simulate::SimulateError>()
            || error.is::<probe::ProbeError>()
            || error.is::<verbs::VerbsError>() =>
        {
            2
        }
        None => 1,
    }
}

/// Prints help and version as they are, and everything else as one line.
fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader that went away before the help was printed has seen what it wanted.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::say("no command given; `fulmen --help` lists them");
            ExitCode::from(2)
        }
        _ => {
            output::say(&one_line(&error.to_string()));
            ExitCode::from(2)
        }
    }
}

/// Folds clap's message, which spreads over several lines and ends with a usage text, into one line.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for part in text.lines().map(str::trim).take_while(|part| !part.starts_with("Usage:")) {
        let part = part.strip_prefix("error: ").unwrap_or(part);
        if part.is_empty() || part.starts_with("For more information") {
            continue;
        }
        if !line.is_empty() {
            line.push_str(if line.ends_with(':') { " " } else { "; " });
        }
        line.push_str(part);
    }
    line.push_str("; `fulmen --help` and `fulmen COMMAND --help` explain");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn a_cause_is_told_once() {
        let cause = || anyhow::anyhow!("the disk is full");
        assert_eq!(chain(&cause().context("cannot write")), "cannot write: the disk is full");
        assert_eq!(chain(&cause().context("cannot write (the disk is full)")), "cannot write (the disk is full)");
    }

    #[test]
    fn a_usage_error_is_one_line() {
        for args in [&["fulmen", "run"][..], &["fulmen", "run", "-n", "x", "true"], &["fulmen", "rum"]] {
            let error = Cli::try_parse_from(args).err().expect("refused");
            let line = one_line(&error.to_string());
            assert!(!line.contains('\n') && !line.contains("Usage") && line.len() > 40, "{line:?}");
        }
    }
}
