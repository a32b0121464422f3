//! `fulmen plan`: what something would do on hardware that is not here, reckoned from published figures and from what this
//! implementation sends; and what the planner of collectives chooses, here and elsewhere.

mod call;
mod claims;
mod figures;
mod fit;
mod here;
mod predict;
mod text;

pub use call::unusable;
pub use text::{number, size};

use std::process::ExitCode;

use fulmen::parts::collectives::plan::{LinksError, Operation};
use fulmen::{DType, Unsupported};
use serde::Serialize;

use crate::bench::Size;
use crate::output::print;
use claims::Cell;
use figures::{Figure, Figures, Published};
use predict::{Scenario, Shape};

/// Predict what this version would do, on hardware that is not here, or here.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Link(Link),
    AllReduce(call::Args),
    Reduce(call::Args),
    Broadcast(call::Args),
    Scan(call::Args),
    AllGather(call::Args),
}

/// Predict latency and bandwidth between hosts that are joined by cables, and what an all-reduce takes.
///
/// Nothing is measured: the frames that a message takes are those of this implementation, which a test counts; how fast
/// cables and hosts are comes from the figures that are told, each with where it is from. docs/model.md explains both.
///
/// Without --nodes and --cables: two nodes with one and with two cables, and four nodes that are each joined with each by one,
/// beside the claims of the design's seed.
#[derive(clap::Args)]
struct Link {
    /// What joins the hosts: thunderbolt5.
    #[arg(long, value_name = "NAME")]
    profile: String,
    /// How many cables join each two nodes.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=16))]
    cables: Option<u64>,
    /// How many nodes there are, each joined with each.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(2..=64))]
    nodes: Option<u64>,
    /// Sizes of messages and of each node's data in an all-reduce, such as 64,4K,1M.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "64,4K,1M")]
    bytes: Vec<Size>,
    /// Print one JSON object, and nothing else, on standard output.
    #[arg(long)]
    json: bool,
}

/// Bad input.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Nothing is known of such cables.
    #[error("there are no figures for {name:?}; there are some for {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// More bytes than anybody sends.
    #[error("--bytes {bytes} is nothing or too much: give sizes up to 64G")]
    Bytes {
        /// What was asked for.
        bytes: u64,
    },
    /// A link file cannot be used.
    #[error("{cause}; those that come with this program: {known}")]
    Links {
        /// Why.
        cause: LinksError,
        /// The names of others.
        known: String,
    },
    /// One rank has nobody to talk to.
    #[error("one rank has nothing to plan: give --ranks 2 or more")]
    Alone,
    /// More ranks than the links join.
    #[error("{links} joins up to {most} ranks: give --ranks {most} or fewer")]
    Ranks {
        /// The links' name.
        links: String,
        /// How many they join.
        most: usize,
    },
    /// Mapped memory, of which something else is known.
    #[error(
        "{links} tells how long calls take in memory that ranks map: {operations} of {ranks} ranks on {dtype}, and nothing else; leave \
         --links away to measure others"
    )]
    Measured {
        /// The links' name.
        links: String,
        /// Of how many ranks.
        ranks: usize,
        /// On which type.
        dtype: DType,
        /// Which.
        operations: String,
    },
    /// Mapped memory, where no messages go.
    #[error(
        "{links} tells how long calls take in memory that ranks map, and nothing of messages: give the file of a --device"
    )]
    Mapped {
        /// The links' name.
        links: String,
    },
    /// Half an element.
    #[error("--bytes {bytes} is no multiple of an element, which is {element} bytes for {dtype}")]
    Partial {
        /// What was asked for.
        bytes: u64,
        /// The elements' type.
        dtype: DType,
        /// Bytes of one.
        element: u64,
    },
    /// Parts of an element.
    #[error("--bytes {bytes} is no multiple of {ranks} ranks' parts of whole {dtype}: give what each rank gets in all")]
    Parts {
        /// What was asked for.
        bytes: u64,
        /// The elements' type.
        dtype: DType,
        /// How many ranks there are.
        ranks: u64,
    },
    /// The type has no such reduction.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// There is nothing to measure.
    #[error("--measure runs ranks here: leave --links away")]
    Elsewhere,
    /// Only sums are measured.
    #[error("--measure measures sums in rank order: leave --op and --order away")]
    OnlySums,
}

/// All that is told.
#[derive(Serialize)]
struct Plan {
    profile: &'static str,
    scenarios: Vec<Scenario>,
    /// Only of the arrangements that it speaks of.
    seed: Option<Vec<Cell>>,
    figures: Vec<Figure>,
    /// What users measured for a SEND, with what the figures give for it.
    published: Vec<Check>,
}

#[derive(Serialize)]
struct Check {
    #[serde(flatten)]
    published: Published,
    #[serde(rename = "reckoned_us")]
    reckoned: f64,
}

/// The longest message that is reckoned with.
const MOST: u64 = 64 << 30;

pub fn plan(args: Args, verbose: u8) -> anyhow::Result<ExitCode> {
    match args.what {
        What::Link(link) => plan_link(link),
        What::AllReduce(args) => call::plan(Operation::AllReduce, args, verbose),
        What::Reduce(args) => call::plan(Operation::Reduce, args, verbose),
        What::Broadcast(args) => call::plan(Operation::Broadcast, args, verbose),
        What::Scan(args) => call::plan(Operation::Scan, args, verbose),
        What::AllGather(args) => call::plan(Operation::AllGather, args, verbose),
    }
}

fn plan_link(link: Link) -> anyhow::Result<ExitCode> {
    let Some(figures) = Figures::named(&link.profile) else {
        let known: Vec<_> = figures::ALL.iter().map(|figures| figures.name).collect();
        return Err(PlanError::Unknown { name: link.profile, known: known.join(", ") }.into());
    };
    if let Some(Size(bytes)) = link.bytes.iter().find(|size| size.0 > MOST) {
        return Err(PlanError::Bytes { bytes: *bytes }.into());
    }
    let wire = predict::wire()?;
    let asked = link.nodes.is_some() || link.cables.is_some();
    let shapes = match asked {
        true => vec![Shape { nodes: link.nodes.unwrap_or(2), cables: link.cables.unwrap_or(1) }],
        false => [(2, 1), (2, 2), (4, 1)].map(|(nodes, cables)| Shape { nodes, cables }).to_vec(),
    };
    let sizes: Vec<u64> = link.bytes.iter().map(|size| size.0).collect();
    let plan = Plan {
        profile: figures.name,
        scenarios: shapes.into_iter().map(|shape| Scenario::new(figures, &wire, shape, &sizes)).collect(),
        seed: (!asked).then(|| claims::cells(figures, &wire)),
        figures: figures.all().to_vec(),
        published: figures
            .published
            .map(|published| Check { published, reckoned: figures.bare(published.bytes) })
            .into(),
    };
    print(&if link.json { serde_json::to_string(&plan)? + "\n" } else { text::show(&plan) })
}
