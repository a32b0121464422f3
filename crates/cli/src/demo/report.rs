//! What the demo found, whether it is as it must be, and how it is shown.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bench::{Row, short};
use crate::run::Profile;

/// The share of held-out images that a training that works gets right at least.
const ACCURATE: f64 = 0.9;

/// What the first process tells.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// How far it is.
    Progress { doing: String, done: usize, of: usize },
    /// What came out.
    Report(Box<Report>),
}

/// What came out, as the first process saw it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// How many processes worked together.
    pub ranks: u32,
    /// Images to learn from.
    pub train_rows: usize,
    /// Images to judge by.
    pub held_out_rows: usize,
    /// Passes over the images.
    pub epochs: usize,
    /// Steps of the training, each with one all-reduce.
    pub steps: u64,
    /// Images of a step.
    pub batch: usize,
    /// Time of the training.
    pub training_seconds: f64,
    /// The share of held-out images that were read right.
    pub accuracy: f64,
    /// The share that guessing the most frequent digit gets right.
    pub majority: f64,
    /// Numbers that were learned.
    pub weights: usize,
    /// Ranks whose weights have the bits of the first rank's.
    pub ranks_with_same_bits: u32,
    /// Whether training in one process gave the same bits.
    pub same_bits_as_sequential: bool,
    /// All-reduces of the training, counted on each rank.
    pub all_reduces_of_ranks: Vec<u64>,
    /// Bytes of a gradient.
    pub gradient_bytes: u64,
    /// All-reduces of a few bytes.
    pub latency: Row,
    /// All-reduces of many.
    pub bandwidth: Row,
    /// 10⁹ bytes a second that each rank copies in memory while all do.
    pub memory_copy_gbps: f64,
}

impl Report {
    /// Bytes of gradients that all ranks put into all-reduces.
    fn moved(&self) -> u64 {
        self.all_reduces_of_ranks.iter().sum::<u64>() * self.gradient_bytes
    }

    /// What is not as it must be.
    fn problems(&self, ranks: u32) -> Vec<String> {
        let mut problems = Vec::new();
        let mut must = |holds: bool, problem: &str| {
            if !holds {
                problems.push(problem.to_string());
            }
        };
        must(self.ranks == ranks, "the group has another size than was asked for");
        must(self.accuracy >= ACCURATE, "fewer than 90 % of the held-out images were read right");
        must(self.accuracy > self.majority, "guessing one digit is not worse");
        must(self.ranks_with_same_bits == ranks, "ranks have different weights");
        must(self.same_bits_as_sequential, "training in one process gives other weights");
        must(self.all_reduces_of_ranks == vec![self.steps; ranks as usize], "a rank missed an all-reduce");
        must(self.latency.wrong == 0 && self.bandwidth.wrong == 0, "an all-reduce gave wrong elements");
        must(self.memory_copy_gbps > 0.0 && self.bandwidth.algbw > 0.0, "nothing was measured");
        problems
    }
}

/// How the demo ended.
#[derive(Serialize)]
pub struct Outcome {
    /// Whether everything was as it must be.
    verified: bool,
    /// What was not.
    problems: Vec<String>,
    /// From the command's start to its end.
    seconds: f64,
    /// The launcher's exit code.
    exit_code: u8,
    #[serde(flatten)]
    report: Option<Report>,
}

impl Outcome {
    /// Judges what `ranks` processes did that ended with `code`.
    pub fn new(ranks: u32, report: Option<Report>, code: u8, time: Duration) -> Outcome {
        let mut problems = match &report {
            Some(report) => report.problems(ranks),
            None => vec!["the processes did not finish".to_string()],
        };
        if code != 0 {
            problems.push(format!("a process failed with exit code {code}"));
        }
        let verified = problems.is_empty();
        let exit_code = if code == 0 && !verified { 1 } else { code };
        Outcome { verified, problems, seconds: time.as_secs_f64(), exit_code, report }
    }

    /// The command's exit code.
    pub fn exit_code(&self) -> u8 {
        self.exit_code
    }

