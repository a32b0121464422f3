//! `fulmen plan all-reduce` and others: what the planner chooses, and what it says of the other algorithms.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use fulmen::parts::collectives::plan::{Links, LinksError, Operation, Prediction, Question, predict, predict_mapped};
use fulmen::{DType, Order, ReduceOp};
use serde::Serialize;

use super::here::{How, LONGEST, Over, Standard, is_drift, op_of};
use super::text::{number, size};
use super::{MOST, PlanError};
use crate::bench::{self, Size};
use crate::output::print;
use crate::run::{self, Profile, device_name, rank_count};

/// Show by which algorithm ranks would do it, how long that and others would take, and measure it if asked.
///
/// Without --links, figures of this machine are measured first: over shared memory, or --device or --profile. A link file
/// says what joins ranks elsewhere; those that come with this program have names. docs/planner.md tells what is in one, and how times are
/// reckoned.
#[derive(clap::Args)]
pub struct Args {
    /// Bytes of each rank's vector, such as 64K,1M,64M; of an all-gather, those that each rank gets in all.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', default_value = "64K,1M,16M,64M")]
    bytes: Vec<Size>,
    /// How many ranks there are.
    #[arg(long, short = 'n', value_name = "N", default_value = "2", value_parser = rank_count, allow_negative_numbers = true)]
    ranks: u32,
    /// A link file, or the name of one: thunderbolt5-mesh-4, thunderbolt5-mesh-8, thunderbolt5-ring, roce-fat-tree.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["device", "profile", "save"])]
    links: Option<String>,
    /// Measure this RDMA device of the machine, or `tcp`, instead of shared memory.
    #[arg(long, value_name = "NAME", env = run::DEVICE, value_parser = device_name)]
    device: Option<String>,
    /// Measure the software RDMA device with the limits and rules of this hardware.
    #[arg(long, value_enum, env = "FULMEN_PROFILE")]
    profile: Option<Profile>,
    /// Write what was measured to a link file: FULMEN_LINKS=FILE has programs choose by it.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// The elements' type.
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dtype: DType,
    /// How elements are combined: sum, product, min, max, mean, bit-and, bit-or, bit-xor, and, or, xor.
    #[arg(long, value_name = "OPERATION", default_value = "sum")]
    op: ReduceOp,
    /// In which order they may be.
    #[arg(long, value_enum, default_value = "ranks")]
    order: InOrder,
    /// Run it, too, by what was chosen, and show how far the prediction is off, and whether the machine changed meanwhile.
    #[arg(long)]
    measure: bool,
    /// Print one JSON object a size, and nothing else, on standard output.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum InOrder {
    /// In that of the ranks: the same bits whatever the algorithm.
    Ranks,
    /// As the algorithm has it.
    Any,
}

/// What is told of a size.
#[derive(Serialize)]
struct Told {
    operation: &'static str,
    ranks: u32,
    bytes: u64,
    dtype: String,
    op: String,
    links: String,
    /// An algorithm's name, or `windows` where ranks map one another's memory.
    choice: String,
    predicted_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured_us: Option<f64>,
    /// How long a call that was measured with the figures takes right after this one, as a multiple of what it took then.
    #[serde(skip_serializing_if = "Option::is_none")]
    drift: Option<f64>,
    /// All algorithms by messages.
    algorithms: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    algorithm: &'static str,
    predicted_us: f64,
    /// It combines in the order that was asked for.
    allowed: bool,
}

/// How a call is named that goes through mapped memory.
const WINDOWS: &str = "windows";

