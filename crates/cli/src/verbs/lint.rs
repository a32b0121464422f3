//! Summing up which rules of the hardware the programs of a run broke.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::VerbsError;

/// The variable that names the file to which a program appends a [`Record`] for each rule that it broke.
pub const REPORT: &str = "FULMEN_LINT_REPORT";

/// A line of the report, as far as it is needed here.
#[derive(Deserialize)]
struct Record<'a> {
    /// The rule's short name.
    #[serde(borrow)]
    rule: Cow<'a, str>,
}

/// The file that the programs of one run append to.
pub struct Report {
    path: PathBuf,
    /// What was there before the run.
    begin: u64,
}

impl Report {
    /// The file that the user chose, or one in the run's folder.
    pub fn begin(chosen: Option<OsString>, folder: &Path) -> Report {
        let chosen = chosen.filter(|path| !path.is_empty()).and_then(|path| std::path::absolute(path).ok());
        let path = chosen.unwrap_or_else(|| folder.join("lint"));
        let begin = path.metadata().map_or(0, |about| about.len());
        Report { path, begin }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How often each rule was broken, the most frequent first. `None`: none was.
    ///
    /// # Errors
    /// [`VerbsError::Report`].
    pub fn summary(&self) -> Result<Option<String>, VerbsError> {
        let text = self.read().map_err(|error| VerbsError::Report { path: self.path.clone(), error })?;
        Ok(sum_up(&text))
    }

    fn read(&self) -> io::Result<String> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(String::new()),
            file => file?,
        };
        file.seek(SeekFrom::Start(self.begin))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn sum_up(text: &str) -> Option<String> {
    let mut counts: BTreeMap<Cow<'_, str>, usize> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        // A program that was killed while it wrote leaves half a line, which is a broken rule, too.
        let record = serde_json::from_str(line).unwrap_or(Record { rule: "a rule whose record is damaged".into() });
        *counts.entry(record.rule).or_default() += 1;
    }
    let mut rules: Vec<(Cow<'_, str>, usize)> = counts.into_iter().collect();
    rules.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let all: usize = rules.iter().map(|(_, count)| count).sum();
    let mut summary = format!("lint: rules of the hardware were broken {all} {}: ", times(all));
    for (index, (rule, count)) in rules.iter().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let _ = write!(summary, "{comma}{rule} ({count})");
    }
    (all > 0).then_some(summary)
}

fn times(count: usize) -> &'static str {
    if count == 1 { "time" } else { "times" }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn rules_are_counted_by_name() {
        let record = |rule| format!("{{\"rule\":\"{rule}\",\"call\":\"ibv_post_send\",\"text\":\"\",\"pid\":1}}\n");
        let summary = sum_up(&[record("frames"), record("inline"), record("frames"), "\n".into()].concat()).unwrap();
        assert_eq!(summary, "lint: rules of the hardware were broken 3 times: frames (2), inline (1)");
        assert_eq!(sum_up(""), None);
        assert!(sum_up("{\"rule\":\"fra").unwrap().contains("damaged"));
    }

    #[test]
    fn a_chosen_file_counts_from_where_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        fs::write(&path, "{\"rule\":\"old\"}\n").unwrap();
        let report = Report::begin(Some(path.clone().into()), folder.path());
        assert!(report.summary().unwrap().is_none());
        fs::write(&path, "{\"rule\":\"old\"}\n{\"rule\":\"new\"}\n").unwrap();
        let summary = report.summary().unwrap().unwrap();
        assert!(summary.contains("new (1)") && !summary.contains("old"), "{summary}");
    }

    #[test]
    fn no_file_is_no_broken_rule() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Report::begin(None, folder.path()).summary().unwrap().is_none());
    }
}
