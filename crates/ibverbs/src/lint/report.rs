//! What is said about broken rules: a line for the first time on each object, counts at the end, and records for whoever
//! started the program.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::rule::Rule;

/// Objects that are remembered. A program that breaks a rule on more of them has been told often enough.
const MOST_OBJECTS: usize = 4096;

/// How often a rule was broken.
#[derive(Clone, Copy, Default)]
struct Count {
    times: u64,
    objects: u64,
}

#[derive(Default)]
struct Books {
    /// Who broke the rules that are counted. A child that was forked has nothing to do with what its parent did.
    process: u32,
    told: HashMap<(Rule, u64), ()>,
    counts: BTreeMap<Rule, Count>,
}

/// Where lines and records go.
pub(super) struct Report {
    records: Option<PathBuf>,
    books: Mutex<Books>,
}

impl Report {
    pub(super) fn new(records: Option<&Path>) -> Report {
        Report { records: records.map(Path::to_owned), books: Mutex::default() }
    }

    /// Counts, and tells about the first time on `object`.
    pub(super) fn add(&self, rule: Rule, call: &str, object: u64, what: &dyn Display) {
        if !self.count(rule, object) {
            return;
        }
        let text = format!("{what}; {}; {}", rule.hardware(), rule.way_out());
        eprintln!("fulmen lint: {call}: rule {} broken: {text}", rule.name());
        if let Some(path) = &self.records {
            let record =
                serde_json::json!({ "rule": rule.name(), "call": call, "text": text, "pid": std::process::id() });
            if let Err(error) = append(path, &format!("{record}\n")) {
                eprintln!("fulmen lint: cannot write to {}: {error}", path.display());
            }
        }
    }

    /// Whether this is the first time on this object.
    fn count(&self, rule: Rule, object: u64) -> bool {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if books.process != process {
            books.process = process;
            books.counts.clear();
        }
        let room = books.told.len() < MOST_OBJECTS;
        let first = room && books.told.insert((rule, object), ()).is_none();
        let count = books.counts.entry(rule).or_default();
        count.times += 1;
        count.objects += u64::from(first);
        first
    }

    /// How often each rule was broken: a line for each.
    pub(super) fn summary(&self) -> Vec<String> {
        let books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        if books.process != std::process::id() {
            return Vec::new();
        }
        let line = |(rule, count): (&Rule, &Count)| {
            let Count { times, objects } = *count;
            let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
            let objects = if objects == 1 { "1 object".to_owned() } else { format!("{objects} objects") };
            format!("fulmen lint: rule {} was broken {times}, on {objects}", rule.name())
        };
        books.counts.iter().map(line).collect()
    }
}

/// One write, so that the records of several processes do not mix.
fn append(path: &Path, line: &str) -> std::io::Result<()> {
    OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_object_and_a_count_for_each_rule() {
        let report = Report::new(None);
        assert!(report.count(Rule::OneSge, 1));
        assert!(!report.count(Rule::OneSge, 1));
        assert!(report.count(Rule::OneSge, 2));
        assert!(report.count(Rule::NoInline, 1));
        let lines = report.summary();
        assert_eq!(
            lines,
            [
                "fulmen lint: rule one-sge was broken 3 times, on 2 objects",
                "fulmen lint: rule no-inline was broken once, on 1 object",
            ]
        );
    }

    #[test]
    fn records_are_one_object_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lint.jsonl");
        let report = Report::new(Some(&path));
        report.add(Rule::FourGib, "ibv_reg_mr", 1, &"a \"long\" range");
        report.add(Rule::FourGib, "ibv_reg_mr", 1, &"a range");
        report.add(Rule::OneSge, "ibv_post_send", 2, &"2 elements");
        let text = std::fs::read_to_string(&path).unwrap();
        let records: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(records.len(), 2, "one for the first time on each object");
        assert_eq!(records[0]["rule"], "four-gib");
        assert_eq!(records[0]["call"], "ibv_reg_mr");
        assert_eq!(records[0]["pid"], std::process::id());
        assert!(records[0]["text"].as_str().unwrap().starts_with("a \"long\" range; the driver keeps 32 bits"));
    }
}