pub fn plan(operation: Operation, args: Args, verbose: u8) -> anyhow::Result<ExitCode> {
    check(operation, &args)?;
    let name = operation.name();
    let order = if args.order == InOrder::Any { Order::Any } else { Order::Ranks };
    let over = Over { device: args.device.clone(), profile: args.profile, verbose };
    bench::check_device(args.ranks, args.profile)?;
    let (links, standard) = match &args.links {
        Some(file) => (Links::load(file).map_err(unusable)?, None),
        None => {
            let asked = args.bytes.iter().map(|bytes| bytes.0).max().unwrap_or(LONGEST);
            let others = Operation::ALL.into_iter().filter(|other| *other != operation);
            // A file is for whatever will be asked.
            let (others, most) = if args.save.is_some() { (others.collect(), LONGEST) } else { (Vec::new(), asked) };
            let (links, standard) = over.links(args.ranks, operation, &others, args.dtype, most)?;
            (links, Some(standard))
        }
    };
    if let Some(most) = links.most_ranks().filter(|most| (*most as u32) < args.ranks) {
        return Err(PlanError::Ranks { links: links.name, most }.into());
    }
    if let Some(path) = &args.save {
        let text = serde_json::to_string_pretty(&links)? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let file = match args.measure {
        true => Some(saved(&links)?),
        false => None,
    };
    let standard = standard.filter(|_| args.measure);
    let mut text = String::new();
    if !args.json {
        let combined = match operation {
            Operation::Broadcast | Operation::AllGather => String::new(),
            Operation::AllReduce | Operation::Reduce | Operation::Scan => format!("{} of ", args.op),
        };
        let _ = writeln!(text, "{name} among {} ranks, {}, {combined}{}", args.ranks, links.name, args.dtype);
        let _ = writeln!(text, "  figures: {}", links.source);
    }
    for Size(bytes) in &args.bytes {
        let (ranks, dtype, op_code) = (args.ranks as usize, args.dtype, args.op);
        let question = Question { operation, ranks, bytes: *bytes as usize, dtype, op: op_code, order };
        let (choice, predicted, all) = match &links.mapped {
            Some(mapped) => {
                let other = || PlanError::Measured {
                    links: links.name.clone(),
                    ranks: mapped.ranks,
                    dtype: mapped.dtype,
                    operations: mapped.calls.keys().map(|operation| operation.name()).collect::<Vec<_>>().join(", "),
                };
                (WINDOWS, predict_mapped(&question, &links).ok_or_else(other)?, Vec::new())
            }
            None => {
                let all = predict(&question, &links);
                let Prediction { algorithm, time_us, .. } = *all.first().expect("one algorithm does any call");
                (algorithm.name(), time_us, all)
            }
        };
        let measure = |file: &tempfile::NamedTempFile| {
            over.measure(op_of(operation), args.ranks, *bytes, dtype, &How::Chosen(file.path()))
        };
        let told = Told {
            operation: name,
            ranks: args.ranks,
            bytes: *bytes,
            dtype: dtype.to_string(),
            op: op_code.to_string(),
            links: links.name.clone(),
            choice: choice.to_owned(),
            predicted_us: tidy(predicted),
            measured_us: file.as_ref().map(measure).transpose()?,
            drift: standard.as_ref().map(|standard| standard.drift(&over).map(tidy)).transpose()?,
            algorithms: all.iter().map(row).collect(),
        };
        let name = standard.as_ref().map(Standard::name).unwrap_or_default();
        text += &if args.json { serde_json::to_string(&told)? + "\n" } else { table(&told, &name) };
    }
    print(&text)
}

fn check(operation: Operation, args: &Args) -> Result<(), PlanError> {
    let (dtype, element) = (args.dtype, args.dtype.size() as u64);
    let ranks = u64::from(args.ranks);
    args.op.supports(dtype)?;
    if args.ranks < 2 {
        return Err(PlanError::Alone);
    }
    for Size(bytes) in args.bytes.iter().copied() {
        if bytes > MOST || bytes == 0 {
            return Err(PlanError::Bytes { bytes });
        }
        if !bytes.is_multiple_of(element) {
            return Err(PlanError::Partial { bytes, dtype, element });
        }
        if operation == Operation::AllGather && !bytes.is_multiple_of(element * ranks) {
            return Err(PlanError::Parts { bytes, dtype, ranks });
        }
    }
    match args.measure {
        true if args.links.is_some() => Err(PlanError::Elsewhere),
        true if args.op != ReduceOp::Sum || args.order != InOrder::Ranks => Err(PlanError::OnlySums),
        _ => Ok(()),
    }
}

pub fn unusable(cause: LinksError) -> PlanError {
    PlanError::Links { cause, known: Links::known().collect::<Vec<_>>().join(", ") }
}

/// A file for the ranks that are measured, so that they choose by the same figures.
fn saved(links: &Links) -> anyhow::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(serde_json::to_string(links)?.as_bytes())?;
    Ok(file)
}

