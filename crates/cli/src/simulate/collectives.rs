//! `fulmen simulate collectives`: how calls scale with the number of nodes, in the planner's model.

use std::fmt::Write as _;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::Context as _;
use fulmen::parts::collectives::plan::{Links, Operation, Prediction, Question, fastest};
use fulmen::{Algorithm, DType, Order, ReduceOp};
use serde::Serialize;

use super::chart::{Chart, Line};
use crate::bench::Size;
use crate::output::print;
use crate::plan::{PlanError, number, size, unusable};

/// Run collectives of many nodes in the planner's model, event by event, and show how long they take.
///
/// For each link file and number of nodes, the algorithm is chosen that a group of so many ranks would use, and told with its time. Sums of
/// f32. docs/planner.md says what is in the model.
#[derive(clap::Args)]
pub struct Args {
    /// The most nodes: from 2 on, each number is twice the one before.
    #[arg(long, value_name = "COUNT", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(2..=4096))]
    nodes: u32,
    /// Link files, or names of those that come with this program.
    #[arg(
        long,
        value_name = "FILE,…",
        value_delimiter = ',',
        default_value = "thunderbolt5-mesh-4,thunderbolt5-mesh-8,thunderbolt5-ring,roce-fat-tree"
    )]
    links: Vec<String>,
    /// Bytes of each node's vector, or that each gets in all.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "64K,64M")]
    bytes: Vec<Size>,
    /// What is called.
    #[arg(long, value_enum, default_value = "all-reduce")]
    operation: Called,
    /// Draw it: a file to be written.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object for each size, link file and number of nodes, and nothing else, on standard output.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Called {
    /// All nodes get the vectors of all, combined.
    AllReduce,
    /// The first one gets it.
    Reduce,
    /// All get the vector of the first.
    Broadcast,
    /// Each gets the vectors of those up to itself, combined.
    Scan,
    /// All get the vectors of all: bytes are those that each gets in all.
    AllGather,
}

impl From<Called> for Operation {
    fn from(called: Called) -> Operation {
        match called {
            Called::AllReduce => Operation::AllReduce,
            Called::Reduce => Operation::Reduce,
            Called::Broadcast => Operation::Broadcast,
            Called::Scan => Operation::Scan,
            Called::AllGather => Operation::AllGather,
        }
    }
}

/// One point.
#[derive(Serialize)]
struct Told {
    operation: &'static str,
    links: String,
    bytes: u64,
    nodes: u32,
    /// In rank order.
    algorithm: &'static str,
    time_us: f64,
    /// In any order.
    any_order_algorithm: &'static str,
    any_order_time_us: f64,
}

/// More than anybody sends.
const MOST: u64 = 1 << 30;

pub fn simulate(args: &Args) -> anyhow::Result<ExitCode> {
    let load = |name: &String| Links::load(name).map_err(unusable);
    let links = args.links.iter().map(load).collect::<Result<Vec<_>, PlanError>>()?;
    if let Some(links) = links.iter().find(|links| links.mapped.is_some()) {
        return Err(PlanError::Mapped { links: links.name.clone() }.into());
    }
    if let Some(Size(bytes)) = args.bytes.iter().find(|size| !(1..=MOST).contains(&size.0)) {
        return Err(PlanError::Bytes { bytes: *bytes }.into());
    }
    let counts: Vec<u32> = (1..=12).map(|power| 1 << power).take_while(|nodes| *nodes <= args.nodes).collect();
    let mut asked = Vec::new();
    for Size(bytes) in &args.bytes {
        for links in &links {
            let joined = |nodes: &&u32| links.most_ranks().is_none_or(|most| **nodes as usize <= most);
            asked.extend(counts.iter().filter(joined).map(|nodes| (links, *bytes, *nodes)));
        }
    }
    let points = points(args.operation.into(), &asked);
    if let Some(path) = &args.svg {
        std::fs::write(path, draw(&points)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        let lines: Vec<String> = points.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        return print(&(lines.join("\n") + "\n"));
    }
    print(&table(&points, &counts))
}

/// All points, each reckoned by whichever processor is free; those that take longest first.
fn points(operation: Operation, asked: &[(&Links, u64, u32)]) -> Vec<Told> {
    let mut order: Vec<usize> = (0..asked.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse((asked[*at].2, asked[*at].1)));
    let (next, told) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(asked.len())));
    let work = || {
        while let Some(at) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (links, bytes, nodes) = asked[*at];
            let point = point(operation, links, bytes, nodes);
            told.lock().unwrap_or_else(PoisonError::into_inner).push((*at, point));
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(work);
        }
    });
    let mut told = told.into_inner().unwrap_or_else(PoisonError::into_inner);
    told.sort_by_key(|(at, _)| *at);
    told.into_iter().map(|(_, point)| point).collect()
}

