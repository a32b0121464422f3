//! What `fulmen trace` prints.

use std::fmt::Write as _;

use fulmen::parts::fabric::recorder::file::{Header, Note, Operation, Phase, Reason};
use serde::Serialize;

use super::findings::{Findings, describe, group_name};
use super::records::World;
use crate::run::name_ranks;

/// How many notes of a rank are shown.
const NOTES: usize = 16;

/// Everything for programs.
#[derive(Serialize)]
pub struct Report<'a> {
    generation: &'a str,
    size: u32,
    /// Nanoseconds on the clock of all times.
    origin: u64,
    #[serde(flatten)]
    findings: &'a Findings,
    ranks: Vec<RankReport<'a>>,
    warnings: &'a [String],
}

#[derive(Serialize)]
struct RankReport<'a> {
    #[serde(flatten)]
    header: &'a Header,
    /// The last ones, oldest first.
    last: &'a [Operation],
    notes: &'a [Note],
}

/// The report for programs.
pub fn report<'a>(world: &'a World, findings: &'a Findings, warnings: &'a [String], last: usize) -> Report<'a> {
    let ranks = world.ranks.values();
    let ranks =
        ranks.map(|read| RankReport { header: &read.header, last: tail(&read.operations, last), notes: &read.notes });
    let World { generation, size, origin, .. } = world;
    Report { generation, size: *size, origin: *origin, findings, ranks: ranks.collect(), warnings }
}

/// The report for people.
pub fn text(world: &World, found: &Findings, last: usize) -> String {
    let mut text =
        format!("world {} of {} ranks, {} with a record\n\n", world.generation, world.size, world.ranks.len());
    match &found.first_failure {
        Some(failure) => {
            let at = Moment(failure.at);
            put(&mut text, &format!("first failure: rank {}, after {at} s: {}", failure.rank, failure.text));
        }
        None => put(&mut text, "no rank has seen a failure"),
    }
    for sentence in &found.sentences {
        put(&mut text, sentence);
    }
    for (rank, read) in &world.ranks {
        let Header { pid, host, reason, operations, torn, .. } = &read.header;
        let why = match reason {
            Reason::Error => "after an error",
            Reason::Signal => "when it was asked",
            Reason::Command => "by the program",
        };
        let at = Moment(read.header.written.saturating_sub(world.origin));
        let torn = if *torn > 0 { format!(", {torn} unreadable") } else { String::new() };
        text.push('\n');
        put(
            &mut text,
            &format!("rank {rank}: process {pid} on {host}, {operations} operations{torn}, written {why} after {at} s"),
        );
        for note in tail(&read.notes, NOTES) {
            let at = Moment(note.at.saturating_sub(world.origin));
            let group = if note.group == 0 { String::new() } else { format!(" ({})", group_name(note.group)) };
            let peer = note.peer.map(|peer| format!(" rank {peer}")).unwrap_or_default();
            let members = match note.members.as_slice() {
                [] => String::new(),
                members => format!(", of {}", name_ranks(members)),
            };
            put(&mut text, &format!("  {at:>14}  note  {}{group}{peer}: {}{members}", note.event, note.text));
        }
        for operation in tail(&read.operations, last) {
            put(&mut text, &format!("  {}", row(world, operation)));
        }
    }
    text
}

fn row(world: &World, operation: &Operation) -> String {
    let mut at = Moment(operation.begin.saturating_sub(world.origin)).to_string();
    if !operation.exact {
        at.insert(0, '~');
    }
    let outcome = match (operation.phase, operation.end) {
        (Phase::Running, _) | (_, None) => "running".to_owned(),
        (Phase::Done, _) if !operation.exact => "done at once".to_owned(),
        (phase, Some(end)) => {
            let took = end.saturating_sub(operation.begin) as f64 / 1e3;
            let word = match phase {
                Phase::Failed => "failed after",
                Phase::LetGo => "let go after",
                _ => "took",
            };
            format!("{word} {took:.1} us")
        }
    };
    format!("{at:>14}  {}, {outcome}", describe(operation))
}

/// A line. Names and errors come out of files: they may hold anything.
fn put(text: &mut String, line: &str) {
    for character in line.chars() {
        if character.is_control() {
            text.extend(character.escape_default());
        } else {
            text.push(character);
        }
    }
    text.push('\n');
}

fn tail<T>(list: &[T], count: usize) -> &[T] {
    &list[list.len().saturating_sub(count)..]
}

/// Nanoseconds as seconds.
struct Moment(u64);

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::new();
        write!(text, "{:.6}", self.0 as f64 / 1e9)?;
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings::find;
    use super::super::records::tests::{call, record, world};
    use super::*;

    #[test]
    fn the_last_operations_are_shown_and_nothing_commands_the_terminal() {
        let mut read = record(0, 1);
        read.header.host = "evil\x1b[2J".into();
        read.operations.extend((1..=5).map(|second| call("barrier", 1, second, second, Some((second, Phase::Done)))));
        let (world, _) = world(vec![read]);
        let shown = text(&world, &find(&world), 2);
        assert_eq!(shown.matches("barrier").count(), 2, "{shown}");
        assert!(shown.contains("barrier 5 of group 1") && !shown.contains('\x1b'), "{shown}");
        let json = serde_json::to_value(report(&world, &find(&world), &[], 3)).unwrap();
        assert_eq!(json["ranks"][0]["last"].as_array().unwrap().len(), 3);
        assert_eq!(json["groups"][0]["done"], serde_json::json!([0]));
    }
}