fn row(prediction: &Prediction) -> Row {
    let Prediction { algorithm, time_us, allowed } = *prediction;
    Row { algorithm: algorithm.name(), predicted_us: tidy(time_us), allowed }
}

fn tidy(time: f64) -> f64 {
    (time * 1e3).round() / 1e3
}

fn table(told: &Told, standard: &str) -> String {
    let mut text = format!("\n{}: {}, {} us", size(told.bytes), told.choice, number(told.predicted_us));
    if let Some(measured) = told.measured_us {
        let off = (told.predicted_us / measured - 1.0) * 100.0;
        let _ = write!(text, "; measured {} us ({off:+.0} %)", number(measured));
    }
    text.push('\n');
    if let Some(drift) = told.drift.filter(|drift| is_drift(*drift)) {
        let _ = writeln!(
            text,
            "  meanwhile the machine changed: {standard} takes {} times as long as when the figures were measured",
            number(drift)
        );
    }
    for row in told.algorithms.iter().filter(|row| row.algorithm != told.choice) {
        let why = if row.allowed { "" } else { "  (not in rank order)" };
        let _ = writeln!(
            text,
            "  {:<14} {:>10} us  {:>5.2} x{why}",
            row.algorithm,
            number(row.predicted_us),
            row.predicted_us / told.predicted_us
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use fulmen::Algorithm;

    use super::*;

    #[test]
    fn the_choice_comes_first_and_others_with_what_they_would_take() {
        let rows = [("chain", 10.0, true), ("shares", 15.0, true), ("ring", 8.0, false)];
        let mut told = Told {
            operation: "all-reduce",
            ranks: 4,
            bytes: 1 << 20,
            dtype: "f32".into(),
            op: "sum".into(),
            links: "x".into(),
            choice: "chain".into(),
            predicted_us: 10.0,
            measured_us: Some(8.0),
            drift: Some(1.2),
            algorithms: rows.map(|(algorithm, predicted_us, allowed)| Row { algorithm, predicted_us, allowed }).into(),
        };
        let text = table(&told, "y");
        assert!(text.contains("1 MiB: chain, 10 us; measured 8 us (+25 %)"), "{text}");
        assert!(text.contains("1.50 x\n") && text.contains("0.80 x  (not in rank order)"), "{text}");
        assert_eq!((text.matches("chain").count(), text.contains("changed")), (1, false), "{text}");
        for drift in [3.5, 0.5] {
            told.drift = Some(drift);
            let text = table(&told, "all-reduce of 4 MiB by shares");
            assert!(text.contains(&format!("changed: all-reduce of 4 MiB by shares takes {drift} times")), "{text}");
        }
    }

    #[test]
    fn every_algorithm_has_a_row() {
        let links = Links::load("thunderbolt5-mesh-4").unwrap();
        let question = Question {
            operation: Operation::AllReduce,
            ranks: 4,
            bytes: 4096,
            dtype: DType::F32,
            op: ReduceOp::Sum,
            order: Order::Ranks,
        };
        let all = predict(&question, &links);
        let named = |algorithm: Algorithm| all.iter().filter(|one| one.algorithm == algorithm).count();
        assert!(Algorithm::ALL.iter().all(|one| named(*one) == usize::from(*one != Algorithm::Hosts)));
        assert!(all.is_sorted_by(|one, next| one.allowed && !next.allowed || one.time_us <= next.time_us));
        assert!(all.iter().all(|one| one.time_us > 0.0 && one.time_us.is_finite()));
    }
}