    /// The report for people.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, words: String| {
            let _ = writeln!(text, "  {name:<10} {words}");
        };
        if let Some(report) = &self.report {
            let Report { ranks, latency, bandwidth, .. } = report;
            let training = format!(
                "{} passes, {} steps of {} images in {}",
                report.epochs,
                report.steps,
                report.batch,
                span(report.training_seconds)
            );
            line("data", format!("{} images to learn from, {} held out", report.train_rows, report.held_out_rows));
            line("training", training);
            line(
                "accuracy",
                format!(
                    "{:.1} % of the held-out images (always the most frequent digit: {:.1} %)",
                    report.accuracy * 100.0,
                    report.majority * 100.0
                ),
            );
            let equal = if report.same_bits_as_sequential { "those" } else { "not those" };
            line(
                "same bits",
                format!(
                    "{} weights equal on {} of {ranks} ranks, and {equal} of a training in one process",
                    report.weights, report.ranks_with_same_bits
                ),
            );
            line(
                "moved",
                format!(
                    "{} all-reduces of {:.1} KB on each rank: {:.1} MB of gradients",
                    report.steps,
                    report.gradient_bytes as f64 / 1e3,
                    report.moved() as f64 / 1e6
                ),
            );
            line(
                "latency",
                format!(
                    "all-reduce of {} B in {} µs (99 of 100 within {} µs)",
                    latency.bytes,
                    short(latency.p50_us),
                    short(latency.p99_us)
                ),
            );
            line(
                "bandwidth",
                format!(
                    "all-reduce of {} MiB at {} GB/s: {:.0} % of memory's limit, {} GB/s",
                    bandwidth.bytes >> 20,
                    short(bandwidth.algbw),
                    100.0 * bandwidth.algbw / report.memory_copy_gbps,
                    short(report.memory_copy_gbps)
                ),
            );
            line("", "(measured: all ranks copying as many bytes at once)".to_string());
        }
        line("time", span(self.seconds));
        let verdict =
            if self.verified { "verified".to_string() } else { format!("failed: {}", self.problems.join("; ")) };
        line("verdict", verdict);
        text
    }
}

/// A time span in words: `85 ms`, `2.8 s`.
fn span(seconds: f64) -> String {
    if seconds < 0.9995 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.1} s") }
}

/// The first line.
pub fn title(nodes: u32, profile: Option<Profile>) -> String {
    let processes = if nodes == 1 { "1 process learns".to_string() } else { format!("{nodes} processes learn") };
    let over = match profile {
        Some(profile) => format!("the software {} device", profile.name()),
        None => "shared memory".to_string(),
    };
    format!("fulmen demo: {processes} to read handwritten digits, over {over}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            op: "all-reduce".into(),
            bytes: 8 << 20,
            ranks: 2,
            dtype: "f32".into(),
            memory: "registered".into(),
            samples: 5,
            min_us: 1.0,
            p50_us: 2.0,
            p99_us: 3.0,
            algbw: 4.0,
            busbw: 4.0,
            wrong: 0,
            target_cpu_us: None,
            overlap: None,
        }
    }

    fn report() -> Report {
        Report {
            ranks: 2,
            train_rows: 1437,
            held_out_rows: 360,
            epochs: 2,
            steps: 30,
            batch: 96,
            training_seconds: 0.5,
            accuracy: 0.95,
            majority: 0.11,
            weights: 100,
            ranks_with_same_bits: 2,
            same_bits_as_sequential: true,
            all_reduces_of_ranks: vec![30, 30],
            gradient_bytes: 400,
            latency: row(),
            bandwidth: row(),
            memory_copy_gbps: 5.0,
        }
    }

    fn outcome(report: Option<Report>, code: u8) -> (u8, String) {
        let outcome = Outcome::new(2, report, code, Duration::from_secs(1));
        let verdict = outcome.describe().lines().last().unwrap().trim().to_string();
        (outcome.exit_code(), verdict)
    }

    #[test]
    fn everything_right_is_verified() {
        let (code, verdict) = outcome(Some(report()), 0);
        assert_eq!((code, verdict.split_whitespace().collect::<Vec<_>>()), (0, vec!["verdict", "verified"]));
    }

    #[test]
    fn anything_wrong_is_not() {
        let wrong: [fn(&mut Report); 9] = [
            |report| report.ranks = 1,
            |report| report.accuracy = 0.89,
            |report| report.majority = 0.96,
            |report| report.ranks_with_same_bits = 1,
            |report| report.same_bits_as_sequential = false,
            |report| report.all_reduces_of_ranks[1] = 29,
            |report| report.latency.wrong = 1,
            |report| report.bandwidth.wrong = 1,
            |report| report.memory_copy_gbps = 0.0,
        ];
        for (index, spoil) in wrong.into_iter().enumerate() {
            let mut report = report();
            spoil(&mut report);
            let (code, verdict) = outcome(Some(report), 0);
            assert_eq!(code, 1, "{index}");
            assert!(verdict.contains("failed: "), "{index}: {verdict}");
        }
        assert_eq!(outcome(Some(report()), 137).0, 137);
        assert_eq!(outcome(None, 0).0, 1);
    }
}
