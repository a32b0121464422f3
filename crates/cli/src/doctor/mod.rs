//! `fulmen doctor`: what this machine can do, what is wrong with it, and how to mend that.
//!
//! Every check ends: whatever calls into a library or a driver runs in a child process with a time limit ([`ask`]).

mod ask;
mod cluster;
mod devices;
mod facts;
mod gpu;
mod library;
mod network;
mod platform;
mod report;
mod root;
mod system;
mod tcp;

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use fulmen::parts::collectives::plan::Links;
use fulmen::{Options, TCP};

use crate::agent::Which;
use crate::output::{NOBODY_LISTENS, show};
use crate::run::positive_seconds;
use ask::Asker;
pub use ask::{Question, answer};
use devices::Survey;
use library::Wanted;
use report::{Check, Outcome, Report};
use root::Root;

/// The hidden command that answers one question.
pub const ASK: &str = "__doctor";

/// Say what this machine can do, what is wrong with it, and how to mend it.
///
/// Exit code: 0 if all is well, 1 with warnings, 2 with failures.
#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object, and nothing else, on standard output.
    #[arg(long)]
    json: bool,
    /// How many other ranks this one is to have links with; their needs are compared with the device's limits.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4095))]
    peers: u32,
    /// The address where ranks meet: look whether it can be reached from here, and which version answers there.
    #[arg(long, value_name = "ADDRESS:PORT", env = "FULMEN_COORDINATOR")]
    coordinator: Option<String>,
    #[command(flatten)]
    which: Which,
    /// Where to look for /proc, /sys, /dev and /run.
    #[arg(long, hide = true, default_value = "/")]
    root: PathBuf,
    /// Seconds that a call into a library or a driver may take.
    #[arg(long, hide = true, default_value = "10", value_parser = positive_seconds)]
    patience: Duration,
}

/// Looks at everything and shows it.
pub fn doctor(args: Args) -> anyhow::Result<ExitCode> {
    let asker = Asker { patience: args.patience };
    let root = Root(args.root);
    // TCP is no device of the machine.
    let device = chosen("FULMEN_DEVICE").filter(|name| name != TCP);
    let own_library = chosen("FULMEN_VERBS_LIBRARY");
    let mut rdma = platform::switched_on(&root, &asker);
    if own_library.is_some() && rdma.outcome == Outcome::Warning {
        let sentence = format!("{}; but FULMEN_VERBS_LIBRARY names a library that may do without", rdma.sentence);
        rdma = Check::not_applicable(rdma.name, sentence);
    }
    let wanted = match (device.is_some() || own_library.is_some(), rdma.outcome) {
        (true, _) => Wanted::AskedFor,
        (false, Outcome::Warning | Outcome::Failure) => Wanted::Told,
        (false, _) => Wanted::Hoped,
    };
    let device = device.filter(|name| name != "any");
    let (options, address) = options();
    let mut checks = vec![system::version(&root), options, link_file(), shared_memory(&asker), rdma];
    let listed = library::checks(&asker, wanted, &mut checks);
    Survey { asker: &asker, root: &root, peers: args.peers }.checks(&listed, device.as_deref(), &mut checks);
    checks.extend(gpu::checks(&asker, &root, &listed));
    checks.extend([system::single_copy(&root), system::huge_pages(&root), system::clock(&root)]);
    checks.push(tcp::check(address, args.coordinator.as_deref(), &asker));
    checks.extend(network::checks(args.coordinator.as_deref(), &asker));
    checks.push(cluster::check(&args.which, args.patience));
    let report = Report::new(checks);
    let text = if args.json { serde_json::to_string(&report)? + "\n" } else { report.describe() };
    let heard = show(&text).map_err(|error| anyhow::anyhow!("the output is not complete: {error}"))?;
    Ok(ExitCode::from(if heard { report.code() } else { NOBODY_LISTENS }))
}

/// What a variable of the environment says.
fn chosen(variable: &str) -> Option<String> {
    std::env::var_os(variable).map(|value| value.to_string_lossy().into_owned()).filter(|value| !value.is_empty())
}

/// Whether the environment's options mean something, and the address that they name.
fn options() -> (Check, Option<IpAddr>) {
    const NAME: &str = "options";
    let options = Options::from_env();
    let address = options.as_ref().ok().and_then(|options| options.network.addresses.first().copied());
    let check = match options {
        Ok(Options { fabric, .. }) => Check::ok(
            NAME,
            format!(
                "a pool of {} KiB, {} s for an operation, {} s of silence until a rank is lost",
                fabric.pool >> 10,
                fabric.timeout.as_secs_f64(),
                fabric.silence.as_secs_f64()
            ),
        ),
        Err(error) => {
            // The message ends with the way out.
            let whole = error.to_string();
            let (sentence, fix) = whole.rsplit_once(": ").unwrap_or((&whole, "unset it"));
            Check::failure(NAME, sentence, fix)
        }
    };
    (check, address)
}

/// Whether the links by which operations are to choose their algorithm are such.
fn link_file() -> Check {
    const NAME: &str = "link file";
    let Some(file) = chosen("FULMEN_LINKS") else {
        return Check::not_applicable(NAME, "FULMEN_LINKS names none: operations choose by figures of usual links");
    };
    match Links::load(&file) {
        Ok(links) => {
            let most = links.most_ranks().map_or(String::new(), |most| format!(", for up to {most} ranks"));
            Check::ok(NAME, format!("{file} has figures{most}, by which operations choose"))
        }
        Err(error) => {
            let known = Links::known().collect::<Vec<_>>().join(", ");
            let fix =
                format!("write one (`fulmen plan all-reduce --save FILE`), or name one that is built in: {known}");
            Check::failure(NAME, error.to_string(), fix)
        }
    }
}

/// Whether ranks of this host can map one another's memory.
fn shared_memory(asker: &Asker) -> Check {
    const NAME: &str = "shared memory";
    match asker.windows() {
        Ok(()) => Check::ok(NAME, "ranks of this host map one another's memory"),
        Err(trouble) => Check::failure(
            NAME,
            format!("ranks of this host cannot map one another's memory: {trouble}"),
            "allow abstract Unix sockets and memfd_create to this process; a sandbox or a container's profile forbids them",
        ),
    }
}