fn point(operation: Operation, links: &Links, bytes: u64, nodes: u32) -> Told {
    let (dtype, op) = (DType::F32, ReduceOp::Sum);
    let bytes = (bytes as usize).next_multiple_of(dtype.size());
    // A part has whole elements.
    let parts = if operation == Operation::AllGather { nodes as usize } else { 1 };
    let asked = bytes.next_multiple_of(dtype.size() * parts);
    let ask = |order| fastest(&Question { operation, ranks: nodes as usize, bytes: asked, dtype, op, order }, links);
    let (Prediction { algorithm, time_us, .. }, any) = (ask(Order::Ranks), ask(Order::Any));
    let name_of = |algorithm: Algorithm| algorithm.name();
    Told {
        operation: operation.name(),
        links: links.name.clone(),
        bytes: bytes as u64,
        nodes,
        algorithm: name_of(algorithm),
        time_us,
        any_order_algorithm: name_of(any.algorithm),
        any_order_time_us: any.time_us,
    }
}

/// The points of one size after the other.
fn by_size(points: &[Told]) -> impl Iterator<Item = &[Told]> {
    points.chunk_by(|one, next| one.bytes == next.bytes)
}

fn table(points: &[Told], counts: &[u32]) -> String {
    let mut text = String::new();
    for same in by_size(points) {
        let columns: Vec<&[Told]> = same.chunk_by(|one, next| one.links == next.links).collect();
        let _ = writeln!(
            text,
            "{} of {}, sums of f32, us: in rank order / in any order",
            same[0].operation,
            size(same[0].bytes)
        );
        let _ = write!(text, "{:>6}", "nodes");
        columns.iter().for_each(|column| text += &format!("  {:<34}", column[0].links));
        text = text.trim_end().to_owned() + "\n";
        for nodes in counts {
            let mut row = format!("{nodes:>6}");
            for column in &columns {
                let cell = column.iter().find(|told| told.nodes == *nodes).map_or(String::new(), |told| {
                    let (time, any) = (number(told.time_us), number(told.any_order_time_us));
                    format!("{time} {} / {any} {}", told.algorithm, told.any_order_algorithm)
                });
                row += &format!("  {cell:<34}");
            }
            text += &(row.trim_end().to_owned() + "\n");
        }
        text.push('\n');
    }
    text.trim_end().to_owned() + "\n"
}

fn draw(points: &[Told]) -> String {
    let charts = by_size(points).map(|same| {
        let lines = same.chunk_by(|one, next| one.links == next.links).flat_map(|column| {
            let line = |dashed: bool| Line {
                name: column[0].links.clone(),
                dashed,
                points: column
                    .iter()
                    .map(|told| (f64::from(told.nodes), if dashed { told.any_order_time_us } else { told.time_us }))
                    .collect(),
            };
            [line(false), line(true)]
        });
        let title =
            format!("{} of {}: microseconds by nodes (dashed: in any order)", same[0].operation, size(same[0].bytes));
        Chart { title, lines: lines.collect() }
    });
    super::chart::svg(&charts.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_in_the_table_and_in_the_drawing() {
        let links = Links::load("thunderbolt5-ring").unwrap();
        let points: Vec<Told> = [2, 4].map(|nodes| point(Operation::AllReduce, &links, 1 << 20, nodes)).into();
        let text = table(&points, &[2, 4]);
        assert!(text.starts_with("all-reduce of 1 MiB") && text.contains("thunderbolt5-ring"), "{text}");
        assert!(
            points.iter().all(|told| text.contains(&number(told.time_us)) && text.contains(told.algorithm)),
            "{text}"
        );
        assert!(points.iter().all(|told| told.any_order_time_us <= told.time_us));
        let svg = draw(&points);
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("<polyline").count(), 2);
    }
}
